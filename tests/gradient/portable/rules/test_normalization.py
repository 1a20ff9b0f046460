"""Normalizations: a gradient that forgets the statistics looks right and converges to something else."""

import numpy as np
import pytest

VARIANCE = np.array([0.5, 1.0, 1.5])
STATISTICS = {"M": (3,), "V": VARIANCE}
BATCH = "BatchNormalization<epsilon = 0.01>(A, S, B, M, V)"

CASES = [
    (f"Y = {BATCH}", {"A": (2, 3, 4), "S": (3,), "B": (3,), **STATISTICS}, {"opset": 15}),
    (f"Y = {BATCH}", {"A": (2, 3, 2, 2), "S": (3,), "B": (3,), **STATISTICS}, {"since": 15}),
    (f"Y = {BATCH}", {"A": (4, 3), "S": (3,), "B": (3,), **STATISTICS}, {"since": 15}),
    (
        "Y, m, v = BatchNormalization<epsilon = 0.01, training_mode = 1>(A, S, B, M, V)",
        {"A": (2, 3, 4), "S": (3,), "B": (3,)},
        {"constants": {"M": VARIANCE, "V": VARIANCE}, "since": 15},
    ),
    ("Y = LayerNormalization(A, S, B)", {"A": (2, 3, 4), "S": (4,), "B": (4,)}, {"since": 17}),
    ("Y = LayerNormalization<axis = 1>(A, S, B)", {"A": (2, 3, 4), "S": (3, 4), "B": (3, 4)}, {"opset": 17}),
    ("Y = LayerNormalization(A, S)", {"A": (2, 3, 4), "S": (4,)}, {"since": 17}),
    # In single precision, the statistics that the operator returns are read.
    (
        "Y = LayerNormalization(A, S, B)",
        {"A": (2, 3, 4), "S": (4,), "B": (4,)},
        {"since": 17, "single": True, "rtol": 1e-4},
    ),
    (
        "Y = LayerNormalization<axis = 1>(A, S)",
        {"A": (2, 3, 4), "S": (3, 4)},
        {"opset": 17, "single": True, "rtol": 1e-4},
    ),
    # A gradient through the statistics alone is not lost; a gradient through none of them is zero.
    (
        "L, M, I = LayerNormalization(A, S) P = Mul(M, I) Q = Mul(L, I) Y = Add(P, Q)",
        {"A": (2, 3, 4), "S": (4,)},
        {"opset": 17, "single": True, "rtol": 1e-4},
    ),
    (
        "L, M, I = LayerNormalization(A, S, B) Y = Mul(M, I)",
        {"A": (2, 4), "S": (4,), "B": (4,)},
        {"opset": 17, "single": True, "rtol": 1e-4},
    ),
    ("Y = RMSNormalization(A, S)", {"A": (2, 3, 4), "S": (4,)}, {"opset": 23}),
    ("Y = InstanceNormalization(A, S, B)", {"A": (2, 3, 4, 2), "S": (3,), "B": (3,)}, {}),
    # the gradient has a factor that is the same in all places, or another one
    *(
        (
            f"H = InstanceNormalization(A, S, B) Y = Mul({pair})",
            {"A": (2, 3, 4), "G": shape},
            {"constants": {"S": np.array(scale), "B": np.array([0.0, 0.0, 0.5])}},
        )
        for pair in ("H, G", "G, H")
        for shape in ((3, 1), (2, 3, 1), (1,), (4,), (2, 3, 4))
        for scale in ([1.0, 1.0, 1.0], [1.0, 2.0, 1.0])
    ),
    (
        "Y = MeanVarianceNormalization<axes = [0, 2, 3]>(A)",
        {"A": (2, 3, 4, 2)},
        {"single": True, "rtol": 1e-4},
    ),
    ("Y = MeanVarianceNormalization<axes = [1]>(A)", {"A": (2, 5)}, {"single": True, "rtol": 1e-4}),
    # onnx evaluates this one through single precision.
    (
        "Y = GroupNormalization<num_groups = 2>(A, S, B)",
        {"A": (2, 4, 3, 2), "S": (4,), "B": (4,)},
        {"opset": 21, "rtol": 5e-3},
    ),
]

LRN = ["size = 3, alpha = 0.5, beta = 0.6, bias = 1.5", "size = 4, alpha = 0.5", "size = 1, alpha = 2.0"]


def test_gradient_is_the_derivative(check, case):
    check(*case)


@pytest.mark.parametrize("attributes", LRN)
def test_lrn(check, attributes):
    check(f"Y = LRN<{attributes}>(A)", {"A": (2, 5, 3, 2)}, "hidden", known_axes=(1,))


def test_an_old_group_normalization_is_refused(check):
    operands = {"A": (2, 4, 3, 2), "S": (2,), "B": (2,)}
    with pytest.raises(Exception, match="GroupNormalization"):
        check("Y = GroupNormalization<num_groups = 2>(A, S, B)", operands, opset=18)


@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_the_rank_after_a_group_normalization_is_kept(check, dims):
    text = "N = GroupNormalization<num_groups = 2>(A, S, B) M = MatMul(N, W) Y = Softmax(M)"
    operands = {"A": (2, 4, 3), "S": (4,), "B": (4,), "W": (3, 2)}
    # onnx evaluates this one through single precision, too.
    check(text, operands, dims, opset=21, rtol=5e-3, known_axes=(1,))
