"""Behaviour of the estimators beside the numbers of their trajectories."""

import pickle
import re
import warnings

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses, optimizers, schedules
from onnxsgd.exceptions import ConvergenceError, NotTrainableError, OnnxSGDError, ParameterError
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.penalties import Penalty
from onnxsgd.runtime.cache import cache


def run(model, X):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: X})


def small(cls, **more):
    return cls(**{"learning_rate": "invscaling", "max_iter": 5, "tol": None, "random_state": 0} | more)


# Training.


def test_the_default_regressor_reaches_the_least_squares_solution(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(penalty=None, learning_rate="adaptive", tol=1e-6, random_state=0).fit(X, y)
    exact = np.linalg.lstsq(np.c_[X, np.ones(len(X))], y, rcond=None)[0]
    residual = lambda w: np.mean((np.c_[X, np.ones(len(X))] @ w - y) ** 2)  # noqa: E731
    assert residual(np.r_[model.coef_, model.intercept_]) <= 1.01 * residual(exact)


@pytest.mark.parametrize("loss", losses.REGRESSION_LOSSES)
def test_every_regression_loss_falls(diabetes, loss):
    X, y = diabetes
    # a logarithmic link takes positive targets
    y = y if losses.REGRESSION_LOSSES[loss].link == "identity" else np.exp(y / y.std())
    model = small(OnnxSGDRegressor, loss=loss, max_iter=20, eta0=0.1).fit(X, y)
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
        # scores of two classes that are compared with each other differ by 10,000 too
        columns = [[-0.5, 0.5]] if losses.CLASSIFICATION_LOSSES[loss].is_joint else [[1.0]]
        model.fit(X, y).set_weights({"coef": np.array(columns)})
        raw = model.decision_function(X)
        assert np.abs(raw).max() == pytest.approx(1e4, rel=1e-3)
        model.partial_fit(X, y)
        assert np.isfinite(model.loss_curve_).all()
        if hasattr(model, "predict_proba"):
            np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1, rtol=1e-6)


# Start and continuation.


def test_each_fit_starts_from_the_weights_of_the_model(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, model=Ridge().fit(X, y))
    first = model.fit(X, y).coef_
    np.testing.assert_array_equal(model.fit(X, y).coef_, first)


def test_warm_start_continues_from_the_present_weights(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, warm_start=True, learning_rate="constant", shuffle=False)
    twice = model.fit(X, y).fit(X, y).coef_
    once = small(OnnxSGDRegressor, learning_rate="constant", shuffle=False, max_iter=10).fit(X, y).coef_
    np.testing.assert_array_equal(twice, once)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_partial_fit_once_an_epoch_is_fit(diabetes, optimizer):
    X, y = diabetes
    settings = dict(
        learning_rate="invscaling",
        optimizer=optimizer,
        shuffle=False,
        momentum=0.9 if optimizer == "sgd" else 0.0,
    )
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


def test_rows_of_weight_zero_are_dropped_and_weight_two_is_two_rows(diabetes):
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


@pytest.mark.parametrize("learning_rate", ["invscaling", "auto"])
def test_an_interrupt_keeps_the_trained_weights(diabetes, learning_rate, monkeypatch):
    X, y = diabetes
    # its loop over many updates stays bound, and takes no rows in a fit that does not use it
    OnnxSGDRegressor(random_state=0).fit(X, y)
    calls, t = [], 19

    def interrupted(source, rows, buffer):
        calls.append(rows)
        if len(calls) == 2 * t + 1:  # features and targets of so many batches are through
            raise KeyboardInterrupt
        np.take(source, rows, axis=0, out=buffer)

    monkeypatch.setattr("onnxsgd.engine.step.batches._take", interrupted)
    # one batch after another, so that updates come between
    monkeypatch.setattr("onnxsgd.engine.step.single_step._GATHERED_BYTES", 0)
    with pytest.warns(UserWarning, match="interrupted"):
        # of some orders the first epoch is the best: "auto" then restores its weights
        model = OnnxSGDRegressor(max_iter=10, learning_rate=learning_rate, random_state=0).fit(X, y)
    assert model.t_ == t
    assert model.coef_.any()
    assert len(model.loss_curve_) == len(model.learning_rates_) == model.n_iter_ == 1
    model.partial_fit(X, y)
    assert model.t_ == t + 14


