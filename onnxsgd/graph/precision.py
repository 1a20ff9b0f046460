"""The same graph in another floating-point type."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxsgd.graph.kernels import write_out_missing_kernels
from onnxsgd.graph.model import REAL_TYPES

__all__ = ["with_precision"]

#: Attributes that hold an element type: of Cast, and of the operators that create tensors.
_TYPE_ATTRIBUTES = ("to", "dtype")


def with_precision(model: ir.Model, dtype: ir.DataType) -> ir.Model:
    """Return a copy of `model` in which every tensor of a real type has the type `dtype`.

    Precondition: no functions, and no operators whose result is float32 whatever goes in, as those of
    ``ai.onnx.ml`` have it; :func:`onnxsgd.graph.lower.lower_for_training` gives such models. Operators
    that no runtime has a kernel for in that type are written out.
    """
    copy = model.clone()
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in _values(graph):
            if value.dtype in REAL_TYPES:
                value.dtype = dtype
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _convert(value.const_value, dtype)
        for node in graph:
            _convert_attributes(node, dtype)
    write_out_missing_kernels(copy)
    return copy


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _convert(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    if tensor.dtype not in REAL_TYPES:
        return tensor
    return ir.tensor(tensor.numpy().astype(dtype.numpy()), name=tensor.name)


def _convert_attributes(node: ir.Node, dtype: ir.DataType) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR:
            node.attributes[name] = ir.AttrTensor(name, _convert(attribute.as_tensor(), dtype))
        elif name in _TYPE_ATTRIBUTES and attribute.as_int() in REAL_TYPES:
            node.attributes[name] = ir.AttrInt64(name, dtype)
