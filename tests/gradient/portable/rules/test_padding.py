"""Padding: a copied element has the gradients of its copies, and the padding value has one too."""

import numpy as np
import pytest

PADS = np.array([1, 2, 2, 3])
MIXED = np.array([1, -1, -1, 2])
LAST, FIRST = np.array([-1]), np.array([0])

CASES = [
    ("Y = Pad(A, P)", {"A": (2, 3), "P": np.array([1, 0, 2, 3])}, {}),
    ("Y = Pad(A, P)", {"A": (2, 3), "P": MIXED}, {}),
    ("Y = Pad(A, P, , X)", {"A": (2, 3), "P": np.array([1, 2]), "X": LAST}, {"since": 18}),
    ("P = Identity(B) Y = Pad(A, P)", {"A": (2, 3), "B": np.array([1, -1, 2, 3])}, {}),
    ("P = Identity(B) Y = Pad(A, P, , X)", {"A": (2, 3), "B": PADS[:2], "X": FIRST}, {"since": 18}),
    ("Y = Pad(A, P, V)", {"A": (2, 3), "P": PADS, "V": ()}, {}),
    ("Y = Pad(A, P, V)", {"A": (2, 3), "P": MIXED, "V": ()}, {}),
    ("Y = Pad(A, P, V, X)", {"A": (2, 3), "P": PADS[:2], "V": (), "X": LAST}, {"since": 18}),
    ("P = Identity(B) Y = Pad(A, P, V)", {"A": (2, 3), "B": PADS, "V": ()}, {}),
    ('Y = Pad<mode = "edge">(A, P, V)', {"A": (2, 3), "P": PADS, "V": ()}, {}),
    *(
        case
        for mode, since in (("reflect", 13), ("edge", 13), ("wrap", 19))
        for case in (
            (f'Y = Pad<mode = "{mode}">(A, P)', {"A": (3, 4), "P": PADS}, {"since": since}),
            (f'Y = Pad<mode = "{mode}">(A, P)', {"A": (4, 5), "P": MIXED}, {"since": since}),
            (
                f'Y = Pad<mode = "{mode}">(A, P, , X)',
                {"A": (3, 4), "P": np.array([2, 3]), "X": LAST},
                {"since": max(since, 18)},
            ),
            (
                f'P = Identity(B) Y = Pad<mode = "{mode}">(A, P, , X)',
                {"A": (3, 4), "B": np.array([2, 1]), "X": FIRST},
                {"since": max(since, 18)},
            ),
        )
    ),
    ('Y = Pad<mode = "wrap">(A, P)', {"A": (2,), "P": np.array([5, 3])}, {"since": 19}),
]


def test_gradient_is_the_derivative(check, case):
    check(*case)


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_copies_in_the_runtime(check_runtime, mode, dims):
    text = f'P = Pad<mode = "{mode}">(A, P, , X) Y = Mul(P, P)'
    check_runtime(text.replace("A, P", "A, B"), {"A": (3, 4), "B": PADS[1:3], "X": LAST}, dims, opset=19)


@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_values_in_the_runtime(check_runtime, dims):
    text = "P = Pad(A, B, V) Y = Mul(P, P)"
    check_runtime(text, {"A": (3, 4), "B": PADS, "V": (1,)}, dims)


def test_second_derivatives(check_twice):
    check_twice('P = Pad<mode = "reflect">(A, B) Y = Mul(P, P)', {"A": (3, 4), "B": PADS})
    check_twice("P = Pad(A, B, V) Y = Mul(P, P)", {"A": (3, 4), "B": PADS, "V": ()})
