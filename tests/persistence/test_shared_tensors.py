"""A saved estimator holds the base of its adapters once."""

import pickle

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from sklearn.base import BaseEstimator

from onnxsgd import OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.shared_tensors import (
    _FORMS,
    held_tensors,
    restore_shared,
    take_shared,
    with_numbers,
)

RNG = np.random.default_rng(0)
BIG, SMALL = RNG.normal(size=(20, 20)).astype(np.float32), np.float32([1, 2])


def graph_of(**tensors):
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(a, n) for n, a in tensors.items()])
    return helper.make_model(graph)


def network():
    rng = np.random.default_rng(1)
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> g (float[N, 100] X) => (float[N, 1] Y)
        { H = MatMul(X, V) R = Tanh(H) Y = MatMul(R, W) }"""
    )
    for name, shape in (("V", (100, 300)), ("W", (300, 1))):
        array = rng.normal(size=shape).astype(np.float32) / 10
        graph.graph.initializer.append(numpy_helper.from_array(array, name))
    return graph


@pytest.mark.parametrize("given", [network(), network().SerializeToString()], ids=["proto", "bytes"])
def test_a_pickle_holds_the_base_once(given):
    graph, X = network(), RNG.normal(size=(60, 100)).astype(np.float32)
    model = OnnxSGDRegressor(given, adapter=LoRA(2), random_state=0, max_iter=2, tol=None)
    model.fit(X, X[:, 0])
    content = pickle.dumps(model)
    # the states of the optimizer are as large as the adapter
    assert len(content) < 1.3 * graph.ByteSize()
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.to_onnx() == model.to_onnx()
    np.testing.assert_array_equal(
        again.partial_fit(X, X[:, 0]).predict(X), model.partial_fit(X, X[:, 0]).predict(X)
    )


def test_a_model_that_changed_since_is_saved_beside_its_base():
    graph, X = network(), RNG.normal(size=(60, 100)).astype(np.float32)
    model = OnnxSGDRegressor(graph, adapter=LoRA(2), random_state=0, max_iter=2, tol=None).fit(X, X[:, 0])
    other = network()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((100, 300), np.float32), "V"))
    model.set_params(model=other)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_files_and_estimators_hold_none(tmp_path):
    onnx.save(network(), tmp_path / "network.onnx")
    assert held_tensors(tmp_path / "network.onnx") == held_tensors(None) == {}


@pytest.mark.parametrize("listed", [False, True])
def test_names_of_formats_1_and_2_are_those_of_the_graph(listed):
    base, proto = graph_of(a=BIG, b=SMALL), graph_of(a=BIG, b=SMALL)
    if listed:
        base.graph.initializer[0].CopyFrom(helper.make_tensor("a", 1, BIG.shape, BIG.ravel().tolist()))
    before = proto.SerializeToString()
    proto.graph.initializer[0].ClearField("raw_data")
    assert restore_shared(proto, ["a"], held_tensors(base)).SerializeToString() == before


class Holder(BaseEstimator):
    """An estimator of arrays; one is inside a list."""

    def __init__(self, a, b, c):
        self.a_, self.steps, self.names_ = a, [("first", Other(b, c))], np.array(["a"])


class Other(BaseEstimator):
    def __init__(self, b, c):
        self.b_, self.c_ = b, [c]


#: Lists, which JSON and skops have.
SHARED = [
    ["x", "a_", ""],
    ["y", "a_", "transposed"],
    ["z", "steps.0.1.b_", ""],
    ["v", "steps.0.1.c_.0", "inverse"],
]


def test_every_form_of_an_array_has_a_case():
    assert {form for _, _, form in SHARED} == set(_FORMS)


def test_arrays_of_an_estimator_are_taken_and_restored_in_their_forms():
    holder = Holder(BIG, BIG[0].repeat(20).astype(np.float64), 1 / BIG.astype(np.float64))
    held = held_tensors(holder)
    assert list(held) == ["a_", "steps.0.1.b_", "steps.0.1.c_.0"]
    proto = graph_of(x=BIG, y=BIG.T.copy(), z=BIG[0].repeat(20)[None], v=BIG + 1, w=SMALL)
    held["steps.0.1.c_.0"] = 1 / (BIG + 1).astype(np.float64)
    before = proto.SerializeToString()
    shared = take_shared(proto, held)
    assert shared == SHARED
    assert restore_shared(proto, shared, held).SerializeToString() == before
    for lacking in ({}, {"a_": BIG[:5]}):
        with pytest.raises(ParameterError, match=r"model has no array 'a_' of shape \[20, 20\], as it had"):
            restore_shared(proto, shared[:1], lacking)


class Trimmed(Holder):
    """An estimator whose pickles lack an array."""

    def __getstate__(self):
        return {**vars(self), "a_": None}


def test_a_class_may_leave_arrays_out_of_its_pickles():
    """They were taken from the graph too, and lost."""
    assert list(held_tensors(Other(BIG, Trimmed(BIG, BIG, BIG)))) == ["b_"]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.float16, [1.5, 65504, -65504]), (np.float32, [1.5, 1e6, -1e6]), (np.float64, [1.5, 1e6, -1e6])],
)
def test_numbers_take_the_type_of_the_graph(dtype, expected):
    """A forged graph of 64 bits was a warning of overflow."""
    proto = with_numbers(graph_of(w=np.zeros(3, dtype)), {"w": np.float32([1.5, 1e6, -1e6])})
    found = numpy_helper.to_array(proto.graph.initializer[0])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(expected, dtype))
