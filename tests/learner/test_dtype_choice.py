"""The choice of float32 or float64, and its effect on every method of an estimator."""

import pickle
import warnings
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.learner.dtype_choice import loses_columns

N = 400
rng = np.random.RandomState(0)
#: Seconds since 1970 within an hour and a half: float32 has steps of 128 seconds there.
TIME = 1.7e9 + 5000 * rng.rand(N)
TIMED = np.c_[TIME, rng.randn(N)]
PLAIN = rng.randn(N, 3)
TARGET = (TIME - TIME.mean()) / TIME.std() + 0.7 * TIMED[:, 1] + 0.3 * rng.randn(N) + 0.2
LABEL = (TARGET > 0).astype(int)


def regressor(model=None, **more):
    return OnnxSGDRegressor(model, **{"max_iter": 3, "tol": None, "random_state": 0} | more)


def timed_pipeline():
    return make_pipeline(StandardScaler(), LinearRegression()).fit(TIMED, TARGET)


def graph(dtype="float", product="Y = MatMul(H, V)"):
    onx = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({dtype}[N, 3] X) => ({dtype}[N, 1] Y) {{ Z = MatMul(X, W)  H = Tanh(Z)  {product} }}""")
    kind = np.float32 if dtype == "float" else np.float64
    draw = np.random.RandomState(1)
    for name, shape in (("W", (3, 4)), ("V", (4, 1))):
        onx.graph.initializer.append(onnx.numpy_helper.from_array(draw.randn(*shape).astype(kind), name))
    return onx


def type_of(model):
    (dtype,) = {array.dtype for array in model.get_weights().values()}
    element = model.to_onnx().graph.input[0].type.tensor_type.elem_type
    assert onnx.helper.tensor_dtype_to_np_dtype(element) == dtype
    return dtype.name


def run_onnx(model, X):
    session = onnxruntime.InferenceSession(
        model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: X})[0]


# The choice of a precision.


@pytest.mark.parametrize(
    ("X", "expected"),
    [
        (TIMED, True),
        (sparse.csr_matrix(TIMED), True),
        (TIMED.astype(np.int64), True),
        (pd.DataFrame({"t": TIME, "name": "a"}), True),
        ({"t": TIME[:, None]}, True),
        (np.where(rng.rand(N, 2) < 0.1, np.nan, TIMED), True),
        (np.c_[PLAIN, 1e-50 * PLAIN], True),
        (np.c_[PLAIN, 1e300 * PLAIN], True),
        (TIMED.astype(np.float32), False),
        (PLAIN, False),
        (sparse.csr_matrix(PLAIN), False),
        (sparse.csr_matrix(np.r_[TIMED, [[0.0, 0.0]]]), False),
        (sparse.csc_matrix(np.c_[PLAIN, 1e-50 * PLAIN]), True),
        (sparse.csr_matrix(np.c_[PLAIN, 1e300 * PLAIN]), True),
        (sparse.csr_matrix((TIME, (np.arange(N), np.full(N, 2**40))), shape=(N, 2**41)), True),
        (np.c_[PLAIN, np.full(N, 1.7e9 + 0.3)], False),  # a constant has no spread
        (TIMED[:1], True),
        (PLAIN[:1], False),
        (sparse.csr_matrix(TIMED[:1]), False),
        (np.arange(N)[:, None], False),
        (np.array([["a"], ["b"]], dtype=object), False),
        (np.full((N, 1), np.nan), False),
    ],
    ids=str,
)
def test_columns_that_float32_does_not_hold(X, expected):
    assert loses_columns(X) is expected


def test_the_bound_is_a_thousandth_of_the_spread():
    """Steps of float32 at 2^24 are 2: odd numbers are off by 1."""
    steps = np.array([0.0, 0.5, 1.0])
    assert not loses_columns(2**24 + 1 + 2002.0 * steps[:, None])
    assert loses_columns(2**24 + 1 + 998.0 * steps[:, None])


def test_all_blocks_of_rows_are_checked(monkeypatch):
    monkeypatch.setattr("onnxsgd.learner.dtype_choice._BLOCK", 7)
    assert loses_columns(TIMED)
    assert not loses_columns(PLAIN)
    assert not loses_columns(np.r_[TIMED, [[0.0, 0.0]]])


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered)")
@pytest.mark.parametrize("model", [None, "pipeline", "unfitted"])
def test_none_is_float64_only_where_the_data_need_it(model):
    inner = {None: None, "unfitted": make_pipeline(StandardScaler(), SGDRegressor())}.get(model)
    inner = timed_pipeline() if model == "pipeline" else inner
    assert type_of(regressor(inner, eta0=1e-20, learning_rate="constant").fit(TIMED, TARGET)) == "float64"
    X = TIMED - [1.7e9, 0]
    inner = make_pipeline(StandardScaler(), LinearRegression()).fit(X, TARGET) if model else None
    assert type_of(regressor(inner, eta0=1e-20, learning_rate="constant").fit(X, TARGET)) == "float32"


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered)")
def test_raw_scores_that_float32_does_not_hold():
    """Coefficients of 1e5 on columns that are nearly equal."""
    X = np.c_[PLAIN[:, 0], PLAIN[:, 0] + 1e-5 * PLAIN[:, 1]]
    y = 1e5 * (X[:, 0] - X[:, 1])
    assert not loses_columns(X)
    inner = LinearRegression().fit(X, y)
    model = regressor(inner, eta0=1e-20, learning_rate="constant").fit(X, y)
    assert type_of(model) == "float64"
    np.testing.assert_allclose(model.predict(X), inner.predict(X), rtol=0, atol=1e-8)
    narrow = regressor(inner, dtype="float32", eta0=1e-20, learning_rate="constant").fit(X, y)
    assert np.abs(narrow.predict(X) - y).max() > 1e-3 * np.ptp(y)
    tame = LinearRegression().fit(PLAIN, y)
    assert type_of(regressor(tame).fit(PLAIN, y)) == "float32"


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered)")
def test_a_column_of_times_is_predicted_as_scikit_learn_does():
    inner = timed_pipeline()
    model = regressor(inner, eta0=1e-20, learning_rate="constant", penalty=None).fit(TIMED, TARGET)
    np.testing.assert_allclose(model.predict(TIMED), inner.predict(TIMED), rtol=0, atol=1e-12)
    np.testing.assert_allclose(run_onnx(model, TIMED).ravel(), inner.predict(TIMED), rtol=0, atol=1e-12)
    narrow = model.set_params(dtype="float32").fit(TIMED, TARGET)
    assert np.abs(narrow.predict(TIMED) - inner.predict(TIMED)).max() > 1e-2


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered)")
def test_a_gap_in_a_column_of_times_is_filled_in_float64():
    X = np.where(np.arange(2 * N).reshape(N, 2) % 7 == 0, np.nan, TIMED)
    inner = make_pipeline(SimpleImputer(), StandardScaler(), LinearRegression()).fit(X, TARGET)
    model = regressor(inner, eta0=1e-20, learning_rate="constant", penalty=None).fit(X, TARGET)
    np.testing.assert_allclose(model.predict(X), inner.predict(X), rtol=0, atol=1e-8)


def test_a_graph_keeps_its_type_unless_another_is_named():
    for dtype, wide in (("float", "float32"), ("double", "float64")):
        assert type_of(regressor(graph(dtype)).fit(PLAIN, TARGET)) == wide
        for named in ("float32", "float64"):
            assert type_of(regressor(graph(dtype), dtype=named).fit(PLAIN, TARGET)) == named


# Its consequences.


@pytest.mark.parametrize("batch_size", [1, 8, 64])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learning_rate": "invscaling", "optimizer": "adam", "penalty": "l1"},
        {"learning_rate": "invscaling", "momentum": 0.9, "average": True},
        {"head": "linear", "learning_rate": "invscaling"},
    ],
    ids=str,
)
def test_both_types_train_alike(settings, batch_size):
    # TARGET is independent of these data: a fit from its mean has nothing to gain
    target = TARGET + PLAIN[:, 0]
    inner = MLPRegressor(hidden_layer_sizes=(6, 5), tol=1.0, random_state=0).fit(PLAIN, target)
    for source in (None, inner, graph()):
        if source is None and "head" in settings:
            continue
        narrow, wide = (
            regressor(source, dtype=dtype, batch_size=batch_size, **settings).fit(PLAIN, target)
            for dtype in ("float32", "float64")
        )
        assert (type_of(narrow), type_of(wide)) == ("float32", "float64")
        assert list(narrow.get_weights()) == list(wide.get_weights())
        np.testing.assert_allclose(wide.predict(PLAIN), narrow.predict(PLAIN), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(run_onnx(wide, PLAIN).ravel(), wide.predict(PLAIN), rtol=1e-12)


def test_float64_follows_sgd_regressor_to_rounding():
    settings = dict(tol=None, max_iter=3, shuffle=False, random_state=0, learning_rate="invscaling")
    theirs = SGDRegressor(**settings).fit(PLAIN, TARGET)
    ours = regressor(dtype="float64", batch_size=1, **settings).fit(PLAIN, TARGET)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-12)


def test_transposed_products_in_float64():
    """onnxruntime 1.19 fuses them into an operator that has no kernel for float64."""
    product = "T = Transpose <perm = [1, 0]> (H)  Q = MatMul(H, T)  R = MatMul(Q, H)  Y = MatMul(R, V)"
    onx = graph("double", product)
    model = regressor(onx, batch_size=N, max_iter=2, eta0=1e-6, learning_rate="constant").fit(PLAIN, TARGET)
    assert type_of(model) == "float64"
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onx.graph.initializer}
    hidden = np.tanh(PLAIN @ weights["W"])
    expected = hidden @ hidden.T @ hidden @ weights["V"]
    loss = 0.5 * np.mean((expected.ravel() - TARGET) ** 2) + 0.5e-4 * sum(
        (w**2).sum() for w in model.get_weights().values()
    )
    assert model.loss_curve_[0] == pytest.approx(loss, rel=1e-3)


def test_the_first_call_fixes_the_type():
    model = regressor(learning_rate="invscaling", eta0=1e-20).partial_fit(TIMED, TARGET)
    assert type_of(model.partial_fit(TIMED.astype(np.float32), TARGET)) == "float64"
    model = regressor(warm_start=True).fit(PLAIN, TARGET)
    assert (
        type_of(model.set_params(learning_rate="invscaling", eta0=1e-20).fit(np.c_[TIMED, TIME], TARGET))
        == "float32"
    )
    # and a new fit decides anew
    assert type_of(model.set_params(warm_start=False).fit(np.c_[TIMED, TIME], TARGET)) == "float64"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_method_of_an_estimator_computes_in_float64():
    inner = timed_pipeline()
    model = regressor(inner, early_stopping=True, dtype="float64").fit(TIMED, TARGET)
    assert len(model.validation_scores_) == 3
    assert type_of(model) == "float64"
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(TIMED), model.predict(TIMED))
    weights = {name: array + 1e-10 for name, array in model.get_weights().items()}
    changed = again.set_weights(weights).get_weights()
    np.testing.assert_array_equal(changed["coef"], weights["coef"])
    assert clone(model).dtype == "float64"
    csr = sparse.csr_matrix(PLAIN)
    # "auto" centres the columns of dense data only
    named = {"dtype": "float64", "learning_rate": "invscaling"}
    sparse_coef, dense_coef = (regressor(**named).fit(X, TARGET).coef_ for X in (csr, PLAIN))
    np.testing.assert_allclose(sparse_coef, dense_coef, rtol=1e-12)


@pytest.mark.parametrize(("shift", "dtype"), [(0.0, "float32"), (1e3, "float32"), (1.7e9, "float64")])
def test_targets_far_from_zero_are_learned_in_float64(shift, dtype):
    """In float32, targets of 1.7e9 are multiples of 128."""
    y = PLAIN @ np.linspace(1.0, 2.0, PLAIN.shape[1]) + shift
    model = OnnxSGDRegressor(random_state=0).fit(PLAIN, y)
    assert type_of(model) == dtype
    assert model.score(PLAIN, y) > 0.99


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
def test_targets_whose_squares_exceed_float32(scale):
    """Masses of particles in kilograms gave a loss of zero, and a fit that learned nothing without a word."""
    y = scale * (PLAIN @ [1.0, -2.0, 0.5] + 0.1 * rng.randn(N))
    model = OnnxSGDRegressor(random_state=0).fit(PLAIN, y)
    assert type_of(model) == "float64"
    assert model.score(PLAIN, y) > 0.99
    stream = OnnxSGDRegressor(random_state=0).partial_fit(PLAIN[:1], y[:1])
    assert type_of(stream) == "float64"


@pytest.mark.parametrize("scale", [1e-40, 1e-11, 1e10, 1e13])
@pytest.mark.parametrize("is_stream", [False, True])
def test_targets_of_networks_whose_fourth_powers_exceed_float32(scale, is_stream):
    """Squares of the first layer's gradient grow as these; the runtime drops additions of 1e-300."""
    signal = np.tanh(PLAIN @ [1.0, 2.0, 0.0]) + PLAIN[:, 2]
    start = MLPRegressor(hidden_layer_sizes=(16,), max_iter=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = FrozenEstimator(start.fit(PLAIN, signal))
    y, model = scale * (signal + 2.0), OnnxSGDRegressor(network, alpha=0.0, random_state=0)
    if is_stream:
        for first in np.arange(0, 10 * N, 40) % N:
            model.partial_fit(PLAIN[first : first + 40], y[first : first + 40])
    else:
        model.fit(PLAIN, y)
    assert type_of(model) == "float64"
    assert model.score(PLAIN, y) > (0.9 if is_stream else 0.99)
    assert type_of(OnnxSGDRegressor(network).partial_fit(PLAIN, signal)) == "float32"


def test_powers_of_transformers_are_float64():
    """A PowerTransformer subtracts one from a power next to one: probabilities were off by 0.07."""
    X = np.abs(np.random.default_rng(0).normal(size=(200, 5))) * [1, 10, 0.1, 3, 1] + [0, 50, 0, 1, 2]
    scores = X @ [1, 0.1, 3, 0.2, -0.4]
    y = (scores > scores.mean()).astype(int)
    model = make_pipeline(PowerTransformer(), LogisticRegression()).fit(X, y)
    found = OnnxSGDClassifier(model).predict_proba(X)
    np.testing.assert_allclose(found, model.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1e-14, 1e15])
