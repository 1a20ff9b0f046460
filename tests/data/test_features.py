"""Data in all supported forms."""

import re
import tracemalloc
import warnings
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_multilabel_classification
from sklearn.exceptions import DataConversionWarning
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import hamming_loss
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.validation import _get_feature_names

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.data import features as data_features
from onnxsgd.data.features import TableInput, is_plain_array, read_features
from onnxsgd.exceptions import GraphError, ParameterError

# Older versions of scikit-learn read frames in a way that newer versions of polars deprecate.
pytestmark = pytest.mark.filterwarnings("ignore:Support for the dataframe interchange protocol")


@pytest.fixture(params=["pandas", "polars"])
def frames(request):
    library = pytest.importorskip(request.param)
    if _get_feature_names(library.DataFrame({"a": [1.0]})) is None:
        pytest.skip(f"this version of scikit-learn does not see the columns of {request.param}")
    return library


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


def classifier(**more):
    return OnnxSGDClassifier(
        **{"max_iter": 5, "tol": None, "learning_rate": "invscaling", "eta0": 0.1, "random_state": 0} | more
    )


# Arrays.


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", "bool", "object", ">f8"]
)
@pytest.mark.parametrize("order", ["C", "F", "reversed"])
def test_arrays_of_any_type_and_order_give_the_same(diabetes, dtype, order):
    small = np.round(diabetes[0] * 2).clip(0, 1)  # numbers that every type holds
    X = small.astype(dtype)
    X = X[:, ::-1].copy()[:, ::-1] if order == "reversed" else np.asarray(X, order=order)
    expected = regressor().fit(small, diabetes[1])
    model = regressor().fit(X, diabetes[1])
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_array_equal(model.predict(X), expected.predict(small))


def test_lists_are_arrays(diabetes):
    X, y = diabetes[0].astype(np.float64), diabetes[1]
    model = regressor().fit(X.tolist(), y.tolist(), sample_weight=[1.0] * len(y))
    np.testing.assert_array_equal(model.predict(X[:5].tolist()), regressor().fit(X, y).predict(X[:5]))


def test_predictions_have_the_precision_of_the_data(iris):
    X, y = iris
    model = classifier().fit(X, y)
    for method in ("decision_function", "predict_proba", "predict_log_proba"):
        assert getattr(model, method)(X).dtype == np.float32
        assert getattr(model, method)(X.astype(np.float64)).dtype == np.float64
        assert getattr(model, method)((X * 0).astype(np.int64)).dtype == np.float64


def test_a_prediction_does_not_depend_on_its_company(iris):
    X, y = iris
    mlp = MLPClassifier((30,), tol=10.0, n_iter_no_change=2, random_state=0)
    model = classifier(model=mlp).fit(X, y)
    together = model.predict_proba(X)
    for size in (1, 2, 7):
        parts = [model.predict_proba(X[i : i + size]) for i in range(0, len(X), size)]
        np.testing.assert_array_equal(np.concatenate(parts), together)


def test_dictionaries_of_samples_are_refused():
    """The error was that of an array with one axis."""
    samples = [{"size": float(i), "town": "Bonn"} for i in range(6)]
    with pytest.raises(ParameterError, match="a dictionary for each sample: let a DictVectorizer"):
        OnnxSGDRegressor().fit(samples, range(6))
    model = make_pipeline(DictVectorizer(), Ridge()).fit(samples, range(6))
    with pytest.raises(ParameterError, match="a dictionary for each sample"):
        OnnxSGDRegressor(model).predict(samples)


def test_data_that_are_not_numbers_are_refused(iris):
    X, y = iris
    model = classifier().fit(X, y)
    for bad in (np.nan, np.inf, 1e39):
        table = X.astype(np.float64)
        table[3, 1] = bad
        with pytest.raises(ValueError, match="NaN|infinity"):
            classifier(dtype="float32").fit(table, y)
        with pytest.raises(ValueError, match="NaN|infinity"):
            model.predict(table)
        with pytest.raises(ValueError, match="NaN|infinity"):
            model.predict(sparse.csr_matrix(table))
    with pytest.raises(ValueError, match="arrays of bytes/strings"):
        classifier().fit([["a", "b"]] * 4, [0, 1, 0, 1])
    with pytest.raises(ValueError, match="X has 3 features, but OnnxSGDClassifier is expecting 4"):
        model.predict(X[:, :3])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier().fit(X, y[:-1])


# Memory.


