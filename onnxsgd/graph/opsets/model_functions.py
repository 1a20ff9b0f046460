"""Functions that a model defines, put into its graph."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import defs, inliner

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError, UnsupportedError
from onnxsgd.graph.model import subgraphs

__all__ = ["inline_functions", "short_domain"]


def short_domain(domain: str) -> str:
    """Return the short name of the domain of standard operators, any other one unchanged."""
    return "" if domain == "ai.onnx" else domain


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without functions, each replaced by its nodes where it is called.

    Parameters
    ----------
    model : ModelProto
        A valid model; its functions get its opset, in place.

    Raises
    ------
    GraphError
        A node has more operands than the function that it calls.
    UnsupportedError
        A function imports another opset, in which one of its operators means something else.
    """
    _unify_opsets(model)
    try:
        return inliner.inline_local_functions(model)
    except RuntimeError as error:
        # no checker compares the operands of a node with those of its function
        raise GraphError(f"The functions of the model cannot be inlined: {reason(error)}.") from error


def _unify_opsets(model: onnx.ModelProto) -> None:
    """Give functions the opset of the model, in place: onnx inlines no other ones.

    The checker accepts other ones if their nodes mean the same; it does not compare those of subgraphs.
    """
    versions = {short_domain(entry.domain): entry.version for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
            entry.domain = short_domain(entry.domain)
            wanted = versions.get(entry.domain, entry.version)
            if entry.version != wanted:
                _check_same_version(function, function.node, entry, wanted)
            entry.version = wanted


def _check_same_version(
    function: onnx.FunctionProto,
    nodes: Iterable[onnx.NodeProto],
    present: onnx.OperatorSetIdProto,
    wanted: int,
) -> None:
    """Refuse operators of a function, in subgraphs too, that changed between its opset and the wanted one."""
    for node in nodes:
        for subgraph in subgraphs([node]):
            _check_same_version(function, subgraph.node, present, wanted)
        if short_domain(node.domain) != present.domain:
            continue
        if _since(node, present.domain, present.version) != _since(node, present.domain, wanted):
            raise UnsupportedError(
                f"The function {function.name!r} imports opset {present.version}, and the model {wanted}: "
                f"its {node.op_type} changed between them. Export the function for opset {wanted}."
            )


def _since(node: onnx.NodeProto, domain: str, version: int) -> int | None:
    """Return the opset that defined an operator as `version` has it; None for an unknown operator."""
    try:
        found: int = defs.get_schema(node.op_type, version, domain).since_version
    except defs.SchemaError:
        return None
    return found
