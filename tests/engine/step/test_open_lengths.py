"""One compiled step for batches of any length."""

from dataclasses import replace

import numpy as np
import pytest
from sequence_graphs import pooling, recurrent, value_inputs
from sklearn.base import clone

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step.idle_runners import CompiledOnUse
from onnxsgd.engine.step.open_lengths import agrees, may_be_open, open_row_shapes
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.losses import AbsoluteError
from onnxsgd.runtime.cache import cache
from onnxsgd.training import program

rng = np.random.default_rng(0)
LENGTHS = rng.integers(1, 40, 40)
X = [rng.normal(size=(length, 3)).astype(np.float32) for length in LENGTHS]
Y = np.array([x.mean() for x in X])
SETTINGS = {"engine": "portable", "tol": None, "max_iter": 2, "batch_size": 4, "random_state": 0}
GRAPHS = {"pooling": pooling(), "LSTM": recurrent(), "GRU without mask": recurrent("GRU", masked=False)}


@pytest.mark.parametrize(
    "settings", [{"learning_rate": "constant", "optimizer": "adam"}, {}], ids=["adam", "auto"]
)
@pytest.mark.parametrize("name", GRAPHS)
def test_one_step_makes_the_updates_of_each_length(name, settings, monkeypatch):
    model = OnnxSGDRegressor(GRAPHS[name], **SETTINGS, **settings)
    n_before = cache.n_built
    ours = clone(model).fit(X, Y)
    n_built, n_steps = cache.n_built - n_before, len(np.unique(LENGTHS))
    assert n_built < n_steps
    n_before = cache.n_built
    clone(model).set_params(random_state=1).fit(X, Y)
    assert cache.n_built == n_before

    monkeypatch.setattr(program, "may_be_open", lambda spec: False)
    each = clone(model).fit(X, Y)
    assert each.t_ == ours.t_
    np.testing.assert_allclose(each.loss_curve_, ours.loss_curve_, rtol=1e-4)
    np.testing.assert_allclose(each.predict(X), ours.predict(X), atol=1e-4)


def test_open_sizes_get_symbols_of_their_own():
    graph = type("Model", (), {})()
    graph.graph = type("Graph", (), {"inputs": value_inputs(X=["t", 3], table=[2], mask=["t"])})()
    features = {"X": np.zeros((4, 7, 3)), "table": np.zeros((4, 2)), "mask": np.zeros((4, 7))}
    found = open_row_shapes(graph, features)
    assert found == (("X", ("X_0", 3)), ("table", (2,)), ("mask", ("mask_0",)))
    assert open_row_shapes(graph, {"other": np.zeros((4, 7))}) == (("other", (7,)),)


@pytest.fixture
def compiled(monkeypatch):
    """Return a function that compiles the step of a fit with other settings, and its features."""
    found = {}

    def build(model, spec, **options):
        found.setdefault("step", (model, spec))
        return build_step(model, spec, **options)

    monkeypatch.setattr(program, "build_step", build)
    monkeypatch.setattr(program, "may_be_open", lambda spec: False)
    ours = OnnxSGDRegressor(pooling(None), **SETTINGS, learning_rate="constant", eta0=0.03, epsilon=0.25)
    ours.fit(X[:4], Y[:4])
    model, spec = found["step"]

    def compile_(**settings):
        other = replace(spec, **settings)
        return CompiledOnUse(lambda: build_step(model, other), other, 1)

    length = dict(spec.row_shapes)["X"][0]
    return compile_, {"X": rng.normal(size=(1, length, 3)).astype("f")}


def test_other_updates_do_not_agree(compiled):
    compile_, features = compiled
    fixed, opened = compile_(), compile_(row_shapes=(("X", ("X_0", 3)),))
    assert agrees(opened, fixed, features)
    assert opened.step.inputs["X"][1][1:] == (-1, 3)
    assert not agrees(compile_(loss=AbsoluteError()), fixed, features)
    assert not agrees(compile_(row_shapes=(("X", ("X_0", 5)),)), fixed, features)
    assert may_be_open(fixed.spec)
    assert not may_be_open(replace(fixed.spec, engine="onnxruntime-training"))
