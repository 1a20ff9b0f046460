"""Types and shapes of every value of a graph, with a name for each dimension that has none."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxsgd.graph.nodes import required
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["infer_shapes", "named_dims"]


def infer_shapes(model: ir.Model) -> None:
    """Infer the type and the shape of every value of `model`, in place.

    The shapes that the graph declares for computed values are used only where none can be inferred:
    converters get shapes wrong. Unnamed dimensions of inputs get a name, so that equal sizes are known to
    be equal.
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
    infer = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    infer(model)
    while _complete_types(graph):
        infer(model)
    for value, shape in declared.items():
        if value.shape is None:
            value.shape = shape


def _complete_types(graph: ir.Graph) -> bool:
    """Copy types between operands that must share one, and return whether any was copied.

    No inference passes operators of other domains, which may stand before the first weight.
    """
    found = False
    for node in graph:
        unknown = [
            index for index, value in enumerate(node.inputs) if value is not None and value.dtype is None
        ]
        if unknown and node.domain == "" and onnx.defs.has(node.op_type):
            schema = onnx.defs.get_schema(node.op_type, graph.opset_imports[""])
            kinds = [parameter.type_str for parameter in schema.inputs]
            for index in unknown:
                found |= _take_type(node, kinds, index)
    return found


def _take_type(node: ir.Node, kinds: list[str], index: int) -> bool:
    # the last parameter may be variadic
    kind = kinds[min(index, len(kinds) - 1)]
    value = required(node, index)
    for other, also in zip(node.inputs, kinds, strict=False):
        if also == kind and other is not None and other.dtype is not None:
            value.dtype = other.dtype
            return True
    return False


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
