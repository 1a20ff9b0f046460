"""The contract of the gradient graph: names, order, kept parts, refusals, size."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.exceptions import NotTrainableError, ParameterError
from onnxsgd.gradient.portable import differentiable, differentiate

MLP = """
<ir_version: 9, opset_import: ["": 18], producer_name: "someone">
mlp (double[N, 3] X) => (double[N, 1] Y)
<double[3, 4] W1, double[4] b1, double[4, 1] W2, double[1] b2>
{
    H = MatMul(X, W1)
    Z = Add(H, b1)
    A = Relu(Z)
    Y = Gemm(A, W2, b2)
}
"""
WEIGHTS = {"W1": (3, 4), "b1": (4,), "W2": (4, 1), "b2": (1,)}


def parse(text, **shapes):
    """Return a model; each shape becomes an initializer of random numbers."""
    model = onnx.parser.parse_model(text)
    del model.graph.initializer[:]
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        array = shape if isinstance(shape, np.ndarray) else rng.normal(size=shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def one_line(body, inputs="double[N, 3] X", outputs="double[N, 3] Y", opset=18, **shapes):
    text = f'<ir_version: 9, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return parse(text, **shapes)


def gradient_of(model, outputs, wrt):
    return ir.to_proto(differentiate(ir.from_proto(model), outputs, wrt))


def names(values):
    return [value.name for value in values]


def test_inputs_and_outputs_come_in_the_promised_order():
    model = parse(MLP, **WEIGHTS)
    gradient = gradient_of(model, ["Y"], ["b2", "W1", "X"])
    assert names(gradient.graph.input) == ["X", "b2", "W1", "Y_grad"]
    assert names(gradient.graph.output) == ["Y", "b2_grad", "W1_grad", "X_grad"]
    assert names(gradient.graph.initializer) == ["b1", "W2"]
    assert gradient.graph.input[-1].type == model.graph.output[0].type
    onnx.checker.check_model(gradient, full_check=True)


@pytest.mark.parametrize(("kind", "dtype"), [("float16", np.float16), ("float", np.float32)])
def test_gradients_have_the_type_of_the_graph(kind, dtype):
    text = MLP.replace("double", kind).replace("Relu(Z)", "Elu(Z)")
    weights = {name: np.ones(shape, dtype=dtype) for name, shape in WEIGHTS.items()}
    gradient = gradient_of(parse(text, **weights), ["Y"], list(WEIGHTS))
    onnx.checker.check_model(gradient, full_check=True)
    feeds = {"X": np.ones((2, 3), dtype=dtype), "Y_grad": np.ones((2, 1), dtype=dtype), **weights}
    assert {array.dtype for array in ReferenceEvaluator(gradient).run(None, feeds)} == {np.dtype(dtype)}


def test_the_caller_s_model_and_its_metadata_are_kept():
    model = ir.from_proto(parse(MLP, **WEIGHTS))
    model.metadata_props["key"] = "value"
    before = ir.to_proto(model).SerializeToString()
    gradient = differentiate(model, ["Y"], ["W1"])
    assert ir.to_proto(model).SerializeToString() == before
    assert dict(gradient.metadata_props) == {"key": "value"}
    assert (gradient.ir_version, dict(gradient.opset_imports)) == (9, {"": 18})
    assert gradient.producer_name == "someone"


def test_a_layer_gives_one_product_for_each_weight_and_no_shape_arithmetic():
    gradient = gradient_of(parse(MLP, **WEIGHTS), ["Y"], list(WEIGHTS))
    added = [node for node in gradient.graph.node if node.op_type != "Constant"][4:]
    assert sorted(node.op_type for node in added) == sorted(
        ["Gemm", "Gemm", "ReduceSum", "Greater", "Cast", "Mul", "Gemm", "ReduceSum"]
    )
    made_by = {node.output[0]: node for node in added}
    for weight, operand in (("W1", "X"), ("W2", "A")):
        node = made_by[f"{weight}_grad"]
        assert (node.op_type, node.input[0]) == ("Gemm", operand)
        assert [(a.name, a.i) for a in node.attribute] == [("transA", 1)]


def test_only_requested_gradients_are_computed():
    gradient = gradient_of(parse(MLP, **WEIGHTS), ["Y"], ["W2"])
    assert [node.op_type for node in gradient.graph.node] == ["MatMul", "Add", "Relu", "Gemm", "Gemm"]


def test_a_mean_squared_error_needs_neither_expand_nor_shapes_of_known_sizes():
    body = "E = Sub(X, W) S = Mul(E, E) Y = ReduceMean<keepdims = 1>(S)"
    model = one_line(body, inputs="double[4, 3] X", outputs="double[1, 1] Y", W=(4, 3))
    gradient = gradient_of(model, ["Y"], ["W"])
    added = [node.op_type for node in gradient.graph.node if node.op_type != "Constant"][3:]
    assert added == ["Div", "Mul", "Mul", "Neg"]


def test_a_mean_of_sums_needs_no_expand():
    body = "P = Mul(X, W) S = ReduceSum<keepdims = 0>(P, A) Y = ReduceMean<keepdims = 0>(S)"
    model = one_line(body, inputs="double[4, 3] X", outputs="double Y", W=(4, 3), A=np.array([1]))
    gradient = gradient_of(model, ["Y"], ["W"])
    added = [node.op_type for node in gradient.graph.node if node.op_type != "Constant"][3:]
    assert added == ["Reshape", "Div", "Reshape", "Mul"]


@pytest.mark.parametrize("sizes", ["N, 3", ", 3"])
def test_a_batch_of_any_size_is_known_to_keep_its_size(sizes):
    inputs = f"double[{sizes}] X".replace("[,", "[?,")
    body = "Z = Add(X, W) F = Reshape(Z, S) Y = Mul(F, Z)"
    model = one_line(body, inputs=inputs, outputs=inputs.replace("X", "Y"), W=(3,), S=np.array([-1, 3]))
    gradient = gradient_of(model, ["Y"], ["W"])
    assert not {"Shape", "Expand", "NonZero"} & {node.op_type for node in gradient.graph.node}


def test_rows_multiplied_by_a_reshape_are_not_taken_for_the_batch():
    body = "Z = Reshape(X, S) Y = Add(Z, A)"
    inputs = "double[N, 6] X, double[N, 3] A"
    gradient = gradient_of(one_line(body, inputs, "double[M, 3] Y", S=np.array([-1, 3])), ["Y"], ["A"])
    feeds = {"X": np.ones((1, 6)), "A": np.ones((1, 3)), "Y_grad": np.ones((2, 3))}
    np.testing.assert_array_equal(ReferenceEvaluator(gradient).run(["A_grad"], feeds)[0], [[2.0, 2.0, 2.0]])


def test_an_unused_tensor_has_a_gradient_of_zeros():
    model = one_line("Y = Mul(X, W)", W=(3,), V=(2, 3))
    gradient = gradient_of(model, ["Y"], ["V", "W"])
    feeds = {"X": np.ones((2, 3)), "V": np.ones((2, 3)), "W": np.ones(3), "Y_grad": np.ones((2, 3))}
    _, v, w = ReferenceEvaluator(gradient).run(None, feeds)
    np.testing.assert_array_equal(v, np.zeros((2, 3)))
    np.testing.assert_array_equal(w, [2.0, 2.0, 2.0])


def test_a_path_through_an_operator_without_slope_gives_zeros():
    model = one_line(
        "S = Sign(W) I = ArgMax<axis = 0>(W) F = Cast<to = 11>(I) T = Mul(S, F) Y = Mul(X, T)", W=(3,)
    )
    gradient = gradient_of(model, ["Y"], ["W"])
    found = ReferenceEvaluator(gradient).run(
        ["W_grad"], {"X": np.ones((2, 3)), "W": np.ones(3), "Y_grad": np.ones((2, 3))}
    )
    np.testing.assert_array_equal(found[0], np.zeros(3))


def test_equal_gradients_have_a_name_each():
    gradient = gradient_of(one_line("Y = Add(X, W)", inputs="double[2, 3] X", W=(2, 3)), ["Y"], ["X", "W"])
    assert names(gradient.graph.output) == ["Y", "X_grad", "W_grad"]
    onnx.checker.check_model(gradient)


def test_names_of_the_graph_are_never_shared():
    body = "grad_1 = Relu(X) W_grad = Mul(grad_1, W) Y_grad = Neg(W_grad) Y = Identity(Y_grad)"
    gradient = gradient_of(one_line(body, W=(3,)), ["Y"], ["W"])
    assert names(gradient.graph.input) == ["X", "W", "Y_grad_1"]
    assert names(gradient.graph.output) == ["Y", "W_grad_1"]
    onnx.checker.check_model(gradient, full_check=True)


def test_several_outputs_and_inner_tensors_add_up():
    gradient = gradient_of(one_line("Z = Mul(X, W) Y = Mul(Z, W)", W=(3,)), ["Y", "Z"], ["W"])
    assert names(gradient.graph.input) == ["X", "W", "Y_grad", "Z_grad"]
    x, w = np.array([[1.0, 2.0, 3.0]]), np.array([0.5, 1.0, 2.0])
    found = ReferenceEvaluator(gradient).run(["W_grad"], {"X": x, "W": w, "Y_grad": x, "Z_grad": 2 * x})
    np.testing.assert_allclose(found[0], (x * (2 * x * w) + 2 * x * x)[0], rtol=1e-15)


def test_an_initializer_that_is_also_an_input_follows_the_other_inputs():
    gradient = gradient_of(
        one_line("Y = Mul(X, W)", inputs="double[3] W, double[N, 3] X", W=(3,)), ["Y"], ["W"]
    )
    assert names(gradient.graph.input) == ["X", "W", "Y_grad"]
    assert not gradient.graph.initializer


def test_a_function_of_the_model_is_differentiated_through_its_body():
    text = """
    <ir_version: 9, opset_import: ["": 18, "own": 1]>
    g (double[N, 3] X) => (double[N, 3] Y) { Z = own.Square(X) Y = Mul(Z, W) }
    <domain: "own", opset_import: ["": 18]> Square (A) => (B) { B = Mul(A, A) }
    """
    gradient = gradient_of(parse(text, W=(3,)), ["Y"], ["X"])
    assert {node.domain for node in gradient.graph.node} == {""}
    feeds = {"X": np.full((1, 3), 3.0), "Y_grad": np.ones((1, 3))}
    weight = onnx.numpy_helper.to_array(gradient.graph.initializer[0])
    found = ReferenceEvaluator(gradient).run(["X_grad"], feeds)
    np.testing.assert_allclose(found[0], 6 * weight[None], rtol=1e-15)


def test_any_operator_may_precede_the_first_trained_tensor():
    text = """
    <ir_version: 9, opset_import: ["": 18, "other": 1]>
    g (double[N, 3] X) => (double[N, 3] Y) { U = other.Mystery(X) V = Unique(U) Y = Mul(V, W) }
    """
    gradient = gradient_of(parse(text, W=(3,)), ["Y"], ["W"])
    assert names(gradient.graph.output) == ["Y", "W_grad"]


def test_an_operator_without_a_rule_is_named_with_its_place():
    model = one_line(
        "Z = Mul(X, W) [here] U, I, J, K = Unique(Z) Y = Mul(X, W)", outputs="double[M] U", W=(3,)
    )
    with pytest.raises(
        NotTrainableError, match=r"operator Unique \(node 'here' computing 'U'.*no gradient rule"
    ):
        gradient_of(model, ["U"], ["W"])


def test_a_gradient_through_an_output_without_a_rule_is_refused():
    model = one_line("Z, M = LayerNormalization(X, W) Y = Mul(Z, M)", W=(3,))
    with pytest.raises(NotTrainableError, match=r"LayerNormalization.*no gradient rule for its output 'M'"):
        gradient_of(model, ["Y"], ["W"])


@pytest.mark.parametrize(
    ("outputs", "wrt", "message"),
    [
        (["Z"], ["W"], "outputs names 'Z'"),
        (["Y"], ["V"], "wrt names 'V'.*'X', 'W'"),
        (["Y"], ["Y"], "wrt names 'Y'"),
        (["Y"], ["I"], "wrt names 'I'.*INT64"),
        (["Y"], ["W", "W"], "'W' twice"),
        (["Y"], [], "wrt is empty"),
        ([], ["W"], "outputs is empty"),
    ],
)
def test_wrong_names_are_refused(outputs, wrt, message):
    model = one_line("G = Gather(W, I) Y = Mul(X, G)", W=(3,), I=np.array([0, 1, 2]))
    with pytest.raises(ParameterError, match=message):
        gradient_of(model, outputs, wrt)


def test_an_old_opset_is_refused_with_the_remedy():
    with pytest.raises(NotTrainableError, match=r"version 12.*13 or later.*convert_version"):
        gradient_of(one_line("Y = Mul(X, W)", opset=12, W=(3,)), ["Y"], ["W"])


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (ir.node("Relu", []), None),
        (ir.node("ArgMax", []), None),
        (ir.node("Unique", []), "operator Unique has no gradient rule"),
        (ir.node("Gelu", [], domain="com.microsoft"), "com.microsoft.Gelu"),
    ],
)
def test_differentiable_names_the_operator(node, reason):
    found = differentiable(node)
    assert found is None if reason is None else reason in found


def test_a_node_whose_operands_have_other_ranks_is_refused_by_name():
    # the checkers of onnx let it pass: R of an LSTM has three axes
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[3, N, 2] X, float[1, 8, 2] W, float[8] R) => (float[3, 1, N, 2] Y)
    { Y = LSTM<hidden_size = 2>(X, W, R) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(NotTrainableError, match="LSTM.*cannot read its operands"):
        differentiate(model, ["Y"], ["R"])


def test_a_size_beyond_all_integers_is_a_refusal():
    """The gradient of Pad negates its amounts, and -2^63 has no negative."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[N,2] x, float[N,2] w) => (float[N,2] y)
    <int64[4] pads = {0, -9223372036854775808, 0, 0}> { y = Pad (x, pads) }"""
    with pytest.raises(NotTrainableError, match="Pad.*cannot read its operands"):
        differentiate(ir.from_proto(onnx.parser.parse_model(text)), ["y"], ["x"])


@pytest.mark.parametrize(
    "text",
    [
        """g (float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) <float[4] scales = {1, 1, 2, 2}>
        { y = Resize<nearest_mode = "other"> (x, , scales) }""",
        """g (float[1, 1, 4, 4] x, float[1, 2, 2, 2] grid) => (float[1, 1, 2, 2] y)
        { y = GridSample<mode = "other"> (x, grid) }""",
        """g (float[4] x, float[1] u) => (float[4] y) <int64[1] i = {0}>
        { y = ScatterElements<reduction = "other"> (x, i, u) }""",
    ],
)
def test_an_unknown_value_of_an_attribute_is_refused_by_name(text):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    onnx.checker.check_model(model)
    with pytest.raises(NotTrainableError, match=r"cannot read its operands and attributes \('other'\)"):
        differentiate(ir.from_proto(model), ["y"], ["x"])


@pytest.mark.parametrize(
    ("operator", "message"),
    [("GatherElements", "GatherElements.*cannot read its operands"), ("Gather", "ReduceL2.*known rank")],
)
def test_an_axis_of_a_number_is_a_refusal(operator, message):
    """The checkers of onnx let GatherElements pick along an axis of a scalar."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[N,4] x, float w) => (float[N,4] y) <int64[1,2] at = {{0, 1}}> {{
        g = {operator}<axis = 1>(w, at)
        l = ReduceL2(g)
        y = Mul(x, l)
    }}"""
    with pytest.raises(NotTrainableError, match=message):
        differentiate(ir.from_proto(onnx.parser.parse_model(text)), ["y"], ["w"])
