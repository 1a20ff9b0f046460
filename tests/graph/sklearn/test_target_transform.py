"""Transformers of a target are inverted in the graph."""

import numpy as np
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import Ridge
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.convert import convert_estimator
from onnxsgd.graph.sklearn.target_transform import _FUNCTIONS as FUNCTIONS
from onnxsgd.graph.sklearn.target_transform import _INVERSES as INVERSES

#: Transformers of a target; each inverse of the package's tables is among them.
TRANSFORMERS = [
    FunctionTransformer(),
    FunctionTransformer(np.log, np.exp),
    FunctionTransformer(np.exp, np.log),
    FunctionTransformer(np.log1p, np.expm1),
    FunctionTransformer(np.expm1, np.log1p),
    FunctionTransformer(np.square, np.sqrt),
    FunctionTransformer(np.sqrt, np.square),
    MaxAbsScaler(),
    MinMaxScaler((-1, 2)),
    RobustScaler(),
    StandardScaler(),
]


def test_every_inverse_has_a_case():
    assert {type(transformer) for transformer in TRANSFORMERS} == set(INVERSES)
    assert {getattr(transformer, "inverse_func", None) for transformer in TRANSFORMERS} == set(FUNCTIONS)


@pytest.fixture
def target_data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 3)).astype(np.float32), rng.uniform(1, 3, 40)


@pytest.mark.parametrize("transformer", TRANSFORMERS, ids=repr)
def test_inverse_of_a_target(transformer, target_data, run):
    X, y = target_data
    model = TransformedTargetRegressor(Ridge(), transformer=transformer).fit(X, y)
    scored = convert_estimator(model)
    np.testing.assert_allclose(run(scored.model, X)[scored.score][:, 0], model.predict(X), rtol=1e-5)


def test_other_inverses_of_a_target_are_refused(target_data):
    X, y = target_data
    for transformer in [
        FunctionTransformer(np.square, np.abs, check_inverse=False),
        QuantileTransformer(n_quantiles=4),
    ]:
        model = TransformedTargetRegressor(Ridge(), transformer=transformer, check_inverse=False).fit(X, y)
        with pytest.raises(UnsupportedError, match="one of"):
            convert_estimator(model)
