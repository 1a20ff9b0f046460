"""Losses of Python in training: the path of the same formula, calls, exceptions, divergence."""

import pickle
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest
from scipy import sparse
from scipy.special import expit, log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, add_loss_output, losses
from onnxsgd.exceptions import ConvergenceError, ParameterError, ParameterTypeError, UnsupportedError
from onnxsgd.testing import check_gradients

X, Y = load_diabetes(return_X_y=True)
X, Y = X / X.std(axis=0), (Y - Y.mean()) / Y.std()
WEIGHT = np.random.default_rng(0).uniform(0.5, 2.0, size=len(Y))
LABELS = np.digitize(Y, [-0.5, 0.5])


def squares(y_true, raw_prediction):
    residual = raw_prediction - y_true
    return residual**2 / 2, residual


def squares_of_samples(y_true, raw_prediction):
    values, gradient = squares(y_true, raw_prediction)
    return values.sum(axis=1), gradient


def poisson(y_true, raw_prediction):
    mean = np.exp(raw_prediction)
    return mean - y_true * raw_prediction, mean - y_true


def logistic(y_true, raw_prediction):
    return np.logaddexp(0, raw_prediction) - y_true * raw_prediction, expit(raw_prediction) - y_true


def cross_entropy(y_true, raw_prediction):
    values = -(y_true * log_softmax(raw_prediction, axis=1)).sum(axis=1, keepdims=True)
    return values, softmax(raw_prediction, axis=1) - y_true


def mlp():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return MLPRegressor(hidden_layer_sizes=(9,), max_iter=3, random_state=0).fit(X, Y)


def both(model, loss, name, y=Y, cls=OnnxSGDRegressor, data=X, weight=WEIGHT, **options):
    """Return two fits, with a callable and with the formula of that name."""
    settings = {"random_state": 0, "max_iter": 4, "tol": None} | options
    given = losses.FromCallable(*loss) if isinstance(loss, tuple) else loss
    return [cls(model, loss=each, **settings).fit(data, y, sample_weight=weight) for each in (given, name)]


NAMED = {"learning_rate": "constant", "eta0": 0.05}
WAYS = {
    "auto": {},
    "sgd": NAMED,
    "one row a batch": {"batch_size": 1, "learning_rate": "invscaling"},
    "one batch": {"batch_size": len(Y)} | NAMED,
    "many batches in a call": {"batch_size": 7, "max_iter": 12} | NAMED,
    "momentum": {"momentum": 0.9, "nesterov": True} | NAMED,
    "adam, l1": {"optimizer": "adam", "penalty": "l1", "alpha": 0.01} | NAMED,
    "average": {"average": 5} | NAMED,
    "float64": {"dtype": "float64"},
    "early stopping": {"early_stopping": True, "max_iter": 30},
    "limits": {"max_grad_norm": 0.01} | NAMED,
    "no shuffling": {"shuffle": False},
    "native": {"engine": "onnxruntime-training"} | NAMED,
}


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=pytest.mark.native) if w == "native" else w for w in WAYS]
)
@pytest.mark.parametrize("model", [None, "Ridge", "mlp"])
def test_the_path_is_that_of_the_formula(way, model):
    source = {None: None, "Ridge": Ridge().fit(X[:50], Y[:50]), "mlp": mlp()}[model]
    found, expected = both(source, (squares,), "squared_error", **WAYS[way])
    for name, array in expected.get_weights().items():
        np.testing.assert_allclose(found.get_weights()[name], array, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found.loss_curve_, expected.loss_curve_, rtol=1e-4)


NETWORKS = {
    "dropout": ("g = Dropout(h)", {"dropout": 0.5}),
    "statistics of batches": ("g = BatchNormalization(h, s, o, m, u)", {"batch_norm": "train"}),
    "frozen statistics": ("g = BatchNormalization(h, s, o, m, u)", {"batch_norm": "frozen"}),
    "accumulated gradients": ("g = Tanh(h)", {"gradient_accumulation_steps": 3}),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rates", [{}, NAMED], ids=["auto", "named"])
def test_both_passes_are_those_of_one_network(name, rates):
    """Masks, and statistics of a batch, are the same before and after the call."""
    node, options = NETWORKS[name]
    network = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 10] x) => (float[N, 1] z)'
        f"{{ l = Gemm(x, w, b) h = Relu(l) {node} z = Gemm(g, v, c) }}"
    )
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(10, 16)), "b": np.zeros(16), "v": rng.normal(size=(16, 1)), "c": [0.0]}
    if "Batch" in node:
        arrays |= {"s": np.ones(16), "o": np.zeros(16), "m": np.zeros(16), "u": np.ones(16)}
    for key, array in arrays.items():
        network.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(array), key))
    found, expected = both(network, (squares,), "squared_error", **rates | options)
    for key, array in expected.get_weights().items():
        np.testing.assert_allclose(found.get_weights()[key], array, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.loss_curve_, expected.loss_curve_, rtol=1e-3)


