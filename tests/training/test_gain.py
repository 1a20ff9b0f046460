"""The gain of fits over their first weights: the warning of those that have none, and no pass of others."""

import math
import re
import warnings

import numpy as np
import pytest
from onnx import numpy_helper, parser
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, schedules
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.training.checkpoints import Checkpoints
from onnxsgd.training.gain import Gain
from onnxsgd.training.program import Program
from onnxsgd.training.state import FitState

X, LABEL = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
X_REAL, REAL = load_diabetes(return_X_y=True)
X_REAL, REAL = StandardScaler().fit_transform(X_REAL), (REAL - REAL.mean()) / REAL.std()
RNG = np.random.default_rng(0)
#: A rate at which nothing is learned.
TINY = {"learning_rate": "constant", "eta0": 1e-9, "random_state": 0}


class Problem:
    """The objective w of a weight, from `start` to `last`, after epochs of the given values."""

    def __init__(
        self, values, start=1.0, last=1.0, *, score=None, scores=None, objectives=True, tol=1e-3, unit=None
    ):
        self.state = FitState({("w", WEIGHT): np.array(start)}, 0.01, np.random.RandomState(0))
        self.n_asked = 0
        pairs = self.pairs if objectives else None
        self.gain = Gain(self.state, self.state.weights(), tol, 0, pairs, score, unit)
        self.state.tensors = {("w", WEIGHT): np.array(last)}
        for value, of_epoch in zip(values, scores or [None] * len(values), strict=True):
            self.gain.record([value], of_epoch)

    def pairs(self, first, last):
        self.n_asked += 1
        yield float(first["w"]), float(last["w"])


def messages(problem):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem.gain.report()
    assert all(issubclass(entry.category, ConvergenceWarning) for entry in caught)
    return [str(entry.message) for entry in caught]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (1.0, "did not lower the objective: 1 before the first update, 1 after"),
        (1.0002, "did not lower the objective: 1 before the first update, 1.0002 after"),
        (0.9995, "only from 1 to 0.9995. Unless .* raise the learning rate .*0.01.* learning_rate='auto'"),
        (1.5, "raised the objective from 1 to 1.5. Unless .* lower the learning rate"),
    ],
)
def test_an_end_next_to_the_beginning_is_reported(last, said):
    (message,) = messages(Problem([1.0] * 6, last=last))
    assert re.search(said, message)


@pytest.mark.parametrize(
    ("values", "more"),
    [
        # all is learned in the first epoch
        ([0.1] * 6, {"last": 0.1}),
        ([1.0] * 6, {"last": 0.99}),
        # without a tol only no gain is none
        ([1.0] * 6, {"last": 0.9999, "tol": None}),
        # a smaller tol than the usual one asks for less
        ([1.0] * 6, {"last": 0.9995, "tol": 1e-4}),
        # a large tol is one of the objective, not a share of it
        ([1e6] * 6, {"start": 1e6, "last": 9e5, "tol": 1e4}),
        # a perceptron of zeros has no loss; a loss of zero cannot be lowered
        ([0.2] * 6, {"start": 0.0, "last": 0.2}),
        # one epoch is compared with no other
        ([1.0], {}),
        ([0.0] * 6, {"start": 1e-3, "last": -1e-3, "unit": 1.0}),
        ([math.nan] * 6, {"start": math.nan}),
    ],
)
def test_other_ends_are_not(values, more):
    assert messages(Problem(values, **more)) == []


def test_logarithms_of_a_density_are_compared_in_their_unit():
    (message,) = messages(Problem([0.0] * 6, start=1e-3, last=5e-4, unit=1.0))
    assert "only from 0.001 to 0.0005" in message


def test_fits_that_gain_in_their_epochs_compute_nothing_and_keep_nothing():
    problem = Problem([1.0, 0.98])
    assert problem.gain.progress()["first"] is None
    assert messages(problem) == []
    assert problem.n_asked == 0


def test_scores_take_the_place_of_objectives():
    def score(weights):
        return 0.8 * float(weights["w"])

    def said(*scores, objectives=(1.0, 1.0)):
        return messages(Problem(objectives, score=score, scores=scores))

    (message,) = said(0.8, 0.79)
    assert "No epoch scored better on the validation data than the first weights: 0.8 before" in message
    (message,) = said(0.8, 0.8001)
    assert "raised the score on the validation data only from 0.8 to 0.8001." in message
    assert said(0.805, 0.805) == []
    # as good as the most frequent class, with better probabilities
    assert said(0.8, 0.8, objectives=(1.0, 0.9)) == []
    assert said(0.7, 0.8) == []