def test_other_targets_are_float32(scale):
    y = scale * np.c_[PLAIN[:, 0], np.zeros(N)]
    assert type_of(OnnxSGDRegressor(random_state=0).partial_fit(PLAIN, y)) == "float32"


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered)")
def test_the_type_is_a_parameter_like_any_other(tmp_path):
    search = GridSearchCV(regressor(), {"dtype": [None, "float32", "float64"]}, cv=3).fit(PLAIN, TARGET)
    assert np.ptp(search.cv_results_["mean_test_score"]) < 1e-4
    with pytest.raises(ParameterError, match="'dtype' parameter"):
        regressor(dtype="float16").fit(PLAIN, TARGET)
    manifest = regressor(dtype="float64").fit(PLAIN, TARGET).export_training_step(tmp_path / "step.onnx")
    step = onnx.load(tmp_path / "step.onnx")
    assert manifest.exists()
    assert {value.type.tensor_type.elem_type for value in step.graph.input} <= {11, 7}


def test_skl2onnx_converts_a_pipeline_in_float64():
    from skl2onnx import to_onnx

    pipeline = make_pipeline(StandardScaler(), regressor(dtype="float64")).fit(TIMED, TARGET)
    onx = to_onnx(pipeline, TIMED[:1])
    session = onnxruntime.InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {"X": TIMED})[0].ravel(), pipeline.predict(TIMED), rtol=0, atol=1e-9
    )