def test_several_targets_sparse_data_and_streams():
    y = np.c_[Y, -2 * Y, Y**2]
    found, expected = both(None, (squares_of_samples,), "squared_error", y=y)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-3, atol=1e-4)
    table = sparse.random(400, 50, 0.1, format="csr", random_state=0)
    target = table @ np.linspace(-1, 1, 50)
    found, expected = both(None, (squares,), "squared_error", y=target, data=table, weight=None, **NAMED)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-3, atol=1e-5)
    assert (
        OnnxSGDRegressor(loss=losses.FromCallable(squares), random_state=0)
        .fit(table, target)
        .score(table, target)
        > 0.9
    )
    streams = [
        OnnxSGDRegressor(loss=loss, random_state=0)
        for loss in (losses.FromCallable(squares), "squared_error")
    ]
    for start in range(0, 440, 40):
        for stream in streams:
            stream.partial_fit(X[start : start + 40], Y[start : start + 40])
    np.testing.assert_allclose(streams[0].coef_, streams[1].coef_, rtol=1e-3, atol=1e-4)


def test_links_and_classes():
    counts = np.random.default_rng(0).poisson(np.exp(Y / 2))
    found, expected = both(None, (poisson, "non-negative", "log"), "poisson", y=counts, **NAMED)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-3)
    with pytest.raises(ParameterError, match=r"y holds -1: the loss FromCallable"):
        found.fit(X, counts - 1)
    loss = losses.FromCallable(logistic, targets="indicator", probabilities="sigmoid")
    found, expected = both(None, loss, "log_loss", y=Y > 0, cls=OnnxSGDClassifier, **NAMED)
    np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X), rtol=1e-3)
    loss = losses.FromCallable(cross_entropy, targets="indicator", probabilities="softmax")
    source = LogisticRegression().fit(X[:60], LABELS[:60])
    found, expected = both(source, loss, losses.CrossEntropy(), y=LABELS, cls=OnnxSGDClassifier)
    np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X), rtol=1e-3, atol=1e-4)


def test_the_function_gets_the_rows_of_a_batch_in_the_type_of_training():
    seen = []

    def spy(y_true, raw_prediction):
        seen.append((y_true.copy(), raw_prediction.dtype, raw_prediction.shape))
        return squares(y_true, raw_prediction)

    settings = {"shuffle": False, "max_iter": 1, "tol": None, "batch_size": 100} | NAMED
    OnnxSGDRegressor(loss=losses.FromCallable(spy), **settings).fit(X, Y)
    # the last batch is not filled up
    assert [shape for *_, shape in seen] == [(100, 1)] * 4 + [(42, 1)]
    assert {dtype for _, dtype, _ in seen} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(np.concatenate([y for y, *_ in seen])[:, 0], Y.astype(np.float32))


class Failing:
    """Fails in a call of some number."""

    def __init__(self, at, error=None, returned=None):
        self.at, self.error, self.returned, self.calls = at, error, returned, 0

    def __call__(self, y_true, raw_prediction):
        self.calls += 1
        if self.calls != self.at:
            return squares(y_true, raw_prediction)
        if self.error is not None:
            raise self.error
        return self.returned(y_true, raw_prediction)


