"""Weights in units of a root of the rate: a loop makes the same updates without a factor of gradients."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import NOT_PLAIN, PLAIN, make_spec, network, read_network
from onnx import parser

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step import batches, constant_units, scaled_weights, scan_epoch
from onnxsgd.engine.step.scaled_weights import is_in_range, scale_weights
from onnxsgd.engine.step.scan_epoch import ScaledForm, build_scaled_epoch
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.losses import AbsoluteError, SquaredError

_OF_SQUARES = {**PLAIN, "loss": SquaredError()}


def _form(spec, n_hidden=20, forms=ScaledForm):
    return build_scaled_epoch(build_step(network(n_hidden, 3)[0], spec), spec.loss, set(forms))[1]


def test_forms(monkeypatch):
    monkeypatch.setattr(constant_units, "_WITHOUT_BRANCHES", (1, 0))
    small, large = (make_spec(**_OF_SQUARES, batch_size=size) for size in (8, 24))
    assert _form(small) is ScaledForm.OF_ROWS
    # 32 units have no room for a constant one, and intercepts stay apart
    assert _form(small, 32) is _form(large) is ScaledForm.OF_ALL
    assert _form(small, 32, [ScaledForm.OF_ROWS]) is _form(large, 20, [ScaledForm.OF_ROWS]) is None
    assert _form(small, 20, [ScaledForm.OF_ROWS]) is ScaledForm.OF_ROWS
    assert _form(small, 20, []) is None
    assert _form(make_spec(**_OF_SQUARES, batch_size=32)) is ScaledForm.OF_ALL
    assert _form(make_spec(**_OF_SQUARES, batch_size=33)) is None


_OTHERS = [options for name, options in NOT_PLAIN.items() if name != "l2"]


@pytest.mark.parametrize("options", [*_OTHERS, {**PLAIN, "weights": ("W1", "W2", "b2")}])
def test_other_updates_have_no_form(options):
    assert _form(make_spec(**{"loss": SquaredError(), **options})) is None


def test_decay_has_units_where_rows_have_one_rate():
    """Intercepts stay apart, as decay spares them."""
    spec = make_spec(loss=SquaredError())
    assert _form(spec) is ScaledForm.OF_ALL
    assert _form(spec, 20, [ScaledForm.OF_ROWS]) is None


def test_other_losses_have_no_form():
    assert _form(make_spec(**PLAIN)) is None
    assert _form(make_spec(**{**_OF_SQUARES, "loss": AbsoluteError()})) is None


_DEEP = """
<ir_version: 9, opset_import: ["" : 18]>
mlp (float[N,4] X) => (float[N,1] Y) {
    a = Gemm(X, W0, b0)  h = Relu(a)  c = Gemm(h, W1, b1)  i = Relu(c)
    d = Gemm(i, W2, b2)  j = Relu(d)  Y = Gemm(j, W3, b3)
}
"""


def _layers(widths):
    rng = np.random.default_rng(0)
    return [
        (rng.normal(0, 0.4, shape).astype(np.float32), rng.normal(0, 0.2, shape[1]).astype(np.float32))
        for shape in pairwise((4, *widths, 1))
    ]


def _trained(layers, X, y, weight, batch_size, rate):
    """Return the weights after an epoch of plain SGD in order, and its mean loss, in float64."""
    layers, total = [(w.astype(float), b.astype(float)) for w, b in layers], 0.0
    for start in range(0, len(X), batch_size):
        rows = slice(start, start + batch_size)
        inputs, shares = [X[rows].astype(float)], weight[rows, None] / weight[rows].sum()
        for w, b in layers[:-1]:
            inputs.append(np.maximum(inputs[-1] @ w + b, 0))
        error = inputs[-1] @ layers[-1][0] + layers[-1][1] - y[rows, None]
        total += 0.5 * float((shares * error**2).sum()) * weight[rows].sum()
        gradient, new = shares * error, []
        for (w, b), x in zip(reversed(layers), reversed(inputs), strict=True):
            new.append((w - rate * x.T @ gradient, b - rate * gradient.sum(axis=0)))
            gradient = gradient @ w.T * (x > 0)
        layers = new[::-1]
    return layers, total / weight.sum()


def _named(layers):
    return {f"{kind}{i}": a for i, layer in enumerate(layers) for kind, a in zip("Wb", layer, strict=True)}


@pytest.fixture
def forms(monkeypatch):
    """Use the loop for few batches too, also with constant units; yield the forms of the calls."""
    monkeypatch.setattr(constant_units, "_WITHOUT_BRANCHES", (1, 0))
    monkeypatch.setattr(scan_epoch, "_LEAST_SCALED", 1)
    found, choose = [], scan_epoch.EpochRunner._session_for

    def chosen(self, plan):
        found.append(choose(self, plan))
        return found[-1]

    monkeypatch.setattr(scan_epoch.EpochRunner, "_session_for", chosen)
    return found


def _fit(layers, X, y, batch_size, rate, weight=None, **options):
    model = OnnxSGDRegressor(
        to_proto(read_network(_DEEP, _named(layers))), penalty=None, learning_rate="constant", eta0=rate,
        batch_size=batch_size, tol=None, shuffle=False, **{"max_iter": 1, **options},
    )  # fmt: skip
    return model.fit(X, y, sample_weight=weight)


def _data(n_rows=700):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n_rows, 4)).astype(np.float32), rng.normal(size=n_rows).astype(np.float32)


def _largest_error(found, wanted):
    """Return the largest error, in units of the largest number of a tensor, or of 0.1."""
    errors = {name: np.abs(found[name] - array).max() for name, array in wanted.items()}
    return max(error / max(0.1, np.abs(wanted[name]).max()) for name, error in errors.items())


_WIDTHS, _FULL = (20, 30, 7), (16, 32, 48)


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 2e-2])
@pytest.mark.parametrize(
    ("n_rows", "batch_size", "widths", "form"),
    [
        (700, 7, _WIDTHS, ScaledForm.OF_ROWS), (699, 7, _WIDTHS, ScaledForm.OF_ROWS),
        (694, 7, _WIDTHS, ScaledForm.OF_ROWS), (700, 7, _FULL, ScaledForm.OF_ALL),
        (699, 7, _FULL, None), (960, 24, _WIDTHS, ScaledForm.OF_ALL), (959, 24, _WIDTHS, None),
    ],
)  # fmt: skip
def test_epochs_are_those_of_numpy(n_rows, batch_size, widths, form, rate, forms, monkeypatch):
    X, y = _data(n_rows)
    layers = _layers(widths)
    model = _fit(layers, X, y, batch_size, rate)
    assert [kind for _, kind in forms] == [form]
    wanted, loss = _trained(layers, X, y, np.ones(n_rows), batch_size, rate)
    assert model.loss_curve_[0] == pytest.approx(loss, rel=1e-5)
    error = _largest_error(model.get_weights(), _named(wanted))
    monkeypatch.setattr(scan_epoch, "_LEAST_SCALED", 10**6)
    general = _largest_error(_fit(layers, X, y, batch_size, rate).get_weights(), _named(wanted))
    assert forms[1][1] is None
    assert error < max(3 * general, 2e-6)


@pytest.mark.parametrize("most", [0, batches._SMALL_TABLE])
def test_epochs_of_some_weights(most, forms, monkeypatch):
    """Rows beside ones are gathered, or copied; the ones of each epoch are those of the next one too."""
    monkeypatch.setattr(batches, "_SMALL_TABLE", most)
    X, y = _data(694)
    weight, layers = np.ones(694), _layers(_WIDTHS)
    weight[[50, 400]] = 3.0, 0.25
    monkeypatch.setattr(scan_epoch, "_MOST_OTHERS", 0.05)
    found = _fit(layers, X, y, 7, 1e-2, weight, max_iter=3).get_weights()
    assert {kind for _, kind in forms} == {ScaledForm.OF_ROWS}
    for _ in range(3):
        layers, _ = _trained(layers, X, y, weight, 7, 1e-2)
    assert _largest_error(found, _named(layers)) < 1e-5
    monkeypatch.setattr(scan_epoch, "_MOST_OTHERS", 0.0)
    _fit(_layers(_WIDTHS), X, y, 7, 1e-2, weight)
    assert forms[-1][1] is None


def test_blocks_may_begin_with_other_batches(forms, monkeypatch):
    """Blocks end within epochs, the last batches of which are short."""
    monkeypatch.setattr(scan_epoch, "_MOST_OTHERS", 0.5)
    monkeypatch.setattr(scan_epoch, "_BLOCK_BYTES", 7 * 4 * 6)
    X, y = _data(277)
    layers = _layers(_WIDTHS)
    found = _fit(layers, X, y, 7, 1e-2, max_iter=2).get_weights()
    assert {kind for _, kind in forms} == {ScaledForm.OF_ROWS}
    for _ in range(2):
        layers, _ = _trained(layers, X, y, np.ones(277), 7, 1e-2)
    assert _largest_error(found, _named(layers)) < 1e-5


def test_unchanged_weights_keep_their_digits(forms):
    X, y = _data()
    layers = _layers(_WIDTHS)
    for weight, intercept in layers[:-1]:
        weight[:, 0], intercept[0] = np.pi, -1e6
    found = _fit(layers, X, y, 7, 1.1e-3).get_weights()
    assert forms[0][1] is ScaledForm.OF_ROWS
    for name in ("W0", "W1", "W2"):
        np.testing.assert_array_equal(found[name][:, 0], _named(layers)[name][:, 0])
    np.testing.assert_array_equal(found["W1"][0], layers[1][0][0])


def test_ranges(forms, monkeypatch):
    assert [is_in_range(rate) for rate in (0.0, -1e-3, 9e-9, 2e-8, 99.0, 101.0)] == [
        False, False, False, True, True, False,
    ]  # fmt: skip
    X, y = _data()
    for rate in (7 * 2e-8, 7 * 9e-9):
        _fit(_layers(_WIDTHS), X, y, 7, rate)
    assert [kind for _, kind in forms] == [ScaledForm.OF_ROWS, None]
    # small data have a large rate
    layers = [(w * np.float32(0.3), b * np.float32(0.3)) for w, b in _layers(_WIDTHS)]
    found = _fit(layers, X * np.float32(0.1), y, 7, 7 * 0.15).get_weights()
    wanted, _ = _trained(layers, X * np.float32(0.1), y, np.ones(700), 7, 7 * 0.15)
    assert forms[-1][1] is ScaledForm.OF_ROWS
    assert _largest_error(found, _named(wanted)) < 1e-5


def test_few_batches_compile_no_second_loop(monkeypatch):
    calls = []
    build = scaled_weights.scale_weights
    monkeypatch.setattr(
        scan_epoch, "scale_weights", lambda *args, **more: calls.append(1) or build(*args, **more)
    )
    X, y = _data(7 * 256)
    model = _fit(_layers((9, 10, 11)), X[: 7 * 255], y[: 7 * 255], 7, 1e-3)
    assert not calls
    model.fit(X, y)
    assert calls


_STEP = """
<ir_version: 9, opset_import: ["" : 18]>
step (float[4,20] w, float[1,20] b, float[20,3] v, float[1,3] c, float[8,4] x, float[8,3] y, float[8,1] f)
    => (float[4,20] new_w, float[1,20] new_b, float[20,3] new_v, float[1,3] new_c, float[8,3] p)
