"""Adapters: training against torch, the frozen base, parameters, searches, files."""

import copy
import pickle

import numpy as np
import onnx
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError

NAMED = {"learning_rate": "constant", "eta0": 0.02, "penalty": None, "shuffle": False, "tol": None}
RNG = np.random.default_rng(0)


@pytest.fixture(name="network", scope="module")
def _network(diabetes):
    X, y = diabetes
    return MLPRegressor(hidden_layer_sizes=(6, 5), activation="tanh", tol=1e-2, random_state=0).fit(X, y)


@pytest.fixture(name="digits", scope="module")
def _digits():
    """A network for digits, and images moved by a column, of which it knows a half."""
    X, y = load_digits(return_X_y=True)
    network = MLPClassifier((64, 32), tol=1e-2, random_state=0).fit(X[:900], y[:900])
    return network, np.roll(X.reshape(-1, 8, 8), 1, axis=2).reshape(-1, 64), y


def initializers(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def drawn(model):
    """Values for all weights of adapters, B not zero."""
    return {
        name: 0.3 * RNG.normal(size=array.shape)
        for name, array in model.get_weights().items()
        if "lora" in name
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_updates_are_those_of_torch(network, diabetes, optimizer):
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    X, y = (array.astype(np.float64) for array in diabetes)
    names = [f"coefs_{layer}" for layer in range(3)]
    model = OnnxSGDRegressor(
        network, adapter=LoRA(2, 3.0, names), optimizer=optimizer, dtype="float64", batch_size=len(X), **NAMED
    )
    first = drawn(model)
    model.set_weights(first)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in first.items()}
    base = [
        (torch.tensor(w).double(), torch.tensor(b).double())
        for w, b in zip(network.coefs_, network.intercepts_, strict=True)
    ]
    updates = getattr(torch.optim, {"sgd": "SGD", "adam": "Adam"}[optimizer])(tensors.values(), lr=0.02)
    for step in range(30):
        z = torch.tensor(X)
        for number, (name, (w, b)) in enumerate(zip(names, base, strict=True)):
            low = z @ tensors[f"{name}.lora_A"]
            z = z @ w + b + 3.0 / 2 * low @ tensors[f"{name}.lora_B"]
            z = torch.tanh(z) if number < 2 else z
        loss = ((z.ravel() - torch.tensor(y)) ** 2).mean() / 2
        updates.zero_grad()
        loss.backward()
        updates.step()
        model.partial_fit(X, y)
        np.testing.assert_allclose(model.loss_curve_[-1], loss.item(), rtol=1e-12)
        if step in (0, 29):
            for name, array in model.get_weights().items():
                expected = tensors[name].detach().numpy()
                # one update is the gradient itself
                np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-12)


