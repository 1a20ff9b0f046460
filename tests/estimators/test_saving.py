"""``save`` and ``load``: what a file holds, what is given again, damage."""

import io
import json
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress

import numpy as np
import onnx
import pytest
import safetensors.numpy
import sklearn
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses, optimizers, penalties, schedules
from onnxsgd._declared_types import check_attributes
from onnxsgd.adapters import LoRA
from onnxsgd.data.generators import restored
from onnxsgd.estimators import saving
from onnxsgd.exceptions import GraphError, OnnxSGDError, ParameterError, ParameterTypeError
from onnxsgd.persistence import saved_graphs
from onnxsgd.persistence.compression import decompressed
from onnxsgd.persistence.saved_file import DamagedFileError, write_file


class Fifth(losses.Loss):
    """A fifth of the square."""

    def value(self, op, y_true, raw_prediction):
        """Return the loss."""
        difference = op.Sub(raw_prediction, y_true)
        return op.Mul(op.Mul(difference, difference), 0.2)


class Doubled(TransformerMixin, BaseEstimator):
    """A step of a user."""

    def fit(self, X, y=None):
        """Return self."""
        return self

    def transform(self, X):
        """Return twice X."""
        return 2 * X


def saved(estimator, tmp_path, **given):
    estimator.save(tmp_path / "e.onnxsgd")
    return onnxsgd.load(tmp_path / "e.onnxsgd", **given)


def settings(estimator):
    return {name: repr(value) for name, value in estimator.get_params(deep=False).items()}


def test_parameters_and_attributes_come_back(tmp_path):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    estimator = OnnxSGDClassifier(
        loss=losses.Focal(1.5),
        optimizer=optimizers.Adam(beta_1=0.8),
        learning_rate=schedules.WarmUp(schedules.InvScaling(0.01, 0.5), 5),
        penalty={"coef": penalties.Penalty(l1=0.01)},
        class_weight={0: 2.0, 1: 1.0},
        random_state=np.random.RandomState(4),
        average=True,
        max_iter=3,
        tol=None,
    ).fit(X, y)
    estimator.note = ("mine", {"a": np.float64(1.5)})
    again = saved(estimator, tmp_path)
    expected = settings(estimator)
    # generators are shown by their address
    del expected["random_state"]
    assert settings(again) | expected == settings(again)
    assert set(vars(again)) == set(vars(estimator)) - {"_start", "_record"}
    assert again.note == estimator.note
    np.testing.assert_array_equal(again.feature_names_in_, estimator.feature_names_in_)
    np.testing.assert_array_equal(again.fit(X, y).coef_, estimator.fit(X, y).coef_)


