"""The order of updates, and the order in which the runtime computes them."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from engine.step.mlp_step import evaluate
from onnx import parser

from onnxsgd.engine.step.early_updates import update_early
from onnxsgd.engine.step.fuse import add_to_vectors
from onnxsgd.graph.model import to_ir, to_proto

#: Three layers: activations, gradients of their results, and updates by those, the last layer first.
_UPDATES = """<ir_version: 9, opset_import: ["": 18]>
g (float[8, 6] x, float[6, 6] w, float[6, 6] v, float[6, 6] u)
=> (float[6, 6] wn, float[6, 6] vn, float[6, 6] un, float[8, 6] c) {
    a = MatMul(x, w)
    b = MatMul(a, v)
    c = MatMul(b, u)
    d = Sin(c)
    un = Gemm<transA = 1>(b, d, u)
    e = Gemm<transB = 1>(d, u)
    vn = Gemm<transA = 1>(a, e, v)
    f = Gemm<transB = 1>(e, v)
    wn = Gemm<transA = 1>(x, f, w)
}"""


def _feeds(model):
    rng = np.random.default_rng(0)
    sizes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in sizes.items()}


def _computed(model, feeds, folder):
    """Return the names of the nodes in the order in which the runtime computes them."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "order")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, feeds)
    with open(session.end_profiling(), encoding="utf-8") as file:
        events = json.load(file)
    return [e["name"].removesuffix("_kernel_time") for e in events if e["name"].endswith("_kernel_time")]


def test_the_runtime_updates_a_layer_before_it_differentiates_the_one_before(tmp_path):
    """The operands of a product are in the cache then."""
    source = onnx.shape_inference.infer_shapes(parser.parse_model(_UPDATES))
    for node in source.graph.node:
        node.name = node.output[0]
    feeds, model = _feeds(source), to_ir(source)
    before = evaluate(model, **feeds)
    update_early(model.graph)
    after = evaluate(model, **feeds)
    assert "".join(str(node.name) for node in model.graph) == "abcdefwnvnun"
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    order = _computed(to_proto(model), feeds, tmp_path)
    assert order.index("un") < order.index("e") < order.index("vn") < order.index("f") < order.index("wn")


@pytest.mark.parametrize("order", ["c, s", "s, c"])
def test_sums_are_added_to_vectors_by_a_product(order):
    source = onnx.shape_inference.infer_shapes(
        parser.parse_model(
            f"""<ir_version: 9, opset_import: ["": 18]> g (float[4, 3] x, float[3] c) => (float[3] y)
            <float[4] ones = {{1, 1, 2, 1}}> {{ s = MatMul(ones, x) y = Add({order}) }}"""
        )
    )
    feeds, model = _feeds(source), to_ir(source)
    add_to_vectors(model)
    assert [node.op_type for node in model.graph] == ["Gemm", "Reshape"]
    onnx.checker.check_model(to_proto(model), full_check=True)
    expected = feeds["c"] + np.array([1, 1, 2, 1]) @ feeds["x"].astype(float)
    np.testing.assert_allclose(evaluate(model, **feeds)[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "s = MatMul(given, x) y = Add(c, s)",
        "s = MatMul(ones, x) t = Neg(s) r = Add(t, s) y = Add(c, r)",
        "s = MatMul(ones, x) y = Sub(c, s)",
        "s = MatMul(ones, x) d = Reshape(one, shape) y = Add(d, s)",
    ],
)
def test_other_sums_stay(text):
    source = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[4, 3] x, float[3] c, float[4] given, float one) => (float[3] y)
        <float[4] ones = {{1, 1, 1, 1}}, int64[1] shape = {{1}}> {{ {text} }}"""
    )
    model = to_ir(onnx.shape_inference.infer_shapes(source))
    before = [node.op_type for node in model.graph]
    add_to_vectors(model)
    assert [node.op_type for node in model.graph] == before
