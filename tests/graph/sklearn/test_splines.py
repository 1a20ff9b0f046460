"""Splines of a graph are scikit-learn's, inside and outside the knots."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.convert import convert_estimator
from onnxsgd.graph.sklearn.splines import _EXTRAPOLATIONS as EXTRAPOLATIONS

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(120, 3))
TARGET = RNG.normal(size=120)
#: The table, and one with columns of a spread of 0.01 around 1e6, in which float32 has one knot for several.
TABLES = {"around 0": TABLE, "far from 0": 1e6 + 0.01 * TABLE}


@pytest.mark.parametrize("data", TABLES)
@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize("extrapolation", EXTRAPOLATIONS)
@pytest.mark.parametrize(
    "parameters", [{}, {"include_bias": False, "knots": "quantile"}], ids=["", "quantiles"]
)
def test_splines_are_those_of_scikit_learn(data, degree, extrapolation, parameters):
    """Also at the first and the last knot, and beyond them."""
    X = TABLES[data]
    step = SplineTransformer(degree=degree, extrapolation=extrapolation, **parameters)
    model = make_pipeline(step, Ridge()).fit(X, TARGET)
    beyond = np.vstack(
        [X, X[:30] + 2 * X.std(axis=0), X[:30] - 2 * X.std(axis=0), X.min(axis=0), X.max(axis=0)]
    )
    expected = model.predict(beyond)
    largest = np.abs(expected).max()
    found = OnnxSGDRegressor(model).predict(beyond)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * largest)
    exact = OnnxSGDRegressor(model, dtype="float64").predict(beyond)
    np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-11 * largest)


@pytest.mark.parametrize("extrapolation", EXTRAPOLATIONS)
def test_splines_of_a_constant_column_are_zeros(extrapolation):
    """Its knots are equal; scikit-learn has zeros for other numbers too."""
    X = np.column_stack([TABLE[:, 0], np.full(120, 3.0)])
    step = SplineTransformer(extrapolation=extrapolation).fit(X)
    if np.isnan(step.transform(X)).any():
        pytest.skip("an older scikit-learn has NaN in a period of 0")
    ridge = Ridge().fit(step.transform(X), TARGET)
    # one that depends on the zeros
    ridge.coef_ = np.arange(1.0, 1 + len(ridge.coef_))
    model = make_pipeline(step, ridge)
    for rows in (X, X + np.array([0, 0.7])):
        expected = model.predict(rows)
        np.testing.assert_allclose(OnnxSGDRegressor(model).predict(rows), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"extrapolation": "error"}, "extrapolation='error', and it may be one of 'constant', 'continue'"),
        ({"extrapolation": "linear"}, "extrapolation='linear'"),
        ({"degree": 0}, "degree=0, and it may be 1 or more"),
    ],
)
def test_other_parameters_are_refused(parameters, message):
    model = make_pipeline(SplineTransformer(**parameters), Ridge()).fit(TABLE, TARGET)
    with pytest.raises(UnsupportedError, match=rf"'splinetransformer' \(SplineTransformer\) .*\({message}"):
        convert_estimator(model, TABLE)


def test_missing_values_as_zeros_are_refused():
    pytest.importorskip("sklearn", minversion="1.8")
    step = SplineTransformer(handle_missing="zeros")
    X = np.where(TABLE > 2, np.nan, TABLE)
    model = make_pipeline(step, Ridge()).fit(X, TARGET)
    with pytest.raises(UnsupportedError, match="handle_missing='zeros', and it may be 'error'"):
        convert_estimator(model, X)
