"""Operators of newer opsets, written in older ones, compute the same."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDRegressor, onnx_derivative
from onnxsgd.graph.opsets.newer_opsets import _RULES as RULES
from onnxsgd.graph.opsets.versions import bring_into_range

#: Shapes of inputs by their names.
SHAPES = {
    "Q": (2, 4, 3, 8),
    "K": (2, 2, 5, 8),
    "V": (2, 2, 5, 6),
    "K4": (2, 4, 5, 8),
    "V4": (2, 4, 5, 8),
    "q": (2, 3, 32),
    "k": (2, 5, 16),
    "v": (2, 5, 12),
    "M": (3, 5),
    "PK": (2, 4, 2, 8),
    "PV": (2, 4, 2, 8),
    "A": (2, 3, 8),
    "B": (2, 3, 8),
    "scale": (8,),
    "cos": (6, 4),
    "sin": (6, 4),
    "cache": (2, 6, 4),
    "update": (2, 3, 4),
}
INTEGERS = {
    "P": np.array([[0, 2, 5], [1, 3, 4]]),
    "starts": np.array([1, 3]),
    "last": np.array([1, 4]),
    "axis": np.array(1),
    "lengths": np.array([2, 5]),
}

#: The opset, the graph, its outputs and its inputs.
CASES = [
    (23, "Y = Attention(Q, K4, V4)", "Y", "Q K4 V4"),
    (23, "Y = Attention <is_causal = 1, scale = 0.3> (Q, K4, V4)", "Y", "Q K4 V4"),
    (23, "Y = Attention <softcap = 2.0> (Q, K, V, M)", "Y", "Q K V M"),
    (23, "Y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v)", "Y", "q k v"),
    (23, "Y, a, b = Attention <is_causal = 1> (Q, K4, V4, , PK, PV)", "Y a b", "Q K4 V4 PK PV"),
    (23, "Y, , , s = Attention <qk_matmul_output_mode = 3> (Q, K4, V4)", "Y s", "Q K4 V4"),
    (24, "Y = Attention(Q, K4, V4, , , , lengths)", "Y", "Q K4 V4 lengths"),
    (25, "Y = Attention <is_causal = 1, left_window_size = 1> (Q, K4, V4)", "Y", "Q K4 V4"),
    (23, "Y = RMSNormalization(A, scale)", "Y", "A scale"),
    (23, "Y = RMSNormalization <axis = 1, epsilon = 0.1> (A, B)", "Y", "A B"),
    (23, "Y = RotaryEmbedding <num_heads = 4> (q, cos, sin, P)", "Y", "q cos sin P"),
    (23, "Y = RotaryEmbedding <interleaved = 1> (Q, cos, sin, P)", "Y", "Q cos sin P"),
    (24, "Y = Swish(A)", "Y", "A"),
    (24, "Y = Swish <alpha = 1.7> (A)", "Y", "A"),
    (24, "Y = TensorScatter <axis = 1> (cache, update, starts)", "Y", "cache update starts"),
    (
        24,
        'Y = TensorScatter <axis = 1, mode = "circular"> (cache, update, starts)',
        "Y",
        "cache update starts",
    ),
    (24, "Y = TensorScatter <axis = 1> (cache, update)", "Y", "cache update"),
    (24, 'Y = Cast <to = 1, round_mode = "up"> (A)', "Y", "A"),
    (26, "Y = CumProd(A, axis)", "Y", "A axis"),
    (26, "Y = CumProd <reverse = 1> (A, axis)", "Y", "A axis"),
    (26, "Y = CumProd <exclusive = 1> (A, axis)", "Y", "A axis"),
    (26, "Y = CumProd <exclusive = 1, reverse = 1> (A, axis)", "Y", "A axis"),
    (28, "Y = SwiGLU(A, B)", "Y", "A B"),
]


def values(names, dtype=np.float32):
    rng = np.random.default_rng(0)
    return {
        name: INTEGERS[name] if name in INTEGERS else rng.normal(size=SHAPES[name]).astype(dtype)
        for name in names.split()
    }


def model_of(opset, body, outputs, feeds, **shapes):
    """Parse a graph; outputs have the shapes computed by the reference evaluator, or those given."""
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"the installed onnx does not know opset {opset}")
    results = ", ".join(f"float {name}" for name in outputs.split())
    model = onnx.parser.parse_model(
        f'<ir_version: 13, opset_import: ["": {opset}]> g () => ({results}) {{ {body} }}'
    )
    types = {"f": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT64}
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, types[x.dtype.kind], x.shape) for name, x in feeds.items()
    )
    for value in model.graph.output:
        shape = shapes.get(value.name) or evaluate(model, feeds)[value.name].shape
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    return model


def evaluate(model, feeds):
    names = [value.name for value in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))


@pytest.mark.parametrize(("opset", "body", "outputs", "inputs"), CASES)
def test_values_are_kept(opset, body, outputs, inputs, run):
    """The reference evaluator of onnx computes the newer operator, a runtime the older ones."""
    feeds = values(inputs)
    model = model_of(opset, body, outputs, feeds)
    converted = bring_into_range(model)
    onnx.checker.check_model(converted, full_check=True)
    assert [entry.version for entry in converted.opset_import] == [21]
    got = run(converted, feeds)
    for name, expected in evaluate(model, feeds).items():
        np.testing.assert_allclose(got[name], expected, rtol=2e-5, atol=2e-6)


def test_every_rule_has_a_case():
    assert {name for _, name in RULES} <= {
        body.partition(" = ")[2].split("(")[0].split()[0] for _, body, _, _ in CASES
    }


def test_subgraphs(run):
    """A definition takes its node's place within a branch as well."""
    body = """h = ReduceSum <keepdims = 0> (A)  zero = Constant <value_float = 1e9> ()  c = Less(h, zero)
    Y = If (c) <
        then_branch = t () => (float[2, 3, 8] y) { s = Swish(A)  y = RMSNormalization(s, scale) },
        else_branch = e () => (float[2, 3, 8] z) { z = Identity(A) }>"""
    feeds = values("A scale")
    model = model_of(24, body, "Y", feeds)
    expected = evaluate(model, feeds)["Y"]
    np.testing.assert_allclose(run(bring_into_range(model), feeds)["Y"], expected, rtol=2e-5, atol=2e-6)


