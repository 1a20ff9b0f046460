"""Sizes: of inputs where a graph leaves them open, and of what follows from them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

__all__ = ["fix_sizes", "infer_sizes"]

#: Operators of ai.onnx.ml whose result has the shape of their first operand, which inference does not know.
_SHAPE_KEEPING = frozenset({"Binarizer", "Imputer", "LabelEncoder", "Normalizer", "Scaler"})


def fix_sizes(
    model: ir.Model, batch_size: int | str, row_shapes: Mapping[str, tuple[int, ...]] | None = None
) -> ir.Model:
    """Return a copy of `model` for batches of one size, or of any; shapes inside are inferred anew.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    batch_size : int or str
        The first size of each input that has a shape, or a symbol for it.
    row_shapes : mapping of str to tuple of int, or None
        The other sizes of inputs, needed where the graph leaves them open.
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
    return infer_sizes(fixed)


def infer_sizes(model: ir.Model) -> ir.Model:
    """Return `model` with the shapes inside that can be inferred; it is changed in place."""
    inferred = ShapeInferencePass(strict_mode=False)(model).model
    # each round gives the operators behind the last one their shape
    while _keep_shapes(inferred.graph):
        inferred = ShapeInferencePass(strict_mode=False)(inferred).model
    return inferred


def _keep_shapes(graph: ir.Graph) -> bool:
    """Set shapes that the standard's inference leaves open; return whether there was one to set."""
    changed = False
    for node in graph:
        output, source = node.outputs[0], node.inputs[0] if node.inputs else None
        keeps = node.domain == "ai.onnx.ml" and node.op_type in _SHAPE_KEEPING
        if keeps and source is not None and source.shape is not None and output.shape is None:
            output.shape = source.shape
            if output.type is None and node.op_type != "LabelEncoder":
                output.type = source.type
            changed = True
    return changed