IMAGES = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N, 2, 6, 5] X, int64[N, 3] I) => (float[N, 1] Y)
<float[4] c = {0.1, 0.2, 0.3, 0.4}, int64[1] one = {1}>
{ Z = Conv<strides = [2, 1], pads = [1, 1, 1, 1], dilations = [1, 2]>(X, K, c)  R = Tanh(Z)
  P = GlobalAveragePool(R)  F = Flatten(P)  E = Gather(T, I)  M = ReduceMean<keepdims = 0>(E, one)
  S = Concat<axis = 1>(F, M)  Y = MatMul(S, W) }"""


@pytest.fixture(name="two_inputs")
def _two_inputs():
    """A graph of a convolution and an embedding, its numbers, and data that another one makes."""
    rng = np.random.default_rng(1)
    shapes = {"K": (4, 2, 3, 2), "T": (7, 5), "W": (9, 1)}
    numbers = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    graph = onnx.parser.parse_model(IMAGES)
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in numbers.items())
    data = {"X": rng.normal(size=(40, 2, 6, 5)).astype(np.float32), "I": rng.integers(0, 7, (40, 3))}
    other = onnx.ModelProto.FromString(graph.SerializeToString())
    for tensor in other.graph.initializer[2:4]:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(array + 0.5 * rng.normal(size=array.shape).astype("f"), tensor.name)
        )
    return graph, numbers, data, OnnxSGDRegressor(other).predict(data)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_updates_of_convolutions_and_embeddings_are_those_of_torch(two_inputs, optimizer):
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    graph, numbers, data, y = two_inputs
    adapter = LoRA(2, 3.0, ["K", "T"])
    model = OnnxSGDRegressor(graph, adapter=adapter, optimizer=optimizer, batch_size=len(y), **NAMED)
    first = drawn(model)
    model.set_weights(first)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in first.items()}
    base = {name: torch.tensor(array).double() for name, array in numbers.items()}
    updates = getattr(torch.optim, {"sgd": "SGD", "adam": "Adam"}[optimizer])(tensors.values(), lr=0.02)
    images, rows = torch.tensor(data["X"]).double(), torch.tensor(data["I"])
    settings = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
    functional = torch.nn.functional
    for _ in range(30):
        # the layers of peft: a convolution and one of kernels of size 1, a second table
        narrow = functional.conv2d(images, tensors["K.lora_A"], **settings)
        z = functional.conv2d(images, base["K"], torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), **settings)
        z = torch.tanh(z + 1.5 * functional.conv2d(narrow, tensors["K.lora_B"])).mean(dim=(2, 3))
        added = functional.embedding(rows, tensors["T.lora_A"]) @ tensors["T.lora_B"]
        means = (functional.embedding(rows, base["T"]) + 1.5 * added).mean(dim=1)
        loss = (
            (torch.cat([z, means], dim=1) @ base["W"]).ravel() - torch.tensor(y).double()
        ).square().mean() / 2
        updates.zero_grad()
        loss.backward()
        updates.step()
        model.partial_fit(data, y)
        # convolutions have no kernel in float64
        np.testing.assert_allclose(model.loss_curve_[-1], loss.item(), rtol=2e-5)
    for name, array in model.get_weights().items():
        np.testing.assert_allclose(array, tensors[name].detach().numpy(), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("engine", ["portable", "onnxruntime-training"])
def test_convolutions_and_embeddings_learn_and_merge(two_inputs, engine):
    graph, numbers, data, y = two_inputs
    adapter = LoRA(4, targets=["K", "T"])
    model = OnnxSGDRegressor(graph, adapter=adapter, random_state=0, engine=engine)
    before = model.score(data, y)
    model.fit(data, y)
    assert model.score(data, y) > 0.5 + before / 2
    exported = model.to_onnx()
    assert sorted(initializers(exported)) == ["K", "T", "W", "c", "one"]
    assert [node.op_type for node in exported.graph.node] == [node.op_type for node in graph.graph.node]
    np.testing.assert_allclose(
        OnnxSGDRegressor(exported).predict(data), model.predict(data), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(initializers(exported)["W"], numbers["W"])


@pytest.mark.parametrize("engine", ["portable", "onnxruntime-training"])
def test_training_starts_at_the_model_and_changes_nothing_else(digits, engine, run_file):
    network, X, y = digits
    model = OnnxSGDClassifier(
        network, adapter=LoRA(4), engine=engine, random_state=0, max_iter=5, tol=None, **RATE
    )
    np.testing.assert_allclose(model.predict_proba(X[:50]), network.predict_proba(X[:50]), atol=1e-5)
    before = initializers(model.to_onnx())
    np.testing.assert_array_equal(before["coefs_1"], network.coefs_[1].astype(np.float32))
    model.fit(X, y)
    weights = model.get_weights()
    assert sorted(weights) == [f"coefs_{k}.lora_{part}" for k in (0, 1) for part in "AB"]
    exported = model.to_onnx()
    after = initializers(exported)
    assert sorted(after) == sorted(before)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert sorted(changed) == ["coefs_0", "coefs_1"]
    down, up = (weights[f"coefs_1.lora_{part}"].astype(np.float64) for part in "AB")
    np.testing.assert_allclose(after["coefs_1"], network.coefs_[1] + 4 * down @ up, rtol=1e-5, atol=1e-6)
    expected = model.predict_proba(X[:50])
    np.testing.assert_allclose(run_file(exported, X[:50])[1], expected, atol=2e-5)
    assert "Add" not in {node.name.rpartition("_")[2] for node in exported.graph.node if "lora" in node.name}


RATE = {"learning_rate": "constant", "eta0": 0.01}


@pytest.fixture(name="run_file")
def _run_file():
    import onnxruntime

    def run(model, X):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        label, table = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
        return label, table if isinstance(table, np.ndarray) else [list(row.values()) for row in table]

    return run


@pytest.mark.parametrize("rank", [2, 8])
@pytest.mark.parametrize("alpha", [1, 64])
def test_the_default_rate_learns(digits, rank, alpha):
    """As well as the full weights do, within a few images in a hundred, at any factor.

    The median of three fits: one in thirty stops early.
    """
    network, X, y = digits
    before = network.score(X[900:], y[900:])
    full = OnnxSGDClassifier(network, random_state=0).fit(X[:900], y[:900])
    models = [
        OnnxSGDClassifier(network, adapter=LoRA(rank, alpha, "*"), random_state=seed).fit(X[:900], y[:900])
        for seed in range(3)
    ]
    assert before < 0.5
    score = np.median([model.score(X[900:], y[900:]) for model in models])
    assert score > full.score(X[900:], y[900:]) - 0.07
    assert np.median([model.loss_curve_[-1] for model in models]) < 0.1
    arrays = [array for model in models for array in model.get_weights().values()]
    assert all(np.isfinite(array).all() for array in arrays)


def test_a_stream_learns(digits):
    network, X, y = digits
    model = OnnxSGDClassifier(network, adapter=LoRA(4), random_state=0)
    for start in range(0, 900, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50], classes=range(10))
    assert network.score(X[900:], y[900:]) < 0.5
    assert model.score(X[900:], y[900:]) > 0.7


@pytest.mark.parametrize("settings", [{}, RATE, {**RATE, "average": True}], ids=str)
def test_sparse_data_train_as_dense_ones(digits, settings):
    network, X, y = digits
    dense, thin = (
        OnnxSGDClassifier(network, adapter=LoRA(4), random_state=0, max_iter=8, tol=None, **settings).fit(
            table, y[:600]
        )
        for table in (X[:600], sparse.csr_matrix(X[:600]))
    )
    assert thin.loss_curve_[-1] < 0.95 * thin.loss_curve_[0]
    np.testing.assert_allclose(thin.loss_curve_, dense.loss_curve_, rtol=1e-4)


def test_coefficients_are_the_merged_ones(diabetes):
    X, y = diabetes
    inner = Ridge().fit(X[:100], y[:100])
    model = OnnxSGDRegressor(inner, adapter=LoRA(2), random_state=0).fit(X, y)
    assert list(model.get_weights()) == ["coef.lora_A", "coef.lora_B"]
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.intercept_, inner.intercept_, rtol=1e-6)
    assert model.score(X, y) > inner.score(X, y)


def test_weights_of_adapters_can_be_set(network, diabetes):
    X, _ = diabetes
    model = OnnxSGDRegressor(network, adapter=LoRA(3, targets="coefs_0"), dtype="float64")
    given = drawn(model)
    model.set_weights(given)
    scale = float(np.float32(16 / 3))
    hidden = X @ (network.coefs_[0] + scale * given["coefs_0.lora_A"] @ given["coefs_0.lora_B"])
    hidden = np.tanh(np.tanh(hidden + network.intercepts_[0]) @ network.coefs_[1] + network.intercepts_[1])
    expected = hidden @ network.coefs_[2] + network.intercepts_[2]
    np.testing.assert_allclose(model.predict(X.astype(np.float64)), expected.ravel(), rtol=1e-9)


def test_the_seed_draws_the_first_values(network, diabetes):
    def first(seed):
        model = OnnxSGDRegressor(network, adapter=LoRA(2), random_state=seed, max_iter=1, tol=None, **RATE)
        return model.set_params(eta0=1e-12).fit(*diabetes).get_weights()["coefs_0.lora_A"]

    np.testing.assert_array_equal(first(0), first(0))
    assert np.abs(first(0) - first(1)).max() > 0.1
    assert np.abs(first(0)).max() <= 1 / np.sqrt(10)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_continue(network, diabetes, copied):
    model = OnnxSGDRegressor(network, adapter=LoRA(2), random_state=0, **RATE).partial_fit(*diabetes)
    other = copied(model)
    np.testing.assert_array_equal(other.predict(diabetes[0]), model.predict(diabetes[0]))
    assert other.to_onnx() == model.to_onnx()
    model.partial_fit(*diabetes)
    other.partial_fit(*diabetes)
    for name, array in model.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array)


def test_a_warm_start_continues_and_another_rank_is_refused(network, diabetes):
    model = OnnxSGDRegressor(
        network, adapter=LoRA(2), random_state=0, warm_start=True, max_iter=3, tol=None, **RATE
    )
    loss = model.fit(*diabetes).loss_curve_[-1]
    assert model.fit(*diabetes).loss_curve_[0] < loss
    # changed in place
    model.set_params(adapter__rank=3)
    with pytest.raises(ParameterError, match="adapter of OnnxSGDRegressor changed from LoRA.rank=2"):
        model.fit(*diabetes)
    model.set_params(warm_start=False).fit(*diabetes)
    assert model.get_weights()["coefs_0.lora_A"].shape == (10, 3)


def test_a_search_over_ranks_leaves_the_adapter_alone(digits):
    network, X, y = digits
    adapter = LoRA(targets="*")
    # a graph: the search would fit an estimator anew
    graph = OnnxSGDClassifier(network).to_onnx()
    model = OnnxSGDClassifier(graph, adapter=adapter, random_state=0)
    search = GridSearchCV(model, {"adapter__rank": [1, 8]}, cv=2).fit(X[:300], y[:300])
    assert search.best_params_ == {"adapter__rank": 8}
    assert search.best_estimator_.get_weights()["coefs_0.lora_A"].shape == (64, 8)
    assert adapter.rank == 8
    copied = clone(model).adapter
    assert copied == adapter
    assert copied is not adapter


def test_the_exported_step_trains_the_adapters(network, diabetes, tmp_path):
    model = OnnxSGDRegressor(network, adapter=LoRA(2), random_state=0, **RATE).partial_fit(*diabetes)
    model.export_training_step(tmp_path / "step.onnx")
    text = (tmp_path / "step.json").read_text(encoding="utf-8")
    assert "coefs_0.lora_A" in text
    assert "intercepts_0" not in text


def test_penalties_apply_to_the_adapters(network, diabetes):
    settings = {"random_state": 0, "max_iter": 20, "tol": None, **RATE}
    free = OnnxSGDRegressor(network, adapter=LoRA(2), penalty=None, **settings).fit(*diabetes)
    held = OnnxSGDRegressor(network, adapter=LoRA(2), alpha=1.0, **settings).fit(*diabetes)
    size = {model: sum(np.sum(a**2) for a in model.get_weights().values()) for model in (free, held)}
    assert size[held] < 0.9 * size[free]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"rank": 0}, ParameterError, "rank=0 is not accepted: it must be a whole number from 1"),
        ({"rank": 2.0}, ParameterTypeError, "rank=2.0 is not accepted"),
        ({"rank": True}, ParameterTypeError, "rank=True is not accepted"),
        ({"alpha": 0}, ParameterError, "alpha=0 is not accepted: it must be a finite number > 0"),
        ({"alpha": float("inf")}, ParameterError, "alpha=inf is not accepted"),
        ({"alpha": "2"}, ParameterTypeError, "alpha='2' is not accepted"),
        ({"targets": []}, ParameterTypeError, r"targets=\[\] is not accepted: it must be None, names"),
        ({"targets": [1]}, ParameterTypeError, r"targets=\[1\] is not accepted"),
        ({"targets": 3}, ParameterTypeError, "targets=3 is not accepted"),
    ],
)
def test_values_are_checked(settings, error, message):
    with pytest.raises(error, match=message):
        LoRA(**settings)
    adapter = LoRA()
    with pytest.raises(error, match=message):
        adapter.set_params(**settings)
    assert adapter == LoRA()


def test_an_adapter_needs_a_model_and_is_an_object(iris):
    with pytest.raises(ParameterError, match=r"adapter=LoRA\(.*\) needs a model; model is None"):
        OnnxSGDClassifier(adapter=LoRA()).fit(*iris)
    inner = LogisticRegression().fit(*iris)
    with pytest.raises(ParameterError, match="'adapter' parameter of OnnxSGDClassifier must be an instance"):
        OnnxSGDClassifier(inner, adapter="lora").fit(*iris)


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_a_graph_of_half_precision_keeps_its_types(dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    hidden, last = rng.normal(size=(4, 8)), rng.normal(size=(8, 1))
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> g (float16[N, 4] X) => (float16[N, 1] Y)
        { Z = MatMul(X, V) R = Tanh(Z) Y = MatMul(R, W) }"""
    )
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.elem_type = dtype
    for name, array in (("V", hidden), ("W", last)):
        graph.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(kind), name))
    y = np.tanh(X @ (hidden + rng.normal(size=(4, 8)))) @ last
    model = OnnxSGDRegressor(graph, adapter=LoRA(4), random_state=0)
    before = model.score(X, y)
    assert model.fit(X, y.ravel()).score(X, y) > 0.5 + before / 2
    assert all(array.dtype == np.float32 for array in model.get_weights().values())
    exported = initializers(model.to_onnx())
    assert sorted(exported) == ["V", "W"]
    assert all(array.dtype == kind for array in exported.values())
    merged = model.get_weights()["V.lora_A"] @ model.get_weights()["V.lora_B"] * 4 + hidden
    np.testing.assert_allclose(exported["V"].astype(np.float64), merged, rtol=0.02, atol=0.02)


