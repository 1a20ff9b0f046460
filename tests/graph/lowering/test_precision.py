"""The same graph in float64: types, and the digits of its constants."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from sklearn.base import is_classifier
from sklearn.datasets import load_diabetes
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from onnxsgd import OnnxSGDRegressor
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.lowering.precision import _STANDARD_FORMS as STANDARD_FORMS
from onnxsgd.graph.lowering.precision import restore_digits, with_precision
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.sklearn.convert import convert_estimator

#: Estimators with constants computed by converters, or with two that are equal in float32.
ROUNDED = (
    "SVC",
    "SVR",
    "OneVsRest(SVC)",
    "String labels",
    "PowerTransformer",
    "TruncatedSVD",
    "Voting with a tree",
)


def widened(estimator, X):
    scored = convert_estimator(estimator, X)
    wide = with_precision(scored.model, ir.DataType.DOUBLE)
    restore_digits(wide, estimator)
    return scored, wide


def run(model, X):
    proto = to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    if len(session.get_inputs()) == 1:
        feeds = {session.get_inputs()[0].name: np.asarray(X, np.float64)}
    else:
        kinds = {"tensor(string)": object, "tensor(double)": np.float64}
        feeds = {v.name: X[[v.name]].to_numpy(dtype=kinds[v.type]) for v in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))


def test_float64_graphs_predict_as_scikit_learn_does(sklearn_case):
    """To 1e-11 of the largest prediction, where the float32 graph is off by about 1e-7."""
    estimator, (X, _) = sklearn_case.fit(), sklearn_case.load()
    scored, wide = widened(estimator, X)
    outputs = run(wide, X)
    if not is_classifier(estimator):
        expected, actual = estimator.predict(X), next(iter(outputs.values()))
    elif hasattr(estimator, "predict_proba"):
        expected, actual = estimator.predict_proba(X), outputs[scored.proba_output]
    else:
        expected = estimator.decision_function(X)
        actual = run(cut_at(wide, scored.score), X)[scored.score]
    assert actual.dtype == np.float64
    expected = expected.reshape(actual.shape)
    is_rounded = sklearn_case.name.startswith(ROUNDED) and not sklearn_case.name.endswith("linear")
    tolerance = 1e-6 if is_rounded else 1e-11
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_the_widened_model_is_not_changed():
    X = np.arange(12.0).reshape(6, 2)
    scored = convert_estimator(make_pipeline(StandardScaler(), LinearRegression()).fit(X, X[:, 0]), X)
    before = to_proto(scored.model).SerializeToString(deterministic=True)
    wide = with_precision(scored.model, ir.DataType.DOUBLE)
    assert to_proto(scored.model).SerializeToString(deterministic=True) == before
    assert {value.dtype for node in wide.graph for value in node.outputs} == {ir.DataType.DOUBLE}
    narrow = with_precision(wide, ir.DataType.FLOAT)
    np.testing.assert_array_equal(
        to_proto(narrow).graph.initializer[0].raw_data, to_proto(scored.model).graph.initializer[0].raw_data
    )


def test_operators_of_other_domains_compute_between_casts():
    onx = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
        g (float[N, 2] X) => (float[N, 2] Y) {
            A = Neg(X)
            B = ai.onnx.ml.Binarizer <threshold = 0.5> (A)
            Y = Add(A, B) }""")
    wide = with_precision(lower_for_training(to_ir(onx)), ir.DataType.DOUBLE)
    assert [node.op_type for node in wide.graph] == ["Neg", "Cast", "Binarizer", "Cast", "Add"]
    X = np.array([[-1.0, 0.1], [-0.25, -0.75]])
    np.testing.assert_array_equal(run(wide, X)["Y"], -X + (-X > 0.5))


def test_every_standard_form_has_a_case():
    """The Imputer's is the next test."""
    assert set(STANDARD_FORMS) == {("ai.onnx.ml", "Imputer")}


