"""The card of an estimator in notebooks, alone and inside the diagrams of scikit-learn."""

import html
import pickle
import re

import numpy as np
import onnx
import pytest
import sklearn
from onnx import TensorProto, helper
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.estimators import card_rows
from onnxsgd.estimators.before_fit import ModelBeforeFit
from onnxsgd.estimators.card import write_card
from onnxsgd.estimators.card_rows import Card, Row, Tensor
from onnxsgd.estimators.fitted import TrainedModel
from onnxsgd.losses import Huber

CARD = '<div class="onnxsgd-card">'
HAS_PARAMETERS = hasattr(sklearn.base.BaseEstimator, "_get_params_html")


def rows_of(est):
    """The texts of the card by their labels, and its status."""
    card = card_rows.read_card(est)
    return {row.label: row.text for row in card.rows} | {"status": card.status}


@pytest.fixture(scope="module")
def scaled(iris):
    """A pipeline whose scaler stays frozen."""
    X, y = iris
    return make_pipeline(StandardScaler(), LogisticRegression(C=1e-3)).fit(X, y)


@pytest.fixture(scope="module")
def graph():
    """A graph with names that are HTML."""
    weights = {"<b>W</b>": np.ones((3, 2), np.float32), "a&b": np.ones((2, 1), np.float32)}
    nodes = [
        helper.make_node("MatMul", ["X", "<b>W</b>"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "a&b"], ["score"]),
    ]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 3])]
    outputs = [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])]
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    made = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_trained_estimator_shows_its_tensors_and_its_training(iris, scaled):
    X, y = iris
    model = OnnxSGDClassifier(scaled, early_stopping=True, random_state=0, n_threads=1).fit(X, y)
    shown = rows_of(model)
    assert shown["status"] == f"trained, {model.n_iter_} epochs, {model.t_} updates"
    # 4 x 3 coefficients, 3 intercepts, means and scales of 4 columns
    fitted = "fitted Pipeline of StandardScaler, LogisticRegression"
    assert shown["model"] == f"{fitted}, 23 parameters, 4 features → 3 scores"
    assert shown["trained"] == "2 tensors, 15 numbers"
    assert shown["frozen"] == "2 tensors, 8 numbers"
    assert shown["loss"] == "log_loss, penalty l2 (alpha=0.0001)"
    first, last = model.learning_rates_[[0, -1]]
    assert shown["rate"].startswith(f"auto, optimizer block_adam; used: {first:.3g} → {last:.3g}")
    best = int(np.argmax(model.validation_scores_))
    assert f"loss {model.loss_curve_[0]:.4g} → {model.loss_curve_[-1]:.4g}" in shown["result"]
    score = f"{model.validation_scores_[best]:.4g}"
    assert shown["result"].endswith(f"best validation score {score}, epoch {best + 1}")
    assert shown["runs on"] == f"cpu, engine {model.engine_}, float32, 1 thread"
    page = model._repr_html_()
    for name, array in model.get_weights().items():
        assert f"{name} <span>{' x '.join(map(str, array.shape))}</span>" in page
    # in the order of the graph
    assert page.index("coef <span>") < page.index("intercept <span>")


def test_parameters_are_named(diabetes):
    given = {"penalty": "elasticnet", "learning_rate": "constant", "eta0": 0.02}
    model = OnnxSGDRegressor(loss=Huber(epsilon=2.0), max_iter=1, tol=None, dtype="float64", **given)
    assert rows_of(model) == {
        "status": "not trained",
        "model": "linear model",
        "trains": "all of it",
        "loss": "Huber(epsilon=2.0), penalty elasticnet (alpha=0.0001, l1_ratio=0.15)",
        "rate": "constant, optimizer sgd, eta0=0.02",
        "runs on": "cpu, engine auto, float64",
    }
    shown = rows_of(model.fit(*diabetes))
    assert shown["status"] == "trained, 1 epoch, 14 updates"
    assert shown["rate"] == "constant, optimizer sgd, eta0=0.02; used: 0.02"
    assert shown["result"] == f"loss {model.loss_curve_[0]:.4g}"
    model.set_params(penalty=None, learning_rate=np.sqrt)
    shown = rows_of(model)
    assert shown["loss"].endswith("no penalty")
    assert shown["rate"].startswith("sqrt, ")


