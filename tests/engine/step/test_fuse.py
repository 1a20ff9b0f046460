"""Fusions keep the numbers of a graph."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import evaluate
from onnx import parser

from onnxsgd.engine.step.fuse import fuse
from onnxsgd.graph.model import to_ir


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        ("y = Cast<to=1>(m)\n m = Greater(x, zero)", ["HardSigmoid"]),
        ("y = Cast<to=1>(m)\n m = Cast<to=9>(r)\n r = Relu(x)", ["Relu", "HardSigmoid"]),
        ("y = Cast<to=1>(m)\n m = Cast<to=9>(x)", ["Cast", "Cast"]),
        ("y = ReduceSum<keepdims=0>(x, axis)", ["MatMul"]),
        ("y = ReduceSum<keepdims=1>(x, axis)", ["MatMul"]),
        ("y = Mul(s, half)\n s = ReduceSum<keepdims=0>(x, axis)", ["MatMul"]),
        ("y = Add(c, p)\n p = Gemm<transA=1>(x, x)", ["Gemm"]),
        ("y = Add(c, p)\n p = Gemm<transA=1, alpha=0.5>(x, x)", ["Gemm"]),
        ("y = Add(p, c)\n p = Gemm<transA=1>(x, x)", ["Gemm"]),
        ("y = Add(c, p)\n p = Gemm<transA=1>(x, x, c)", ["Gemm", "Add"]),
        ("y = Sub(c, p)\n p = Gemm<transA=1>(x, x)", ["Gemm", "Sub"]),
    ],
)
def test_each_fusion_keeps_the_numbers(text, operators):
    lines = list(reversed(text.split("\n ")))
    kind = {"Reduce": "float[8]" if "keepdims=0" in text else "float[1,8]", "Gemm": "float[8,8]"}
    shape = next((s for key, s in kind.items() if key in text), "float[6,8]")
    source = (
        '<ir_version: 9, opset_import: ["" : 18]> g (float[6,8] x, float[8,8] c) => (' + shape + " y) "
        "<float zero = {0}, float half = {0.5}, int64[1] axis = {0}> {" + "\n".join(lines) + "}"
    )
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    rng = np.random.RandomState(0)
    feeds = {"x": rng.normal(size=(6, 8)).astype(np.float32), "c": rng.normal(size=(8, 8)).astype(np.float32)}
    feeds["x"][0, :4] = [0.0, -0.0, 1.2e-38, -1e38]
    feeds["x"][1] = 0.5
    if "Gemm" in text or "Reduce" in text:
        feeds["x"][0] = 1.0
    (before,) = evaluate(model, **feeds)
    fuse(model)
    (after,) = evaluate(model, **feeds)
    assert [node.op_type for node in model.graph] == operators
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
def test_masks_of_float64_stay_where_the_runtime_has_no_kernel(opset):
    source = f"""
    <ir_version: 9, opset_import: ["" : {opset}]>
    g (double[6,8] x) => (double[6,8] y) <double zero = {{0}}> {{
        m = Greater(x, zero)
        y = Cast<to=11>(m)
    }}"""
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    fuse(model)
    x = np.random.RandomState(0).normal(size=(6, 8))
    np.testing.assert_array_equal(evaluate(model, x=x)[0], x > 0)


def test_a_weighted_sum_of_columns_is_one_product():
    source = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[6,1] x, float[6,1] w) => (float[1,1] y) <float half = {0.5}> {
        a = Mul(x, x)
        b = Mul(a, half)
        c = Mul(b, w)
        y = ReduceSum<keepdims=1>(c)
    }"""
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    rng = np.random.RandomState(0)
    x, w = rng.normal(size=(6, 1)).astype(np.float32), rng.uniform(size=(6, 1)).astype(np.float32)
    fuse(model)
    assert [node.op_type for node in model.graph] == ["Mul", "Gemm"]
    np.testing.assert_allclose(evaluate(model, x=x, w=w)[0], [[0.5 * (x * x * w).sum()]], rtol=1e-6)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Max", "Greater"])
def test_numbers_beside_a_column_get_its_rank(operator):
    """With fewer dimensions the runtime loops over single elements: 126 instead of 4 us for 20,000."""
    kind = "bool" if operator == "Greater" else "float"
    source = f"""
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[80,1] x, float[80] v, float s) =>
    ({kind}[80,1] a, {kind}[80,1] b, {kind}[80] c, {kind}[80,1] s_table)
    <float half = {{0.5}}> {{
        a = {operator}(x, half)
        b = {operator}(half, x)
        c = {operator}(v, half)
        s_table = {operator}(x, s)
    }}"""
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    x = np.linspace(0, 1, 80, dtype=np.float32)
    feeds = {"x": x[:, None], "v": x, "s": np.array(0.25, np.float32)}
    before = evaluate(model, **feeds)
    fuse(model)
    after = evaluate(model, **feeds)
    for wanted, found in zip(before, after, strict=True):
        np.testing.assert_array_equal(found, wanted)
    nodes = {node.outputs[0].name: node for node in model.graph}
    ranks = {name: [len(value.shape) for value in nodes[name].inputs] for name in ("a", "b", "c", "s_table")}
    assert ranks == {"a": [2, 2], "b": [2, 2], "c": [1, 0], "s_table": [2, 2]}


@pytest.mark.parametrize(
    "text",
    [
        "c = Greater(x, wide)\n k = Cast<to=1>(c)\n y = Mul(k, x)",
        "c = Greater(x, zero)\n k = Cast<to=7>(c)\n q = MatMul(k, m)\n r = Add(q, k)\n y = Cast<to=1>(r)",
        "c = Greater(x, zero)\n k = Cast<to=7>(c)\n q = ReduceSum<keepdims=1>(k, axis)\n y = Cast<to=1>(q)",
    ],
    ids=["a wider zero", "product of integers", "sum of integers"],
)
def test_similar_patterns_are_not_fused(text):
    source = (
        '<ir_version: 9, opset_import: ["" : 18]> g (float[3,3] x) => (float[A,B] y) '
        "<float zero = {0}, float[1,1,1] wide = {0}, int64[3,3] m = {1,0,0,0,1,0,0,0,1}, int64[1] axis = {0}>"
        " {" + text + "}"
    )
    if "wide)" in text:
        source = source.replace("float[A,B] y", "float[A,B,C] y")
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    x = np.random.RandomState(0).normal(size=(3, 3)).astype(np.float32)
    (before,) = evaluate(model, x=x)
    fuse(model)
    np.testing.assert_array_equal(evaluate(model, x=x)[0], before)
    assert not {"Gemm", "HardSigmoid"}.intersection(node.op_type for node in model.graph)
