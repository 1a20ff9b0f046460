"""skl2onnx converts pipelines that hold our estimators at any place."""

import subprocess
import sys
import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import UnsupportedError

QUICK = dict(tol=10.0, n_iter_no_change=2, random_state=0)


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return (1000 * X).astype(np.float32), (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X.astype(np.float32), y


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


def classifier(**more):
    return OnnxSGDClassifier(
        **{"max_iter": 5, "tol": None, "learning_rate": "invscaling", "eta0": 0.1, "random_state": 0} | more
    )


def run(proto, feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    if not isinstance(feeds, dict):
        feeds = {session.get_inputs()[0].name: feeds}
    return session.run(None, feeds)


def convert(model, X, target_opset=18, **options):
    return to_onnx(model, X[:1], target_opset=target_opset, options={"zipmap": False, **options})


# Alone, and at the end of a pipeline.


@pytest.mark.parametrize("data", ["iris", "cancer"])
@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
@pytest.mark.parametrize("inner", [None, MLPClassifier((8,), **QUICK), LogisticRegression()], ids=repr)
def test_labels_and_probabilities_of_a_pipeline(request, data, loss, inner):
    X, y = request.getfixturevalue(data)
    model = make_pipeline(StandardScaler(), classifier(loss=loss, model=inner)).fit(X, y)
    label, probability = run(convert(model, X), X)
    np.testing.assert_array_equal(label, model.predict(X))
    np.testing.assert_allclose(probability, model.predict_proba(X), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("data", ["iris", "cancer"])
def test_scores_where_there_are_no_probabilities(request, data):
    X, y = request.getfixturevalue(data)
    for settings, options in (({"loss": "hinge"}, {}), ({}, {"raw_scores": True})):
        model = make_pipeline(StandardScaler(), classifier(**settings)).fit(X, y)
        proto = to_onnx(model, X[:1], target_opset=18, options={id(model[-1]): {"zipmap": False, **options}})
        label, scores = run(proto, X)
        expected = model.decision_function(X)
        expected = np.c_[-expected, expected] if data == "cancer" else expected
        np.testing.assert_array_equal(label, model.predict(X))
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize(
    "inner", [None, MLPRegressor(hidden_layer_sizes=(8,), **QUICK)], ids=["linear", "mlp"]
)
def test_regression_of_one_and_of_several_outputs(diabetes, columns, inner):
    X, y = diabetes
    target = y if columns == 1 else np.c_[y, -y, X[:, 0] / 50][:, :columns]
    model = make_pipeline(StandardScaler(), regressor(model=inner)).fit(X, target)
    (predicted,) = run(to_onnx(model, X[:1], target_opset=18), X)
    assert predicted.shape == (len(X), columns)
    np.testing.assert_allclose(predicted.reshape(np.shape(target)), model.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "labels", [["a", "b", "c"], [-7, 0, 3], [True, False], [1.0, 2.0, 4.0]], ids=lambda labels: labels[0]
)
def test_labels_have_the_types_of_the_converter(iris, labels):
    X, y = iris
    names = np.array(labels)[y % len(labels)]
    model = classifier(max_iter=20).fit(X, names)
    label = run(convert(model, X), X)[0]
    assert label.dtype == (object if isinstance(labels[0], str) else np.int64)
    np.testing.assert_array_equal(label, model.predict(X))


def test_dictionaries_of_probabilities_are_the_default(iris):
    X, y = iris
    model = classifier().fit(X, np.array(["a", "b", "c"])[y])
    maps = run(to_onnx(model, X[:1], target_opset=18), X)[1]
    assert list(maps[0]) == ["a", "b", "c"]
    np.testing.assert_allclose([list(row.values()) for row in maps], model.predict_proba(X), atol=1e-5)
    numbers = run(convert(model, X, nocl=True), X)[0]
    np.testing.assert_array_equal(np.array(["a", "b", "c"])[numbers], model.predict(X))
    columns = run(convert(model, X, zipmap="columns"), X)
    np.testing.assert_allclose(np.c_[columns[1:]].squeeze().T, model.predict_proba(X), atol=1e-5)


def test_several_labels_of_a_sample(iris):
    X = iris[0]
    Y = (X[:, :3] > X[:, :3].mean(axis=0)).astype(int)
    model = make_pipeline(StandardScaler(), classifier(max_iter=20)).fit(X, Y)
    label, probability = run(to_onnx(model, X[:1], target_opset=18), X)
    np.testing.assert_array_equal(label, model.predict(X))
    np.testing.assert_allclose(probability, model.predict_proba(X), rtol=1e-4, atol=1e-5)


def test_present_weights_not_those_of_the_last_conversion(diabetes):
    X, y = diabetes
    model = make_pipeline(StandardScaler(), regressor()).fit(X, y)
    before = run(to_onnx(model, X[:1]), X)[0]
    model[-1].partial_fit(model[0].transform(X), -y)
    after = run(to_onnx(model, X[:1]), X)[0].ravel()
    np.testing.assert_allclose(after, model.predict(X), rtol=1e-3, atol=1e-4)
    assert np.abs(after - before.ravel()).max() > 0.1


# Inside of other estimators.


@pytest.mark.parametrize(
    "make",
    [
        lambda: VotingClassifier(
            [("a", classifier()), ("b", LogisticRegression())], voting="soft", flatten_transform=False
        ),
        lambda: StackingClassifier([("a", classifier()), ("b", LogisticRegression())], cv=2),
        lambda: BaggingClassifier(classifier(), n_estimators=3, random_state=0),
        lambda: OneVsRestClassifier(classifier()),
        lambda: CalibratedClassifierCV(classifier(), cv=2),
        lambda: CalibratedClassifierCV(classifier(loss="hinge"), cv=2),
    ],
    ids=["voting", "stacking", "bagging", "one vs rest", "calibrated", "calibrated scores"],
)
@pytest.mark.parametrize("data", ["iris", "cancer"])
def test_classifiers_over_ours(request, data, make):
    X, y = request.getfixturevalue(data)
    X = StandardScaler().fit_transform(X).astype(np.float32)
    model = make().fit(X, y)
    label, probability = run(convert(model, X), X)
    np.testing.assert_allclose(probability, model.predict_proba(X), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(label, model.predict(X))


@pytest.mark.parametrize(
    "make",
    [
        lambda: VotingRegressor([("a", regressor()), ("b", Ridge())]),
        lambda: StackingRegressor([("a", regressor()), ("b", Ridge())], cv=2),
        lambda: BaggingRegressor(regressor(), n_estimators=3, random_state=0),
        lambda: MultiOutputRegressor(regressor()),
    ],
    ids=["voting", "stacking", "bagging", "multi-output"],
)
def test_regressors_over_ours(diabetes, make):
    X, y = diabetes
    X, model = StandardScaler().fit_transform(X).astype(np.float32), make()
    model.fit(X, np.c_[y, -y] if isinstance(model, MultiOutputRegressor) else y)
    (predicted,) = run(to_onnx(model, X[:1], target_opset=18), X)
    expected = model.predict(X)
    np.testing.assert_allclose(predicted.reshape(expected.shape), expected, rtol=1e-3, atol=1e-4)


def test_ours_over_ours(iris):
    """A pipeline that holds one of our estimators is a model to train."""
    X, y = iris
    inner = make_pipeline(StandardScaler(), classifier(max_iter=20)).fit(X[::2], y[::2])
    outer = classifier(model=inner, max_iter=1, learning_rate="invscaling", eta0=1e-9, penalty=None).fit(X, y)
    np.testing.assert_allclose(outer.predict_proba(X), inner.predict_proba(X), rtol=1e-3, atol=1e-5)
    label, probability = run(convert(outer, X), X)
    np.testing.assert_array_equal(label, inner.predict(X))
    np.testing.assert_allclose(probability, inner.predict_proba(X), rtol=1e-3, atol=1e-5)


# Inputs.


def test_columns_of_several_types():
    pandas = pytest.importorskip("pandas")
    random = np.random.RandomState(0)
    frame = pandas.DataFrame({"age": random.rand(200), "city": random.choice(["x", "y"], 200)})
    y = (frame["age"] + (frame["city"] == "x") > 1).astype(int).to_numpy()
    columns = ColumnTransformer([("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(), ["city"])])
    model = make_pipeline(columns, classifier(max_iter=20)).fit(frame, y)
    types = [("age", FloatTensorType([None, 1])), ("city", StringTensorType([None, 1]))]
    proto = to_onnx(model, initial_types=types, target_opset=18, options={"zipmap": False})
    feeds = {"age": frame[["age"]].to_numpy(np.float32), "city": frame[["city"]].to_numpy(object)}
    np.testing.assert_allclose(run(proto, feeds)[1], model.predict_proba(frame), rtol=1e-3, atol=1e-5)
    # The same with the transformer in the trained model: its columns are inputs of the graph.
    inside = classifier(model=make_pipeline(columns, LogisticRegression())).fit(frame, y)
    proto = to_onnx(inside, initial_types=types, target_opset=18, options={"zipmap": False})
    np.testing.assert_allclose(run(proto, feeds)[1], inside.predict_proba(frame), rtol=1e-3, atol=1e-5)
    with pytest.raises(UnsupportedError, match=r"without \['city'\]"):
        to_onnx(inside, initial_types=types[:1], target_opset=18)


def test_doubles_in_doubles_out(diabetes):
    X, y = diabetes
    model = make_pipeline(StandardScaler(), regressor()).fit(X, y)
    proto = to_onnx(model, initial_types=[("X", DoubleTensorType([None, 10]))], target_opset=18)
    (predicted,) = run(proto, X.astype(np.float64))
    assert predicted.dtype == np.float64
    np.testing.assert_allclose(predicted.ravel(), model.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target_opset", [13, 15, 18, 21, {"": 17, "ai.onnx.ml": 2}])
def test_the_opset_is_the_requested_one(iris, target_opset):
    X, y = iris
    model = make_pipeline(StandardScaler(), classifier()).fit(X, y)
    proto = convert(model, X, target_opset=target_opset)
    limit = target_opset[""] if isinstance(target_opset, dict) else target_opset
    assert max(entry.version for entry in proto.opset_import if entry.domain == "") <= limit
    np.testing.assert_allclose(run(proto, X)[1], model.predict_proba(X), rtol=1e-3, atol=1e-5)


def reduction_graph(opset):
    """A graph with a ReduceMean, which takes its axes as an input since opset 18."""
    is_old = opset < 18
    mean = helper.make_node("ReduceMean", ["X"] if is_old else ["X", "axes"], ["mean"], keepdims=1)
    if is_old:
        mean.attribute.append(helper.make_attribute("axes", [1]))
    nodes = [
        mean,
        helper.make_node("Sub", ["X", "mean"], ["centred"]),
        helper.make_node("Gemm", ["centred", "W", "b"], ["score"]),
    ]
    arrays = {
        "axes": np.array([1]),
        "W": np.ones((10, 1), np.float32),
        "b": np.zeros(1, np.float32),
    }
    if is_old:
        del arrays["axes"]
    graph = helper.make_graph(
        nodes,
        "centred",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 10])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def test_an_operator_that_changed_is_converted_or_refused(diabetes):
    X, y = diabetes
    model = regressor(model=reduction_graph(18), learning_rate="invscaling", eta0=1e-6).fit(X, y)
    (predicted,) = run(to_onnx(model, X[:1], target_opset=18), X)
    np.testing.assert_allclose(predicted.ravel(), model.predict(X), rtol=1e-4, atol=1e-4)
    with pytest.raises(UnsupportedError, match="set target_opset to 18, or more"):
        to_onnx(model, X[:1], target_opset=15)
    older = regressor(model=reduction_graph(15), learning_rate="invscaling", eta0=1e-6).fit(X, y)
    (predicted,) = run(to_onnx(older, X[:1], target_opset=18), X)
    np.testing.assert_allclose(predicted.ravel(), older.predict(X), rtol=1e-4, atol=1e-4)


# Registration.


@pytest.mark.parametrize(
    "imports",
    [
        "import skl2onnx; from onnxsgd import OnnxSGDRegressor",
        "from onnxsgd import OnnxSGDRegressor; import skl2onnx",
        "from onnxsgd import OnnxSGDRegressor, OnnxSGDClassifier; from skl2onnx.common import data_types",
        "import skl2onnx.common.data_types; from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor",
    ],
)
def test_the_order_of_imports_does_not_matter(imports):
    code = (
        f"{imports}\n"
        "import skl2onnx, numpy as np\n"
        "X = np.random.rand(20, 2).astype(np.float32)\n"
        "model = OnnxSGDRegressor(max_iter=2, tol=None).fit(X, X[:, 0])\n"
        "print(skl2onnx.to_onnx(model, X[:1], target_opset=18).graph.output[0].name)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "variable", done.stderr


def test_the_converter_is_neither_imported_nor_changed():
    code = (
        "import sys\n"
        "from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor\n"
        "assert 'skl2onnx' not in sys.modules\n"
        "import skl2onnx, importlib\n"
        "assert not [f for f in sys.meta_path if type(f).__module__.startswith('onnxsgd')]\n"
        "importlib.reload(skl2onnx)\n"
        "print(skl2onnx.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "skl2onnx", done.stderr


def test_a_missing_converter_is_still_missing():
    code = (
        "from onnxsgd.estimators.import_hook import when_imported\n"
        "when_imported('no_such_package', lambda: print('wrong'))\n"
        "try:\n"
        "    import no_such_package\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "no_such_package", done.stderr


#: Codes of tokens, of which the graph takes the mean vector.
TOKENS = """<ir_version: 8, opset_import: ["": 18]> g (int64[N, 5] X) => (float[N, 3] scores) {
    e = Gather(E, X) m = ReduceMean<keepdims = 0>(e, axis) scores = MatMul(m, W) }"""


def of_tokens():
    model = onnx.parser.parse_model(TOKENS)
    rng = np.random.default_rng(0)
    arrays = {"E": rng.normal(size=(20, 4)).astype("f"), "W": rng.normal(size=(4, 3)).astype("f")}
    arrays["axis"] = np.array([1])
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model, rng.integers(0, 20, (60, 5)), rng.integers(0, 3, 60)


@pytest.mark.parametrize("around", [FrozenEstimator, lambda model: model])
def test_an_estimator_around_a_graph_of_integers_is_trained_further_on_integers(around):
    """As real numbers they would be moved, to tell whether the model needs float64, and be other codes."""
    graph, X, y = of_tokens()
    inside = classifier(model=graph).fit(X, y)
    model = classifier(model=around(inside))
    np.testing.assert_allclose(model.decision_function(X), inside.decision_function(X), rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
    assert model.onnx_model_.graph.input[0].type.tensor_type.elem_type == TensorProto.INT64


def test_adapters_of_an_estimator_inside_are_merged():
    """They would have adapters of their own."""
    graph, X, y = of_tokens()
    inside = classifier(model=graph, adapter=LoRA(rank=2)).fit(X, y)
    model = classifier(model=FrozenEstimator(inside), adapter=LoRA(rank=1))
    np.testing.assert_allclose(model.decision_function(X), inside.decision_function(X), rtol=1e-5, atol=1e-6)
    shapes = {name: array.shape for name, array in model.fit(X, y).get_weights().items()}
    assert sorted(shapes.values()) == [(1, 3), (4, 1)]


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_adapters_are_merged_in_a_pipeline(diabetes):
    X, y = diabetes
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=5, random_state=0).fit(X, y)
    pipeline = make_pipeline(StandardScaler(), regressor(model=network, adapter=LoRA(rank=2))).fit(X, y)
    proto = to_onnx(pipeline, X[:1])
    assert not [i.name for i in proto.graph.initializer if "lora" in i.name]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {"X": X})[0].ravel(), pipeline.predict(X), rtol=1e-3, atol=1e-3
    )