def test_later_parameters_are_named(graph):
    settings = {
        "learning_rate": "constant", "learning_rate_multipliers": {"coef": 0.1}, "max_grad_norm": 2.0,
        "gradient_accumulation_steps": 4, "batch_norm": "frozen", "dropout": 0.25,
    }  # fmt: skip
    shown = rows_of(OnnxSGDRegressor(graph, **settings))
    rate = "max_grad_norm=2, learning_rate_multipliers={'coef': 0.1}, gradient_accumulation_steps=4"
    assert shown["rate"] == f"constant, optimizer sgd, {rate}"
    assert shown["model"].endswith("batch_norm='frozen', dropout=0.25")
    assert (
        "learning_rate_multipliers=sqrt"
        in rows_of(OnnxSGDRegressor(learning_rate_multipliers=np.sqrt))["rate"]
    )


def test_models_before_the_first_fit(iris, scaled, graph, tmp_path):
    def described(model, **more):
        shown = rows_of(OnnxSGDClassifier(model, **more))
        return shown["model"], shown["trains"], shown["status"]

    listed = "the parameters of the graph, as describe_trainable(model) lists them"
    predicts = "not trained, predicts with the weights of its model"
    name = "fitted Pipeline of StandardScaler, LogisticRegression, 15 parameters"
    assert described(scaled) == (name, listed, predicts)
    assert described(FrozenEstimator(scaled)) == (name, listed, predicts)
    unfitted = "LogisticRegression, which fit will fit first"
    assert described(LogisticRegression()) == (unfitted, listed, "not trained")
    assert described(graph, trainable=["a&b"]) == ("ONNX graph of MatMul x 2; 8 numbers", "a&b", predicts)
    head = described(graph.SerializeToString(), head="linear", output="hidden")
    description = "ONNX graph of MatMul x 2; 8 numbers, with a new linear layer, output 'hidden'"
    assert head == (description, "the new linear layer alone", "not trained")
    path = tmp_path / "model.onnx"
    assert described(path)[0] == "ONNX file model.onnx, not found"
    path.write_bytes(b"0" * 1_500_000)
    assert described(str(path))[0] == "ONNX file model.onnx, 1.50 MB"
    assert described(graph, trainable=str.isupper)[1] == "the tensors that isupper chooses"


def test_tensors_are_known_after_the_first_prediction(iris, scaled):
    model = OnnxSGDClassifier(scaled)
    model.predict(iris[0])
    shown = rows_of(model)
    assert (shown["trains"], shown["frozen"]) == ("2 tensors, 15 numbers", "2 tensors, 8 numbers")
    assert "result" not in shown


def test_texts_are_described():
    texts, y = ["good film", "bad film", "good", "bad"], [1, 0, 1, 0]
    inner = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y)
    model = OnnxSGDClassifier(inner, max_iter=2, tol=None).fit(texts, y)
    assert rows_of(model)["trained"] == "2 tensors, 4 numbers"


@pytest.mark.parametrize(
    "model", [None, "missing.onnx", 42, b"no graph", LinearRegression(), LinearRegression]
)
def test_there_is_always_a_display(model):
    est = OnnxSGDRegressor(model)
    assert "sk-top-container" in est._repr_html_()
    assert "sk-top-container" in estimator_html_repr(make_pipeline(StandardScaler(), est))
    assert "OnnxSGDRegressor" in repr(est)
    is_model = model is None or model == "missing.onnx" or isinstance(model, LinearRegression)
    assert (CARD in est._repr_html_()) is is_model


