"""Transposed tables keep the numbers of a step."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import (
    LAYERS,
    MLP,
    SHAPES,
    carried,
    compare_with_single_steps,
    evaluate,
    make_spec,
    network,
    numbers,
    read_network,
    runners,
)
from onnx import parser

from onnxsgd.engine.step import transposed_tables
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.transposed_tables import transpose_tables
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.model import to_ir
from onnxsgd.optimizers import SGD, Adam

_ROWS = 64
_LAYER = "z = Gemm(x, w, b)\n h = Relu(z)"
_BACK = "e = Gemm<transB=1>(s, v)\n m = HardSigmoid<alpha=3e38, beta=0.0>(h)\n d = Mul(e, m)"


def _model(lines, outputs="float[64,3] s"):
    source = (
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[{_ROWS},5] x, float[5,20] w, float[1,20] b, '
        f"float[20,3] v, float[64,20] c, float[20] u) => ({outputs}) {{ {lines} }}"
    )
    return to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))


def _feeds():
    rng = np.random.RandomState(0)
    shapes = {"x": (_ROWS, 5), "w": (5, 20), "b": (1, 20), "v": (20, 3), "c": (_ROWS, 20), "u": (20,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _shapes(model):
    return {value.name: tuple(value.shape.numpy()) for node in model.graph for value in node.outputs}


def test_both_passes_of_a_layer():
    model = _model(
        f"{_LAYER} s = MatMul(h, v) {_BACK} "
        "gw = Gemm<transA=1, alpha=0.5>(x, d, w) gv = Gemm<transA=1>(h, s)",
        "float[64,3] s, float[5,20] gw, float[20,3] gv",
    )
    transpose_tables(model.graph)
    shapes = _shapes(model)
    assert {shapes[name] for name in "zhemd"} == {(20, _ROWS)}
    feeds = _feeds()
    x, w, b, v = (feeds[name].astype(np.float64) for name in "xwbv")
    h = np.maximum(x @ w + b, 0)
    s = h @ v
    expected = s, w + 0.5 * x.T @ ((s @ v.T) * (h > 0)), h.T @ s
    read = {str(value.name) for value in model.graph.inputs}
    for found, wanted in zip(evaluate(model, **feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-4)
    assert read == set(feeds)


@pytest.mark.parametrize(
    "lines",
    [
        f"{_LAYER} p = Softmax(h) s = MatMul(p, v)",
        f"{_LAYER} p = Add(h, c) s = MatMul(p, v)",
        f"{_LAYER} p = Mul(h, u) s = MatMul(p, v)",
        "z = Gemm(x, w, c) s = MatMul(z, v)",
        f"{_LAYER} k = Gemm(x, w, h) s = MatMul(k, v)",
    ],
    ids=["an operator by rows", "a table of data", "a row", "a table added", "a table added to another"],
)
def test_tables_that_meet_others_stay(lines):
    model = _model(lines)
    before = _shapes(model)
    transpose_tables(model.graph)
    assert _shapes(model) == before


def test_outputs_stay():
    model = _model(f"{_LAYER} s = MatMul(h, v)", "float[64,3] s, float[64,20] h")
    before = _shapes(model)
    transpose_tables(model.graph)
    assert _shapes(model) == before


@pytest.mark.parametrize(("rows", "columns"), [(16, 20), (64, 10), (72, 20), (64, 64)])
def test_tables_that_save_little_stay(monkeypatch, rows, columns):
    """Batches of few rows, narrow tables, and columns of which as many are idle."""
    text = (
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[{rows},5] x, float[5,{columns}] w, '
        f"float[{columns},3] v) => (float[{rows},3] s) {{ z = MatMul(x, w) h = Relu(z) s = MatMul(h, v) }}"
    )
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(text)))
    monkeypatch.setattr(transposed_tables, "_LEAST_SAVING", 0.5)
    transpose_tables(model.graph)
    assert _shapes(model)["z"] == (rows, columns)


def test_long_sums_save_nothing(monkeypatch):
    model = _model(f"{_LAYER} s = MatMul(h, v)")
    monkeypatch.setattr(transposed_tables, "_MOST_TERMS", 4)
    transpose_tables(model.graph)
    assert _shapes(model)["z"] == (_ROWS, 20)


def _nodes(model):
    """Return the nodes of a serialized model, in an order of their own."""
    return sorted(str(node) for node in onnx.load_from_string(model).graph.node)


def test_updates_are_the_same(weights, data, monkeypatch):
    """Twelve units and batches of eight are transposed here."""
    source = MLP.replace("a = MatMul(X, W1)", "").replace("b = Add(a, b1)", "b = Gemm(X, W1, b1)")
    model = read_network(source, weights)
    monkeypatch.setattr(transposed_tables, "_LEAST_SAVING", -1.0)
    results = []
    for fewest in (1, 1000):
        monkeypatch.setattr(transposed_tables, "_FEWEST_ROWS", fewest)
        monkeypatch.setattr(transposed_tables, "_LANES", 4)
        spec = make_spec()
        step, buffers, _, loop = runners(model, spec, weights, data)
        plan = data.plan(np.arange(len(data.target)))
        table, rates = numbers(spec, len(plan.totals))
        loop.run(plan.descending(rates), table, np.zeros(len(plan.totals)))
        results.append((step.model, buffers.weights()))
    (transposed, found), (natural, expected) = results
    assert transposed != natural
    assert set(found) == set(SHAPES)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(transposed_tables, "_FEWEST_ROWS", 1)
    given = build_step(model, spec, with_transposes=False).model
    assert _nodes(given) == _nodes(natural)
    assert ("b1", WEIGHT) in step.rows


@pytest.mark.parametrize(
    ("options", "n_tables"),
    [
        ({"l2": False, "penalised": frozenset()}, 1),
        ({}, 1),
        ({"optimizer": SGD(0.9, True), "average": True}, 3),
        ({"optimizer": Adam()}, 3),
        ({"l1": True, "l2": False}, 2),
    ],
    ids=["plain", "l2", "nesterov-average", "adam", "l1"],
)
@pytest.mark.parametrize("n_outputs", [4, 15])
def test_the_loop_carries_transposes_of_weights_of_few_outputs(options, n_tables, n_outputs):
    """With their states; outside of the loop they keep their shape, and the numbers of single steps."""
    spec = make_spec(**{"n_outputs": n_outputs, **options})
    shapes = compare_with_single_steps(network(128, n_outputs), spec, 53)
    assert shapes.count((n_outputs, 128)) == n_tables
    assert (128, n_outputs) not in shapes


@pytest.mark.parametrize(
    ("options", "n_tables"),
    [({"l2": False, "penalised": frozenset()}, 1), ({}, 1), ({"optimizer": SGD(0.9, True)}, 2)],
    ids=["plain", "l2", "nesterov"],
)
def test_the_loop_carries_the_transpose_of_a_first_weight_of_transposed_tables(options, n_tables):
    """Both factors of its gradient would be read transposed: the inputs, and the gradients of 20 units."""
    spec = make_spec(**{"batch_size": 32, **options})
    shapes = compare_with_single_steps(network(20, 3, n_inputs=16), spec, 100)
    assert shapes.count((20, 16)) == n_tables
    assert (16, 20) not in shapes


@pytest.mark.parametrize(("options", "n_tables"), [({}, 1), ({"optimizer": Adam()}, 3)], ids=["l2", "adam"])
def test_the_loop_carries_transposes_of_weights_with_rows_of_whole_pages(options, n_tables):
    shapes = compare_with_single_steps(network(1024, 16, n_inputs=32), make_spec(n_outputs=16, **options), 53)
    assert shapes.count((1024, 32)) == n_tables
    assert (32, 1024) not in shapes


@pytest.mark.parametrize(
    ("n_inputs", "n_hidden"), [(32, 1000), (1024, 1024), (20, 1024)],
    ids=["other rows", "pages both ways", "idle columns"],
)  # fmt: skip
def test_the_loop_carries_other_wide_weights_as_they_are(n_inputs, n_hidden):
    spec = make_spec(n_outputs=16)
    assert (n_inputs, n_hidden) in carried(
        build_step(network(n_hidden, 16, n_inputs=n_inputs)[0], spec), spec
    )


@pytest.mark.parametrize("sizes", [(128, 3), (128, 16), (20, 50)], ids=str)
def test_the_loop_carries_other_weights_as_they_are(sizes):
    spec = make_spec(n_outputs=sizes[1])
    assert sizes in carried(build_step(network(*sizes)[0], spec), spec)


def test_a_weight_that_another_operator_reads_stays():
    """A sum over its rows, here, takes the table as it is."""
    text = LAYERS.replace(
        "Y = Gemm(h, W2, b2)", "s = ReduceMean<keepdims=1>(W2)\nz = Gemm(h, W2, b2)\nY = Add(z, s)"
    )
    model, spec = network(128, 4, text=text)[0], make_spec(n_outputs=4)
    assert (128, 4) in carried(build_step(model, spec), spec)
