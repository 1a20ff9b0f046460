"""Conversion of a model into the versions that every supported runtime reads."""

from __future__ import annotations

import onnx
from onnx import defs

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.model import subgraphs
from onnxsgd.graph.opsets.model_functions import inline_functions, short_domain
from onnxsgd.graph.opsets.newer_opsets import Form, in_older_operators, means_the_same
from onnxsgd.graph.opsets.older_opsets import convert
from onnxsgd.graph.opsets.transformer.contrib import expand_contrib, give_domain

__all__ = ["IR_RANGE", "OPSET_RANGES", "bring_into_range", "in_opset"]

#: The tested versions that the oldest supported runtime, onnxruntime-training 1.19.2, reads.
OPSET_RANGES = {"": (13, 21), "ai.onnx.ml": (1, 5)}
IR_RANGE = (4, 10)

#: The target of models of older opsets: the newest version that the converter supports well.
_UPGRADE_TO = 18
#: The opset of a model that imports no standard operators.
_DEFAULT_OPSET = 18


def bring_into_range(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` in versions of :data:`OPSET_RANGES` and :data:`IR_RANGE`, with functions inlined.

    Cases:

    - an older opset is converted by onnx, see :mod:`onnxsgd.graph.opsets.older_opsets`;
    - a newer opset is replaced by the newest one in the range, and nodes that this lacks are rewritten in
      its operators (see :mod:`onnxsgd.graph.opsets.newer_opsets`); an opset newer than the installed onnx is
      refused;
    - an IR version outside the range is replaced by the nearest one: models that pass the checks of this
      package use no additions of newer ones.

    Parameters
    ----------
    model : ModelProto
        It is not changed.

    Raises
    ------
    GraphError
        A node does not fit the function that it calls.
    UnsupportedError
        The version of a node cannot be converted, or is unknown to the runtime.
    """
    return expand_contrib(_in_range(model))


def _in_range(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    give_domain(result)
    if result.functions:
        result = inline_functions(result)
    _merge_imports(result)
    result.ir_version = min(max(result.ir_version, IR_RANGE[0]), IR_RANGE[1])
    present = next(entry.version for entry in result.opset_import if entry.domain == "")
    oldest, newest = OPSET_RANGES[""]
    if present < oldest:
        return _convert(result, _UPGRADE_TO, f"at least {oldest}")
    if present > defs.onnx_opset_version():
        raise UnsupportedError(
            f"The model imports opset {present}, which the installed onnx {onnx.__version__} does "
            f"not support: opsets up to {defs.onnx_opset_version()} are accepted."
        )
    if present > newest:
        result = in_older_operators(result, newest)
    for entry in result.opset_import:
        newest = OPSET_RANGES.get(entry.domain, (0, entry.version))[1]
        if entry.version > newest:
            _check_same_meaning(result.graph, entry.domain, entry.version, newest)
            entry.version = newest
    return result


def in_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return `model` with nodes of the same meaning in opset `version`.

    Parameters
    ----------
    model : ModelProto
        It is not changed, and returned unchanged if no node needs conversion.
    version : int
        A version of the standard operators.

    Raises
    ------
    UnsupportedError
        A node cannot be converted.
    """
    present = next(entry.version for entry in model.opset_import if entry.domain == "")
    try:
        _check_same_meaning(model.graph, "", present, version)
    except UnsupportedError as error:
        if version > present:
            return _convert(model, version, f"opset {version}")
        # onnx.version_converter downgrades only some operators, and some of these wrongly (onnx 1.18)
        raise UnsupportedError(
            f"A graph of opset {present} has operators that mean something else in the target opset "
            f"{version}: set target_opset to {present}, or more."
        ) from error
    return model


def _merge_imports(model: onnx.ModelProto) -> None:
    """Import each domain once, the standard one under its short name."""
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        domain = short_domain(entry.domain)
        versions[domain] = max(entry.version, versions.get(domain, 0))
    versions.setdefault("", _DEFAULT_OPSET)
    del model.opset_import[:]
    model.opset_import.extend(
        onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()
    )


def _convert(model: onnx.ModelProto, version: int, needed: str) -> onnx.ModelProto:
    try:
        return convert(model, version)
    except Exception as error:
        # the converter of onnx raises RuntimeError and others for an operator without an adapter
        present = next(entry.version for entry in model.opset_import if entry.domain == "")
        raise UnsupportedError(
            f"The model imports opset {present}, {needed} is needed, and the conversion fails: "
            f"{reason(error)}."
        ) from error


def _check_same_meaning(graph: onnx.GraphProto, domain: str, version: int, older: int) -> None:
    """Refuse a node that the older version lacks, or has without these inputs and attributes."""
    for node in graph.node:
        for subgraph in subgraphs([node]):
            _check_same_meaning(subgraph, domain, version, older)
        names = frozenset(attribute.name for attribute in node.attribute)
        form = Form(node.op_type, names, len(node.input), len(node.output))
        if short_domain(node.domain) == domain and not means_the_same(form, domain, version, older):
            raise UnsupportedError(
                f"Node {node.name!r}, a {node.op_type} of opset {version}, does not exist in this form in "
                f"opset {older}, which the runtime reads: export the model for that opset."
            )
