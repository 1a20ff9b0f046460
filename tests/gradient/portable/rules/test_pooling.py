"""Pooling: windows overlap, hang over the edge or skip elements, and the gradient must know which."""

import math

import numpy as np
import pytest

WINDOWS = [
    "kernel_shape = [2, 2], strides = [2, 2]",
    "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
    "kernel_shape = [3, 2]",
    'kernel_shape = [3, 3], auto_pad = "SAME_UPPER"',
]
MAXIMA = [
    *WINDOWS,
    "kernel_shape = [2, 2], dilations = [2, 2]",
    "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1",
]
MEANS = [
    *WINDOWS,
    "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1",
    "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1",
    "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0], ceil_mode = 1, count_include_pad = 1",
]


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("window", MAXIMA)
def test_max_pool(check, window, opset):
    check(f"Y = MaxPool<{window}>(A)", {"A": (2, 3, 5, 6)}, opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("window", MAXIMA)
def test_max_pool_of_images_of_any_size(check, window, opset):
    check(f"Y = MaxPool<{window}>(A)", {"A": (2, 3, 5, 6)}, "hidden", opset=opset)


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize("outputs", ["Y", "Y, I"])
@pytest.mark.parametrize(
    ("window", "shape"),
    [
        (MAXIMA[1], (2, 3, 5, 6)),
        (MAXIMA[5], (2, 3, 5, 6)),
        ("kernel_shape = [2], strides = [2]", (2, 3, 5)),
        ("kernel_shape = [2, 2, 3]", (2, 3, 3, 4, 5)),
    ],
)
def test_max_pool_with_places_in_columns(check, check_runtime, window, shape, outputs, dims):
    text = f"{outputs} = MaxPool<{window}, storage_order = 1>(A)"
    check(text, {"A": shape}, dims)
    check_runtime(text, {"A": shape}, dims)


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [([2, 2], (4, 6)), ([1, 2], (3, 4)), ([4, 1], (4, 3)), ([2], (6,)), ([4], (8,)), ([2, 2], (34, 32))],
)
def test_max_pool_of_windows_side_by_side(check, kernel, sizes):
    # far from each other, for differences not to cross a tie
    image = 0.1 * np.random.default_rng(0).permutation(6 * math.prod(sizes)).reshape(2, 3, *sizes)
    gradient = check(f"Y = MaxPool<kernel_shape = {kernel}, strides = {kernel}>(A)", {"A": image})
    # The index output costs more than the comparisons, except on large images.
    scatters = "ScatterElements" in {node.op_type for node in gradient.graph.node}
    assert scatters == (sizes == (34, 32))


@pytest.mark.parametrize("window", MEANS)
def test_average_pool(check, window):
    check(f"Y = AveragePool<{window}>(A)", {"A": (2, 3, 5, 6)}, opset=19)


@pytest.mark.parametrize("window", [MEANS[0], MEANS[1], MEANS[2], MEANS[4]])
def test_average_pool_of_images_of_any_size(check, window):
    check(f"Y = AveragePool<{window}>(A)", {"A": (2, 3, 5, 6)}, "hidden", known_axes=(1,))


@pytest.mark.parametrize("window", MEANS)
def test_average_pool_of_any_number_of_images(check, window):
    """The counts of a padded window depend on the sizes of an image alone, also where pads are automatic."""
    gradient = check(
        f"Y = AveragePool<{window}>(A)", {"A": (2, 3, 5, 6)}, "hidden", known_axes=(1, 2, 3), opset=19
    )
    assert [node.op_type for node in gradient.graph.node].count("AveragePool") == 1


@pytest.mark.parametrize("window", WINDOWS)
def test_lp_pool(check, window):
    check(f"Y = LpPool<{window}, p = 3>(A)", {"A": (2, 3, 5, 6)}, rtol=1e-4)


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(
    "name", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "GlobalLpPool<p = 3>"]
)
def test_global_pool(check, name, dims):
    check(f"Y = {name}(A)", {"A": (2, 3, 4, 2)}, dims)
