"""Values as JSON and tensors."""

import io
import json
import warnings
import zipfile
from pathlib import PurePosixPath
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from onnxsgd import adapters, losses, optimizers, penalties, schedules
from onnxsgd.persistence import sklearn_objects
from onnxsgd.persistence.known_classes import class_of, name_of
from onnxsgd.persistence.value_tree import TreeReader, TreeWriter, UnknownValueError


def round_trip(value):
    writer = TreeWriter()
    tree = json.loads(json.dumps(writer.write(value, "value"), allow_nan=False))
    return TreeReader(writer.tensors).read(tree)


def same(first, second):
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and bool(
            np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")
        )
    if isinstance(first, list | tuple):
        return type(first) is type(second) and len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    return type(first) is type(second) and (first == second or (first != first and second != second))


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    hnp.arrays(
        st.sampled_from(["f8", "f4", "f2", "i8", "i1", "u2", "?", "U3"]),
        hnp.array_shapes(min_dims=0, min_side=0),
    ),
    st.floats(width=32).map(np.float32),
)  # fmt: skip
KEYS = st.one_of(st.text(), st.integers(), st.tuples(st.text(), st.integers()))


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_values_come_back_as_they_were(value):
    assert same(value, round_trip(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.arange(6.0).reshape(2, 3).T, np.arange(6.0).reshape(2, 3).T),
        (np.arange(3, dtype=">f4"), np.arange(3, dtype="f4")),
        (np.array(["a", 1, None], object), np.array(["a", 1, None], object)),
        (np.arange(10)[::3], np.array([0, 3, 6, 9])),
        (MappingProxyType({"a": (1,)}), {"a": (1,)}),
        (PurePosixPath("a/b.onnx"), "a/b.onnx"),
        (frozenset({3, 1}), frozenset({1, 3})),
        (range(1, 9, 2), range(1, 9, 2)),
    ],
)
def test_special_forms(value, expected):
    assert same(expected, round_trip(value))


def test_models_and_generators_come_back():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { y = Abs(x) }'
    )
    assert round_trip(model) == model
    generator = np.random.RandomState(3)
    generator.normal(size=3)
    np.testing.assert_array_equal(round_trip(generator).normal(size=5), generator.normal(size=5))


@pytest.mark.parametrize(
    "value",
    [
        losses.Huber(0.3),
        losses.CrossEntropy(label_smoothing=0.1),
        losses.Quantile([0.1, 0.9]),
        optimizers.Adam(amsgrad=True),
        penalties.Penalty(l1=0.2),
        schedules.WarmUp(schedules.InvScaling(0.1, 0.5), 10),
        adapters.LoRA(rank=3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_of_the_package_come_back(value):
    assert round_trip(value) == value


def test_every_public_class_with_parameters_has_a_name():
    for module in (adapters, losses, optimizers, penalties, schedules):
        found = [getattr(module, name) for name in module.__all__]
        settable = [cls for cls in found if isinstance(cls, type) and hasattr(cls, "get_params")]
        assert settable
        assert all(class_of(name_of(cls)) is cls for cls in settable)


@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_networks_of_scikit_learn_come_back(solver):
    pytest.importorskip("skops")
    X = np.arange(12.0).reshape(6, 2)
    model = MLPClassifier((3,), solver=solver, max_iter=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, X[:, 0] > 5)
    np.testing.assert_array_equal(round_trip(model).predict_proba(X), model.predict_proba(X))


def test_estimators_of_scikit_learn_come_back():
    pytest.importorskip("skops")
    scaler = StandardScaler().fit([[0.0], [2.0]])
    np.testing.assert_array_equal(round_trip(scaler).mean_, scaler.mean_)


class Own(losses.Loss):
    """A loss of a user."""

    def value(self, op, y_true, raw_prediction):
        """Return the loss."""
        return op.Sub(y_true, raw_prediction)


@pytest.mark.parametrize(
    "value",
    [
        Own(),
        lambda x: x,
        object(),
        1j,
        np.array([1j]),
        np.array(["2020"], "M8[D]"),
        np.longdouble(1),
        [{"a": len}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(value):
    with pytest.raises(UnknownValueError, match="of a kind that|no class of onnxsgd"):
        TreeWriter().write(value, "value")


def test_deep_values_are_refused():
    value = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(UnknownValueError, match="nested"):
        TreeWriter().write(value, "value")


@pytest.mark.parametrize(
    "tree",
    [
        {"object": {"class": "losses.os", "parameters": []}},
        {"object": {"class": "os.system", "parameters": [["command", "true"]]}},
        {"pickle": "value"},
        {"array": {"dtype": "O", "shape": [1 << 40], "values": []}},
        {"array": {"dtype": "<U1000000000", "shape": [1], "values": ["a"]}},
        {"array": {"dtype": "V8", "shape": [1], "values": ["a"]}},
        {"array": "missing"},
        {"range": [0, 1, 0]},
        {"generator": [1, 2]},
        {"float": [1]},
        {},
        {"tuple": [], "list": []},
    ],
    ids=str,
)
def test_trees_of_other_forms_raise_plain_errors(tree):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        TreeReader({}).read(tree)


@pytest.mark.parametrize("kind", ["array", "scalar", "bytes"])
def test_a_tensor_that_is_named_too_often_is_refused(kind):
    """A small file would take any memory."""
    reader = TreeReader({"large": np.zeros((), "u1") if kind == "scalar" else np.zeros(1 << 22, "u1")})
    assert len(reader.read([{kind: "large"}] * 10)) == 10
    reader = TreeReader({"large": np.zeros(1 << 22, "u1")})
    with pytest.raises(ValueError, match="name the same tensors too often, 'large'"):
        reader.read([{kind: "large"}] * 30)


def _archive(**parts):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return stream.getvalue()


def test_archives_that_unpack_to_too_many_bytes_are_refused():
    """So are archives in them, as those of sparse matrices are."""
    pytest.importorskip("skops.io")
    bomb = _archive(zeros=bytes(100 << 20))
    assert len(bomb) < 200_000
    for content in (bomb, _archive(inner=bomb), _archive(inner=_archive(deeper=bomb))):
        with pytest.raises(ValueError, match="unpack to too many bytes"):
            sklearn_objects.from_bytes(content)


@pytest.mark.parametrize("cut", [slice(0, 40), slice(0, 0), slice(30, None)], ids=str)
def test_damaged_archives_raise_plain_errors(cut):
    pytest.importorskip("skops.io")
    content = bytearray(sklearn_objects.to_bytes(StandardScaler()))
    with pytest.raises(ValueError, match="part of skops is damaged"):
        sklearn_objects.from_bytes(bytes(content[cut]) if cut.start == 0 else _broken(content))


def _broken(content):
    """Return an archive whose part has another checksum."""
    place = content.index(b"{")
    content[place + 20] ^= 1
    return bytes(content)
