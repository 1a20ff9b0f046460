"""Inference distinguishes sequences of tensors from tensors of every origin."""

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
