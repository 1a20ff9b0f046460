"""Sampling at places of a grid: the image learns through the pixels read, the grid through their weights."""

import itertools

import numpy as np
import pytest

PADDINGS = ["zeros", "border", "reflection"]


def places(shape, sizes, aligned):
    """Return a random grid, also beyond the image, away from the kinks at the pixels and halfway."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(-3, size + 2, shape) + rng.choice([0.2, 0.3, 0.7, 0.8], shape) for size in sizes]
    ranges = zip(pixels, sizes, strict=True)
    parts = [2 * x / (size - 1) - 1 if aligned else (2 * x + 1) / size - 1 for x, size in ranges]
    return np.stack(parts[::-1], axis=-1)


def cases(modes, image, shape, **options):
    """Return a case for each mode, padding and alignment."""
    return [
        (
            f'Y = GridSample<mode = "{mode}", padding_mode = "{padding}", align_corners = {aligned}>(A, G)',
            {"A": image, "G": places((image[0], *shape), image[2:], aligned)},
            options,
        )
        for mode, padding, aligned in itertools.product(modes, PADDINGS, (0, 1))
    ]


PLANES = cases(["bilinear", "bicubic", "nearest"], (2, 3, 4, 5), (3, 2), opset=16)
NEWER = cases(["linear", "cubic"], (2, 3, 4, 5), (3, 2), opset=20)
VOLUMES = cases(["linear", "nearest"], (1, 2, 3, 4, 2), (1, 3, 1), opset=20)
CASES = PLANES + NEWER + VOLUMES + cases(["cubic"], (1, 1, 3, 4, 2), (1, 2, 1), opset=20)


def test_gradient_is_the_derivative(check, case):
    check(*case)


@pytest.mark.parametrize("image", [(1, 2, 1, 1), (1, 2, 1, 3), (1, 2, 2, 1)])
@pytest.mark.parametrize("padding", PADDINGS)
def test_images_of_few_pixels(check, image, padding):
    grid = places((1, 2, 3), image[2:], aligned=0)
    check(f'Y = GridSample<padding_mode = "{padding}">(A, G)', {"A": image, "G": grid}, opset=16)


@pytest.mark.parametrize("padding", PADDINGS)
def test_one_pixel_with_aligned_corners_has_no_slope(gradients, padding):
    text = f'Y = GridSample<padding_mode = "{padding}", align_corners = 1>(A, G)'
    image, grid = gradients(text, 16, A=np.ones((1, 1, 1, 1)), G=np.full((1, 1, 3, 2), 0.3))
    np.testing.assert_array_equal(image, [[[[3.0]]]])
    np.testing.assert_array_equal(grid, np.zeros((1, 1, 3, 2)))


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("text", "operands", "options"), PLANES + VOLUMES + NEWER[:6])
def test_gradients_in_the_runtime(check_runtime, text, operands, options, dims):
    check_runtime(text, operands, dims, **options)


@pytest.mark.parametrize(("text", "operands", "options"), NEWER[2:12:4])
def test_second_derivatives(check_twice, text, operands, options):
    image, grid = operands["A"], operands["G"]
    check_twice(text.replace("Y", "S") + " Y = Mul(S, S)", {"A": image, "G": grid[:, :1]}, **options)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_torch_has_the_same_gradients(gradients, mode, padding, aligned):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    image, grid = rng.normal(size=(2, 3, 4, 5)), rng.uniform(-1.0, 1.0, size=(2, 3, 2, 2))
    if mode != "bicubic":
        grid = 2 * grid
    leaves = [torch.tensor(array, requires_grad=True) for array in (image, grid)]
    torch.nn.functional.grid_sample(*leaves, mode, padding, bool(aligned)).sum().backward()
    text = f'Y = GridSample<mode = "{mode}", padding_mode = "{padding}", align_corners = {aligned}>(A, G)'
    for found, leaf in zip(gradients(text, 16, A=image, G=grid), leaves, strict=True):
        np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_at_a_pixel_the_slope_is_that_to_the_next_one(gradients):
    image, grid = np.array([[[[1.0, 3.0, 9.0]]]]), np.array([[[[0.0, 0.0]]]])
    found = gradients("Y = GridSample<align_corners = 1>(A, G)", 16, A=image, G=grid)[1]
    np.testing.assert_allclose(found.ravel(), [6.0, 0.0], rtol=1e-15)