def test_a_distribution_is_learned_through_adapters(network, diabetes):
    bell = {"loss": "gaussian_nll", "trainable": ["coefs_2", "intercepts_2"], "random_state": 0}
    model = OnnxSGDRegressor(network, adapter=LoRA(2), **bell).fit(*diabetes)
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert np.ptp(model.predict(diabetes[0], return_std=True)[1]) > 0
    assert [name for name in initializers(model.to_onnx()) if "lora" in name] == []


def session_of(model):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.fixture(name="adapted", scope="module")
def _adapted(digits):
    """Two adapters of different ranks over one network, and an intercept each, for two orders of labels."""
    network, X, y = digits
    graph = OnnxSGDClassifier(network).to_onnx()
    settings = {"trainable": ["intercepts_2"], "max_iter": 10, "tol": None}
    return [
        OnnxSGDClassifier(graph, adapter=LoRA(rank, 8, "*"), random_state=rank, **settings).fit(
            X, (y + rank) % 10
        )
        for rank in (2, 5)
    ]


def test_several_adapters_share_one_base(digits, adapted):
    network, X, _ = digits
    first, second = (model.to_onnx(adapter="inputs") for model in adapted)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    session, rows = session_of(first), {"X": X[:40].astype(np.float32)}
    np.testing.assert_allclose(session.run(None, rows)[1], network.predict_proba(X[:40]), atol=1e-5)
    for model in adapted:
        weights, scale = model.get_weights(), 8 / model.adapter.rank
        weights |= {name: scale * array for name, array in weights.items() if name.endswith("lora_B")}
        labels, table = session.run(None, rows | weights)
        np.testing.assert_allclose(table, model.predict_proba(X[:40]), atol=1e-5)
        np.testing.assert_array_equal(labels, model.predict(X[:40]))