@pytest.mark.parametrize(
    "parameters", [{"learning_rate": None}, {"alpha": "much"}, {"trainable": 3}, {"optimizer": object()}]
)
def test_wrong_parameters_are_no_error(parameters):
    assert "sk-top-container" in OnnxSGDRegressor(**parameters)._repr_html_()


def test_the_card_stands_once_in_each_display(iris, scaled):
    fitted = OnnxSGDClassifier(max_iter=3, tol=None).fit(*iris)
    for est in (
        OnnxSGDClassifier(),
        fitted,
        OnnxSGDClassifier(scaled),
        OnnxSGDClassifier(LogisticRegression()),
    ):
        assert est._repr_html_().count(CARD) == 1
        assert est._repr_html_().index(CARD) < est._repr_html_().index("sk-top-container")
        assert est._repr_mimebundle_()["text/html"].count(CARD) == 1
        if HAS_PARAMETERS:
            assert estimator_html_repr(est).count(CARD) == 1
            pipeline = make_pipeline(StandardScaler(), est)
            assert pipeline._repr_html_().count(CARD) == 1
            if est.model is None:
                # of an estimator with another one inside, scikit-learn shows that one alone
                search = GridSearchCV(est, {"alpha": [1e-4]})
                assert search._repr_html_().count(CARD) == 1
    sklearn.set_config(display="text")
    try:
        assert not hasattr(fitted, "_repr_html_")
        assert fitted._repr_mimebundle_() == {"text/plain": repr(fitted)}
    finally:
        sklearn.set_config(display="diagram")


def test_names_are_escaped(graph, tmp_path):
    X = np.random.RandomState(0).randn(40, 3).astype(np.float32)
    page = OnnxSGDRegressor(graph, max_iter=2, tol=None).fit(X, X[:, 0])._repr_html_()
    assert "<b>W</b>" not in page
    assert html.escape("<b>W</b>") in page
    assert "a&amp;b <span>" in page
    assert "<i>" not in OnnxSGDRegressor(tmp_path / "<i>.onnx")._card()


def test_many_tensors_are_folded():
    def written(count):
        tensors = [Tensor(f"w{number}", (2, number)) for number in range(count)]
        return write_card(Card("E", "trained", [Row("trained", "tensors", tensors, True)]))

    assert "<details>" not in written(4)
    assert "<details><summary>tensors</summary>" in written(5)
    assert "w199 <span>2 x 199</span>" in written(202)
    assert "w200" not in written(202)
    assert "and 2 more" in written(202)


def test_text_has_the_colour_of_the_page():
    """Otherwise it would be illegible in one of the themes."""
    style = re.search("<style>(.*?)</style>", OnnxSGDRegressor()._card(), re.DOTALL)[1]
    assert set(re.findall(r"[{;\s]color:([^;}]+)", style)) == {"inherit"}


def test_displays_convert_nothing_and_change_nothing(iris, scaled, monkeypatch):
    fitted = OnnxSGDClassifier(max_iter=3, tol=None).fit(*iris)
    before = [dict(vars(est)) for est in (fitted, OnnxSGDClassifier(scaled))]

    def fail(*args, **kwargs):
        raise AssertionError("a display converts the graph")

    monkeypatch.setattr(TrainedModel, "to_onnx", fail)
    monkeypatch.setattr(ModelBeforeFit, "_read_model", fail)
    for est, attributes in zip((fitted, OnnxSGDClassifier(scaled)), before, strict=True):
        est._repr_html_()
        assert "onnx_model_" in dir(est)
        assert set(vars(est)) == set(attributes)
    make_pipeline(fitted)._repr_html_()
    assert "onnx_model_" not in dir(OnnxSGDClassifier())
    assert "loss_curve_" not in dir(OnnxSGDClassifier())
    assert {"loss_curve_", "coef_"} < set(dir(fitted))
    monkeypatch.undo()
    assert clone(fitted).get_params() == fitted.get_params()
    restored = pickle.loads(pickle.dumps(fitted))
    assert restored._repr_html_().count(CARD) == 1
