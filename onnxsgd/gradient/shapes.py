"""Types and shapes of every value of a graph, with a name for each dimension that has none."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

__all__ = ["infer_shapes", "named_dims"]


def infer_shapes(model: ir.Model) -> None:
    """Infer the type and the shape of every value of `model`, in place.

    What is written in the graph about computed values is believed only where nothing can be inferred:
    converters get shapes wrong. Dimensions of inputs without a name get one, so that sizes which are equal
    are known to be.
    """
    graph = model.graph
    for value in graph.inputs:
        value.shape = named_dims(value.shape, str(value.name))
    for value in graph.initializers.values():
        if value.const_value is not None:
            value.shape, value.dtype = ir.Shape(value.const_value.shape.numpy()), value.const_value.dtype
    declared = {value: value.shape for node in graph for value in node.outputs}
    for value in declared:
        value.shape = None
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    for value, shape in declared.items():
        if value.shape is None:
            value.shape = shape


def named_dims(shape: ir.Shape | None, owner: str) -> ir.Shape | None:
    """Return `shape` with a name, made from `owner`, for each dimension that has none."""
    if shape is None:
        return None
    return ir.Shape(
        [
            dim if isinstance(dim, int) else dim.value or f"{owner}_dim_{axis}"
            for axis, dim in enumerate(shape)
        ]
    )
