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
