"""Integers among categories that float32 does not hold."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.sklearn.categories import has_large_categories

CODES = np.random.default_rng(0).choice([100_000_001, 100_000_002, 123_456_789], (90, 1))
Y = (CODES[:, 0] % 10).astype(float)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # next to the start
def test_categories_beyond_the_integers_of_float32_are_kept():
    """As float32 the first two would be one: the model is float64, and predicts as scikit-learn."""
    model = make_pipeline(OneHotEncoder(), Ridge(1e-3)).fit(CODES, Y)
    found = OnnxSGDRegressor(model)
    np.testing.assert_allclose(found.predict(CODES), model.predict(CODES), rtol=1e-12)
    assert {array.dtype for array in found.get_weights().values()} == {np.dtype(np.float64)}
    assert OnnxSGDRegressor(model, random_state=0).fit(CODES, Y).score(CODES, Y) > 0.999


def test_a_named_type_that_merges_categories_is_refused():
    model = make_pipeline(OneHotEncoder(), Ridge()).fit(CODES, Y)
    with pytest.raises(ParameterError, match="dtype='float32' is not accepted .* integers above"):
        OnnxSGDRegressor(model, dtype="float32").fit(CODES, Y)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([2**60 + 1, 2**60 + 2], True),
        ([1, 2, 3], False),
        ([2**24, 2**24 + 2], False),
        ([2**24 + 1, 3], True),
        ([0.1, 0.7], False),
    ],
)
def test_only_integers_that_change_count(numbers, expected):
    X = np.array(numbers)[:, None]
    inner = make_column_transformer((OneHotEncoder(), [0]))
    model = make_pipeline(inner, Ridge())
    assert has_large_categories(model.fit(X, X[:, 0])) is expected


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("numbers", [[1, 2, 3], [0, 3], [10, 20], [2018, 2019, 2021], [-5, -1]])
@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_integers_with_gaps_between_them(numbers, kind):
    """The choice of a type tries numbers next to those of the data, which are no categories."""
    X = np.random.default_rng(0).choice(numbers, (90, 1)).astype(kind)
    model = make_pipeline(OneHotEncoder(), Ridge(1e-3)).fit(X, X[:, 0])
    np.testing.assert_allclose(OnnxSGDRegressor(model).predict(X), model.predict(X), rtol=1e-5, atol=1e-6)
    assert OnnxSGDRegressor(model, random_state=0).fit(X, X[:, 0]).score(X, X[:, 0]) > 0.999
    with pytest.raises(RuntimeError, match="a category that a OneHotEncoder in the model was not fitted on"):
        OnnxSGDRegressor(model, random_state=0).fit(X, X[:, 0]).predict(X + 1000)
