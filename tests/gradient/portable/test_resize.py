"""Resizing: every way of placing the pixels has weights of its own, and the gradient must use the same."""

import numpy as np
import pytest

from onnxsgd.exceptions import NotTrainableError

MODES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]
SCALES = {"S": np.array([1.0, 1.0, 1.5, 0.6], dtype=np.float32)}
CUBIC = 'mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1'
RTOL = 1e-5  # onnx places the pixels in single precision


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("mode", MODES)
def test_scales(check, mode, kind):
    text = f'Y = Resize<mode = "{kind}", coordinate_transformation_mode = "{mode}">(A, , S)'
    check(text, {"A": (1, 2, 4, 5)}, constants=SCALES, opset=19, rtol=RTOL)


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
def test_sizes(check, kind):
    text = f'Y = Resize<mode = "{kind}", axes = [1, 2]>(A, , , S)'
    check(text, {"A": (2, 3, 4), "S": np.array([2, 7])}, opset=18, rtol=RTOL)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_roundings(check, rounding):
    text = f'Y = Resize<nearest_mode = "{rounding}">(A, , S)'
    check(text, {"A": (1, 1, 4, 5)}, constants=SCALES, opset=13, rtol=RTOL)


@pytest.mark.parametrize(
    "attributes", ['mode = "linear", antialias = 1', 'mode = "cubic", antialias = 1', CUBIC]
)
def test_weights_of_further_neighbours(check, attributes):
    check(f"Y = Resize<{attributes}>(A, , S)", {"A": (1, 1, 7, 9)}, constants=SCALES, opset=19, rtol=RTOL)


def test_a_batch_of_any_size(check):
    text = 'Y = Resize<mode = "linear">(A, , S)'
    check(text, {"A": (1, 2, 4, 5)}, "hidden", constants=SCALES, known_axes=(2, 3), rtol=RTOL)


@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel"])
def test_repeated_pixels_of_images_of_any_size(check, mode):
    rounding = "floor" if mode == "asymmetric" else "round_prefer_floor"
    text = f'Y = Resize<coordinate_transformation_mode = "{mode}", nearest_mode = "{rounding}">(A, , S)'
    scales = {"S": np.array([1.0, 1.0, 2.0, 3.0], dtype=np.float32)}
    gradient = check(text, {"A": (2, 2, 3, 4)}, "hidden", constants=scales)
    assert "AveragePool" in {node.op_type for node in gradient.graph.node}


def test_sizes_that_are_not_known_are_refused(check):
    with pytest.raises(NotTrainableError, match="Resize .*needs a known size of axis 2"):
        check('Y = Resize<mode = "linear">(A, , S)', {"A": (1, 2, 4, 5)}, "hidden", constants=SCALES)