def test_an_interrupt_before_the_first_update_changes_nothing(diabetes, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("onnxsgd.training.program.Program.mean_loss", interrupted)
        model = OnnxSGDRegressor(max_iter=10)
        before = dict(vars(model))
        with pytest.raises(KeyboardInterrupt):
            model.fit(*diabetes)
    assert vars(model) == before
    with pytest.raises(NotFittedError):
        model.predict(diabetes[0])
    assert model.partial_fit(*diabetes).t_ == 14


def test_stopping_early_warns_in_the_words_of_scikit_learn(diabetes):
    with pytest.warns(ConvergenceWarning, match="Maximum number of iteration reached before convergence"):
        OnnxSGDRegressor(max_iter=1).fit(*diabetes)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"loss": "hinge"}, "loss"),
        ({"penalty": "l3"}, "penalty"),
        ({"alpha": -1.0}, "alpha"),
        ({"learning_rate": "invscaling", "eta0": 0.0}, "eta0"),
        ({"learning_rate": "invscaling", "optimizer": "lions"}, "optimizer"),
        ({"learning_rate": "invscaling", "optimizer": "adam", "momentum": 0.5}, "no effect"),
        ({"learning_rate": "invscaling", "nesterov": True}, "nesterov"),
        (
            {"learning_rate": schedules.Step(0.1), "eta0": 0.2},
            r"eta0=0\.2 has no effect on learning_rate=Step",
        ),
        ({"learning_rate": lambda t: 0.1, "eta0": 0.2}, r"eta0=0\.2 has no effect"),
        (
            {"learning_rate": schedules.WarmUp(schedules.Step(0.1)), "eta0": 0.2},
            r"eta0=0\.2 has no effect on .*WarmUp",
        ),
        ({"model": "huber"}, "model='huber' is the name of a loss: give it as loss='huber'"),
        ({"learning_rate": "cosin"}, r"learning_rate.*Got 'cosin' instead\. Did you mean 'cosine'\?$"),
        ({"learning_rate": "invscaling", "optimizer": "SGD"}, r"Got 'SGD' instead\. Did you mean 'sgd'\?$"),
        ({"penalty": {"coef": "Group_Lasso"}}, r"'coef'\]='Group_Lasso' is .*Did you mean 'group_lasso'\?$"),
        ({"learning_rate": "?"}, r"Got '\?' instead\.$"),
        ({"eta0": 1e31}, r"eta0.* float in the range \(0.0, 1e\+30\]"),
        ({"max_grad_value": 1e31}, r"max_grad_value.* float in the range \(0.0, 1e\+30\]"),
        ({"epsilon": 1e19}, r"epsilon.* float in the range \[0.0, 1e\+18\]"),
        ({"trainable": np.array(1)}, r"trainable=array\(1\) is not accepted: it has no axis"),
        ({"alpha": 1e31}, r"alpha.* float in the range \[0.0, 1e\+30\]"),
        ({"learning_rate_multipliers": losses.Huber}, r"it is a class\. Give an object, Huber\(\.\.\.\)"),
        ({"loss": losses.Huber}, r"loss=.*it is a class\. Give an object, Huber\(\.\.\.\)\.$"),
        ({"optimizer": optimizers.Adam}, r"it is a class\. Give an object, Adam\(\.\.\.\)\.$"),
        ({"learning_rate": schedules.WarmUp("steps")}, r"'steps' is not accepted.*Did you mean 'step'\?"),
        ({"learning_rate": schedules.WarmUp("auto")}, r"WarmUp\(.*'auto' finds its rates itself"),
        ({"learning_rate": "optimal", "alpha": 0.0}, "alpha must be > 0"),
        ({"batch_size": 0}, "batch_size"),
        ({"engine": "tensorflow"}, "engine"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"device": "cuda:99"}, "device='cuda"),
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


