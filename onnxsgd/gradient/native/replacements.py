"""The writer of replacements, for the rules that rewrite a gradient graph.

It copies types from other values: the builder of :mod:`onnxsgd.graph.rewriting` infers them, which fails
after operators of the runtime, and takes fifty times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import first, maker
from onnxsgd.graph.writing import computed, new_node

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["Writer", "element_type"]


class Writer:
    """Writer of the nodes that replace one node.

    Attributes
    ----------
    opset : int
        The version of the standard operators in the graph.
    nodes : list of ir.Node
        The nodes written so far.
    constants : list of ir.Value
        The initializers that these nodes read, not yet named.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def op(
        self, op_type: str, *inputs: ir.Value | None, like: ir.Value | None = None, **attributes: Any
    ) -> ir.Value:
        """Write a node of the standard domain and return its output, of the type and shape of `like`."""
        output = computed(op_type, inputs, attributes, like=like)
        self.nodes.append(maker(output))
        return output

    def ops(
        self, op_type: str, *inputs: ir.Value | None, n_outputs: int, **attributes: Any
    ) -> Sequence[ir.Value]:
        """Write a node of the standard domain and return its outputs."""
        outputs = [ir.Value() for _ in range(n_outputs)]
        self.nodes.append(new_node(op_type, inputs, outputs, attributes))
        return outputs

    def constant(self, array: ArrayLike, dtype: DTypeLike | None) -> ir.Value:
        """Return an initializer."""
        tensor = ir.tensor(np.asarray(array, dtype))
        value = ir.Value(
            type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.constants.append(value)
        return value

    def ints(self, values: Sequence[int]) -> ir.Value:
        """Return a vector of integers."""
        return self.constant(values, np.int64)

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """Return a scalar of the element type of `like`."""
        return self.constant(value, element_type(like).numpy())

    def zeros(self, shape: ir.Value, like: ir.Value) -> ir.Value:
        """Write zeros of the element type of `like`."""
        return self.op("ConstantOfShape", shape, value=ir.tensor(np.zeros(1, element_type(like).numpy())))


def element_type(value: ir.Value) -> ir.DataType:
    """Return the element type of `value`; where it is missing, that of its producer's first input."""
    while value.dtype is None:
        value = first(maker(value))
    return value.dtype
