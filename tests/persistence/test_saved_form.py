"""Saving and loading of estimators, also across machines and versions."""

import copy
import hashlib
import math
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, schedules
from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence import saved_form
from onnxsgd.persistence.saved_form import FORMAT, pack, unpack
from onnxsgd.runtime.cache import cache
from onnxsgd.training import epochs as _epochs

DATA = Path(__file__).parents[1] / "data"


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


def classifier(**more):
    return OnnxSGDClassifier(
        **{"max_iter": 5, "tol": None, "learning_rate": "invscaling", "eta0": 0.1, "random_state": 0} | more
    )


def by_skops(model):
    io = pytest.importorskip("skops.io")
    content = io.dumps(model)
    return io.loads(content, trusted=io.get_untrusted_types(data=content))


def by_joblib(model, folder=None):
    path = Path(folder or ".") / "model.joblib"
    joblib.dump(model, path)
    return joblib.load(path)


def by_save(model, folder=None):
    path = Path(folder or ".") / "model.onnxsgd"
    model.save(path)
    return onnxsgd.load(path)


WAYS = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "oldest protocol": lambda model: pickle.loads(pickle.dumps(model, protocol=2)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "joblib": by_joblib,
    "skops": by_skops,
    "save": by_save,
}


@pytest.fixture(params=WAYS)
def round_trip(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return WAYS[request.param]


QUICK = MLPClassifier((8,), tol=10.0, n_iter_no_change=2, random_state=0)
MODELS = {
    "linear": lambda X, y: regressor(penalty="l1", average=10).fit(X, y),
    "adam": lambda X, y: regressor(learning_rate="invscaling", optimizer="adam", penalty="elasticnet").fit(
        X, y
    ),
    "schedule": lambda X, y: regressor(learning_rate=schedules.InvScaling(0.1, 0.5)).fit(X, y),
    "several outputs": lambda X, y: regressor().fit(X, np.c_[y, -y]),
    "mlp": lambda X, y: classifier(model=QUICK).fit(X, y > 0),
    "pipeline": lambda X, y: classifier(model=make_pipeline(StandardScaler(), LogisticRegression())).fit(
        X, np.where(y > 0, "high", "low")
    ),
    "several labels": lambda X, y: classifier().fit(X, np.c_[y > 0, y > 1, X[:, 0] > 0]),
    "graph": lambda X, y: regressor(model=regressor().fit(X, y).to_onnx()).fit(X, y),
    "bytes": lambda X, y: regressor(model=regressor().fit(X, y).to_onnx().SerializeToString()).fit(X, y),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_same_predictions_and_the_same_training_from_there(diabetes, kind, round_trip):
    X, y = diabetes
    model = MODELS[kind](X, y)
    if kind == "graph" and round_trip is by_skops:
        pytest.skip("skops takes no protocol buffers: hand over the bytes of the graph")
    other = round_trip(model)
    method = "decision_function" if hasattr(model, "decision_function") else "predict"
    np.testing.assert_array_equal(getattr(other, method)(X), getattr(model, method)(X))
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    for name in ("t_", "n_iter_", "loss_curve_", "validation_scores_", "engine_", "n_features_in_"):
        assert getattr(other, name) == getattr(model, name)
    np.testing.assert_array_equal(other.learning_rates_, model.learning_rates_)
    if round_trip is copy.copy:
        return  # it shares the generator of random numbers with the first
    target = model.predict(X)
    if kind == "pipeline":
        assert other.classes_.tolist() == ["high", "low"]
    np.testing.assert_array_equal(
        getattr(other.partial_fit(X, target), method)(X), getattr(model.partial_fit(X, target), method)(X)
    )


def test_unfitted_estimators_too(round_trip):
    assert round_trip(regressor(alpha=0.5)).get_params() == regressor(alpha=0.5).get_params()


def test_the_saved_form_is_bytes_arrays_and_numbers(iris):
    """A file must not depend on classes of this package or of its dependencies, other than the estimator."""
    model = classifier(model=None, learning_rate="invscaling", optimizer="adam").fit(*iris)
    content = pickle.dumps(model, protocol=2)
    loaded = {arg.split(" ")[0] for op, arg, _ in pickletools.genops(content) if op.name == "GLOBAL"}
    assert {name for name in loaded if name.split(".")[0] not in ("numpy", "copy_reg", "_codecs")} == {
        "onnxsgd.estimators.classifier"
    }


def test_a_file_holds_no_session_and_loading_starts_none(iris, tmp_path):
    joblib.dump(classifier().fit(*iris), tmp_path / "model.joblib")
    code = (
        "import sys, joblib\n"
        f"model = joblib.load({str(tmp_path / 'model.joblib')!r})\n"
        "print('onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_an_estimator_trained_on_a_gpu_predicts_without_one(iris):
    """`device` is the device of training; the trained model runs anywhere."""
    X, y = iris
    model = classifier().fit(X, y)
    expected = model.predict_proba(X)
    model.device = "cuda"
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict_proba(X), expected)


def test_equal_estimators_have_equal_hashes(iris):
    """joblib.Memory looks at these."""
    model = classifier().fit(*iris)
    assert joblib.hash(model) == joblib.hash(pickle.loads(pickle.dumps(model)))
    assert joblib.hash(model) != joblib.hash(classifier(learning_rate="invscaling", eta0=0.2).fit(*iris))


def test_a_format_from_the_future_names_the_version(iris):
    state = classifier().fit(*iris).__getstate__()
    state["_saved"] = {**state["_saved"], "format": FORMAT + 1, "version": "9.9"}
    with pytest.raises(ValueError, match=rf"format {FORMAT + 1} by onnxsgd 9\.9.*reads format"):
        OnnxSGDClassifier().__setstate__(state)


def test_the_saved_form_does_not_change_with_the_estimator(diabetes):
    X, y = diabetes
    model = regressor().fit(X, y)
    state = copy.copy(model.__getstate__())
    before = model.predict(X)
    model.partial_fit(X, y)
    restored = OnnxSGDRegressor()
    restored.__setstate__(state)
    np.testing.assert_array_equal(restored.predict(X), before)
    assert restored.t_ == model.t_ - 14


def test_moments_of_few_columns_stay_those_of_few(round_trip):
    """Of all columns they took 32 bytes for each, and the stream continued with other rounding."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((80, 5000), density=1e-3, rng=rng, format="csr")
    y = rng.integers(0, 2, 80)
    model = OnnxSGDClassifier(random_state=0).partial_fit(X[:40], y[:40], classes=[0, 1])
    other = round_trip(model)
    (moments,), (its,) = model._state.moments.values(), other._state.moments.values()
    assert moments.columns[1] == its.columns[1] == 5000
    np.testing.assert_array_equal(its.columns[0], moments.columns[0])
    if round_trip is not copy.copy:
        np.testing.assert_array_equal(
            other.partial_fit(X[40:], y[40:]).coef_, model.partial_fit(X[40:], y[40:]).coef_
        )


# Old files.


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
@pytest.mark.parametrize("name", ["regressor", "classifier"])
def test_old_files_stay_readable(name, number, monkeypatch):
    """Never make these files again: a release wrote them."""
    path = DATA / f"{name}_format_{number}.pkl"
    recorded = dict(line.split()[::-1] for line in (DATA / "SHA256SUMS").read_text().splitlines())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == recorded[path.name]
    model = pickle.loads(path.read_bytes())
    expected = np.load(DATA / f"{name}_format_{number}.npz", allow_pickle=False)
    X, y = load_diabetes(return_X_y=True) if name == "regressor" else load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X).astype(np.float32)
    method = "predict" if name == "regressor" else "predict_proba"
    np.testing.assert_allclose(getattr(model, method)(X[:50]), expected["prediction"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.loss_curve_, expected["loss_curve"], rtol=1e-6)
    assert model.t_ == expected["t"]
    labels = y / 100 if name == "regressor" else np.where(y == 1, "benign", "malignant")
    if number == 1:
        # in the order of that release: the draw of samples from a generator is not part of the format
        monkeypatch.setattr(_epochs, "shuffled", lambda shape, draw: draw.permutation(shape[1])[None])
    model.partial_fit(X, labels)
    np.testing.assert_allclose(getattr(model, method)(X[:50]), expected["after"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["regressor", "classifier"])
def test_old_files_of_save_stay_readable(name, monkeypatch):
    """Never make these files again."""
    path = DATA / f"{name}_format_1.onnxsgd"
    recorded = dict(line.split()[::-1] for line in (DATA / "SHA256SUMS").read_text().splitlines())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == recorded[path.name]
    model = onnxsgd.load(path)
    X, _ = load_diabetes(return_X_y=True) if name == "regressor" else load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X).astype(np.float32)
    expected = np.load(DATA / f"{name}_file_1.npz", allow_pickle=False)
    method = "predict" if name == "regressor" else "predict_proba"
    np.testing.assert_allclose(getattr(model, method)(X[:50]), expected["prediction"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.loss_curve_, expected["loss_curve"], rtol=1e-6)
    assert model.t_ == expected["t"]


def test_old_files_find_the_classes_where_they_name_them():
    """Pickles of format 1 hold the modules of that time."""
    from onnxsgd import _classifier, _regressor

    assert _classifier.OnnxSGDClassifier is OnnxSGDClassifier
    assert _regressor.OnnxSGDRegressor is OnnxSGDRegressor


def test_every_format_has_a_file():
    assert {path.name for path in DATA.glob("*_format_*.pkl")} == {
        f"{name}_format_{number}.pkl"
        for name in ("regressor", "classifier")
        for number in range(1, FORMAT + 1)
    }


DIGITS = load_digits(return_X_y=True)


def network():
    return MLPClassifier((50,), max_iter=3, random_state=0).fit(*DIGITS)


def written(folder):
    path = folder / "model.onnx"
    path.write_bytes(classifier(model=network()).to_onnx().SerializeToString())
    return str(path)


def two_components():
    X, y = DIGITS
    for n_rows in (600, 1200):
        yield make_pipeline(StandardScaler(), PCA(20), LogisticRegression(max_iter=20)).fit(
            X[:n_rows], y[:n_rows]
        )


@pytest.mark.filterwarnings("ignore")
def test_constants_of_the_model_are_pickled_with_it(tmp_path):
    """Each of two models of one structure has its own, here and in a process that has seen neither."""
    X, y = DIGITS
    learners = [classifier(model=model).fit(X, y) for model in two_components()]
    content = [pickle.dumps(learner) for learner in learners]
    for learner, restored in zip(learners, map(pickle.loads, content), strict=True):
        np.testing.assert_array_equal(restored.predict_proba(X), learner.predict_proba(X))
        assert restored.to_onnx() == learner.to_onnx()
    (tmp_path / "learner").write_bytes(content[1])
    np.save(tmp_path / "X.npy", X)
    code = (
        "import pickle, sys, numpy as np\n"
        "learner = pickle.loads(open('learner', 'rb').read())\n"
        "np.save('found.npy', learner.predict_proba(np.load('X.npy')))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "False", done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), learners[1].predict_proba(X))


@pytest.mark.filterwarnings("ignore")
def test_constants_that_the_model_has_no_longer_are_kept(tmp_path):
    X, y = DIGITS
    first, other = two_components()
    learner = classifier(model=first).fit(X, y)
    expected = learner.predict_proba(X)
    pca, scaler = first.named_steps["pca"], first.named_steps["standardscaler"]
    pca.components_, scaler.scale_ = -pca.components_, scaler.scale_ * 2
    cache.clear()
    restored = pickle.loads(pickle.dumps(learner))
    np.testing.assert_array_equal(restored.predict_proba(X), expected)
    # a file of save has all constants: load may be given another model
    pytest.importorskip("skops")
    learner.save(tmp_path / "learner")
    cache.clear()
    loaded = onnxsgd.load(tmp_path / "learner", model=other)
    np.testing.assert_array_equal(loaded.predict_proba(X), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_pickle_has_the_graph_of_a_file(tmp_path):
    X, y = DIGITS
    learner = classifier(model=written(tmp_path)).fit(X, y)
    content, expected = pickle.dumps(learner), learner.predict_proba(X)
    learner.partial_fit(X, y)
    (tmp_path / "model.onnx").unlink()
    cache.clear()
    restored = pickle.loads(content)
    np.testing.assert_array_equal(restored.predict_proba(X), expected)
    np.testing.assert_array_equal(restored.partial_fit(X, y).predict_proba(X), learner.predict_proba(X))


def test_a_new_graph_is_refused_after_a_pickle_too(iris):
    X, y = iris
    learner = classifier(model=QUICK).fit(X, y)
    same, other = pickle.loads(pickle.dumps(learner)), pickle.loads(pickle.dumps(learner))
    same.partial_fit(X, y)
    learner.set_params(model__alpha=1.0)
    before = pickle.loads(pickle.dumps(learner))
    other.set_params(model__alpha=1.0)
    for changed in (before, other):
        with pytest.raises(ParameterError, match="alpha of MLPClassifier changed"):
            changed.partial_fit(X, y)
    learner.set_params(model__alpha=1e-4)


def test_damaged_graphs_are_refused(iris):
    saved = pack(*_parts_of(classifier(model=QUICK).fit(*iris)))
    for name in ("model", "score_model"):
        with pytest.raises(ValueError, match="fewer than its own"):
            unpack({**saved, name: saved[name][:-8]})


def test_trained_weights_of_another_shape_are_refused():
    learner = regressor(max_iter=1).fit(np.eye(100), np.arange(100.0))
    saved = pack(learner._learner, learner._state)
    other = [[name, kind, array[:50] if array.ndim else array] for name, kind, array in saved["tensors"]]
    with pytest.raises(ValueError, match=r"weight 'coef' has shape \(50, 1\), not \[100, 1\]"):
        unpack({**saved, "tensors": other})
    with pytest.raises(ValueError, match=r"linear names \['none'\], which its graph lacks"):
        unpack({**saved, "linear": ["none", None]})


def normalised(n_columns):
    """Return a linear model of normalised columns, with running statistics."""
    ones = ", ".join(["1"] * n_columns)
    columns = "".join(f", float[{n_columns}] {name} = {{{ones}}}" for name in "sbmv")
    return parse_model(
        f"""<ir_version: 8, opset_import: ["" : 15]>
        net (float[N, {n_columns}] X) => (float[N, 1] Y) <float[{n_columns}, 1] W = {{{ones}}}{columns}>
        {{ Z = BatchNormalization(X, s, b, m, v) Y = MatMul(Z, W) }}"""
    )


def in_one_field(proto):
    """Return a graph with the numbers of all tensors in the same field."""
    for tensor in proto.graph.initializer:
        if tensor.string_data:
            continue
        array = numpy_helper.to_array(tensor)
        for field in ("float_data", "int32_data", "int64_data", "raw_data"):
            tensor.ClearField(field)
        tensor.raw_data = array.tobytes()
    return proto


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*MODELS, "scaled", "statistics", "frozen", "components"])
def test_unpickled_estimators_share_their_graph(kind, diabetes):
    """They keep their own numbers, and train as the first one."""
    X, y = diabetes
    if kind == "scaled":
        model = make_pipeline(StandardScaler(), MLPClassifier((6,), max_iter=2, random_state=0))
        first, y = classifier(model=model).fit(X, y > 0), y > 0
    elif kind == "statistics":
        first = regressor(model=normalised(X.shape[1]), batch_norm="train").fit(X, y)
    elif kind == "frozen":
        # numbers that `model` holds
        graph = classifier(model=MLPClassifier((50,), max_iter=2, random_state=0).fit(X, y > 0)).to_onnx()
        names = [tensor.name for tensor in graph.graph.initializer if 50 in tensor.dims]
        first, y = classifier(model=graph, trainable=names[-1:]).fit(X, y > 0), y > 0
    elif kind == "components":
        model = make_pipeline(PCA(8), LogisticRegression())
        first, y = classifier(model=model.fit(X, y > 0)).fit(X, y > 0), y > 0
    else:
        first = MODELS[kind](X, y)
        y = first.predict(X)
    content = [pickle.dumps(first)]
    first.partial_fit(X[:50], y[:50])
    content.append(pickle.dumps(first))
    one, other = map(pickle.loads, content)
    assert one._learner is not other._learner
    assert (other._learner.template or other._learner) is (one._learner.template or one._learner)
    for name, array in first.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array)
        np.testing.assert_array_equal(other._learner.initial(name), other._state.weights()[name])
    np.testing.assert_array_equal(other.predict(X), first.predict(X))
    one.partial_fit(X[:50], y[:50])
    for name, array in first.get_weights().items():
        np.testing.assert_array_equal(one.get_weights()[name], array)
    assert one.to_onnx().SerializeToString() == other.to_onnx().SerializeToString()
    # another process
    cache.clear()
    anew = pickle.loads(content[1])
    np.testing.assert_array_equal(anew.partial_fit(X, y).predict(X), other.partial_fit(X, y).predict(X))
    assert in_one_field(anew.to_onnx()) == in_one_field(other.to_onnx())


def test_packing_is_not_touched_by_accident(iris):
    """New keys need a new format, and a file of it in the tests; some are missing in older files."""
    model = classifier().fit(*iris)
    saved = pack(model._learner, model._state)
    assert (FORMAT, set(saved)) == (
        3,
        {
            "format", "version", "model", "score_model", "link", "weights", "intercepts", "linear", "classes",
            "exported_for", "tensors", "random_state", "eta", "t", "l1_total", "loss_curve",
            "validation_scores", "learning_rates", "n_updates", "epoch_updates", "owners", "shared",
            "is_trained",
        },
    )  # fmt: skip


def _parts_of(estimator):
    return estimator._learner, estimator._state


#: For each entry of the saved form a value that it cannot have.
WRONG = {
    "model": "x", "score_model": 1, "half_precision": [], "link": None, "weights": "coef", "intercepts": [1],
    "linear": ["x", 1], "classes": [0, 1], "exported_for": "1", "dropouts": [None], "statistics": {},
    "tensors": [("coef", "weight")], "random_state": None, "eta": math.nan, "t": -1, "loss_curve": ["x"],
    "validation_scores": 0.5, "l1_total": math.inf, "l1_totals": {"coef": "x"}, "learning_rates": [None],
    "owners": [], "update_norms": [[]], "missed": {"coef": -1}, "n_updates": -1, "rate_memory": (1.0,),
    "epoch_updates": 1.5, "moments": {}, "shared": "x", "adapters": [1], "text": (None, None),
    "is_trained": 1,
}  # fmt: skip


def test_every_entry_of_another_type_is_named():
    """The reader raised an error of Python about a value without a name."""
    assert set(WRONG) == set(saved_form._TYPES)
    learner = regressor(max_iter=1).fit(np.eye(4), np.arange(4.0))
    saved = pack(learner._learner, learner._state)
    unpack(saved)
    for name, value in WRONG.items():
        with pytest.raises(TypeError, match=f"^{name} is "):
            unpack({**saved, name: value})
