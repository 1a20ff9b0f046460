"""Templates of converted estimators: a later conversion gives the graph that a first one would."""

import pickle
import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.sklearn.structure import _ATTRIBUTES
from onnxsgd.learner.build import ModelOptions, TrainingData, make_learner
from onnxsgd.runtime.cache import cache

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(1.0, 2.0, (60, 4))
BINARY = (X[:, 0] + RNG.normal(size=60) > 1).astype(int)
THREE = np.array(["b", "a", "c"])[np.arange(60) % 3]
Y = X @ [1.0, -2.0, 0.5, 0.1] + RNG.normal(size=60)


def network(kind, **more):
    return lambda seed: kind(hidden_layer_sizes=(5,), max_iter=4, random_state=seed, **more)


#: Estimators that differ by a seed or a strength, with their target.
CASES = {
    "elastic net": (lambda i: ElasticNet(0.01 * (i + 1)), Y),
    "lasso": (lambda i: Lasso(0.01 * (i + 1)), Y),
    "least squares": (lambda i: LinearRegression(), Y + 0),
    "logistic, binary": (lambda i: LogisticRegression(C=2.0**i), BINARY),
    "logistic, three": (lambda i: LogisticRegression(C=2.0**i), THREE),
    "network, binary": (network(MLPClassifier), BINARY),
    "network, three": (network(MLPClassifier, activation="tanh"), THREE),
    "network, several labels": (network(MLPClassifier), np.c_[BINARY, 1 - BINARY, BINARY]),
    "network, regression": (network(MLPRegressor), Y),
    "network, two targets": (network(MLPRegressor), np.c_[Y, -Y]),
    "ridge": (lambda i: Ridge(2.0**i), Y),
    "ridge without intercept": (lambda i: Ridge(2.0**i, fit_intercept=False), Y),
    "ridge classifier": (lambda i: RidgeClassifier(2.0**i), BINARY),
    "sgd classifier": (lambda i: SGDClassifier(random_state=i), THREE),
    "sgd, log loss": (lambda i: SGDClassifier(loss="log_loss", random_state=i), BINARY),
    "sgd regressor": (lambda i: SGDRegressor(random_state=i, eta0=1e-3), Y),
    "frozen": (lambda i: FrozenEstimator(LogisticRegression(C=2.0**i).fit(X, BINARY)), BINARY),
    "standard": (lambda i: make_pipeline(StandardScaler(), LogisticRegression(C=2.0**i)), BINARY),
    "not centred": (lambda i: make_pipeline(StandardScaler(with_mean=False), Ridge(2.0**i)), Y),
    "not scaled": (lambda i: make_pipeline(StandardScaler(with_std=False), Ridge(2.0**i)), Y),
    "min and max": (lambda i: make_pipeline(MinMaxScaler((-1, 2)), SGDClassifier(random_state=i)), THREE),
    "clipped": (lambda i: make_pipeline(MinMaxScaler(clip=True), Ridge(2.0**i)), Y),
    "max": (lambda i: make_pipeline(MaxAbsScaler(), LogisticRegression(C=2.0**i)), THREE),
    "two scalers": (lambda i: make_pipeline(MinMaxScaler(), StandardScaler(), Ridge(2.0**i)), Y),
    "scaled network": (lambda i: make_pipeline(StandardScaler(), network(MLPRegressor)(i)), Y),
}  # fmt: skip


def fitted(make, target, seed):
    # other rows give scalers other numbers
    return make(seed).fit(X[seed:], target[seed:])


def learner_of(estimator, target, **more):
    task = "regression" if target.dtype.kind == "f" else "classification"
    options = ModelOptions(task, None, None, None, "auto", more.pop("dtype", None))
    return make_learner(estimator, TrainingData(X), 1, options)


def described(model):
    """Return the bytes of a graph, in one encoding of numbers."""
    proto = onnx.ModelProto.FromString(to_proto(model).SerializeToString())
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    return proto.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", CASES)
def test_the_third_model_of_a_structure_is_filled_in_and_equals_a_conversion(name):
    make, target = CASES[name]
    cache.clear()
    first, second, third = (learner_of(fitted(make, target, seed), target) for seed in range(3))
    assert first.template is None
    assert second.template is None
    assert third.template is not None
    cache.clear()
    plain = learner_of(fitted(make, target, 2), target)
    assert plain.template is None
    assert described(third.with_weights({})) == described(plain.model)
    assert described(third.with_weights({}, score_only=True)) == described(plain.score_model)
    assert (third.weights, third.intercepts, third.linear) == (plain.weights, plain.intercepts, plain.linear)
    for weight, array in plain.initial_weights().items():
        np.testing.assert_array_equal(third.initial_weights()[weight], array)
    # the shared graph holds no numbers that a reader could take for its own
    assert all(np.isnan(third.model.graph.initializers[n].const_value.numpy()).all() for n in third.numbers)


