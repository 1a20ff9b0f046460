"""Calls that end with an error: the estimator has all of their whole updates, or is unchanged."""

import sys
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from onnxsgd import OnnxSGDRegressor
from onnxsgd.estimators import attempt
from onnxsgd.estimators.attempt import Attempt
from onnxsgd.estimators.shared import ATTEMPT

RNG = np.random.RandomState(0)
X = RNG.normal(size=(40, 3))
Y = X @ [1.0, 2.0, 3.0]
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "random_state": 0}


def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return OnnxSGDRegressor(**NAMED).fit(X, Y)


def fail(model, change, error):
    with Attempt(model) as kept:
        change(kept)
        raise error


def test_nothing_is_kept_of_a_call_without_updates():
    model = fitted()
    before, losses, t, coef = dict(vars(model)), model.loss_curve_, model.t_, model.coef_.copy()

    def change(kept):
        model.classes_, model.n_iter_ = [1], 9
        model._state.t += 1
        model._state.tensors.clear()
        model._state.loss_curve.append(0.0)
        del model.coef_

    with pytest.raises(SystemExit):
        fail(model, change, SystemExit)
    assert vars(model) == before
    assert (model.loss_curve_, model.t_, model._state.t) == (losses, t, t)
    np.testing.assert_array_equal(model.coef_, coef)
    assert model.partial_fit(X, Y).n_iter_ == 3


@pytest.mark.parametrize("is_fitted", [False, True])
def test_an_interrupt_before_the_block_leaves_no_call_behind(is_fitted):
    model = fitted() if is_fitted else OnnxSGDRegressor()
    before = dict(vars(model))

    def trace(frame, event, argument):
        if frame.f_code is Attempt._begun.__code__ and ATTEMPT in vars(model):
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt), Attempt(model):
            pytest.fail("not interrupted")
    finally:
        sys.settrace(None)
    assert vars(model) == before


def test_a_kept_state_comes_with_its_attributes():
    model = fitted()
    t = model.t_

    def change(kept):
        state = model._state
        model.note_ = "kept"
        state.t += 5
        state.record(np.ones(1), np.ones(1))
        state.tensors = {key: np.zeros_like(array) for key, array in state.tensors.items()}
        kept.keep(state)
        model.note_, state.t = "later", 0

    with pytest.raises(KeyError):
        fail(model, change, KeyError)
    assert (model.t_, model._state.t, model.n_iter_, model.note_) == (t + 5, t + 5, 3, "kept")
    assert not model.coef_.any()
    assert not model.predict(X).any()


def test_a_second_interrupt_comes_too_late(monkeypatch):
    model, calls, cut = fitted(), [], attempt.cut_histories

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        cut(*args)

    monkeypatch.setattr(attempt, "cut_histories", interrupted)
    before = dict(vars(model))

    def change(kept):
        model.n_iter_ = 7
        model._state.loss_curve.append(1.0)

    with pytest.raises(KeyboardInterrupt):
        fail(model, change, ValueError)
    assert len(calls) == 2
    assert vars(model) == before
    assert len(model.loss_curve_) == model.n_iter_ == 2


def test_a_call_that_ends_well_keeps_its_changes():
    model = fitted()
    with Attempt(model):
        model.note_ = "new"
        model._state.t = 77
    assert (model.note_, model._state.t) == ("new", 77)
