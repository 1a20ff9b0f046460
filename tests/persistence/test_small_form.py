"""Attributes of trained estimators in pickles."""

import numpy as np
import pytest

from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.saved_form import FORMAT
from onnxsgd.persistence.small_form import from_small_form, to_small_form

CLASSES = np.array(["a", "b"])
LARGE = np.arange(1000.0)
ODD = np.array([(1, 2.0)], dtype=[("a", int), ("b", float)])
SAVED = {
    "format": FORMAT, "version": "0.1.0", "classes": CLASSES, "numbers": [np.float32([[1], [2]]), LARGE],
    "empty": np.empty(0), "names": [None, True, 0.1, "é"], "bytes": b"123", "odd": ODD,
}  # fmt: skip
ATTRIBUTES = {
    "classes_": CLASSES, "model": None, "alpha": 0.1, "loss": "log_loss", "_saved": SAVED, "own": {1: 2},
    "set": {1}, "number": np.float64(3.0), "nan": float("nan"),
}  # fmt: skip


def test_attributes_return_as_they_were():
    small = to_small_form(ATTRIBUTES)
    assert set(small) == {"model", "_saved", "own", "set", "number"}
    assert set(small["_saved"]) == {"format", "version", "odd", "tree", "small", "large"}
    assert [array.nbytes for array in small["_saved"]["large"]] == [LARGE.nbytes]
    restored = from_small_form(small)
    assert restored["classes_"] is restored["_saved"]["classes"]
    np.testing.assert_equal(restored, ATTRIBUTES)
    assert type(restored["number"]) is np.float64
    assert restored["_saved"]["numbers"][0].dtype == np.float32


def test_the_order_of_attributes_does_not_matter():
    reverse = {name: ATTRIBUTES[name] for name in reversed(ATTRIBUTES)}
    assert to_small_form(reverse)["_saved"]["tree"] == to_small_form(ATTRIBUTES)["_saved"]["tree"]


def test_attributes_of_older_versions_stay_as_they_are():
    assert from_small_form(ATTRIBUTES) is ATTRIBUTES
    unfitted = {"alpha": 0.1}
    assert from_small_form(unfitted) is unfitted


def test_a_tree_of_a_newer_version_is_not_read():
    small = to_small_form(ATTRIBUTES)
    small["_saved"].update(format=FORMAT + 1, version="9.9", tree=b"")
    with pytest.raises(ParameterError, match=r"by onnxsgd 9\.9"):
        from_small_form(small)