def test_an_imputer_keeps_float64():
    X = 1.7e9 + 100 * np.random.RandomState(0).rand(9, 2)
    X[[0, 3], [1, 0]] = np.nan
    estimator = make_pipeline(SimpleImputer(), LinearRegression()).fit(X, np.arange(9.0) ** 2)
    _, wide = widened(estimator, X)
    np.testing.assert_allclose(run(wide, X)["variable"].ravel(), estimator.predict(X), rtol=1e-6)


def test_digits_are_restored_after_every_function_of_the_converters():
    fitted = SimpleNamespace(
        coef_=np.array([[0.1, 0.2, 0.3], [1 / 3, 2 / 3, 1e-3]]),
        scale_=np.array([3.0, 7.0]),
        # two numbers that are equal in float32, and so stay rounded
        twins_=[0.7, 0.7 + 1e-9],
    )
    constants = {
        "same": fitted.coef_,
        "transposed": fitted.coef_.T,
        "part": -fitted.coef_[1:],
        "doubled": 2 * fitted.coef_[0],
        "negative_double": -2 * fitted.coef_[0],
        "reciprocal": 1 / fitted.scale_,
        "unknown": np.array([0.12345, 0.6789]),
        "twins": np.array([0.7]),
    }
    values = [
        ir.Value(name=name, const_value=ir.tensor(array.astype(np.float32).astype(np.float64), name=name))
        for name, array in constants.items()
    ]
    for value in values:
        value.type = ir.TensorType(ir.DataType.DOUBLE)
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 18}, name="g")
    model = ir.Model(graph, ir_version=9)
    restore_digits(model, fitted)
    found = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    for name in ("same", "transposed", "part", "doubled", "negative_double", "reciprocal"):
        np.testing.assert_array_equal(found[name], constants[name], err_msg=name)
    for name in ("unknown", "twins"):
        np.testing.assert_array_equal(found[name], constants[name].astype(np.float32), err_msg=name)


SCALERS = {
    "standard": StandardScaler(),
    "deviation": StandardScaler(with_mean=False),
    "robust": RobustScaler(),
    "largest": MaxAbsScaler(),
    "range": MinMaxScaler(),
}


@pytest.mark.parametrize("n_columns", [1, 9])
@pytest.mark.parametrize("name", SCALERS)
def test_bins_of_scaled_columns_are_those_of_the_pipeline(name, n_columns):
    """Ends of bins are data: a product with the reciprocal in place of a quotient changed 19 of 442 rows."""
    X, y = load_diabetes(return_X_y=True)
    # all columns but one of two numbers
    X = np.delete(X, 1, axis=1)[:, :n_columns]
    model = make_pipeline(SCALERS[name], KBinsDiscretizer(5), Ridge()).fit(X, y)
    for dtype in (None, "float64"):
        found = OnnxSGDRegressor(model, dtype=dtype).predict(X)
        np.testing.assert_allclose(found, model.predict(X), rtol=1e-6)


@pytest.mark.parametrize("second", ["standard", "robust", "largest", "range"])
def test_bins_of_columns_that_were_scaled_before(second):
    """The second scale is 1 up to rounding, as its reciprocal is."""
    X, y = load_diabetes(return_X_y=True)
    X = np.delete(X, 1, axis=1)
    model = make_pipeline(StandardScaler(), SCALERS[second], KBinsDiscretizer(5), Ridge()).fit(X, y)
    found = OnnxSGDRegressor(model, dtype="float64").predict(X)
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-9)


@pytest.mark.parametrize("name", ["standard", "deviation", "largest"])
def test_quantiles_that_are_nearly_equal_are_told_apart(name):
    """Two quantiles of the third column round to one number of float32."""
    X, y = load_diabetes(return_X_y=True)
    model = make_pipeline(SCALERS[name], QuantileTransformer(n_quantiles=50), Ridge()).fit(X, y)
    np.testing.assert_allclose(OnnxSGDRegressor(model).predict(X), model.predict(X), rtol=1e-11)


def test_an_estimator_without_numbers_keeps_the_constants_of_its_graph():
    model = to_ir(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]> g (double[N] x) => (double[N] y)
            <double[1] c = {0.1}> { y = Mul (x, c) }"""
        )
    )
    restore_digits(model, SimpleNamespace(name="none"))
    assert model.graph.initializers["c"].const_value.numpy() == 0.1
