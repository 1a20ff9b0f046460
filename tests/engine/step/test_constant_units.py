"""Constant hidden units keep the numbers of a loop, and intercepts of later layers need no nodes."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import (
    NOT_PLAIN,
    PLAIN,
    carried,
    compare_with_single_steps,
    make_spec,
    network,
    read_network,
)
from onnx import parser

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step import constant_units
from onnxsgd.engine.step.constant_units import add_constant_units
from onnxsgd.engine.step.joined_intercepts import join_intercepts
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.losses import SquaredError


@pytest.fixture(autouse=True)
def _all_runtimes(monkeypatch):
    monkeypatch.setattr(constant_units, "_WITHOUT_BRANCHES", (1, 0))


def _shapes(made, spec):
    return carried(build_step(made[0], spec), spec)


@pytest.mark.parametrize("n_hidden", [5, 20, 31])
@pytest.mark.parametrize("batch_size", [1, 5, 8, 16])
def test_updates_are_those_of_single_steps(batch_size, n_hidden):
    """With as many rows as units too; the last batch is short."""
    spec = make_spec(**{"batch_size": batch_size, **PLAIN})
    shapes = compare_with_single_steps(network(n_hidden, 3), spec, 4 * batch_size + 1)
    assert {tuple(sorted(shape)) for shape in shapes} == {
        tuple(sorted(shape)) for shape in [(6, n_hidden + 1), (n_hidden + 1, 3)]
    }


@pytest.mark.parametrize(("batch_size", "n_hidden"), [(17, 20), (8, 16), (8, 32)])
def test_large_batches_and_full_columns_stay(batch_size, n_hidden):
    shapes = _shapes(network(n_hidden, 3), make_spec(**{"batch_size": batch_size, **PLAIN}))
    assert (1, 3) in shapes
    assert len(shapes) == 3


#: Updates of another form, and weights that are not all trained.
_OTHERS = {
    **NOT_PLAIN,
    "frozen intercepts": {**PLAIN, "weights": ("W1", "b1", "W2")},
    "a frozen weight": {**PLAIN, "weights": ("W1", "b1", "b2")},
}


@pytest.mark.parametrize("options", _OTHERS.values(), ids=_OTHERS)
def test_other_updates_stay(options):
    spec = make_spec(**options)
    compare_with_single_steps(network(20, 3), spec, 53)
    assert all(21 not in shape for shape in _shapes(network(20, 3), spec))


def test_older_runtimes_have_branches(monkeypatch):
    monkeypatch.setattr(constant_units, "_WITHOUT_BRANCHES", (1, 22))
    for version, n_tables in (((1, 21), 3), ((1, 22), 2), ((2, 0), 2)):
        monkeypatch.setattr(constant_units, "runtime_version", lambda version=version: version)
        assert len(_shapes(network(20, 3), make_spec(**PLAIN))) == n_tables


_DEEP = """
<ir_version: 9, opset_import: ["" : 18]>
mlp (float[N,4] X) => (float[N,1] Y) {
    a = Gemm(X, W0, b0)  h = Relu(a)  c = Gemm(h, W1, b1)  i = Relu(c)
    d = Gemm(i, W2, b2)  j = Relu(d)  Y = Gemm(j, W3, b3)
}
"""


def _trained(layers, X, y, batch_size, rate):
    """Return the weights after an epoch of plain SGD in order, in float64."""
    for start in range(0, len(X), batch_size):
        rows = slice(start, start + batch_size)
        inputs = [X[rows]]
        for weight, intercept in layers[:-1]:
            inputs.append(np.maximum(inputs[-1] @ weight + intercept, 0))
        gradient = (inputs[-1] @ layers[-1][0] + layers[-1][1] - y[rows, None]) / len(y[rows])
        new = []
        for (weight, intercept), x in zip(reversed(layers), reversed(inputs), strict=True):
            new.append((weight - rate * x.T @ gradient, intercept - rate * gradient.sum(axis=0)))
            gradient = gradient @ weight.T * (x > 0)
        layers = new[::-1]
    return layers


def _deep_network(dead=-1e6):
    """Return layers whose first units have the intercept `dead`, and are never above zero."""
    rng = np.random.default_rng(0)
    layers = [
        (rng.normal(0, 0.5, shape).astype(np.float32), rng.normal(0, 0.5, shape[1]).astype(np.float32))
        for shape in pairwise((4, 20, 30, 7, 1))
    ]
    for _, intercept in layers[:-1]:
        intercept[0] = dead
    return layers


def _named(layers):
    return {f"{kind}{i}": a for i, layer in enumerate(layers) for kind, a in zip("Wb", layer, strict=True)}


@pytest.mark.parametrize(("scale", "dead"), [(1e-6, -1e6), (1.0, -1e6), (1.0, -1e20)])
def test_epochs_of_a_deep_network_are_those_of_numpy(scale, dead):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(700, 4)).astype(np.float32), rng.normal(size=700).astype(np.float32)
    (weight, intercept), *others = _deep_network(dead)
    layers = [(weight / np.float32(scale), intercept), *others]
    X *= scale
    model = OnnxSGDRegressor(
        to_proto(read_network(_DEEP, _named(layers))), penalty=None, learning_rate="constant", eta0=1e-2,
        batch_size=7, max_iter=1, tol=None, shuffle=False,
    )  # fmt: skip
    found = model.fit(X, y).get_weights()
    wanted = _trained([(w.astype(float), b.astype(float)) for w, b in layers], X.astype(float), y, 7, 1e-2)
    start = _named(layers)
    for name, array in _named(wanted).items():
        size = np.abs(array[..., 1:] if name in ("b0", "b1", "b2") else array).max()
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5 * size, err_msg=name)
        # data of such a scale do not move the first weight
        assert not np.array_equal(found[name], start[name]) or (name, scale) == ("W0", 1e-6)


def test_all_layers_of_a_deep_network_have_constants_of_their_own():
    named = _named(_deep_network())
    spec = make_spec(**{**PLAIN, "weights": tuple(named), "loss": SquaredError(), "n_outputs": 1})
    shapes = carried(build_step(read_network(_DEEP, named), spec), spec)
    assert sorted(map(sorted, shapes)) == [[1, 8], [5, 21], [8, 31], [21, 31]]


_STEP = """
<ir_version: 9, opset_import: ["" : 18]>
step (float[4,20] w, float[1,20] b, float[20,3] v, float[1,3] c, float[8,4] x, float[8,3] g)
    => (float[4,20] new_w, float[1,20] new_b, float[20,3] new_v, float[1,3] new_c, float[8,3] y)