def test_a_file_feeds_the_base(digits, adapted, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", minversion="1.20", reason="needs files of adapters")
    _, X, _ = digits
    session, rows = session_of(adapted[0].to_onnx(adapter="inputs")), {"X": X[:40].astype(np.float32)}
    for model in adapted:
        path = model.export_adapter(tmp_path / f"{model.adapter.rank}.onnx_adapter")
        assert path.stat().st_size < 0.4 * len(model.to_onnx().SerializeToString())
        adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        adapter.Load(str(path))
        options.add_active_adapter(adapter)
        table = session.run(None, rows, options)[1]
        np.testing.assert_allclose(table, model.predict_proba(X[:40]), atol=1e-5)


def test_the_base_is_a_model(digits, adapted):
    network, X, _ = digits
    base = OnnxSGDClassifier(adapted[0].to_onnx(adapter="inputs"))
    np.testing.assert_allclose(base.predict_proba(X[:40]), network.predict_proba(X[:40]), atol=1e-5)


def test_a_base_gets_no_adapters_of_its_adapters(digits, adapted):
    _, X, y = digits
    base = OnnxSGDClassifier(adapted[0].to_onnx(adapter="inputs"), adapter=LoRA(2))
    with pytest.raises(ParameterError, match=r"has adapters already, such as '\w+\.lora_A': train"):
        base.fit(X, y)
    merged = OnnxSGDClassifier(adapted[0].to_onnx(), adapter=LoRA(2), max_iter=1, tol=None).fit(X, y)
    assert all(name.count("lora") == 1 for name in merged.get_weights())


def test_files_need_adapters_and_forms_have_names(iris, tmp_path, adapted):
    plain = OnnxSGDClassifier().fit(*iris)
    with pytest.raises(ParameterError, match="export_adapter needs adapters: give adapter=LoRA"):
        plain.export_adapter(tmp_path / "file")
    with pytest.raises(ParameterError, match=r"to_onnx\(adapter='inputs'\) needs adapters"):
        plain.to_onnx(adapter="inputs")
    with pytest.raises(ParameterError, match="adapter='input' is not accepted: it must be 'merged' or 'inp"):
        adapted[0].to_onnx(adapter="input")


def test_texts_are_read_before_the_base():
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.pipeline import make_pipeline

    texts, labels = ["one two", "two three", "three four", "four one"] * 5, [0, 1, 0, 1] * 5
    inner = make_pipeline(CountVectorizer(), MLPClassifier((4,), tol=1.0, random_state=0)).fit(texts, labels)
    model = OnnxSGDClassifier(inner, adapter=LoRA(2), random_state=0).fit(texts, labels)
    base, merged = model.to_onnx(adapter="inputs"), model.to_onnx()
    rows = {base.graph.input[0].name: np.array(texts[:4], object).reshape(-1, 1)}
    weights = {
        name: 8 * array if name.endswith("lora_B") else array for name, array in model.get_weights().items()
    }
    expected = session_of(merged).run(None, rows)[1]
    np.testing.assert_allclose(session_of(base).run(None, rows | weights)[1], expected, atol=1e-5)


#: Nodes of quantized graphs, the shapes of their weights and of their data.
QUANTIZED = {
    "static": (
        "I = QuantizeLinear(X, r, z) D = DequantizeLinear(I, r, z) G = DequantizeLinear<axis = 1>(V, s)"
        " H = MatMul(D, G) R = Tanh(H) U = DequantizeLinear(W, t) Y = Gemm<transB = 1>(R, U)",
        {"V": (6, 8), "W": (1, 8)}, ("N", 6),
    ),
    "static images": (
        "G = DequantizeLinear<axis = 0>(V, s) C = Conv<pads = [1, 1, 1, 1]>(X, G) R = Tanh(C)"
        " M = GlobalAveragePool(R) F = Flatten(M) U = DequantizeLinear(W, t) Y = Gemm<transB = 1>(F, U)",
        {"V": (8, 2, 3, 3), "W": (1, 8)}, ("N", 2, 5, 6),
    ),
    "dynamic": (
        "Q, A, P = DynamicQuantizeLinear(X) I = MatMulInteger(Q, V, P) D = Cast<to = 1>(I) S = Mul(A, s)"
        " H = Mul(D, S) R = Tanh(H) E, B, O = DynamicQuantizeLinear(R) J = MatMulInteger(E, W, O)"
        " K = Cast<to = 1>(J) L = Mul(B, t) Y = Mul(K, L)",
        {"V": (6, 8), "W": (8, 1)}, ("N", 6),
    ),
    "dynamic images": (
        "Q, A, P = DynamicQuantizeLinear(X) I = ConvInteger<pads = [1, 1, 1, 1]>(Q, V, P) D = Cast<to = 1>(I)"
        " S = Mul(A, t) H = Mul(D, S) R = Tanh(H) M = GlobalAveragePool(R) F = Flatten(M)"
        " E, B, O = DynamicQuantizeLinear(F) J = MatMulInteger(E, W, O) K = Cast<to = 1>(J)"
        " L = Mul(B, t) Y = Mul(K, L)",
        {"V": (8, 2, 3, 3), "W": (8, 1)}, ("N", 2, 5, 6),
    ),
}  # fmt: skip


def quantized_graph(case, seed=0):
    """A graph with weights of 8 bits, whose numbers follow from the seed."""
    nodes, shapes, sizes = QUANTIZED[case]
    rng = np.random.default_rng(seed)
    # the runtime has no ConvInteger of signed weights
    low, kind = (0, np.uint8) if case == "dynamic images" else (-127, np.int8)
    held = {name: rng.integers(low, 127, shape).astype(kind) for name, shape in shapes.items()}
    per_channel = np.linspace(0.004, 0.008, 8).astype(np.float32)
    held |= {"s": per_channel, "t": np.float32(0.005), "r": np.float32(0.03), "z": np.int8(0)}
    dims = ", ".join(map(str, sizes))
    graph = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[{dims}] X) => (float[N, 1] Y) {{ {nodes} }}'
    )
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in held.items())
    return graph