@pytest.mark.filterwarnings("ignore:Training did not lower")
def test_an_adapter_over_a_graph_comes_back(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    base = OnnxSGDRegressor(random_state=0).fit(X, y).to_onnx()
    estimator = OnnxSGDRegressor(base, adapter=LoRA(rank=1), max_iter=3, tol=None, random_state=0).fit(X, y)
    again = saved(estimator, tmp_path)
    np.testing.assert_array_equal(again.predict(X), estimator.predict(X))
    np.testing.assert_array_equal(again.partial_fit(X, y).predict(X), estimator.partial_fit(X, y).predict(X))


def test_trained_statistics_of_the_batch_come_back(tmp_path):
    onx = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N, 4] X) => (float[N, 1] Y)
        <float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0}, float[4] m = {0, 0, 0, 0},
         float[4] v = {1, 1, 1, 1}, float[4, 1] W = {1, -1, 1, 2}>
        { H = BatchNormalization(X, s, b, m, v)  Y = MatMul(H, W) }""")
    X, y = load_iris(return_X_y=True)
    estimator = OnnxSGDRegressor(onx, batch_norm="train", max_iter=2, tol=None, random_state=0).fit(X, y)
    again = saved(estimator, tmp_path)
    np.testing.assert_array_equal(again.get_weights()["m"], estimator.get_weights()["m"])
    np.testing.assert_array_equal(again.partial_fit(X, y).predict(X), estimator.partial_fit(X, y).predict(X))


def test_text_and_models_of_scikit_learn_come_back(tmp_path):
    pytest.importorskip("skops")
    texts, y = ["a good day", "a bad day", "good", "bad, very bad"] * 5, [1, 0, 1, 0] * 5
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y)
    estimator = OnnxSGDClassifier(model, random_state=0).fit(texts, y)
    again = saved(estimator, tmp_path)
    np.testing.assert_array_equal(again.predict_proba(texts), estimator.predict_proba(texts))
    # the graph belongs to the parameters of the model inside
    again.partial_fit(texts, y)


def test_requests_of_metadata_come_back(tmp_path):
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = (
            OnnxSGDRegressor().set_fit_request(sample_weight=True).set_score_request(sample_weight="w")
        )
        again = saved(estimator, tmp_path)
        for method in ("fit", "score", "partial_fit"):
            first, second = (getattr(e.get_metadata_routing(), method).requests for e in (estimator, again))
            assert first == second


def test_objects_of_a_user_are_given_again(tmp_path):
    X, y = load_diabetes(return_X_y=True)

    def pick(name):
        return name == "coef"

    estimator = OnnxSGDRegressor(loss=Fifth(), trainable=pick, random_state=0, max_iter=4, tol=None).fit(X, y)
    with pytest.raises(
        ParameterError, match=r"lacks loss, an object of .*Fifth and trainable, .*loss=\.\.\., trainable="
    ):
        saved(estimator, tmp_path)
    with pytest.raises(ParameterError, match=r"call load\(path, trainable="):
        saved(estimator, tmp_path, loss=Fifth())
    again = saved(estimator, tmp_path, loss=Fifth(), trainable=pick)
    np.testing.assert_array_equal(again.partial_fit(X, y).coef_, estimator.partial_fit(X, y).coef_)


def test_other_generators_of_numpy_are_refused(tmp_path):
    """Their state has another form, which a file that cannot be read would hold."""
    X, y = load_iris(return_X_y=True)
    learner = OnnxSGDClassifier(random_state=np.random.RandomState(np.random.PCG64(0)), max_iter=2, tol=None)
    with pytest.raises(ParameterError, match="give random_state a number"):
        learner.fit(X, y).save(tmp_path / "e")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ParameterError, match="give random_state a number"):
        learner.set_params(checkpoint=tmp_path / "folder").fit(X, y)


def test_parameters_that_the_file_holds_are_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"\['alpha'\] are no parameters that the file .* it lacks none"):
        saved(OnnxSGDRegressor(), tmp_path, alpha=1.0)


def test_a_model_of_scikit_learn_may_be_given(tmp_path):
    pytest.importorskip("skops")
    X, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    estimator = OnnxSGDClassifier(model, random_state=0).fit(X, y)
    assert saved(estimator, tmp_path, model=model).model is model


def test_types_that_are_not_safe_need_the_model(tmp_path):
    pytest.importorskip("skops")
    estimator = OnnxSGDClassifier(make_pipeline(Doubled(), LogisticRegression()))
    with pytest.raises(ParameterError, match=r"Doubled.*not known as safe.*load\(path, model="):
        saved(estimator, tmp_path)
    assert saved(estimator, tmp_path, model=LogisticRegression()).model.C == 1.0


def test_without_skops_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ImportError, match=r"pip install 'onnxsgd\[save\]'"):
        OnnxSGDClassifier(LogisticRegression()).save(tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


def test_classes_of_a_user_are_refused(tmp_path):
    class Mine(OnnxSGDRegressor):
        pass

    with pytest.raises(ParameterTypeError, match=r"not .*Mine: a file without code"):
        Mine().save(tmp_path / "e")


def test_attributes_that_no_file_holds_are_refused(tmp_path):
    estimator = OnnxSGDRegressor()
    estimator.note = object()
    with pytest.raises(ParameterError, match="attribute note cannot be saved"):
        estimator.save(tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


def test_changed_parameters_of_the_graph_are_refused(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    estimator = OnnxSGDRegressor().fit(X, y).set_params(dtype="float64")
    with pytest.raises(ParameterError, match="call fit, or set them back, before save"):
        estimator.save(tmp_path / "e")


def test_loading_starts_no_session(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    OnnxSGDRegressor().fit(X, y).save(tmp_path / "e")
    code = f"import sys, onnxsgd\nonnxsgd.load({str(tmp_path / 'e')!r})\nprint('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


# Files of others.


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Return the bytes of a file, and the length of its header."""
    X, y = load_diabetes(return_X_y=True)
    path = tmp_path_factory.mktemp("files") / "e"
    base = OnnxSGDRegressor(random_state=0).fit(X, y).to_onnx()
    OnnxSGDRegressor(base, random_state=0, loss=losses.Huber(0.5)).fit(X, y).save(path)
    written = path.read_bytes()
    return written, struct.unpack("<Q", written[:8])[0]


