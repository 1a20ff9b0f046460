"""Targets of several axes: pixels, tokens and steps of series with a label, or a number, each."""

import importlib.util
import pickle
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy import sparse
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, describe_trainable
from onnxsgd.exceptions import GraphError, ParameterError, UnsupportedError
from onnxsgd.losses import CrossEntropy, LogLoss, Loss, MulticlassHinge, SquaredError
from onnxsgd.runtime.device import Device
from onnxsgd.schedules import Auto

ENGINES = ["portable", pytest.param("onnxruntime-training", marks=pytest.mark.native)]
PLAIN = {
    "learning_rate": "constant", "eta0": 0.1, "penalty": None, "shuffle": False, "tol": None,
    "max_iter": 6, "batch_size": 4,
}  # fmt: skip
N, F, K, SIZES = 12, 3, 4, (5, 2)
_rng = np.random.default_rng(0)
#: Features and labels of elements, with the axis of features last.
PIXELS = _rng.normal(size=(N, *SIZES, F)).astype(np.float32)
LABELS = (PIXELS @ _rng.normal(size=(F, K))).argmax(axis=-1)
W, B = (_rng.normal(size=shape).astype(np.float32) / 2 for shape in ((F, K), (K,)))
IGNORED = np.where(_rng.random(LABELS.shape) < 0.3, 255, LABELS)
IGNORED[3] = 255


def make_model(nodes, inputs, outputs, tensors, dtype=np.float32, more=None):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    infos = [
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in values.items()]
        for values in (inputs, outputs)
    ]
    initializers = [numpy_helper.from_array(array.astype(dtype), name) for name, array in tensors.items()]
    initializers += [numpy_helper.from_array(array, name) for name, array in (more or {}).items()]
    graph = helper.make_graph(nodes, "graph", *infos, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def linear(kind, *, tail=None, w=W, b=B, dtype=np.float32):
    """A linear model of each element: a convolution of one pixel, or a product with the last axis."""
    k, f = w.shape[1], w.shape[0]
    if kind == "pixels":
        nodes, axis = [helper.make_node("Conv", ["x", "w", "b"], ["z"])], 1
        sizes, w = ([f, "H", "W"], [k, "H", "W"]), w.T[:, :, None, None]
    elif kind == "series":
        nodes, axis = [helper.make_node("Conv", ["x", "w", "b"], ["z"])], 1
        sizes, w = ([f, "T"], [k, "T"]), w.T[:, :, None]
    else:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["z"])]
        sizes, axis = (["T", f], ["T", k]), 2
    out = "z"
    if tail:
        out, (operator, more) = "out", tail
        attributes = {"axis": axis} if operator.endswith("Softmax") else more
        nodes.append(helper.make_node(operator, ["z"], ["out"], **attributes))
    return make_model(nodes, {"x": ["N", *sizes[0]]}, {out: ["N", *sizes[1]]}, {"w": w, "b": b}, dtype)


def arrange(kind, x=PIXELS, y=LABELS):
    """Return data in the axes of a model, and targets of elements in theirs."""
    if kind == "pixels":
        return np.ascontiguousarray(np.moveaxis(x, -1, 1)), y
    x, y = x.reshape(N, -1, x.shape[-1]), y.reshape(N, -1)
    return (np.ascontiguousarray(np.moveaxis(x, -1, 1)), y) if kind == "series" else (x, y)


def descend(y, *, ignored=255, smoothing=0.0, by_class=(1.0,) * K, weight=(1.0,) * N, batch=4, epochs=6):
    """Gradient descent in numpy: the mean over all elements of a batch that count, by their weights."""
    w, b, curve = W.astype(float), B.astype(float), []
    x, y, weight = PIXELS.reshape(N, -1, F).astype(float), y.reshape(N, -1), np.asarray(weight, float)
    counted = (y != ignored).any(axis=1)
    x, y, weight = x[counted], y[counted], weight[counted]
    for _ in range(epochs):
        losses, totals = [], []
        for start in range(0, len(x), batch):
            rows = slice(start, start + batch)
            keep = y[rows] != ignored
            share = (weight[rows, None] * np.append(by_class, 0)[np.where(keep, y[rows], -1)])[keep]
            inputs, target = x[rows][keep], np.eye(K)[y[rows][keep]] * (1 - smoothing) + smoothing / K
            losses.append((share * -(target * log_softmax(inputs @ w + b, axis=1)).sum(axis=1)).sum())
            totals.append(share.sum())
            slope = (share / share.sum())[:, None] * (softmax(inputs @ w + b, axis=1) - target)
            w, b = w - 0.1 * inputs.T @ slope, b - 0.1 * slope.sum(axis=0)
        curve.append(np.sum(losses) / np.sum(totals))
    return w, b, curve


