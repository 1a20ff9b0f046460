"""Parts of a stream that have the shape of an earlier one are learned as the general way learns them."""

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.schedules import Schedule
from onnxsgd.training.epochs import numbers_of_epochs
from onnxsgd.training.program import Program

ROWS, COLUMNS, CALLS = 24, 6, 8


def _parts(is_regression: bool, n_calls: int = CALLS, dtype: type = np.float64) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(3)
    coefficients, scales = rng.normal(size=COLUMNS), np.linspace(0.2, 2.0, COLUMNS)
    for _ in range(n_calls):
        X = 0.5 + scales * rng.normal(size=(ROWS, COLUMNS))
        y = X @ coefficients + rng.normal(size=ROWS)
        yield X.astype(dtype), y if is_regression else (y > y.mean()).astype(int)


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[bool]]:
    """Switch the short way on or off; return the list that notes whether it learned each part."""
    learns_again = Program.learns_again

    def switch(is_on: bool) -> list[bool]:
        notes: list[bool] = []

        def noted(*arguments: Any) -> bool:
            notes.append(is_on and learns_again(*arguments))
            return notes[-1]

        monkeypatch.setattr(Program, "learns_again", noted)
        return notes

    return switch


def _state(estimator: Any) -> dict[str, Any]:
    state = estimator._state
    moments = {name: (m.count, m.mean, m.squares) for name, m in state.moments.items()}
    numbers = {
        name: getattr(state, name) for name in ("t", "eta", "n_rows", "mean_weight", "l1_totals", "missed")
    }
    drawn = state.random_state.get_state()[1:]
    return {
        "tensors": state.tensors, "moments": moments, **numbers, "loss_curve": state.loss_curve,
        "rates": state.learning_rates, "drawn": drawn, "n_iter": estimator.n_iter_, "t_": estimator.t_,
    }  # fmt: skip


def _learned(estimator: Any, is_regression: bool, **given: Any) -> Any:
    classes = {} if is_regression else {"classes": [0, 1]}
    for X, y in _parts(is_regression):
        estimator.partial_fit(X, y, **classes, **given)
    return estimator


_PLAIN = {"learning_rate": "constant", "eta0": 1e-3}
CASES: dict[str, tuple[bool, Any, dict[str, Any]]] = {
    "regression": (True, None, {}),
    "classes": (False, None, {}),
    "one row": (True, None, {"batch_size": 1}),
    "large batch": (False, None, {"batch_size": 64}),
    "no shuffle": (True, None, {"shuffle": False}),
    "elastic net": (False, None, {"penalty": "elasticnet", "alpha": 0.01}),
    "no penalty": (True, None, {"penalty": None}),
    "averages": (False, None, {"average": True}),
    "double": (True, None, {"dtype": "float64"}),
    "huber": (True, None, {"loss": "huber"}),
    "modified huber": (False, None, {"loss": "modified_huber"}),
    "limits": (True, None, {**_PLAIN, "max_grad_norm": 0.5}),
    "named": (True, None, _PLAIN),
    "named, l1": (False, None, {**_PLAIN, "penalty": "l1", "alpha": 0.01}),
    "named, averages": (True, None, {**_PLAIN, "average": 3}),
    "inverse scaling": (False, None, {"learning_rate": "invscaling", "eta0": 1e-3}),
    "adam": (True, None, {**_PLAIN, "optimizer": "adam"}),
    "three layers": (False, MLPClassifier((5, 4), max_iter=3, random_state=0), {"average": True}),
    "network": (False, MLPClassifier((5,), max_iter=3, random_state=0), {}),
    "named network": (False, MLPClassifier((5,), max_iter=3, random_state=0), _PLAIN),
    "regression network": (True, MLPRegressor(hidden_layer_sizes=(5, 4), max_iter=3, random_state=0), {}),
}  # fmt: skip


def _estimator(name: str) -> tuple[bool, Callable[[], Any]]:
    is_regression, model, options = CASES[name]
    kind = OnnxSGDRegressor if is_regression else OnnxSGDClassifier
    if model is not None:
        X, y = next(_parts(is_regression))
        model = FrozenEstimator(model.fit(X, y))
    return is_regression, lambda: kind(model, random_state=0, **options)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_repeated_parts_have_the_numbers_of_the_general_way(
    repeats: Callable[[bool], list[bool]], name: str
) -> None:
    is_regression, make = _estimator(name)
    notes = repeats(True)
    short = _state(_learned(make(), is_regression))
    repeats(False)
    general = _state(_learned(make(), is_regression))

    # programs are shared by equal estimators: the first part may repeat one of an earlier test
    assert sum(notes) >= CALLS - 2
    np.testing.assert_equal(short, general)


