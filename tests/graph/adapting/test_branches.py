"""Branches of adapters, against the formula in float64, and their merging."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.graph.adapting.branches import Adapter, add_branches
from onnxsgd.graph.adapting.merge_adapters import merge_adapters
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir, to_proto

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
    down, up = fill(adapted, adapter)
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


#: Nodes from an image X to Y, with kernels W; the shape of W.
CONVOLUTIONS = {
    "plain": ("Y = Conv(X, W)", (4, 2, 3, 3)),
    "strides, pads, dilations": (
        "Y = Conv<strides = [2, 1], pads = [1, 2, 0, 2], dilations = [1, 2]>(X, W, C)", (4, 2, 3, 2),
    ),
    "padded": ('Y = Conv<auto_pad = "SAME_UPPER", kernel_shape = [3, 3]>(X, W)', (4, 2, 3, 3)),
    "of size 1": ("Y = Conv(X, W, C)", (4, 2, 1, 1)),
    "of two layers with the same kernels": ("Z = Conv(X, W) T = Tanh(Z) Y = Conv(T, W)", (2, 2, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_adds_the_product_to_the_kernels(case):
    """In the evaluator of onnx: the runtime has no convolutions in float64."""
    nodes, shape = CONVOLUTIONS[case]
    weight = RNG.normal(size=shape)
    sizes = ", ".join(map(str, shape))
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (double[N, 2, 7, 8] X) => (double Y) <double[{sizes}] W = {{{", ".join(map(str, weight.ravel()))}}},
    double[4] C = {{1.0, 2.0, 3.0, 4.0}}> {{ {nodes} }}"""
    model = lower_for_training(to_ir(onnx.parser.parse_model(text)))
    adapted, (adapter,) = add_branches(model, ["W"], 3, 0.5)
    image = {"X": RNG.normal(size=(2, 2, 7, 8))}
    down, up = fill(adapted, adapter)
    assert down.shape == (3, *shape[1:])
    assert up.shape == (shape[0], 3, 1, 1)
    change = 0.5 * np.einsum("orij,rchw->ochw", up, down)
    expected = model.clone()
    expected.graph.initializers["W"].const_value = ir.tensor(weight + change)
    result = evaluated(adapted, image)
    np.testing.assert_allclose(result, evaluated(expected, image), rtol=1e-10, atol=1e-12)
    merged = merge_adapters(adapted, [adapter])
    assert [node.op_type for node in merged.graph] == [node.op_type for node in model.graph]
    np.testing.assert_allclose(
        merged.graph.initializers["W"].const_value.numpy(), weight + change, rtol=1e-12
    )


def evaluated(model, feeds):
    return ReferenceEvaluator(to_proto(model)).run(None, feeds)[0]


def fill(model, adapter):
    """Put random numbers into an adapter, and return them."""
    arrays = [RNG.normal(size=model.graph.initializers[name].shape.numpy()) for name in adapter.names]
    for name, array in zip(adapter.names, arrays, strict=True):
        model.graph.initializers[name].const_value = ir.tensor(array)
    return arrays


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("Y = Gather(W, I)", lambda rows, W: W[rows]),
        ("Y = Gather<axis = -2>(W, I)", lambda rows, W: W[rows]),
        ("E = Gather(W, I) T = Transpose(W) Y = MatMul(E, T)", lambda rows, W: W[rows] @ W.T),
        ("T = Identity(W) Y = Gather(T, I)", lambda rows, W: W[rows]),
    ],
)
def test_rows_of_an_embedding_have_the_product_added(nodes, expected, run):
    weight, rows = RNG.normal(size=(6, 3)), np.array([[0, 5, 5], [-1, 2, 3]])
    numbers = ", ".join(map(str, weight.ravel()))
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (int64[N, 3] I) => (double Y) <double[6, 3] W = {{{numbers}}}> {{ {nodes} }}"""
    model = lower_for_training(to_ir(onnx.parser.parse_model(text)))
    adapted, (adapter,) = add_branches(model, ["W"], 2, 1.5)
    # as in peft, A starts at zero, so that an update changes the rows it reads alone
    values = {name: value.const_value.numpy() for name, value in adapted.graph.initializers.items()}
    assert not values[adapter.down].any()
    assert values[adapter.up].std() > 0.1
    np.testing.assert_array_equal(run(adapted, {"I": rows})["Y"], run(model, {"I": rows})["Y"])
    down, up = fill(adapted, adapter)
    result = run(adapted, {"I": rows})["Y"]
    np.testing.assert_allclose(result, expected(rows, weight + 1.5 * down @ up), rtol=1e-12)
    merged = merge_adapters(adapted, [adapter])
    np.testing.assert_allclose(run(merged, {"I": rows})["Y"], result, rtol=1e-12)


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


def test_units_of_kernels_and_of_rows():
    kernels = Adapter("W", "A", "B", 2.0, False, "convolution")
    shapes = {"A": (4, 50, 3, 3), "B": (7, 4, 1, 1)}
    values = kernels.first_values(shapes, np.random.RandomState(0))
    assert np.abs(values["A"]).max() <= 1 / np.sqrt(450)
    units = kernels.rate_units(shapes)
    np.testing.assert_allclose(units["A"], values["A"].std(), rtol=0.05)
    step = kernels.change(values["A"], units["B"] * np.eye(4)[:1].reshape(1, 4, 1, 1))
    np.testing.assert_allclose(np.linalg.norm(step), 1.0, rtol=0.05)
    # channels that are ten times as large are standardised to kernels that are ten times as large
    assert kernels.rate_units(shapes, np.full(50, 10.0))["A"] == pytest.approx(10 * units["A"])
    rows = Adapter("W", "A", "B", 2.0, False, "embedding")
    shapes = {"A": (9, 4), "B": (4, 1000)}
    values, units = rows.first_values(shapes, np.random.RandomState(0)), rows.rate_units(shapes)
    np.testing.assert_allclose(units["B"], values["B"].std(), rtol=0.05)
    step = rows.change(units["A"] * np.eye(9, 4)[:1], values["B"])
    np.testing.assert_allclose(np.linalg.norm(step), 1.0, rtol=0.05)


def test_names_are_new_and_the_model_is_unchanged():
    model = parsed("Y = MatMul(X, W)", RNG.normal(size=(3, 4)))
    once, (first,) = add_branches(model, ["W"], 1, 1.0)
    assert set(model.graph.initializers) == {"W"}
    again = merge_adapters(once, [])
    assert again is once
    assert first.names == ("W.lora_A", "W.lora_B")
