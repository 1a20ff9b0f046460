"""Partitions of a tensor by the nodes that read it: their gradients, joined, are its gradient.

Queries, keys and values are picked from one product by three Gathers, a rolled image from the image by two
Slices. Each of them would have a gradient as large as the whole, zero outside of its part, and these would be
added: 12 ScatterND, of 13 us each, and 8 Add in an update of vit of ``benchmarks/networks.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.rules.slicing import constant_ranges
from onnxsgd.gradient.portable.writing.broadcasting import expand_to, zeros_like
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["Partition", "find_partitions"]


@dataclass(frozen=True)
class Partition:
    """Nodes that read disjoint parts of a tensor, which make up the whole.

    Attributes
    ----------
    whole : ir.Value
        The tensor.
    axis : int
        The axis of the parts.
    nodes : tuple of ir.Node
        The nodes, in the order of their parts.
    first : ir.Node
        The one that comes first in the graph.
    """

    whole: ir.Value
    axis: int
    nodes: tuple[ir.Node, ...]
    first: ir.Node

    def gradient(self, emitter: Emitter, gradients: Mapping[ir.Value, Tensor]) -> Tensor:
        """Return the gradient of the whole, given those of the parts that have one."""
        whole = emitter.tensor(self.whole)
        joined: Tensor = op.Concat(
            *(self._part(emitter, node, gradients) for node in self.nodes), axis=self.axis
        )
        return joined.known_as(whole.dims)

    def _part(self, emitter: Emitter, node: ir.Node, gradients: Mapping[ir.Value, Tensor]) -> Tensor:
        y = emitter.tensor(node.outputs[0])
        part = expand_to(gradients[y.value], y) if y.value in gradients else zeros_like(y)
        return part if y.rank == emitter.tensor(self.whole).rank else op.Unsqueeze(part, [self.axis])


@dataclass(frozen=True)
class _Part:
    """The `order`-th node, which reads `kept` of the `size` elements of one axis."""

    order: int
    node: ir.Node
    kept: range
    size: int


def find_partitions(nodes: Sequence[ir.Node], emitter: Emitter) -> dict[ir.Node, Partition]:
    """Return the partition of each node that belongs to one.

    Cases: ``Gather(x, k, axis)`` for each index k of the axis, a number or a vector of one; ``Slice(x)``
    along one axis, without steps. The parts must be constants, and the size of the axis known.
    """
    readers: dict[tuple[ir.Value, int], list[_Part]] = defaultdict(list)
    for order, node in enumerate(nodes):
        x = node.inputs[0] if node.op_type in ("Gather", "Slice") else None
        found = None if x is None else _read(Call(emitter, node, [None]))
        if x is not None and found is not None:
            axis, kept, size = found
            readers[x, axis].append(_Part(order, node, kept, size))
    partitions: dict[ir.Node, Partition] = {}
    for (whole, axis), parts in readers.items():
        parts.sort(key=lambda part: part.kept.start)
        borders = [0, *(part.kept.stop for part in parts)]
        is_whole = borders[-1] == parts[0].size and borders[:-1] == [part.kept.start for part in parts]
        if is_whole and len(parts) > 1:
            members = tuple(part.node for part in parts)
            first = min(parts, key=lambda part: part.order).node
            partitions |= dict.fromkeys(members, Partition(whole, axis, members, first))
    return partitions


def _read(n: Call) -> tuple[int, range, int] | None:
    """Return an axis, its elements that a node reads, and its size; None if these are not known."""
    if not n.x.dims or n.y.rank is None:
        return None
    if n.node.op_type == "Slice":
        ranges = list((constant_ranges(n) or {}).items())
        if len(ranges) != 1:
            return None
        axis, (kept, size) = ranges[0]
        return (axis, kept, size) if len(kept) and kept.step == 1 else None
    picked, axis = n.constant(1), n.attribute("axis", 0) % len(n.x.dims)
    size = n.x.dims[axis]
    if picked is None or np.shape(picked) not in ((), (1,)) or not isinstance(size, int) or size == 0:
        return None
    place = int(picked.reshape(())) % size
    return axis, range(place, place + 1), size