@pytest.mark.parametrize("rate", [{}, {**RATE, "optimizer": "adam", "max_iter": 150}], ids=["auto", "adam"])
@pytest.mark.parametrize("case", QUANTIZED)
def test_a_quantized_graph_learns_through_its_adapters(case, rate):
    graph, sizes = quantized_graph(case), QUANTIZED[case][2][1:]
    X = np.random.default_rng(1).normal(size=(300, *sizes)).astype(np.float32)
    y = session_of(quantized_graph(case, 5)).run(None, {"X": X})[0].ravel()
    model = OnnxSGDRegressor(graph, adapter=LoRA(4, targets="*"), random_state=0, **rate)
    before = model.score(X, y)
    model.fit(X, y)
    assert sorted(model.get_weights()) == [f"{name}.lora_{part}" for name in "VW" for part in "AB"]
    assert model.score(X, y) > 0.7 + 0.3 * before
    exported = model.to_onnx()
    base, after = initializers(graph), initializers(exported)
    for name in "VW":
        np.testing.assert_array_equal(after[name], base[name])
        assert after[name].dtype == base[name].dtype
    assert {name for name in after if name.endswith(("_A", "_B"))} == set(model.get_weights())
    expected = model.predict(X[:9]).ravel()
    np.testing.assert_allclose(session_of(exported).run(None, {"X": X[:9]})[0].ravel(), expected, atol=1e-4)
    np.testing.assert_allclose(OnnxSGDRegressor(exported).predict(X[:9]).ravel(), expected, atol=1e-4)
    feeds = {"X": X[:9], **model.get_weights()}
    feeds |= {name: 4 * array for name, array in feeds.items() if name.endswith("lora_B")}
    found = session_of(model.to_onnx(adapter="inputs")).run(None, feeds)[0]
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-4)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X[:9]), model.predict(X[:9]))


