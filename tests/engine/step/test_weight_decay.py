"""Weight decay by one factor in a loop over batches: the updates, and the sum of all decays."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from engine.step.mlp_step import (
    LAYERS,
    NOT_PLAIN,
    compare_with_single_steps,
    make_spec,
    network,
    read_network,
)
from onnx import parser

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step.deferred_losses import declare
from onnxsgd.engine.step.scan_epoch import build_epoch
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.weight_decay import factor_decay, shares_of_batches, undecayed
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_ir, to_proto

_DIGIT = 2.0**-23
_STEP = """
<ir_version: 9, opset_import: ["" : 18]>
step (float[4,5] w, float d, float[4,5] g) => (float[4,5] new) {
    p = Mul(w, d)  r = Sub(w, p)  new = Add(r, g)
}
"""


def _factored(text=_STEP):
    """Return the graph of a step after the change, and its weight."""
    graph = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(text))).graph
    values = {value.name: value for value in graph.inputs}
    factor_decay(graph, [(values["w"], graph.outputs[0])], [values["d"]])
    return graph, values["w"]


def _run(graph, feeds):
    model = to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


def _shares(decays):
    """Return the shares of the decays of some updates."""
    share = _factored()[0].inputs[-1]
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="shares")
    given = ir.Value(name="decays", type=share.type, shape=ir.Shape([None]))
    graph.inputs.append(given)
    with appending(graph) as op:
        kept = shares_of_batches(op, share, given)
    assert kept.shape == declare("", share, stacked=True).shape
    kept.name = "kept"
    graph.outputs.append(kept)
    return _run(graph, {"decays": np.asarray(decays, np.float32)})[0]


def _operators(spec):
    """Return the operators inside the loop of a step."""
    graph = onnx.load_from_string(build_epoch(build_step(network(20, 3)[0], spec), spec.loss)).graph
    (scan,) = (node for node in graph.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    return [node.op_type for node in body.node]


@pytest.mark.parametrize("batch_size", [1, 8, 40])
def test_updates_are_those_of_single_steps(batch_size):
    spec = make_spec(batch_size=batch_size)
    compare_with_single_steps(network(20, 3), spec, 5 * batch_size + 1)
    # the difference of probabilities and targets, their weights, the mask of the units, one for each decay
    assert _operators(spec).count("Sub") == 1
    assert _operators(spec).count("Mul") == 4


def test_decay_of_a_velocity_stays():
    spec = make_spec(**{**NOT_PLAIN["momentum"], "l2": True, "penalised": frozenset({"W1", "W2"})})
    compare_with_single_steps(network(20, 3), spec, 53)
    assert _operators(spec).count("Sub") == 3


@pytest.mark.parametrize("product", ["Mul(w, d)", "Mul(d, w)", "Mul(w, e)"])
def test_the_share_takes_the_place_of_the_decay(product):
    reshaped = "s = Constant<value = int64[2] {1, 1}>()  e = Reshape(d, s)  p = "
    graph, weight = _factored(_STEP.replace("p = Mul(w, d)", reshaped + product))
    assert [node.op_type for node in graph if node.op_type != "Constant"] == ["Mul", "Add"]
    assert [value.name for value in graph.inputs] == ["w", "g", "d_kept"]
    added = graph.outputs[0].producer().inputs[0]
    assert undecayed(added) is weight
    assert undecayed(weight) is weight
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(2, 4, 5)).astype(np.float32)
    (new,) = _run(graph, {"w": w, "g": g, "d_kept": np.full((1, 1), 0.75, np.float32)})
    np.testing.assert_array_equal(new, np.float32(0.75) * w + g)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r = Sub(w, p)", "r = Sub(p, w)"),
        ("r = Sub(w, p)", "r = Add(w, p)"),
        ("r = Sub(w, p)", "r = Sub(g, p)"),
        ("new = Add(r, g)", "q = Add(r, p) new = Add(q, g)"),
        ("Mul(w, d)", "Mul(w, g)"),
        ("float[4,5]", "double[4,5]"),
        ("float[4,5]", "float[5]"),
    ],
    ids=["turned", "a sum", "another weight", "a product read twice", "another factor", "float64", "vector"],
)
def test_other_forms_stay(old, new):
    text = _STEP.replace(old, new)
    if "double" in text:
        text = text.replace("float d", "double d")
    graph, _ = _factored(text)
    assert [value.name for value in graph.inputs] == ["w", "d", "g"]


@pytest.mark.parametrize("decay", [0.0, 1e-9, 1e-8, 3.3e-7, 1e-6, 1e-3, 0.4, 1.0, 1.5])
def test_shares_are_right_in_sum(decay):
    """A share alone is right to a digit of float32, which is more than a small decay itself."""
    decays = np.full(3000, decay, np.float32)
    shares = _shares(decays)[:, 0, 0].astype(float)
    wide = decays.astype(float)
    np.testing.assert_allclose(1 - shares, wide, rtol=1e-6, atol=_DIGIT)
    np.testing.assert_allclose(np.cumsum(1 - shares), np.cumsum(wide), rtol=1e-7, atol=_DIGIT)


def test_shares_of_rates_that_fall():
    decays = np.linspace(2e-6, 0, 500, dtype=np.float32)
    shares = _shares(decays)[:, 0, 0].astype(float)
    np.testing.assert_allclose(np.cumsum(1 - shares), np.cumsum(decays.astype(float)), atol=_DIGIT)


def _trained(layers, X, y, batch_size, rate, alpha):
    """Return the weights after an epoch of plain SGD with l2 in order, in float64."""
    (v, b), (w, c) = [(w.astype(float), b.astype(float)) for w, b in layers]
    for start in range(0, len(X), batch_size):
        x, wanted = X[start : start + batch_size].astype(float), y[start : start + batch_size, None]
        h = np.maximum(x @ v + b, 0)
        error = (h @ w + c - wanted) / len(x)
        back = error @ w.T * (h > 0)
        v, b = v * (1 - rate * alpha) - rate * x.T @ back, b - rate * back.sum(axis=0)
        w, c = w * (1 - rate * alpha) - rate * h.T @ error, c - rate * error.sum(axis=0)
    return {"W1": v, "b1": b, "W2": w, "b2": c}


@pytest.mark.parametrize(("alpha", "batch_size"), [(1e-4, 10), (1e-1, 10), (1e-1, 64)])
def test_an_epoch_is_that_of_numpy(alpha, batch_size):
    """Of many batches, in which the weights have other units too."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(3000, 5)).astype(np.float32), rng.normal(size=3000).astype(np.float32)
    named = network(12, 1)[1]
    model = OnnxSGDRegressor(
        to_proto(read_network(LAYERS.replace("N,D", "N,5"), named)), alpha=alpha, learning_rate="constant",
        eta0=0.02, batch_size=batch_size, max_iter=1, tol=None, shuffle=False,
    )  # fmt: skip
    found = model.fit(X, y).get_weights()
    layers = [(named["W1"], named["b1"]), (named["W2"], named["b2"])]
    for name, wanted in _trained(layers, X, y, batch_size, 0.02, alpha).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 1e-1])
def test_weights_lose_their_decays(alpha):
    """Products with shares are rounded too. Rows for columns of zeros have no gradient."""
    X = np.zeros((6000, 5), np.float32)
    named = network(40, 1)[1]
    model = OnnxSGDRegressor(
        to_proto(read_network(LAYERS.replace("N,D", "N,5"), named)), alpha=alpha, learning_rate="constant",
        eta0=1e-4, batch_size=1, max_iter=2, tol=None, shuffle=False,
    )  # fmt: skip
    found, first = model.fit(X, X[:, 0]).get_weights()["W1"].astype(float), named["W1"].astype(float)
    lost = np.sum(first * (first - found)) / np.sum(first**2)
    assert lost == pytest.approx(-np.expm1(12000 * np.log1p(-1e-4 * alpha)), rel=0.08)
