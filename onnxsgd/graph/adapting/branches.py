"""Branches of adapters beside the nodes that read frozen weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.adapting.adapted_nodes import CONVOLUTION, EMBEDDING, LINEAR, AdaptedNode, adapted_nodes
from onnxsgd.graph.model import ADAPTER, FROZEN, graph_names, unique_name
from onnxsgd.graph.nodes import (
    attribute,
    element_type,
    fixed_size,
    graph_of,
    maker,
    shape_of,
)
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.graph.writing import add_initializer, computed, displace

__all__ = ["Adapter", "add_branches"]


@dataclass(frozen=True)
class Adapter:
    """An adapter of one weight.

    Attributes
    ----------
    weight : str
        The frozen initializer.
    down, up : str
        The trained initializers A and B, of shapes [n_inputs, rank] and [rank, n_outputs]; of a convolution
        [rank, n_channels, ...] and [n_outputs, rank, 1, ...].
    scale : float
        The factor of their product.
    is_transposed : bool
        Whether a matrix is stored with the outputs first.
    kind : {"linear", "convolution", "embedding"}
        The first use of the weight.
    """

    weight: str
    down: str
    up: str
    scale: float
    is_transposed: bool
    kind: str = LINEAR

    @property
    def names(self) -> tuple[str, str]:
        """The trained initializers."""
        return self.down, self.up

    def first_values(
        self, shapes: Mapping[str, tuple[int, ...]], generator: np.random.RandomState
    ) -> dict[str, np.ndarray]:
        """Return the values before training, those of peft: the adapter then adds zero."""
        if self.kind == EMBEDDING:
            return {self.down: np.zeros(shapes[self.down]), self.up: generator.normal(size=shapes[self.up])}
        bound = 1.0 / math.sqrt(self._n_read(shapes))
        return {
            self.down: generator.uniform(-bound, bound, shapes[self.down]),
            self.up: np.zeros(shapes[self.up]),
        }

    def rate_units(
        self, shapes: Mapping[str, tuple[int, ...]], size_of_inputs: np.ndarray | float = 1.0
    ) -> dict[str, float]:
        """Return the factors of normalised updates that change the product as those of a full weight do.

        A step of the matrix that starts at zero, by its unit, changes the weight by vectors of length 1; a
        step of the other one changes it by its first size.

        Parameters
        ----------
        shapes : mapping of str to tuple of int
            The shapes of A and B.
        size_of_inputs : ndarray or float
            The factor between the rows, or channels, of A and those that are trained, on standardised inputs.
        """
        if self.kind == EMBEDDING:
            return {self.down: 1.0 / (self.scale * math.sqrt(shapes[self.up][1])), self.up: 1.0}
        n_read = self._n_read(shapes)
        size = math.sqrt(np.mean(np.square(size_of_inputs)) / (3.0 * n_read))
        return {self.down: size, self.up: 1.0 / (self.scale * math.sqrt(n_read) * size)}

    def _n_read(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the numbers that each column, or kernel, of A reads."""
        shape = shapes[self.down]
        return math.prod(shape[1:]) if self.kind == CONVOLUTION else shape[0]

    def change(self, down: np.ndarray, up: np.ndarray) -> np.ndarray:
        """Return the change of the weight that has the same effect, in float64."""
        down, up = down.astype(np.float64), up.astype(np.float64)
        if self.kind == CONVOLUTION:
            return np.asarray(self.scale * np.tensordot(up.reshape(up.shape[:2]), down, axes=1))
        product: np.ndarray = self.scale * (down @ up)
        return product.T if self.is_transposed else product


def add_branches(
    model: ir.Model, weights: Sequence[str], rank: int, scale: float
) -> tuple[ir.Model, tuple[Adapter, ...]]:
    """Return `model` with an adapter beside each of `weights`, and the adapters.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    weights : sequence of str
        Initializers that :func:`onnxsgd.graph.adapting.adapted_nodes.can_be_adapted` accepts.
    rank : int
        The columns of A.
    scale : float
        The factor of the product.

    Notes
    -----
    Each node that reads the weight gets a branch ``Add(node, MatMul(Mul(MatMul(x, A), scale), B))``, and the
    sum takes the name of its result. In place of the products with A and B, a convolution has one with the
    attributes of the node and one of kernels of size 1, and an embedding a Gather of rows of A. A weight that
    several nodes read has one adapter for all of them.
    """
    copy = model.clone()
    names = graph_names(copy.graph)
    made = tuple(_add_branch(copy.graph.initializers[name], rank, scale, names) for name in weights)
    ShapeInferencePass(strict_mode=False)(copy)
    return copy, made