def test_quantized_weights_of_the_last_layer_are_left_to_their_name():
    X = np.random.default_rng(1).normal(size=(60, 6)).astype(np.float32)
    model = OnnxSGDRegressor(quantized_graph("dynamic"), adapter=LoRA(2), max_iter=1, tol=None)
    assert sorted(model.fit(X, X[:, 0]).get_weights()) == ["V.lora_A", "V.lora_B"]


def test_only_the_portable_engine_passes_quantized_data():
    X = np.random.default_rng(1).normal(size=(60, 6)).astype(np.float32)
    model = OnnxSGDRegressor(quantized_graph("dynamic"), adapter=LoRA(2), engine="onnxruntime-training")
    with pytest.raises(NotTrainableError, match="cannot be trained by this engine.*Use engine='portable'"):
        model.fit(X, X[:, 0])


def packed_graph(seed):
    """A network with weights of 4 bits, whose levels follow from the seed."""
    rng = np.random.default_rng(seed)
    nodes = ("MatMulNBits<K = 6, N = 8, bits = 4, block_size = 16>(X, V, s)",
             "MatMulNBits<K = 8, N = 1, bits = 4, block_size = 16>(R, W, t)")  # fmt: skip
    first, last = (f"com.microsoft.{node}" for node in nodes)
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]> g (float[N, 6] X) => (float[N, 1] Y)'
        f"{{ H = {first} R = Tanh(H) Y = {last} }}"
    )
    held = {"V": rng.integers(0, 255, (8, 1, 8)), "W": rng.integers(0, 255, (1, 1, 8))}
    held = {name: array.astype(np.uint8) for name, array in held.items()}
    held |= {"s": np.linspace(0.05, 0.1, 8).astype(np.float32), "t": np.array([0.1], np.float32)}
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in held.items())
    return graph