# Results.


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
def test_the_file_and_the_estimator_predict_the_same(request, data, loss):
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
def test_sparse_and_dense_data_give_the_same(iris, form):
    X, y = iris
    X = np.where(np.abs(X) < 0.5, 0, X)
    dense = small(OnnxSGDClassifier).fit(X, y)
    thin = small(OnnxSGDClassifier).fit(form(X), y)
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(thin.predict_proba(form(X)), dense.predict_proba(X), rtol=1e-6)


def test_pickle_predicts_the_same_and_continues_training(iris):
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


@pytest.mark.parametrize(("name", "good", "bad"), [("max_iter", 1, 1.0), ("alpha", 0.5, "0.5")])
def test_a_value_accepted_before_does_not_hide_a_bad_one(diabetes, name, good, bad):
    X, y = diabetes
    small(OnnxSGDRegressor, **{name: good}).fit(X, y)
    for _ in range(2):
        with pytest.raises(ParameterError, match=f"The '{name}' parameter of OnnxSGDRegressor must be"):
            small(OnnxSGDRegressor, **{name: bad}).fit(X, y)


def test_a_subclass_has_its_own_constraints(diabetes):
    X, y = diabetes

    class Patient(OnnxSGDRegressor):
        _parameter_constraints = OnnxSGDRegressor._parameter_constraints | {"max_iter": [None]}

    small(OnnxSGDRegressor).fit(X, y)
    with pytest.raises(ParameterError, match="The 'max_iter' parameter of Patient must be None"):
        small(Patient).fit(X, y)


def test_plain_arrays_are_compared_with_the_columns_of_the_training_data(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor).fit(X, y)
    assert model.n_features_in_ == X.shape[1]
    with pytest.raises(ValueError, match="expecting 10 features"):
        model.predict(np.ascontiguousarray(X[:, :-1]))
    with pytest.raises(ValueError, match="contains infinity"):
        model.predict(np.full_like(X, np.inf))
    frames = pytest.importorskip("pandas")
    model.fit(frames.DataFrame(X).add_prefix("x"), y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)
    assert not hasattr(model.fit(X, y), "feature_names_in_")


def test_parameters_are_read_without_the_signature(monkeypatch):
    """Reading it takes longer than a small fit."""
    model = OnnxSGDRegressor(alpha=0.5)
    expected = model.get_params()
    monkeypatch.setattr("inspect.signature", None)
    assert model.get_params() == expected
    assert clone(model.set_params(max_iter=7)).max_iter == 7


def test_estimators_of_one_graph_share_a_plan_while_their_parameters_are_equal(diabetes):
    """A plan takes a tenth of a small fit; another value of any type must not be taken for the same."""
    X, y = diabetes[0][:64], diabetes[1][:64]

    def plan(**parameters):
        return OnnxSGDRegressor(random_state=0, **parameters).partial_fit(X, y)._known_plan[1]

    first = plan()
    assert plan() is first
    for parameters in (
        {"alpha": 0.5}, {"penalty": None}, {"loss": "huber"}, {"batch_size": 4}, {"n_threads": 1},
        {"shuffle": False}, {"average": True}, {"average": 1}, {"learning_rate": "constant"},
        {"dtype": "float64"},
    ):  # fmt: skip
        other = plan(**parameters)
        assert other is not first
        assert plan(**parameters) is other
        fresh = OnnxSGDRegressor(random_state=0, **parameters)
        found = fresh.partial_fit(X, y).coef_
        fresh._learner.plans.clear()
        alone = OnnxSGDRegressor(random_state=0, **parameters).partial_fit(X, y)
        np.testing.assert_array_equal(found, alone.coef_)
    # an object may be changed in place
    penalty = Penalty(l2=0.1)
    objects = [OnnxSGDRegressor(penalty=penalty).partial_fit(X, y) for _ in range(2)]
    assert objects[0]._known_plan is objects[1]._known_plan is None
    # the plan of a fit is not that of its parts
    fitted = OnnxSGDRegressor(random_state=0, max_iter=2, tol=None).fit(X, y).partial_fit(X, y)
    assert fitted._known_plan[1].recipe.in_parts


