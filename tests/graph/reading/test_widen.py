"""A wider last layer: scores in numpy, names, refusals."""

import numpy as np
import onnx.parser
import pytest

from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.reading.widen import widen_last_layer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3)).astype(np.float32)
W, B = RNG.normal(size=(3, 2)).astype(np.float32), RNG.normal(size=2).astype(np.float32)
OFFSETS = np.array([0.5, -0.5, 2.0, 3.0])

#: Nodes from x to z, each with the initializers that it needs.
LAYERS = {
    "Gemm": ("z = Gemm(x, W, b)", {"W": W, "b": B}),
    "Gemm, transposed": ("z = Gemm<transB = 1>(x, W, b)", {"W": W.T, "b": B}),
    "Gemm without intercepts": ("z = Gemm(x, W)", {"W": W}),
    "Gemm with one intercept": ("z = Gemm(x, W, b)", {"W": W, "b": B[:1]}),
    "MatMul": ("z = MatMul(x, W)", {"W": W}),
    "MatMul and Add": ("t = MatMul(x, W) z = Add(t, b)", {"W": W, "b": B}),
    "Add and MatMul": ("t = MatMul(x, W) z = Add(b, t)", {"W": W, "b": B}),
    "in another form": ("t = MatMul(x, W) u = Add(t, b) z = Reshape(u, s)", {"W": W, "b": B}),
    "one column": ("t = MatMul(x, w) z = Reshape(t, s)", {"w": W[:, 0]}),
}
OTHERS = {
    "a function": ("t = MatMul(x, W) z = Exp(t)", {"W": W}),
    "a factor": ("z = Gemm<alpha = 2.0>(x, W, b)", {"W": W, "b": B}),
    "two summands": ("t = Gemm(x, W, b) z = Add(t, c)", {"W": W, "b": B, "c": B}),
    "a weight that is read twice": ("t = MatMul(x, V) z = MatMul(t, V)", {"V": np.eye(3)}),
    "a layer without axes": ("t = MatMul(x, W) s = ReduceSum(t) z = Add(s, b)", {"W": W, "b": B}),
    "no weight": ("z = Add(x, x)", {}),
    "computed summands": ("t = MatMul(x, W) z = Add(t, t)", {"W": W}),
}


def graph(nodes, arrays):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] x) => (float[N, K] z) {{ {nodes} }}'
    )
    given = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    if "Reshape" in nodes:
        given["s"] = np.array([-1, 1 if "w" in arrays else 2])
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in given.items())
    return to_ir(onnx.shape_inference.infer_shapes(model))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("factors", [(1.0, 0.0), (1.0, 1.0)])
def test_scores(name, factors, run):
    nodes, arrays = LAYERS[name]
    model = graph(nodes, arrays)
    (z,) = run(model, {"x": X}).values()
    offsets = OFFSETS if z.shape[1] == 2 else OFFSETS[:2]
    wide, (coef, intercept) = widen_last_layer(model, z.shape[1], factors, offsets)
    onnx.checker.check_model(to_proto(wide), full_check=True)
    (found,) = run(wide, {"x": X}).values()
    expected = np.hstack([factor * z for factor in factors]) + offsets
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert {coef} | ({intercept} & set(arrays)) == set(arrays)
    assert [value.name for value in wide.graph.outputs] == ["z"]
    # the model is not changed
    np.testing.assert_array_equal(run(model, {"x": X})["z"], z)


@pytest.mark.parametrize("name", OTHERS)
def test_other_graphs_are_left_to_the_caller(name):
    n_outputs = 2 if "W" in OTHERS[name][1] else 3
    offsets = np.zeros(2 * n_outputs)
    assert widen_last_layer(graph(*OTHERS[name]), n_outputs, (1.0, 0.0), offsets) is None


def test_another_width_is_left_to_the_caller():
    assert widen_last_layer(graph(*LAYERS["Gemm"]), 1, (1.0, 0.0), np.zeros(2)) is None
