"""Standardized convolutions of an input of one channel: the same numbers, gradients and updates."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDRegressor
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import standardized_window_forms, standardized_windows, write_out
from onnxsgd.graph.model import to_ir, to_proto

_NORM = "n = InstanceNormalization<epsilon = 0.01>"
_CONV = "c = Conv<strides = [2]>(X, W)"
_BESIDE = f"{_CONV} {_NORM}(c, one, zero) p = Mul(n, G) Y = Add(p, H)"

#: Nodes from X [3, 1, 23] to Y.
WRITTEN = {
    "a scale and a shift beside it": _BESIDE,
    "in other orders": f"{_CONV} {_NORM}(c, one, zero) p = Mul(G, n) Y = Add(H, p)",
    "its own scale and shift": f"{_CONV} {_NORM}(c, g, h) Y = Identity(n)",
    "a trained scale of ones": f"{_CONV} {_NORM}(c, I, zero) p = Mul(n, G) Y = Add(p, H)",
    "windows side by side": f"c = Conv<strides = [3]>(X, W) {_NORM}(c, g, h) Y = Identity(n)",
    "windows apart": f"c = Conv<strides = [5]>(X, W) {_NORM}(c, g, h) Y = Identity(n)",
    "windows of each place": f"c = Conv(X, W) {_NORM}(c, g, h) Y = Identity(n)",
    "one place": f"c = Conv<strides = [21]>(X, W) {_NORM}(c, g, h) Y = Identity(n)",
    "reshaped": (
        f"x = Reshape(X, flat) u = Unsqueeze(x, axis) c = Conv<strides = [2]>(u, W) r = Reshape(c, groups) "
        f"{_NORM}(r, one, zero) s = Reshape(n, groups) p = Mul(s, G) Y = Add(p, H)"
    ),
}
KEPT = {
    "a bias": f"c = Conv<strides = [2]>(X, W, h) {_NORM}(c, g, h) Y = Identity(n)",
    "padding": f"c = Conv<strides = [2], pads = [1, 1]>(X, W) {_NORM}(c, g, h) Y = Identity(n)",
    "another padding": f'c = Conv<auto_pad = "SAME_UPPER">(X, W) {_NORM}(c, g, h) Y = Identity(n)',
    "taps apart": f"c = Conv<dilations = [2]>(X, W) {_NORM}(c, g, h) Y = Identity(n)",
    "a computed input": f"a = Abs(X) c = Conv<strides = [2]>(a, W) {_NORM}(c, g, h) Y = Identity(n)",
    "groups of channels": f"{_CONV} r = Reshape(c, pairs) {_NORM}(r, g3, h3) Y = Identity(n)",
    "a scale for each place": f"{_CONV} {_NORM}(c, one, zero) p = Mul(n, P) Y = Add(p, H)",
    "no channels to spare": f"c = Conv<strides = [2]>(X, V) {_NORM}(c, g, h) Y = Identity(n)",
}

ARRAYS = {
    "one": np.ones(6, np.float32), "zero": np.zeros(6, np.float32), "I": np.ones(6, np.float32),
    "flat": np.array([3, 23]), "axis": np.array([1]), "groups": np.array([0, 6, -1]),
    "pairs": np.array([0, 3, -1]),
}  # fmt: skip
WEIGHTS = {
    "W": (6, 1, 3), "V": (6, 1, 4), "G": (6, 1), "H": (1, 6, 1), "P": (1, 6, 11), "g": (6,), "h": (6,),
    "g3": (3,), "h3": (3,),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _few_channels(monkeypatch):
    monkeypatch.setattr(standardized_windows, "_LEAST", 6)
    monkeypatch.setattr(standardized_windows, "_RATIO", 2)


def parsed(nodes, dtype="float"):
    """Return the model of some nodes, and the names of its weights."""
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g ({dtype}[3, 1, 23] X) => ({dtype}[A] Y) {{ {nodes} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(1)
    drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    used = {name for node in model.graph.node for name in node.input}
    for name, array in {**ARRAYS, **drawn}.items():
        if name in used:
            array = array.astype(np.float64) if dtype == "double" and array.dtype.kind == "f" else array
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model), sorted(used & {*WEIGHTS, "I"})


def written_out(model, weights):
    written = to_ir(model)
    write_out(written, standardized_window_forms(weights))
    for node in reversed(list(written.graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            written.graph.remove(node, safe=True)
    return written


def operators(model):
    return [node.op_type for node in model.graph]


def test_every_form_is_tested():
    assert set(standardized_window_forms([])) == {("", "Add"), ("", "InstanceNormalization")}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_numbers_and_gradients(name):
    model, weights = parsed(WRITTEN[name])
    written = written_out(model, weights)
    assert not {"Conv", "InstanceNormalization"} & set(operators(written))
    exact, _ = parsed(WRITTEN[name], "double")
    both = [
        to_proto(forward_backward_model(each, weights, [], "portable")) for each in (to_ir(exact), written)
    ]
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.normal(size=[size.dim_value for size in value.type.tensor_type.shape.dim])
        for value in both[0].graph.input
    }
    expected = ReferenceEvaluator(both[0]).run(None, feeds)
    found = ReferenceEvaluator(both[1]).run(
        None, {key: array.astype(np.float32) for key, array in feeds.items()}
    )
    assert len(found) == 1 + len(weights)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    model, weights = parsed(KEPT[name])
    assert operators(written_out(model, weights)) == [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("constant", ["_LEAST", "_RATIO"])
def test_few_channels_stay(monkeypatch, constant):
    monkeypatch.setattr(standardized_windows, constant, 7)
    assert "Conv" in operators(written_out(*parsed(_BESIDE)))


def test_a_weight_whose_taps_cancel():
    """Neighbouring places of a smooth sequence are nearly equal, and their differences small."""
    model, weights = parsed(_BESIDE.replace("0.01", "1e-12"))
    difference = np.tile(np.array([1, -2, 1], np.float32), (6, 1, 1))
    for tensor in model.graph.initializer:
        if tensor.name == "W":
            tensor.CopyFrom(onnx.numpy_helper.from_array(difference, "W"))
    written = to_proto(written_out(model, weights))
    X = (100 + np.round(2**12 * np.sin(np.arange(69) / 30)) / 2**12).reshape(3, 1, 23).astype(np.float32)
    (found,) = ReferenceEvaluator(written).run(None, {"X": X})
    exact = np.array(X, float)[..., :-2] - 2 * np.array(X, float)[..., 1:-1] + np.array(X, float)[..., 2:]
    exact = exact[..., ::2]
    standardized = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-12)
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    np.testing.assert_allclose(found, standardized * arrays["G"] + arrays["H"], rtol=0, atol=0.02)


@pytest.mark.parametrize("n_batches", [3, 40], ids=["single steps", "a loop"])
def test_updates_are_the_same(monkeypatch, n_batches):
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[N, 1, 203] X) => (float[N, 6] Z)
        {{ {_BESIDE} t = Tanh(Y) Z = ReduceMean<keepdims = 0>(t, last) }}"""
    )
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=WEIGHTS[name]).astype(np.float32) for name in "WGH"}
    for name, array in {
        **arrays,
        "last": np.array([2]),
        "one": ARRAYS["one"],
        "zero": ARRAYS["zero"],
    }.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    X, y = rng.normal(size=(4 * n_batches, 1, 203)).astype(np.float32), rng.normal(size=(4 * n_batches, 6))

    def trained(n_threads):
        settings = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "batch_size": 4}
        estimator = OnnxSGDRegressor(
            model, penalty=None, shuffle=False, n_threads=n_threads, engine="portable",
            trainable=list("WGH"), **settings,
        )  # fmt: skip
        return estimator.fit(X, y).get_weights()

    found = trained(1)
    monkeypatch.setattr(standardized_windows, "_LEAST", 7)
    # another number of threads: nothing compiled is taken again
    expected = trained(2)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
    assert any(np.any(found[name] != array) for name, array in expected.items())
