"""Epochs: runs of neighbours in random order, several in one call, and the early end of one that diverges."""

import numpy as np
import onnx
import pytest
from scipy import sparse
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.engine.step import scan_epoch
from onnxsgd.engine.step.cuts import Cuts
from onnxsgd.engine.step.single_step import StepRunner
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.schedules import Auto
from onnxsgd.training import epochs, loop
from onnxsgd.training.epochs import Epochs, Numbers, _shifted


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize(("n", "size"), [(1, 8), (7, 8), (8, 8), (50, 8), (64, 16)])
def test_neighbours_are_drawn_together(n, size, is_even):
    """Each batch has them, in another way each time."""
    cuts = Cuts.of(n, size, is_even=is_even)
    orders = _shifted(20, cuts.n_rows, np.random.RandomState(0))
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
        for run in np.split(order, cuts.starts[1:]):
            assert (np.diff(run) % n == 1 % n).all()
    assert n == 1 or len({tuple(order) for order in orders}) > 1


def test_a_long_epoch_that_diverges_ends_early(monkeypatch):
    """At a rate far too large, epochs of 256 updates end after parts of 16 until the rate is small enough."""
    X = np.random.RandomState(0).normal(size=(2048, 3)).astype(np.float32)
    y = X @ np.array([1.0, -2.0, 0.5], np.float32)
    counts, run = [], StepRunner.run

    def counting(self, plan, scalars, losses):
        run(self, plan, scalars, losses)
        counts.append(self.n_done)

    monkeypatch.setattr(StepRunner, "run", counting)
    monkeypatch.setattr("onnxsgd.training.program._MANY_STEPS", 10**9)
    monkeypatch.setattr(epochs, "_PART", 16)
    model = OnnxSGDRegressor(
        learning_rate=Auto(eta0=500.0), batch_size=8, max_iter=15, tol=None, random_state=0
    )
    model.fit(X, y)
    undone = np.isinf(model.loss_curve_)
    assert undone[0]
    assert not undone[-1]
    assert len(undone) == model.n_iter_ == 15
    assert sum(counts) <= 256 * (~undone).sum() + 32 * undone.sum()
    np.testing.assert_allclose(model.learning_rates_[0], 500.0 / 2)
    assert model.score(X, y) > 0.999


