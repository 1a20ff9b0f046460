"""Forms in which nodes read a weight that an adapter can stand beside."""

import onnx
import pytest

from onnxsgd.graph.adapting.adapted_nodes import AdaptedNode, adapted_nodes, can_be_adapted
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir

#: Nodes from X of shape [N, 3], I of integers, and W to Y; the sizes of W; for each node whether W has the
#: outputs first.
FITTING = {
    "MatMul": ("Y = MatMul(X, W)", (3, 2), [False]),
    "Gemm": ("Y = Gemm(X, W)", (3, 2), [False]),
    "Gemm of a transposed weight": ("Y = Gemm<transB = 1>(X, W)", (2, 3), [True]),
    "behind a Transpose": ("T = Transpose(W) Y = MatMul(X, T)", (2, 3), [True]),
    "behind an Identity": ("T = Identity(W) Y = MatMul(X, T)", (3, 2), [False]),
    "twice transposed": ("T = Transpose<perm = [1, 0]>(W) Y = Gemm<transB = 1>(X, T)", (3, 2), [False]),
    "Gather": ("Y = Gather(W, I)", (3, 2), [False]),
    "Conv": ("T = Unsqueeze(X, A) Y = Conv(T, W)", (2, 3, 1), [False]),
    "an embedding that is an output layer": (
        "E = Gather(W, I) Y = Gemm<transB = 1>(E, W)",
        (3, 2),
        [False, True],
    ),
    "tied": ("Z = MatMul(X, W) Y = Gemm<transB = 1>(Z, W)", (3, 2), [False, True]),
}
#: The same without a place for an adapter, and a part of the reason.
REFUSED = {
    "first operand": ("Y = MatMul(W, X)", (3, 3), "the MatMul that computes 'Y' reads it; second operands"),
    "an intercept": ("Y = Add(X, W)", (3,), "the Add .* reads it"),
    "batches of matrices": ("Y = MatMul(X, W)", (2, 3, 2), "the MatMul .* reads it"),
    "columns": ("Y = Gather<axis = 1>(W, I)", (3, 2), "the Gather .* reads it"),
    "vectors": ("Y = Gather(W, I)", (3,), "the Gather .* reads it"),
    "groups": ("T = Unsqueeze(X, A) Y = Conv<group = 3>(T, W)", (3, 1, 1), "the Conv .* reads it"),
    "a second use": ("Z = MatMul(X, W) R = ReduceSum(W) Y = Add(Z, R)", (3, 2), "the ReduceSum .* reads it"),
}


def weight_of(nodes, shape):
    sizes = ", ".join(map(str, shape))
    numbers = ", ".join(["0.5"] * onnx.numpy_helper.np.prod(shape))
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 3] X, int64[N] I) => (float Y)
    <float[{sizes}] W = {{{numbers}}}, int64[1] A = {{2}}> {{ {nodes} }}"""
    return lower_for_training(to_ir(onnx.parser.parse_model(text))).graph.initializers["W"]


@pytest.mark.parametrize("case", FITTING)
def test_nodes_and_the_order_of_the_weight(case):
    nodes, shape, transposed = FITTING[case]
    weight = weight_of(nodes, shape)
    found = adapted_nodes(weight)
    assert all(isinstance(entry, AdaptedNode) for entry in found)
    assert [entry.is_transposed for entry in found] == transposed
    assert can_be_adapted(weight)


@pytest.mark.parametrize("case", REFUSED)
def test_reasons_against_an_adapter(case):
    nodes, shape, reason = REFUSED[case]
    weight = weight_of(nodes, shape)
    assert not can_be_adapted(weight)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(adapted_nodes(weight))


def test_a_weight_inside_a_branch_has_no_adapter():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 3] X, bool c) => (float[N, 2] Y) <float[3, 2] W = {1, 2, 3, 4, 5, 6}> {
      Y = If(c) <then_branch = a () => (float[N, 2] P) { P = MatMul(X, W) },
                 else_branch = b () => (float[N, 2] Q) { Q = Gemm(X, W) }>
    }"""
    graph = to_ir(onnx.parser.parse_model(text)).graph
    assert "reads it" in adapted_nodes(graph.initializers["W"])


LEVELS = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] X) => (float[N, 2] Y)'
HELD = "int8[3, 2] W = {1, 2, 3, 4, 5, 6}, float s = {0.5}, float t = {0.1}, uint8 z = {128}"
PRODUCT = "Q, A, P = DynamicQuantizeLinear(X) I = MatMulInteger(Q, W, P)"
#: Nodes that read quantized weights, and the operators of the operand's reader and of the result.
INTEGER_FORMS = {
    "a static quantization": ("D = DequantizeLinear(W, s) Y = MatMul(X, D)", "MatMul", "MatMul"),
    "a dynamic quantization": (
        f"{PRODUCT} F = Cast<to = 1>(I) S = Mul(A, s) Y = Mul(F, S)",
        "DynamicQuantizeLinear", "Mul",
    ),
    "quantized data": (
        "Q = QuantizeLinear(X, t, z) I = MatMulInteger(Q, W, z) F = Cast<to = 1>(I) Y = Mul(F, s)",
        "QuantizeLinear", "Mul",
    ),
}  # fmt: skip
#: The same in other forms.
NO_FORMS = {
    "two readers": f"{PRODUCT} F = Cast<to = 1>(I) S = Mul(F, A) Y = Add(S, F)",
    "no scale": f"{PRODUCT} Y = Cast<to = 1>(I)",
    "levels as data": "Q = Cast<to = 2>(X) I = MatMulInteger(Q, W) F = Cast<to = 1>(I) Y = Mul(F, s)",
}


def quantized(nodes):
    text = f"{LEVELS} <{HELD}> {{ {nodes} }}"
    return lower_for_training(to_ir(onnx.parser.parse_model(text))).graph.initializers["W"]


@pytest.mark.parametrize("case", INTEGER_FORMS)
def test_quantized_weights_stand_between_real_numbers(case):
    nodes, entry, result = INTEGER_FORMS[case]
    (found,) = adapted_nodes(quantized(nodes))
    assert found.operand.name == "X"
    assert found.entry.op_type == entry
    assert found.result.name == "Y"
    assert found.result.producer().op_type == result


@pytest.mark.parametrize("case", NO_FORMS)
def test_other_forms_of_quantized_weights_have_no_adapter(case):
    assert "reads it; second operands" in adapted_nodes(quantized(NO_FORMS[case]))