def test_numbers_of_updates_are_made_for_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def noted(*arguments: Any) -> Any:
        made.append(numbers_of_epochs(*arguments))
        return made[-1]

    monkeypatch.setattr("onnxsgd.training.repeated_part.numbers_of_epochs", noted)
    # an alpha of its own: programs are shared by equal estimators
    short = OnnxSGDRegressor(random_state=0, alpha=3.21e-4)
    for X, y in _parts(True, 60):
        short.partial_fit(X, y)
    assert len(made) == 2
    monkeypatch.setattr(Program, "learns_again", lambda *_: False)
    general = OnnxSGDRegressor(random_state=0, alpha=3.21e-4)
    for X, y in _parts(True, 60):
        general.partial_fit(X, y)
    np.testing.assert_equal(_state(short), _state(general))


def test_weights_of_samples_count(repeats: Callable[[bool], list[bool]]) -> None:
    weight = np.random.default_rng(0).random(ROWS)
    notes = repeats(True)
    short = _state(_learned(OnnxSGDRegressor(random_state=0), True, sample_weight=weight))
    repeats(False)
    general = _state(_learned(OnnxSGDRegressor(random_state=0), True, sample_weight=weight))

    assert sum(notes) >= CALLS - 2
    np.testing.assert_equal(short, general)


@pytest.mark.parametrize("change", ["target", "noise", "classes", "extremes"])
def test_changes_of_the_data_are_found(repeats: Callable[[bool], list[bool]], change: str) -> None:
    def learned() -> Any:
        is_regression = change in ("target", "noise")
        kind = OnnxSGDRegressor if is_regression else OnnxSGDClassifier
        estimator = kind(random_state=0)
        rng = np.random.default_rng(5)
        for number, (X, y) in enumerate(_parts(is_regression, 40)):
            if number >= 20 and change == "target":
                y = 1000.0 * y + 5000.0
            elif number == 30 and change == "noise":
                y = 1e4 * rng.normal(size=ROWS)
            elif number >= 20 and change == "classes":
                y = 1 - y
            elif number == 30 and change == "extremes":
                X = X * np.where(np.arange(ROWS) == 3, 1e6, 1.0)[:, None]
            estimator.partial_fit(X, y, **({} if is_regression else {"classes": [0, 1]}))
        return estimator

    notes = repeats(True)
    short = _state(learned())
    assert sum(notes) >= 30
    repeats(False)
    np.testing.assert_equal(short, _state(learned()))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_divergence_is_told_and_leaves_finite_weights(repeats: Callable[[bool], list[bool]]) -> None:
    estimator = OnnxSGDRegressor(random_state=0, learning_rate="constant", eta0=1e-3)
    rng = np.random.default_rng(0)
    for _ in range(3):
        X = rng.normal(size=(ROWS, COLUMNS))
        estimator.partial_fit(X, X[:, 0])
    other = copy.deepcopy(estimator)
    X = 1e30 * rng.normal(size=(ROWS, COLUMNS))
    states = []
    for is_on, learner in ((True, estimator), (False, other)):
        notes = repeats(is_on)
        with pytest.raises(ConvergenceError, match="no longer finite"):
            learner.partial_fit(X, X[:, 0])
        assert not notes[-1]
        assert np.isfinite(learner.coef_).all()
        states.append(_state(learner))
    np.testing.assert_equal(*states)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_beyond_the_range_of_their_type_are_bounded(repeats: Callable[[bool], list[bool]]) -> None:
    X, y = next(_parts(False))
    network = MLPClassifier((5,), activation="tanh", max_iter=3, random_state=0).fit(X, y)
    states = []
    for is_on in (True, False):
        notes = repeats(is_on)
        estimator = _learned(OnnxSGDClassifier(FrozenEstimator(network), random_state=0), False)
        # in units of the standardised columns, some 2.5 times as large
        scale = max(np.abs(weight).max() for weight in estimator.get_weights().values())
        weights = {
            name: (weight / scale * np.finfo(weight.dtype).max if weight.shape == (COLUMNS, 5) else weight)
            for name, weight in estimator.get_weights().items()
        }
        estimator.set_weights(weights)
        estimator.partial_fit(X, y)
        assert not notes[-1]
        states.append(_state(estimator))
    assert all(np.isfinite(tensor).all() for tensor in states[0]["tensors"].values())
    np.testing.assert_equal(*states)


@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy])
def test_copies_of_a_stream_repeat_parts(
    repeats: Callable[[bool], list[bool]], copied: Callable[[Any], Any]
) -> None:
    estimator = copied(_learned(OnnxSGDRegressor(random_state=0), True))
    notes = repeats(True)
    _learned(estimator, True)
    assert sum(notes) >= CALLS - 1


def test_an_error_inside_leaves_the_estimator_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = _learned(OnnxSGDClassifier(random_state=0), False)
    before = pickle.dumps(_state(estimator))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxsgd.training.repeated_part.penalty_value", interrupted)
    X, y = next(_parts(False))
    with pytest.raises(KeyboardInterrupt):
        estimator.partial_fit(X, y)
    monkeypatch.undo()
    drawn_apart = (pickle.loads(before), _state(estimator))
    for state in drawn_apart:
        state.pop("drawn")
    np.testing.assert_equal(*drawn_apart)


