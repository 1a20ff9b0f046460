"""The plain form of a frame gives the frame again, and JSON has it."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from onnxsgd.data.kept_frames import check_kept_frame, frame_of, is_kept_frame, kept_frame

FRAME = pd.DataFrame(
    {
        "text": ["a", "b", None],
        "object": pd.Series([1, "b", None], dtype="object"),
        "category": pd.Categorical(["x", "y", "x"]),
        "grades": pd.Categorical([1, 2, 1]),
        "whole": pd.array([1, None, 3], dtype="Int64"),
        "string": pd.array(["q", None, "r"], dtype="string"),
        "truth": pd.array([True, None, False], dtype="boolean"),
        "small": np.array([1.5, np.nan, 3], dtype=np.float32),
        "byte": np.array([1, 2, 255], dtype=np.uint8),
        "day": pd.to_datetime(["2024-01-02", None, "2024-03-04"]),
        "zone": pd.to_datetime(["2024-01-02", "2024-01-02", "2024-03-04"]).tz_localize("UTC"),
    },
    index=[7, 8, 9],
)


def again(frame):
    kept = kept_frame(frame)
    assert is_kept_frame(kept)
    check_kept_frame(kept)
    return frame_of(json.loads(json.dumps(kept)))


def test_a_frame_of_pandas():
    pd.testing.assert_frame_equal(again(FRAME), FRAME.reset_index(drop=True))


@pytest.mark.parametrize("names", [[3, 4], ["x", "x"], [0, "a"]])
def test_names_of_columns(names):
    frame = pd.DataFrame([[1.0, "a"], [2.0, "b"]]).set_axis(names, axis=1)
    pd.testing.assert_frame_equal(again(frame), frame)


def test_a_type_that_is_not_made_of_texts():
    """It becomes another one: no converter takes it."""
    frame = pd.DataFrame({"span": [pd.Interval(0, 1), pd.Interval(1, 2)]})
    assert again(frame)["span"].tolist() == ["(0, 1]", "(1, 2]"]


def test_a_frame_of_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"text": ["a", None], "number": [1.5, 2.0], "count": [1, None], "truth": [True, False]},
        schema_overrides={"number": polars.Float32, "count": polars.UInt8},
    ).with_columns(kind=polars.Series(["x", "y"], dtype=polars.Categorical), day=datetime.date(2024, 1, 2))
    found = again(frame)
    assert found.drop("day").equals(frame.drop("day"))
    assert found.drop("day").schema == frame.drop("day").schema
    assert found["day"].cast(polars.String).to_list() == ["2024-01-02"] * 2


@pytest.mark.parametrize(
    ("library", "columns"),
    [
        ("os", []),
        ("pandas", "ab"),
        ("pandas", [["a", "str"]]),
        ("pandas", [["a", 3, []]]),
        ("pandas", [["a", "str", ["x"]], ["b", "str", []]]),
        ("polars", [["a", "String", [object()]]]),
    ],
)
def test_other_forms_are_refused(library, columns):
    with pytest.raises(ValueError, match="no frame"):
        check_kept_frame({"frame": library, "columns": columns})


def test_a_type_that_polars_lacks_is_left_to_it():
    pytest.importorskip("polars")
    kept = {"frame": "polars", "columns": [["a", "read_csv", ["x"]]]}
    assert frame_of(kept)["a"].to_list() == ["x"]
