"""Softmax, losses and dropout, the ends of most classifiers."""

import numpy as np

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
    ("Y = Dropout(A)", {"A": (3, 4)}, {}),
    ("Y = Dropout<seed = 3>(A, R, T)", {"A": (3, 4)}, {"constants": TRAINED}),
    ("Y = Dropout<seed = 3>(A, R, T)", {"A": (3, 4)}, {"constants": APPLIED}),
]


def test_gradient_is_the_derivative(check, case):
    check(*case)