<float[1,8] ones = {1, 1, 1, 1, 1, 1, 1, 1}, float[1,8] twos = {2, 2, 2, 2, 2, 2, 2, 2}>
{
    z = Gemm(x, w, b)  h = Relu(z)  y = Gemm(h, v, c)
    d = Gemm<transB=1>(g, v)  m = HardSigmoid<alpha=3.3e38, beta=0.0>(h)  f = Mul(d, m)
    new_w = Gemm<transA=1>(x, f, w)  new_b = Gemm(ones, f, b)
    new_v = Gemm<transA=1>(h, g, v)  new_c = Gemm(ones, g, c)
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("h = Relu(z)", "h = Tanh(z)"),
        ("h = Relu(z)", "h = Relu(z) u = Neg(z)"),
        ("h = Relu(z)", "h = Relu(z) u = Neg(h)"),
        ("y = Gemm(h, v, c)", "y = Gemm<alpha=2.0>(h, v, c)"),
        ("y = Gemm(h, v, c)", "y = Gemm(h, v, c) u = Neg(v)"),
        ("y = Gemm(h, v, c)", "y = Gemm(h, v, c) u = Neg(c)"),
        ("y = Gemm(h, v, c)", "p = Gemm(h, v) y = Add(p, c)"),
        ("alpha=3.3e38", "alpha=0.2"),
        ("f = Mul(d, m)", "f = Add(d, m)"),
        ("f = Mul(d, m)", "f = Mul(d, m) u = Neg(m)"),
        ("f = Mul(d, m)", "f = Mul(d, m) u = Neg(d)"),
        ("f = Mul(d, m)", "f = Mul(d, m) u = Neg(f)"),
        ("d = Gemm<transB=1>(g, v)", "d = Gemm<transB=1, alpha=2.0>(g, v)"),
        ("d = Gemm<transB=1>(g, v)", "e = Neg(g) d = Gemm<transB=1>(e, v)"),
        ("new_v = Gemm<transA=1>(h, g, v)", "new_v = Gemm<transA=1, alpha=2.0>(h, g, v)"),
        ("new_c = Gemm(ones, g, c)", "new_c = Gemm(twos, g, c)"),
        ("new_c = Gemm(ones, g, c)", "new_c = Gemm(ones, g, c) u = Neg(g)"),
        ("new_c = Gemm(ones, g, c)", "new_c = Gemm(ones, g, c) u = Neg(new_c)"),
    ],
    ids=[
        "joined", "another activation", "scores read", "units read", "a factor", "a weight read",
        "intercepts read", "intercepts added apart", "another mask", "another product", "the mask read",
        "gradients read", "masked gradients read", "a factor of gradients", "other gradients",
        "a factor of updates", "weighted", "gradients of outputs read", "the update read",
    ],
)  # fmt: skip
def test_each_condition(old, new):
    assert old in _STEP
    model = parser.parse_model(_STEP.replace(old, new, 1) if old else _STEP)
    graph = to_ir(onnx.shape_inference.infer_shapes(model)).graph
    carried_values = list(zip(list(graph.inputs)[:4], list(graph.outputs)[:4], strict=True))
    first = join_intercepts(graph, carried_values)
    assert len(first) == (1 if new != "f = Mul(d, m) u = Neg(f)" else len(first))
    found = add_constant_units(graph, carried_values, first)
    assert (len(found) == 2) is (old == "")