def test_plans_are_shared_after_many_settings(diabetes):
    """A table of plans that was full took no further one, for as long as the process lived."""
    X, y = diabetes[0][:16], diabetes[1][:16]
    alphas = np.linspace(0.1, 0.2, 40).tolist()
    models = [OnnxSGDRegressor(alpha=alpha, random_state=0).partial_fit(X, y) for alpha in alphas]
    again = OnnxSGDRegressor(alpha=alphas[-1], random_state=0).partial_fit(X, y)
    assert again._known_plan[1] is models[-1]._known_plan[1]
    assert len(again._learner.plans) <= 32


@pytest.mark.parametrize("model", [None, Ridge(), make_pipeline(StandardScaler(), Ridge())], ids=str)
def test_frames_whose_numbers_are_objects(diabetes, model):
    """As after a transposition, or rows that were joined; scikit-learn takes them."""
    X, y = pd.DataFrame(diabetes[0]).astype(np.float64).add_prefix("x"), diabetes[1]
    objects = X.astype({"x1": object, "x3": object})
    rate = {"learning_rate": "invscaling", "max_iter": 3, "tol": None, "random_state": 0}
    fitted = OnnxSGDRegressor(model, **rate).fit(objects, y)
    expected = OnnxSGDRegressor(model, **rate).fit(X, y)
    np.testing.assert_array_equal(fitted.predict(objects), expected.predict(X))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_strings_are_named(diabetes, library):
    frame = pd.DataFrame(diabetes[0]).add_prefix("x").assign(town="a")
    if library == "polars":
        frame = pytest.importorskip("polars").DataFrame(frame.to_dict("list"))
    with pytest.raises(ParameterError, match=r"columns that hold no numbers, \['town'\]"):
        OnnxSGDRegressor().fit(frame, diabetes[1])


def test_the_two_estimators_have_parameters_of_their_own():
    regressor, classifier = (set(kind().get_params()) for kind in (OnnxSGDRegressor, OnnxSGDClassifier))
    assert "class_weight" in classifier - regressor


def test_clone_keeps_parameters_and_nothing_else(iris):
    model = small(OnnxSGDClassifier, eta0=0.3).fit(*iris)
    other = clone(model)
    assert other.get_params() == model.get_params()
    assert not hasattr(other, "classes_")


# Regressions.


def graph(text, **arrays):
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> ' + text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


def normal(*shape, seed=0):
    return np.random.RandomState(seed).normal(0, 0.5, shape).astype(np.float32)


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("engine", ["auto", "portable"])
def test_pooling_trains_for_many_epochs(pool, engine):
    """The training runtime's gradients of pooling crash the interpreter inside a scan."""
    model = graph(
        "g (float[N, 1, 6, 6] X) => (float[N, 1] Y) { c = Conv(X, K) "
        f"p = {pool} <kernel_shape = [2, 2], strides = [2, 2]> (c) f = Flatten(p) Y = Gemm(f, W, b) }}",
        K=normal(2, 1, 3, 3), W=normal(8, 1), b=normal(1),
    )  # fmt: skip
    X, y = normal(40, 1, 6, 6), normal(40)
    fitted = small(OnnxSGDRegressor, model=model, max_iter=400, engine=engine).fit(X, y)
    assert fitted.loss_curve_[-1] < 0.9 * fitted.loss_curve_[0]


