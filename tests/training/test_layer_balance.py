"""Networks that pass on large numbers learn as those on scaled columns."""

import numpy as np
import pytest
from sklearn.datasets import make_friedman2
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step.update import AVERAGE, WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.reading.rectified_layers import RectifiedLayer
from onnxsgd.penalties import Penalty
from onnxsgd.training.layer_balance import LayerBalance
from onnxsgd.training.state import fresh_state

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

_LAYERS = (
    RectifiedLayer(FirstLayer("x", "w", "b", False), 0.0),
    RectifiedLayer(FirstLayer("h", "u", None, True), 0.1),
    RectifiedLayer(FirstLayer("g", "v", "c", False), 1.0),
)


def _values(weights, rows):
    first = np.maximum(rows @ weights["w"] + weights["b"], 0.0)
    second = first @ weights["u"].T
    second = np.where(second < 0, 0.1 * second, second)
    return first, second, second @ weights["v"] + weights["c"]


def _network(scale, dtype=np.float64):
    rng = np.random.default_rng(0)
    shapes = {"w": (3, 5), "b": (1, 5), "u": (4, 5), "v": (4, 2), "c": (2,)}
    weights = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    return weights, scale * rng.normal(size=(40, 3))


@pytest.mark.parametrize("scale", [30.0, 1e6])
def test_values_of_balanced_layers_are_of_size_1_and_predictions_stay(scale):
    weights, rows = _network(scale)
    state = fresh_state(weights, 0.1, 0)
    state.tensors["w", AVERAGE] = 2.0 * weights["w"]
    assert LayerBalance(_LAYERS, rows).apply(state, float, 0.0) is not None
    balanced = state.weights()
    *between, predicted = _values(balanced, rows)
    np.testing.assert_allclose([np.sqrt(np.mean(values**2)) for values in between], 1.0, rtol=1e-12)
    np.testing.assert_allclose(predicted, _values(weights, rows)[-1], rtol=1e-9)
    np.testing.assert_array_equal(balanced["c"], weights["c"])
    np.testing.assert_allclose(state.tensors["w", AVERAGE], 2.0 * balanced["w"])


def test_one_large_layer_of_several_is_balanced_alone():
    weights, rows = _network(1.0)
    weights["u"] *= 1000.0
    state = fresh_state(weights, 0.1, 0)
    assert LayerBalance(_LAYERS, rows).apply(state, float, 0.0) is not None
    np.testing.assert_array_equal(state.weights()["w"], weights["w"])
    np.testing.assert_allclose(_values(state.weights(), rows)[-1], _values(weights, rows)[-1])


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_usual_layers_stay_as_they_are(scale):
    weights, rows = _network(scale)
    state = fresh_state(weights, 0.1, 0)
    given = dict(state.tensors)
    assert LayerBalance(_LAYERS, rows).apply(state, float, 0.0) is None
    assert all(state.tensors[key] is array for key, array in given.items())


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_layers_without_a_size_stay_as_they_are(value):
    weights, rows = _network(1.0)
    weights["w"][:], weights["b"][:] = value, 0.0
    assert LayerBalance(_LAYERS, rows).apply(fresh_state(weights, 0.1, 0), float, 0.0) is None


def test_layers_with_moments_of_gradients_stay_as_they_are():
    weights, rows = _network(1e3)
    state = fresh_state(weights, 0.1, 0)
    state.tensors["w", "m"] = np.zeros((3, 5))
    assert LayerBalance(_LAYERS, rows).apply(state, float, 0.0) is None
    np.testing.assert_array_equal(state.tensors["w", WEIGHT], weights["w"])


def _fitted_to_raw_columns(seed):
    X, y = make_friedman2(1500, noise=50, random_state=seed)
    network = MLPRegressor(hidden_layer_sizes=(10, 10, 10), max_iter=50, random_state=seed)
    return network.fit(X[:1000], y[:1000]), X, y


@pytest.mark.parametrize("seed", [0, 1])
def test_a_network_that_was_fitted_to_raw_columns_learns(seed):
    """Its R2 stayed at 0.4."""
    network, X, y = _fitted_to_raw_columns(seed)
    assert network.score(X[1000:], y[1000:]) < 0.5
    model = OnnxSGDRegressor(network, random_state=0).fit(X[:1000], y[:1000])
    assert model.score(X[1000:], y[1000:]) > 0.96


@pytest.mark.parametrize("n_rows", [10, 50])
def test_it_learns_in_a_stream(n_rows):
    """R2 stayed at 0.4, in calls of 10 rows that of other networks fell to -50."""
    network, X, y = _fitted_to_raw_columns(0)
    model = OnnxSGDRegressor(network, random_state=0)
    for start in range(0, 1000, n_rows):
        model.partial_fit(X[start : start + n_rows], y[start : start + n_rows])
    assert model.score(X[1000:], y[1000:]) > 0.9


@pytest.mark.parametrize(("unit", "most"), [(2.0, 2.2), (1.0, 2.1), (10.0, 2.2)])
def test_the_first_size_whose_objective_is_little_larger_is_taken(unit, most):
    weights, rows = _network(1e3)
    state = fresh_state(weights, 0.1, 0)
    given = state.tensors
    little, much = most - 0.01, most + 0.01
    for after, size in (
        ([little], 1.0),
        ([much, little], 5.0),
        ([np.nan, much, most], 20.0),
        ([much, np.inf, much], None),
    ):
        state.tensors = given
        objectives = iter([2.0, *after])
        found = LayerBalance(_LAYERS, rows).apply(state, lambda left=objectives: next(left), unit)
        assert (state.tensors is given) == (found is None) == (size is None)
        if size is not None:
            assert found == after[-1]
            first = _values(state.weights(), rows)[0]
            np.testing.assert_allclose(np.sqrt(np.mean(first**2)), size)
        assert next(objectives, None) is None


def test_one_whose_penalty_counts_more_than_its_loss_keeps_its_layers():
    """With large weights of the last layer the penalty would be that of other weights."""
    network, X, y = _fitted_to_raw_columns(0)
    model = OnnxSGDRegressor(network, alpha=1000.0, random_state=0, max_iter=3)
    model.fit(X[:1000], y[:1000])
    # in place of about 400
    assert max(np.abs(array).max() for array in model.get_weights().values()) < 100


def test_a_distance_from_the_first_weights_keeps_the_layers():
    network, X, y = _fitted_to_raw_columns(0)
    penalty = Penalty(l2=1e-6, from_start=True)
    model = OnnxSGDRegressor(network, penalty=penalty, random_state=0, max_iter=3)
    model.fit(X[:1000], y[:1000])
    assert max(np.abs(array).max() for array in model.get_weights().values()) < 100
