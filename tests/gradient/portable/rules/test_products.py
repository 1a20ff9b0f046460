"""Products hold nearly all weights of real models: every orientation and every broadcast has its gradient."""

import itertools

import pytest

MATMUL = [
    ((3, 4), (4, 2)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((5, 2, 3, 4), (2, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4,)),
    ((3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((4,), (2, 4, 5)),
]

EINSUM = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("bij , bjk -> bik", [(2, 3, 4), (2, 4, 5)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij->j", [(2, 3)]),
    ("ij->ji", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("ij,ij->", [(2, 3), (2, 3)]),
    ("abc,cd,de->ae", [(2, 3, 4), (4, 2), (2, 3)]),
]

DIAGONALS = [
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("iji,jk->ik", [(3, 2, 3), (2, 4)]),
    ("iiji->j", [(2, 2, 3, 2)]),
    ("iijj->ij", [(2, 2, 3, 3)]),
    ("ii,ij->j", [(3, 3), (3, 2)]),
    ("ii,i->", [(3, 3), (3,)]),
    ("...ii->...i", [(2, 4, 3, 3)]),
]

ELLIPSIS = [
    ("...ij,...jk", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (1, 5, 4, 2)]),
    ("...ij,jk->...k", [(2, 3, 4), (4, 5)]),
]


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("a", "b"), MATMUL)
def test_matmul(check, a, b, dims):
    check("Y = MatMul(A, B)", {"A": a, "B": b}, dims)


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("trans_a", "trans_b"), list(itertools.product((0, 1), (0, 1))))
@pytest.mark.parametrize("c", [(5,), (1, 5), (3, 1), (3, 5), ()])
def test_gemm(check, trans_a, trans_b, c, dims):
    text = f"Y = Gemm<transA = {trans_a}, transB = {trans_b}, alpha = 0.5, beta = 2.0>(A, B, C)"
    a, b = ((4, 3) if trans_a else (3, 4)), ((5, 4) if trans_b else (4, 5))
    check(text, {"A": a, "B": b, "C": c}, dims)


def test_gemm_without_bias(check):
    gradient = check("Y = Gemm(A, B)", {"A": (3, 4), "B": (4, 5)})
    assert [node.op_type for node in gradient.graph.node] == ["Gemm"] * 3


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("equation", "shapes"), EINSUM + DIAGONALS)
def test_einsum(check, equation, shapes, dims):
    names = "ABC"[: len(shapes)]
    check(
        f'Y = Einsum<equation = "{equation}">({",".join(names)})', dict(zip(names, shapes, strict=True)), dims
    )


@pytest.mark.parametrize(("equation", "shapes"), ELLIPSIS)
def test_einsum_sums_over_the_broadcast_axes_of_an_ellipsis(check, equation, shapes):
    check(f'Y = Einsum<equation = "{equation}">(A, B)', dict(zip("AB", shapes, strict=True)))


@pytest.mark.parametrize(("equation", "shapes"), DIAGONALS[:4])
def test_diagonals_in_the_runtime(check_runtime, equation, shapes):
    names = "AB"[: len(shapes)]
    text = f'E = Einsum<equation = "{equation}">({",".join(names)}) Y = Mul(E, E)'
    check_runtime(text, dict(zip(names, shapes, strict=True)))


def test_second_derivative_of_a_diagonal(check_twice):
    check_twice('E = Einsum<equation = "ii,ij->j">(A, B) Y = Mul(E, E)', {"A": (3, 3), "B": (3, 2)})


def test_the_gradient_of_a_transposed_factor_is_a_product_without_transposition(check):
    gradient = check("T = Transpose(B) Y = MatMul(A, T)", {"A": (3, 4), "B": (5, 4)})
    assert [node.op_type for node in gradient.graph.node].count("Transpose") == 1
    gradient = check("T = Transpose<perm = [0, 2, 1]>(B) Y = MatMul(A, T)", {"A": (2, 3, 4), "B": (2, 5, 4)})
    # one of the graph, and one of the gradient of the product
    assert [node.op_type for node in gradient.graph.node].count("Transpose") <= 3
    check("T = Transpose<perm = [0, 2, 1]>(B) Y = MatMul(A, T)", {"A": (2, 2, 3, 4), "B": (2, 5, 4)})
    # one that exchanges nothing, of a square
    check("T = Transpose<perm = [0, 1]>(B) Y = MatMul(T, A)", {"B": (3, 3), "A": (3, 4)})
    check(
        "T = Transpose(B) S = MatMul(A, T) Y = Mul(S, C)", {"A": (3, 4), "B": (5, 4), "C": (3, 5)}, "hidden"
    )


def test_a_layer_of_sequences_needs_no_reshape_of_its_gradients(check):
    gradient = check("P = MatMul(A, W) Y = Add(P, B)", {"A": (2, 3, 4), "W": (4, 5), "B": (5,)})
    shapes = [node.output[0] for node in gradient.graph.node if node.op_type == "Reshape"]
    assert len(shapes) == 2
