"""Branches of adapters beside the nodes that read frozen weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.adapting.adapted_nodes import AdaptedNode, adapted_nodes
from onnxsgd.graph.model import ADAPTER, FROZEN, graph_names, unique_name
from onnxsgd.graph.nodes import attribute, element_type, first, fixed_size, graph_of, maker
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
        The trained initializers: A, of shape [n_inputs, rank], and B, of shape [rank, n_outputs].
    scale : float
        The factor of their product.
    is_transposed : bool
        Whether the weight is stored with the outputs first.
    """

    weight: str
    down: str
    up: str
    scale: float
    is_transposed: bool

    @property
    def names(self) -> tuple[str, str]:
        """The trained initializers."""
        return self.down, self.up

    def first_values(
        self, shapes: Mapping[str, tuple[int, ...]], generator: np.random.RandomState
    ) -> dict[str, np.ndarray]:
        """Return the values before training: the adapter then adds zero."""
        bound = 1.0 / math.sqrt(shapes[self.down][0])
        return {
            self.down: generator.uniform(-bound, bound, shapes[self.down]),
            self.up: np.zeros(shapes[self.up]),
        }

    def rate_units(
        self, shapes: Mapping[str, tuple[int, ...]], size_of_inputs: np.ndarray | float = 1.0
    ) -> dict[str, float]:
        """Return the factors of normalised updates that change the product as those of a full weight do.

        A step of B by its unit changes each element of the weight by 1; a step of A by its unit changes A by
        its first size.

        Parameters
        ----------
        shapes : mapping of str to tuple of int
            The shapes of A and B.
        size_of_inputs : ndarray or float
            The factor between the rows of A and those that are trained, on standardised inputs.
        """
        n_inputs, _ = shapes[self.down]
        size = math.sqrt(np.mean(np.square(size_of_inputs)) / (3.0 * n_inputs))
        return {self.down: size, self.up: 1.0 / (self.scale * math.sqrt(n_inputs) * size)}

    def change(self, down: np.ndarray, up: np.ndarray) -> np.ndarray:
        """Return the change of the weight that has the same effect, in float64."""
        product: np.ndarray = self.scale * (down.astype(np.float64) @ up.astype(np.float64))
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
    sum takes the name of its result. A weight that several nodes read has one adapter for all of them.
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
    is_transposed = nodes[0].is_transposed
    adapter = Adapter(
        name, unique_name(f"{name}.lora_A", names), unique_name(f"{name}.lora_B", names), scale, is_transposed
    )
    n_inputs, n_outputs = fixed_size(weight, int(is_transposed)), fixed_size(weight, 1 - int(is_transposed))
    shapes = {adapter.down: (n_inputs, rank), adapter.up: (rank, n_outputs)}
    # estimators draw other values, with their seed
    values = adapter.first_values(shapes, np.random.RandomState(0))
    dtype = element_type(weight).numpy()
    for key, array in values.items():
        add_initializer(graph, key, array.astype(dtype)).metadata_props[ADAPTER] = name
    for node in nodes:
        _add_to(node, adapter, names)
    return adapter


def _add_to(adapted: AdaptedNode, adapter: Adapter, names: set[str]) -> None:
    """Add the branch of one node, behind it."""
    node = adapted.node
    graph, result, base = graph_of(node), node.outputs[0], str(node.outputs[0].name)
    prefix = f"{base}_lora"
    added: list[ir.Node] = []

    def write(operator: str, *operands: ir.Value, **attributes: object) -> ir.Value:
        value = computed(operator, operands, attributes, name=unique_name(f"{prefix}_{operator}", names))
        value.type = result.type
        added.append(maker(value))
        return value

    down, up = (graph.initializers[name] for name in adapter.names)
    if adapted.is_transposed != adapter.is_transposed:
        down, up = write("Transpose", up, perm=[1, 0]), write("Transpose", down, perm=[1, 0])
    operand = first(node)
    if attribute(node, "transA", 0) == 1:
        operand = write("Transpose", operand, perm=[1, 0])
    factor = adapter.scale * attribute(node, "alpha", 1.0)
    scale = add_initializer(
        graph,
        unique_name(f"{prefix}_scale", names),
        np.asarray(factor, element_type(down).numpy()),
    )
    scale.metadata_props.update({FROZEN: "scale of an adapter", ADAPTER: adapter.weight})
    narrow = write("Mul", write("MatMul", operand, down), scale)
    branch = write("MatMul", narrow, up)
    total = displace(result, unique_name(f"{base}_base", names))
    sum_ = ir.node("Add", [result, branch], outputs=[total], name=unique_name(f"{prefix}_Add", names))
    sum_.metadata_props[ADAPTER] = adapter.weight
    graph.insert_after(node, [*added, sum_])