def _add_branch(weight: ir.Value, rank: int, scale: float, names: set[str]) -> Adapter:
    nodes, name, graph = adapted_nodes(weight), str(weight.name), weight.graph
    if isinstance(nodes, str) or not isinstance(graph, ir.Graph):
        raise LookupError(f"{name!r} has no place for an adapter")
    place = nodes[0]
    adapter = Adapter(
        weight=name, down=unique_name(f"{name}.lora_A", names), up=unique_name(f"{name}.lora_B", names),
        scale=scale, is_transposed=place.is_transposed, kind=place.kind,
    )  # fmt: skip
    shapes = dict(zip(adapter.names, _shapes(weight, place, rank), strict=True))
    # estimators draw other values, with their seed
    values = adapter.first_values(shapes, np.random.RandomState(0))
    dtype = element_type(place.result).numpy()
    for key, array in values.items():
        add_initializer(graph, key, array.astype(dtype)).metadata_props[ADAPTER] = name
    for node in nodes:
        _add_to(node, adapter, names)
    return adapter


def _shapes(weight: ir.Value, place: AdaptedNode, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if place.sizes is not None:
        return (place.sizes[0], rank), (rank, place.sizes[1])
    sizes = tuple(fixed_size(weight, axis) for axis in range(len(shape_of(weight))))
    if place.kind == CONVOLUTION:
        return (rank, *sizes[1:]), (sizes[0], rank, *(1 for _ in sizes[2:]))
    n_inputs, n_outputs = reversed(sizes) if place.is_transposed else sizes
    return (n_inputs, rank), (rank, n_outputs)


def _add_to(adapted: AdaptedNode, adapter: Adapter, names: set[str]) -> None:
    """Add the branch of one node, behind it."""
    node = adapted.node
    graph, result, base = graph_of(node), adapted.result, str(adapted.result.name)
    branch = _Branch(f"{base}_lora", result.type, names)
    down, up = (graph.initializers[name] for name in adapter.names)
    if adapted.is_transposed != adapter.is_transposed:
        down, up = branch.transposed(up), branch.transposed(down)
    factor = np.asarray(adapter.scale * attribute(node, "alpha", 1.0), element_type(down).numpy())
    scale = add_initializer(graph, unique_name(f"{base}_lora_scale", names), factor)
    scale.metadata_props.update({FROZEN: "scale of an adapter", ADAPTER: adapter.down})
    narrow = branch.write("Mul", _narrow(branch, adapted, down), scale)
    added = branch.write("Conv" if adapted.kind == CONVOLUTION else "MatMul", narrow, up)
    total = displace(result, unique_name(f"{base}_base", names))
    sum_ = ir.node("Add", [result, added], outputs=[total], name=unique_name(f"{base}_lora_Add", names))
    sum_.metadata_props[ADAPTER] = adapter.down
    graph.insert_after(maker(result), [*branch.nodes, sum_])


class _Branch:
    """The nodes of a branch, in no graph yet, with results of one type."""

    def __init__(self, prefix: str, dtype: ir.TypeProtocol | None, names: set[str]) -> None:
        self.nodes: list[ir.Node] = []
        self._prefix, self._dtype, self._names = prefix, dtype, names

    def write(self, operator: str, *operands: ir.Value | None, **attributes: object) -> ir.Value:
        """Add a node, and return its result."""
        name = unique_name(f"{self._prefix}_{operator}", self._names)
        value = computed(operator, operands, attributes, name=name)
        value.type = self._dtype
        self.nodes.append(maker(value))
        return value

    def transposed(self, matrix: ir.Value) -> ir.Value:
        """Return a matrix transposed."""
        return self.write("Transpose", matrix, perm=[1, 0])


def _narrow(branch: _Branch, adapted: AdaptedNode, down: ir.Value) -> ir.Value:
    """Return the product of the operand of a node with A, or rows of A."""
    node = adapted.node
    if adapted.kind == CONVOLUTION:
        same = {name: value.value for name, value in node.attributes.items()}
        return branch.write("Conv", adapted.operand, down, **same)
    if adapted.kind == EMBEDDING:
        return branch.write("Gather", down, adapted.operand, axis=0)
    operand = adapted.operand
    if attribute(node, "transA", 0) == 1:
        operand = branch.transposed(operand)
    return branch.write("MatMul", operand, down)
