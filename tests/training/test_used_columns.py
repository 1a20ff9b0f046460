"""Training on the columns with an entry changes no result, and leaves no trace."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from onnxsgd import OnnxSGDClassifier
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.training import used_columns
from onnxsgd.training.state import fresh_state

RNG = np.random.default_rng(0)
USED = np.array([1, 4, 8])
TABLE = np.zeros((6, 10))
TABLE[:, USED] = RNG.normal(size=(6, 3))


def case(is_transposed, weight, table=TABLE):
    layer = FirstLayer("x", "w", "b", is_transposed)
    weights = {"w": weight.T if is_transposed else weight, "b": np.zeros(2)}
    features = {"x": sparse.csr_array(table)}
    batches = Batches(features, np.zeros((6, 2)), np.ones(6), 3, True)
    return (layer,), batches, fresh_state(weights, 0.1, 0)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_other_columns_come_back_as_zeros(is_transposed):
    weight = np.zeros((10, 2))
    weight[USED] = RNG.normal(size=(3, 2))
    layers, batches, state = case(is_transposed, weight)
    used = used_columns.used_columns(layers, batches, state)
    np.testing.assert_array_equal(used.batches.features["x"].toarray(), TABLE[:, USED])
    np.testing.assert_array_equal(used.batches.columns[0], USED)
    assert used.batches.columns[1] == 10
    part = used.tensors["w", WEIGHT]
    np.testing.assert_array_equal(part.T if is_transposed else part, weight[USED])
    further = {("w", WEIGHT): 2 * part, ("w", "first_moment"): part, ("w", "second_moment"): part[:1].copy()}
    state.tensors = used.widen(used.tensors | further)
    want = weight.T if is_transposed else weight
    np.testing.assert_array_equal(state.tensors["w", WEIGHT], 2 * want)
    np.testing.assert_array_equal(state.tensors["w", "first_moment"], want)
    # the mean over all columns
    np.testing.assert_allclose(state.tensors["w", "second_moment"], 0.3 * part[:1])
    again = used_columns.used_columns(layers, batches, state)
    np.testing.assert_allclose(again.tensors["w", "second_moment"], part[:1])


@pytest.mark.parametrize("reason", ["weights of other columns", "many columns", "one column", "none"])
def test_all_columns_are_kept(reason):
    weight, table = np.zeros((10, 2)), TABLE
    if reason == "weights of other columns":
        weight[2] = 1
    else:
        table = np.arange(10) < {"many columns": 10, "one column": 1, "none": 0}[reason]
        table = np.broadcast_to(table.astype(float), (6, 10))
    layers, batches, state = case(False, weight, table)
    assert used_columns.used_columns(layers, batches, state) is None


@pytest.mark.parametrize("begins_with_fit", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_streams_are_those_of_all_columns(begins_with_fit, n_classes, monkeypatch):
    """Each part has columns that those before lack, and lacks others, which still move."""
    X = sparse.random(600, 60, 0.1, "csr", np.float64, RNG)
    y = (X @ RNG.normal(size=(60, n_classes))).argmax(axis=1)
    table = np.zeros((600, 420))
    table[:, ::7] = X.toarray()
    table[180:240, :100] = table[:120, 200:] = 0
    wide = sparse.csr_matrix(table)
    parts = [(wide[k : k + 60], y[k : k + 60]) for k in range(0, 600, 60)]
    shapes = []
    spread = used_columns._spread
    monkeypatch.setattr(
        used_columns, "_spread", lambda tensors, *args: shapes.append(tensors["coef", WEIGHT].shape)
        or spread(tensors, *args),
    )  # fmt: skip

    def stream():
        model = OnnxSGDClassifier(random_state=0, dtype="float64", alpha=0.01)
        if begins_with_fit:
            model.fit(*parts[0])
        for data in parts:
            model.partial_fit(*data, classes=None if begins_with_fit else np.unique(y))
        return model

    ours = stream()
    assert len(shapes) == 10 + begins_with_fit
    assert 30 < min(shapes[-1]) + max(shapes[-1]) - n_classes <= 61
    moments = ours._state.moments["X"]
    monkeypatch.setattr(used_columns, "_FEW", 0.0)
    want = stream()
    assert len(shapes) == 10 + begins_with_fit
    np.testing.assert_allclose(ours.coef_, want.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(ours.loss_curve_, want.loss_curve_, rtol=1e-7)
    whole = want._state.moments["X"]
    assert whole.columns is None
    for name in ("count", "mean", "squares", "total"):
        np.testing.assert_allclose(getattr(moments.whole, name), getattr(whole, name), rtol=1e-12)


def test_results_are_those_of_all_columns():
    """Observed fits, here by scores, keep all columns; the others end at the same objective."""
    X = sparse.random(300, 40, 0.1, "csr", np.float64, RNG)
    y = (X @ RNG.normal(size=40) > 0).astype(int)
    wide = sparse.hstack([sparse.csr_matrix((300, 500)), X, sparse.csr_matrix((300, 400))]).tocsr()
    ours, want = (OnnxSGDClassifier(random_state=0).fit(data, y) for data in (wide, X))
    assert ours.coef_.shape == (1, 940)
    np.testing.assert_array_equal(np.delete(ours.coef_, np.s_[500:540], axis=1), 0)
    np.testing.assert_allclose(ours.coef_[:, 500:540], want.coef_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.loss_curve_, want.loss_curve_, rtol=1e-4)
    assert ours.partial_fit(wide[:50], y[:50]).coef_.shape == (1, 940)
    scored = OnnxSGDClassifier(random_state=0, early_stopping=True).fit(wide, y)
    assert scored.coef_.shape == (1, 940)
    tuned = OnnxSGDClassifier(LogisticRegression().fit(wide, y), random_state=0).fit(wide, y)
    assert tuned.score(wide, y) >= 0.9