@pytest.mark.parametrize("batch_size", [1, 50])
def test_an_exception_ends_the_fit_at_the_weights_before(batch_size):
    settings = {"shuffle": False, "max_iter": 1, "tol": None, "batch_size": batch_size} | NAMED
    learner = OnnxSGDRegressor(loss=losses.FromCallable(Failing(4, KeyError("no tariff"))), **settings)
    with pytest.raises(KeyError, match="no tariff"):
        learner.fit(X, Y)
    assert learner.t_ == 3
    rows = slice(0, 3 * batch_size)
    expected = OnnxSGDRegressor(**settings).fit(X[rows], Y[rows])
    np.testing.assert_allclose(learner.coef_, expected.coef_, rtol=1e-4, atol=1e-6)
    # training continues from there
    assert learner.partial_fit(X, Y).t_ == 3 + -(-len(Y) // batch_size)


def test_an_exception_before_the_first_update_changes_nothing():
    learner = OnnxSGDRegressor(loss=losses.FromCallable(Failing(1, ValueError("closed"))))
    with pytest.raises(ValueError, match="closed"):
        learner.fit(X, Y)
    assert not hasattr(learner, "coef_")
    assert not learner.__sklearn_is_fitted__()


WRONG = {
    "no tuple": (lambda y, z: z - y, r"returned ndarray: it must return a tuple of losses and"),
    "three": (lambda y, z: (z, z, z), "returned tuple: it must return a tuple of losses"),
    "a mean": (lambda y, z: (np.mean(z), z), r"losses of shape \(\): it must be \(32,\) or \(32, 1\)"),
    "a gradient of samples": (lambda y, z: (z, z[:, 0]), r"a gradient of shape \(32,\): it must be \(32, 1"),
    "NaN losses": (lambda y, z: (z * np.nan, z), r"losses that are not finite, such as nan for y_true=\["),
    "NaN gradient": (
        lambda y, z: (z, np.where(np.arange(32)[:, None] == 5, np.nan, z)),
        r"gradients that are not finite, such as \[nan\] for y_true=",
    ),
    "no numbers": (lambda y, z: ("a", z), r"FromCallable.* arrays of numbers \(could not convert string"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_results_are_refused(case):
    function, message = WRONG[case]
    learner = OnnxSGDRegressor(loss=losses.FromCallable(function), **NAMED)
    with pytest.raises(ValueError, match=message):
        learner.fit(X, Y)


def test_divergence_is_that_of_formulas():
    steep = {"learning_rate": "constant", "eta0": 1e6, "max_iter": 50, "random_state": 0}
    learner = OnnxSGDRegressor(loss=losses.FromCallable(squares), **steep)
    with pytest.raises(ConvergenceError, match="no longer finite at update"), np.errstate(all="ignore"):
        learner.fit(X, Y)
    assert np.isfinite(learner.coef_).all()
    assert learner.t_ > 0
    # an infinite loss is divergence too, which "auto" undoes
    wall = losses.FromCallable(lambda y, z: (np.where(abs(z) > 4, np.inf, (z - y) ** 2 / 2), z - y))
    assert OnnxSGDRegressor(loss=wall, random_state=0).fit(X, Y).score(X, Y) > 0.45


def test_graphs_of_the_loss_are_refused(tmp_path):
    loss = losses.FromCallable(squares)
    learner = OnnxSGDRegressor(loss=loss, random_state=0).fit(X, Y)
    message = r"FromCallable\(function=.*squares.*is computed by Python: without a formula"
    for act in (
        lambda: learner.export_training_step(tmp_path / "step.onnx"),
        lambda: add_loss_output(learner.to_onnx(), loss),
        lambda: check_gradients(loss),
    ):
        with pytest.raises(UnsupportedError, match=message):
            act()
    assert not list(tmp_path.iterdir())


def test_parameters_pickles_and_searches():
    with pytest.raises(
        ParameterTypeError, match=r"function='squares' is not accepted: it must be a callable"
    ):
        losses.FromCallable("squares")
    with pytest.raises(ParameterError, match=r"link='normal' is not accepted: it must be one of"):
        losses.FromCallable(squares, link="normal")
    loss = losses.FromCallable(squares)
    assert pickle.loads(pickle.dumps(loss)) == loss
    assert hash(losses.FromCallable(squares)) == hash(loss)
    assert losses.FromCallable(poisson) != loss
    fitted = OnnxSGDRegressor(loss=loss, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(losses.FromCallable(lambda y, z: squares(y, z)))
    grid = {"loss": [loss, "huber", losses.FromCallable(squares_of_samples)]}
    search = GridSearchCV(
        OnnxSGDRegressor(random_state=0, max_iter=5, tol=None), grid, cv=2, error_score="raise"
    )
    assert search.fit(X, Y).best_score_ > 0.3
    assert clone(search.best_estimator_).loss == search.best_estimator_.loss
