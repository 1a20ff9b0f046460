"""Operators that the standard defines by others, which need no rule."""

import numpy as np
import pytest

HEADS = {"Q": (1, 2, 3, 4), "K": (1, 2, 5, 4), "V": (1, 2, 5, 4)}
ANGLES = {"C": np.cos(np.arange(6.0)).reshape(3, 2), "S": np.sin(np.arange(6.0)).reshape(3, 2)}
PLACES = np.array([[0, 1, 2]])

CASES = [
    ("Y = Attention(Q, K, V)", HEADS, {}),
    ("Y = Attention<is_causal = 1, scale = 0.3>(Q, K, V)", HEADS, {}),
    ("Y = Attention(Q, K, V, M)", {**HEADS, "M": (3, 5)}, {}),
    ("Y = RotaryEmbedding(A, C, S, P)", {"A": (1, 2, 3, 4), "P": PLACES}, {"constants": ANGLES}),
    ("Y = CenterCropPad<axes = [1]>(A, T)", {"A": (2, 5), "T": np.array([3])}, {}),
    ("B = Tanh(A) C = CenterCropPad<axes = [1]>(B, T) Y = Exp(C)", {"A": (2, 5), "T": np.array([7])}, {}),
]


@pytest.mark.parametrize(("text", "operands", "options"), CASES)
def test_gradient_passes_through_the_definition(check, text, operands, options):
    # onnx defines attention in single precision.
    gradient = check(text, operands, opset=23, rtol=1e-3, **options)
    assert gradient.graph.output[0].name == "Y"


@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_the_rank_after_a_computed_shape_is_kept(check, dims):
    check("S = Shape(A) R = Reshape(A, S) Y = Softmax(R)", {"A": (2, 3)}, dims, opset=13)