def test_observed_epochs_have_the_rates_of_epochs_made_together():
    """A decay in windows of several epochs: single epochs, as an observer needs, change nothing."""
    X = np.random.RandomState(0).normal(size=(100, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.1 * np.random.RandomState(1).normal(size=100)
    together, single = (OnnxSGDRegressor(random_state=0, verbose=verbose).fit(X, y) for verbose in (0, 1))
    np.testing.assert_allclose(together.learning_rates_, single.learning_rates_, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(together.coef_, single.coef_, rtol=1e-6)
    assert (np.diff(together.learning_rates_[-12:]) < 0).all()


def test_batches_after_a_skipped_update_have_the_numbers_of_the_one_before():
    """Two batches an update; the second column, which marks the last one, is that of the batch itself."""
    rates, updates = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 0, 1, 1, 2, 2, 3])
    table = np.column_stack([rates[updates], [0, 1, 0, 1, 0, 1, 1]])
    numbers = Numbers(table, rates, rates, {}, {}, updates, own=(1,))
    np.testing.assert_array_equal(numbers.of_part(slice(3, 7)), table[3:])
    numbers.n_skipped = 1
    np.testing.assert_array_equal(
        numbers.of_part(slice(3, 7)), [[0.1, 1.0], [0.2, 0.0], [0.2, 1.0], [0.3, 1.0]]
    )
    np.testing.assert_array_equal(numbers.last_rates(1), [0.3])


_X = np.random.RandomState(0).normal(size=(203, 3)).astype(np.float32)
_y = _X @ np.array([1.0, -2.0, 0.5], np.float32) + np.maximum(_X[:, 0], 0)
_NETWORK = MLPRegressor(hidden_layer_sizes=(8, 6), random_state=0).partial_fit(_X, _y)
#: Without bounds of its scores, as it has no Relu.
_PRODUCT = MLPRegressor(hidden_layer_sizes=(4,), activation="identity", random_state=0).partial_fit(_X, _y)
_DROPOUT = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]> g (float[N, 3] X) => (float[N, 1] Y)
    <float[3, 1] w = {1, 2, 3}, float r = {0.5}, bool t = {1}> { d = Dropout(X, r, t) Y = MatMul(d, w) }"""
)


def _calls(monkeypatch):
    """Return a list that receives the number of epochs of each call."""
    counts, run = [], Epochs.run

    def counting(self, count=1, **settings):
        counts.append(count)
        run(self, count, **settings)

    monkeypatch.setattr(Epochs, "run", counting)
    return counts


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": "constant"},
        {"learning_rate": "invscaling", "optimizer": "adam", "power_t": 0.5, "average": 20},
        {"model": _NETWORK, "learning_rate": "constant"},
        {"model": _NETWORK, "learning_rate": "cosine", "momentum": 0.9, "shuffle": False},
        {"model": _NETWORK, "learning_rate": "constant", "gradient_accumulation_steps": 3},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_epochs_without_decisions_are_one_call(monkeypatch, settings):
    """Their weights, losses and rates are those of single epochs, with a last batch of 3 rows in each."""
    # calls of the runtime end within epochs
    monkeypatch.setattr(scan_epoch, "_BLOCK_BYTES", 5_000)
    weight = np.random.RandomState(1).uniform(0.5, 2, len(_X))
    counts, found = _calls(monkeypatch), []
    for together in (0, 1 << 16):
        monkeypatch.setattr(loop, "_TOGETHER", together)
        model = OnnxSGDRegressor(
            **settings, penalty=None, eta0=0.01, batch_size=8, max_iter=25, tol=None, random_state=0
        )
        found.append(model.fit(_X, _y, sample_weight=weight))
    single, together = found
    assert counts == [1] * 25 + [25]
    for name, array in single.get_weights().items():
        np.testing.assert_array_equal(together.get_weights()[name], array)
    np.testing.assert_allclose(together.loss_curve_, single.loss_curve_, rtol=1e-12)
    np.testing.assert_array_equal(together.learning_rates_, single.learning_rates_)
    assert (together.n_iter_, together.t_) == (single.n_iter_, single.t_)


@pytest.mark.parametrize(
    "settings",
    [
        {"penalty": "l2"},
        {"tol": 1e-3},
        {"learning_rate": "reduce_on_plateau"},
        {"model": _DROPOUT},
        {"early_stopping": True},
        {"learning_rate": lambda t: 0.01},
    ],
    ids=lambda settings: "-".join(settings),
)
@pytest.mark.filterwarnings("ignore:Maximum number of iteration:sklearn.exceptions.ConvergenceWarning")
def test_epochs_with_decisions_are_single_calls(monkeypatch, settings):
    """Objectives with a penalty, losses that may end the fit or change the rate, draws, scores, functions."""
    counts = _calls(monkeypatch)
    defaults = {"penalty": None, "learning_rate": "constant", "tol": None}
    OnnxSGDRegressor(**{**defaults, **settings}, max_iter=3, random_state=0).fit(_X, _y)
    assert counts == [1, 1, 1]


@pytest.mark.parametrize(("model", "rate"), [(None, 0.3), (_PRODUCT, 0.1)], ids=["linear", "network"])
def test_epochs_before_one_that_diverges_are_recorded(monkeypatch, model, rate):
    """At a rate that grows slowly beyond all bounds, the error comes in a later epoch of the same call."""
    found, X = [], 3 * _X
    for together in (0, 1 << 16):
        monkeypatch.setattr(loop, "_TOGETHER", together)
        learner = OnnxSGDRegressor(
            model, learning_rate="constant", eta0=rate, penalty=None, batch_size=50, max_iter=40, tol=None,
            random_state=0,
        )  # fmt: skip
        with pytest.raises(ConvergenceError, match="no longer finite at update"):
            learner.fit(X, _y)
        found.append(learner)
    single, together = found
    assert len(single.loss_curve_) > 0
    np.testing.assert_allclose(together.loss_curve_, single.loss_curve_, rtol=1e-12)
    np.testing.assert_array_equal(together.learning_rates_, single.learning_rates_)
    assert (together.n_iter_, together.t_) == (single.n_iter_, single.t_)
    for name, array in single.get_weights().items():
        np.testing.assert_array_equal(together.get_weights()[name], array)


def test_an_interrupt_among_epochs_of_one_call_keeps_the_updates_before_it(monkeypatch):
    """The third call of the runtime is interrupted: the updates of two remain, and their whole epochs."""
    monkeypatch.setattr(scan_epoch, "_BLOCK_BYTES", 5_000)
    fill, calls = scan_epoch._Block.fill, []

    def interrupted(self, *given):
        calls.append(len(self.losses))
        if len(calls) == 3:
            raise KeyboardInterrupt
        fill(self, *given)

    monkeypatch.setattr(scan_epoch._Block, "fill", interrupted)
    model = OnnxSGDRegressor(
        _NETWORK, learning_rate="constant", eta0=0.01, penalty=None, batch_size=8, max_iter=30, tol=None,
        random_state=0,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="interrupted"):
        model.fit(_X, _y)
    assert model.t_ == sum(calls[:2])
    assert model.n_iter_ == len(model.loss_curve_) == model.t_ // 26


@pytest.mark.parametrize(
    ("estimator", "noise", "n_put_back"),
    [
        (OnnxSGDRegressor, 0.1, 0),
        (OnnxSGDRegressor, 30.0, 1),
        (OnnxSGDClassifier, 0.1, 0),
        (OnnxSGDClassifier, 0.5, 1),
    ],
)
def test_a_fit_that_guesses_makes_the_updates_of_one_that_decides_after_each_window(
    monkeypatch, estimator, noise, n_put_back
):
    """An observer, which sees each epoch, leaves no place for a guess."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 5))
    y = X[:, 0] + noise * rng.normal(size=100)
    put_back, n_calls = Epochs.put_back, []

    def counted(self):
        n_calls.append(len(self._last))
        put_back(self)

    monkeypatch.setattr(Epochs, "put_back", counted)
    y = y > 0 if estimator is OnnxSGDClassifier else y
    guessing = estimator(random_state=0).fit(X, y)
    assert len(n_calls) == n_put_back
    deciding = estimator(random_state=0, verbose=1).fit(X, y)
    np.testing.assert_allclose(guessing.coef_, deciding.coef_, rtol=1e-5)
    np.testing.assert_allclose(guessing.intercept_, deciding.intercept_, rtol=1e-5)
    np.testing.assert_allclose(guessing.learning_rates_, deciding.learning_rates_, rtol=1e-9, atol=1e-15)
    assert (guessing.n_iter_, guessing.t_) == (deciding.n_iter_, deciding.t_)
    assert len(guessing.loss_curve_) == guessing.n_iter_


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_a_fit_on_sparse_data_makes_no_epoch_on_a_guess(monkeypatch, loss):
    """A guess there is mostly wrong, and an update takes long beside a call."""
    texts = sparse.random(400, 2_000, 0.02, format="csr", random_state=np.random.default_rng(0))
    labels = np.arange(400) % 2
    run, counts = Epochs.run, []

    def counted(self, count=1, **options):
        counts.append(count)
        run(self, count, **options)

    monkeypatch.setattr(Epochs, "run", counted)
    model = OnnxSGDClassifier(loss=loss, random_state=0).fit(texts, labels)
    assert sum(counts) == model.n_iter_ > 6
    # the first call ends with the first window
    assert counts[0] == 2
