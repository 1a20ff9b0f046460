"""Named columns of frames and dictionaries."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from onnxsgd import OnnxSGDClassifier
from onnxsgd.data.columns import column_kinds, column_names, is_mapping, with_numbers
from onnxsgd.exceptions import ParameterTypeError

COLUMNS = {"age": [1, 2], "height": [1.5, 2.5], "town": ["a", "b"], "member": [True, False]}
KINDS = {"age": "i", "height": "f", "town": "O", "member": "b"}


def polars_frame(columns):
    return pytest.importorskip("polars").DataFrame(columns)


@pytest.mark.parametrize("frame", [pd.DataFrame, polars_frame])
def test_frames_of_any_library_have_the_same_kinds(frame):
    X = frame(COLUMNS)
    assert column_names(X) == list(COLUMNS)
    kinds = column_kinds(X)
    # pandas 3 has a type of strings
    assert {name: "O" if kind in "OUT" else kind for name, kind in kinds.items()} == KINDS


def test_categories_are_objects():
    X = pd.DataFrame({"c": pd.Categorical(["u", "v"])})
    assert column_kinds(X) == {"c": "O"}


def test_dictionaries_are_columns():
    X = {"a": np.ones(2), 3: np.array(["u", "v"])}
    assert is_mapping(X)
    assert column_names(X) == ["a", "3"]
    assert column_kinds(X) == {"a": "f", "3": "U"}


def test_a_sparse_dictionary_of_keys_is_no_dictionary_of_columns():
    """It is one matrix: its keys are places."""
    X = sparse.dok_matrix((3, 2))
    assert not is_mapping(X)
    assert column_names(X) is None


def test_arrays_have_no_names():
    assert column_names(np.ones((2, 2))) is None


def test_objects_that_are_numbers_get_their_type():
    """Strings, categories and columns that hold anything else stay, and so does the user's frame."""
    X = pd.DataFrame(
        {
            "real": pd.Series([1.5, 2], dtype=object),
            "whole": pd.Series([1, 2], dtype=object),
            "truth": pd.Series([True, False], dtype=object),
            "missing": pd.Series([1.5, None], dtype=object),
            "text": pd.Series(["1", "2"], dtype=object),
            "mixed": pd.Series([1, "2"], dtype=object),
            "kind": pd.Categorical([1, 2]),
        }
    )
    before = X.copy()
    found = with_numbers(X)
    assert column_kinds(found) == {
        "real": "f", "whole": "i", "truth": "b", "missing": "f", "text": "O", "mixed": "O", "kind": "O",
    }  # fmt: skip
    pd.testing.assert_frame_equal(X, before)
    pd.testing.assert_frame_equal(found[["text", "mixed", "kind"]], X[["text", "mixed", "kind"]])


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame({"a": [1.0]}),
        pd.DataFrame([[1, 2]], columns=["a", "a"], dtype=object),
        pd.Series([1], dtype=object),
        np.array([[1]], object),
        {"a": np.array([1], object)},
    ],
    ids=["numbers", "repeated names", "series", "array", "dictionary"],
)
def test_other_data_stay(X):
    assert with_numbers(X) is X


def test_a_lazy_frame_is_refused():
    lazy = polars_frame({"a": [1.0, 2.0, 3.0], "b": [3.0, 1.0, 2.0]}).lazy()
    model = OnnxSGDClassifier(random_state=0)
    with pytest.raises(ParameterTypeError, match=r"LazyFrame.*give X\.collect\(\)"):
        model.fit(lazy, [0, 1, 0])
    model.fit(lazy.collect(), [0, 1, 0])
    for method in (model.predict, model.predict_proba):
        with pytest.raises(ParameterTypeError, match=r"give X\.collect\(\)"):
            method(lazy)