def test_a_recurrent_graph_trains_for_many_epochs():
    """Its gradient holds subgraphs that read outer tensors, inside of the scan over batches."""
    model = graph(
        "g (float[N, 4, 2] X) => (float[N, 1] Y) { t = Transpose <perm = [1, 0, 2]> (X) "
        'a, h = LSTM <hidden_size = 3> (t, W, R) s = Squeeze(h, zero) Y = MatMul(s, V) }',
        W=normal(1, 12, 2), R=normal(1, 12, 3), V=normal(3, 1), zero=np.array([0]),
    )  # fmt: skip
    X, y = normal(20, 4, 2), normal(20)
    fitted = small(OnnxSGDRegressor, model=model, max_iter=600, engine="portable", eta0=0.1).fit(X, y)
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]


@pytest.mark.parametrize(
    "names", [("x", "x/all"), ("rows", "rows/all"), ("x", "y_true/all"), ("x", "x/first")]
)
def test_names_of_the_loop_are_free(names):
    """Tensors of users may have the names of the loop over batches."""
    first, inner = names
    model = graph(
        f"g (float[N, 3] {first}) => (float[N, 1] Y) "
        f'{{ "{inner}" = MatMul({first}, W) Y = Add("{inner}", b) }}',
        W=normal(3, 1), b=normal(1),
    )  # fmt: skip
    X, y = normal(64, 3), normal(64)
    fitted = small(OnnxSGDRegressor, model=model, max_iter=400).fit(X, y)
    assert fitted.t_ == 800


@pytest.mark.parametrize(
    "lines",
    [
        # the sum over the rows becomes a product of one row, which is added to a table
        ["h = MatMul(X, W)", "s = ReduceSum(h, zero)", "t = Add(h, s)", "Y = MatMul(t, v)"],
        # a column times one number, summed
        ["h = MatMul(X, W)", "g = MatMul(h, v)", "q = Mul(g, one)", "z = ReduceSum(q)", "Y = Add(g, z)"],
    ],
    ids=["sum", "product"],
)
def test_broadcast_products_are_not_fused(lines):
    """A fusion that checks the result alone takes a row for a matrix, or a number for a column."""
    model = graph(
        "g (float[N, 3] X) => (float[N, 1] Y) { " + "\n".join(lines) + " }",
        W=0.1 * normal(3, 10), v=0.1 * normal(10, 1), one=np.ones((1, 1), np.float32), zero=np.array([0]),
    )  # fmt: skip
    X, y = normal(32, 3), normal(32)
    fitted = small(OnnxSGDRegressor, model=model, engine="portable", eta0=1e-4).fit(X, y)
    assert np.isfinite(fitted.loss_curve_).all()


def test_a_product_behind_a_loop_is_trained_or_refused_with_its_place():
    loop = (
        "Y = Loop <body = body (int64 i, bool go, float[N, 1] v) => (bool on, float[N, 1] w) "
        "{ on = Identity(go) w = Relu(v) }> (n, c, a)"
    )
    W, X, y = normal(3, 1), normal(20, 3), normal(20)
    text = "g (float[N, 3] X) => (float[N, 1] Y) {{ a = MatMul(X, W)\n {} }}"
    model = graph(text.format(loop), W=W, n=np.array(2), c=np.array(True))
    fitted = small(OnnxSGDRegressor, model=model).fit(X, y)
    once = small(OnnxSGDRegressor, model=graph(text.format("Y = Relu(a)"), W=W)).fit(X, y)
    np.testing.assert_allclose(fitted.get_weights()["W"], once.get_weights()["W"], rtol=1e-5)
    assert np.abs(fitted.get_weights()["W"] - W).max() > 1e-3
    if orttraining.is_available():
        with pytest.raises(NotTrainableError, match="lies before the Loop"):
            small(OnnxSGDRegressor, model=model, engine="onnxruntime-training").fit(X, y)


