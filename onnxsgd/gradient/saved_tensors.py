"""The tensors saved for a backward pass that runs apart from the forward pass: a minimum cut."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import read_values

__all__ = ["forward_nodes"]

#: The values assumed for an unknown size, an unknown rank and unknown bytes of an element.
_UNKNOWN_SIZE, _UNKNOWN_RANK, _UNKNOWN_ITEM = 64, 2, 8.0

_SIZELESS = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})

#: All sizes together are scaled to less than this: scipy counts in int32, and adds.
_LARGEST_SUM = 2**28

#: The two ends of the network, as numbers of its nodes.
_FORWARD, _BACKWARD = 0, 1


def forward_nodes(
    graph: ir.Graph, outputs: Sequence[ir.Value], seeds: Sequence[ir.Value], gradients: Sequence[ir.Value]
) -> set[ir.Node]:
    """Return the nodes to run in the forward pass, so that the fewest bytes are saved for the backward pass.

    Every node runs once. Those that `outputs` need run in the forward pass, those that depend on `seeds` or
    return `gradients` in the backward pass. The others, such as the mask of an activation or the shape of a
    tensor, may run in either: a minimum cut makes the tensors that cross it smallest. Among equal cuts, the
    earliest is taken. Inputs, initializers and outputs cost nothing.

    Parameters
    ----------
    graph : ir.Graph
        Forward and backward pass, in topological order, constants among its initializers. Shapes are
        inferred as far as possible.
    outputs, seeds, gradients : sequence of ir.Value
        Results of the forward pass, inputs of the backward pass, results of the backward pass.
    """
    first = _ancestors(graph, outputs)
    live = _ancestors(graph, gradients)
    late = _dependents(graph, {*seeds, *gradients}).union(value.producer() for value in gradients)
    free = [node for node in graph if node in live and node not in first and node not in late]
    if not free:
        return first
    sides = {**dict.fromkeys(live, _BACKWARD), **dict.fromkeys(first, _FORWARD)}
    sides.update({node: number for number, node in enumerate(free, start=2)})
    on_forward_side = _cut(_edges(graph, sides, set(outputs)))
    return first.union(node for node in free if sides[node] in on_forward_side)


def _ancestors(graph: ir.Graph, values: Iterable[ir.Value]) -> set[ir.Node]:
    needed = set(values)
    found = set()
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            found.add(node)
            needed.update(value for _, value in read_values(node))
    return found


def _dependents(graph: ir.Graph, values: Iterable[ir.Value]) -> set[ir.Node]:
    reached = set(values)
    found = set()
    for node in graph:
        if any(value in reached for _, value in read_values(node)):
            found.add(node)
            reached.update(node.outputs)
    return found


def _edges(
    graph: ir.Graph, sides: Mapping[ir.Node, int], returned: Collection[ir.Value]
) -> dict[tuple[int, int], float]:
    """Return the capacities of a network whose cuts are the possible borders.

    A value is a separate node between its producer and its readers: it is saved once for all of them.
    """
    numbers: dict[ir.Value, int] = {}
    edges: dict[tuple[int, int], float] = {}
    for reader, side in sides.items():
        if side == _FORWARD:
            continue
        for _, value in read_values(reader):
            maker = value.producer()
            origin = _BACKWARD if maker is None else sides[maker]
            if origin == _BACKWARD or value in returned:
                continue
            number = numbers.setdefault(value, len(sides) + 2 + len(numbers))
            edges[origin, number] = _bytes(value)
            edges[number, side] = math.inf
            if side != _BACKWARD and origin != _FORWARD:
                # the forward pass computes the values that it reads
                edges[side, origin] = math.inf
    return edges


def _bytes(value: ir.Value) -> float:
    dtype = value.dtype
    itemsize = _UNKNOWN_ITEM if dtype is None or dtype in _SIZELESS else float(dtype.itemsize)
    if value.shape is None:
        return itemsize * _UNKNOWN_SIZE**_UNKNOWN_RANK
    return itemsize * math.prod(size if isinstance(size, int) else _UNKNOWN_SIZE for size in value.shape)


def _cut(edges: Mapping[tuple[int, int], float]) -> set[int]:
    """Return the nodes on the side of :data:`_FORWARD` of the minimum cut that is nearest to it."""
    from scipy import sparse
    from scipy.sparse import csgraph

    if not edges:
        return set()
    total = sum(size for size in edges.values() if size < math.inf)
    scale = min(1.0, _LARGEST_SUM / total) if total else 1.0
    sizes = [math.ceil(size * scale) if size < math.inf else 2 * _LARGEST_SUM for size in edges.values()]
    count = 1 + max(max(edge) for edge in edges)
    rows, columns = zip(*edges, strict=True)
    capacities = sparse.csr_matrix((np.array(sizes, np.int32), (rows, columns)), shape=(count, count))
    flow = csgraph.maximum_flow(capacities, _FORWARD, _BACKWARD).flow
    residual = sparse.csr_matrix(capacities - flow)
    residual.eliminate_zeros()
    return set(csgraph.breadth_first_order(residual, _FORWARD, return_predecessors=False).tolist())
