"""Operators that move elements: gradients move back to the same places, and no others."""

import numpy as np

CASES = [
    ("Y = Reshape(A, S)", {"A": (2, 6), "S": np.array([3, -1])}, {}),
    ("Y = Reshape(A, S)", {"A": (2, 6), "S": np.array([0, 2, 3])}, {}),
    ("Y = Flatten(A)", {"A": (2, 3, 4)}, {}),
    ("Y = Transpose<perm = [1, 2, 0]>(A)", {"A": (2, 3, 4)}, {}),
    ("Y = Transpose(A)", {"A": (2, 3, 4)}, {}),
    ("Y = Concat<axis = 1>(A, B, C)", {"A": (2, 3), "B": (2, 1), "C": (2, 2)}, {}),
    ("Y = Concat<axis = -1>(A, A)", {"A": (2, 3)}, {}),
    ("Y = Concat<axis = 0>(A)", {"A": (2, 3)}, {}),
    ("Y, Z = Split<axis = 1>(A, S)", {"A": (2, 5), "S": np.array([2, 3])}, {"outputs": ("Y", "Z")}),
    ("Y, Z = Split<axis = -1>(A, S)", {"A": (2, 5), "S": np.array([2, 3])}, {"outputs": ("Z",)}),
    ("Y, Z = Split<axis = 1>(A, S)", {"A": (2, 5), "S": np.array([2, 3])}, {}),
    ("Y, Z = Split<num_outputs = 2>(A)", {"A": (3, 2)}, {"outputs": ("Y", "Z"), "since": 18}),
    ("Y = Squeeze(A, S)", {"A": (2, 1, 3), "S": np.array([1])}, {}),
    ("Y = Squeeze(A)", {"A": (2, 1, 3)}, {}),
    ("Y = Unsqueeze(A, S)", {"A": (2, 3), "S": np.array([0, -1])}, {}),
    ("Y = Expand(A, S)", {"A": (3, 1), "S": np.array([2, 1, 4])}, {}),
    ("Y = Expand(A, S)", {"A": (2, 3, 4), "S": np.array([1, 4])}, {}),
    ("Y = Tile(A, S)", {"A": (2, 3), "S": np.array([2, 3])}, {}),
    ("Y = Reshape<allowzero = 1>(A, S)", {"A": (2, 6), "S": np.array([3, -1])}, {"since": 14}),
    ("Y = Reshape<allowzero = 1>(A, S)", {"A": (0, 6), "S": np.array([3, 0])}, {"since": 14}),
    ("Y = Trilu(A)", {"A": (3, 4)}, {"since": 14}),
    ("Y = Trilu<upper = 0>(A, K)", {"A": (3, 4), "K": np.array(1)}, {"since": 14}),
    ("Y = DepthToSpace<blocksize = 2>(A)", {"A": (1, 8, 2, 3)}, {}),
    ('Y = DepthToSpace<blocksize = 2, mode = "CRD">(A)', {"A": (1, 8, 2, 3)}, {"known_axes": (1,)}),
    ("Y = SpaceToDepth<blocksize = 2>(A)", {"A": (1, 2, 4, 6)}, {}),
    ("Y = ReverseSequence<batch_axis = 0, time_axis = 1>(A, L)", {"A": (2, 4, 3), "L": np.array([3, 2])}, {}),
]


def test_gradient_is_the_derivative(check, case):
    check(*case)
