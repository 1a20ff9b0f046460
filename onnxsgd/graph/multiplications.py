"""The number of multiplications of a graph, estimated from the shapes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, fixed_size, rank, required, standard_operator
from onnxsgd.graph.sizes import fix_sizes

__all__ = ["Multiplications", "count_multiplications"]


@dataclass(frozen=True)
class Multiplications:
    """The multiplications of a graph for one batch.

    Attributes
    ----------
    total : int
        Those of products, convolutions and recurrent layers; others are left out.
    of_tables : int
        Those of products of two matrices: layers of rows without further axes.
    """

    total: int
    of_tables: int


def count_multiplications(
    model: ir.Model, batch_size: int, row_shapes: Mapping[str, tuple[int | str, ...]]
) -> Multiplications:
    """Return the multiplications of a batch; operators whose shapes stay open count as none.

    Parameters
    ----------
    model : ir.Model
        The graph.
    batch_size : int
        Rows of the batch.
    row_shapes : mapping of str to tuple
        The other sizes of its inputs.
    """
    total, of_tables = 0, 0
    for node in fix_sizes(model, batch_size, row_shapes).graph:
        count = _COUNTS.get(standard_operator(node))
        found = 0 if count is None else count(node)
        total += found
        if rank(node.outputs[0]) == 2:
            of_tables += found
    return Multiplications(total, of_tables)


def _size(value: ir.Value | None) -> int:
    """Return the number of elements of a tensor, 0 if its shape is open."""
    shape = None if value is None else value.shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        return 0
    return math.prod(shape.numpy())


def _of_matrices(node: ir.Node) -> int:
    first = node.inputs[0]
    shape = None if first is None else first.shape
    inner = None if not shape else shape[0 if attribute(node, "transA", 0) else -1]
    return _size(node.outputs[0]) * inner if isinstance(inner, int) else 0


def _of_kernel(node: ir.Node, axis: int) -> int:
    """Return the elements of the kernel that one element of a convolution has."""
    size = _size(node.inputs[1])
    return size // fixed_size(required(node, 1), axis) if size else 0


def _of_steps(node: ir.Node) -> int:
    first = node.inputs[0]
    shape = None if first is None else first.shape
    steps = [] if shape is None else [size for size in shape[:2] if isinstance(size, int)]
    return math.prod(steps) * (_size(node.inputs[1]) + _size(node.inputs[2])) if len(steps) == 2 else 0


#: The multiplications of an operator.
_COUNTS: Mapping[str, Callable[[ir.Node], int]] = {
    "MatMul": _of_matrices,
    "Gemm": _of_matrices,
    "Conv": lambda node: _size(node.outputs[0]) * _of_kernel(node, 0),
    "ConvTranspose": lambda node: _size(node.inputs[0]) * _of_kernel(node, 0),
    "RNN": _of_steps,
    "GRU": _of_steps,
    "LSTM": _of_steps,
}
