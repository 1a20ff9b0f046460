"""Runners between fits: nothing of one fit is left for the next, and two fits never share one."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from engine.step.mlp_step import make_spec

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step import idle_runners
from onnxsgd.engine.step.idle_runners import CompiledOnUse, IdleRunners
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.runtime.cache import cache


@pytest.fixture
def idle(model):
    spec = make_spec()
    return IdleRunners(CompiledOnUse(partial(build_step, model, spec), spec, 1))


@pytest.fixture
def tensors(weights):
    return {(name, WEIGHT): array for name, array in weights.items()}


def test_runners_in_use_are_not_taken_again(idle, data, tensors):
    first, second = idle.take(data, tensors), idle.take(data, tensors)
    assert first is not second
    assert first.single.batches is first.loop.batches is data
    idle.give_back(first)
    assert first.single.batches is first.loop.batches is None
    third = idle.take(data, tensors)
    assert third is first
    assert third.single.batches is third.loop.batches is data


def test_few_and_small_runners_are_kept(idle, data, tensors, monkeypatch):
    runners = [idle.take(data, tensors) for _ in range(6)]
    for runner in runners:
        idle.give_back(runner)
    assert [idle.take(data, tensors) in runners for _ in range(5)] == [True] * 4 + [False]
    monkeypatch.setattr(idle_runners, "_MOST_BYTES", runners[0].buffers.nbytes - 1)
    idle.give_back(runners[0])
    assert idle.take(data, tensors) is not runners[0]


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


@pytest.mark.parametrize(
    ("rows", "learning_rate", "needed"),
    [
        (31 * 32, "constant", {"step", "single"}),
        (33 * 32, "constant", {"step", "can repeat", "loop"}),
        # the short loop of linear models needs no general step
        (33 * 32, "auto", set()),
    ],
)
def test_a_fit_makes_only_what_it_uses(rows, learning_rate, needed, monkeypatch):
    made, get = set(), CompiledOnUse._get

    def recording(self, name, make):
        made.add(name)
        return get(self, name, make)

    monkeypatch.setattr(CompiledOnUse, "_get", recording)
    cache.clear()
    X = np.random.default_rng(0).normal(size=(rows, 3))
    optimizer, count = ("adam", 1) if learning_rate == "constant" else (None, 20)
    model = OnnxSGDRegressor(optimizer=optimizer, learning_rate=learning_rate, max_iter=count, tol=None)
    model.fit(X, X[:, 0])
    assert made == needed


def test_the_single_step_finds_the_last_finite_weights_of_a_loop():
    X = np.random.default_rng(0).normal(size=(33 * 32, 3))
    model = OnnxSGDRegressor(learning_rate="constant", eta0=1e30, average=True, max_iter=1, shuffle=False)
    with pytest.raises(Exception, match="no longer finite at update 2"):
        model.fit(X, X[:, 0])
    assert model.t_ == 1


def test_large_blocks_of_batches_are_not_kept(idle, data, tensors, monkeypatch):
    runners = idle.take(data, tensors)
    loop = runners.loop
    loop.run(data.plan(np.arange(53)), np.zeros((7, 1)), np.zeros(7))
    assert loop.nbytes > runners.buffers.nbytes
    for most, kept in [(loop.nbytes, True), (loop.nbytes - 1, False)]:
        monkeypatch.setattr(idle_runners, "_MOST_BYTES", most)
        idle.give_back(runners)
        assert idle.take(data, tensors) is runners
        assert (runners.loop is loop) == kept
