"""The writer of nodes of a gradient graph.

Rules write formulas of tensors whose shapes, also computed ones, and types are known as they are written: a
builder of other graphs has neither, and infers types, at fifty times the time of a node.
Python numbers become constants of the element type of the other operands, lists of ints become int64
vectors. The same operator on the same operands is written once: rules may repeat themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.writing.known_shapes import (
    Dims,
    read_shape,
    result_dims,
    to_shape,
)
from onnxsgd.gradient.portable.writing.tensor import Tensor
from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.writing import new_node, take_nodes

__all__ = ["Emitter"]

_BOOLEAN, _INT64 = having(Fact.BOOLEAN), having(Fact.INT64)


class Emitter:
    """Writer of nodes of a graph under construction.

    Parameters
    ----------
    opset : int
        The version of the standard operators that the graph imports.
    prefix : str
        The start of new names, before a number; no other name of the graph may start with it.
    """

    def __init__(self, opset: int, prefix: str) -> None:
        self.opset = opset
        self.prefix = prefix
        self.nodes: list[ir.Node] = []
        self._written: dict[tuple[Any, ...], list[Tensor]] = {}
        self._tensors: dict[ir.Value, Tensor] = {}
        self._numbers = itertools.count(1)
        self._parent: Emitter | None = None

    def tensor(self, value: ir.Value, dims: Dims = None) -> Tensor:
        """Return the tensor of a value of the graph; `dims` is its shape where that is known."""
        if value not in self._tensors:
            if dims is None and self._parent is not None and value in self._parent._tensors:
                dims = self._parent._tensors[value].dims
            elif dims is None:
                dims = read_shape(value.shape, value.name or "")
            self._tensors[value] = Tensor(self, value, value.dtype, dims)
        return self._tensors[value]

    def constant(self, array: np.ndarray) -> Tensor:
        """Return a constant."""
        key = ("Constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._written:
            value = {"value": ir.Tensor(array)}
            dtype = ir.DataType.from_numpy(array.dtype)
            self._written[key] = self.append("Constant", [], value, [(dtype, array.shape)])
        return self._written[key][0]

    def child(self) -> Emitter:
        """Return an emitter for a subgraph, whose names differ from those given here."""
        child = Emitter(self.opset, self.prefix)
        child._numbers, child._parent = self._numbers, self
        return child

    def borrow(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the graph around this one, for use in this one."""
        return self.tensor(tensor.value, tensor.dims)

    def inline(self, graph: ir.Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Append the nodes of a subgraph, its inputs replaced by `arguments`, and return its outputs."""
        clone = graph.clone(allow_outer_scope_values=True)
        replaced = list(zip(clone.inputs, arguments, strict=True))
        for value in clone.initializers.values():
            if value.const_value is not None:
                replaced.append((value, self.constant(value.const_value.numpy()).value))
        for value, argument in replaced:
            value.replace_all_uses_with(argument, replace_graph_outputs=True)
        for node in nodes_within(clone):
            for value in node.outputs:
                value.name = self.new_name() if value.name else value.name
        outputs = list(clone.outputs)
        self.nodes.extend(take_nodes(clone))
        return outputs

    def graph(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> ir.Graph:
        """Return the appended nodes as a subgraph, with a separate value for each result."""
        made = {value for node in self.nodes for value in node.outputs}
        outputs: list[ir.Value] = []
        for tensor in results:
            is_new = tensor.value in made and tensor.value not in outputs
            outputs.append(tensor.value if is_new else self.copy(tensor).value)
        return ir.Graph([tensor.value for tensor in inputs], outputs, nodes=self.nodes, name=self.new_name())

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a separate value that equals `tensor`."""
        return self.append("Identity", [tensor.value], {}, [(tensor.dtype, tensor.dims)])[0]

    def new_name(self) -> str:
        """Return a name that the graph does not use."""
        return f"{self.prefix}{next(self._numbers)}"

    def emit(
        self, op_type: str, arguments: Sequence[object], attributes: dict[str, Any], outputs: int
    ) -> list[Tensor]:
        """Append one node, or find an equal one, and return its outputs."""
        first = next(argument for argument in arguments if isinstance(argument, Tensor))
        dtype = _element_type(arguments)
        operands = [self._operand(argument, dtype) for argument in arguments]
        key = (
            op_type,
            outputs,
            *(operand and id(operand.value) for operand in operands),
            *((k, str(v)) for k, v in attributes.items()),
        )
        if key not in self._written:
            kind = _result_type(op_type, attributes, first, dtype)
            dims = [result_dims(op_type, attributes, arguments), *[None] * (outputs - 1)]
            inputs = [None if operand is None else operand.value for operand in operands]
            self._written[key] = self.append(op_type, inputs, attributes, [(kind, d) for d in dims])
        return self._written[key]

    def _operand(self, argument: Any, dtype: ir.DataType | None) -> Tensor | None:
        if argument is None or isinstance(argument, Tensor):
            return argument
        if isinstance(argument, np.ndarray):
            return self.constant(argument)
        if isinstance(argument, (list, tuple)):
            return self.constant(np.array(argument, dtype=np.int64))
        return self.constant(np.array(argument, dtype=(dtype or ir.DataType.FLOAT).numpy()))

    def append(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        results: Sequence[tuple[ir.DataType | None, Dims]],
    ) -> list[Tensor]:
        """Append one node, whose results have the given types and shapes, and return them."""
        tensors = []
        for dtype, dims in results:
            kind = None if dtype is None else ir.TensorType(dtype)
            value = ir.Value(name=self.new_name(), shape=to_shape(dims), type=kind)
            tensors.append(Tensor(self, value, dtype, dims))
        outputs = [tensor.value for tensor in tensors]
        self.nodes.append(new_node(op_type, inputs, outputs, attributes, name=outputs[0].name))
        return tensors


def _result_type(
    op_type: str, attributes: dict[str, Any], first: Tensor, dtype: ir.DataType | None
) -> ir.DataType | None:
    if op_type in _BOOLEAN:
        return ir.DataType.BOOL
    if op_type in _INT64:
        return ir.DataType.INT64
    if op_type == "Cast":
        return ir.DataType(attributes["to"])
    return dtype if op_type == "Where" else first.dtype


def _element_type(arguments: Sequence[object]) -> ir.DataType | None:
    """Return the type that numbers among `arguments` take: that of a real tensor, else of any but bool."""
    types = [t.dtype for t in arguments if isinstance(t, Tensor) and t.dtype is not None]
    order = {ir.DataType.BOOL: 2}
    return min(types, key=lambda dtype: 0 if dtype.is_floating_point() else order.get(dtype, 1), default=None)
