"""The last whole state of a call."""

import numpy as np
import pytest

from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.training.kept_state import KeptState
from onnxsgd.training.state import fresh_state

KEY = ("w", WEIGHT)


def state_after(t):
    state = fresh_state({"w": np.full(2, float(t))}, 0.1, 0)
    state.t = t
    state.record(np.arange(float(t)), np.full(t, 0.1))
    return state


def test_later_changes_are_undone():
    state, kept = state_after(2), KeptState({"classes_": [0, 1]})
    assert kept.is_empty
    kept.keep(state)
    state.t, state.tensors, state.of_batches = 5, {KEY: np.ones(2)}, []
    state.loss_curve.append(9.0)
    state.validation_scores.append(0.5)
    kept.attributes["classes_"] = []
    found, attributes = kept.taken()
    assert attributes == {"classes_": [0, 1]}
    kept.restore(state)
    for each in (state, found):
        assert (each.t, each.loss_curve, each.validation_scores, each.of_batches) == (2, [0.0, 1.0], [], None)
        np.testing.assert_array_equal(each.tensors[KEY], [2, 2])


def test_a_later_state_replaces_an_earlier_one():
    kept = KeptState()
    kept.keep(state_after(1))
    kept.keep(state_after(3))
    assert kept.taken()[0].t == 3


def test_some_columns_are_widened_outside_the_part_that_has_them():
    def widen(tensors):
        return {key: np.append(array, 0.0) for key, array in tensors.items()}

    kept, state = KeptState(), state_after(1)
    inside = kept.within(widen)
    inside.keep(state)
    assert not kept.is_empty
    inside.restore(state)
    assert state.tensors[KEY].shape == (2,)
    assert kept.taken()[0].tensors[KEY].shape == inside.taken()[0].tensors[KEY].shape == (3,)
    kept.restore(state)
    assert state.tensors[KEY].shape == (3,)


@pytest.mark.parametrize("changes", ["in place", "by assignment"])
def test_histories_of_epochs_in_batches_are_apart(changes):
    """Batches of an iterable record no epoch."""
    state, kept = state_after(1), KeptState()
    state.of_batches = []
    state.record(np.array([7.0]), np.array([0.1]))
    assert (state.loss_curve, state.of_batches) == ([0.0], [(7.0, 0.1)])
    kept.keep(state)
    if changes == "in place":
        state.moments["x"] = object()
    else:
        state.of_batches = None
    found = kept.taken()[0]
    assert (found.of_batches, found.loss_curve, found.moments) == (None, [0.0], {})
