"""Lowering for onnxruntime-training: operators and forms that its gradient builder accepts."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxsgd.gradient.native.coverage import passes_gradient
from onnxsgd.graph.gradient_path import find_path
from onnxsgd.graph.lowering.forms import FORMS
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.named_shapes import infer_shapes
from onnxsgd.graph.nodes import attribute, constant, first, operands, rank
from onnxsgd.graph.rewriting import Table, Writer, is_rewritten, rewrite

__all__ = ["NATIVE_FORMS", "is_lowered", "lower_path"]


def lower_path(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> None:
    """Rewrite the nodes between `wrt` and `outputs` by :data:`NATIVE_FORMS`, in place.

    Precondition: types and shapes are inferred. Outputs and inner tensors keep their names.
    """
    while True:
        by_name = {value.name: value for node in model.graph for value in node.outputs}
        by_name.update((value.name, value) for value in model.graph.inputs)
        by_name.update(model.graph.initializers)
        targets = [by_name[name] for name in outputs]
        path = find_path(model.graph, [by_name[name] for name in wrt], targets, passes_gradient)
        if not rewrite(model, NATIVE_FORMS, path.nodes):
            return
        infer_shapes(model)


def is_lowered(node: ir.Node) -> bool:
    """Return whether `node` has a form that is accepted."""
    return is_rewritten(NATIVE_FORMS, node)


def _cast(w: Writer, node: ir.Node) -> ir.Value | None:
    """Drop a Cast to the type of its input: the gradient builder fails on nodes that optimizers remove."""
    return first(node) if first(node).dtype == attribute(node, "to") else None


def _transpose(w: Writer, node: ir.Node) -> ir.Value | None:
    """Write the default permutation explicitly, where the rank is known."""
    dimensions = rank(first(node))
    if attribute(node, "perm") is not None or dimensions is None:
        return None
    return w.op.Transpose(first(node), perm=list(reversed(range(dimensions))))


def _matmul(w: Writer, node: ir.Node) -> ir.Value | None:
    """Multiply by a matrix of one row or one column instead of by a vector."""
    left, right = operands(node)
    if rank(left) is None or rank(right) is None or 1 not in (rank(left), rank(right)):
        return None
    axes = [axis for axis, vector in ((-2, rank(left) == 1), (-1, rank(right) == 1)) if vector]
    row = w.op.Unsqueeze(left, [0]) if rank(left) == 1 else left
    column = w.op.Unsqueeze(right, [1]) if rank(right) == 1 else right
    return w.op.Squeeze(w.op.MatMul(row, column), axes)


def _pow(w: Writer, node: ir.Node) -> ir.Value | None:
    """Write a square as ``x x``; cast an integer exponent to the type of the base."""
    base, exponent = operands(node)
    if (array := constant(exponent)) is not None and array.ndim == 0 and array == 2:
        return w.op.Mul(base, base)
    if exponent.dtype not in (ir.DataType.INT32, ir.DataType.INT64) or base.dtype not in REAL_TYPES:
        return None
    if array is None:
        return w.op.Pow(base, w.op.Cast(exponent, to=base.dtype))
    return w.op.Pow(base, w.tensor("exponent", array.astype(base.dtype.numpy())))


#: Replacements of operators that the builder has no gradient of, or fails on in this form.
NATIVE_FORMS: Table = {
    **FORMS,
    ("", "Cast"): _cast,
    ("", "MatMul"): _matmul,
    ("", "Pow"): _pow,
    ("", "Transpose"): _transpose,
}