def test_batches_that_are_not_read_again_are_judged_by_their_epochs():
    """Epochs that learned differ by more than rounding."""
    (message,) = messages(Problem([0.5, 0.5 - 1e-6, 0.5], objectives=False))
    assert "The objective of all 3 epochs is 0.5." in message
    assert messages(Problem([0.5, 0.5 - 1e-4, 0.5 - 1e-4], objectives=False)) == []
    assert messages(Problem([0.0] * 6, objectives=False)) == []


# Whole fits.


def said(estimator, *args, **more):
    """Return the messages of a fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(*args, **more)
    assert all(issubclass(entry.category, ConvergenceWarning) for entry in caught)
    return [str(entry.message) for entry in caught]


SPARSE = sparse.csr_array(np.where(X_REAL > 0, X_REAL, 0.0))
DATA = {"dense": (X_REAL, REAL), "sparse": (SPARSE, REAL)}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"optimizer": "adam"},
        {"learning_rate": "invscaling"},
        {"learning_rate": "adaptive"},
        # it is not cut, and ends all the same
        {"learning_rate": "cosine", "max_iter": 8},
        {"learning_rate": "reduce_on_plateau"},
        {"learning_rate": schedules.WarmUp("constant", 10)},
        {"average": True},
        {"tol": None, "max_iter": 4},
    ],
    ids=str,
)
def test_a_rate_that_is_far_too_small_is_reported_once(data, more):
    (message,) = said(OnnxSGDRegressor(**TINY | more), *DATA[data])
    assert "Training did not lower the objective: 0.5 before the first update, 0.5 after" in message
    assert "raise the learning rate (at most" in message
    assert "or let learning_rate='auto' find it" in message


@pytest.mark.parametrize("more", [{}, {"n_jobs": 2}, {"learning_rate": "adaptive"}], ids=str)
def test_classifiers_and_networks(more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = MLPClassifier((8,), solver="lbfgs", max_iter=3, random_state=0).fit(X[:100], LABEL[:100])
    for model in (None, network):
        given = {} if model is None else {"model": model}
        (message,) = said(OnnxSGDClassifier(**TINY | more, **given), X, LABEL)
        assert "raise the learning rate" in message


def test_the_objectives_are_exact():
    """The first weights are zeros, with the mean loss log 2; the penalty of l2 is a part of both."""
    model = OnnxSGDClassifier(**TINY | {"eta0": 3e-6}, alpha=0.01)
    (message,) = said(model, X, LABEL)
    margin = np.where(LABEL == 1, 1.0, -1.0) * model.decision_function(X)
    last = np.logaddexp(0.0, -margin).mean() + 0.005 * float((model.coef_**2).sum())
    assert f"only from {math.log(2.0):.6g} to " in message
    assert float(message.split(" to ")[1].split(". ")[0]) == pytest.approx(last, abs=2e-6)


def test_validation_data_that_decide():
    """The score of the first weights is compared with the best one."""
    (message,) = said(OnnxSGDRegressor(**TINY, early_stopping=True), X_REAL, REAL)
    assert "the score on the validation data only from" in message
    fitted = LogisticRegression().fit(X, LABEL)
    (message,) = said(OnnxSGDClassifier(fitted, **TINY), X, LABEL, X_val=X, y_val=LABEL)
    assert "Training did not lower the objective" in message
    (message,) = said(OnnxSGDClassifier(fitted, **TINY, early_stopping=True), X, LABEL, X_val=X, y_val=LABEL)
    assert "No epoch scored better on the validation data than the first weights" in message


def test_a_model_that_scores_as_the_most_frequent_class_may_have_learned():
    """Zeros predict the first class, of 0.95 of the samples here."""
    data, labels = make_classification(
        1500, 10, n_informative=3, weights=[0.95], class_sep=0.5, random_state=2
    )
    settings = {"learning_rate": "constant", "eta0": 0.1, "early_stopping": True, "random_state": 0}
    assert said(OnnxSGDClassifier(**settings), StandardScaler().fit_transform(data), labels) == []


def test_dropout():
    """Losses of epochs differ by its noise alone, and predictions have none."""
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    network (float[N, 30] X) => (float[N, 1] Y) <float r = {0.4}, bool on = {0}> {
        a = Dropout(X, r, on)
        Y = Gemm(a, W, b)
    }
    """
    model = parser.parse_model(text)
    weights = {"W": RNG.normal(0.0, 0.3, (30, 1)), "b": np.zeros(1)}
    arrays = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    model.graph.initializer.extend(arrays)
    learner = OnnxSGDClassifier(model, **TINY, batch_size=8)
    (message,) = said(learner, X[:64], LABEL[:64])
    assert "Training did not lower the objective" in message
    first, lowest = learner.loss_curve_[0], min(learner.loss_curve_)
    assert first - lowest > 0.02 * first


