"""Double buffers of weights: a step reads one set and writes the other."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from onnxsgd.engine.step.buffers import _NUMPY_TYPES, Buffers, all_finite, dtype_of, joined
from onnxsgd.engine.step.update import WEIGHT

KEY, STATE = ("w", WEIGHT), ("w", "momentum")
START = {KEY: np.array([1.0, 2.0]), STATE: np.array([3.0, 4.0])}

#: The element types of tensors of a step.
INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
TYPES = ["FLOAT16", "FLOAT", "DOUBLE", "BOOL", *INTEGERS]


def test_types_are_those_of_onnx():
    """A wrong width would read beyond the memory that is bound."""
    expected = {
        f"tensor({name.lower()})": onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(name))
        for name in TYPES
    }
    assert {name: np.dtype(kind) for name, kind in _NUMPY_TYPES.items()} == expected
    assert dtype_of(SimpleNamespace(type="tensor(double)")) is np.float64


def test_buffers_are_contiguous():
    """Their memory is bound, whatever order of axes the given weights have."""
    matrix = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    buffers = Buffers({KEY: matrix})
    assert all(tensors[KEY].flags.c_contiguous for tensors in buffers.sets)
    buffers.load({KEY: matrix})
    np.testing.assert_array_equal(buffers.weights()["w"], matrix)


def test_missing_tensors_are_zero():
    """States of an optimizer start at zero when a fit starts from weights alone."""
    buffers = Buffers(START)
    buffers.load(START)
    buffers.load({KEY: START[KEY]})
    np.testing.assert_array_equal(buffers.snapshot()[STATE], [0, 0])


@pytest.mark.parametrize("flips", [1, 2])
def test_the_present_set_is_the_one_written_last(flips):
    buffers = Buffers(START)
    buffers.load(START)
    for step in range(flips):
        following = buffers.sets[1 - buffers.current]
        following[KEY][...] = 10 + step
        buffers.flip()
    assert list(buffers.weights()) == ["w"]
    np.testing.assert_array_equal(buffers.weights()["w"], [9 + flips] * 2)


def test_a_snapshot_does_not_change():
    """The best weights of early stopping survive later updates."""
    buffers = Buffers(START)
    buffers.load(START)
    kept = buffers.snapshot()
    buffers.sets[buffers.current][KEY][...] = -1
    np.testing.assert_array_equal(kept[KEY], [1, 2])
    np.testing.assert_array_equal(buffers.weights()["w"], [-1, -1])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found(number):
    array = np.full((3, 4), np.finfo(np.float32).max, np.float32)
    assert all_finite(array)
    assert all_finite(np.empty((0, 2)))
    array[2, 1] = number
    assert not all_finite(array)


@pytest.mark.parametrize(
    "arrays",
    [
        [np.arange(6.0).reshape(2, 3), np.array(7.0), np.empty((0, 2)), np.array([[8.0]])],
        [np.arange(2.0), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(9.0)[::2]],
        [np.arange(2, dtype=np.float32), np.array([np.nan, 1e300])],
        [np.arange(3), np.array([0.5], np.float16)],
        [np.empty(0), np.empty((0, 2))],
    ],
    ids=["contiguous", "orders", "wide", "types", "empty"],
)
def test_arrays_are_joined(arrays):
    np.testing.assert_array_equal(joined(arrays), np.concatenate([array.reshape(-1) for array in arrays]))


def test_a_finite_snapshot_is_none_where_a_number_is_not():
    """Between the arrays of a block lie zeros, which no update writes."""
    tensors = {**START, ("w", "count"): np.array([7], np.int64), ("b", WEIGHT): np.float32([[1.0], [2.0]])}
    buffers = Buffers(tensors)
    buffers.load(tensors)
    found = buffers.finite_snapshot(without=(STATE,))
    assert list(found) == [key for key in tensors if key != STATE]
    for key, array in found.items():
        np.testing.assert_array_equal(array, tensors[key])
        assert array.dtype == tensors[key].dtype
    buffers.present["b", WEIGHT][1] = np.nan
    assert buffers.finite_snapshot(without=(STATE,)) is None
    assert all(array.ctypes.data % 64 == 0 for arrays in buffers.sets for array in arrays.values())


@pytest.mark.parametrize("change", ["an update", "numbers in place, once loaded", "other arrays", "none"])
def test_numbers_that_are_still_there_are_not_copied_again(change):
    buffers = Buffers(START)
    buffers.load(START)
    given = buffers.finite_snapshot()
    if change == "an update":
        buffers.flip()
        for array in buffers.present.values():
            array[...] = -1
    elif change == "numbers in place, once loaded":
        buffers.load(given)
        buffers.present[KEY][...] = -1
    elif change == "other arrays":
        given = given | {KEY: np.array([8.0, 9.0])}
    else:
        # nobody does that: it shows that the numbers were not copied
        buffers.present[KEY][...] = -1
    buffers.load(given)
    expected = [-1, -1] if change == "none" else given[KEY]
    np.testing.assert_array_equal(buffers.present[KEY], expected)
    np.testing.assert_array_equal(buffers.present[STATE], START[STATE])
