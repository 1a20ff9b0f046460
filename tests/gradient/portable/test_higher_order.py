"""A gradient is a graph like any other: its own gradient is the Hessian that second-order methods need."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.gradient.portable import differentiate

IMAGE, KERNEL = (1, 2, 4, 4), (2, 2, 2, 2)
WITHIN = np.linspace(0.5, 1.5, 6).reshape(2, 3)

CASES = [
    *(
        (f"Y = {name}(A)", {"A": (2, 3)})
        for name in (
            "Tanh",
            "Sigmoid",
            "Exp",
            "Softplus",
            "Relu",
            "Elu",
            "Selu",
            "Softmax",
            "LogSoftmax",
            "Sin",
            "Atan",
        )
    ),
    *(
        (f"Y = {name}(A)", {"A": WITHIN})
        for name in ("Log", "Sqrt", "Reciprocal", "ReduceProd", "ReduceLogSumExp", "ReduceL2")
    ),
    *((f"Y = {name}(A, B)", {"A": (2, 3), "B": WITHIN[:1]}) for name in ("Add", "Mul", "Div", "Max", "Sub")),
    ("Y = Mul(A, A)", {"A": (2, 3)}),
    ("Y = Pow(A, B)", {"A": WITHIN, "B": (3,)}),
    ("Y = Gemm<transA = 1>(A, B, C)", {"A": (4, 2), "B": (4, 3), "C": (3,)}),
    ("Y = MatMul(A, B)", {"A": (2, 3, 4), "B": (4, 2)}),
    ('Y = Einsum<equation = "ij,jk->ik">(A, B)', {"A": (2, 3), "B": (3, 2)}),
    ("Y = LayerNormalization(A, B)", {"A": (2, 4), "B": (4,)}),
    ("P = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(A) Y = Mul(P, P)", {"A": IMAGE}),
    (
        "Y = BatchNormalization(A, S, B, M, V)",
        {"A": (2, 3, 2), "S": (3,), "B": (3,), "M": (3,), "V": WITHIN[0]},
    ),
    ("Y = InstanceNormalization(A, S, B)", {"A": (2, 3, 4), "S": (3,), "B": (3,)}),
    ("Y = Conv<strides = [2, 2], pads = [1, 1, 0, 0]>(A, B)", {"A": IMAGE, "B": KERNEL}),
    ("Y = Conv<group = 2>(A, B)", {"A": IMAGE, "B": (2, 1, 2, 2)}),
    ("Y = ConvTranspose<strides = [2, 2]>(A, B)", {"A": IMAGE, "B": KERNEL}),
    ("P = MaxPool<kernel_shape = [2, 2]>(A) Y = Mul(P, P)", {"A": IMAGE}),
    ("P = AveragePool<kernel_shape = [2, 2]>(A) Y = Mul(P, P)", {"A": IMAGE}),
    ("P = Gather(A, I) Y = Mul(P, P)", {"A": (3, 2), "I": np.array([0, 0, 2])}),
    ("P = GatherElements(A, I) Y = Mul(P, P)", {"A": (3, 2), "I": np.array([[0, 0], [2, 1]])}),
    ("P = Slice(A, S, E) Y = Mul(P, P)", {"A": (4,), "S": np.array([1]), "E": np.array([3])}),
    ("P = Concat<axis = 0>(A, B) Y = Mul(P, P)", {"A": (4,), "B": (2,)}),
    ("P = Tile(A, S) Y = Mul(P, P)", {"A": (2,), "S": np.array([2])}),
    ("P = CumSum(A, S) Y = Mul(P, P)", {"A": (4,), "S": np.array(0)}),
]


@pytest.mark.parametrize(("text", "operands"), CASES)
def test_the_gradient_of_a_gradient_is_the_second_derivative(check_twice, text, operands):
    check_twice(text, operands)


def test_second_derivative_through_statistics_that_are_returned():
    rng = np.random.default_rng(0)
    names = ("A", "S", "Y_grad", "A_grad_grad", "S_grad_grad")
    feeds = {name: rng.normal(size=(4,) if "S" in name else (2, 4)) for name in names}
    found = []
    # in double precision, which has other tests, the gradient computes the statistics again
    for kind, dtype in (("float", np.float32), ("double", np.float64)):
        text = f'<ir_version: 9, opset_import: ["": 18]> g ({kind}[2, 4] A, {kind}[4] S) => ({kind}[2, 4] Y)'
        model = ir.from_proto(onnx.parser.parse_model(text + "{ Y = LayerNormalization(A, S) }"))
        twice = differentiate(differentiate(model, ["Y"], ["A", "S"]), ["A_grad", "S_grad"], ["A", "S"])
        given = {name: array.astype(dtype) for name, array in feeds.items()}
        found.append(ReferenceEvaluator(ir.to_proto(twice)).run(["A_grad_1", "S_grad_1"], given))
    for single, double in zip(*found, strict=True):
        np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-5 * np.abs(double).max())


def test_hessian_vector_product_of_a_perceptron():
    text = """
    <ir_version: 9, opset_import: ["": 18]>
    loss (double[N, 3] X, double[N, 1] T, double[3, 4] W, double[4, 1] V) => (double L)
    {
        Z = MatMul(X, W)
        H = Tanh(Z)
        Y = MatMul(H, V)
        E = Sub(Y, T)
        S = Mul(E, E)
        L = ReduceMean<keepdims = 0>(S)
    }
    """
    loss = ir.from_proto(onnx.parser.parse_model(text))
    gradient = differentiate(loss, ["L"], ["W"])
    product = ReferenceEvaluator(ir.to_proto(differentiate(gradient, ["W_grad"], ["W"])))
    rng = np.random.default_rng(0)
    x, t, w, v = (
        rng.normal(size=(5, 3)),
        rng.normal(size=(5, 1)),
        rng.normal(size=(3, 4)),
        rng.normal(size=(4, 1)),
    )
    vector = rng.normal(size=w.shape)
    fed = {"X": x, "T": t, "W": w, "V": v, "L_grad": np.array(1.0), "W_grad_grad": vector}
    found = product.run(["W_grad_1"], fed)[0]

    def first(w):
        h = np.tanh(x @ w)
        return x.T @ ((2 / 5 * (h @ v - t)) @ v.T * (1 - h * h))

    step = 1e-5
    expected = (first(w + step * vector) - first(w - step * vector)) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
