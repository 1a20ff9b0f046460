"""A saved estimator holds the base of its adapters once."""

import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxsgd import OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.persistence.shared_tensors import held_tensors, restore_shared, take_shared

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


def test_equal_tensors_are_taken_and_restored():
    held = held_tensors(graph_of(a=BIG, b=BIG, c=SMALL, d=BIG.T.copy()))
    proto = graph_of(a=BIG, b=BIG + 1, c=SMALL, d=BIG.astype(np.float64), e=BIG)
    before = proto.SerializeToString()
    assert take_shared(proto, held) == ["a"]
    assert len(proto.SerializeToString()) < len(before) - BIG.nbytes
    assert restore_shared(proto, ["a"], held).SerializeToString() == before


def test_numbers_in_other_fields_are_the_same():
    listed = helper.make_tensor("a", TensorProto.FLOAT, BIG.shape, BIG.ravel().tolist())
    held, proto = {"a": listed}, graph_of(a=BIG)
    before = proto.SerializeToString()
    assert take_shared(proto, held) == ["a"]
    assert restore_shared(proto, ["a"], held).SerializeToString() == before


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
