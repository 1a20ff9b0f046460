"""Pictures of estimators and graphs: inputs of every kind, stages, marks, text without igraph, errors."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import onnx.parser
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import (
    DerivativeOptions,
    OnnxSGDClassifier,
    OnnxSGDRegressor,
    add_loss_output,
    describe_trainable,
    onnx_derivative,
    plot_graph,
)
from onnxsgd.exceptions import GraphError, MissingRuntimeError, ParameterError, ParameterTypeError

MODEL = """<ir_version: 8, opset_import: ["": 17]>
line (float[N, 4] x) => (float[N, 1] y)
<float[4, 2] w = {1,2,3,4,5,6,7,8}, float[2, 1] v = {1, 2}, float[1] b = {0}>
{ a = MatMul(x, w)  r = Relu(a)  p = MatMul(r, v)  y = Add(p, b) }"""


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def mlp(iris):
    mlp = make_pipeline(
        StandardScaler(), MLPClassifier((6, 5), solver="lbfgs", max_iter=5000, random_state=0)
    )
    return mlp.fit(*iris)


@pytest.fixture
def model():
    return onnx.parser.parse_model(MODEL)


def kinds(plot):
    return {box.kind for box in plot.diagram.boxes}


def tensors(plot, kind):
    return {line.text.split("  ")[0] for box in plot.diagram.boxes for line in box.lines if line.kind == kind}


def titles(plot, kind):
    return [box.title for box in plot.diagram.boxes if box.kind == kind]


def test_every_kind_of_input_is_drawn(iris, mlp, model, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    fitted = OnnxSGDClassifier(max_iter=2, tol=None, random_state=0)
    fitted.fit(*iris)
    for given in (model, model.SerializeToString(), str(path), path):
        plot = plot_graph(given)
        assert titles(plot, "model") == ["MatMul", "Relu", "MatMul", "Add"]
        assert tensors(plot, "trained") == {"w", "v", "b"}
    for given in (mlp, OnnxSGDClassifier(mlp)):
        assert tensors(plot_graph(given), "trained") == {
            f"{kind}_{layer}" for kind in ("coefs", "intercepts") for layer in range(3)
        }
        assert tensors(plot_graph(given), "frozen") >= {"offset", "scale"}
    for given in (fitted, make_pipeline(StandardScaler(), fitted)):
        assert tensors(plot_graph(given), "trained") == {"coef", "intercept"}
    assert tensors(plot_graph(Ridge().fit(*iris)), "trained") == {"coef", "intercept"}
    text = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a b cc", "dd a", "cc dd"], [0, 1, 0])
    assert tensors(plot_graph(text), "trained") == {"coef", "intercept"}


def test_trained_tensors_are_those_of_the_parameters(model):
    plot = plot_graph(OnnxSGDRegressor(model, trainable=["v"]))
    assert tensors(plot, "trained") == {"v"}
    assert tensors(plot, "frozen") == {"w"}
    assert tensors(plot_graph(model), "trained") == set(describe_trainable(model).trained)


def test_stages_add_parts(mlp):
    estimator = OnnxSGDClassifier(mlp, learning_rate="constant", momentum=0.9)
    plots = {stage: plot_graph(estimator, stage=stage) for stage in ("model", "loss", "gradient", "step")}
    data = {"input", "output"}
    assert kinds(plots["model"]) == {"model", *data}
    assert kinds(plots["loss"]) == {"model", "loss", *data}
    assert kinds(plots["gradient"]) == {"model", "loss", "gradient", *data}
    assert kinds(plots["step"]) == {"model", "loss", "gradient", "update", *data}
    weights = {f"{kind}_{layer}" for kind in ("coefs", "intercepts") for layer in range(3)}
    assert tensors(plots["gradient"], "result") == {f"gradient of {name}" for name in weights}
    assert tensors(plots["loss"], "trained") == weights
    assert titles(plots["loss"], "output") == titles(plots["step"], "output") == ["loss"]
    states = tensors(plot_graph(estimator, stage="step", max_nodes=200), "state")
    assert {"rate", "momentum", "coefs_0_velocity"} & states


def test_the_update_is_named_by_weight(model):
    plot = plot_graph(OnnxSGDRegressor(model, learning_rate="constant"), stage="step")
    assert tensors(plot, "result") == {"new w", "new v", "new b"}
    makers = [box for box in plot.diagram.boxes for line in box.lines if line.text == "new w"]
    assert [box.kind for box in makers] == ["update"]


def test_constants_that_the_step_adds_are_not_frozen_tensors(mlp):
    plot = plot_graph(OnnxSGDClassifier(mlp, learning_rate="constant"), stage="step", max_nodes=200)
    assert tensors(plot, "frozen") == {"offset", "scale"}
    assert "ones" in tensors(plot, "constant")


def test_a_loss_without_a_closed_form_is_drawn_too(model):
    plot = plot_graph(OnnxSGDRegressor(model, loss="huber"), stage="gradient")
    assert kinds(plot) >= {"loss", "gradient"}


def test_a_gpu_is_not_needed_for_a_picture(model):
    estimator = OnnxSGDRegressor(model, device="cuda")
    for stage in ("model", "step"):
        assert "model" in kinds(plot_graph(estimator, stage=stage))
    assert estimator.device == "cuda"


def test_an_estimator_is_not_changed(model):
    estimator = OnnxSGDRegressor(model)
    before = estimator.get_params()
    plot_graph(estimator, stage="step")
    assert estimator.get_params() == before
    assert not hasattr(estimator, "n_iter_")


def test_graphs_of_the_toolkit_are_marked_by_their_names(model):
    with_loss = add_loss_output(model, penalty={"w": 0.1})
    plot = plot_graph(with_loss)
    assert titles(plot, "model") == ["MatMul", "Relu", "MatMul", "Add"]
    assert len(titles(plot, "loss")) > 3
    gradient = plot_graph(onnx_derivative(model))
    assert "MatMul" in titles(gradient, "gradient")
    assert tensors(gradient, "result") == {f"gradient of {name}" for name in ("x", "w", "v", "b")}
    both = plot_graph(
        onnx_derivative(add_loss_output(model), options=DerivativeOptions.Loss, loss="loss", label="label")
    )
    assert kinds(both) == {"input", "output", "model", "loss", "gradient"}
    assert titles(both, "output") == ["loss"]


def test_a_graph_without_trainable_tensors_is_drawn():
    text = '<ir_version: 8, opset_import: ["": 17]> g (int64[N] x) => (int64[N] y) { y = Neg(x) }'
    plot = plot_graph(onnx.parser.parse_model(text))
    assert [box.title for box in plot.diagram.boxes] == ["x", "Neg", "y"]


def test_shapes_are_inferred_where_the_file_has_none(model):
    lines = [line.text for box in plot_graph(model).diagram.boxes for line in box.lines]
    assert "→ N x 2" in lines


def test_the_picture_is_svg_and_folds_large_graphs(mlp, tmp_path):
    pytest.importorskip("igraph")
    plot = plot_graph(mlp, stage="step", max_nodes=20)
    root = ElementTree.fromstring(plot.svg)
    assert len([g for g in root.iter() if "box" in g.get("class", "").split()]) <= 20
    assert "nodes in blocks" in root[0].text
    assert plot.save(tmp_path / "plot.svg").read_text(encoding="utf-8") == plot.svg
    assert plot.save(str(tmp_path / "plot.txt")).read_text(encoding="utf-8") == f"{plot}\n"
    bundle = plot._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/html", "text/plain"}
    assert bundle["image/svg+xml"] == plot._repr_svg_() == plot.svg
    assert plot.svg in bundle["text/html"]


def test_without_igraph_the_text_is_shown(model, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "igraph", None)
    plot = plot_graph(model)
    assert plot._repr_svg_() is None
    bundle = plot._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/html"].startswith("<pre>line: the graph as given")
    assert plot.save(tmp_path / "plot.txt").exists()
    with pytest.raises(MissingRuntimeError, match=re.escape("onnxsgd[plot]")):
        plot.save(tmp_path / "plot.svg")


def test_the_text_numbers_the_boxes(model):
    lines = str(plot_graph(model)).splitlines()
    assert lines[0] == "line: the graph as given"
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=4) for line in lines[3:]]
    assert rows[0][:3] == ["1", "x", "input"]
    assert rows[1] == ["2", "MatMul", "1", "model", "w  4 x 2 (trained); → N x 2"]
    assert rows[4] == ["5", "Add", "4", "model", "b  1 (trained); → N x 1"]
    assert repr(plot_graph(model)) == "<GraphPlot: line: the graph as given; 6 boxes, 5 edges>"


def test_control_characters_do_not_reach_the_terminal(model):
    model.graph.input[0].name = model.graph.node[0].input[0] = "x\x1b[31m"
    assert "\x1b" not in str(plot_graph(model))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": 7}, ParameterTypeError, "not int"),
        ({"model": None}, ParameterTypeError, "not NoneType"),
        ({"model": b"no graph"}, GraphError, "model"),
        ({"model": "missing.onnx"}, GraphError, "missing.onnx"),
        ({"model": LogisticRegression()}, NotFittedError, "not fitted"),
        ({"model": OnnxSGDRegressor()}, NotFittedError, "not fitted"),
        ({"model": OnnxSGDRegressor(LogisticRegression())}, NotFittedError, "not fitted"),
        ({"model": StandardScaler().fit([[0.0], [1.0]])}, ParameterTypeError, "StandardScaler"),
        ({"stage": "fused"}, ParameterError, "'model', 'loss', 'gradient', 'step'"),
        ({"stage": 1}, ParameterError, "stage=1"),
        ({"stage": "loss"}, ParameterError, "needs an estimator"),
        ({"max_nodes": 7}, ParameterError, ">= 8"),
        ({"max_nodes": True}, ParameterError, "max_nodes=True"),
        ({"max_nodes": 20.0}, ParameterError, "max_nodes=20.0"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(model, arguments, error, message):
    with pytest.raises(error, match=message):
        plot_graph(**{"model": model, **arguments})


def test_the_step_of_a_graph_of_open_sizes_is_refused():
    text = """<ir_version: 8, opset_import: ["": 17]>
    mean (float[N, columns] x) => (float[N, 1] y) <float[1, 1] w = {2}>
    { m = ReduceMean <axes = [1]> (x)  y = MatMul(m, w) }"""
    estimator = OnnxSGDRegressor(onnx.parser.parse_model(text))
    assert "gradient" in kinds(plot_graph(estimator, stage="gradient"))
    with pytest.raises(ParameterError, match=r"'x' has the shape \[n_samples,columns\]"):
        plot_graph(estimator, stage="step")


def test_other_names_of_files_are_refused(model, tmp_path):
    with pytest.raises(ParameterError, match=r"'.svg' or '.txt'"):
        plot_graph(model).save(tmp_path / "plot.png")