def is_refused(path, changed):
    """Load a file; only errors of the package are accepted."""
    path.write_bytes(changed)
    try:
        onnxsgd.load(path)
    except OnnxSGDError as error:
        message = str(error)
    else:
        return False
    assert len(message) < 1000
    return True


def test_damaged_bytes_are_refused(tmp_path, content):
    written, length = content
    draw = np.random.default_rng(0)
    for number in range(150):
        changed = bytearray(written)
        end = length + 8 if number % 2 else len(written)
        for place in draw.integers(0, end, draw.integers(1, 4)):
            changed[place] = draw.integers(0, 256)
        assert changed == written or is_refused(tmp_path / "f", bytes(changed))
    for size in (0, 7, 8, 100, length, len(written) - 1):
        assert is_refused(tmp_path / "f", written[:size])
    assert is_refused(tmp_path / "f", written + b"more")
    assert not is_refused(tmp_path / "f", written)


def mutations(tree):
    """Yield copies of a tree, each with one other value in it."""
    others = (None, -1, 1e300, "x", [], {}, [[]], {"array": "x"}, {"dict": [[1, 2]]}, 10**30, True)
    places = list(_places(tree, ()))
    draw = np.random.default_rng(1)
    for _ in range(250):
        changed = json.loads(json.dumps(tree))
        *way, last = places[draw.integers(len(places))]
        inner = changed
        for step in way:
            inner = inner[step]
        inner[last] = others[draw.integers(len(others))]
        yield changed


def _places(tree, way):
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*way, key)
        yield from _places(value, (*way, key))


@pytest.mark.parametrize("position", [2**31 - 1, -(2**31)])
def test_forged_generators_are_refused(tmp_path, content, position):
    """numpy would read the random numbers from memory outside of them, in the next call that trains."""
    written, length = content
    (tmp_path / "f").write_bytes(written)
    tree = json.loads(json.loads(written[8 : 8 + length])["__metadata__"]["onnxsgd"])
    tree["learned"]["random_state"][2] = position
    kept = {key: value for key, value in tree.items() if key not in ("format", "version")}
    write_file(tmp_path / "f", kept, safetensors.numpy.load(written))
    assert is_refused(tmp_path / "f", (tmp_path / "f").read_bytes())


@pytest.mark.parametrize(
    "words", [np.full(624, 0.5), np.full(624, 2**32), np.eye(1, 624, dtype=int)[0]], ids=range(3)
)
def test_generators_of_zeros_are_refused(words):
    """Their normal numbers are drawn without end: numpy keeps 32 bits of each word, and one of the first."""
    state = list(np.random.RandomState(0).get_state())
    with pytest.raises(ValueError, match="without its words"):
        restored([state[0], words, *state[2:]])
    assert restored(state).randint(100) == np.random.RandomState(0).randint(100)


