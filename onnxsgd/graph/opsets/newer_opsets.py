"""Newer operators, written in operators of the oldest supported runtime."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import defs
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.model import nodes_within, to_ir, to_proto
from onnxsgd.graph.nodes import attribute, operands, rank
from onnxsgd.graph.opsets.function_bodies import expand_functions
from onnxsgd.graph.opsets.transformer.standard_opset_23 import STANDARD_RULES
from onnxsgd.graph.rewriting import Table, Writer, rewrite
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["Form", "in_older_operators", "means_the_same"]


@dataclass(frozen=True)
class Form:
    """The form of a node: its operator, the names of its attributes, the numbers of inputs and outputs."""

    op_type: str
    attributes: frozenset[str]
    n_inputs: int
    n_outputs: int


def in_older_operators(model: onnx.ModelProto, newest: int) -> onnx.ModelProto:
    """Return an equivalent of `model` in operators of opset `newest`, as far as possible.

    Cases:

    - TensorScatter, CumProd, RMSNormalization, RotaryEmbedding and the usual forms of Attention are
      rewritten by rules of this package, in the main graph;
    - operators that the standard defines by others (all but the first two, Swish and the like) are replaced
      by that definition if no rule applies, in subgraphs as well;
    - an attribute that `newest` lacks is dropped if its value is the behaviour of `newest`.

    Parameters
    ----------
    model : ModelProto
        Of a newer opset, without model-local functions. It is not changed, and returned unchanged if every
        node exists in `newest`. The result still declares its opset.
    newest : int
        A version of the standard operators.

    Raises
    ------
    UnsupportedError
        An operand has a type that its operator does not take in `newest`.
    """
    present = next(entry.version for entry in model.opset_import if entry.domain == "")
    result = to_ir(model)
    ShapeInferencePass(strict_mode=False, data_prop=True)(result)
    kept = all(_is_old(node, present, newest) for node in nodes_within(result.graph))
    if not kept:
        for node in nodes_within(result.graph):
            _drop_attributes(node, present, newest)
        while rewrite(result, _RULES):
            ShapeInferencePass(strict_mode=False, data_prop=True)(result)
        result = expand_functions(result, lambda node: not _is_old(node, present, newest))
        ShapeInferencePass(strict_mode=False, data_prop=True)(result)
        RemoveUnusedNodesPass()(result)
    _check_types(result, present, newest)
    return model if kept else to_proto(result)


def means_the_same(form: Form, domain: str, version: int, older: int) -> bool:
    """Return whether a node of `version` has the same meaning in an `older` one.

    Between the versions that this package reads, operators with unchanged inputs and attributes only gained
    types.
    """
    try:
        new, old = (defs.get_schema(form.op_type, v, domain) for v in (version, older))
    except defs.SchemaError:
        return False
    return new.since_version == old.since_version or (
        form.attributes <= set(old.attributes)
        and form.n_inputs <= old.max_input
        and form.n_outputs <= old.max_output
    )


def _is_old(node: ir.Node, present: int, older: int) -> bool:
    form = Form(node.op_type, frozenset(node.attributes), len(node.inputs), len(node.outputs))
    return node.domain != "" or means_the_same(form, "", present, older)


def _drop_attributes(node: ir.Node, present: int, older: int) -> None:
    """Drop the attributes that the older version lacks, if they have their defaults, in place."""
    try:
        new, old = (defs.get_schema(node.op_type, version, node.domain) for version in (present, older))
    except defs.SchemaError:
        return
    for name in set(new.attributes) - set(old.attributes):
        given, default = node.attributes.get(name), new.attributes[name].default_value
        if given is not None and (
            given.value == onnx.helper.get_attribute_value(default) or (node.op_type, name) in _WITHOUT_EFFECT
        ):
            node.attributes.pop(name)


def _check_types(model: ir.Model, present: int, older: int) -> None:
    """Refuse operands of an element type that the older version of their operator does not take."""
    for node in nodes_within(model.graph):
        if node.domain == "" and _is_old(node, present, older):
            parameters = defs.get_schema(node.op_type, older, "").inputs
            for parameter, value in zip(parameters, node.inputs, strict=False):
                if value is not None and value.dtype is not None and not _takes(parameter.types, value):
                    raise UnsupportedError(
                        f"Node {node.name!r}, a {node.op_type} of opset {present}, takes {value.dtype} for "
                        f"{value.name!r}, which it does not in opset {older}, the newest that is read."
                    )


def _takes(types: Collection[str], value: ir.Value) -> bool:
    name = f"tensor({str(value.dtype).lower()})"
    return name in types or not any(kind.startswith("tensor(") for kind in types)


#: Attributes that matter only for types that no older version has.
_WITHOUT_EFFECT = frozenset({("Cast", "round_mode"), ("CastLike", "round_mode")})


def _tensor_scatter(w: Writer, node: ir.Node) -> ir.Value | None:
    """``cache[i, ..., start_i + t, ...] = update[i, ..., t, ...]``, modulo the length if it is circular."""
    cache, update, *starts = operands(node)
    if (dimensions := rank(cache)) is None:
        return None
    axis = attribute(node, "axis", -2) % dimensions
    shape = w.op.Shape(update)
    zero, one = np.array(0, np.int64), np.array(1, np.int64)
    length = w.op.Squeeze(w.op.Shape(update, start=axis, end=axis + 1))
    places = _along(w, w.op.Range(w.tensor("zero", zero), length, w.tensor("one", one)), axis, dimensions)
    if starts:
        places = w.op.Add(places, _along(w, starts[0], 0, dimensions))
    if attribute(node, "mode", "linear") == "circular":
        places = w.op.Mod(places, w.op.Shape(cache, start=axis, end=axis + 1))
    return w.op.ScatterElements(cache, w.op.Expand(places, shape), update, axis=axis)


def _along(w: Writer, vector: ir.Value, axis: int, dimensions: int) -> ir.Value:
    """Return `vector` along `axis` of a tensor of rank `dimensions`."""
    return w.op.Unsqueeze(vector, [other for other in range(dimensions) if other != axis])


def _cumulative_product(w: Writer, node: ir.Node) -> ir.Value:
    """Multiply over a triangle: element i is the product of row i, in which later elements are 1.

    Memory for each element: the length of the axis.
    """
    x, axis = operands(node)
    shape, axis = w.op.Shape(x), w.op.Reshape(axis, [1])
    length, before = w.op.Gather(shape, axis), w.op.Slice(shape, [0], axis)
    outer = w.reduce("ReduceProd", before, [0])
    rows = w.op.Reshape(x, w.op.Concat(outer, [1], length, [-1], axis=0))
    taken = w.op.Unsqueeze(_triangle(w, node, w.op.Concat(length, length, axis=0)), [2])
    products = w.reduce("ReduceProd", w.op.Where(taken, rows, w.op.CastLike(1.0, x)), [2], keepdims=0)
    return w.op.Reshape(products, shape)


def _triangle(w: Writer, node: ir.Node, shape: ir.Value) -> ir.Value:
    """Return a boolean matrix: True where row i takes element j."""
    reverse, exclusive = attribute(node, "reverse", 0), attribute(node, "exclusive", 0)
    ones = w.op.Expand(w.tensor("one", np.array(1, np.int64)), shape)
    diagonal = w.tensor("diagonal", np.array(exclusive if reverse else -exclusive, np.int64))
    # in integers: not every runtime has a Trilu of booleans
    return w.op.Cast(w.op.Trilu(ones, diagonal, upper=reverse), to=ir.DataType.BOOL)


#: Rules for operators that the standard does not define by others, or not in known shapes.
_RULES: Table = {
    **STANDARD_RULES,
    ("", "CumProd"): _cumulative_product,
    ("", "TensorScatter"): _tensor_scatter,
}
