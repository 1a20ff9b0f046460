"""What users of the estimators rely on, beside the numbers of the trajectories."""

import pickle
import re
import warnings

import numpy as np
import onnxruntime
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses, schedules
from onnxsgd.exceptions import ConvergenceError, OnnxSGDError


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


def run(model, X):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: X})


def small(cls, **more):
    return cls(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


# Training.


def test_the_default_regressor_reaches_the_least_squares_solution(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(penalty=None, learning_rate="adaptive", tol=1e-6, random_state=0).fit(X, y)
    exact = np.linalg.lstsq(np.c_[X, np.ones(len(X))], y, rcond=None)[0]
    residual = lambda w: np.mean((np.c_[X, np.ones(len(X))] @ w - y) ** 2)  # noqa: E731
    assert residual(np.r_[model.coef_, model.intercept_]) <= 1.01 * residual(exact)


@pytest.mark.parametrize("loss", losses.REGRESSION_LOSSES)
def test_every_regression_loss_falls(diabetes, loss):
    model = small(OnnxSGDRegressor, loss=loss, max_iter=20, eta0=0.1).fit(*diabetes)
    assert model.loss_curve_[-1] < 0.9 * model.loss_curve_[0]


@pytest.mark.parametrize("loss", losses.CLASSIFICATION_LOSSES)
@pytest.mark.parametrize("data", ["iris", "cancer"])
def test_every_classification_loss_learns(request, data, loss):
    X, y = request.getfixturevalue(data)
    model = small(OnnxSGDClassifier, loss=loss, max_iter=60, eta0=0.1).fit(X, y)
    assert model.score(X, y) > 0.7


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_trains_an_mlp_further(diabetes, optimizer):
    X, y = diabetes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mlp = MLPRegressor(hidden_layer_sizes=(20,), max_iter=3, random_state=0).fit(X, y)
    model = small(OnnxSGDRegressor, model=mlp, optimizer=optimizer, max_iter=30, eta0=0.005).fit(X, y)
    assert model.score(X, y) > mlp.score(X, y) + 0.1


def test_quantile_loss_predicts_the_quantile(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(
        loss=losses.Quantile(0.9), penalty=None, learning_rate="adaptive", eta0=0.05, tol=1e-4, random_state=0
    ).fit(X, y)
    assert np.mean(y <= model.predict(X)) == pytest.approx(0.9, abs=0.03)


def test_a_loss_without_gradient_is_differentiated_by_the_engine(diabetes):
    class LogCosh(losses.Loss):
        def value(self, op, y_true, raw_prediction):
            residual = op.Sub(raw_prediction, y_true)
            return op.Log(op.Mul(op.Add(op.Exp(residual), op.Exp(op.Neg(residual))), 0.5))

    class LogCoshWithGradient(LogCosh):
        def gradient(self, op, y_true, raw_prediction):
            return op.Tanh(op.Sub(raw_prediction, y_true))

    by_engine = small(OnnxSGDRegressor, loss=LogCosh()).fit(*diabetes)
    by_hand = small(OnnxSGDRegressor, loss=LogCoshWithGradient()).fit(*diabetes)
    np.testing.assert_allclose(by_engine.coef_, by_hand.coef_, rtol=1e-4, atol=1e-6)
    assert by_engine.loss_curve_[-1] < by_engine.loss_curve_[0]


def test_a_callable_is_a_schedule(diabetes):
    X, y = diabetes
    a = small(OnnxSGDRegressor, learning_rate=lambda t: 0.01 / t**0.25).fit(X, y)
    b = small(OnnxSGDRegressor, learning_rate=schedules.InvScaling(0.01, 0.25)).fit(X, y)
    np.testing.assert_array_equal(a.coef_, b.coef_)


def test_scores_of_ten_thousand_give_no_nan():
    X = np.array([[-1e4], [1e4]] * 8, dtype=np.float32)
    y = np.array([1, 0] * 8)
    for loss in losses.CLASSIFICATION_LOSSES:
        model = small(OnnxSGDClassifier, loss=loss, learning_rate="constant", eta0=1e-9, max_iter=1)
        model.fit(X, y).set_weights({"coef": np.array([[1.0]])})
        raw = model.decision_function(X)
        assert np.abs(raw).max() == pytest.approx(1e4, rel=1e-3)
        model.partial_fit(X, y)
        assert np.isfinite(model.loss_curve_).all()
        if hasattr(model, "predict_proba"):
            np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1, rtol=1e-6)


# Starting, going on.


def test_each_fit_starts_from_the_weights_of_the_model(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, model=Ridge().fit(X, y))
    first = model.fit(X, y).coef_
    np.testing.assert_array_equal(model.fit(X, y).coef_, first)


def test_warm_start_goes_on_from_the_present_weights(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, warm_start=True, learning_rate="constant", shuffle=False)
    twice = model.fit(X, y).fit(X, y).coef_
    once = small(OnnxSGDRegressor, learning_rate="constant", shuffle=False, max_iter=10).fit(X, y).coef_
    np.testing.assert_array_equal(twice, once)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_partial_fit_once_an_epoch_is_fit(diabetes, optimizer):
    X, y = diabetes
    settings = dict(optimizer=optimizer, shuffle=False, momentum=0.9 if optimizer == "sgd" else 0.0)
    whole = small(OnnxSGDRegressor, **settings).fit(X, y)
    parts = small(OnnxSGDRegressor, **settings)
    for _ in range(5):
        parts.partial_fit(X, y)
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    assert parts.t_ == whole.t_ == 5 * 14
    assert parts.n_iter_ == whole.n_iter_ == 5


def test_partial_fit_needs_all_classes_at_first(iris):
    X, y = iris
    model = small(OnnxSGDClassifier).partial_fit(X[:60], y[:60], classes=[0, 1, 2])
    model.partial_fit(X[60:], y[60:])
    assert model.predict_proba(X).shape == (150, 3)
    with pytest.raises(ValueError, match="not the same as on the first call"):
        model.partial_fit(X, y, classes=[0, 1])


def test_weights_of_zero_are_no_rows_and_weights_of_two_are_two_rows(diabetes):
    X, y = diabetes
    weight = np.random.RandomState(0).randint(0, 3, len(X)).astype(float)
    settings = dict(batch_size=10_000, max_iter=30, learning_rate="constant", eta0=0.1, shuffle=False)
    weighted = small(OnnxSGDRegressor, **settings).fit(X, y, sample_weight=weight)
    rows = np.repeat(np.arange(len(X)), weight.astype(int))
    repeated = small(OnnxSGDRegressor, **settings).fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-5, atol=1e-6)


def test_the_last_short_batch_counts(diabetes):
    X, y = diabetes[0][:33], diabetes[1][:33]
    settings = dict(max_iter=1, shuffle=False, learning_rate="constant", penalty=None, eta0=0.1)
    model = small(OnnxSGDRegressor, batch_size=32, **settings).fit(X, y)
    assert model.t_ == 2
    w = np.zeros(11)
    Z = np.c_[X, np.ones(33)].astype(np.float64)
    for rows in (slice(0, 32), slice(32, 33)):
        w -= 0.1 * Z[rows].T @ (Z[rows] @ w - y[rows]) / len(Z[rows])
    np.testing.assert_allclose(np.r_[model.coef_, model.intercept_], w, rtol=1e-5, atol=1e-6)


def test_early_stopping_ends_with_the_weights_that_scored_best(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(
        learning_rate="constant", eta0=0.15, early_stopping=True, batch_size=4, random_state=0
    ).fit(X[:300], y[:300], X_val=X[300:], y_val=y[300:])
    assert model.score(X[300:], y[300:]) == pytest.approx(max(model.validation_scores_), rel=1e-6)
    assert model.n_iter_ < 1000
    assert max(model.validation_scores_) > model.validation_scores_[-1]


def test_early_stopping_holds_out_a_share(iris):
    X, y = iris
    model = small(OnnxSGDClassifier, early_stopping=True, validation_fraction=0.2, batch_size=10).fit(X, y)
    assert model.t_ == 5 * 12
    assert len(model.validation_scores_) == 5


# Trouble.


def test_divergence_says_where_and_keeps_the_last_finite_weights(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(learning_rate="constant", eta0=50.0, random_state=0)
    with pytest.raises(
        ConvergenceError, match=r"update \d+, with learning rate 50.*last finite weights"
    ) as caught:
        model.fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert np.abs(model.coef_).max() > 1e3
    failed, kept = (int(word) for word in re.findall(r"update (\d+)", str(caught.value)))
    assert model.t_ == kept < failed
    assert np.isfinite(model.predict(X[:1])).all()


def test_missing_values_are_for_models_that_fill_them(diabetes):
    X, y = diabetes
    gaps = X.copy()
    gaps[::5, 3] = np.nan
    imputing = make_pipeline(SimpleImputer(), Ridge()).fit(gaps, y)
    model = small(OnnxSGDRegressor, model=FrozenEstimator(imputing)).fit(gaps, y)
    assert np.isfinite(model.predict(gaps)).all()
    for other in (None, Ridge().fit(X, y)):
        with pytest.raises(ValueError, match="Input X contains NaN"):
            small(OnnxSGDRegressor, model=other).fit(gaps, y)
        with pytest.raises(ValueError, match="Input X contains NaN"):
            small(OnnxSGDRegressor, model=other).fit(X, y).predict(gaps)
    infinite = np.where(np.isnan(gaps), np.inf, gaps)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.predict(infinite)


def test_an_interrupt_keeps_what_was_learned(diabetes, monkeypatch):
    X, y = diabetes
    calls = []

    def interrupted(source, rows, buffer):
        calls.append(rows)
        if len(calls) == 2 * 19 + 1:  # features and targets of 19 batches are through
            raise KeyboardInterrupt
        np.take(source, rows, axis=0, out=buffer)

    monkeypatch.setattr("onnxsgd.engine.batches._take", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = OnnxSGDRegressor(max_iter=10).fit(X, y)
    assert model.t_ == 19
    assert np.abs(model.coef_).max() > 0
    model.partial_fit(X, y)
    assert model.t_ == 19 + 14


def test_stopping_early_warns_in_the_words_of_scikit_learn(diabetes):
    with pytest.warns(ConvergenceWarning, match="Maximum number of iteration reached before convergence"):
        OnnxSGDRegressor(max_iter=1).fit(*diabetes)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"loss": "hinge"}, "loss"),
        ({"penalty": "l3"}, "penalty"),
        ({"alpha": -1.0}, "alpha"),
        ({"eta0": 0.0}, "eta0"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"optimizer": "adam", "momentum": 0.5}, "no effect"),
        ({"nesterov": True}, "nesterov"),
        ({"learning_rate": "cosine"}, "learning_rate"),
        ({"learning_rate": "optimal", "alpha": 0.0}, "alpha must be > 0"),
        ({"batch_size": 0}, "batch_size"),
        ({"engine": "tensorflow"}, "engine"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"device": "cuda"}, "device='cuda'"),
        ({"head": "mlp"}, "head"),
        ({"head": "linear"}, "head='linear' needs a model"),
        ({"output": "x"}, "output='x' needs a model"),
        ({"model": 3.0}, "model=3.0"),
        ({"model": "no/such/file.onnx"}, "no/such/file.onnx"),
        ({"trainable": ["nothing"]}, "nothing"),
    ],
)
def test_bad_parameters_are_refused_by_name(diabetes, params, message):
    with pytest.raises((OnnxSGDError, OSError), match=message):
        OnnxSGDRegressor(**params).fit(*diabetes)