def peak_of(function):
    """Return the bytes that numpy and Python hold at most during a call, beyond those before it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_that_is_not_finite_is_found_anywhere(diabetes, dtype, value):
    X, y = diabetes
    for place in [(0, 0), (100, 3), (-1, -1)]:
        data = np.array(X, dtype)
        data[place] = value
        with pytest.raises(ValueError, match="NaN|infinity"):
            OnnxSGDRegressor().fit(data, y)


@pytest.mark.parametrize("n_rows", [4, 8_000])
def test_large_numbers_are_no_infinite_ones(n_rows):
    """Their sum and the sum of their squares are infinite."""
    X = np.full((n_rows, 2), 3e38, np.float32)
    assert is_plain_array(X, (2,))
    for value in (np.nan, np.inf, -np.inf):
        X[-1, 0] = value
        assert not is_plain_array(X, (2,))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_number_of_many_that_is_not_finite_is_found(dtype, value):
    X = np.random.default_rng(0).normal(size=(3_000, 7)).astype(dtype)
    assert is_plain_array(X, (2,))
    for place in [(0, 0), (1_500, 3), (-1, -1)]:
        data = X.copy()
        data[place] = value
        assert not is_plain_array(data, (2,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "model",
    [None, Ridge(), Ridge().fit(np.eye(3), np.arange(3.0)), make_pipeline(StandardScaler(), Ridge())],
    ids=["none", "unfitted", "fitted", "pipeline"],
)
def test_large_arrays_are_searched_once(model, dtype, monkeypatch):
    monkeypatch.setattr(data_features, "_CONVERTED_BYTES", 0)
    searched, find = [], data_features._extremes
    monkeypatch.setattr(data_features, "_extremes", lambda array: searched.append(array) or find(array))
    X = np.random.default_rng(0).normal(size=(data_features._FEW, 3)).astype(dtype)
    learner = OnnxSGDRegressor(model, max_iter=1, tol=None, random_state=0)
    fitted = clone(learner).fit(X, X[:, 0])
    assert sum(array.ndim == 2 for array in searched) == 1
    for call in calls_with_bad_numbers(learner, fitted, X):
        with pytest.raises(ValueError, match="NaN|infinity"):
            call()


def calls_with_bad_numbers(learner, fitted, X):
    """Yield calls of an estimator, and of a fitted copy, with a number that is not finite in the last row."""
    y = X[:, 0]
    for value in (np.nan, np.inf, -np.inf):
        bad = X.copy()
        bad[-1, 1] = value
        for estimator, name, more in (
            (clone(learner), "fit", (y,)),
            (clone(learner), "partial_fit", (y,)),
            (fitted, "partial_fit", (y,)),
            (fitted, "predict", ()),
            (fitted, "score", (y,)),
        ):
            yield partial(getattr(estimator, name), bad, *more)


@pytest.mark.parametrize(
    ("inputs", "table"),
    [
        ("float[N, 2] A", "Identity(A)"),
        ("double[N, 2] A", "Cast<to = 1>(A)"),
        ("int64[N, 2] A", "Cast<to = 1>(A)"),
        ("float[N, 1] A, float[N, 1] B", "Concat<axis = 1>(A, B)"),
    ],
)
def test_arrays_for_a_graph_are_searched_once(inputs, table, monkeypatch):
    """They are searched in the type of the graph, input by input, and the error is the package's own."""
    graph = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (float[N, 1] Y)
        <float[2, 1] w = {{1, 2}}> {{ X = {table} Y = MatMul(X, w) }}"""
    )
    searched, find = [], data_features._is_finite
    monkeypatch.setattr(data_features, "_is_finite", lambda array: searched.append(array) or find(array))
    X = np.arange(20.0).reshape(10, 2)
    learner = OnnxSGDRegressor(graph, max_iter=1, tol=None, eta0=1e-4, learning_rate="constant")
    fitted = clone(learner).fit(X, X[:, 0])
    assert sum(array.size for array in searched if array.ndim == 2) == (0 if "int" in inputs else X.size)
    for call in calls_with_bad_numbers(learner, fitted, X):
        with pytest.raises(ParameterError, match="NaN|infinity|does not hold"):
            call()


@pytest.mark.parametrize("order", ["C", "F", "K"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_large_arrays_are_searched_part_by_part(value, order, monkeypatch):
    monkeypatch.setattr(data_features, "_CONVERTED_BYTES", 0)
    monkeypatch.setattr(data_features, "_LOOKED_AT", 1000)
    X = np.random.default_rng(0).normal(size=(4_000, 9))
    X = X[:, ::2] if order == "K" else np.asarray(X, order=order)
    assert data_features._extremes(X) == [X.min(), X.max()]
    assert data_features._is_finite(X)
    for place in [(0, 0), (2_000, 3), (-1, -1)]:
        before, X[place] = X[place], value
        assert not data_features._is_finite(X)
        X[place] = before


_LATER_CALLS = {
    "float32": lambda X: X,
    "float64": lambda X: X.astype(np.float64),
    "Fortran order": lambda X: np.asfortranarray(X),
    "integers": lambda X: np.round(X).astype(np.int64),
    "big endian": lambda X: X.astype(">f4"),
    "list": lambda X: X.tolist(),
    "subclass": lambda X: X.view(np.matrix),
    "no rows": lambda X: X[:0],
    "one axis": lambda X: X[0],
    "fewer columns": lambda X: X[:, :2],
    "NaN": lambda X: np.where(X[3, 1] == X, np.nan, X),
    "infinity": lambda X: np.where(X[3, 1] == X, -np.inf, X),
    "beyond float32": lambda X: np.where(X[3, 1] == X, 1e39, X.astype(np.float64)),
}


@pytest.mark.parametrize("given", _LATER_CALLS.values(), ids=list(_LATER_CALLS))
@pytest.mark.parametrize("columns", ["first call without names", "first call with names"])
def test_later_calls_take_and_refuse_what_all_checks_would(diabetes, given, columns, monkeypatch):
    """One look at a usual table takes the place of the checks, and never of another result or error."""
    pandas = pytest.importorskip("pandas")
    X, y = np.array(diabetes[0][:32, :4], np.float32), diabetes[1][:32]
    table = given(X)

    def outcome():
        model = OnnxSGDRegressor(random_state=0)
        first = pandas.DataFrame(X, columns=list("abcd")) if "with names" in columns else X
        model.partial_fit(first, y)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model.partial_fit(table, y[: len(table)])
            except Exception as error:
                return type(error), str(error), model.t_
        return model.coef_.tobytes(), model.intercept_.tobytes(), [str(w.message) for w in caught], model.t_

    found = outcome()
    monkeypatch.setattr(TableInput, "read", lambda self, X: None)
    assert outcome() == found


def test_the_input_of_a_table_is_known_by_its_type_and_its_axes():
    def value(name, dtype, shape):
        return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))

    single, double = ir.DataType.FLOAT, ir.DataType.DOUBLE
    assert TableInput.of([value("X", single, ["N", 3])]) == TableInput("X", np.dtype(np.float32), 3)
    assert TableInput.of([value("X", double, ["N", "M"])]) == TableInput("X", np.dtype(np.float64), None)
    for shape, dtype in ((["N"], single), (["N", 3, 4], single), (["N", 3], ir.DataType.INT64)):
        assert TableInput.of([value("X", dtype, shape)]) is None
    assert TableInput.of([value("X", single, ["N", 3]), value("Z", single, ["N", 3])]) is None
    X = np.ones((2, 4), np.float32)
    assert TableInput("X", np.dtype(np.float32), 4).read(X) is X
    assert TableInput("X", np.dtype(np.float32), 3).read(X) is None


def test_a_memory_map_is_read_in_place(tmp_path):
    rows, columns = 40_000, 100
    X = np.memmap(tmp_path / "X.bin", np.float32, "w+", shape=(rows, columns))
    X[:] = np.random.RandomState(0).rand(rows, columns)
    y = np.asarray(X[:, 0] - X[:, 1])
    X.flush()
    X = np.memmap(tmp_path / "X.bin", np.float32, "r", shape=(rows, columns))
    regressor(max_iter=1).fit(X[:100], y[:100])  # without the memory of lazy imports
    model = regressor(max_iter=1, batch_size=256)
    assert peak_of(lambda: model.fit(X, y)) < 0.4 * X.nbytes
    assert peak_of(lambda: model.predict(X)) < 0.4 * X.nbytes
    in_memory = regressor(max_iter=1, batch_size=256).fit(np.array(X), y)
    np.testing.assert_array_equal(model.coef_, in_memory.coef_)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, sparse.csc_array])
def test_sparse_matrices_become_dense_a_batch_at_a_time(form):
    X = form(sparse.random(1_000, 50_000, 2e-4, format="csr", dtype=np.float32, random_state=0))
    dense = 1_000 * 50_000 * 4
    y = np.asarray(X[:, :50].sum(axis=1)).ravel()
    model = regressor(max_iter=1, learning_rate="invscaling", eta0=0.5)
    assert peak_of(lambda: model.fit(X, y)) < 0.1 * dense
    assert peak_of(lambda: model.predict(X)) < 0.1 * dense
    assert model.loss_curve_[0] > 0


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_array])
def test_sparse_matrices_train_a_converted_pipeline(iris, form):
    X, y = np.where(np.abs(iris[0]) < 0.5, 0, iris[0]), iris[1]
    pipeline = make_pipeline(StandardScaler(with_mean=False), LogisticRegression())
    thin, dense = classifier(model=pipeline).fit(form(X), y), classifier(model=pipeline).fit(X, y)
    np.testing.assert_allclose(thin.predict_proba(form(X)), dense.predict_proba(X), rtol=1e-5, atol=1e-6)


# Frames.


def test_frames_of_numbers_are_checked_by_name(frames, diabetes):
    X, y = diabetes
    names = [f"column {i}" for i in range(10)]
    frame = frames.DataFrame({name: X[:, i] for i, name in enumerate(names)})
    model = regressor().fit(frame, y)
    np.testing.assert_array_equal(model.feature_names_in_, names)
    np.testing.assert_array_equal(model.predict(frame), regressor().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[names[::-1]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[names[:-1]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)


@pytest.fixture(scope="module")
def people():
    random = np.random.RandomState(0)
    columns = {
        "age": random.randint(18, 80, 300),
        "income": random.randn(300) * 3 + 1,
        "city": random.choice(["Aachen", "Bonn", "Cadiz"], 300),
    }
    y = columns["income"] + 2 * (columns["city"] == "Bonn") + columns["age"] / 50 > 2
    return columns, y.astype(int)


def people_model(estimator):
    scaled = ("numbers", StandardScaler(), ["age", "income"])
    return make_pipeline(ColumnTransformer([scaled, ("cities", OneHotEncoder(), ["city"])]), estimator)


@pytest.mark.parametrize("kind", ["string", "category"])
def test_a_converted_column_transformer_takes_columns_by_name(frames, people, kind):
    columns, y = people
    frame = frames.DataFrame(columns)
    if kind == "category":
        is_pandas = frames.__name__ == "pandas"
        frame = (
            frame.astype({"city": "category"})
            if is_pandas
            else frame.with_columns(frames.col("city").cast(frames.Categorical))
        )
    pipeline = people_model(LogisticRegression())
    model = classifier(model=pipeline, max_iter=1, learning_rate="invscaling", eta0=1e-9, penalty=None).fit(
        frame, y
    )
    expected = pipeline.fit(frame, y).predict_proba(frame)
    np.testing.assert_allclose(model.predict_proba(frame), expected, rtol=1e-4, atol=1e-5)
    turned = frame[["city", "income", "age"]]
    np.testing.assert_array_equal(model.predict_proba(turned), model.predict_proba(frame))
    with pytest.raises(ValueError, match=r"X lacks \['income'\]"):
        model.predict(frame[["city", "age"]])
    assert classifier(model=pipeline).fit(frame, y).score(frame, y) > 0.9


def test_a_converted_column_transformer_takes_a_dict_of_arrays(people):
    pandas = pytest.importorskip("pandas")
    columns, y = people
    fitted = people_model(LogisticRegression()).fit(pandas.DataFrame(columns), y)
    model = classifier(model=fitted).fit(columns, y)
    from_frame = classifier(model=fitted).fit(pandas.DataFrame(columns), y)
    np.testing.assert_array_equal(model.predict_proba(columns), from_frame.predict_proba(columns))
    assert not hasattr(model, "feature_names_in_")
    del model
    from_frame.fit(columns, y)
    assert not hasattr(from_frame, "feature_names_in_")
    with pytest.raises(ValueError, match="NaN"):
        from_frame.predict({**columns, "income": columns["income"] * np.nan})


# Graphs with several inputs.


@pytest.fixture(scope="module")
def two_towers():
    """score = left @ W + embedding[item] + b: a matrix of reals and a vector of integers."""
    random = np.random.RandomState(0)
    tensors = {
        "W": random.randn(3, 1).astype(np.float32),
        "embedding": random.randn(5, 1).astype(np.float32),
        "b": np.zeros(1, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["left", "W"], ["product"]),
        helper.make_node("Gather", ["embedding", "item"], ["row"], axis=0),
        helper.make_node("Add", ["product", "row"], ["sum"]),
        helper.make_node("Add", ["sum", "b"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "towers",
        [
            helper.make_tensor_value_info("left", TensorProto.FLOAT, ["N", 3]),
            helper.make_tensor_value_info("item", TensorProto.INT64, ["N"]),
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model, tensors


@pytest.mark.parametrize("item_type", [np.int64, np.int32, np.float64])
def test_a_graph_with_several_inputs_takes_a_dict(two_towers, item_type):
    proto, tensors = two_towers
    random = np.random.RandomState(1)
    left, item = random.randn(400, 3), random.randint(0, 5, 400)
    y = left @ [1.0, -2.0, 0.5] + np.array([0.0, 1, 2, 3, 4])[item]
    X = {"item": item.astype(item_type), "left": left}
    model = regressor(model=proto, max_iter=100, eta0=0.1, learning_rate="constant", penalty=None)
    before = left @ tensors["W"] + tensors["embedding"][item]
    assert model.fit(X, y).loss_curve_[0] < 0.5 * np.mean((before.ravel() - y) ** 2)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-3)
    held = model.predict({"left": left[:3], "item": item[:3]})
    np.testing.assert_array_equal(held, model.predict(X)[:3])
    with pytest.raises(ValueError, match=r"X lacks \['item'\]"):
        model.predict({"left": left})
    with pytest.raises(ValueError, match="lengths"):
        model.predict({"left": left, "item": item[:-1]})
    with pytest.raises(ValueError, match=r"shape \(400, 2\); input 'left' of the graph takes \('any', 3\)"):
        model.predict({"left": left[:, :2], "item": item})


def test_validation_data_of_several_inputs(two_towers):
    random = np.random.RandomState(1)
    X = {"left": random.randn(60, 3), "item": random.randint(0, 5, 60)}
    y = X["left"][:, 0]
    model = regressor(model=two_towers[0], early_stopping=True, random_state=0).fit(X, y)
    assert len(model.validation_scores_) == 5
    given = regressor(model=two_towers[0], early_stopping=True).fit(X, y, X_val=X, y_val=y)
    assert given.validation_scores_[-1] == pytest.approx(given.score(X, y), rel=1e-6)


def test_arrays_of_more_dimensions():
    """Images are not reshaped."""
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"], axis=1),
        helper.make_node("Gemm", ["flat", "W", "b"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "image",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 2, 3])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [
            onnx.numpy_helper.from_array(np.zeros((6, 1), np.float32), "W"),
            onnx.numpy_helper.from_array(np.zeros(1, np.float32), "b"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    X = np.random.RandomState(0).randn(50, 2, 3)
    y = X[:, 1, 2]
    image = regressor(model=proto).fit(X, y)
    flat = regressor().fit(X.reshape(50, 6), y)
    np.testing.assert_allclose(image.predict(X), flat.predict(X.reshape(50, 6)), rtol=1e-5, atol=1e-6)


# Targets.


@pytest.mark.parametrize("shape", ["vector", "column", "table", "list", "integers"])
def test_targets_of_one_and_of_several_columns(diabetes, shape):
    X, y = diabetes
    forms = {
        "vector": y, "column": y[:, None], "table": np.c_[y, -y], "list": y.tolist(),
        "integers": np.round(y).astype(int),
    }  # fmt: skip
    target = forms[shape]
    model = regressor().fit(X, target)
    assert model.predict(X).shape == np.shape(target)
    assert model.coef_.shape == ((10,) if np.ndim(target) == 1 else (np.shape(target)[1], 10))
    assert model.intercept_.shape == (1 if np.ndim(target) == 1 else np.shape(target)[1],)
    assert model.score(X, target) > 0.2


def test_series_are_targets_and_weights(frames, iris):
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    weight = 1.0 + (y == 2)
    expected = classifier().fit(X, names, sample_weight=weight)
    model = classifier().fit(X, frames.Series(names.tolist()), sample_weight=frames.Series(weight.tolist()))
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    np.testing.assert_array_equal(model.coef_, expected.coef_)


@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes"], ["a", "b", "c"], [-7, -1, 3], [-1, 1], [True, False], [0.0, 1.0],
        [np.int8(1), np.int8(2)],
    ],
)  # fmt: skip
def test_labels_of_any_type(iris, labels):
    X, y = iris
    known = np.array(labels)
    given = known[y % len(labels)]
    model = classifier(max_iter=20).fit(X, given)
    np.testing.assert_array_equal(model.classes_, np.unique(known))
    assert model.predict(X).dtype == known.dtype
    numbers = classifier(max_iter=20).fit(X, np.searchsorted(np.unique(known), given))
    np.testing.assert_array_equal(model.predict_proba(X), numbers.predict_proba(X))


def test_labels_in_an_array_of_objects(iris):
    X, y = iris
    names = np.array(["a", "bb", "ccc"], dtype=object)[y]
    model = classifier(max_iter=20).fit(X, names)
    assert model.predict(X).dtype == object
    assert model.score(X, names) > 0.8


def test_a_column_of_labels_is_a_vector_with_a_warning(iris):
    X, y = iris
    with pytest.warns(DataConversionWarning, match="column-vector y was passed"):
        model = classifier().fit(X, y[:, None])
    assert model.predict(X).shape == y.shape


def test_two_columns_of_scores_for_two_classes(iris):
    """A graph that ends in a softmax over two columns: the difference of the scores decides."""
    X, y = iris[0], np.where(iris[1] > 0, "yes", "no")
    nodes = [
        helper.make_node("Gemm", ["X", "W", "b"], ["z"]),
        helper.make_node("Softmax", ["z"], ["p"], axis=1),
    ]
    arrays = {"W": np.random.RandomState(0).randn(4, 2).astype(np.float32), "b": np.zeros(2, np.float32)}
    graph = helper.make_graph(
        nodes,
        "softmax",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["N", 2])],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = classifier(model=proto, max_iter=20).fit(X, y)
    decision, probability = model.decision_function(X), model.predict_proba(X)
    assert decision.shape == (150,)
    np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-decision)), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), np.where(decision > 0, "yes", "no"))
    assert model.score(X, y) > 0.9


# Several labels for a sample.


@pytest.fixture(scope="module")
def documents():
    X, Y = make_multilabel_classification(300, 20, n_classes=4, n_labels=2, random_state=0)
    return StandardScaler().fit_transform(X).astype(np.float32), Y


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "modified_huber"])
def test_several_labels_are_as_many_classifiers_of_one(documents, loss):
    X, Y = documents
    model = classifier(loss=loss, penalty=None).fit(X, Y)
    alone = [classifier(loss=loss, penalty=None).fit(X, Y[:, column]) for column in range(4)]
    raw = np.c_[[one.decision_function(X) for one in alone]].T
    np.testing.assert_allclose(model.decision_function(X), raw, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.predict(X), (raw > 0).astype(int))
    assert hamming_loss(Y, model.predict(X)) < 0.2
    assert model.score(X, Y) == np.mean((model.predict(X) == Y).all(axis=1))
    if loss == "log_loss":
        np.testing.assert_allclose(model.predict_proba(X), 1 / (1 + np.exp(-raw)), rtol=1e-4, atol=1e-6)


def test_several_labels_train_an_mlp_further(documents):
    X, Y = documents
    mlp = MLPClassifier((20,), max_iter=400, tol=0.01, random_state=0).fit(X, Y)
    model = classifier(model=mlp, max_iter=1, learning_rate="invscaling", eta0=1e-9, penalty=None).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(X), mlp.predict_proba(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.predict(X), mlp.predict(X))
    np.testing.assert_array_equal(model.classes_, mlp.classes_)
    assert classifier(model=mlp, max_iter=30).fit(X, Y).loss_curve_[-1] < model.loss_curve_[-1]


def test_several_labels_in_other_forms(documents):
    X, Y = documents
    expected = classifier().fit(X, Y).decision_function(X)
    for form in (Y.tolist(), Y.astype(bool), sparse.csr_matrix(Y), Y.astype(float)):
        np.testing.assert_array_equal(classifier().fit(X, form).decision_function(X), expected)
    parts = classifier(shuffle=False).partial_fit(X, Y).partial_fit(X, Y)
    whole = classifier(shuffle=False, max_iter=2).fit(X, Y)
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    stopping = classifier(early_stopping=True).fit(X, Y)
    assert len(stopping.validation_scores_) == 5
    balanced = classifier(class_weight="balanced").fit(X, Y)
    assert not np.array_equal(balanced.decision_function(X), expected)


def test_invalid_tables_of_labels_are_refused(documents, iris):
    X, Y = documents
    softmax = MLPClassifier((5,), tol=10.0, n_iter_no_change=2, random_state=0).fit(X, Y.argmax(axis=1))
    with pytest.raises(ValueError, match="several labels to a sample.*softmax"):
        classifier(model=softmax).fit(X, Y)
    with pytest.raises(ValueError, match=r"4 score\(s\).*3 columns"):
        classifier(model=softmax).fit(X, Y[:, :3])
    with pytest.raises(ValueError, match="not 0 and 1"):
        classifier().fit(X, 2 * Y)
    with pytest.raises(ValueError, match="'balanced' or None"):
        classifier(class_weight={0: 1.0, 1: 2.0}).fit(X, Y)
    with pytest.raises(ValueError, match=r"y has shape \(300, 3\); in the first call.*4"):
        classifier().partial_fit(X, Y).partial_fit(X, Y[:, :3])
    with pytest.raises(ValueError, match="should be a 1d array"):
        classifier().fit(iris[0], np.c_[iris[1], iris[1]])


# Weights.


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_class_weights_are_weights_of_samples(iris, loss):
    X, y = iris
    by_class = classifier(loss=loss, class_weight={0: 1.0, 1: 3.0, 2: 0.5}).fit(X, y)
    by_sample = classifier(loss=loss).fit(X, y, sample_weight=np.array([1.0, 3.0, 0.5])[y])
    np.testing.assert_array_equal(by_class.coef_, by_sample.coef_)
    both = classifier(class_weight={0: 1.0, 1: 3.0, 2: 0.5}).fit(X, y, sample_weight=np.full(150, 2.0))
    np.testing.assert_allclose(
        both.coef_, classifier(class_weight={0: 1.0, 1: 3.0, 2: 0.5}).fit(X, y).coef_, rtol=1e-5
    )


def test_balanced_classes_weigh_the_same(iris):
    X, y = iris[0][30:], iris[1][30:]
    balanced = classifier(class_weight="balanced").fit(X, y)
    by_hand = classifier().fit(X, y, sample_weight=(len(y) / (3 * np.bincount(y)))[y])
    np.testing.assert_array_equal(balanced.coef_, by_hand.coef_)


def test_weights_reach_the_model_inside(diabetes):
    """An inner model that supports weights is fitted with them, without rows of weight zero."""
    X, y = diabetes
    weight = np.random.RandomState(0).randint(0, 3, len(y)).astype(float)
    settings = dict(max_iter=1, learning_rate="invscaling", eta0=1e-9, penalty=None)
    for inner in (Ridge(), make_pipeline(StandardScaler(), make_pipeline(Ridge()))):
        model = regressor(model=inner, **settings).fit(X, y, sample_weight=weight)
        rows = np.repeat(np.arange(len(y)), weight.astype(int))
        if isinstance(inner, Ridge):
            expected = Ridge().fit(X[rows], y[rows]).predict(X)
        else:
            kept = weight > 0
            name = "pipeline__ridge__sample_weight"
            expected = inner.fit(X[kept], y[kept], **{name: weight[kept]}).predict(X)
        np.testing.assert_allclose(model.predict(X), expected, rtol=1e-4, atol=1e-5)


def test_invalid_weights_are_refused(diabetes):
    X, y = diabetes
    for weight, message in (
        (-np.ones(442), ">= 0"),
        (np.zeros(442), "0 for all samples|at least one non-zero"),
        (np.ones(441), "inconsistent|expected"),
        (np.full(442, np.nan), "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            regressor().fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_entries_that_repeat_or_are_zero_change_nothing(dtype):
    """Two halves of one entry, and a stored zero, are read as one number and as none."""
    table = sparse.random(200, 30, 0.2, format="csr", random_state=0, dtype=dtype)
    halves = sparse.csr_matrix(
        (np.repeat(table.data / 2, 2), np.repeat(table.indices, 2), 2 * table.indptr), shape=table.shape
    )
    zeros = sparse.csr_matrix((table.data.copy(), table.indices.copy(), table.indptr.copy()), table.shape)
    zeros.data[::7] = 0
    fewer = zeros.copy()
    fewer.eliminate_zeros()
    y = np.asarray(table.sum(axis=1)).ravel()
    for given, plain in ((halves, table), (zeros, fewer)):
        n_entries = given.nnz
        models = [
            OnnxSGDRegressor(penalty="l1", max_iter=20, tol=None, dtype=dtype, random_state=0).fit(X, y)
            for X in (given, plain)
        ]
        np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
        assert given.nnz == n_entries


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.array([[1, 256]]), "^X has values .* numbers from 0 to 255"),
        (np.array([[-1, 3]], np.int8), "^X has values .* numbers from 0 to 255"),
        (np.array([[2.0, 0.5]]), r"^X has values such as 0\.5, .* must be whole numbers from 0 to 255"),
    ],
)
def test_integers_that_would_change_are_refused(given, message):
    value = ir.Value(name="X", type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape(["N", 2]))
    with pytest.raises(ParameterError, match=message):
        read_features(given, given, [value])
    whole = np.array([[0, 255.0]])
    np.testing.assert_array_equal(read_features(whole, whole, [value])["X"], [[0, 255]])


def test_half_precision_is_compared_with_bounds_of_64_bits():
    value = ir.Value(name="X", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["N", 2]))
    given = np.array([[1, 60000]], np.float16)
    with np.errstate(all="raise"):
        found = read_features(given, given, [value])["X"]
    np.testing.assert_array_equal(found, [[1, 60000]])


def test_samples_without_elements_are_refused():
    steps = ir.Value(name="X", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", "t", 2]))
    cache = ir.Value(name="past", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", "past", 2]))
    empty, full = np.zeros((3, 0, 2), "f"), np.zeros((3, 4, 2), "f")
    for given in (empty, {"X": empty}):
        with pytest.raises(
            ParameterError, match=r"^X has shape \(3, 0, 2\) for input 'X' of the graph: each"
        ):
            read_features(given, given, [steps])
    both = {"X": full, "past": empty}
    assert read_features(both, both, [steps, cache])["past"].shape == (3, 0, 2)


def test_a_dictionary_without_targets_is_explained():
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[N, 2] a, float[N, 2] b) => (float[N, 1] y)
    <float[2, 1] w = {1, 2}> { s = Add(a, b)  y = MatMul(s, w) }"""
    X = {"a": np.ones((4, 2)), "c": np.ones((4, 2))}
    message = (
        r"requires y .*X is a dictionary of \['a', 'c'\]: .* each input of the graph, \['a', 'b'\], .* 'y'"
    )
    with pytest.raises(ParameterError, match=message):
        OnnxSGDRegressor(onnx.parser.parse_model(text)).fit(X)
    with pytest.raises(ParameterError, match="requires y to be passed, but the target y is None"):
        OnnxSGDRegressor().fit(X)


