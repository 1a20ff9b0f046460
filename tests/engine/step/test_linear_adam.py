"""The short loop of BlockAdam: its updates are those of plain numpy, and of the general loop."""

from itertools import combinations

import numpy as np
import pytest
from numpy_training import PlainBlockAdam
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_losses import CASES

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses
from onnxsgd.engine.step import linear_adam
from onnxsgd.engine.step.linear_adam import LinearAdamRunner
from onnxsgd.optimizers import BlockAdam
from onnxsgd.runtime.cache import cache
from onnxsgd.training import coordinates
from onnxsgd.training.epochs import Epochs
from onnxsgd.training.rules import DescentRule

RNG = np.random.default_rng(0)
N, D, EPOCHS = 150, 4, 30
X = RNG.normal(size=(N, D))
Y = X @ [1.0, -2.0, 0.5, 0.0] + 0.4 + 0.3 * RNG.normal(size=N)
LABELS = np.digitize(Y, [-1.0, 1.0])
#: Thirty epochs of 19 batches are more updates than the loop needs to be compiled; the last batch has 6 rows.
SETTINGS = {
    "learning_rate": "invscaling", "eta0": 0.1, "power_t": 0.3, "alpha": 0.02, "batch_size": 8,
    "optimizer": "block_adam", "max_iter": EPOCHS, "tol": None, "dtype": "float64", "random_state": 0,
}  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    """The calls of the short loop."""
    made, run = [], LinearAdamRunner.run

    def counting(self, plan, scalars, found):
        run(self, plan, scalars, found)
        made.append(self.n_done)

    monkeypatch.setattr(LinearAdamRunner, "run", counting)
    return made


@pytest.fixture
def general(monkeypatch):
    """A fit on the general loop."""

    def fit(make, *data, **more):
        # fits of equal parameters share the choice of the loop
        cache.clear()
        with monkeypatch.context() as context:
            context.setattr("onnxsgd.training.program.choose_linear_loop", lambda *args: None)
            return make().fit(*data, **more)

    return fit


def trained(table, derivative, weight=None, alpha=0.02, **betas):
    """Train in plain numpy, one batch after another; return coefficients and intercepts."""
    weight = np.ones(N) if weight is None else weight
    w, b, t = np.zeros((D, table.shape[1])), np.zeros(table.shape[1]), 0
    move_w, move_b = PlainBlockAdam(**betas), PlainBlockAdam(**betas)
    for _ in range(EPOCHS):
        for start in range(0, N, 8):
            rows, t = slice(start, start + 8), t + 1
            share = weight[rows, None] / weight[rows].sum()
            slope = derivative(table[rows], X[rows] @ w + b) * share
            eta = 0.1 / t**0.3
            w = move_w(w, X[rows].T @ slope, t, eta, alpha)
            b = move_b(b, slope.sum(axis=0), t, eta, 0.0)
    return w, b