class _Adaptive(Schedule):
    """A schedule whose rate depends on the loss."""

    @property
    def initial(self) -> float:
        return 1e-3

    def rate(self, t: int, eta: float) -> float:
        return eta

    def after_epoch(
        self, value: float, eta: float, memory: tuple[float, ...]
    ) -> tuple[float, tuple[float, ...]]:
        return 0.5 * eta, memory


def test_rates_that_depend_on_losses_take_the_general_way(repeats: Callable[[bool], list[bool]]) -> None:
    notes = repeats(True)
    estimator = _learned(OnnxSGDRegressor(random_state=0, learning_rate=_Adaptive()), True)
    assert not any(notes)
    assert estimator._state.eta == 1e-3 * 0.5**CALLS


def test_reported_decisions_take_the_general_way(
    repeats: Callable[[bool], list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    estimator = _learned(OnnxSGDRegressor(random_state=0), True)
    notes = repeats(True)
    X, y = next(_parts(True))
    with caplog.at_level(logging.DEBUG, "onnxsgd"):
        estimator.partial_fit(X, y)
    assert notes == [False]
    assert any(record.name == "onnxsgd.path" for record in caplog.records)


def test_other_numbers_of_rows_are_other_parts(repeats: Callable[[bool], list[bool]]) -> None:
    estimator = _learned(OnnxSGDRegressor(random_state=0), True)
    notes = repeats(True)
    X, y = next(_parts(True))
    for rows in (slice(0, 17), slice(0, 17), slice(None)):
        estimator.partial_fit(X[rows], y[rows])
    assert notes == [False, True, True]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["regression", "network", "named"])
def test_streams_that_take_turns_have_weights_of_their_own(
    repeats: Callable[[bool], list[bool]], name: str
) -> None:
    """They share the buffers of a step, which keep the numbers of the last part."""
    is_regression, make = _estimator(name)
    repeats(False)
    alone = [_state(_learned(make().set_params(random_state=seed), is_regression)) for seed in (0, 1)]
    notes = repeats(True)
    streams = [make().set_params(random_state=seed) for seed in (0, 1)]
    classes = {} if is_regression else {"classes": [0, 1]}
    for X, y in _parts(is_regression):
        for stream in streams:
            stream.partial_fit(X, y, **classes)
    assert sum(notes) >= 2 * CALLS - 4
    np.testing.assert_equal([_state(stream) for stream in streams], alone)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["regression", "network", "named"])
def test_weights_that_are_set_between_two_parts_are_trained(
    repeats: Callable[[bool], list[bool]], name: str
) -> None:
    is_regression, make = _estimator(name)
    states = []
    for is_on in (True, False):
        notes = repeats(is_on)
        stream = _learned(make(), is_regression)
        stream.set_weights({key: 0.5 * array for key, array in stream.get_weights().items()})
        states.append(_state(_learned(stream, is_regression)))
        assert notes[-1] == is_on
    np.testing.assert_equal(*states)


def test_a_stream_continues_from_a_pickle_after_a_cut_of_the_rate() -> None:
    """Exact weights: the first gradients are rounding, and training from them diverges at the usual rate."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 6))
    y = X @ rng.normal(size=6) + 1
    estimator = OnnxSGDRegressor(LinearRegression().fit(X, y), random_state=0)
    parts = [slice(start, start + 20) for start in range(0, 1200, 20)]
    for part in parts[:10]:
        estimator.partial_fit(X[part], y[part])
    other = pickle.loads(pickle.dumps(estimator))
    for part in parts[10:]:
        estimator.partial_fit(X[part], y[part])
        other.partial_fit(X[part], y[part])
    np.testing.assert_array_equal(estimator.coef_, other.coef_)
    assert estimator.learning_rates_ == pytest.approx(other.learning_rates_)
    assert estimator.score(X, y) > 0.99


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_call_that_is_refused_changes_no_random_numbers() -> None:
    parts = list(_parts(True, 20))
    estimator = OnnxSGDRegressor(random_state=0)
    for X, y in parts[:10]:
        estimator.partial_fit(X, y)
    estimator, other = copy.deepcopy(estimator), copy.deepcopy(estimator)
    X, y = parts[0]
    with pytest.raises(ConvergenceError, match="is inf before any update"):
        estimator.partial_fit(X, np.where(np.arange(len(y)) == 1, 1e20, y))
    np.testing.assert_equal(_state(estimator), _state(other))
    for X, y in parts[10:]:
        estimator.partial_fit(X, y)
        other.partial_fit(X, y)
    np.testing.assert_equal(_state(estimator), _state(other))


def test_streams_of_negative_losses_repeat_parts(repeats: Callable[[bool], list[bool]]) -> None:
    rng, notes = np.random.default_rng(0), repeats(True)
    estimator = OnnxSGDRegressor(loss="gaussian_nll", random_state=0)
    for _ in range(60):
        X = rng.normal(size=(32, 3))
        estimator.partial_fit(X, 1e-4 * (X[:, 0] + 0.1 * rng.normal(size=32)))
    assert estimator.loss_curve_[-1] < 0.0
    assert sum(notes) >= 55
