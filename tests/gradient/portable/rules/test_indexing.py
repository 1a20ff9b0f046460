"""An element that is picked twice has two gradients to add: losing one would train embeddings wrongly."""

import numpy as np
import pytest

ROWS = np.array([1, 1, -1, 0])
DISTINCT = np.array([[1, 2], [0, -1], [2, 1]])
GRID = np.array([[1, 1], [0, -1], [2, 1]])

GATHERED = [
    ("Y = Gather(A, I)", {"A": (4, 3), "I": ROWS}),
    ("Y = Gather(A, I)", {"A": (4,), "I": GRID}),
    ("Y = Gather<axis = 1>(A, I)", {"A": (2, 4, 3), "I": GRID}),
    ("Y = Gather<axis = -1>(A, I)", {"A": (2, 4, 3), "I": np.array(1)}),
    ("Y = Gather(A, I)", {"A": (3, 2), "I": np.array(-1, dtype=np.int32)}),
]

OTHERS = [
    ("Y = GatherElements<axis = 1>(A, I)", {"A": (3, 4), "I": GRID}),
    ("Y = GatherElements<axis = 0>(A, I)", {"A": (4, 2), "I": GRID}),
    ("Y = GatherND(A, I)", {"A": (3, 4, 2), "I": np.array([[1, 1], [0, -1], [1, 1]])}),
    ("Y = GatherND<batch_dims = 1>(A, I)", {"A": (3, 4, 2), "I": np.array([[1], [0], [1]])}),
    ("Y = GatherND<batch_dims = 1>(A, I)", {"A": (2, 4), "I": np.array([[[1], [0], [1]], [[3], [3], [3]]])}),
    ("Y = Compress<axis = 1>(A, M)", {"A": (2, 4), "M": np.array([False, True, True])}),
    ("Y = Compress(A, M)", {"A": (2, 3), "M": np.array([False, True, True, True])}),
    ("Y = OneHot<axis = 0>(I, D, A)", {"I": ROWS, "D": np.array(5), "A": (2,)}),
    ("Y = OneHot(I, D, A)", {"I": GRID, "D": np.array(4, dtype=np.int32), "A": (2,)}),
    ("Y, Z = TopK<axis = 1>(A, K)", {"A": (3, 5), "K": np.array([2])}),
    ("Y, Z = TopK<axis = 0, largest = 0>(A, K)", {"A": (3, 5), "K": np.array([2])}),
]

BEFORE_SCATTER_COULD_ADD = [
    ("Y = GatherElements<axis = 1>(A, I)", {"A": (3, 4), "I": GRID}),
    ("Y = GatherElements<axis = 1>(A, I)", {"A": (5, 4), "I": GRID}),
    ("Y = GatherElements<axis = 0>(A, I)", {"A": (4, 3), "I": GRID}),
    ("Y = GatherND(A, I)", {"A": (3, 4, 2), "I": np.array([[1, 1], [0, -1], [1, 1]])}),
    ("Y = GatherND(A, I)", {"A": (3, 4), "I": np.array([[1, 1], [0, -1], [1, 1]])}),
    ("Y = GatherND<batch_dims = 1>(A, I)", {"A": (2, 4), "I": np.array([[[1], [0], [1]], [[3], [3], [-1]]])}),
    ("Y = GatherND<batch_dims = 1>(A, I)", {"A": (3, 4, 2), "I": np.array([[1], [0], [1]])}),
]

SLICES = [
    ([1], [3], [0], [1]),
    ([0, -3], [100, -1], [0, 1], [1, 1]),
    ([0], [5], [1], [2]),
    ([-1, 1], [-100, 3], [1, 0], [-2, 1]),
    ([3], [1], [1], [1]),
]


CASES = [(text, operands, {}) for text, operands in GATHERED] + [
    (text, operands, {"since": 16}) for text, operands in OTHERS
]


def test_gradient_is_the_derivative(check, case):
    check(*case)


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("text", "operands"), BEFORE_SCATTER_COULD_ADD)
def test_indices_that_repeat_before_scatter_could_add(check, text, operands, dims):
    known = ("I",) if "ND" in text else ()
    check(text, operands, dims, opset=13, known=known)


