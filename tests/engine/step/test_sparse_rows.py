"""Updates of rows depend on nothing but the tensors, the batch and the numbers."""

import numpy as np
import pytest
from engine.step.mlp_step import make_spec

from onnxsgd.engine.sparse_products import SparseRows
from onnxsgd.engine.step.row_update_graph import build_row_update
from onnxsgd.engine.step.sparse_rows import SparseRowUpdates
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.optimizers import BlockAdam
from onnxsgd.runtime.sessions import make_session

RNG = np.random.default_rng(0)
SHAPE = (40, 2)
#: Steering compares the gradient with the moments of all rows of a call.
SPEC = make_spec(weights=("W1",), penalised=frozenset({"W1"}), optimizer=BlockAdam(steering=0.5))


def make():
    shapes = {kind: SPEC.state_shape("W1", kind, SHAPE) for kind in SPEC.states("W1")}
    shapes[WEIGHT] = SHAPE
    graph = build_row_update(SPEC, "W1", shapes, np.dtype(np.float64), {"": 18})
    return SparseRowUpdates(make_session(graph.model, 1), graph, shapes, np.dtype(np.float64))


def run(updates, batches):
    t = np.arange(1.0, len(batches) + 1)
    numbers = SPEC.optimizer.scalars(t, np.full(len(t), 0.1), 0.1)
    updates.begin({name: np.broadcast_to(column, t.shape) for name, column in numbers.items()})
    for number, columns in enumerate(batches):
        rows = SparseRows(np.array([0, len(columns)]), np.array(columns), np.ones(len(columns)), SHAPE[0])
        updates.multiply(rows, np.empty((1, 2)))
        updates.update(number, rows, np.array([[1.0, -2.0]]))
    updates.end()
    return {kind: array.copy() for kind, array in updates.tensors.items()}


@pytest.mark.parametrize(
    "before", [[range(40)] * 2, [[0]] * 5, [[1]]], ids=["more rows", "other rows", "one row"]
)
def test_a_reset_leaves_nothing_of_earlier_updates(before):
    """Neither rows of an earlier, larger batch, nor the updates that rows have waited."""
    used, fresh = make(), make()
    run(used, before)
    for kind, array in used.tensors.items():
        array[...] = fresh.tensors[kind][...] = RNG.uniform(0.5, 1, array.shape)
    used.reset()
    batches = [range(1, 21), range(0, 40, 3)]
    have, want = run(used, batches), run(fresh, batches)
    for kind, array in want.items():
        np.testing.assert_array_equal(have[kind], array)
    assert not np.array_equal(want[WEIGHT][1], want[WEIGHT][2])