def test_optimizers_of_users_share_no_compiled_step(diabetes):
    class Half(optimizers.SGD):
        def update(self, op, weight, gradient, slots, scalars, penalised):
            return op.Add(weight, op.Mul(gradient, 0.5)), ()

    plain = small(OnnxSGDRegressor, optimizer=optimizers.SGD(), penalty=None).fit(*diabetes)
    half = small(OnnxSGDRegressor, optimizer=Half(), penalty=None).fit(*diabetes)
    assert np.abs(plain.coef_ - half.coef_).max() > 1e-3


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "modified_huber", "perceptron"])
@pytest.mark.parametrize("data", ["iris", "cancer"])
def test_exported_links_are_recognised(request, data, loss):
    X, y = request.getfixturevalue(data)
    model = small(OnnxSGDClassifier, loss=loss, shuffle=False).fit(X, y)
    again = small(OnnxSGDClassifier, model=model.to_onnx(), loss=loss, shuffle=False).fit(X, y)
    model.set_params(warm_start=True).fit(X, y)
    np.testing.assert_allclose(again.decision_function(X), model.decision_function(X), rtol=1e-5, atol=1e-6)
    names = [value.name for value in model.to_onnx().graph.output]
    assert [value.name for value in again.to_onnx().graph.output] == names
    assert len(again.to_onnx().graph.node) <= len(model.to_onnx().graph.node) + 1


def test_penalties_that_change_between_calls_start_afresh(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, penalty="l1", alpha=0.5, learning_rate="constant")
    for _ in range(20):
        model.partial_fit(X, y)
    model.set_params(penalty="l2", alpha=0.0)
    for _ in range(20):
        model.partial_fit(X, y)
    before = model.coef_.copy()
    model.set_params(penalty="l1", alpha=1e-9, learning_rate="invscaling", eta0=1e-9).partial_fit(X, y)
    np.testing.assert_allclose(model.coef_, before, rtol=0, atol=1e-5)


def test_averaging_that_begins_later_begins_at_the_present_weights(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, learning_rate="constant").fit(X, y)
    before = model.coef_.copy()
    model.set_params(average=True, learning_rate="invscaling", eta0=1e-9).partial_fit(X, y)
    np.testing.assert_allclose(model.coef_, before, rtol=0, atol=1e-5)


def test_a_rate_that_changes_between_calls_is_honoured(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, learning_rate="constant", penalty=None).fit(X, y)
    before = model.coef_.copy()
    model.set_params(learning_rate="invscaling", eta0=1e-9).partial_fit(X, y)
    np.testing.assert_allclose(model.coef_, before, rtol=0, atol=1e-6)


def test_one_sample_in_a_call_is_a_batch_of_one(diabetes):
    X, y = diabetes
    once = small(OnnxSGDRegressor).partial_fit(X[:1], y[:1])
    heavy = small(OnnxSGDRegressor).partial_fit(X[:1], y[:1], sample_weight=[5.0])
    np.testing.assert_allclose(heavy.coef_, once.coef_, rtol=1e-6)


def test_a_refused_fit_does_not_change_the_estimator(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor).fit(X, y)
    before, count = model.predict(X), model.t_
    two = MLPRegressor(hidden_layer_sizes=(3,), solver="lbfgs", max_iter=2000, random_state=0)
    two.fit(X, np.c_[y, y])
    with pytest.raises(ValueError, match="2 output"):
        model.set_params(model=two).fit(X, y)
    with pytest.raises(ValueError, match="y_val"):
        model.set_params(model=None).fit(X, y, X_val=X)
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.t_ == count
    fresh = small(OnnxSGDRegressor)
    with pytest.raises(ValueError, match="y_val"):
        fresh.fit(X, y, X_val=X)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


@pytest.mark.parametrize(
    ("X_val", "y_val", "message"),
    [
        (np.full((60, 3), np.nan), np.zeros(60), "X is not accepted: Input X contains NaN"),
        (np.zeros((60, 2)), np.zeros(60), "X has 2 features, but OnnxSGDRegressor is expecting 3"),
        (np.zeros((0, 3)), np.zeros(0), "X is not accepted: Found array with 0 sample"),
        (np.zeros(3), np.zeros(1), "X is not accepted: Expected 2D array"),
        (np.zeros((60, 3)), np.full(60, np.nan), "Input y contains NaN"),
        (np.zeros((60, 3)), np.array(["a"] * 60), "y holds 'a', which is no number"),
        (np.zeros((60, 3)), np.zeros((60, 2)), r"y has shape \(60, 2\)"),
    ],
)
def test_refused_validation_data_are_named(X_val, y_val, message):
    X = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(ValueError, match=f"In the validation data, X_val and y_val: {message}"):
        small(OnnxSGDRegressor).fit(X, X[:, 0], X_val=X_val, y_val=y_val)


