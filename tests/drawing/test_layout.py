"""Layout: boxes do not overlap, edges lead down and pass no box."""

import random
from itertools import pairwise

import numpy as np
import pytest

from onnxsgd.drawing.layout import _BESIDE, _apart, lay_out

pytest.importorskip("igraph")


def random_graph(seed, count=40):
    rng = random.Random(seed)
    sizes = [(rng.uniform(40, 220), rng.uniform(28, 120)) for _ in range(count)]
    edges = {(rng.randrange(target), target) for target in range(1, count) for _ in range(rng.randint(0, 3))}
    return sizes, sorted(edges)


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize("seed", range(12))
def test_boxes_are_apart_and_edges_lead_down_beside_them(seed):
    sizes, edges = random_graph(seed)
    layout = lay_out(sizes, edges)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(layout.boxes, sizes, strict=True)]
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if overlap(a, b)]
    assert min(box[0] for box in boxes) >= -1e-6
    assert max(box[2] for box in boxes) <= layout.width + 1e-6
    assert max(box[3] for box in boxes) == pytest.approx(layout.height)
    for (source, target), points in zip(edges, layout.edges, strict=True):
        assert points[0][1] == pytest.approx(boxes[source][3])
        assert points[-1][1] == pytest.approx(boxes[target][1])
        assert boxes[source][0] < points[0][0] < boxes[source][2]
        assert boxes[target][0] < points[-1][0] < boxes[target][2]
        assert (np.diff([y for _, y in points]) >= 0).all()
        # curves are between layers, where no box stands; within a layer an edge is vertical
        for (x, y), (x2, y2) in pairwise(points):
            if x == x2:
                line = (x - 0.01, y + 0.01, x + 0.01, y2 - 0.01)
                assert not [box for box in boxes if overlap(line, box)]
            else:
                assert not [box for box in boxes if box[1] < y2 - 0.01 and box[3] > y + 0.01]


def test_a_box_without_sources_stands_above_its_first_reader():
    layout = lay_out([(50, 30)] * 5, [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert layout.boxes[3][1] == layout.boxes[2][1]


def test_one_box_alone():
    layout = lay_out([(50.0, 30.0)], [])
    assert (layout.width, layout.height, layout.edges) == (50.0, 30.0, ())


def test_boxes_move_as_little_as_their_widths_allow():
    """Compared with the best of many random feasible places."""
    rng = np.random.default_rng(0)
    wanted, widths, pulls = rng.uniform(0, 200, 6), rng.uniform(20, 90, 6), rng.uniform(0.5, 3, 6)
    found = _apart(wanted, widths, pulls)
    gaps = (widths[:-1] + widths[1:]) / 2 + _BESIDE
    assert (np.diff(found) >= gaps - 1e-9).all()
    cost = (pulls * (found - wanted) ** 2).sum()
    for _ in range(2000):
        start = found[0] + rng.normal(0, 20)
        other = start + np.concatenate(
            [[0], np.cumsum(np.diff(found) + rng.exponential(5, 5) * (rng.random(5) < 0.5))]
        )
        if (np.diff(other) >= gaps).all():
            assert (pulls * (other - wanted) ** 2).sum() >= cost - 1e-6