def assert_descends(learner, w, b, curve):
    found = learner.get_weights()
    table = found["w"].reshape(K, F).T if found["w"].ndim > 2 else found["w"]
    np.testing.assert_allclose(table, w, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(found["b"], b, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(learner.loss_curve_, curve, rtol=2e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["pixels", "series", "tokens"])
@pytest.mark.parametrize(
    "tail", [None, ("Softmax", {}), ("LogSoftmax", {})], ids=["scores", "softmax", "log"]
)
def test_descent_is_that_of_numpy(kind, tail, engine):
    X, y = arrange(kind)
    learner = OnnxSGDClassifier(linear(kind, tail=tail), engine=engine, **PLAIN).fit(X, y)
    assert_descends(learner, *descend(LABELS))
    # labels in the shape of y, probabilities with the classes on the last axis
    scores = (
        PIXELS.reshape(N, -1, F) @ learner.get_weights()["w"].reshape(-1, F).T if kind != "tokens" else None
    )
    assert learner.predict(X).shape == y.shape
    assert learner.predict_proba(X).shape == (*y.shape, K)
    np.testing.assert_array_equal(learner.predict_proba(X).argmax(axis=-1), learner.predict(X))
    if scores is not None:
        expected = (scores + learner.get_weights()["b"]).reshape(*y.shape, K)
        np.testing.assert_allclose(learner.decision_function(X), expected, rtol=1e-4, atol=1e-5)
    assert learner.score(X, y) == pytest.approx((learner.predict(X) == y).mean())
    assert learner.score(X, y) > 0.6


@pytest.mark.parametrize("by_class", [None, {0: 1.0, 1: 3.0, 2: 0.5, 3: 2.0}], ids=["even", "weighted"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_elements_that_do_not_count(by_class, weighted, smoothing):
    X, y = arrange("pixels", y=IGNORED)
    weight = np.linspace(0.5, 2, N) if weighted else np.ones(N)
    loss = CrossEntropy(ignore_index=255, label_smoothing=smoothing)
    learner = OnnxSGDClassifier(linear("pixels"), loss=loss, class_weight=by_class, **PLAIN)
    learner.fit(X, y, sample_weight=weight)
    factors = (1.0,) * K if by_class is None else tuple(by_class.values())
    assert_descends(learner, *descend(IGNORED, smoothing=smoothing, by_class=factors, weight=weight))
    keep = IGNORED != 255
    shares = np.broadcast_to(weight[:, None, None], keep.shape)[keep]
    expected = np.average((learner.predict(X) == IGNORED)[keep], weights=shares)
    assert learner.score(X, y, sample_weight=weight) == pytest.approx(expected)
    assert learner.classes_.tolist() == [0, 1, 2, 3]


def test_a_class_may_be_ignored():
    """Its scores exist, and may win: such predictions are neither learned nor counted."""
    X, y = arrange("pixels")
    learner = pixels(loss=CrossEntropy(ignore_index=1), classes=range(K), **PLAIN)
    right, counts = learner.predict(X) == y, y != 1
    assert right[~counts].any()
    assert learner.score(X, y) == pytest.approx(right[counts].mean())
    assert_descends(learner.fit(X, y), *descend(LABELS, ignored=1))


def test_balanced_classes_of_elements():
    X, y = arrange("pixels", y=IGNORED)
    counts = np.bincount(IGNORED[IGNORED != 255])
    factors = counts.sum() / (K * counts)
    loss = CrossEntropy(ignore_index=255)
    learner = OnnxSGDClassifier(linear("pixels"), loss=loss, class_weight="balanced", **PLAIN).fit(X, y)
    assert_descends(learner, *descend(IGNORED, by_class=tuple(factors)))


def test_batches_of_one_row():
    X, y = arrange("tokens", y=IGNORED)
    loss = CrossEntropy(ignore_index=255)
    learner = OnnxSGDClassifier(linear("tokens"), loss=loss, **{**PLAIN, "batch_size": 1}).fit(X, y)
    w, b, _ = descend(IGNORED, batch=1)
    np.testing.assert_allclose(learner.get_weights()["w"], w, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(learner.get_weights()["b"], b, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["pixels", "tokens"])
def test_epochs_inside_the_runtime(kind, monkeypatch):
    """From 500 updates on the loop over batches is compiled, and computes the losses of all at once."""
    from onnxsgd.engine.step import scan_epoch

    calls, run = [], scan_epoch.EpochRunner.run
    monkeypatch.setattr(scan_epoch.EpochRunner, "run", lambda *args: calls.append(1) or run(*args))
    X, y = arrange(kind, y=IGNORED)
    loss = CrossEntropy(ignore_index=255)
    settings = {**PLAIN, "batch_size": 2, "max_iter": 120}
    learner = OnnxSGDClassifier(linear(kind), loss=loss, **settings).fit(X, y)
    assert_descends(learner, *descend(IGNORED, batch=2, epochs=120))
    assert calls


@pytest.mark.parametrize("kind", ["pixels", "tokens"])
def test_data_that_stay_on_the_device(kind, monkeypatch):
    """Several updates are one graph there, which computes their losses together; here on the CPU."""
    monkeypatch.setattr(Device, "keeps_data", True)
    X, y = arrange(kind, y=IGNORED)
    learner = OnnxSGDClassifier(linear(kind), loss=CrossEntropy(ignore_index=255), **PLAIN).fit(X, y)
    assert_descends(learner, *descend(IGNORED))


@pytest.mark.parametrize("rate", ["auto", "constant"])
def test_sparse_data(rate):
    """A product of sparse rows, whose results are the scores of four steps."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 12))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "sizes"], ["z"]),
    ]
    model = make_model(
        nodes, {"x": ["N", 6]}, {"z": ["N", 4, 3]}, {"w": w}, more={"sizes": np.array([-1, 4, 3])}
    )
    X = sparse.random(60, 6, 0.4, format="csr", random_state=0, dtype=np.float32)
    targets = (X @ rng.normal(size=(6, 12))).reshape(60, 4, 3)
    settings = {**PLAIN, "learning_rate": rate, "random_state": 0}
    settings |= {"eta0": None, "max_iter": 200} if rate == "auto" else {}
    for estimator, y in [
        (OnnxSGDRegressor(model, **settings), targets),
        (OnnxSGDClassifier(model, **settings), targets.argmax(axis=2)),
    ]:
        found = clone(estimator).fit(X, y)
        assert found.predict(X).shape == y.shape
        if rate == "auto":
            assert found.score(X, y) > 0.95
            continue
        dense = clone(estimator).fit(X.toarray(), y)
        np.testing.assert_allclose(found.get_weights()["w"], dense.get_weights()["w"], rtol=1e-4, atol=1e-5)


def test_float64():
    X, y = arrange("tokens", y=IGNORED)
    model = linear("tokens", dtype=np.float64)
    loss = CrossEntropy(ignore_index=255, label_smoothing=0.1)
    learner = OnnxSGDClassifier(model, loss=loss, **PLAIN).fit(X.astype(float), y)
    w, _, curve = descend(IGNORED, smoothing=0.1)
    np.testing.assert_allclose(learner.get_weights()["w"], w, rtol=1e-12)
    np.testing.assert_allclose(learner.loss_curve_, curve, rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_network_is_trained_as_by_torch(engine):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    tensors = {
        "w1": rng.normal(size=(5, 2, 3, 3)) / 3, "b1": rng.normal(size=5),
        "w2": rng.normal(size=(K, 5, 3, 3)) / 3, "b2": rng.normal(size=K),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2", "b2"], ["z"], pads=[1, 1, 1, 1]),
    ]
    model = make_model(nodes, {"x": ["N", 2, 6, 7]}, {"z": ["N", K, 6, 7]}, tensors)
    X, y = rng.normal(size=(15, 2, 6, 7)).astype(np.float32), rng.integers(K, size=(15, 6, 7))
    y[rng.random(y.shape) < 0.2] = -100
    loss = CrossEntropy(label_smoothing=0.1, ignore_index=-100)
    learner = OnnxSGDClassifier(
        model, loss=loss, engine=engine, **{**PLAIN, "batch_size": 5, "max_iter": 10, "momentum": 0.9}
    ).fit(X, y)
    assert learner.t_ == 30
    theirs = {
        name: torch.tensor(array.astype(np.float32), requires_grad=True) for name, array in tensors.items()
    }
    optimizer, curve = torch.optim.SGD(theirs.values(), lr=0.1, momentum=0.9), []
    for step in range(30):
        rows = slice(5 * (step % 3), 5 * (step % 3) + 5)
        hidden = torch.relu(torch.conv2d(torch.tensor(X[rows]), theirs["w1"], theirs["b1"], padding=1))
        scores = torch.conv2d(hidden, theirs["w2"], theirs["b2"], padding=1)
        value = torch.nn.functional.cross_entropy(scores, torch.tensor(y[rows]), label_smoothing=0.1)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        curve.append(value.item())
    for name, array in learner.get_weights().items():
        np.testing.assert_allclose(array, theirs[name].detach().numpy(), rtol=1e-3, atol=2e-5)
    assert learner.loss_curve_[-1] == pytest.approx(np.mean(curve[-3:]), rel=0.01)


@pytest.mark.parametrize("names", [np.array(["sky", "road", "car", "tree"]), np.array([7, 3, 40, 11])])
def test_labels_and_their_order(names):
    X, y = arrange("pixels")
    learner = OnnxSGDClassifier(linear("pixels"), classes=names, **PLAIN).fit(X, names[y])
    assert_descends(learner, *descend(LABELS))
    assert learner.classes_.tolist() == names.tolist()
    np.testing.assert_array_equal(learner.predict(X), names[learner.predict_proba(X).argmax(axis=-1)])


def test_part_of_a_stream_without_elements_that_count():
    X, y = arrange("pixels", y=IGNORED)
    learner = OnnxSGDClassifier(
        linear("pixels"), loss=CrossEntropy(ignore_index=255), classes=range(K), **PLAIN
    )
    learner.partial_fit(X, np.full_like(y, 255))
    np.testing.assert_array_equal(learner.get_weights()["b"], B)
    for _ in range(6):
        learner.partial_fit(X, y)
    _, b, curve = descend(IGNORED)
    np.testing.assert_allclose(learner.loss_curve_, curve, rtol=2e-6)
    np.testing.assert_allclose(learner.get_weights()["b"], b, rtol=1e-4)
    with pytest.raises(ParameterError, match="Nothing of y counts"):
        learner.fit(X, np.full_like(y, 255))


@pytest.mark.parametrize(
    "loss", ["log_loss", CrossEntropy(ignore_index=255), "focal", "multiclass_hinge", "hinge"]
)
def test_rate_that_training_finds(loss):
    X, y = arrange("pixels", y=IGNORED if isinstance(loss, CrossEntropy) else LABELS)
    learner = OnnxSGDClassifier(linear("pixels"), loss=loss, random_state=0).fit(X, y)
    assert learner.loss_curve_[-1] < learner.loss_curve_[0]
    assert learner.score(X, y) > 0.9
    assert hasattr(learner, "predict_proba") == (loss not in ("multiclass_hinge", "hinge"))


def test_early_stopping_and_validation_data():
    X, y = arrange("pixels", y=IGNORED)
    settings = {"loss": CrossEntropy(ignore_index=255), "early_stopping": True, "random_state": 0}
    given = OnnxSGDClassifier(linear("pixels"), **settings).fit(X, y, X_val=X, y_val=y)
    assert max(given.validation_scores_) == pytest.approx(given.score(X, y))
    held_out = OnnxSGDClassifier(linear("pixels"), validation_fraction=0.3, **settings).fit(X, y)
    assert max(held_out.validation_scores_) > 0.8
    with pytest.raises(ParameterError, match="y_val has no label but ignore_index=255"):
        given.fit(X, y, X_val=X[:2], y_val=np.full_like(y[:2], 255))
    with pytest.raises(ParameterError, match=r"y_val contains the labels \[9\]"):
        given.fit(X, y, X_val=X[:2], y_val=np.full_like(y[:2], 9))


@pytest.mark.parametrize(
    ("tail", "has_axis"),
    [(None, True), (("Sigmoid", {}), True), (None, False), (("Sigmoid", {}), False)],
    ids=["one channel", "sigmoid", "no axis", "sigmoid, no axis"],
)
def test_one_score_for_each_pixel_tells_two_classes(tail, has_axis):
    model = linear("pixels", w=W[:, :1], b=B[:1], tail=tail)
    if not has_axis:
        inner = model.graph.output[0].name
        model.graph.node.append(helper.make_node("Squeeze", [inner, "axis"], ["squeezed"]))
        model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axis"))
        model.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("squeezed", TensorProto.FLOAT, ["N", "H", "W"])
        )
    y = np.where(PIXELS @ [1.0, -1.0, 0.5] > 0.2, "yes", "no")
    X, y = arrange("pixels", y=y)
    learner = OnnxSGDClassifier(model, random_state=0).fit(X, y)
    assert learner.classes_.tolist() == ["no", "yes"]
    assert learner.decision_function(X).shape == learner.predict(X).shape == y.shape
    assert learner.predict_proba(X).shape == (*y.shape, 2)
    np.testing.assert_allclose(learner.predict_proba(X).sum(axis=-1), 1)
    np.testing.assert_array_equal(learner.predict(X) == "yes", learner.decision_function(X) > 0)
    assert learner.score(X, y) > 0.9


def test_two_scores_of_two_classes_have_one_decision():
    X, y = arrange("pixels", y=(LABELS > 1).astype(int))
    learner = OnnxSGDClassifier(linear("pixels", w=W[:, :2], b=B[:2]), random_state=0).fit(X, y)
    assert learner.decision_function(X).shape == y.shape
    assert learner.predict_proba(X).shape == (*y.shape, 2)


def test_tables_stay_several_labels():
    model = make_model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["z"])], {"x": ["N", F]}, {"z": ["N", K]}, {"w": W, "b": B}
    )
    y = np.eye(K, dtype=int)[LABELS[:, 0, 0]]
    learner = OnnxSGDClassifier(model, **PLAIN).fit(PIXELS[:, 0, 0], y)
    assert learner.predict(PIXELS[:, 0, 0]).shape == (N, K)
    with pytest.raises(ParameterError, match=r"y has the values \[3, 7\] in its columns"):
        OnnxSGDClassifier(model).fit(PIXELS[:, 0, 0], np.where(y, 3, 7))
    # for tokens the same table of 0 and 1 holds labels
    X, y = arrange("tokens", y=(LABELS > 1).astype(int))
    tokens = OnnxSGDClassifier(linear("tokens", w=W[:, :2], b=B[:2]), **PLAIN).fit(X, y)
    assert tokens.classes_.tolist() == [0, 1]


def test_equal_sizes_are_told_apart_by_the_graph():
    """As many steps as classes: the last layer tells the axis of the classes."""
    X, y = arrange("tokens")
    X, y = X[:, :K], y[:, :K]
    learner = OnnxSGDClassifier(linear("tokens"), classes=range(K), **{**PLAIN, "max_iter": 60}).fit(X, y)
    scores = X @ learner.get_weights()["w"] + learner.get_weights()["b"]
    np.testing.assert_array_equal(learner.predict(X), scores.argmax(axis=2))
    turned = np.ascontiguousarray(np.moveaxis(X, 2, 1))
    series = OnnxSGDClassifier(linear("series"), classes=range(K), **{**PLAIN, "max_iter": 60})
    series.fit(turned, y)
    np.testing.assert_array_equal(series.predict(turned), learner.predict(X))
    unknown = linear("tokens")
    unknown.graph.node.append(helper.make_node("CumSum", ["z", "one"], ["s"]))
    unknown.graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    unknown.graph.output[0].name = "s"
    with pytest.raises(GraphError, match=r"\(n_samples, 4, 4\) and y has \(n_samples, 4\), so that the axis"):
        OnnxSGDClassifier(unknown).fit(X, y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("loss", "own"), [("squared_error", True), (SquaredError(), True), ("huber", False)])
def test_regression_of_several_axes(loss, own, engine):
    """A target of any shape is trained as its flattened table: the sum over the outputs of a sample."""
    X, _ = arrange("pixels")
    y = np.moveaxis(PIXELS @ W * 3 + 1, -1, 1) + 0.1 * np.random.default_rng(0).normal(size=(N, K, *SIZES))
    settings = {**PLAIN, "eta0": 0.01, "engine": engine}
    learner = OnnxSGDRegressor(linear("pixels"), loss=loss, **settings).fit(X, y)
    flat = linear("pixels")
    flat.graph.node.append(helper.make_node("Flatten", ["z"], ["flat"]))
    flat.graph.output[0].CopyFrom(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["N", "M"]))
    table = OnnxSGDRegressor(flat, loss=loss, **settings).fit(X, y.reshape(N, -1))
    for name, array in learner.get_weights().items():
        np.testing.assert_allclose(array, table.get_weights()[name], rtol=1e-5, atol=1e-6)
    assert learner.predict(X).shape == y.shape
    expected = r2_score(y.reshape(N, -1), learner.predict(X).reshape(N, -1))
    assert (
        learner.score(X, y)
        == pytest.approx(expected)
        == pytest.approx(table.score(X, y.reshape(N, -1)), abs=1e-5)
    )
    weight = np.linspace(0, 1, N)
    expected = r2_score(y.reshape(N, -1), learner.predict(X).reshape(N, -1), sample_weight=weight)
    assert learner.score(X, y, sample_weight=weight) == pytest.approx(expected)
    found = OnnxSGDRegressor(linear("pixels"), loss=loss, random_state=0, early_stopping=True).fit(
        X, y, X_val=X, y_val=y
    )
    assert found.score(X, y) == pytest.approx(max(found.validation_scores_), abs=1e-5)
    assert found.score(X, y) > (0.95 if own else 0.5)


HIDDEN, W_OF_UNITS = (_rng.normal(size=shape).astype(np.float32) / 2 for shape in ((F, 8), (8, K)))


def network(kind, tail=()):
    """Two layers for each element, behind one of 8 units, and nodes that follow; sizes are known."""
    (f, k), (w, b) = W.shape, (np.float32(HIDDEN), np.zeros(8, np.float32))
    tensors = {"w0": w.T, "b0": b, "w": W_OF_UNITS.T, "b": B}
    if kind == "tokens":
        tensors |= {"w0": w, "w": W_OF_UNITS}
        layers = [("MatMul", ["x", "w0"], "p"), ("Add", ["p", "b0"], "h")]
        layers += [("Relu", ["h"], "r"), ("MatMul", ["r", "w"], "q"), ("Add", ["b", "q"], "z")]
        sizes = [10, f], [10, k]
    else:
        axes = len(SIZES) if kind == "pixels" else 1
        tensors |= {name: tensors[name].reshape(*tensors[name].shape, *[1] * axes) for name in ("w0", "w")}
        layers = [("Conv", ["x", "w0", "b0"], "h"), ("Relu", ["h"], "r"), ("Conv", ["r", "w", "b"], "z")]
        elements = SIZES if kind == "pixels" else (10,)
        sizes = [f, *elements], [k, *elements]
    nodes = [helper.make_node(operator, inputs, [output]) for operator, inputs, output in layers]
    out = "z"
    for number, (operator, options) in enumerate(tail):
        nodes.append(helper.make_node(operator, [out], [out := f"out_{number}"], **options))
    last, shape = tail[-1][0] if tail else "", sizes[1]
    if last == "Flatten":
        shape = [k]
    elif last == "Transpose":
        shape = [*shape[1:], shape[0]]
    return make_model(nodes, {"x": ["N", *sizes[0]]}, {out: ["N", *shape]}, tensors)


#: Networks of several axes, and the axis of the channels of their targets.
NETWORKS = {
    "pixels": ("pixels", (), 1),
    "channels last": ("pixels", [("Transpose", {"perm": [0, 2, 3, 1]})], 3),
    "means of pixels": ("pixels", [("GlobalAveragePool", {}), ("Flatten", {})], 1),
    "series": ("series", (), 1),
    "tokens": ("tokens", (), 2),
}


def data_of(name):
    """Return a network, standardised data, its predictions, and a summand for each channel of these."""
    kind, tail, axis = NETWORKS[name]
    rows = PIXELS - PIXELS.mean(axis=(0, 1, 2))
    model, (X, _) = network(kind, tail), arrange(kind, rows / rows.std(axis=(0, 1, 2)))
    made = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    z = made.run(None, {"x": X})[0].astype(np.float64)
    channels = np.array([300.0, -20.0, 500.0, 1000.0]).reshape([K if i == axis else 1 for i in range(z.ndim)])
    return model, X, z, channels


@pytest.mark.parametrize("name", NETWORKS)
def test_far_targets_shift_the_intercepts_of_channels(name):
    """Weights that are right but for an offset of each channel need no training."""
    model, X, z, channels = data_of(name)
    settings = {"learning_rate": Auto(eta0=1e-9), "max_iter": 1, "random_state": 0, "tol": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        far = OnnxSGDRegressor(model, **settings).fit(X, z + channels)
        # better than a constant prediction
        near = OnnxSGDRegressor(model, **settings).fit(X, z + 0.3 * z.std())
    np.testing.assert_allclose(far.get_weights()["b"], B + channels.ravel(), rtol=1e-5)
    np.testing.assert_allclose(far.get_weights()["w"], near.get_weights()["w"], atol=1e-6)
    np.testing.assert_allclose(near.get_weights()["b"], B, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_wide_predictions_are_scaled_to_their_channels(name):
    """A channel has one factor, also where the target is wider in some elements."""
    model, X, z, channels = data_of(name)
    axis = NETWORKS[name][2]
    widths = np.full(z.shape[1:], 0.01)
    if z.ndim > 2:
        widths[tuple(slice(None) if number == axis else 0 for number in range(1, z.ndim))] = 0.3
    y = widths * z + channels / 100
    settings = {"learning_rate": Auto(eta0=1e-12), "max_iter": 1, "random_state": 0, "tol": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = OnnxSGDRegressor(model, **settings).fit(X, y)
    found = fitted.get_weights()["w"].reshape(W_OF_UNITS.shape if name == "tokens" else W_OF_UNITS.T.shape)
    found = found if name == "tokens" else found.T
    others = tuple(number for number in range(z.ndim) if number != axis)
    np.testing.assert_allclose(found, W_OF_UNITS * y.std(axis=others) / z.std(axis=others), rtol=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_networks_learn_far_targets(name, scale):
    model, X, z, channels = data_of(name)
    y = scale * (z**2 + channels)
    fitted = OnnxSGDRegressor(model, random_state=0).fit(X, y)
    assert fitted.score(X, y) > 0.5


def test_before_the_first_fit():
    X, y = arrange("pixels")
    learner = OnnxSGDClassifier(linear("pixels", tail=("Softmax", {})), classes=range(K))
    expected = softmax(PIXELS @ W + B, axis=-1)
    np.testing.assert_allclose(learner.predict_proba(X), expected, rtol=1e-4, atol=1e-5)
    assert learner.score(X, y) == pytest.approx((expected.argmax(axis=-1) == y).mean())
    regressor = OnnxSGDRegressor(linear("tokens"))
    np.testing.assert_allclose(
        regressor.predict(arrange("tokens")[0]), (PIXELS @ W + B).reshape(N, -1, K), rtol=1e-4
    )
    unnamed = OnnxSGDClassifier(linear("pixels"))
    assert unnamed.predict_proba(X).shape == (*y.shape, K)
    with pytest.raises(ParameterError, match="holds no labels"):
        unnamed.predict(X)


def test_images_of_another_size():
    X, y = arrange("pixels")
    learner = OnnxSGDClassifier(linear("pixels"), **PLAIN).fit(X, y)
    wide = np.concatenate([X, X], axis=3)
    np.testing.assert_array_equal(learner.predict(wide), np.concatenate([learner.predict(X)] * 2, axis=2))
    assert learner.score(wide, np.concatenate([y, y], axis=2)) == pytest.approx(learner.score(X, y))


def test_copies_searches_and_reports():
    X, y = arrange("pixels", y=IGNORED)
    estimator = OnnxSGDClassifier(
        linear("pixels"), loss=CrossEntropy(ignore_index=255), classes=range(K), **PLAIN
    )
    learner = clone(estimator).fit(X, y)
    restored = pickle.loads(pickle.dumps(learner))
    np.testing.assert_array_equal(restored.predict(X), learner.predict(X))
    assert restored.partial_fit(X, y).t_ == learner.t_ + 3
    search = GridSearchCV(estimator, {"loss__label_smoothing": [0.0, 0.1], "eta0": [1e-4, 0.3]}, cv=3).fit(
        X, y
    )
    assert search.best_params_["eta0"] == 0.3
    assert search.best_score_ > 0.7
    report = describe_trainable(linear("pixels", tail=("Softmax", {})))
    assert report.trained == ["w", "b"]
    assert "link softmax" in str(report)
    assert "40 scores" in learner._repr_html_()


def test_exported_graph_keeps_its_outputs():
    X, y = arrange("pixels")
    model = linear("pixels", tail=("Softmax", {}))
    learner = OnnxSGDClassifier(model, **PLAIN).fit(X, y)
    session = onnxruntime.InferenceSession(learner.to_onnx().SerializeToString())
    (probabilities,) = session.run(None, {"x": X})
    np.testing.assert_allclose(
        np.moveaxis(probabilities, 1, -1), learner.predict_proba(X), rtol=1e-4, atol=1e-6
    )
    # a loss that gives the scores another meaning replaces them
    single = OnnxSGDClassifier(model, loss=LogLoss(), **PLAIN).fit(X, y)
    session = onnxruntime.InferenceSession(single.to_onnx().SerializeToString())
    (probabilities,) = session.run(None, {"x": X})
    np.testing.assert_allclose(probabilities, single.predict_proba(X), rtol=1e-4, atol=1e-6)


EXAMPLE = Path(__file__).parents[2] / "examples" / "train_without_onnxsgd.py"


@pytest.mark.parametrize("weighted", [False, True])
def test_exported_training_step(weighted, tmp_path):
    spec = importlib.util.spec_from_file_location("train_without", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    X, y = arrange("pixels", y=IGNORED if weighted else LABELS)
    X, y = X[4:12], y[4:12]
    loss = CrossEntropy(ignore_index=255) if weighted else CrossEntropy()
    learner = OnnxSGDClassifier(linear("pixels"), loss=loss, classes=range(K), **PLAIN).partial_fit(X, y)
    step = example.TrainingStep(learner.export_training_step(tmp_path / "step.onnx"))
    target = step.manifest["target"]
    assert target["encoding"].startswith("the position among the classes of the label of each element")
    counts = (y != 255).reshape(8, -1)
    index, weight = np.where(counts, y.reshape(8, -1), 0), np.ones(8)
    if weighted:
        index, weight = np.hstack([index, counts]), counts.mean(axis=1)
    learner.partial_fit(X, y)
    found = step.epoch({"x": X}, index.astype(np.float32), np.arange(8), weight)
    assert found == pytest.approx(learner.loss_curve_[-1], rel=1e-5)
    for name, array in learner.get_weights().items():
        np.testing.assert_allclose(step.weights()[name], array, rtol=1e-5, atol=1e-6)


class Brier(Loss):
    """The squared error of the scores themselves, without a gradient of its own."""

    targets = "indicator"

    def value(self, op, y_true, raw_prediction):
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(residual, residual)


def test_own_loss_without_a_gradient():
    X, y = arrange("tokens")
    learner = OnnxSGDClassifier(linear("tokens"), loss=Brier(), **PLAIN).fit(X, y)
    w, b = W.astype(float), B.astype(float)
    x = X.reshape(N, -1, F).astype(float)
    for step in range(18):
        rows = slice(4 * (step % 3), 4 * (step % 3) + 4)
        slope = 2 * (x[rows] @ w + b - np.eye(K)[y[rows]]) / y[rows].size
        w, b = w - 0.1 * np.einsum("ntf,ntk->fk", x[rows], slope), b - 0.1 * slope.sum(axis=(0, 1))
    np.testing.assert_allclose(learner.get_weights()["w"], w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(learner.get_weights()["b"], b, rtol=1e-4, atol=1e-6)


def pixels(**more):
    return OnnxSGDClassifier(linear("pixels"), **more)


SCORES = r"\(n_samples, 4, 5, 2\) and y has "
REFUSED = {
    "fewer rows": (lambda X, y: pixels().fit(X, y[:, :4]), GraphError, SCORES + r"\(n_samples, 4, 2\)"),
    "a label": (lambda X, y: pixels().fit(X, y[:, 0, 0]), GraphError, SCORES + r"\(n_samples,\)"),
    "one more axis": (lambda X, y: pixels().fit(X, y[:, None]), GraphError, SCORES),
    "classes": (lambda X, y: pixels(classes=range(3)).fit(X, y), GraphError, "for each element"),
    "halves": (lambda X, y: pixels().fit(X, y + 0.5), ParameterError, "no label"),
    "unknown": (lambda X, y: pixels().partial_fit(X, y), ParameterError, "classes must be passed"),
    "no graph": (
        lambda X, y: OnnxSGDClassifier().fit(X[:, 0, 0], y),
        ParameterError,
        r"\(12, 5, 2\): labels of the elements of samples need a graph",
    ),
    "soft": (
        lambda X, y: pixels(loss=CrossEntropy(soft=True)).fit(X, np.eye(K)[y[:, 0, 0]]),
        ParameterError,
        "give labels, with soft=False",
    ),
    "one score": (
        lambda X, y: OnnxSGDClassifier(linear("pixels", w=W[:, :1], b=B[:1]), loss=MulticlassHinge()).fit(
            X, y > 1
        ),
        GraphError,
        "compares the scores of the classes",
    ),
    "regression": (
        lambda X, y: OnnxSGDRegressor(linear("pixels")).fit(X, y),
        GraphError,
        SCORES + r"\(n_samples, 5, 2\)",
    ),
    "regression, a number": (
        lambda X, y: OnnxSGDRegressor(linear("pixels")).fit(X, y[:, 0, 0]),
        GraphError,
        SCORES + r"\(n_samples,\)",
    ),
    "regression, no graph": (
        lambda X, y: OnnxSGDRegressor().fit(X[:, :, 0, 0], y),
        GraphError,
        r"\(n_samples, 10\) and y has \(n_samples, 5, 2\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_shapes_that_do_not_fit_are_refused(case):
    fit, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        fit(*arrange("pixels"))


def test_later_calls_have_the_shape_of_the_first():
    X, y = arrange("pixels")
    learner = OnnxSGDClassifier(linear("pixels"), **PLAIN).fit(X, y)
    with pytest.raises(
        ParameterError, match=r"y has shape \(12, 4, 2\); in the first call .*'n_samples', 5, 2"
    ):
        learner.partial_fit(X, y[:, :4])
    with pytest.raises(ParameterError, match=r"y has shape \(12, 4, 2\) and the predictions \(12, 5, 2\)"):
        learner.score(X, y[:, :4])
    regressor = OnnxSGDRegressor(linear("pixels"), **PLAIN).fit(X, np.moveaxis(PIXELS @ W, -1, 1))
    with pytest.raises(ParameterError, match=r"y has shape \(12, 5, 2\) and the predictions \(12, 4, 5, 2\)"):
        regressor.score(X, y)


def test_samples_of_another_size_are_refused_in_training():
    X, y = arrange("pixels")
    wide, numbers = np.concatenate([X, X], axis=3), np.moveaxis(PIXELS @ W, -1, 1)
    sizes = r"into raw predictions of shape \(n_samples, 4, 5, 4\), and the data .* \(n_samples, 4, 5, 2\)"
    for learner, target in [(pixels(**PLAIN), y), (OnnxSGDRegressor(linear("pixels"), **PLAIN), numbers)]:
        with pytest.raises(GraphError, match=f"X_val {sizes}"):
            learner.fit(X, target, X_val=wide, y_val=target)
        learner.fit(X, target)
        with pytest.raises(GraphError, match=f"X {sizes}"):
            learner.partial_fit(wide, target)
        assert learner.partial_fit(X, target).t_ == 21


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(2), "sample_weight"),
        (np.zeros(N), "non-zero|is 0 for all samples"),
        (np.eye(N)[3], "are 255, which is ignored"),
    ],
)
def test_scores_of_no_elements_are_refused(weight, message):
    X, y = arrange("pixels", y=IGNORED)
    learner = pixels(loss=CrossEntropy(ignore_index=255), classes=range(K))
    with pytest.raises(ValueError, match=message):
        learner.score(X, y, sample_weight=weight)


def test_skl2onnx_takes_tables_alone():
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    X, y = arrange("tokens")
    learner = OnnxSGDClassifier(linear("tokens"), **PLAIN).fit(X, y)
    with pytest.raises(UnsupportedError, match="several axes"):
        to_onnx(learner, X)
