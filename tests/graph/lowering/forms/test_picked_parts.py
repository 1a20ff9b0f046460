"""Parts of a transposed tensor as rows of a table: the same numbers, gradients and updates."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd import OnnxSGDRegressor
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import PICKED_PART_FORMS, picked_parts, write_out
from onnxsgd.graph.model import to_ir, to_proto

RNG = np.random.default_rng(0)
_TURNED = "t = Transpose<perm = [1, 0, 2]>(X)"
_SUM = "q = Gather(t, zero) k = Gather(t, one) v = Gather(t, two) s = Mul(q, k) r = Mul(s, v)"

WRITTEN = {
    "each once": f"{_TURNED} {_SUM} Y = Tanh(r)",
    "from the end": f"{_TURNED} {_SUM.replace('one', 'last')} Y = Tanh(r)",
}
KEPT = {
    "not transposed": f"t = Tanh(W) {_SUM} Y = Tanh(r)",
    "two of three": f"{_TURNED} q = Gather(t, zero) k = Gather(t, one) Y = Mul(q, k)",
    "one twice": f"{_TURNED} {_SUM} o = Gather(t, one) Y = Mul(o, r)",
    "another reader": f"{_TURNED} {_SUM} m = ReduceMax(t) Y = Mul(r, m)",
    "another table of parts": f"""{_TURNED} f = Reshape(t, flat) a, b, c = Split<axis = 1>(f)
        q = Gather(t, zero) d = Sub(a, b) e = ReduceMax(d) Y = Mul(q, e)""",
    "along another axis": f"{_TURNED} {_SUM.replace('Gather', 'Gather<axis = 1>')} Y = Tanh(r)",
    "several at once": f"{_TURNED} {_SUM.replace('zero', 'zeros')} Y = Tanh(r)",
}


def parsed(nodes, rows="2"):
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[{rows}, 3, 5] X, float[3, 2, 5] W) => (float[A] Y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 last = {{-2}},
        int64[1] zeros = {{0}}, int64[2] flat = {{2, 15}}>
        {{ {nodes} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def written_out(model):
    written = to_ir(model)
    write_out(written, PICKED_PART_FORMS)
    RemoveUnusedNodesPass()(written)
    return written


def operators(model):
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("rows", ["2", "N"])
@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_numbers_and_gradients(name, rows):
    model = parsed(WRITTEN[name], rows)
    written = written_out(model)
    assert "Gather" not in operators(written)
    assert operators(written).count("Split") == 1
    both = [to_proto(forward_backward_model(each, [], ["X"], "portable")) for each in (to_ir(model), written)]
    feeds = {"X": RNG.normal(size=(2, 3, 5)), "Y_grad": RNG.normal(size=(2, 5)), "W": np.zeros((3, 2, 5))}
    results = [
        ReferenceEvaluator(each).run(
            None, {value.name: feeds[value.name].astype(np.float32) for value in each.graph.input}
        )
        for each in both
    ]
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    model = parsed(KEPT[name])
    assert operators(written_out(model)) == operators(to_ir(model))


def test_every_form_of_parts_is_tested():
    assert set(PICKED_PART_FORMS) == {("", "Gather")}


@pytest.mark.parametrize("n_batches", [3, 40], ids=["single steps", "a loop"])
def test_updates_are_the_same(monkeypatch, n_batches):
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 4] Y)
        <int64[3] sizes = {0, 3, 4}, int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
        p = MatMul(X, W) r = Reshape(p, sizes) t = Transpose<perm = [1, 0, 2]>(r)
        q = Gather(t, zero) k = Gather(t, one) v = Gather(t, two) s = Mul(q, k) Y = Add(s, v) }"""
    )
    rng = np.random.default_rng(1)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(rng.normal(size=(4, 12)).astype(np.float32), "W")
    )
    X, y = rng.normal(size=(4 * n_batches, 4)).astype(np.float32), rng.normal(size=(4 * n_batches, 4))

    def trained(n_threads):
        settings = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "batch_size": 4}
        estimator = OnnxSGDRegressor(
            model, penalty=None, shuffle=False, n_threads=n_threads, engine="portable", **settings
        )
        return estimator.fit(X, y).get_weights()["W"]

    found = trained(1)
    monkeypatch.setattr(picked_parts, "_place", lambda *_: None)
    # another number of threads: nothing compiled is taken again
    np.testing.assert_allclose(found, trained(2), rtol=0, atol=1e-6)
