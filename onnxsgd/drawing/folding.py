"""Folding of large graphs: nodes in topological order become blocks.

A block is a run of consecutive nodes of one part, so that the graph of blocks has no circle. Of these ways
the first that gives few enough blocks is taken:

1. scopes that the exporter wrote, such as ``layer1/conv2``, from the innermost to the outermost;
2. repetitions: nodes whose operators repeat at once, such as the layers of a transformer, are a block each;
3. the same, with all repetitions in one block;
4. runs that few tensors pass between.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import operands, qualified_operator, read_values

__all__ = ["Block", "fold"]

#: Repetitions shorter than this are left as they are.
_SHORTEST_PERIOD = 3
#: Repetitions of less than this part of the nodes are left as they are too, which bounds the search.
_SHARE = 20
#: Repetitions are looked for up to this period, and in graphs of up to this many nodes: the search compares
#: all nodes for each period.
_LONGEST_PERIOD, _MOST_NODES = 400, 10_000
#: The metadata of nodes with their scopes, from torch's exporter.
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class Block:
    """Consecutive nodes that are drawn as one box.

    Attributes
    ----------
    nodes : tuple of ir.Node
        The nodes.
    name : str
        The scope, or the number of repetitions; empty where there is neither.
    """

    nodes: tuple[ir.Node, ...]
    name: str = ""


def fold(nodes: Sequence[ir.Node], part_of: Callable[[ir.Node], Hashable], limit: int) -> list[Block]:
    """Return `nodes` as at most `limit` blocks, or one for each part if there are more parts.

    Parameters
    ----------
    nodes : sequence of ir.Node
        In topological order, those of each part together.
    part_of : callable
        Returns the part of a node; a block has nodes of one part.
    limit : int
        The largest number of blocks.
    """
    blocks = [Block((node,)) for node in nodes]
    if len(blocks) <= limit:
        return blocks
    parts = [list(group) for _, group in groupby(nodes, part_of)]
    for candidate in _candidates(nodes, parts):
        if len(candidate) <= limit:
            return candidate
        blocks = candidate if len(candidate) < len(blocks) else blocks
    found = [list(group) for _, group in groupby(blocks, lambda block: part_of(block.nodes[0]))]
    # half as many: blocks of two nodes would say little
    return _joined(found, limit // 2)


def _candidates(nodes: Sequence[ir.Node], parts: list[list[ir.Node]]) -> Iterator[list[Block]]:
    depth = max((len(scope(node)) for node in nodes), default=0)
    for level in range(depth, 0, -1):
        yield [block for part in parts for block in _by_scope(part, level)]
    repeated = [_repetitions(part, len(part) // _SHARE) for part in parts]
    yield [block for part in repeated for run in part for block in run]
    yield [_as_one(run) for part in repeated for run in part]


def scope(node: ir.Node) -> tuple[str, ...]:
    """Return the scopes of a node that its exporter wrote, from the outermost."""
    written = node.metadata_props.get(_SCOPES)
    if written is not None:
        try:
            names = [str(name) for name in ast.literal_eval(written)]
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            names = []
        # the last one is the node itself
        return tuple(part for part in names[-2].split(".") if part) if len(names) > 1 else ()
    return tuple(part for part in (node.name or "").split("/")[:-1] if part)


def _by_scope(nodes: list[ir.Node], level: int) -> Iterator[Block]:
    for name, run in groupby(nodes, lambda node: scope(node)[:level]):
        if name:
            yield Block(tuple(run), "/".join(name))
        else:
            yield from (Block((node,)) for node in run)


def _repetitions(nodes: list[ir.Node], least: int) -> list[list[Block]]:
    """Return the nodes as runs: of blocks that repeat and have `least` nodes together, or of a node."""
    if not nodes:
        return []
    found = _best_repetition(nodes)
    if found is None or found[1] * found[2] < least:
        return [[Block((node,))] for node in nodes]
    start, period, count = found
    stop = start + period * count
    blocks = [
        Block(tuple(nodes[start + k * period : start + (k + 1) * period]), f"block {k + 1} of {count}")
        for k in range(count)
    ]
    return [*_repetitions(nodes[:start], least), blocks, *_repetitions(nodes[stop:], least)]


def _best_repetition(nodes: list[ir.Node]) -> tuple[int, int, int] | None:
    """Return start, period and count of the repetition that covers the most nodes."""
    size, best = len(nodes), (0, 0, 0, 0)
    if size > _MOST_NODES:
        return None
    numbers: dict[tuple[str, int], int] = {}
    kinds = [(qualified_operator(node), len(operands(node))) for node in nodes]
    codes = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds])
    for period in range(_SHORTEST_PERIOD, min(size // 2, _LONGEST_PERIOD) + 1):
        same = codes[:-period] == codes[period:]
        # the number of equal pairs from each place on, up to the next unequal one
        unequal = np.flatnonzero(np.append(~same, True))
        run = unequal[np.searchsorted(unequal, np.arange(len(same)))] - np.arange(len(same))
        counts = run // period + 1
        covered = np.where(counts > 1, counts * period, 0)
        start = int(np.argmax(covered))
        if covered[start] > best[0]:
            best = (int(covered[start]), start, period, int(counts[start]))
    return best[1:] if best[0] else None


def _as_one(run: list[Block]) -> Block:
    if len(run) == 1:
        return run[0]
    return Block(tuple(node for block in run for node in block.nodes), f"{len(run)} times a block")


def _joined(parts: list[list[Block]], limit: int) -> list[Block]:
    """Join neighbours of a part until there are at most `limit` blocks.

    First those whose blocks are small and that many tensors pass between: the borders that stay are the
    narrow places, such as the ends of layers.
    """
    blocks = [block for part in parts for block in part]
    passing = _passing(blocks)
    fixed = set(np.cumsum([len(part) for part in parts]).tolist())
    starts = np.cumsum([0, *(len(block.nodes) for block in blocks)]).tolist()
    # borders by the place of the block behind them; those that stay have their neighbours in two lists
    before = list(range(-1, len(blocks)))
    behind = list(range(1, len(blocks) + 2))

    def cost(border: int) -> float:
        return float(starts[behind[border]] - starts[before[border]]) / max(1, passing[border])

    stays = [True] * (len(blocks) + 1)
    queue = [(cost(border), border) for border in range(1, len(blocks)) if border not in fixed]
    heapify(queue)
    count = len(blocks)
    while count > limit and queue:
        expected, border = heappop(queue)
        if not stays[border]:
            continue
        if expected != cost(border):
            heappush(queue, (cost(border), border))
            continue
        stays[border] = False
        behind[before[border]], before[behind[border]] = behind[border], before[border]
        count -= 1
    ends = [place for place in range(len(blocks) + 1) if stays[place]]
    return [_as_block(blocks[start:stop]) for start, stop in pairwise(ends)]


def _as_block(run: list[Block]) -> Block:
    return run[0] if len(run) == 1 else Block(tuple(node for block in run for node in block.nodes))


def _passing(blocks: Sequence[Block]) -> list[int]:
    """Return for each place the number of tensors made before it and read from it on."""
    made: dict[ir.Value, int] = {}
    last: dict[ir.Value, int] = {}
    for place, block in enumerate(blocks):
        for node in block.nodes:
            for _, value in read_values(node):
                if value in made:
                    last[value] = place
            made.update(dict.fromkeys(node.outputs, place))
    changes = np.zeros(len(blocks) + 1, int)
    for value, place in last.items():
        changes[made[value] + 1] += 1
        changes[place + 1] -= 1
    return [int(count) for count in np.cumsum(changes)]
