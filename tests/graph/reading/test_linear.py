"""Linear graphs: made, put on top of others, and recognised."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.linear import add_linear_layer, linear_graph, linear_parameters

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def parse(body, x="float[N, 3] x", y="float[N, 2] y"):
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({x}) => ({y})
        <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}, float[2] b = {{7, 8}}, float[3] v = {{1, 2, 3}},
         int64[2] table = {{-1, 2}}> {{ {body} }}"""
    return to_ir(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))


def fill(model, name, array):
    model.graph.initializers[name].const_value = ir.tensor(array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_linear_graph_is_linear(dtype, run):
    model, (coef, intercept) = linear_graph(3, 2, ir.DataType.from_numpy(np.dtype(dtype)))
    assert linear_parameters(model) == (coef, intercept)
    x = X.astype(dtype)
    np.testing.assert_array_equal(next(iter(run(model, {"X": x}).values())), np.zeros((5, 2)))
    weight = np.arange(6, dtype=dtype).reshape(3, 2)
    fill(model, coef, weight)
    fill(model, intercept, np.array([10, 20], dtype))
    found = next(iter(run(model, {"X": x}).values()))
    np.testing.assert_allclose(found, x @ weight + [10, 20], rtol=1e-6)


def test_a_layer_on_images_is_flattened(run):
    base = parse("y = Relu(x)", "float[N, 2, 3] x", "float[N, 2, 3] y")
    model, (coef, _) = add_linear_layer(base, 2)
    assert model.graph.initializers[coef].shape == (6, 2)
    weight = np.arange(12, dtype=np.float32).reshape(6, 2)
    fill(model, coef, weight)
    x = np.random.default_rng(1).normal(size=(4, 2, 3)).astype(np.float32)
    found = next(iter(run(model, {"x": x}).values()))
    np.testing.assert_allclose(found, np.maximum(x, 0).reshape(4, 6) @ weight, rtol=1e-5)
    assert [node.op_type for node in base.graph] == ["Relu"]


def test_names_of_the_graph_are_left_to_it():
    base = parse("coef = Relu(x) y = Neg(coef)", y="float[N, 3] y")
    _, names = add_linear_layer(base, 1)
    assert names == ("coef_1", "intercept")


def test_the_data_fix_an_open_width():
    base = parse("y = Relu(x)", "float[N, K] x", "float[N, K] y")
    model, (coef, _) = add_linear_layer(base, 1, {"x": (7,)})
    assert model.graph.initializers[coef].shape == (7, 1)
    with pytest.raises(GraphError, match=r"'y' has shape .*name another tensor"):
        add_linear_layer(base, 1)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Gemm(x, w, b)", ("w", "b")),
        ("y = Gemm(x, w)", ("w", None)),
        ("y = MatMul(x, w)", ("w", None)),
        ("p = MatMul(x, w) y = Add(b, p)", ("w", "b")),
        ("c = Cast<to = 1>(x) y = Gemm(c, w, b)", ("w", "b")),
        ("p = MatMul(x, w) y = Reshape(p, table)", ("w", None)),
        ("y = Gemm<alpha = 2.0>(x, w, b)", None),
        ("y = Gemm<beta = 2.0>(x, w, b)", None),
        ("p = Neg(x) y = MatMul(p, w)", None),
        ("p = MatMul(x, w) y = Relu(p)", None),
        ("p = MatMul(x, w) y = Add(p, p)", None),
        ("i = Cast<to = 7>(x) c = Cast<to = 1>(i) y = Gemm(c, w, b)", None),
    ],
)
def test_linear_graphs_are_recognised(body, found):
    """coef_ is published for these alone: a scaled product has other coefficients."""
    assert linear_parameters(parse(body)) == found


def test_transposed_coefficients_are_not_published():
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] x) => (float[N, 2] y)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { y = Gemm<transB = 1>(x, w) }"""
    assert linear_parameters(to_ir(onnx.parser.parse_model(text))) is None
