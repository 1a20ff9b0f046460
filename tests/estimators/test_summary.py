"""The display of an estimator in notebooks and logs."""

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sklearn import set_config
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

LINE = "<ONNX: MatMul x 2, Relu; 2 initializers, 2,098,176 numbers; inputs X>"


@pytest.fixture(scope="module")
def large():
    """A graph of eight megabytes."""
    weights = {"W": np.ones((2048, 1024), np.float32), "v": np.ones((1024, 1), np.float32)}
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "v"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 2048])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(params=["ModelProto", "bytes"])
def model(request, large):
    return large if request.param == "ModelProto" else large.SerializeToString()


def test_a_graph_is_one_line(model):
    assert repr(OnnxSGDRegressor(model)) == f"OnnxSGDRegressor(model={LINE})"
    assert (
        repr(OnnxSGDClassifier(model, learning_rate="invscaling", eta0=0.1))
        == f"OnnxSGDClassifier(eta0=0.1, learning_rate='invscaling', model={LINE})"
    )


def test_a_graph_is_one_line_in_html(model):
    html = OnnxSGDRegressor(model)._repr_html_()
    assert len(html) < 100_000
    assert "MatMul x 2, Relu; 2 initializers" in html
    nested = estimator_html_repr(make_pipeline(StandardScaler(), OnnxSGDRegressor(model)))
    assert len(nested) < 200_000
    assert "MatMul x 2, Relu; 2 initializers" in nested


def test_showing_is_quick_and_changes_nothing(model):
    estimator = OnnxSGDRegressor(model)
    start = time.perf_counter()
    repr(estimator), estimator._repr_html_()
    assert time.perf_counter() - start < 2
    assert estimator.model is model
    assert estimator.get_params()["model"] is model


def test_other_models_are_shown_as_they_are(tmp_path):
    assert repr(OnnxSGDRegressor()) == "OnnxSGDRegressor()"
    assert repr(OnnxSGDRegressor(Ridge(alpha=2.0))) == "OnnxSGDRegressor(model=Ridge(alpha=2.0))"
    assert repr(OnnxSGDRegressor("model.onnx")) == "OnnxSGDRegressor(model='model.onnx')"
    assert repr(OnnxSGDRegressor(b"no model at all")) == "OnnxSGDRegressor(model=<15 bytes>)"
    html = OnnxSGDRegressor(Ridge(alpha=2.0))._repr_html_()
    assert "Ridge" in html


def test_long_graphs_are_cut_short():
    nodes = [helper.make_node(op, ["x"], [op]) for op in ("Abs", "Cos", "Exp", "Log", "Sin", "Tan")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    outputs = [helper.make_tensor_value_info("Abs", TensorProto.FLOAT, [1])]
    proto = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs))
    shown = repr(OnnxSGDRegressor(proto))
    assert "<ONNX: Abs, Cos, Exp, Log, 2 more; 0 initializers, 0 numbers; inputs x>" in shown


def test_a_search_shows_its_estimator_within_bounds(model):
    search = GridSearchCV(OnnxSGDRegressor(model), {"alpha": [1.0]})
    assert len(repr(search)) < 20_000
    assert len(search._repr_html_()) < 200_000


def test_the_documented_parameters_are_the_existing_ones():
    """scikit-learn reads the docstring of parameters for its display in a notebook."""
    for cls in (OnnxSGDRegressor, OnnxSGDClassifier):
        documented = [line.split(" :")[0].strip() for line in cls.__doc__.splitlines() if " : " in line]
        for name in cls().get_params():
            assert name in documented


def test_text_display(model):
    set_config(display="text")
    try:
        assert not hasattr(OnnxSGDRegressor(model), "_repr_html_")
        assert OnnxSGDRegressor(model)._repr_mimebundle_() == {"text/plain": repr(OnnxSGDRegressor(model))}
    finally:
        set_config(display="diagram")


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered):sklearn.exceptions.ConvergenceWarning")
def test_a_fitted_estimator_shows_no_graph():
    X = np.random.RandomState(0).randn(50, 3).astype(np.float32)
    fitted = OnnxSGDRegressor(max_iter=300, tol=None).fit(X, X[:, 0])
    # the target is a column: nothing is left to gain
    again = OnnxSGDRegressor(fitted.to_onnx(), learning_rate="invscaling", max_iter=300, tol=None)
    again.fit(X, X[:, 0])
    for estimator in (fitted, again):
        assert len(estimator._repr_html_()) < 150_000
        assert "initializer {" not in estimator._repr_html_()
