"""Updates that meet at one element: each reduction shares the gradient among them in its own way."""

import numpy as np
import pytest

from onnxsgd.gradient.portable.rules.scattering import _REDUCTIONS

DISTINCT = np.array([[1, 2], [0, -1], [2, 1]])
REPEATED = np.array([[1, 1], [0, -1], [2, 2]])
PAIRS = np.array([[1, 0], [3, 2], [1, 0], [-3, 0]])
REDUCTIONS = ["add", "mul", "max", "min"]

CASES = [
    ("Y = ScatterElements<axis = 1>(A, I, U)", {"A": (3, 4), "I": DISTINCT, "U": (3, 2)}, {}),
    ("Y = ScatterND(A, I, U)", {"A": (4, 3), "I": np.array([[1], [3]]), "U": (2, 3)}, {}),
    *(
        (text, operands, {"since": 18 if kind in ("max", "min") else 16})
        for kind in REDUCTIONS
        for text, operands in (
            (
                f'Y = ScatterElements<axis = 1, reduction = "{kind}">(A, I, U)',
                {"A": (3, 4), "I": REPEATED, "U": (3, 2)},
            ),
            (
                f'Y = ScatterElements<axis = -2, reduction = "{kind}">(A, I, U)',
                {"A": (4, 2), "I": REPEATED, "U": (3, 2)},
            ),
            (
                f'Y = ScatterND<reduction = "{kind}">(A, I, U)',
                {"A": (4, 3), "I": np.array([[1], [1], [-3]]), "U": (3, 3)},
            ),
            (f'Y = ScatterND<reduction = "{kind}">(A, I, U)', {"A": (4, 3), "I": PAIRS, "U": (4,)}),
        )
    ),
]


def test_every_reduction_has_a_case():
    assert set(_REDUCTIONS) == {"none", *REDUCTIONS}


def test_gradient_is_the_derivative(check, case):
    check(*case)


@pytest.mark.parametrize("zeros", [[0], [0, 1], [0, 1, 2]])
def test_products_with_zeros_among_the_factors(check, zeros):
    factors = np.array([0.5, 2.0, 3.0])
    factors[zeros] = 0.0
    operands = {"A": factors[:1], "I": np.array([0, 0]), "U": factors[1:]}
    check('Y = ScatterElements<reduction = "mul">(A, I, U)', operands)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_all_that_tie_share_the_gradient(gradients, kind):
    data, updates = np.array([5.0, 2.0, 9.0]), np.array([2.0, 2.0, 7.0])
    sign = 1 if kind == "max" else -1
    text = f'Y = ScatterElements<reduction = "{kind}">(A, I, U)'
    a, u = gradients(text, A=sign * data, I=np.array([1, 1, 0]), U=sign * updates)
    np.testing.assert_allclose(a, [0.0, 1 / 3, 1.0], rtol=1e-15)
    np.testing.assert_allclose(u, [1 / 3, 1 / 3, 1.0], rtol=1e-15)


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_second_derivatives(check_twice, kind):
    text = f'P = ScatterElements<reduction = "{kind}">(A, I, U) Y = Mul(P, P)'
    check_twice(text, {"A": (4,), "I": np.array([1, 1, 2]), "U": (3,)})


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_gradients_in_the_runtime(check_runtime, kind, dims):
    text = f'Y = ScatterElements<axis = 1, reduction = "{kind}">(A, I, U)'
    check_runtime(text, {"A": (3, 4), "I": REPEATED, "U": (3, 2)}, dims)
    text = f'Y = ScatterND<reduction = "{kind}">(A, I, U)'
    check_runtime(text, {"A": (4, 3), "I": PAIRS, "U": (4,)}, dims)
