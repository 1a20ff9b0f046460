"""A wrong slope of one operator trains silently in a wrong direction: each is compared with differences."""

import numpy as np

POSITIVE = np.linspace(0.5, 2.0, 12).reshape(3, 4)
#: Far from every kink.
SPREAD = np.linspace(-3.3, 3.7, 12).reshape(3, 4)
INSIDE = np.linspace(-0.8, 0.8, 12).reshape(3, 4)

ANYWHERE = [
    "Abs",
    "Asinh",
    "Atan",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "HardSigmoid",
    "Identity",
    "LeakyRelu",
    "Neg",
    "Relu",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
]

UNARY = [
    *((f"Y = {name}(A)", {"A": SPREAD}, {}) for name in ANYWHERE),
    *((f"Y = {name}(A)", {"A": POSITIVE}, {}) for name in ("Log", "Sqrt", "Reciprocal")),
    *((f"Y = {name}(A)", {"A": INSIDE}, {}) for name in ("Acos", "Asin", "Atanh", "Tan")),
    ("Y = Acosh(A)", {"A": POSITIVE + 1}, {}),
    ("Y = HardSwish(A)", {"A": SPREAD}, {"since": 14}),
    ("Y = Elu<alpha = 0.5>(A)", {"A": SPREAD}, {}),
    ("Y = Selu<alpha = 1.5, gamma = 0.7>(A)", {"A": SPREAD}, {}),
    ("Y = LeakyRelu<alpha = 0.3>(A)", {"A": SPREAD}, {}),
    ("Y = HardSigmoid<alpha = 0.5, beta = 0.4>(A)", {"A": SPREAD}, {}),
    ("Y = ThresholdedRelu<alpha = 0.3>(A)", {"A": SPREAD}, {}),
    ("Y = Shrink<lambd = 0.4, bias = 0.2>(A)", {"A": SPREAD}, {}),
    ("Y = Celu(A)", {"A": SPREAD}, {"single": True, "rtol": 1e-5}),
    ("Y = Celu<alpha = 0.5>(A)", {"A": SPREAD}, {"single": True, "rtol": 1e-5}),
    # onnx computes the error function inside Gelu in single precision.
    ("Y = Gelu(A)", {"A": SPREAD}, {"opset": 20, "rtol": 1e-3}),
    ('Y = Gelu<approximate = "tanh">(A)', {"A": SPREAD}, {"opset": 20}),
    ("Y = Mish(A)", {"A": SPREAD}, {"opset": 22}),
    ("Y = Swish(A)", {"A": SPREAD}, {"opset": 24}),
    ("Y = Swish<alpha = 1.7>(A)", {"A": SPREAD}, {"opset": 24}),
    ("B = Cast<to = 1>(A) Y = Cast<to = 11>(B)", {"A": SPREAD}, {"rtol": 1e-3}),
]

SHAPES = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((1, 4), (3, 1)),
    ((), (3, 4)),
    ((2, 3), (1, 1, 1)),
    ((0, 3), (3,)),
]

BROADCAST = [
    *(
        (f"Y = {name}(A, B)", {"A": a, "B": b}, {})
        for name in ("Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean")
        for a, b in SHAPES
    ),
    ("Y = Div(A, B)", {"A": (3, 4), "B": POSITIVE}, {}),
    ("Y = Div(A, B)", {"A": (1, 3, 4), "B": POSITIVE[:, :1]}, {}),
    ("Y = Mul(A, A)", {"A": (3, 4)}, {}),
    ("Y = Sum(A, B, C)", {"A": (3, 4), "B": (4,), "C": (3, 1)}, {}),
    ("Y = Max(A, B, C)", {"A": (3, 4), "B": (4,), "C": (3, 1)}, {}),
    ("Y = Mean(A)", {"A": (3, 4)}, {}),
    ("Y = Pow(A, B)", {"A": POSITIVE, "B": (3, 4)}, {}),
    ("Y = Pow(A, B)", {"A": POSITIVE, "B": (4,)}, {}),
    ("Y = Pow(A, B)", {"A": (3, 4), "B": np.array(2)}, {}),
    ("Y = Pow(A, B)", {"A": (3, 4), "B": np.array([0, 1, 2, 3])}, {}),
    ("Y = Pow(A, B)", {"A": (3, 4)}, {"constants": {"B": np.array([3.0])}}),
    ("Y = Pow(A, B)", {"A": (3, 4)}, {"constants": {"B": np.array(0.0)}}),
    ("Y = PRelu(A, B)", {"A": (2, 3, 4), "B": (3, 1)}, {}),
    ("Y = Where(M, A, B)", {"M": np.array([True, False, True]), "A": (2, 3), "B": (3,)}, {}),
    ("Y = Clip(A, L, H)", {"A": (3, 4), "L": np.array(-0.5), "H": np.array(0.5)}, {}),
    ("Y = Clip(A, , H)", {"A": (3, 4)}, {"constants": {"H": np.array(0.1)}}),
    ("Y = CastLike(A, B)", {"A": (3, 4)}, {"opset": 15, "constants": {"B": POSITIVE}}),
    ("Y = Mod<fmod = 1>(A, B)", {"A": (3, 4), "B": POSITIVE[0]}, {}),
]


CASES = [*UNARY, *BROADCAST]


def test_gradient_is_the_derivative(check, case):
    check(*case)


def test_gradient_that_is_one_number_for_all_elements(check, case):
    text, *others = case
    check(text.replace("Y =", "V =") + " Y = ReduceSum<keepdims = 0>(V)", *others)