def classes_in(value):
    """Yield the classes of a fitted estimator and of its parts."""
    if isinstance(value, BaseEstimator):
        yield type(value)
        value = list(vars(value).values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from classes_in(entry)


def test_every_class_with_a_known_structure_has_a_case():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [fitted(make, target, 0) for make, target in CASES.values()]
    assert set(_ATTRIBUTES) == {kind for model in made for kind in classes_in(model)} & set(_ATTRIBUTES)


@pytest.mark.parametrize("data", [X, sparse.csr_matrix(X)], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["standard", "network, three", "max", "logistic, binary"])
def test_fits_of_a_filled_template_equal_those_of_a_conversion(name, data):
    if name == "standard" and sparse.issparse(data):
        pytest.skip("a scaler that centres takes no sparse data")
    make, target = CASES[name]

    def fit(seed):
        return OnnxSGDClassifier(fitted(make, target, seed), max_iter=3, random_state=0).fit(data, target)

    cache.clear()
    *_, third = (fit(seed) for seed in range(3))
    assert third._learner.template is not None
    restored = pickle.loads(pickle.dumps(third))
    cache.clear()
    plain = fit(2)
    for weight, array in plain.get_weights().items():
        np.testing.assert_array_equal(third.get_weights()[weight], array)
    for model in (third, restored):
        np.testing.assert_array_equal(model.decision_function(data), plain.decision_function(data))
    assert described_proto(third.to_onnx()) == described_proto(plain.to_onnx())


def described_proto(proto):
    return described(to_ir(proto))


def uses_template(estimator, target, **more):
    return learner_of(estimator, target, **more).template is not None


def prove(name):
    make, target = CASES[name]
    cache.clear()
    for seed in range(2):
        learner_of(fitted(make, target, seed), target)
    assert uses_template(fitted(make, target, 2), target)


def test_parameters_that_change_the_graph_are_another_structure():
    prove("network, binary")
    others = {"activation": "tanh", "hidden_layer_sizes": (5, 5)}
    for name, value in others.items():
        assert not uses_template(
            MLPClassifier((5,), max_iter=2).set_params(**{name: value}).fit(X, BINARY), BINARY
        )
    assert not uses_template(MLPClassifier((5,), max_iter=2).fit(X, THREE), THREE)
    assert not uses_template(MLPClassifier((5,), max_iter=2).fit(X, BINARY + 1), BINARY)
    assert not uses_template(MLPClassifier((5,), max_iter=2).fit(X, BINARY), BINARY, dtype="float64")


def test_subclasses_are_converted():
    class Own(Ridge):
        pass

    prove("ridge")
    assert not uses_template(_registered(Own, Ridge)().fit(X, Y), Y)


def _registered(own: type[BaseEstimator], base: type[BaseEstimator]) -> type[BaseEstimator]:
    """Register a subclass with the converter of its base."""
    from skl2onnx import update_registered_converter
    from skl2onnx.operator_converters.linear_regressor import convert_sklearn_linear_regressor
    from skl2onnx.shape_calculators.linear_regressor import calculate_linear_regressor_output_shapes

    update_registered_converter(
        own, f"Own{base.__name__}", calculate_linear_regressor_output_shapes,
        convert_sklearn_linear_regressor, overwrite=True,
    )  # fmt: skip
    return own


def test_a_converter_that_is_registered_later_is_called():
    from skl2onnx.common import _registration

    prove("ridge")
    known = _registration._converter_pool["SklearnLinearRegressor"]
    calls = []

    def own(scope, operator, container):
        calls.append(operator)
        known._fct(scope, operator, container)

    _registration.register_converter("SklearnLinearRegressor", own, overwrite=True, options=known._options)
    try:
        assert not uses_template(Ridge(3.0).fit(X, Y), Y)
        assert calls
    finally:
        _registration._converter_pool["SklearnLinearRegressor"] = known


def test_numbers_that_decide_about_a_role_are_converted():
    prove("ridge")
    whole = Ridge().fit(X, Y)
    whole.coef_ = np.array([1.0, 2.0, 3.0, -1.5])
    assert not uses_template(whole, Y)
    infinite = Ridge().fit(X, Y)
    infinite.coef_ = infinite.coef_ * np.inf
    assert not uses_template(infinite, Y)


def test_a_search_gives_the_scores_of_separate_fits():
    def score(depth):
        model = MLPRegressor(hidden_layer_sizes=(depth,), max_iter=3, random_state=depth)
        return OnnxSGDRegressor(model, max_iter=3, random_state=0).fit(X, Y).score(X, Y)

    cache.clear()
    together = [score(depth) for depth in (4, 4, 4, 6, 6, 6, 4)]
    separate = []
    for depth in (4, 6):
        cache.clear()
        separate.append(score(depth))
    assert together == [separate[0]] * 3 + [separate[1]] * 3 + [separate[0]]