@pytest.mark.parametrize("depth", [np.array(5), np.array(5, dtype=np.int32)])
def test_values_of_one_hot_in_the_runtime(check_runtime, depth):
    text = "H = OneHot<axis = 0>(I, D, A) Y = Mul(H, H)"
    check_runtime(text, {"I": ROWS, "D": depth, "A": (2,)}, known=("A",))


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slice(check, starts, ends, axes, steps, dims):
    bounds = {"S": np.array(starts), "E": np.array(ends), "X": np.array(axes), "P": np.array(steps)}
    check("Y = Slice(A, S, E, X, P)", {"A": (4, 5), **bounds}, dims)


@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_slice_with_bounds_only(check, dims):
    check("Y = Slice(A, S, E)", {"A": (4, 5), "S": np.array([1]), "E": np.array([3])}, dims)


def test_slice_with_as_many_bounds_as_the_graph_finds(check, check_runtime):
    text = "S = NonZero(B) T = Reshape(S, M) E = Add(T, T) Y = Slice(A, T, E)"
    operands = {"A": (4, 5), "B": np.array([0, 1]), "M": np.array([-1])}
    check(text, operands)
    check_runtime(text, operands)


def test_slice_with_short_integers_as_bounds(check):
    bounds = {
        "S": np.array([1], dtype=np.int32),
        "E": np.array([3], dtype=np.int32),
        "X": np.array([1], dtype=np.int32),
    }
    check("Y = Slice(A, S, E, X)", {"A": (4, 5), **bounds}, "hidden")


def test_slice_whose_bounds_the_graph_computes(check):
    text = "E = Shape<start = 0, end = 1>(B) Y = Slice(A, S, E, X)"
    check(text, {"A": (4, 5), "B": (3, 1), "S": np.array([1]), "X": np.array([1])}, "hidden")


PARTITIONS = [
    # queries, keys and values; one of them is not read
    "Q = Gather(A, I) K = Gather(A, J) V = Gather(A, L) P = Mul(Q, V) Y = Add(P, K)",
    "Q = Gather(A, I) K = Gather(A, J) V = Gather(A, L) Y = Mul(Q, K)",
    # a rolled axis; parts that are picked and sliced
    "Q = Slice(A, one, end, axis) K = Slice(A, zero, one, axis) Y = Concat<axis = 1>(Q, K)",
    "Q = Gather<axis = 1>(A, zero) K = Slice(A, one, end, axis) P = Mul(Q, K) Y = Mul(P, K)",
]


@pytest.mark.parametrize("text", PARTITIONS)
def test_parts_that_make_up_a_tensor(check, text):
    places = {"I": np.array(0), "J": np.array(2), "L": np.array(-2)}
    bounds = {name: np.array([place]) for name, place in (("zero", 0), ("one", 1), ("end", 99), ("axis", 1))}
    gradient = check(text, {"A": (3, 4, 2)}, constants={**places, **bounds})
    operators = {node.op_type for node in gradient.graph.node}
    assert not operators & {"ScatterND", "Pad"}


def test_incomplete_parts_are_no_partition(check):
    places = {"I": np.array(0), "J": np.array(2)}
    check("Q = Gather(A, I) K = Gather(A, J) Y = Mul(Q, K)", {"A": (3, 4)}, constants=places)
    check("Q = Gather(A, I) K = Gather(A, I) Y = Mul(Q, K)", {"A": (2, 4)}, constants=places)


@pytest.mark.parametrize("step", [1, -2])
def test_slice_whose_axes_the_graph_computes(check, check_runtime, step):
    bounds = {"S": np.array([1 if step > 0 else 4]), "E": np.array([3 if step > 0 else 0])}
    text = "X = Shape<start = 0, end = 1>(B) U = Slice(A, S, E, X, P) Y = Mul(U, U)"
    operands = {"A": (4, 5), "B": (1, 3), "P": np.array([step]), **bounds}
    check(text, operands, "hidden")
    check_runtime(text, operands)