@pytest.mark.parametrize("kind", ["object", "category"])
def test_columns_without_numbers_need_a_model(kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"colour": pandas.Series(["red", "blue"] * 5, dtype=kind), "size": np.arange(10.0)}
    )
    with pytest.raises(
        ParameterError, match=r"hold no numbers, \['colour'\], and model=None .*OneHotEncoder"
    ):
        OnnxSGDRegressor().fit(frame, np.arange(10.0))


@pytest.mark.parametrize("name", ["batch_size", "max_iter", "alpha"])
def test_truth_is_no_number(name):
    with pytest.raises(ParameterError, match=f"{name}=True is not accepted: it must be an? "):
        OnnxSGDRegressor(**{name: True}).fit(np.eye(4), np.arange(4.0))


NO_TABLES = [
    ([], r"X has shape \(0,\)"), (b"abc", "X is of type bytes"), (3, "X is of type int"), (None, "X is None"),
    (["a", "b"], r"X has shape \(2,\)"), (np.ones(20), r"X has shape \(20,\)"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "found"), NO_TABLES)
def test_graphs_refuse_data_without_rows_in_one_sentence(given, found):
    model = regressor(max_iter=1).fit(np.eye(20, 4), np.arange(20.0)).to_onnx()
    ours = regressor(model=model, max_iter=1).fit(np.eye(20, 4), np.arange(20.0))
    message = (
        rf"^{found}: it must have an axis of samples and .* input 'X' of the graph takes \('any', 4\)\.$"
    )
    for call in (ours.predict, lambda X: ours.fit(X, np.arange(20.0))):
        with pytest.raises(GraphError, match=message):
            call(given)