def test_forged_generators_of_models_are_refused(tmp_path):
    model = MLPRegressor((2,), random_state=np.random.RandomState(0))
    OnnxSGDRegressor(model).save(tmp_path / "f")
    written = (tmp_path / "f").read_bytes()
    tree = json.loads(
        json.loads(written[8 : 8 + struct.unpack("<Q", written[:8])[0]])["__metadata__"]["onnxsgd"]
    )
    tensors = safetensors.numpy.load(written)
    changed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(tensors["parameters/model"].tobytes())) as old,
        zipfile.ZipFile(changed, "w") as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            assert name != "schema.json" or b'"content": "624"' in content
            new.writestr(name, content.replace(b'"content": "624"', b'"content": "2147483647"'))
    tensors["parameters/model"] = np.frombuffer(changed.getvalue(), np.uint8)
    write_file(tmp_path / "f", {k: v for k, v in tree.items() if k not in ("format", "version")}, tensors)
    with pytest.raises(ParameterError, match="position"):
        onnxsgd.load(tmp_path / "f")


def test_forged_values_raise_plain_errors(tmp_path, content):
    """A stranger may write any value under the right digest."""
    written, length = content
    (tmp_path / "f").write_bytes(written)
    tree = json.loads(json.loads(written[8 : 8 + length])["__metadata__"]["onnxsgd"])
    tensors = safetensors.numpy.load(written)
    X = load_diabetes(return_X_y=True)[0][:3]
    n_refused = 0
    for changed in mutations({key: value for key, value in tree.items() if key not in ("format", "version")}):
        write_file(tmp_path / "f", changed, tensors)
        if is_refused(tmp_path / "f", (tmp_path / "f").read_bytes()):
            n_refused += 1
            continue
        with suppress(OnnxSGDError, TypeError, ValueError, AttributeError, LookupError):
            onnxsgd.load(tmp_path / "f").predict(X)
    assert n_refused > 100


def test_a_forged_graph_is_checked_before_shapes_are_inferred(tmp_path, content, monkeypatch):
    """Inference of onnx ends the process on a LabelEncoder of an unknown type."""
    written, length = content
    tree = json.loads(json.loads(written[8 : 8 + length])["__metadata__"]["onnxsgd"])
    tensors = safetensors.numpy.load(written)
    name = tree["learned"]["model"]["bytes"]
    graph = onnx.load_from_string(decompressed(tensors[name].tobytes()))
    unknown = onnx.helper.make_node("Unknown", ["X"], ["u"], domain="com.microsoft")
    codes = {"keys_int64s": [1], "values_int64s": [2], "domain": "ai.onnx.ml"}
    graph.graph.node.extend([unknown, onnx.helper.make_node("LabelEncoder", ["u"], ["v"], **codes)])
    for domain, version in (("com.microsoft", 1), ("ai.onnx.ml", 3)):
        graph.opset_import.add(domain=domain, version=version)
    tensors[name] = np.frombuffer(graph.SerializeToString(), np.uint8)
    write_file(tmp_path / "f", {k: v for k, v in tree.items() if k not in ("format", "version")}, tensors)
    monkeypatch.setattr(saved_graphs, "_inferred", lambda proto: pytest.fail("inferred"))
    with pytest.raises(GraphError, match="LabelEncoder '' reads 'u', whose element type is unknown"):
        onnxsgd.load(tmp_path / "f")


