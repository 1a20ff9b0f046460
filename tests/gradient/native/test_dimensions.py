"""Comparison of two shapes: a wrong result is a gradient of a wrong shape."""

import onnx_ir as ir
import pytest

from onnxsgd.gradient.native.dimensions import (
    broadcast_axes,
    expand_target,
    ratio,
    reshape_target,
    same_shape,
)


def shape(*dims):
    return ir.Shape(dims)


@pytest.mark.parametrize(
    ("part", "other", "axes"),
    [
        (shape(3), shape("N", 3), [0]),
        (shape("N", 3), shape(3), []),
        (shape("N", 1), shape("N", 3), [1]),
        (shape(), shape("N", 3), [0, 1]),
        (shape("N", 3), shape(), []),
        (shape(1, 3), shape("N", 3), [0]),
        (shape(1, 1), shape(1, 3), [1]),
        # one of the two may have one row
        (shape("M", 3), shape("N", 3), None),
        (shape("N", 3), shape(5, 3), None),
        (shape(None, 3), shape(None, 3), None),
        (shape(None, 3), shape(1, 3), []),
        (None, shape(3), None),
        (shape(3), None, None),
    ],
)
def test_broadcast_axes(part, other, axes):
    assert broadcast_axes(part, other) == axes


@pytest.mark.parametrize(
    ("source", "target", "constants"),
    [
        (shape("N", 4), shape("N", 2, 2), [-1, 2, 2]),
        (shape(8), shape(2, 4), [2, 4]),
        (None, shape(2, 4), [2, 4]),
        (shape("N", "M", 1), shape("N", "M"), [0, 0]),
        (shape("N", 2), shape("N", "M", 1), [0, -1, 1]),
        (shape("N", "M", 1), shape("M", "N"), None),
        (shape("N", "M", "K"), shape("N", "M", "K"), [0, 0, 0]),
        (shape(None, None), shape(None, None), None),
        (shape(0, 2), shape(2, 0), None),
        (shape(2), None, None),
    ],
)
def test_constants_of_a_reshape(source, target, constants):
    assert reshape_target(source, target) == constants


@pytest.mark.parametrize(
    ("source", "target", "constants"),
    [
        (shape("N", 1), shape("N", 4), [1, 4]),
        (shape(1, 1), shape("N", 4), None),
        (None, shape(2, 4), [2, 4]),
        (None, shape("N", 4), None),
        (shape("N", 4), shape(4), None),
    ],
)
def test_constants_of_an_expansion(source, target, constants):
    assert expand_target(source, target) == constants


@pytest.mark.parametrize(
    ("whole", "part", "times"),
    [
        (shape("N", 4), shape("N"), 4),
        (shape("N", "M"), shape("M", "N"), 1),
        (shape("N", 4), shape(), None),
        (shape(None, 4), shape(None), None),
        (shape(2, 0), shape(0), None),
    ],
)
def test_ratio_of_the_numbers_of_elements(whole, part, times):
    assert ratio(whole, part) == times


def test_shapes_with_an_unknown_size_are_never_the_same():
    assert same_shape(shape("N", 3), shape("N", 3))
    assert not same_shape(shape(None, 3), shape(None, 3))
    assert not same_shape(None, None)