def test_weights_of_four_bits_learn_through_their_adapters():
    X = np.random.default_rng(1).normal(size=(300, 6)).astype(np.float32)
    graph, y = packed_graph(0), session_of(packed_graph(5)).run(None, {"X": X})[0].ravel()
    model = OnnxSGDRegressor(graph, adapter=LoRA(4, targets="*"), random_state=0)
    before = model.score(X, y)
    assert model.fit(X, y).score(X, y) > 0.8 + 0.2 * before
    shapes = {name: array.shape for name, array in model.get_weights().items()}
    assert shapes == {
        "V.lora_A": (6, 4), "V.lora_B": (4, 8), "W.lora_A": (8, 4), "W.lora_B": (4, 1),
    }  # fmt: skip
    exported = model.to_onnx()
    np.testing.assert_array_equal(initializers(exported)["V"], initializers(graph)["V"])
    assert [node.op_type for node in exported.graph.node].count("MatMulNBits") == 2
    found = session_of(exported).run(None, {"X": X[:9]})[0]
    np.testing.assert_allclose(found.ravel(), model.predict(X[:9]), atol=1e-4)
    default = OnnxSGDRegressor(packed_graph(0), adapter=LoRA(4), max_iter=1, tol=None).fit(X, y)
    assert list(default.get_weights()) == ["V.lora_A", "V.lora_B"]


def test_real_weights_before_quantized_activations_train():
    rng = np.random.default_rng(0)
    X, slopes = rng.normal(size=(400, 3)).astype(np.float32), np.float32([[1.0], [-2.0], [0.5]])
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] X) => (float[N, 1] Y)
        <float s = {0.05}, int8 z = {0}, float[3, 1] W = {0.1, 0.1, 0.1}>
        { H = MatMul(X, W) Q = QuantizeLinear(H, s, z) Y = DequantizeLinear(Q, s, z) }"""
    )
    model = OnnxSGDRegressor(graph, trainable=["W"], random_state=0).fit(X, (X @ slopes).ravel())
    # as near as the levels of 0.05, and none at all without a gradient
    np.testing.assert_allclose(model.get_weights()["W"], slopes, atol=0.03)


def test_a_graph_without_weights_names_adapters_of_quantized_ones(diabetes):
    graph = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[N, 10] X) => (float[N, 10] Y) { Y = Mul(X, X) }'
    )
    with pytest.raises(NotTrainableError, match=r"no real weights.*Quantized weights .*adapter=LoRA"):
        OnnxSGDRegressor(graph).fit(diabetes[0], diabetes[0])
