"""Lowering of standard operators for every engine: overflowing formulas and nodes without effect."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.dropout import acts
from onnxsgd.graph.lowering.forms.activations import softplus
from onnxsgd.graph.nodes import constant, first, operands, standard_operator
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["STANDARD_RULES"]


def _sigmoid_as_quotient(w: Writer, node: ir.Node) -> ir.Value | None:
    """``exp(-log(1 + exp(x)))`` for ``1 / (1 + exp(x))``, whose gradient is 0 times infinity for large x.

    Not a Sigmoid, which the runtime clamps: after a normalisation over classes with very negative scores,
    that would change probabilities.
    """
    *numerator, denominator = operands(node)
    if numerator and not _is_one(numerator[0]):
        return None
    total = denominator.producer()
    if (
        total is None
        or standard_operator(total) != "Add"
        or not any(_is_one(value) for value in total.inputs)
    ):
        return None
    exponential = next((value.producer() for value in operands(total) if not _is_one(value)), None)
    if exponential is None or standard_operator(exponential) != "Exp":
        return None
    return w.op.Exp(w.op.Neg(softplus(w, first(exponential))))


def _is_one(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and array.ndim == 0 and array.dtype.kind == "f" and array == 1.0


def _dropout(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x``, outside training mode, if the mask has no reader, and unless the node acts in training."""
    if acts(node):
        return None
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is not None and (constant(training) is None or constant(training)):
        return None
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return None
    return first(node)


def _number_as_vector(w: Writer, node: ir.Node) -> ir.Value | None:
    """``size`` for ``Reshape(Squeeze(size), [-1])``, a vector of one number.

    Shape inference does not follow sizes through a Reshape, as torch writes them, and loses the shapes after.
    """
    number, target = operands(node)
    squeeze = number.producer()
    if squeeze is None or standard_operator(squeeze) != "Squeeze":
        return None
    sizes, shape = first(squeeze), constant(target)
    return sizes if sizes.shape == (1,) and shape is not None and shape.tolist() in ([-1], [1]) else None


def _cast_to_type(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Cast(x)`` to the type of the other operand, and ``x`` if it has that type.

    A parameter would meet data in the CastLike that torch writes before the scale of a GroupNorm.
    """
    x, like = operands(node)
    if like.dtype is None:
        return None
    if x.dtype == like.dtype:
        return x
    given = {name: entry.value for name, entry in node.attributes.items()}
    return w.op.Cast(x, to=like.dtype.value, **given)


#: The rules of standard operators.
STANDARD_RULES: Table = {
    ("", "CastLike"): _cast_to_type,
    ("", "Div"): _sigmoid_as_quotient,
    ("", "Dropout"): _dropout,
    ("", "Reciprocal"): _sigmoid_as_quotient,
    ("", "Reshape"): _number_as_vector,
}
