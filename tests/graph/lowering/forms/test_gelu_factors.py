"""Factors of a Gelu move into the layers beside it: the same numbers, gradients and updates."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import factor_forms, gelu_factors, write_out
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.losses import SquaredError
from onnxsgd.optimizers import SGD

RNG = np.random.default_rng(0)

_TORCH = "u = Div(x, root) e = Erf(u) b = Add(e, one) p = Mul(x, b) y = Mul(p, half)"
_FIRST = "u = Mul(slope, x) e = Erf(u) b = Add(one, e) h = Mul(x, half) y = Mul(h, b)"
_DIVIDED = "u = Div(x, root) e = Erf(u) b = Add(e, one) p = Mul(b, x) y = Div(p, two)"

#: Nodes from X [4, 6, 8] to Y, and the number of operators on large tensors that are left out.
WRITTEN = {
    "between tables": (
        f"r = Reshape(X, rows) x = Gemm(r, A, a) {_TORCH} Y = Gemm<transB = 1, alpha = 3.0>(y, B)", 2
    ),
    "moved": (
        f"r = Reshape(X, rows) g = Gemm<alpha = 0.5>(r, A, a) x = Reshape(g, three) {_FIRST} "
        "t = Transpose<perm = [1, 0, 2]>(y) s = Reshape(t, rows) Y = Gemm(s, C, c)", 2
    ),
    "convolutions": (f"x = Conv(X, D, d) {_DIVIDED} Y = Conv(y, E, d)", 2),
    "a factor and a shift": (f"m = Mul(X, column) x = Add(m, column) {_TORCH} Y = Neg(y)", 1),
    "no layer after it": (f"r = Reshape(X, rows) x = Gemm(r, A) {_TORCH} Y = Neg(y)", 1),
}  # fmt: skip
KEPT = {
    "no layer before it": f"x = Neg(X) {_TORCH} Y = Neg(y)",
    "a layer that is read elsewhere": f"r = Reshape(X, rows) x = Gemm(r, A) {_TORCH} Y = Add(y, x)",
    "a part that is read elsewhere": f"r = Reshape(X, rows) x = Gemm(r, A) {_TORCH} Y = Add(y, u)",
    "a trained factor": "t = Mul(X, trained) Y = Conv(t, E)",
    "a factor that is read elsewhere": "t = Mul(X, half) s = Conv(t, E) Y = Add(s, t)",
    "a large weight": "t = Mul(X, half) Y = Conv<pads = [9, 9]>(t, F)",
    "a factor of an output": "r = Reshape(X, rows) x = Gemm(r, A) u = Div(x, root) Y = Erf(u)",
}

CONSTANTS = {
    "root": np.float32(np.sqrt(2)), "slope": np.float32(np.sqrt(0.5)), "one": np.float32(1),
    "half": np.float32(0.5), "two": np.array([2], np.float32),
    "rows": np.array([24, 8]), "three": np.array([4, 6, 8]),
}  # fmt: skip
WEIGHTS = {
    "A": (8, 8), "a": (8,), "B": (3, 8), "C": (8, 2), "c": (2,), "D": (6, 6, 1), "d": (6,), "E": (6, 6, 1),
    "F": (6, 6, 9), "column": (6, 1), "trained": (1,),
}  # fmt: skip


def parsed(nodes):
    """Return the model of some nodes."""
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[4, 6, 8] X) => (float[A] Y) {{ {nodes} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(1)
    drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    used = {name for node in model.graph.node for name in node.input}
    for name, array in {**CONSTANTS, **drawn}.items():
        if name in used:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return onnx.shape_inference.infer_shapes(model), sorted(used & set(WEIGHTS))


def written_out(model, weights):
    written = to_ir(model)
    write_out(written, factor_forms(weights))
    for node in reversed(list(written.graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            written.graph.remove(node, safe=True)
    return written


def n_passes(model):
    """Return the number of elementwise operators on tensors with more than 36 numbers."""
    sizes = {
        value.name: np.prod([size.dim_value for size in value.type.tensor_type.shape.dim])
        for value in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    return sum(
        node.op_type in ("Mul", "Div") and sizes.get(node.output[0], 99) > 36 for node in model.graph.node
    )


def test_every_form_of_factors_is_tested():
    assert set(factor_forms([])) == {("", "Conv"), ("", "Div"), ("", "Gemm"), ("", "Mul")}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_numbers_and_gradients(name):
    nodes, less = WRITTEN[name]
    model, weights = parsed(nodes)
    written = written_out(model, weights)
    assert n_passes(to_proto(written)) == n_passes(model) - less
    both = [
        to_proto(forward_backward_model(each, weights, [], "portable")) for each in (to_ir(model), written)
    ]
    feeds = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in both[0].graph.input
    }
    feeds = {key: RNG.normal(size=shape).astype(np.float32) for key, shape in feeds.items()}
    results = [ReferenceEvaluator(each).run(None, feeds) for each in both]
    assert len(results[0]) == 1 + len(weights)
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    model, weights = parsed(KEPT[name])
    assert [node.op_type for node in written_out(model, weights).graph] == [
        node.op_type for node in model.graph.node
    ]


def test_weights_that_are_not_much_smaller_stay(monkeypatch):
    monkeypatch.setattr(gelu_factors, "_RATIO", 6)
    model, weights = parsed(WRITTEN["convolutions"][0])
    assert n_passes(to_proto(written_out(model, weights))) == n_passes(model)


def test_both_factors_leave_the_step():
    """A product that another table has replaced is no reader of the Gelu any more."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[N, 6, 8] X) => (float[N, 6, 8] Y)
        {{ h = MatMul(X, A) x = Add(h, a) {_TORCH} g = MatMul(y, B) Y = Add(g, d) }}"""
    )
    rng = np.random.default_rng(1)
    sizes = {"A": (8, 16), "a": (16,), "B": (16, 8), "d": (8,)}
    arrays = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    arrays |= {name: np.asarray(CONSTANTS[name]) for name in ("root", "one", "half")}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    spec = StepSpec(
        weights=tuple(sizes), penalised=frozenset(), loss=SquaredError(), optimizer=SGD(), l1=False,
        l2=False, average=False, batch_size=16, n_outputs=48, engine="portable",
    )  # fmt: skip
    step = onnx.load_from_string(build_step(to_ir(model), spec).model)
    scaled = [node.input[0] for node in step.graph.node if "factor" in str(node.input)]
    assert scaled == ["a"]


@pytest.mark.parametrize("n_batches", [3, 40], ids=["single steps", "a loop"])
def test_updates_are_the_same(monkeypatch, n_batches):
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[N, 6, 8] X) => (float[N, 2] Y)
        {{ h = MatMul(X, A) x = Add(h, a) {_TORCH} g = MatMul(y, C) s = Add(g, c)
           Y = ReduceMean<keepdims = 0>(s, axis) }}"""
    )
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=WEIGHTS[name]).astype(np.float32) for name in "AaCc"}
    arrays |= {name: np.asarray(CONSTANTS[name]) for name in ("root", "one", "half")}
    for name, array in {**arrays, "axis": np.array([1])}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    X, y = RNG.normal(size=(4 * n_batches, 6, 8)).astype(np.float32), RNG.normal(size=(4 * n_batches, 2))

    def trained(n_threads):
        settings = {"learning_rate": "constant", "eta0": 0.01, "max_iter": 2, "tol": None, "batch_size": 4}
        estimator = OnnxSGDRegressor(
            model, penalty=None, shuffle=False, n_threads=n_threads, engine="portable",
            trainable=list("AaCc"), **settings,
        )  # fmt: skip
        return estimator.fit(X, y).get_weights()

    found = trained(1)
    monkeypatch.setattr(gelu_factors, "_can_scale", lambda value: False)
    # another number of threads: nothing compiled is taken again
    expected = trained(2)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
    assert any(np.any(found[name] != array) for name, array in expected.items())
