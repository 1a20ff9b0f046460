"""Convolutions: strides that leave a rest, dilations, groups and paddings each break a naive gradient."""

import pytest

CONV = [
    ("Conv", (2, 3, 5, 6), (4, 3, 3, 2)),
    ("Conv<strides = [2, 2], pads = [1, 0, 1, 1]>", (2, 3, 5, 6), (4, 3, 3, 2)),
    ("Conv<strides = [3, 2]>", (1, 2, 7, 6), (2, 2, 2, 3)),
    ("Conv<dilations = [2, 1], strides = [1, 3]>", (1, 2, 6, 7), (2, 2, 2, 2)),
    ("Conv<group = 2, pads = [1, 1, 1, 1]>", (2, 4, 4, 4), (6, 2, 3, 3)),
    ("Conv<group = 3>", (2, 3, 4, 4), (3, 1, 3, 3)),
    ('Conv<auto_pad = "VALID">', (1, 2, 5, 6), (3, 2, 3, 3)),
    ("Conv<strides = [2]>", (2, 2, 7), (3, 2, 2)),
    ("Conv<strides = [2, 2, 2]>", (1, 1, 4, 4, 4), (1, 1, 2, 2, 2)),
]

SAME = [
    ('Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>', (1, 2, 5, 6), (3, 2, 3, 3)),
    ('Conv<auto_pad = "SAME_LOWER">', (1, 2, 5, 6), (3, 2, 2, 2)),
]

TRANSPOSE = [
    ("ConvTranspose", (2, 3, 4, 3), (3, 4, 3, 2), 4),
    ("ConvTranspose<strides = [2, 2], pads = [1, 0, 1, 1]>", (2, 3, 4, 3), (3, 4, 3, 2), 4),
    ("ConvTranspose<strides = [2, 2], output_padding = [1, 1]>", (1, 2, 3, 3), (2, 2, 3, 3), 2),
    ("ConvTranspose<dilations = [2, 2]>", (1, 2, 3, 3), (2, 2, 2, 2), 2),
    ("ConvTranspose<group = 2>", (1, 4, 3, 3), (4, 3, 2, 2), 6),
]


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("node", "x", "w"), CONV)
def test_conv(check, node, x, w, dims):
    check(f"Y = {node}(A, B, C)", {"A": x, "B": w, "C": w[:1]}, dims, known=("B",), known_axes=(1,))


@pytest.mark.parametrize(("node", "x", "w"), SAME)
def test_conv_that_pads_by_itself(check, node, x, w):
    check(f"Y = {node}(A, B, C)", {"A": x, "B": w, "C": w[:1]})


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("node", "x", "w", "channels"), TRANSPOSE)
def test_conv_transpose(check, node, x, w, channels, dims):
    check(f"Y = {node}(A, B, C)", {"A": x, "B": w, "C": (channels,)}, dims, known=("B",), known_axes=(1,))
