"""Sizes of inputs that a graph leaves open, and the shapes inferred from them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxsgd.graph.integer_folding import fold_integers
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["fix_sizes", "has_unknown_sizes"]


def fix_sizes(
    model: ir.Model, batch_size: int | str, row_shapes: Mapping[str, tuple[int | str, ...]] | None = None
) -> ir.Model:
    """Return a copy of `model` for batches of one size, or of any; inner shapes are inferred anew.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    batch_size : int or str
        The first size of each input that has a shape, or a symbol for it.
    row_shapes : mapping of str to tuple of int or str, or None
        The other sizes of inputs, or symbols for them, needed if the graph leaves them open.
    """
    fixed = model.clone()
    for value in fixed.graph.inputs:
        row_shape = (row_shapes or {}).get(str(value.name))
        if row_shape is not None:
            value.shape = ir.Shape([batch_size, *row_shape])
        elif value.shape is not None and len(value.shape):
            value.shape = ir.Shape([batch_size, *value.shape[1:]])
    for node in fixed.graph:
        for value in node.outputs:
            value.shape = None
    infer = ShapeInferencePass(strict_mode=False)
    infer(fixed)
    # as a rule inference follows sizes that nodes compute
    while has_unknown_sizes(fixed.graph) and fold_integers(fixed, with_samples=isinstance(batch_size, int)):
        infer(fixed)
    return fixed


def has_unknown_sizes(graph: ir.Graph) -> bool:
    """Tell whether inference has left sizes unknown that are not those of inputs."""
    shapes = [value.shape for node in graph for value in node.outputs]
    return any(shape is None or any(map(_is_unknown, shape)) for shape in shapes)


def _is_unknown(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and (size.value is None or str(size.value).startswith("unk__"))
