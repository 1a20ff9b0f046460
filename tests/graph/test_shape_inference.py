"""Inference distinguishes sequences of tensors from tensors of every origin."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.graph.shape_inference import ShapeInferencePass

MADE = "S = SequenceConstruct(X, X)"
THROUGH = {
    "an Identity": f"{MADE} Y = Identity(S)",
    "a split": "Y = SplitToSequence <axis = 0> (X)",
    "branches": f"""{MADE} Y = If(c) <then_branch = t () => (p) {{ p = SequenceInsert(S, X) }},
                                      else_branch = e () => (q) {{ q = SequenceErase(S) }}>""",
    "a loop": """E = SequenceEmpty()
                 Y = Loop <body = b (int64 i, bool d, s) => (f, t) { f = Identity(d) t = Identity(s) }>
                 (n, c, E)""",
    "a loop in a branch": """Y = If(c) <
        then_branch = t () => (p) { E = SequenceEmpty() p = Loop <body = b (int64 i, bool d, s) => (f, t)
                                    { f = Identity(d) t = SequenceInsert(s, X) }> (n, c, E) },
        else_branch = e () => (q) { q = SequenceConstruct(X) }>""",
}


@pytest.mark.parametrize("nodes", THROUGH.values(), ids=THROUGH)
def test_types_of_sequences(nodes):
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[2, 3] X, bool c, int64 n) => (float[K, 3] Z)'
    model = ir.from_proto(
        onnx.parser.parse_model(f"{text} {{ {nodes} Z = ConcatFromSequence <axis = 0> (Y) }}")
    )
    for _ in range(2):
        ShapeInferencePass(strict_mode=False)(model)
    types = {value.name: value.type for node in model.graph.all_nodes() for value in node.outputs}
    sequences = {name for name in types if name in {"S", "E", "Y", "p", "q", "t"}}
    assert {types[name] for name in sequences} == {ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))}
    assert types["Z"] == ir.TensorType(ir.DataType.FLOAT)


def test_products_with_packed_weights_have_types_and_shapes():
    text = """<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[N, 2, 8] X, uint8[4, 1, 8] B, float[4] S, uint8[6, 1, 8] C, float[6] T) => (float[N, 2, 6] Y) {
      H = com.microsoft.MatMulNBits<K = 8, N = 4, bits = 4, block_size = 16>(X, B, S)
      R = Tanh(H)
      Y = com.microsoft.MatMulNBits<K = 4, N = 6, bits = 4, block_size = 16>(R, C, T)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    ShapeInferencePass(strict_mode=False)(model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    assert [str(size) for size in values["R"].shape] == ["N", "2", "4"]
    assert values["R"].dtype == ir.DataType.FLOAT
    assert [node.op_type for node in model.graph] == ["MatMulNBits", "Tanh", "MatMulNBits"]


def test_one_inference_serves_all_packed_products(monkeypatch):
    """One for each in a row: a pickle of 60 layers took half a second to read, for 25 ms."""
    nodes = "".join(
        f"R{at} = Tanh(H{at}) H{at + 1} = com.microsoft.MatMulNBits<K = 4, N = 4, bits = 4, block_size = 16>"
        f"(R{at}, B, S) "
        for at in range(5)
    )
    text = f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float16[N, 4] H0, uint8[4, 1, 8] B, float16[4] S) => (H5) {{ {nodes} }}"""
    model, calls, infer = ir.from_proto(onnx.parser.parse_model(text)), [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference,
        "infer_shapes",
        lambda *args, **options: calls.append(0) or infer(*args, **options),
    )
    ShapeInferencePass(strict_mode=False)(model)
    last = model.graph.node(-1).outputs[0]
    assert (len(calls), last.dtype, str(last.shape)) == (1, ir.DataType.FLOAT16, "[N,4]")


GRAPH = """<ir_version: 8, opset_import: ["": 18]>
g (float[N, 20] X, bool c, float[20, 30] V) => (Y)
<int64[3] sizes = {-1, 5, 6}> {
    H = MatMul(X, W)
    Z = If(c) <then_branch = t () => (p) { p = Neg(H) }, else_branch = e () => (q) { q = Add(H, H) }>
    Y = Reshape(Z, sizes)
}"""


def model_with_a_large_weight():
    proto = onnx.parser.parse_model(GRAPH)
    weights = np.arange(600, dtype=np.float32).reshape(20, 30)
    proto.graph.initializer.insert(0, onnx.numpy_helper.from_array(weights, "W"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "V"))
    return ir.from_proto(proto), weights


def test_inference_keeps_content_and_inputs():
    model, weights = model_with_a_large_weight()
    ShapeInferencePass(strict_mode=False)(model)
    graph = model.graph
    assert [value.name for value in graph.inputs] == ["X", "c", "V"]
    assert set(graph.initializers) == {"W", "V", "sizes"}
    for name in "WV":
        np.testing.assert_array_equal(graph.initializers[name].const_value.numpy(), weights)
    assert str(graph.initializers["sizes"].const_value.numpy()) == "[-1  5  6]"


def test_shapes_of_branches_and_from_content():
    model, _ = model_with_a_large_weight()
    ShapeInferencePass(strict_mode=False)(model)
    shapes = {value.name: value.shape for node in model.graph.all_nodes() for value in node.outputs}
    found = {name: [str(size) for size in shape] for name, shape in shapes.items()}
    assert {name: found[name] for name in "HpqZ"} == {key: ["N", "30"] for key in "HpqZ"}
    assert found["Y"][1:] == ["5", "6"]


def test_a_model_on_which_inference_fails_stays():
    model, weights = model_with_a_large_weight()
    model.graph.initializers["W"].shape = ir.Shape([7, 30])
    model.graph[0].outputs[0].shape = ir.Shape(["K", 30])
    ShapeInferencePass(strict_mode=True)(model)
    assert [str(size) for size in model.graph[0].outputs[0].shape] == ["K", "30"]
    np.testing.assert_array_equal(model.graph.initializers["W"].const_value.numpy(), weights)
    assert [value.name for value in model.graph.inputs] == ["X", "c", "V"]