<float[1,8] ones = {1, 1, 1, 1, 1, 1, 1, 1}, float[1,3] d = {1, 2, 3}>
{
    z = Gemm(x, w, b)  h = Relu(z)  p = Gemm(h, v, c)
    e = Sub(p, y)  g = Mul(e, f)
    k = Gemm<transB=1>(g, v)  m = HardSigmoid<alpha=3.3e38, beta=0.0>(h)  l = Mul(k, m)
    new_w = Gemm<transA=1>(x, l, w)  new_b = Gemm(ones, l, b)
    new_v = Gemm<transA=1>(h, g, v)  new_c = Gemm(ones, g, c)
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("h = Relu(z)", "h = Tanh(z)"),
        ("alpha=3.3e38", "alpha=0.2"),
        ("p = Gemm(h, v, c)", "p = Gemm(h, v, d)"),
        ("p = Gemm(h, v, c)", "p = Gemm<beta=2.0>(h, v, c)"),
        ("p = Gemm(h, v, c)", "p = Gemm(x, w, c)"),
        ("e = Sub(p, y)", "e = Sub(y, p)"),
        ("e = Sub(p, y)", "e = Sub(h, y)"),
        ("g = Mul(e, f)", "g = Add(e, f)"),
        ("g = Mul(e, f)", "g = Mul(e, f) u = Neg(e)"),
        ("g = Mul(e, f)", "g = Mul(e, f) u = Neg(f)"),
        ("g = Mul(e, f)", "r = Mul(e, f) g = Mul(r, r)"),
        ("new_v = Gemm<transA=1>(h, g, v)", "new_v = Gemm<transA=1>(h, e, v)"),
        ("new_v = Gemm<transA=1>(h, g, v)", "new_v = Gemm<transA=1>(m, g, v)"),
        ("new_w = Gemm<transA=1>(x, l, w)", "new_w = Add(w, w)"),
        ("new_c = Gemm(ones, g, c)", "n = Gemm(ones, g, c) new_c = Neg(n)"),
    ],
    ids=[
        "scaled", "another activation", "another mask", "frozen intercepts", "a factor", "other layers",
        "another difference", "targets of units", "another slope", "errors read", "rates read", "squares",
        "another gradient", "gradients of another unit", "another update", "updates read",
    ],
)  # fmt: skip
def test_each_condition(old, new):
    assert old in _STEP
    model = parser.parse_model(_STEP.replace(old, new, 1) if old else _STEP)
    graph = to_ir(onnx.shape_inference.infer_shapes(model)).graph
    before = [(node.op_type, [value.name for value in node.inputs]) for node in graph]
    inputs = {value.name: value for value in graph.inputs}
    carried = list(zip(list(graph.inputs)[:4], list(graph.outputs)[:4], strict=True))
    found = scale_weights(graph, carried, inputs["y"], inputs["f"])
    if old:
        assert found is None
        assert [(node.op_type, [value.name for value in node.inputs]) for node in graph] == before
    else:
        assert found is not None
        assert (found.units, found.of_predictions, found.are_of_rows) == ((1, 1, 1, 2), 2, False)
        assert [(node.outputs[0].name, exponent) for node, _, exponent in found.sums] == [("new_c", 2)]