@pytest.mark.parametrize("shape", [(3, 8, 8), (40, 192), (40, 2, 8, 8), (40, 3, 64), (40, 3, 4, 8)])
def test_other_shapes_than_images_are_refused_by_the_shape_after_a_fit_too(shape):
    """Not by scikit-learn's number of features, which for images is that of the channels."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 3, 8, 8] x) => (float[N, 1] y)
        { f = Flatten(x) y = MatMul(f, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((192, 1), np.float32), "w"))
    X, y = np.ones((40, 3, 8, 8), np.float32), np.arange(40.0)
    ours, other = regressor(model=model, max_iter=1), np.ones(shape, np.float32)
    message = re.escape(f"X has shape {shape}; input 'x' of the graph takes ('any', 3, 8, 8).")
    for fit in (lambda: None, lambda: ours.fit(X, y)):
        fit()
        for call in (ours.predict, lambda X: ours.partial_fit(X, y[: len(X)])):
            with pytest.raises(GraphError, match=f"^{message}$"):
                call(other)
        with pytest.raises(GraphError, match=f"^{message}$"):
            ours.predict(other.tolist())


def test_entries_that_only_the_whole_graph_takes():
    """The score needs two of three columns of the converted pipeline; a fourth belongs to nobody."""
    pandas = pytest.importorskip("pandas")
    a, c = np.random.default_rng(0).normal(size=(2, 40))
    X = pandas.DataFrame({"a": a, "b": np.where(a > 0, "u", "v"), "c": c})
    kept = ColumnTransformer([("scaled", StandardScaler(), ["a"]), ("coded", OneHotEncoder(), ["b"])])
    ours = regressor(model=make_pipeline(kept, Ridge()).fit(X, c)).fit(X, c)
    columns = {name: X[name] for name in X.columns}
    np.testing.assert_array_equal(ours.predict(columns), ours.predict(X))
    with pytest.raises(GraphError, match=r"\['d'\], which no input of the graph takes; .* \['a', 'b', 'c'\]"):
        ours.predict(columns | {"d": a})


def test_frames_without_rows_are_refused(frames):
    """Before a first call, and after it; numbers and texts."""
    rng = np.random.default_rng(0)
    X = frames.DataFrame({"n": rng.normal(size=60), "c": rng.choice(["u", "v"], 60)})
    y = (X["n"] > 0).to_numpy().astype(int)
    encode = ColumnTransformer([("n", StandardScaler(), ["n"]), ("c", OneHotEncoder(), ["c"])])
    learner = classifier(model=make_pipeline(encode, LogisticRegression()).fit(X, y))
    message = r"X is not accepted: Found array with 0 sample\(s\) \(shape=\(0, 2\)\)"
    for _ in range(2):
        for method in (learner.predict, learner.predict_proba):
            with pytest.raises(ParameterError, match=message):
                method(X[:0])
        for method in (learner.score, learner.fit, learner.partial_fit):
            with pytest.raises(ParameterError, match=message):
                method(X[:0], y[:0])
        learner.predict(X)