def test_a_width_that_does_not_fit_names_both_and_the_way_out(iris, diabetes):
    mlp = MLPClassifier((5,), solver="lbfgs", max_iter=2000, random_state=0).fit(*iris)
    X, y = iris
    y4 = np.where(np.arange(len(y)) % 7 == 0, 3, y)
    with pytest.raises(ValueError, match=r"not among the classes|classes=.*output=.*head="):
        OnnxSGDClassifier(mlp).fit(X, y4)
    regressor = MLPRegressor(hidden_layer_sizes=(5,), solver="lbfgs", max_iter=2000, random_state=0)
    regressor.fit(*diabetes)
    with pytest.raises(ValueError, match=r"1 output.*y has 2.*output=.*head=.*model="):
        OnnxSGDRegressor(regressor).fit(diabetes[0], np.c_[diabetes[1], diabetes[1]])


def test_not_fitted():
    for method in ("predict", "to_onnx", "get_weights"):
        with pytest.raises(NotFittedError):
            getattr(OnnxSGDRegressor(), method)(*([np.zeros((1, 2))] if method == "predict" else []))
    assert not hasattr(OnnxSGDRegressor(), "onnx_model_")


# What comes out.


@pytest.mark.parametrize("labels", [["a", "b", "c"], [-5, 0, 7], [1.0, 2.0, 3.0], [True, False]])
def test_labels_of_any_type_come_back(iris, labels):
    X, y = iris
    names = np.array(labels)[y % len(labels)]
    model = small(OnnxSGDClassifier, max_iter=30, eta0=0.1).fit(X, names)
    predicted = model.predict(X)
    assert predicted.dtype == names.dtype
    np.testing.assert_array_equal(model.classes_, np.unique(names))
    np.testing.assert_array_equal(run(model.to_onnx(), X)[0], predicted)


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "modified_huber"])
@pytest.mark.parametrize("data", ["iris", "cancer"])
def test_the_file_predicts_what_the_estimator_does(request, data, loss):
    X, y = request.getfixturevalue(data)
    model = small(OnnxSGDClassifier, loss=loss).fit(X, y)
    label, second = run(model.to_onnx(), X)
    np.testing.assert_array_equal(label, model.predict(X))
    wanted = model.decision_function(X) if loss == "hinge" else model.predict_proba(X)
    np.testing.assert_allclose(second.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("data", ["iris", "cancer"])
def test_probabilities_in_the_file_are_those_of_the_loss_not_of_the_model_before(request, data):
    X, y = request.getfixturevalue(data)
    model = small(OnnxSGDClassifier, model=LogisticRegression().fit(X, y), loss="modified_huber").fit(X, y)
    after = model.to_onnx()
    assert [value.name for value in after.graph.output] == ["label", "probabilities"]
    label, probabilities = run(after, X)
    np.testing.assert_array_equal(label, model.predict(X))
    np.testing.assert_allclose(probabilities, model.predict_proba(X), rtol=1e-5, atol=1e-6)


def test_float64_in_gives_float64_out(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor).fit(X, y)
    assert model.predict(X).dtype == np.float32
    assert model.predict(X.astype(np.float64)).dtype == np.float64


def test_several_outputs(diabetes):
    X, y = diabetes
    Y = np.c_[y, -2 * y]
    model = small(OnnxSGDRegressor, max_iter=30).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    assert model.coef_.shape == (2, 10)
    assert model.score(X, Y) > 0.4
    alone = small(OnnxSGDRegressor, max_iter=30).fit(X, y)
    np.testing.assert_allclose(model.coef_[0], alone.coef_, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_sparse_data_give_what_dense_data_give(iris, form):
    X, y = iris
    X = np.where(np.abs(X) < 0.5, 0, X)
    dense = small(OnnxSGDClassifier).fit(X, y)
    thin = small(OnnxSGDClassifier).fit(form(X), y)
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(thin.predict_proba(form(X)), dense.predict_proba(X), rtol=1e-6)


def test_pickle_predicts_the_same_and_goes_on(iris):
    X, y = iris
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    model = small(OnnxSGDClassifier, model=pipeline).fit(X, y)
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(
        other.partial_fit(X, y).predict_proba(X), model.partial_fit(X, y).predict_proba(X)
    )


def test_weights_can_be_read_and_set(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor).fit(X, y)
    weights = model.get_weights()
    before = model.predict(X)
    model.set_weights({name: 2 * array for name, array in weights.items()})
    np.testing.assert_allclose(model.predict(X), 2 * before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.coef_, 2 * weights["coef"].ravel(), rtol=1e-7)
    for bad in [{"nothing": 1.0}, {"coef": np.zeros(3)}, {"coef": np.full((10, 1), np.nan)}]:
        with pytest.raises(ValueError, match=r"nothing|shape|finite"):
            model.set_weights(bad)
    with pytest.raises(ValueError, match="nothing"):
        model.set_weights({"coef": np.zeros((10, 1)), "nothing": 1.0})
    assert np.abs(model.get_weights()["coef"]).max() > 0


def test_clone_keeps_parameters_and_nothing_else(iris):
    model = small(OnnxSGDClassifier, eta0=0.3).fit(*iris)
    other = clone(model)
    assert other.get_params() == model.get_params()
    assert not hasattr(other, "classes_")
