"""Places of boxes and edges: layers by igraph's Sugiyama method, boxes of different widths beside each other.

igraph orders the boxes of each layer, so that few edges cross; widths of boxes it does not know. Here boxes
keep that order, and move to the middle of their neighbours as far as their widths allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from onnxsgd.exceptions import MissingRuntimeError

__all__ = ["Layout", "lay_out"]

#: Space between boxes of a layer, between layers, and the width that a passing edge keeps free, in pixels.
_BESIDE, _BETWEEN, _PASSING = 22.0, 34.0, 12.0
#: Moves of all layers, after which nothing visible changes.
_ROUNDS = 60
#: The pull of an edge between two passing points, which keeps long edges straight, against that of others.
_STRAIGHT = 8.0
#: The share of the width of a box that its edges are spread over.
_SPREAD = 0.6


@dataclass(frozen=True)
class Layout:
    """Places in pixels, from the upper left corner.

    Attributes
    ----------
    width, height : float
        The size of all.
    boxes : tuple of (float, float)
        The upper left corner of each box.
    edges : tuple of tuple of (float, float)
        The points of each edge, from the source to the target: pairs of ends of a curve.
    """

    width: float
    height: float
    boxes: tuple[tuple[float, float], ...]
    edges: tuple[tuple[tuple[float, float], ...], ...]


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return places for boxes of these sizes.

    Parameters
    ----------
    sizes : sequence of (float, float)
        Width and height of each box, in topological order.
    edges : sequence of (int, int)
        Places of source and target in `sizes`, the source before the target.

    Raises
    ------
    MissingRuntimeError
        If igraph is not installed.
    """
    layers = _layers(len(sizes), edges)
    chains, pieces = _with_passing_points(layers, edges)
    widths = np.array([width for width, _ in sizes] + [_PASSING] * (len(layers) - len(sizes)))
    rows = _ordered(layers, pieces)
    x = _centres(rows, widths, pieces, len(sizes))
    x -= (x - widths / 2).min()
    tops, heights = [0.0], []
    for row in rows:
        heights.append(max((sizes[v][1] for v in row if v < len(sizes)), default=0.0))
        tops.append(tops[-1] + heights[-1] + _BETWEEN)
    corners = tuple((float(x[v] - widths[v] / 2), tops[layers[v]]) for v in range(len(sizes)))
    ports = _ports(x, widths, sizes, edges, chains)
    paths = []
    for number, (source, target) in enumerate(edges):
        leave, layer = ports[number][0], layers[source]
        # straight down to the end of the layer, beside higher boxes
        points = [(leave, tops[layer] + sizes[source][1]), (leave, tops[layer] + heights[layer])]
        for v in chains[number]:
            points += [(float(x[v]), tops[layers[v]]), (float(x[v]), tops[layers[v]] + heights[layers[v]])]
        paths.append((*points, (ports[number][1], tops[layers[target]])))
    return Layout(float((x + widths / 2).max()), tops[-1] - _BETWEEN, corners, tuple(paths))


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the longest path to each box; boxes without a source stand right above their first reader."""
    layers = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layers[target] = max(layers[target], layers[source] + 1)
    targets = {target for _, target in edges}
    for box in set(range(count)) - targets:
        readers = [layers[target] for source, target in edges if source == box]
        layers[box] = min(readers, default=1) - 1
    return layers


def _with_passing_points(
    layers: list[int], edges: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Add a point to each layer that an edge passes; return those of each edge, and all short edges."""
    chains, pieces = [], []
    for source, target in edges:
        chain = []
        for layer in range(layers[source] + 1, layers[target]):
            chain.append(len(layers))
            layers.append(layer)
        path = [source, *chain, target]
        pieces += list(pairwise(path))
        chains.append(chain)
    return chains, pieces


def _ordered(layers: Sequence[int], pieces: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the boxes and points of each layer, from left to right."""
    # imported on use: it is an optional dependency
    try:
        import igraph
    except ImportError as error:
        raise MissingRuntimeError(
            "A picture of a graph needs igraph: install it, or install onnxsgd[plot]. Its text needs nothing."
        ) from error
    graph = igraph.Graph(n=len(layers), edges=list(pieces), directed=True)
    found = graph.layout_sugiyama(layers=list(layers), maxiter=200)
    # releases before 1.0 return the layout alone
    places = found[0] if isinstance(found, tuple) else found
    rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for v in sorted(range(len(layers)), key=lambda v: places[v][0]):
        rows[layers[v]].append(v)
    return rows


def _centres(
    rows: Sequence[Sequence[int]], widths: np.ndarray, pieces: Sequence[tuple[int, int]], n_boxes: int
) -> np.ndarray:
    """Return centres: in each layer as near to the neighbours in the layers beside it as the widths allow."""
    x = np.zeros(len(widths))
    above: list[list[tuple[int, float]]] = [[] for _ in widths]
    below: list[list[tuple[int, float]]] = [[] for _ in widths]
    for source, target in pieces:
        pull = _STRAIGHT if source >= n_boxes and target >= n_boxes else 1.0
        below[source].append((target, pull))
        above[target].append((source, pull))
    for row in rows:
        x[list(row)] = _apart(np.zeros(len(row)), widths[list(row)], np.ones(len(row)))
    for number in range(_ROUNDS):
        is_down = number % 2 == 0
        for row in rows if is_down else reversed(rows):
            wanted, pulls = np.empty(len(row)), np.empty(len(row))
            for place, v in enumerate(row):
                beside = (above if is_down else below)[v] or [(v, 0.1)]
                pulls[place] = sum(pull for _, pull in beside)
                wanted[place] = sum(x[other] * pull for other, pull in beside) / pulls[place]
            x[list(row)] = _apart(wanted, widths[list(row)], pulls)
    return x


def _apart(wanted: np.ndarray, widths: np.ndarray, pulls: np.ndarray) -> np.ndarray:
    """Return the places nearest to `wanted`, in the order given, at which widths do not overlap.

    Isotonic regression by merging of neighbours, of the places less the space on the left of each.
    """
    space = np.concatenate([[0.0], np.cumsum((widths[:-1] + widths[1:]) / 2 + _BESIDE)])
    groups: list[tuple[float, float, int]] = []
    for place, pull in zip(wanted - space, pulls, strict=True):
        groups.append((float(place), float(pull), 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (a, m, i), (b, n, j) = groups[-2:]
            groups[-2:] = [((a * m + b * n) / (m + n), m + n, i + j)]
    return space + np.repeat([place for place, _, _ in groups], [count for _, _, count in groups])


def _ports(
    x: np.ndarray,
    widths: np.ndarray,
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    chains: Sequence[Sequence[int]],
) -> list[tuple[float, float]]:
    """Return for each edge where it leaves its source and enters its target, so that few cross there."""
    ends = [[0.0, 0.0] for _ in edges]
    for side in (0, 1):
        for box in range(len(sizes)):
            own = [number for number, edge in enumerate(edges) if edge[side] == box]
            nearest = {
                number: (chains[number][-side] if chains[number] else edges[number][1 - side])
                for number in own
            }
            own.sort(key=lambda number: x[nearest[number]])
            for place, number in enumerate(own):
                shift = (place + 0.5) / len(own) - 0.5
                ends[number][side] = float(x[box] + shift * widths[box] * _SPREAD)
    return [(left, right) for left, right in ends]