def test_the_history_of_a_stream_is_copied_only_where_it_is_read(diabetes):
    """Copies at each call would make a stream of n calls cost n^2: 1 ms a call after 50,000 of them."""
    X, y = diabetes
    model = small(OnnxSGDRegressor)
    for name in ("loss_curve_", "learning_rates_", "best_loss_", "validation_scores_"):
        assert not hasattr(model, name)
    for _ in range(3):
        model.partial_fit(X[:32], y[:32])
    assert not {"loss_curve_", "learning_rates_", "best_loss_"} & set(vars(model))
    assert len(model.loss_curve_) == len(model.learning_rates_) == 3
    assert model.best_loss_ == min(model.loss_curve_)
    assert model.validation_scores_ is None
    model.loss_curve_.clear()
    assert len(model.loss_curve_) == 3
    assert pickle.loads(pickle.dumps(model)).loss_curve_ == model.loss_curve_


def test_a_float32_target_trains_as_the_same_numbers_in_float64(diabetes):
    X, y = diabetes
    narrow = y.astype(np.float32)
    for target in (narrow, np.c_[narrow, narrow]):
        ours, wide = (small(OnnxSGDRegressor).fit(X, each) for each in (target, target.astype(np.float64)))
        np.testing.assert_array_equal(ours.coef_, wide.coef_)
    with pytest.raises(ValueError, match="y contains NaN"):
        small(OnnxSGDRegressor).fit(X, np.where(narrow > np.median(narrow), np.nan, narrow))


def test_calls_with_few_samples_share_compiled_steps(diabetes):
    X, y = diabetes
    model = small(OnnxSGDRegressor, alpha=0.123).partial_fit(X[:64], y[:64])
    before = cache.n_built
    for count in range(1, 33):
        model.partial_fit(X[:count], y[:count])
    assert cache.n_built - before <= 6


def test_graphs_that_are_no_linear_function_publish_no_coefficients():
    model = graph(
        "g (float[N, 4, 2] X) => (float[N, 4] Y) { m = MatMul(X, W) Y = Flatten(m) }", W=normal(2, 1)
    )
    X, y = normal(20, 4, 2), normal(20, 4)
    assert not hasattr(small(OnnxSGDRegressor, model=model).fit(X, y), "coef_")


def test_a_graph_that_mixes_samples_into_one_row_is_refused():
    model = graph(
        "g (float[N, 3] X) => (float[1, 1] Y) { m = MatMul(X, W) Y = ReduceMean(m, zero) }",
        W=normal(3, 1), zero=np.array([0]),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"3 samples into raw predictions"):
        small(OnnxSGDRegressor, model=model).fit(normal(20, 3), normal(20))


def test_weights_of_classes_must_weigh_something(cancer):
    for class_weight in ({0: 0, 1: 0}, {0: -1, 1: 1}):
        with pytest.raises(ValueError, match="class_weight"):
            small(OnnxSGDClassifier, class_weight=class_weight).fit(*cancer)


# Custom losses.


class Scaled(losses.Loss):
    """A mutable loss without a hash."""

    __hash__ = None

    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        return self.scale == other.scale

    def value(self, op, y_true, raw_prediction):
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(op.Mul(residual, residual), self.scale)

    def gradient(self, op, y_true, raw_prediction):
        return None


class ScaledByHand(Scaled):
    def gradient(self, op, y_true, raw_prediction):
        return op.Mul(op.Sub(raw_prediction, y_true), 2 * self.scale)


