"""Softmax, losses and dropout, the ends of most classifiers."""

import numpy as np
import pytest

LABELS = np.array([1, 0, 3])
GRID = np.array([[1, 0, 3], [2, 2, 1]])
WEIGHTS = np.array([0.5, 1.0, 1.5, 2.0])

TRAINED = {"R": np.array(0.4), "T": np.array(True)}
APPLIED = {"R": np.array(0.4), "T": np.array(False)}

CASES = [
    *(
        (f"Y = {name}<axis = {axis}>(A)", {"A": (2, 3, 4)}, {})
        for name in ("Softmax", "LogSoftmax")
        for axis in (-1, 0, 1)
    ),
    ("Y = SoftmaxCrossEntropyLoss(A, L)", {"A": (3, 4), "L": LABELS}, {}),
    (
        'Y, P = SoftmaxCrossEntropyLoss<reduction = "sum", ignore_index = 0>(A, L, W)',
        {"A": (3, 4), "L": LABELS},
        {"constants": {"W": WEIGHTS}, "outputs": ("Y", "P")},
    ),
    ('Y = SoftmaxCrossEntropyLoss<reduction = "none">(A, L)', {"A": (2, 4, 3), "L": GRID}, {}),
    (
        "Y = SoftmaxCrossEntropyLoss<ignore_index = 2>(A, L, W)",
        {"A": (2, 4, 3), "L": GRID},
        {"constants": {"W": WEIGHTS}},
    ),
    ("Y = NegativeLogLikelihoodLoss(A, L, W)", {"A": (2, 4, 3), "L": GRID}, {"constants": {"W": WEIGHTS}}),
    ("Y = NegativeLogLikelihoodLoss<ignore_index = 3>(A, L)", {"A": (3, 4), "L": LABELS}, {}),
    *(
        (f'{outputs} = {name}<reduction = "{reduction}"{more}>(A, L, W)', operands, options)
        for name, outputs, options in (
            ("SoftmaxCrossEntropyLoss", "Y", {}),
            ("SoftmaxCrossEntropyLoss", "Y, P", {"outputs": ("Y", "P")}),
            ("SoftmaxCrossEntropyLoss", "Z, Y", {}),
            ("NegativeLogLikelihoodLoss", "Y", {}),
        )
        for reduction in ("none", "sum", "mean")
        for more, operands in (
            ("", {"A": (3, 4), "L": LABELS, "W": WEIGHTS}),
            (", ignore_index = 3", {"A": (2, 4, 3), "L": GRID, "W": WEIGHTS}),
        )
    ),
    ("Y = Dropout(A)", {"A": (3, 4)}, {}),
    ("Y = Dropout<seed = 3>(A, R, T)", {"A": (3, 4)}, {"constants": TRAINED}),
    ("Y = Dropout<seed = 3>(A, R, T)", {"A": (3, 4)}, {"constants": APPLIED}),
]


def test_gradient_is_the_derivative(check, case):
    check(*case)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_weights_of_classes_in_the_runtime(check_runtime, name, reduction):
    text = f'Y = {name}<reduction = "{reduction}", ignore_index = 2>(A, L, W)'
    check_runtime(text, {"A": (2, 4, 3), "L": GRID, "W": WEIGHTS})


def test_impossible_classes_do_not_spoil_the_weights(gradients):
    scores, labels, weights = np.array([[-0.5, -np.inf]]), np.array([0]), np.ones(2)
    found = gradients(
        'Y = NegativeLogLikelihoodLoss<reduction = "sum">(A, L, W)', A=scores, L=labels, W=weights
    )
    np.testing.assert_array_equal(found[1], [0.5, 0.0])


def test_scores_of_unknown_rank(check):
    text = "S = Shape(A) B = Reshape(A, S) Y = NegativeLogLikelihoodLoss(B, L, W)"
    check(text, {"A": (3, 4), "L": LABELS, "W": WEIGHTS}, "hidden")


def test_rows_without_a_possible_class_have_no_gradient(gradients):
    scores = np.array([[0.3, -0.2, 0.5], [-np.inf, -np.inf, -np.inf]])
    text = "S = Softmax(A) N = IsNaN(S) Z = Where(N, O, S) Y = Mul(Z, Z)"
    with np.errstate(invalid="ignore"):
        found = gradients(text, A=scores, O=np.array(0.0))
    alone = gradients("S = Softmax(A) Y = Mul(S, S)", A=scores[:1])
    np.testing.assert_allclose(found[0], [*alone[0], [0.0, 0.0, 0.0]])