#: Plain values under the right digest, by the way to them, that only a later call would stumble over.
FORGED = [
    (("attributes", "n_iter_"), "x"),
    (("attributes", "n_iter_"), 10**30),
    (("attributes", "_n_outputs"), None),
    (("attributes", "_score_shape"), -1),
    (("attributes", "_seed"), {"tuple": []}),
    (("attributes", "_y_is_vector"), "no"),
    (("attributes",), {}),
    (("learned", "t"), "x"),
    (("learned", "t"), -1),
    (("learned", "t"), 1e308),
    (("learned", "eta"), [0.1]),
    (("learned", "link"), []),
    (("learned", "linear", 0), "x"),
    (("learned", "linear"), "coef"),
    (("learned", "loss_curve"), ["x"]),
    (("learned", "learning_rates"), [None]),
    (("learned", "n_updates"), "x"),
    (("learned", "moments", 0, 1), []),
    (("learned", "moments", 0, 2), "x"),
    (("learned", "tensors", 1, 2), []),
    (("learned", "tensors", 1, 1), "average"),
]


@pytest.mark.parametrize(("way", "value"), FORGED, ids=[f"{way}={value}"[:40] for way, value in FORGED])
def test_values_of_other_types_are_refused_when_they_are_read(tmp_path, content, way, value):
    """They raised a TypeError, a KeyError or an IndexError in the call that used them."""
    written, length = content
    tree = json.loads(json.loads(written[8 : 8 + length])["__metadata__"]["onnxsgd"])
    place = tree
    for key in way[:-1]:
        place = place[key]
    place[way[-1]]  # the way exists
    place[way[-1]] = value
    kept = {key: part for key, part in tree.items() if key not in ("format", "version")}
    write_file(tmp_path / "f", kept, safetensors.numpy.load(written))
    with pytest.raises(DamagedFileError, match="no file of est.save, or a damaged one") as error:
        onnxsgd.load(tmp_path / "f")
    assert len(way) == 1 or str(way[1]) in str(error.value)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (5, [3, 2]),
        (5, [-1, 2]),
        (5, [2, 500]),
        (5, [1.0, 2.0]),
        (5, [[2, 3]]),
        (6, 10**12),
        (2, [0.0]),
        (6, None),
    ],
    ids=str,
)
def test_moments_of_columns_that_no_weight_has_are_refused(tmp_path, entry, value):
    X = sparse.csr_array(([1.0, 2.0], ([0, 1], [2, 3])), shape=(2, 500))
    OnnxSGDClassifier(random_state=0).partial_fit(X, [0, 1], classes=[0, 1]).save(tmp_path / "f")
    written = (tmp_path / "f").read_bytes()
    length = int.from_bytes(written[:8], "little")
    tree = json.loads(json.loads(written[8 : 8 + length])["__metadata__"]["onnxsgd"])
    tensors, moments = safetensors.numpy.load(written), tree["learned"]["moments"][0]
    assert len(moments) == 7
    if entry == 6:
        moments[entry] = value
    else:
        tensors[moments[entry]["array"]] = np.array(value)
    write_file(tmp_path / "g", {k: v for k, v in tree.items() if k not in ("format", "version")}, tensors)
    with pytest.raises(DamagedFileError, match="moments of 'X'"):
        onnxsgd.load(tmp_path / "g")


#: For each learned attribute a value of JSON that it cannot have.
WRONG = {
    "n_iter_": "1", "t_": 1.5, "n_features_in_": None, "engine_": 1, "feature_names_in_": "a", "coef_": [1.0],
    "intercept_": 0.0, "classes_": [0, 1], "_n_outputs": "1", "_score_shape": ("x",), "_row_shapes": {"X": 4},
    "_y_shape": [2], "_y_is_vector": 1, "_has_several_labels": None, "_set_before": {"coef": 1.0},
    "_seed": (), "_class_axis": "1", "_follows_lengths": "no", "_is_clone": 0, "_has_seen_data": [],
}  # fmt: skip


def test_every_typed_attribute_has_a_wrong_value():
    assert set(WRONG) == set(saving._TYPES)
    for name, value in WRONG.items():
        with pytest.raises(TypeError, match=f"^{name} is "):
            check_attributes({name: value}, saving._TYPES)