def test_columns_of_a_frame():
    frame = pd.DataFrame({"when": TIME, "where": np.where(LABEL, "a", "b")})
    from sklearn.preprocessing import OneHotEncoder

    columns = ColumnTransformer([("n", StandardScaler(), ["when"]), ("c", OneHotEncoder(), ["where"])])
    inner = make_pipeline(columns, LogisticRegression()).fit(frame, LABEL)
    model = OnnxSGDClassifier(inner, eta0=1e-20, learning_rate="constant", penalty=None, max_iter=1, tol=None)
    model.fit(frame, LABEL)
    assert {array.dtype.name for array in model.get_weights().values()} == {"float64"}
    np.testing.assert_allclose(model.predict_proba(frame), inner.predict_proba(frame), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_operators_without_a_float64_kernel_are_named():
    onx = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N, 1, 4] X) => (float[N, 1] Y) <float[1, 1, 4] W = {1, 2, 3, 4}> {
            Z = Conv(X, W)  Y = Flatten(Z) }""")
    with pytest.raises(UnsupportedError, match="dtype='float64' is not accepted.*Conv"):
        regressor(onx, dtype="float64").fit(PLAIN[:, :1, None].repeat(4, axis=2), TARGET)
    assert type_of(regressor(onx).fit(PLAIN[:, :1, None].repeat(4, axis=2), TARGET)) == "float32"


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("n_first", [1, 2])
def test_a_stream_that_begins_with_a_row_keeps_differences_of_large_numbers(offset, n_first):
    """The type was chosen from a row, which has no spread: R2 was -1e8 with targets around 1e6."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = X @ [1, -2, 0.5, 1]
    ends = [0, *range(n_first, 601, 1 if n_first == 1 else 2)]
    of_targets, of_columns = (
        OnnxSGDRegressor(random_state=0),
        OnnxSGDClassifier(random_state=0, classes=[0, 1]),
    )
    for start, end in pairwise(ends):
        of_targets.partial_fit(X[start:end], y[start:end] + offset)
        of_columns.partial_fit(X[start:end] + offset, y[start:end] > 0)
    assert of_targets.score(X, y + offset) > 0.99
    assert of_columns.score(X + offset, y > 0) > 0.95
    expected = "float64" if offset > 1e5 else "float32"
    assert type_of(of_targets) == type_of(of_columns) == expected


def test_a_row_of_numbers_that_float32_holds_is_float32():
    whole = OnnxSGDRegressor(random_state=0).partial_fit([[1e6, 3e6, 0.1]], [2.0**20])
    assert type_of(whole) == "float32"
    table = sparse.csr_matrix([[123456.789, 0.0, 0.1]])
    assert type_of(OnnxSGDRegressor(random_state=0).partial_fit(table, [1.0])) == "float32"
