"""Pauses of the cyclic garbage collection."""

import gc
import os

import numpy as np
import pytest
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step import idle_runners
from onnxsgd.runtime.cache import cached
from onnxsgd.runtime.collection import collection_paused


@pytest.fixture(autouse=True)
def enabled():
    gc.enable()
    yield
    gc.enable()


def test_collections_pause_and_go_on():
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_errors_end_a_pause():
    with pytest.raises(LookupError), collection_paused():
        raise LookupError
    assert gc.isenabled()


def test_a_user_may_have_turned_them_off():
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_processes_have_collections():
    with collection_paused():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()


def test_entries_of_the_cache_are_made_in_a_pause():
    assert cached(None, gc.isenabled) is False
    assert cached(("a test of pauses",), gc.isenabled) is False
    assert gc.isenabled()


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_steps_are_made_in_a_pause_and_data_are_read_in_none(monkeypatch):
    seen, make = [], idle_runners.make_session

    def noted(*given):
        seen.append(gc.isenabled())
        return make(*given)

    class Data:
        def __array__(self, dtype=None, copy=None):
            seen.append(gc.isenabled())
            return np.arange(12.0).reshape(6, 2)

    monkeypatch.setattr(idle_runners, "make_session", noted)
    OnnxSGDRegressor(MLPRegressor(hidden_layer_sizes=(3,), max_iter=2), max_iter=1, tol=None).fit(
        Data(), np.arange(6.0)
    )
    assert set(seen) == {True, False}
    assert seen[0]
