"""Converters of this package give scikit-learn's features, also near 0 and far from it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.decomposition import FastICA
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PolynomialFeatures, SplineTransformer
from sklearn.random_projection import SparseRandomProjection

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.convert import convert_estimator
from onnxsgd.graph.sklearn.converters import _CONVERTERS as CONVERTERS
from onnxsgd.graph.sklearn.converters import _FUNCTIONS as FUNCTIONS
from onnxsgd.graph.sklearn.converters import _SHAPES as SHAPES

RNG = np.random.default_rng(0)
#: Numbers of both signs from 1e-9 to 1e2, and positive ones up to 1e6 for functions that have no others.
SIGNED = np.outer(RNG.choice([-1.0, 1.0], 300), np.logspace(-9, 2, 8)) * RNG.uniform(0.3, 0.7, (300, 8))
POSITIVE = np.abs(SIGNED) * np.logspace(0, 4, 8)
DOMAINS = {
    np.absolute: SIGNED, np.cos: SIGNED, np.exp: SIGNED, np.expm1: SIGNED, np.log: POSITIVE,
    np.log10: POSITIVE, np.log1p: POSITIVE, np.log2: POSITIVE, np.sin: SIGNED, np.sqrt: POSITIVE,
    np.square: SIGNED,
}  # fmt: skip
STEPS = [FunctionTransformer, PolynomialFeatures, RBFSampler, SplineTransformer]


def features(step, X, dtype):
    """Return the features of each row, through a regression whose predictions are one of them."""
    step.fit(X)
    n_features = step.transform(X[:1]).shape[1]
    ridge = Ridge(fit_intercept=False)
    ridge.coef_, ridge.intercept_, ridge.n_features_in_ = np.eye(n_features), np.zeros(n_features), n_features
    return OnnxSGDRegressor(make_pipeline(step, ridge), dtype=dtype).predict(X)


def test_every_converter_has_a_case():
    """Those of polynomials and splines have modules of tests of their own."""
    assert set(CONVERTERS) == set(SHAPES) == set(STEPS)
    assert set(FUNCTIONS) == set(DOMAINS)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("function", DOMAINS, ids=lambda function: function.__name__)
def test_functions_of_numpy(function, dtype, tolerance):
    """Relative to each number: ``log(1 + x)`` of 1e-9 is not 0."""
    X = DOMAINS[function].astype(np.float32)
    if function in (np.log, np.log2, np.log10):
        # near 1 logarithms have no digits of float32
        X = X[np.abs(X - 1).min(axis=1) > 0.05]
    step = FunctionTransformer(function)
    expected = function(X.astype(np.float64))
    # waves of 70 and of their like are near 0
    atol = tolerance if function in (np.cos, np.sin) else 0
    np.testing.assert_allclose(features(step, X, dtype), expected, rtol=tolerance, atol=atol)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_waves_of_an_rbf_sampler(offset):
    """Columns of a spread of 0.3 around 1e6 take float64, in which angles keep ten digits."""
    X = offset + 0.3 * RNG.normal(size=(200, 5))
    sampler = RBFSampler(gamma=0.5, n_components=30, random_state=0)
    expected = sampler.fit(X).transform(X)
    np.testing.assert_allclose(features(sampler, X, None), expected, atol=2e-6)
    np.testing.assert_allclose(features(sampler, X, "float64"), expected, rtol=0, atol=1e-8)


def test_functions_of_columns_of_a_frame():
    frame = pd.DataFrame(
        {
            "size": np.exp(RNG.normal(size=80)),
            "age": RNG.uniform(0, 9, 80),
            "town": RNG.choice(["a", "b"], 80),
        }
    )
    steps = make_column_transformer(
        (FunctionTransformer(np.log), ["size", "age"]), (OneHotEncoder(), ["town"])
    )
    model = make_pipeline(steps, Ridge()).fit(frame, np.log(frame["size"]))
    np.testing.assert_allclose(OnnxSGDRegressor(model).predict(frame), model.predict(frame), atol=1e-5)


@pytest.mark.parametrize(
    "step", [FunctionTransformer(np.log), RBFSampler(random_state=0), SplineTransformer()]
)
def test_arrays_of_a_dictionary_are_columns(step):
    frame = pd.DataFrame(RNG.uniform(1, 2, (60, 2)), columns=["size", "age"])
    model = make_pipeline(step, Ridge()).fit(frame, frame["age"])
    found = OnnxSGDRegressor(model).predict({name: frame[name].to_numpy() for name in frame})
    np.testing.assert_allclose(found, model.predict(frame), atol=1e-5)


def test_learning_goes_on_behind_waves():
    X = RNG.uniform(-2, 2, (400, 1))
    y = np.sin(4 * X[:, 0])
    sampler = RBFSampler(gamma=4, n_components=60, random_state=0)
    model = make_pipeline(sampler, Ridge(1e3)).fit(X, y)
    learner = OnnxSGDRegressor(model, random_state=0).fit(X, y)
    assert model.score(X, y) < 0.2 < 0.9 < learner.score(X, y)
    assert sorted(learner.get_weights()) == ["coef", "intercept"]
    first = OnnxSGDRegressor(model, random_state=0)
    for start in range(0, 400, 50):
        first.partial_fit(X[start : start + 50], y[start : start + 50])
    assert first.score(X, y) > model.score(X, y) + 0.1


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda X: X + 1, None),
        (np.cbrt, None),
        (np.log, {"dtype": np.float32}),
        (np.clip, {"a_min": 0, "a_max": 1}),
    ],
)
def test_other_functions_are_refused(function, arguments):
    X = RNG.uniform(1, 2, (20, 2))
    model = make_pipeline(FunctionTransformer(function, kw_args=arguments), Ridge()).fit(X, X[:, 0])
    message = (
        r"Step 'functiontransformer' \(FunctionTransformer\) .*\(func may be one of numpy's absolute, cos"
    )
    with pytest.raises(UnsupportedError, match=message):
        convert_estimator(model, X)


@pytest.mark.parametrize(
    "step",
    [
        FunctionTransformer(lambda X: X + 1),
        FastICA(2, random_state=0),
        SparseRandomProjection(2, density=1, random_state=0),
        KMeans(2, random_state=0),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_converter_of_the_user_is_called(step):
    """It was registered with skl2onnx, and is more than ours knows."""
    from skl2onnx import _parse, update_registered_converter
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.algebra.onnx_ops import OnnxAdd
    from skl2onnx.common import _registration
    from skl2onnx.common.data_types import FloatTensorType

    def infer_shape(operator):
        operator.outputs[0].type = FloatTensorType([None, 2])

    def convert(scope, operator, container):
        one = np.ones(1, np.float32)
        name = operator.outputs[0].full_name
        OnnxAdd(operator.inputs[0], one, op_version=18, output_names=[name]).add_to(scope, container)

    def parse(scope, model, inputs, custom_parsers=None):
        operator = scope.declare_local_operator("OwnStep", model)
        operator.inputs.extend(inputs)
        operator.outputs.append(scope.declare_local_variable("features", FloatTensorType()))
        return operator.outputs

    kind, X = type(step), RNG.normal(size=(20, 2))
    known, parser = sklearn_operator_name_map.get(kind), _parse.sklearn_parsers_map.get(kind)
    model = make_pipeline(step, Ridge()).fit(X, X[:, 0])
    update_registered_converter(kind, "OwnStep", infer_shape, convert, parser=parse)
    try:
        want = (X + 1) @ model[-1].coef_ + model[-1].intercept_
        np.testing.assert_allclose(OnnxSGDRegressor(model).predict(X), want, atol=1e-5)
    finally:
        for table, before in ((sklearn_operator_name_map, known), (_parse.sklearn_parsers_map, parser)):
            table.pop(kind, None)
            if before is not None:
                table[kind] = before
        del _registration._converter_pool["OwnStep"], _registration._shape_calculator_pool["OwnStep"]
