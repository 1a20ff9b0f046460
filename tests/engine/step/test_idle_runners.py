"""Runners between fits: nothing of one fit is left for the next, and two fits never share one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine.step.mlp_step import make_spec

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step import idle_runners
from onnxsgd.engine.step.idle_runners import IdleRunners, Sessions
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.losses import CrossEntropy
from onnxsgd.runtime.cache import cache


@pytest.fixture
def idle(model):
    step = build_step(model, make_spec())
    return IdleRunners(Sessions(step, CrossEntropy(), 1))


def test_a_runner_in_use_is_not_taken_again(idle, data):
    first, second = idle.take(data), idle.take(data)
    assert first is not second
    assert first.loop.batches is data
    idle.give_back(first)
    assert first.step.batches is first.loop.batches is None
    third = idle.take(data)
    assert third is first
    assert third.step.batches is third.loop.batches is data


def test_few_and_small_runners_are_kept(idle, data, monkeypatch):
    runners = [idle.take(data) for _ in range(6)]
    for runner in runners:
        idle.give_back(runner)
    assert [idle.take(data) in runners for _ in range(5)] == [True] * 4 + [False]
    monkeypatch.setattr(idle_runners, "_MOST_BYTES", runners[0].nbytes - 1)
    idle.give_back(runners[0])
    assert idle.take(data) is not runners[0]


def fit(seed, optimizer="adam"):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(50, 3))
    model = OnnxSGDRegressor(
        optimizer=optimizer, learning_rate="constant", average=True, max_iter=4, tol=None, random_state=seed
    )
    return model.fit(X, X @ [1.0, 2.0, -1.0]).coef_


def test_weights_and_states_of_an_earlier_fit_have_no_influence():
    cache.clear()
    expected = fit(0)
    for seed in (1, 0, 2):
        found = fit(seed)
        if seed == 0:
            np.testing.assert_array_equal(found, expected)


def test_fits_in_threads_equal_fits_in_turn():
    expected = [fit(seed) for seed in range(12)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(fit, range(12)))
    np.testing.assert_array_equal(found, expected)


def test_a_fit_that_fails_leaves_runners_for_the_next():
    X = np.random.default_rng(0).normal(size=(50, 3))
    expected = fit(0, "sgd")
    with pytest.raises(Exception, match="no longer finite"):
        OnnxSGDRegressor(learning_rate="constant", eta0=1e30, average=True, max_iter=4, random_state=0).fit(
            X, X[:, 0]
        )
    np.testing.assert_array_equal(fit(0, "sgd"), expected)


def test_a_fit_compiles_only_the_session_that_it_uses(monkeypatch):
    """One of single steps, or the loop; the other one only where the last finite weights are to be found."""
    made, get = [], idle_runners.Sessions._get

    def counting(self, name, build):
        made.append(name)
        return get(self, name, build)

    monkeypatch.setattr(idle_runners.Sessions, "_get", counting)
    X = np.random.default_rng(0).normal(size=(33 * 32, 3))
    for rows, name in [(31 * 32, "single"), (33 * 32, "loop")]:
        cache.clear()
        made.clear()
        model = OnnxSGDRegressor(optimizer="adam", learning_rate="constant", max_iter=1, tol=None)
        model.fit(X[:rows], X[:rows, 0])
        assert set(made) == {name}
    with pytest.raises(Exception, match="no longer finite"):
        model.set_params(learning_rate="constant", eta0=1e30, average=True).fit(X, X[:, 0])
    assert made[-1] == "single"


def test_large_blocks_of_batches_are_not_kept(idle, data, monkeypatch):
    runners = idle.take(data)
    loop = runners.loop
    loop.run(data.plan(np.arange(53)), np.zeros((7, 1)), np.zeros(7))
    assert loop.nbytes > 0
    for most, kept in [(loop.nbytes, True), (loop.nbytes - 1, False)]:
        monkeypatch.setattr(idle_runners, "_MOST_BYTES", max(most, runners.nbytes))
        idle.give_back(runners)
        assert idle.take(data) is runners
        assert (runners.loop is loop) == kept
