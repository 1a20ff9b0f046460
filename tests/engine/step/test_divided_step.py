"""Gradients of rows, and updates that follow them, against the training step of a whole batch."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step.buffers import Buffers
from onnxsgd.engine.step.divided_step import GRADIENT, UpdateRunner, build_update_graph, of_rows
from onnxsgd.engine.step.single_step import make_buffers
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.optimizers import SGD
from onnxsgd.runtime.sessions import make_session

X, Y = load_diabetes(return_X_y=True)


def spec_of(**params):
    estimator = OnnxSGDRegressor(learning_rate="constant", max_iter=1, tol=None, **params)
    estimator.fit(X, Y)
    return estimator, estimator._make_plan(estimator._check_parameters()).step_spec


@pytest.mark.parametrize(
    "params",
    [{}, {"momentum": 0.9}, {"optimizer": "adam", "penalty": "l1"}, {"max_grad_norm": 1e-3, "average": True}],
    ids=["sgd", "momentum", "adam", "clipped average"],
)
def test_the_update_of_numpy(params):
    """Plain SGD is ``w - rate gradient``; the others keep to the inputs that their step has."""
    estimator, spec = spec_of(**params)
    weights = estimator.get_weights()
    graph = build_update_graph(spec, weights, 18)
    runner = UpdateRunner(make_session(graph.model, 1), graph, make_buffers(spec, weights))
    before = {(name, WEIGHT): array for name, array in weights.items()}
    runner.buffers.load(before)
    generator = np.random.RandomState(0)
    gradients = {
        (name, GRADIENT): generator.standard_normal(array.shape).astype(array.dtype)
        for name, array in weights.items()
    }
    runner.update(gradients, np.full(len(spec.scalars), 0.5))
    after = runner.buffers.snapshot()
    assert runner.buffers.n_done == 1
    if type(spec.optimizer) is SGD and not spec.optimizer.slots and not spec.limits:
        decay = dict(zip(spec.scalars, [0.5] * len(spec.scalars), strict=True)).get("decay", 0.0)
        for name, array in weights.items():
            shrunk = array * (1 - decay) if name in spec.penalised else array
            # the gradient includes minus the rate
            np.testing.assert_allclose(after[name, WEIGHT], shrunk + gradients[name, GRADIENT], rtol=1e-5)
    assert all(np.isfinite(array).all() for array in after.values())
    assert any((after[name, WEIGHT] != array).any() for name, array in weights.items())


def test_the_gradient_of_rows_keeps_no_optimizer():
    _, spec = spec_of(optimizer="adam", penalty="l1", average=True)
    of_three = of_rows(spec, 3)
    assert of_three.batch_size == 3
    assert of_three.scalars == ()
    assert of_three.states(spec.weights[0]) == (GRADIENT,)


def test_statistics_of_a_batch_are_refused():
    from dataclasses import replace

    _, spec = spec_of()
    with pytest.raises(UnsupportedError, match="batch_norm='train' normalises by the statistics of a batch"):
        of_rows(replace(spec, statistics=("mean",)), 4)


def test_a_failing_update_leaves_the_weights():
    estimator, spec = spec_of()
    weights = estimator.get_weights()
    graph = build_update_graph(spec, weights, 18)
    buffers = make_buffers(spec, weights)
    assert isinstance(buffers, Buffers)
    runner = UpdateRunner(make_session(graph.model, 1), graph, buffers)
    with pytest.raises(KeyError):
        runner.update({}, np.zeros(len(spec.scalars)))
    assert buffers.n_done == 0