@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
def test_batches_of_an_iterable(make):
    """They are read once in an epoch, and not for this; an iterator that ends is reported as before."""
    parts = [(X[first::3], LABEL[first::3]) for first in range(3)]
    (message,) = said(OnnxSGDClassifier(**TINY, classes=[0, 1]), make(parts))
    assert ("The objective of all 6 epochs is 0.693147." if make is list else "an iterator") in message
    if make is list:
        model = OnnxSGDClassifier(**TINY, classes=[0, 1], early_stopping=True)
        settled = LogisticRegression().fit(X, LABEL)
        (message,) = said(model.set_params(model=settled, classes=None), parts, X_val=X, y_val=LABEL)
        assert "No epoch scored better" in message


def test_a_fit_that_reaches_max_iter_has_one_warning():
    (message,) = said(OnnxSGDRegressor(**TINY, max_iter=3), X_REAL, REAL)
    assert "Maximum number of iteration" in message


def test_partial_fit_says_nothing():
    model = OnnxSGDRegressor(**TINY)
    for _ in range(3):
        model.partial_fit(X_REAL, REAL)


def test_good_weights_that_stay_are_reported_as_with_auto():
    """The first weights may be the best, as the message says."""
    fitted = OnnxSGDRegressor(random_state=0, tol=1e-6).fit(X_REAL, REAL)
    model = fitted.set_params(warm_start=True, learning_rate="constant", eta0=1e-3, tol=1e-3)
    (message,) = said(model, X_REAL, REAL)
    assert "Unless the first weights are the best" in message


@pytest.fixture
def n_passes(monkeypatch):
    """Count the passes over all data for an objective."""
    found, mean_loss = [], Program.mean_loss

    def counted(*args):
        found.append(None)
        return mean_loss(*args)

    monkeypatch.setattr(Program, "mean_loss", counted)
    return found


@pytest.mark.parametrize(
    "estimator",
    [
        OnnxSGDClassifier(learning_rate="constant", random_state=0),
        OnnxSGDClassifier(learning_rate="invscaling", eta0=0.1, random_state=0),
        OnnxSGDClassifier(learning_rate="adaptive", early_stopping=True, random_state=0),
        OnnxSGDClassifier(learning_rate="constant", max_iter=2, tol=None),
        OnnxSGDClassifier(learning_rate="constant", eta0=1e-9, max_iter=1, tol=None),
    ],
    ids=str,
)
def test_ordinary_fits_make_no_further_pass(estimator, n_passes):
    assert said(estimator, X, LABEL) == []
    assert not n_passes


def test_all_that_is_learned_in_the_first_epoch_counts(n_passes):
    """Its mean loss is near that of later ones; the exact objectives tell."""
    rng = np.random.default_rng(0)
    X_many = rng.normal(size=(40_000, 2))
    y_many = X_many @ [1.0, 0.5] + rng.normal(size=40_000)
    model = OnnxSGDRegressor(learning_rate="constant", eta0=0.02, batch_size=2, random_state=0)
    assert said(model, X_many, y_many) == []
    assert model.n_iter_ == 6
    assert model.loss_curve_[-1] > 0.99 * model.loss_curve_[0]
    assert n_passes


def test_a_fit_that_continues_from_a_checkpoint_says_the_same(tmp_path):
    class Stop(Exception):
        pass

    whole = said(OnnxSGDRegressor(**TINY), X_REAL, REAL)
    model = OnnxSGDRegressor(**TINY, checkpoint=tmp_path)
    after = Checkpoints.after_epoch
    with pytest.MonkeyPatch.context() as patch:

        def stop(self, state, n_epochs, **more):
            after(self, state, n_epochs, **more)
            if n_epochs == 3:
                raise Stop

        patch.setattr(Checkpoints, "after_epoch", stop)
        with pytest.raises(Stop):
            model.fit(X_REAL, REAL)
    again = OnnxSGDRegressor(**TINY, checkpoint=tmp_path)
    assert said(again, X_REAL, REAL, resume=True) == whole
    assert len(whole) == 1


def test_networks_in_regression():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=2, random_state=0).fit(X_REAL, REAL)
    assert len(said(OnnxSGDRegressor(network, **TINY), X_REAL, REAL)) == 1
    assert said(OnnxSGDRegressor(network, **TINY | {"eta0": 0.01}), X_REAL, REAL) == []
