"""Branches of adapters, against the formula in float64, and their merging."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.graph.adapting.branches import add_branches
from onnxsgd.graph.adapting.merge_adapters import merge_adapters
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3))

#: Nodes from X [N, 3] and W to Y; the shape of W; the same in numpy.
CASES = {
    "MatMul": ("Y = MatMul(X, W)", (3, 4), lambda X, W: X @ W),
    "Gemm": ("Y = Gemm<alpha = 0.5, beta = 2.0>(X, W, C)", (3, 4), lambda X, W: 0.5 * X @ W + 2.0),
    "Gemm, transposed": ("Y = Gemm<transB = 1>(X, W)", (4, 3), lambda X, W: X @ W.T),
    "Gemm of transposed data": (
        "T = Transpose(X) Y = Gemm<transA = 1>(T, W)", (3, 4), lambda X, W: X @ W,
    ),
    "behind a Transpose": ("T = Transpose(W) Y = MatMul(X, T)", (4, 3), lambda X, W: X @ W.T),
    "tied": (
        "Z = MatMul(X, W) T = Tanh(Z) Y = Gemm<transB = 1>(T, W)", (3, 4), lambda X, W: np.tanh(X @ W) @ W.T,
    ),
    "tied, the output first": (
        "Z = Gemm<transB = 1>(X, W) T = Tanh(Z) Y = MatMul(T, W)", (4, 3),
        lambda X, W: np.tanh(X @ W.T) @ W,
    ),
}  # fmt: skip


def parsed(nodes, weight):
    """The graph of nodes on X and W in float64, with a constant C of ones."""
    sizes, numbers = ", ".join(map(str, weight.shape)), ", ".join(map(repr, weight.ravel().tolist()))
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (double[N, 3] X) => (double[N, M] Y) <double[{sizes}] W = {{{numbers}}}, double[1] C = {{1.0}}>
    {{ {nodes} }}"""
    return lower_for_training(to_ir(onnx.parser.parse_model(text)))


@pytest.mark.parametrize("case", CASES)
def test_a_branch_adds_the_product_to_the_weight(case, run):
    nodes, shape, expected = CASES[case]
    weight = RNG.normal(size=shape)
    model = parsed(nodes, weight)
    adapted, (adapter,) = add_branches(model, ["W"], 2, 1.5)
    np.testing.assert_array_equal(run(adapted, {"X": X})["Y"], run(model, {"X": X})["Y"])
    graph = adapted.graph
    down, up = (RNG.normal(size=graph.initializers[name].shape.numpy()) for name in adapter.names)
    for name, array in zip(adapter.names, (down, up), strict=True):
        graph.initializers[name].const_value = ir.tensor(array)
    assert (down.shape[1], up.shape[0]) == (2, 2)
    product = 1.5 * down @ up
    change = product if shape == product.shape else product.T
    result = run(adapted, {"X": X})["Y"]
    np.testing.assert_allclose(result, expected(X, weight + change), rtol=1e-12)
    merged = merge_adapters(adapted, [adapter])
    assert [node.op_type for node in merged.graph] == [node.op_type for node in model.graph]
    assert set(merged.graph.initializers) == set(model.graph.initializers)
    np.testing.assert_allclose(run(merged, {"X": X})["Y"], result, rtol=1e-12)
    np.testing.assert_allclose(
        merged.graph.initializers["W"].const_value.numpy(), weight + change, rtol=1e-12
    )


def test_first_values_are_those_of_peft():
    """Kaiming uniform with a = sqrt(5): uniform between -1 / sqrt(n_inputs) and that."""
    _, (adapter,) = add_branches(parsed("Y = MatMul(X, W)", RNG.normal(size=(3, 4))), ["W"], 2, 1.0)
    values = adapter.first_values({adapter.down: (400, 50), adapter.up: (50, 7)}, np.random.RandomState(0))
    assert np.abs(values[adapter.down]).max() <= 1 / 20
    np.testing.assert_allclose(values[adapter.down].std(), 1 / 20 / np.sqrt(3), rtol=0.01)
    assert not values[adapter.up].any()


def test_units_do_not_depend_on_the_parametrisation():
    """A step of B by its unit changes the weight by a matrix of size 1 for each output."""
    sizes = []
    for rank, scale in ((2, 1.0), (8, 4.0)):
        model = parsed("Y = MatMul(X, W)", RNG.normal(size=(3, 4)))
        _, (adapter,) = add_branches(model, ["W"], rank, scale)
        shapes = {adapter.down: (900, rank), adapter.up: (rank, 5)}
        down = adapter.first_values(shapes, np.random.RandomState(0))[adapter.down]
        units = adapter.rate_units(shapes)
        np.testing.assert_allclose(units[adapter.down], np.sqrt(np.mean(down**2)), rtol=0.05)
        step = adapter.change(down, units[adapter.up] * np.eye(rank)[:, :1])
        sizes.append(np.linalg.norm(step))
    np.testing.assert_allclose(sizes, 1.0, rtol=0.05)


def test_names_are_new_and_the_model_is_unchanged():
    model = parsed("Y = MatMul(X, W)", RNG.normal(size=(3, 4)))
    once, (first,) = add_branches(model, ["W"], 1, 1.0)
    assert set(model.graph.initializers) == {"W"}
    again = merge_adapters(once, [])
    assert again is once
    assert first.names == ("W.lora_A", "W.lora_B")
