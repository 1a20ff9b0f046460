"""Reductions shrink a tensor: a gradient of the wrong scale would train all weights alike, wrongly."""

import numpy as np

POSITIVE = np.linspace(0.5, 2.0, 24).reshape(2, 3, 4)[:, ::-1].copy()
ZEROS = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.5, 2.0, -3.0]])
NAMES = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
]


def _reductions():
    for opset in (13, 18):
        for name in NAMES:
            given = {"A": POSITIVE if name == "ReduceLogSum" else (2, 3, 4)}
            options = {"opset": opset}
            for keepdims in (0, 1):
                yield f"Y = {name}<keepdims = {keepdims}>(A)", given, options
                for axes in ([1], [0, -1]):
                    if name == "ReduceSum" or opset >= 18:
                        operands = {**given, "X": np.array(axes)}
                        yield f"Y = {name}<keepdims = {keepdims}>(A, X)", operands, options
                    else:
                        yield f"Y = {name}<keepdims = {keepdims}, axes = {axes}>(A)", given, options


OTHERS = [
    ("Y = ReduceSum<noop_with_empty_axes = 1>(A)", {"A": (2, 3)}, {}),
    ("Y = ReduceProd<keepdims = 0>(A, X)", {"A": ZEROS, "X": np.array([1])}, {"since": 18}),
    (
        "X = Shape<start = 1, end = 2>(B) Y = ReduceSum<keepdims = 0>(A, X)",
        {"A": (2, 3), "B": (2, 1)},
        {"since": 15},
    ),
    ("X = Shape<start = 1, end = 2>(B) Y = ReduceMean(A, X)", {"A": (2, 3), "B": (2, 1)}, {"since": 18}),
    ("Y = CumSum(A, X)", {"A": (3, 4), "X": np.array(1)}, {}),
    ("Y = CumSum<exclusive = 1>(A, X)", {"A": (3, 4), "X": np.array(0)}, {}),
    ("Y = CumSum<reverse = 1, exclusive = 1>(A, X)", {"A": (3, 4), "X": np.array(-1)}, {}),
    ("Y = Range(A, B, C)", {"A": np.array(0.5), "B": np.array(3.0), "C": np.array(0.7)}, {}),
    ("Y = LpNormalization<p = 1, axis = 1>(A)", {"A": (3, 4)}, {}),
    ("Y = LpNormalization<p = 2, axis = 0>(A)", {"A": (3, 4)}, {}),
]


CASES = [*_reductions(), *OTHERS]


def test_gradient_is_the_derivative(check, case):
    check(*case)