NETWORK = """a = RMSNormalization(X, scale)  q = MatMul(a, wq)  k = MatMul(a, wk)
    r = RotaryEmbedding <num_heads = 2> (q, cos, sin)
    t = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (r, k, a)
    s = Swish(t)  u = Add(s, X)  m = ReduceMean <keepdims = 0> (u, axes)  y = MatMul(m, w)"""
#: The same for batches of any size.
OPEN_NETWORK = """a = RMSNormalization(X, scale)  q = MatMul(a, wq)  k = MatMul(a, wk)
    r = RotaryEmbedding <num_heads = 2> (q, cos1, sin1)
    t = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (r, k, a)
    s = Swish(t)  u = Add(s, X)  m = ReduceMean <keepdims = 0> (u, axes)  y = MatMul(m, w)"""


def network(body=NETWORK):
    """Return a network of opset 24 with weights, and features for it."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4, 3, 8)).astype(np.float32)
    model = model_of(24, body, "y", {"X": X}, y=("N", 1))
    shapes = {"scale": (8,), "wq": (8, 8), "wk": (8, 8), "w": (8, 1)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    angles = rng.normal(size=(4, 3, 2)).astype(np.float32)
    constants = {"cos": np.cos(angles), "sin": np.sin(angles), "axes": np.array([1])}
    constants |= {"cos1": np.cos(angles[:1]), "sin1": np.sin(angles[:1])}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in {**weights, **constants}.items()
    )
    return model, X, weights


def test_gradients(run):
    """The toolkit takes newer graphs; gradients equal central differences of the original graph."""
    model, X, weights = network()
    gradient = onnx_derivative(model, weights=list(weights), inputs=["X"])
    seed = np.array([[1.0], [-0.5], [2.0], [0.25]], np.float32)
    got = run(gradient, {"X": X, **weights, "y_grad": seed})

    def total(name, change):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for tensor in copy.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(onnx.numpy_helper.from_array(weights[name] + change, name))
        feeds = {"X": X + change if name == "X" else X}
        return float((evaluate(copy, feeds)["y"].astype(np.float64) * seed).sum())

    rng = np.random.default_rng(2)
    for name, array in {"X": X, **weights}.items():
        direction = (1e-2 * rng.normal(size=array.shape)).astype(np.float32)
        difference = (total(name, direction) - total(name, -direction)) / 2
        assert (got[f"{name}_grad"] * direction).sum() == pytest.approx(difference, rel=5e-3, abs=1e-4)


def test_gradients_of_a_query_that_sees_no_key(run):
    """Its output and its gradient are zeros, and those of the others are finite."""
    feeds = values("Q K4 V4")
    body = "Y = Attention <softcap = 2.0, softmax_precision = 11> (Q, K4, V4, seen)"
    model = model_of(23, f"seen = Greater(M, half)  {body}", "Y", {**feeds, **values("M")}, Y=(2, 4, 3, 8))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    rows = np.repeat([[0.0], [1.0], [1.0]], 5, axis=1).astype(np.float32)
    gradient = onnx_derivative(model, weights=[], inputs=["Q", "V4"])
    got = run(gradient, {**feeds, "M": rows, "Y_grad": np.ones((2, 4, 3, 8), np.float32)})
    np.testing.assert_array_equal(got["Q_grad"][:, :, 0], 0)
    # the weights of each of the two other queries sum to 1
    np.testing.assert_allclose(got["V4_grad"].sum(axis=2), 2, rtol=1e-5)


def test_estimators(run):
    """A graph of opset 24 trains from its weights, and the exported graph predicts the same."""
    model, X, _ = network(OPEN_NETWORK)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    y = X.sum(axis=(1, 2))
    start = OnnxSGDRegressor(model, learning_rate="constant", eta0=1e-9, max_iter=1, tol=None).fit(X, y)
    expected = evaluate(model, {"X": X})["y"].ravel()
    np.testing.assert_allclose(start.predict(X), expected, rtol=1e-4, atol=1e-5)
    trained = OnnxSGDRegressor(model, max_iter=100, tol=None, random_state=0).fit(X, y)
    assert trained.score(X, y) > max(start.score(X, y) + 0.1, 0.4)
    returned = run(trained.to_onnx(), {"X": X})["y"].ravel()
    np.testing.assert_allclose(returned, trained.predict(X), rtol=1e-4, atol=1e-5)