def test_a_loss_that_was_changed_is_another():
    X, y = load_diabetes(return_X_y=True)
    loss = Scaled(0.5)
    options = {"max_iter": 3, "tol": None, "random_state": 0, "learning_rate": "invscaling", "eta0": 0.001}
    for scale in (0.5, 0.25):
        loss.scale = scale
        found = OnnxSGDRegressor(loss=loss, **options).fit(X, y).coef_
        np.testing.assert_allclose(
            found, OnnxSGDRegressor(loss=ScaledByHand(scale), **options).fit(X, y).coef_, rtol=1e-4
        )
        plain = (
            OnnxSGDRegressor(**options | {"learning_rate": "invscaling", "eta0": 0.002 * scale}, alpha=1e-12)
            .fit(X, y)
            .coef_
        )
        np.testing.assert_allclose(found, plain, rtol=1e-2)


class OneForAll(Scaled):
    """The mean over the batch instead of a value for each sample."""

    def value(self, op, y_true, raw_prediction):
        return op.ReduceMean(super().value(op, y_true, raw_prediction), keepdims=1)


class Flat(Scaled):
    """A vector, which the column of weights would broadcast to a table."""

    def value(self, op, y_true, raw_prediction):
        return op.Reshape(super().value(op, y_true, raw_prediction), [-1])


class FlatGradient(ScaledByHand):
    def gradient(self, op, y_true, raw_prediction):
        return op.Reshape(super().gradient(op, y_true, raw_prediction), [-1])


@pytest.mark.parametrize("kind", [OneForAll, Flat, FlatGradient])
def test_a_formula_of_another_shape_is_refused(kind):
    X, y = load_diabetes(return_X_y=True)
    method = "gradient" if kind is FlatGradient else "value"
    with pytest.raises(ParameterError, match=rf"The {method} of the loss .* has shape .*must be \[32,\s*1\]"):
        OnnxSGDRegressor(loss=kind(1.0), batch_size=32).fit(X, y)


@pytest.mark.parametrize("n_columns", [3, 10, 300])
@pytest.mark.parametrize("kind", ["regression", "two classes", "network"])
def test_the_prediction_for_a_row_has_the_same_bits_among_any_others(kind, n_columns):
    """The runtime multiplies four rows at a time by one column, and rounds the rest in another way."""
    rng = np.random.default_rng(n_columns)
    X = rng.normal(size=(600, n_columns)).astype(np.float32)
    y = X @ rng.normal(size=n_columns)
    source = MLPRegressor(hidden_layer_sizes=(10,), max_iter=2) if kind == "network" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if kind == "two classes":
            predict = OnnxSGDClassifier(random_state=0).fit(X, y > 0).decision_function
        else:
            source = None if source is None else source.fit(X, y)
            predict = OnnxSGDRegressor(source, max_iter=2, random_state=0).fit(X, y).predict
    expected = predict(X)
    for n_rows in (1, 2, 3, 5, 6, 7, 30, 257, 301):
        for start in range(0, 20, 3):
            part = slice(start, start + n_rows)
            np.testing.assert_array_equal(predict(X[part]), expected[part])


@pytest.mark.filterwarnings("ignore:Maximum number of iteration")
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int64, np.uint64])
@pytest.mark.parametrize("rate", ["auto", "constant"])
@pytest.mark.parametrize("estimator", [OnnxSGDRegressor, OnnxSGDClassifier])
def test_integers_of_numpy_are_those_of_python(estimator, rate, kind):
    """They have a largest value, which numbers of rows and updates exceed."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    y = (X[:, 0] > 0).astype(int)
    fits = []
    for number in (int, kind):
        given = {"batch_size": number(5), "max_iter": number(7), "n_iter_no_change": number(2)}
        learner = estimator(**given, learning_rate=rate, random_state=0).fit(X, y)
        fits.append((learner.coef_, learner.partial_fit(X, y).coef_))
    np.testing.assert_array_equal(fits[0], fits[1])
