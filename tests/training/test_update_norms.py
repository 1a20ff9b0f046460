"""The record of the norms of updates, against differences of weights."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.engine.step.update import AVERAGE, WEIGHT
from onnxsgd.persistence.small_form import from_small_form
from onnxsgd.training.state import FitState
from onnxsgd.training.update_norms import UpdateNorms

NAMED = {"learning_rate": "constant", "eta0": 0.01, "tol": None, "random_state": 0}


def distance(first, second):
    """The Euclidean distance of weights in float64."""
    parts = [(first[name].astype(np.float64) - second[name].astype(np.float64)).ravel() for name in first]
    return np.linalg.norm(np.concatenate(parts))


@pytest.mark.parametrize("average", [False, True])
def test_norms_are_the_distances_of_weights_between_epochs(diabetes, average):
    X, y = diabetes
    network = MLPRegressor(hidden_layer_sizes=(5,), max_iter=1000, tol=1e-2, random_state=0).fit(X, y)
    given = {"model": network, "record_update_norms": True, **NAMED}
    fitted = OnnxSGDRegressor(max_iter=4, average=average, **given).fit(X, y)
    # the first epochs of a longer fit at a named rate; averages do not change the weights that are updated
    weights = [OnnxSGDRegressor(network).get_weights()]
    weights += [OnnxSGDRegressor(max_iter=n, **given).fit(X, y).get_weights() for n in range(1, 5)]
    expected = [distance(*pair) for pair in pairwise(weights)]
    np.testing.assert_allclose(fitted.update_norms_, expected, rtol=1e-6)
    assert min(expected) > 0


def test_recording_changes_no_weight(diabetes, iris):
    for kind, data in ((OnnxSGDRegressor, diabetes), (OnnxSGDClassifier, iris)):
        plain = kind(max_iter=60, random_state=0).fit(*data)
        recorded = kind(max_iter=60, random_state=0, record_update_norms=True).fit(*data)
        np.testing.assert_array_equal(recorded.coef_, plain.coef_)
        assert recorded.update_norms_.shape == (recorded.n_iter_,)
        assert plain.update_norms_ is None


def test_parts_are_recorded_where_it_is_asked_for(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(**{**NAMED, "tol": 1e-3})
    weights = [model.partial_fit(X, y).get_weights()]
    assert model.update_norms_ is None
    model.set_params(record_update_norms=True)
    weights += [model.partial_fit(X, y).get_weights() for _ in range(2)]
    model.set_params(record_update_norms=False).partial_fit(X, y)
    expected = [np.nan, distance(weights[0], weights[1]), distance(weights[1], weights[2]), np.nan]
    np.testing.assert_allclose(model.update_norms_, expected, rtol=1e-6)
    model.set_params(record_update_norms=True).partial_fit(X, y)
    np.testing.assert_array_equal(np.isnan(model.update_norms_), [True, False, False, True, False])


def test_sparse_data_with_few_columns_in_use(diabetes):
    X, y = diabetes
    wide = sparse.csr_array((len(y), 1000), dtype=np.float32).tolil()
    wide[:, :20:2] = X
    given = {"max_iter": 40, "random_state": 0}
    recorded = OnnxSGDRegressor(record_update_norms=True, **given).fit(wide.tocsr(), y)
    plain = OnnxSGDRegressor(**given).fit(wide.tocsr(), y)
    np.testing.assert_allclose(recorded.coef_, plain.coef_, atol=1e-4)
    assert np.isfinite(recorded.update_norms_).all()
    assert recorded.update_norms_[-1] < recorded.update_norms_[0]


def test_norms_are_saved_and_a_fit_begins_anew(diabetes):
    model = OnnxSGDRegressor(max_iter=3, record_update_norms=True, **NAMED).fit(*diabetes)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.update_norms_, model.update_norms_)
    first = model.update_norms_
    np.testing.assert_array_equal(model.fit(*diabetes).update_norms_, first)
    assert model.set_params(record_update_norms=False).fit(*diabetes).update_norms_ is None
    assert not hasattr(OnnxSGDRegressor(), "update_norms_")


def test_an_interrupted_fit_has_the_norms_of_its_epochs(diabetes):
    def rate(t):
        if t > 2 * 14:
            raise KeyboardInterrupt
        return 0.01

    given = {**NAMED, "learning_rate": rate, "eta0": None, "record_update_norms": True}
    with pytest.warns(UserWarning, match="interrupted by user"):
        model = OnnxSGDRegressor(max_iter=5, **given).fit(*diabetes)
    whole = OnnxSGDRegressor(max_iter=2, **given).fit(*diabetes)
    assert model.n_iter_ == 2
    np.testing.assert_array_equal(model.update_norms_, whole.update_norms_)


def test_an_estimator_of_an_older_version_has_none(diabetes):
    state = from_small_form(OnnxSGDRegressor(max_iter=2, **NAMED).fit(*diabetes).__getstate__())
    del state["record_update_norms"]
    assert "update_norms" not in state["_saved"]
    restored = OnnxSGDRegressor.__new__(OnnxSGDRegressor)
    restored.__setstate__(state)
    assert restored.update_norms_ is None
    assert restored.record_update_norms is False
    restored.partial_fit(*diabetes)


def test_a_divergence_is_infinite_and_averages_do_not_count():
    state = FitState({("w", WEIGHT): np.zeros(2, np.float32)}, eta=0.1, random_state=np.random.RandomState(0))
    norms = UpdateNorms(True)
    norms.epoch_begins(state)
    state.tensors = {
        ("w", WEIGHT): np.array([3, 4], np.float32),
        ("w", AVERAGE): np.array([300, 400], np.float32),
    }
    state.record(np.array([1.0]), np.array([0.1]))
    assert norms.epoch_ends(state) is False
    norms.epoch_begins(state)
    state.record(np.array([np.inf]), np.array([0.1]))
    norms.epoch_ends(state)
    assert state.update_norms == [5.0, np.inf]
    assert not UpdateNorms(False).is_active