def agree(model, expected, rtol=1e-9):
    np.testing.assert_allclose(np.atleast_2d(model.coef_).T, expected[0], rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(np.atleast_1d(model.intercept_), expected[1], rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("name", losses.REGRESSION_LOSSES)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_regression(runs, name, n_outputs):
    loss, _, derivative = CASES[name]
    y = np.c_[Y, -Y, Y**2][:, :n_outputs]
    if loss.link == "log":
        y = 0.1 + np.abs(y)
    model = OnnxSGDRegressor(loss=loss, shuffle=False, **SETTINGS).fit(X, y)
    assert sum(runs) == EPOCHS * 19
    agree(model, trained(np.tile(y, (1, len(loss.score_factors))), derivative))


@pytest.mark.parametrize(
    "name", [name for name in losses.CLASSIFICATION_LOSSES if name != "multiclass_hinge"]
)
@pytest.mark.parametrize("penalty", ["l2", None])
def test_classification(runs, name, penalty):
    """With sample weights, and other decay rates."""
    loss, _, derivative = CASES[name]
    weight = RNG.uniform(0.5, 2.0, N)
    settings = SETTINGS | {"optimizer": BlockAdam(0.8, 0.99), "penalty": penalty}
    model = OnnxSGDClassifier(loss=loss, shuffle=False, **settings).fit(X, Y > 0, sample_weight=weight)
    assert sum(runs) == EPOCHS * 19
    sign = np.where(Y > 0, 1.0, 0.0 if name == "log_loss" else -1.0)[:, None]
    alpha = 0.02 if penalty else 0.0
    agree(model, trained(sign, derivative, weight, alpha, beta_1=0.8, beta_2=0.99))


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize(
    "option",
    [
        {},
        {"with_penalties": True},
        {"with_sizes": True},
        {"inertia": 0.0},
        {"inertia": 1.0, "with_penalties": True},
        {"rest": 0.4},
        {"square_rest": 0.5},
    ],
    ids=str,
)
def test_steered_rates(runs, n_outputs, option):
    """The factor of each block follows the angle between its gradient and its moment."""
    y = np.c_[Y, -Y, Y**2][:, :n_outputs]
    options = {"steering": 0.1, **option}
    settings = SETTINGS | {"optimizer": BlockAdam(**options)}
    model = OnnxSGDRegressor(shuffle=False, **settings).fit(X, y)
    assert sum(runs) == EPOCHS * 19
    agree(model, trained(y, CASES["squared_error"][2], **options))


@pytest.mark.filterwarnings("ignore:Maximum number of iteration")
@pytest.mark.parametrize(
    ("make", "y"),
    [
        (OnnxSGDRegressor, 1e4 * Y),
        (OnnxSGDRegressor, np.c_[Y, 1e3 * Y, 1e-3 * Y**2]),
        (OnnxSGDClassifier, LABELS),
    ],
    ids=["scaled", "several targets", "three classes"],
)
def test_streams_equal_those_of_the_general_loop(runs, make, y, monkeypatch):
    """Calls of 32 rows of raw columns, under "auto", whose targets have units of their own."""

    def stream():
        model = make(dtype="float64", random_state=0)
        more = {"classes": np.unique(y)} if make is OnnxSGDClassifier else {}
        for start in range(0, N, 32):
            model.partial_fit(table[start : start + 32], y[start : start + 32], **more)
        return model

    table = X * [1e-3, 1.0, 50.0, 1.0] + [0.0, 7.0, 0.0, 0.0]
    model = stream()
    assert sum(runs) == model.t_
    # streams of one graph share the choice of the loop
    cache.clear()
    monkeypatch.setattr("onnxsgd.training.program.choose_linear_loop", lambda *args: None)
    expected = stream()
    assert sum(runs) == model.t_ == expected.t_
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    np.testing.assert_allclose(model.loss_curve_, expected.loss_curve_, rtol=1e-9)


def test_numbers_of_the_optimizer_are_part_of_the_cache_key(runs):
    """The same structure with other numbers, one fit after the other."""
    others = {"steering": 0.01}, {"rest": 0.5}, {"rest": 0.5, "square_rest": 0.1}, {"inertia": 0.0}
    numbers = [{"steering": 0.1} | one for one in ({}, *others)]
    fits = [OnnxSGDRegressor(**SETTINGS | {"optimizer": BlockAdam(**one)}).fit(X, Y) for one in numbers]
    assert sum(runs) == 5 * EPOCHS * 19
    for one, again in combinations(fits, 2):
        assert np.abs(one.coef_ - again.coef_).max() > 1e-4
    del runs[:]
    first, again = (
        OnnxSGDRegressor(**SETTINGS | {"optimizer": BlockAdam(0.9, beta)}).fit(X, Y) for beta in (0.999, 0.9)
    )
    assert sum(runs) == 2 * EPOCHS * 19
    assert np.abs(first.coef_ - again.coef_).max() > 1e-4


@pytest.mark.parametrize(
    ("make", "y"),
    [
        (lambda: OnnxSGDRegressor(), 1e4 * Y),
        (lambda: OnnxSGDRegressor(loss="huber"), np.c_[Y, 1e3 * Y, 1e-3 * Y**2]),
        (lambda: OnnxSGDRegressor(alpha=1.0), np.c_[Y, 1e3 * Y]),
        (lambda: OnnxSGDClassifier(), LABELS),
        (lambda: OnnxSGDClassifier(loss="hinge", penalty=None, class_weight="balanced"), LABELS),
        (lambda: OnnxSGDClassifier(early_stopping=True), LABELS),
    ],
    ids=["scaled", "several targets", "penalised targets", "three classes", "weights", "scores"],
)
def test_auto_equals_the_general_loop(runs, general, make, y, monkeypatch):
    """Standardised columns, units of the target, windows that are undone: all that the default does.

    The general loop does not know the penalties of epochs that are made together.
    """
    monkeypatch.setattr(LinearAdamRunner, "squares", lambda self, n_parts: None)

    def new():
        return make().set_params(dtype="float64", random_state=0, max_iter=300)

    table = X * [1e-3, 1.0, 50.0, 1.0] + [0.0, 7.0, 0.0, 0.0]
    model = new().fit(table, y)
    assert sum(runs) > 0
    del runs[:]
    expected = general(new, table, y)
    assert not runs
    assert model.t_ == expected.t_
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.loss_curve_, expected.loss_curve_, rtol=1e-9)


#: Sums of factors, of which the target depends on as many, and columns of another unit.
FACTORS = np.random.default_rng(5).normal(size=(N, 10))
SUMS = FACTORS @ np.random.default_rng(1).normal(size=(10, 10)) * np.geomspace(0.1, 100.0, 10) + 7.0
OF_FACTORS = FACTORS @ np.random.default_rng(2).normal(size=10)
CORRELATED = [
    (OnnxSGDRegressor, 1e4 * OF_FACTORS),
    (OnnxSGDRegressor, np.c_[OF_FACTORS, 1e3 * OF_FACTORS + FACTORS[:, 0]]),
    (OnnxSGDClassifier, OF_FACTORS > 0),
    (OnnxSGDClassifier, np.digitize(OF_FACTORS, [-1.0, 1.0])),
]
of_correlated = pytest.mark.parametrize(
    ("make", "y"), CORRELATED, ids=["one target", "two targets", "two classes", "three classes"]
)


@of_correlated
@pytest.mark.parametrize("penalty", ["l2", None])
def test_preconditioned_updates_equal_those_of_the_general_loop(runs, general, make, y, penalty, monkeypatch):
    monkeypatch.setattr(LinearAdamRunner, "squares", lambda self, n_parts: None)

    def new():
        return make(dtype="float64", random_state=0, max_iter=300, alpha=1e-3, penalty=penalty)

    model = new().fit(SUMS, y)
    assert sum(runs) > 0
    del runs[:]
    expected = general(new, SUMS, y)
    assert not runs
    assert model.t_ == expected.t_
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.loss_curve_, expected.loss_curve_, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Maximum number of iteration")
@of_correlated
@pytest.mark.parametrize("fit", ["short", "general"])
def test_preconditioned_updates_are_those_of_other_coordinates(make, y, fit, general, monkeypatch):
    """In plain numpy, the data are multiplied by the root of the matrix, and the gradient is as it is there.

    Each of several targets has a unit, and blocks of its own.
    """
    alpha, n_epochs, size = 1e-3, 6, 8
    n_batches, counted = -(-N // size), []
    monkeypatch.setattr(DescentRule, "n_epochs", property(lambda self: 1))
    monkeypatch.setattr(DescentRule, "rates", lambda self, count: np.full(n_batches * count, 0.05))
    monkeypatch.setattr(
        DescentRule, "after_epochs", lambda self, *more: counted.append(self) or len(counted) == n_epochs
    )
    monkeypatch.setattr(DescentRule, "end", lambda self, **more: None)
    matrices, chosen = [], coordinates.preconditioner
    monkeypatch.setattr(
        coordinates, "preconditioner", lambda *given: matrices.append(chosen(*given)) or matrices[-1]
    )

    def new():
        return make(
            dtype="float64", random_state=0, max_iter=300, alpha=alpha, shuffle=False, batch_size=size
        )

    model = new().fit(SUMS, y) if fit == "short" else general(new, SUMS, y)
    variances, directions = np.linalg.eigh(matrices[-1])
    assert variances.max() > 10 * variances.min()
    root = directions * np.sqrt(variances) @ directions.T
    centre, scale = SUMS.mean(axis=0), SUMS.std(axis=0)
    table = (SUMS - centre) / scale @ root
    curvature = root @ np.diag(alpha / scale**2) @ root
    # of a batch of 8 rows in place of 32
    target, eta = y.reshape(N, -1).astype(float), 0.05 * np.sqrt(size / 32)
    if make is OnnxSGDRegressor:
        slope, units, b = lambda t, s: s - t, target.std(axis=0), target.mean(axis=0)
    else:
        classes = np.unique(y)
        target = (y[:, None] == (classes if len(classes) > 2 else classes[1:])).astype(float)
        units, shares = np.ones(target.shape[1]), target.mean(axis=0)
        slope, b = lambda t, s: 1 / (1 + np.exp(-s)) - t, np.log(shares / (1 - shares))
    w = np.zeros((10, target.shape[1]))
    apart = make is OnnxSGDRegressor and target.shape[1] > 1
    moves = [(PlainBlockAdam(), PlainBlockAdam()) for _ in (range(target.shape[1]) if apart else range(1))]
    for t in range(1, n_epochs * n_batches + 1):
        rows = np.array_split(np.arange(N), n_batches)[(t - 1) % n_batches]
        slopes = slope(target[rows], table[rows] @ w + b) / len(target[rows])
        of_w, of_b = table[rows].T @ slopes + curvature @ w, slopes.sum(axis=0)
        columns = [[k] for k in range(len(moves))] if apart else [slice(None)]
        for (move_w, move_b), k in zip(moves, columns, strict=True):
            w[:, k] = move_w(w[:, k], of_w[:, k], t, eta * units[k], 0.0)
            b[k] = move_b(b[k], of_b[k], t, eta * units[k], 0.0)
    w = root @ w / scale[:, None]
    agree(model, (w, b - centre @ w), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Maximum number of iteration")
@pytest.mark.parametrize(
    ("make", "y"),
    [
        (OnnxSGDRegressor, 1e4 * Y),
        (OnnxSGDRegressor, np.c_[Y, 1e3 * Y]),
        (OnnxSGDClassifier, LABELS),
    ],
    ids=["one target", "two targets", "three classes"],
)
def test_losses_of_epochs_made_together_have_their_own_penalties(make, y, monkeypatch):
    """They are those of the weights after each epoch, on raw data."""
    table = X * [1e-3, 1.0, 50.0, 1.0] + [0.0, 7.0, 0.0, 0.0]
    found, penalties = [], Epochs._penalties

    def recorded(self, n_epochs, first):
        found.append((n_epochs, penalties(self, n_epochs, first)))
        return found[-1][1]

    def fit(n_epochs):
        found.clear()
        model = make(random_state=0, max_iter=300, alpha=0.1)
        monkeypatch.setattr(DescentRule, "n_epochs", property(lambda self: n_epochs))
        monkeypatch.setattr(
            DescentRule, "rates", lambda self, count: np.full(self._kind.n_batches * count, 0.05)
        )
        monkeypatch.setattr(DescentRule, "after_epochs", lambda self, *more: len(found) * n_epochs >= 12)
        model.fit(table, y)
        return np.concatenate([np.broadcast_to(values, count) for count, values in found])

    monkeypatch.setattr(Epochs, "_penalties", recorded)
    together, alone = fit(4), fit(1)
    assert len(together) == len(alone) == 12
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    assert np.ptp(alone[:4]) > 0.1 * alone[0]


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered)")
@pytest.mark.parametrize("alpha", [1.0, 1e5])
@pytest.mark.parametrize("std", [1e-17, 1e-20])
def test_penalties_of_nearly_constant_columns_are_finite(runs, general, std, alpha):
    """On standardised data they are larger than numbers of float32, and hold the coefficient at zero."""
    table = np.c_[X, std * X[:, 0]]

    def new():
        return OnnxSGDRegressor(alpha=alpha, random_state=0, max_iter=300)

    model = new().fit(table, Y)
    assert sum(runs) > 0
    assert model.t_ > 0
    expected = general(new, table, Y)
    np.testing.assert_allclose(model.coef_[:D], expected.coef_[:D], rtol=0.02)
    assert abs(model.coef_[D]) < 1e-7
    assert model.loss_curve_[-1] == pytest.approx(expected.loss_curve_[-1], rel=1e-4)


@pytest.mark.filterwarnings("ignore:The objective rose", "ignore:Training (did not lower|lowered)")
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("penalty", ["l2", None])
@pytest.mark.parametrize("n_right", [0, 20, N])
def test_penalties_wait_for_a_gradient(runs, general, n_outputs, penalty, n_right):
    """A fitted model is right about the first rows: nothing moves before the first error."""
    y = np.c_[Y, -Y, Y**2][:, :n_outputs]
    fitted = Ridge().fit(X, y)
    y = np.where(np.arange(N)[:, None] < n_right, fitted.predict(X).reshape(N, -1), y)
    settings = SETTINGS | {"penalty": penalty, "loss": "epsilon_insensitive", "epsilon": 0.1}
    new = lambda: OnnxSGDRegressor(fitted, shuffle=False, **settings)  # noqa: E731
    model = new().fit(X, y)
    assert sum(runs) == EPOCHS * 19
    expected = general(new, X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-9)
    if n_right == N:
        np.testing.assert_array_equal(np.squeeze(model.coef_), np.squeeze(fitted.coef_))


def test_a_target_without_a_gradient_keeps_its_weights(runs, general):
    """Each of several targets has a block of its own under "auto", and waits alone."""
    y = np.c_[Y, 1e3 * Y + 1]
    fitted = Ridge().fit(X, y)
    y[:, 0] = fitted.predict(X)[:, 0]
    settings = {"dtype": "float64", "loss": "epsilon_insensitive", "epsilon": 0.1, "alpha": 0.1}
    new = lambda: OnnxSGDRegressor(fitted, random_state=0, **settings)  # noqa: E731
    parts = [slice(0, 75), slice(75, N)]

    def stream(model):
        for part in parts:
            model.partial_fit(X[part], y[part])
        return model

    model = stream(new())
    assert sum(runs) == model.t_
    np.testing.assert_array_equal(model.coef_[0], fitted.coef_[0])
    assert (model.coef_[1] != fitted.coef_[1]).all()


def test_blocks_and_large_tables(runs, monkeypatch):
    """Calls of few batches, and rows that are gathered anew in each of them, make the same updates."""
    expected = OnnxSGDRegressor(**SETTINGS).fit(X, Y)
    monkeypatch.setattr(linear_adam, "_MOST_BATCHES", 7)
    blocks = OnnxSGDRegressor(**SETTINGS).fit(X, Y)
    np.testing.assert_array_equal(blocks.coef_, expected.coef_)
    monkeypatch.setattr(linear_adam, "_BLOCK_BYTES", 10_000 - 1)
    gathered = OnnxSGDRegressor(**SETTINGS).fit(np.tile(X, (4, 1)), np.tile(Y, 4))
    monkeypatch.undo()
    tiled = OnnxSGDRegressor(**SETTINGS).fit(np.tile(X, (4, 1)), np.tile(Y, 4))
    np.testing.assert_array_equal(gathered.coef_, tiled.coef_)


def test_moments_are_carried_from_call_to_call(runs):
    table, y = np.tile(X, (30, 1)), np.tile(Y, 30)
    settings = SETTINGS | {"max_iter": 2, "shuffle": False}
    whole = OnnxSGDRegressor(**settings).fit(table, y)
    halves = OnnxSGDRegressor(**settings).partial_fit(table, y).partial_fit(table, y)
    assert runs == 4 * [563]
    np.testing.assert_array_equal(halves.coef_, whole.coef_)


@pytest.mark.parametrize(
    "settings",
    [
        {"penalty": "elasticnet"},
        {"average": True},
        {"optimizer": "adam"},
        {"optimizer": BlockAdam(0.9, 0.4)},
    ],
    ids=str,
)
def test_others_take_the_general_loop(runs, settings):
    OnnxSGDRegressor(**SETTINGS | settings).fit(X, Y)
    assert not runs


def test_wide_data_take_the_general_loop(runs):
    wide = np.tile(X, (1, 200))
    OnnxSGDRegressor(**SETTINGS).fit(wide, Y)
    assert not runs


def test_a_converted_model_behind_a_scaler(runs, general):
    inner = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS)
    new = lambda: OnnxSGDClassifier(inner, **SETTINGS | {"dtype": None})  # noqa: E731
    model = new().fit(X, LABELS)
    assert runs
    expected = general(new, X, LABELS)
    np.testing.assert_allclose(
        model.decision_function(X), expected.decision_function(X), rtol=1e-3, atol=1e-4
    )


def test_fits_on_data_in_turn_have_their_own_data(runs):
    """Tables of one size take the same memory."""

    def fit(table, target):
        return OnnxSGDRegressor(random_state=0, max_iter=200, tol=None).fit(table, target).coef_

    first, other, short = (X, Y), (X[:, ::-1] + 1.0, Y**2), (X[:100], Y[:100])
    alone = []
    for data in (first, other, short):
        cache.clear()
        alone.append(fit(*data))
    for number in (0, 1, 0, 2, 1):
        np.testing.assert_array_equal(fit(*(first, other, short)[number]), alone[number])
    assert runs
