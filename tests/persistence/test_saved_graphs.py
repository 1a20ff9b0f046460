"""Graphs of a learner in its saved form, in the same process and in another one."""

import pickle

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.graph.model import to_proto
from onnxsgd.persistence import packed_graphs, saved_graphs
from onnxsgd.persistence.compression import decompressed
from onnxsgd.persistence.saved_form import pack, unpack
from onnxsgd.persistence.saved_graphs import Base, Graphs
from onnxsgd.runtime.cache import cache

QUICK = MLPClassifier((8,), tol=10.0, n_iter_no_change=2, random_state=0)


def regressor(**more):
    return OnnxSGDRegressor(max_iter=5, tol=None, random_state=0, **more)


def parts_of(estimator):
    return estimator._learner, estimator._state


def network(seed, dtype=np.float16):
    """Return a network of two layers."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).name
    graph = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g ({kind}[N, 10] X) => ({kind}[N, 1] Y)
        {{ H = MatMul(X, V) R = Tanh(H) Y = MatMul(R, W) }}""".replace("float32", "float")
    )
    for name, shape in (("V", (10, 40)), ("W", (40, 1))):
        array = rng.normal(size=shape).astype(dtype) / 4
        graph.graph.initializer.append(numpy_helper.from_array(array, name))
    return graph


@pytest.mark.parametrize("parameters", [{}, {"trainable": ["W"]}, {"adapter": LoRA(2)}], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_frozen_tensors_are_those_of_the_model(diabetes, dtype, parameters):
    """Also where training computes in another type: reading their numbers was a KeyError."""
    X, y = diabetes
    learners = [regressor(model=network(seed, dtype), **parameters).fit(X, y) for seed in (0, 1)]
    content = [pickle.dumps(learner) for learner in learners]
    for is_new_process in (False, True):
        if is_new_process:
            cache.clear()
        for learner, restored in zip(learners, map(pickle.loads, content), strict=True):
            np.testing.assert_array_equal(restored.predict(X), learner.predict(X))
            assert restored.to_onnx() == learner.to_onnx()
    np.testing.assert_array_equal(
        restored.partial_fit(X, y).predict(X), learners[1].partial_fit(X, y).predict(X)
    )


def test_nodes_of_a_parsed_graph_are_references(diabetes):
    """The parser of onnx, and others, write an empty domain, which onnx_ir leaves out."""
    model = network(0, np.float32)
    assert all(node.HasField("domain") for node in model.graph.node)
    learner = regressor(model=model).fit(*diabetes)
    graph = onnx.load_from_string(decompressed(pack(*parts_of(learner), model=model)["model"])).graph
    assert {node.op_type for node in graph.node} == {""}
    content = pickle.dumps(learner)
    n_built = cache.n_built
    restored = pickle.loads(content)
    # the graph is found in the cache
    assert cache.n_built == n_built
    assert restored.to_onnx() == learner.to_onnx()


def test_the_exported_graph_is_the_same_in_another_process(diabetes):
    """Field by field: constants that a file lists as numbers came back as bytes."""
    model = network(0, np.float32)
    model.graph.node[-1].output[0] = "Z"
    model.graph.node.append(onnx.helper.make_node("Mul", ["Z", "two"], ["Y"]))
    two = onnx.helper.make_tensor("two", onnx.TensorProto.FLOAT, [], [2.0])
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["two"], value=two))
    learner = regressor(model=model).fit(*diabetes)
    content = pickle.dumps(learner)
    cache.clear()
    assert pickle.loads(content).to_onnx() == learner.to_onnx()


def test_a_graph_that_changed_since_is_refused(diabetes):
    """Its nodes are written in the file as differences."""
    X, y = diabetes
    learner = regressor(model=network(0)).fit(X, y)
    saved = pack(*parts_of(learner), model=learner.model)
    for model in (None, parse_model('<ir_version: 8, opset_import: ["" : 18]> g (float[N] X) => () {}')):
        with pytest.raises(ParameterError, match="model has no unused entry 0, which the saved estimator"):
            unpack(saved, model)


def test_a_model_that_was_set_to_no_graph_holds_none(diabetes):
    """Pickling was an error of protobuf."""
    X, y = diabetes
    learner = regressor(model=network(0)).fit(X, y).set_params(model=b"no graph")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(learner)).predict(X), learner.predict(X))


def test_large_graphs_are_not_compressed(iris, monkeypatch):
    learner, state = parts_of(OnnxSGDClassifier(QUICK, max_iter=2, tol=None).fit(*iris))
    small = pack(learner, state)
    monkeypatch.setattr(packed_graphs, "LARGEST", 10)
    saved = pack(learner, state)
    for name in ("model", "score_model"):
        assert saved[name] == decompressed(small[name])
    for name, array in state.weights().items():
        np.testing.assert_array_equal(unpack(saved)[0].initial(name), array)


def test_sizes_of_a_graph_are_checked_before_it_is_read(iris, monkeypatch):
    X, y = iris
    saved = pack(*parts_of(OnnxSGDClassifier(max_iter=2, tol=None, random_state=0).fit(X, y)))
    graph = onnx.load_from_string(decompressed(saved["model"]))
    graph.graph.initializer.add(name="huge", data_type=1, dims=[2**31, 2**31])
    monkeypatch.setattr("onnxsgd.persistence.saved_graphs.to_ir", lambda model: pytest.fail("read"))
    with pytest.raises(GraphError, match="huge"):
        unpack({**saved, "model": graph.SerializeToString()})
    graph.graph.initializer[-1].CopyFrom(onnx.TensorProto(name="far", data_type=1, dims=[1], data_location=1))
    graph.graph.initializer[-1].external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(GraphError, match="far"):
        unpack({**saved, "model": graph.SerializeToString()})


@pytest.mark.parametrize("is_graph", [True, False])
def test_shapes_are_left_out_where_inference_gives_them(diabetes, is_graph):
    X, y = diabetes
    model = network(0, np.float32) if is_graph else None
    learner = regressor(model=model).fit(X, y)._learner
    graphs = Graphs.of(learner, learner.learned)
    assert not graphs.whole.graph.value_info
    whole, score = graphs.models({name: learner.initial(name) for name in learner.learned}, check=False)
    assert to_proto(whole) == to_proto(learner.model)
    assert to_proto(score) == to_proto(learner.score_model)


def test_shapes_that_inference_does_not_give_are_kept(diabetes, monkeypatch):
    X, y = diabetes
    learner = regressor(model=network(0, np.float32)).fit(X, y)._learner
    monkeypatch.setattr(saved_graphs.ShapeInferencePass, "_infer", lambda self, model: None)
    cache.clear()
    graphs = Graphs.of(learner, learner.learned)
    # those of weights are in the weights
    assert [entry.name for entry in graphs.whole.graph.value_info] == ["H", "R"]
    whole, _ = graphs.models({name: learner.initial(name) for name in learner.learned}, check=False)
    assert to_proto(whole) == to_proto(learner.model)


def test_marks_of_frozen_tensors_are_kept():
    X, y = np.eye(4), np.arange(4) % 2
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    learner = OnnxSGDClassifier(pipeline, max_iter=2, tol=None).fit(X, y)._learner
    graphs = Graphs.of(learner, learner.learned)
    marks = {entry.name: entry.metadata_props[0].value for entry in graphs.whole.graph.value_info[:2]}
    assert marks == {"offset": "constant of a scaler", "scale": "constant of a scaler"}


def test_a_graph_of_scores_is_a_difference_from_the_whole(iris):
    learner = OnnxSGDClassifier(QUICK, max_iter=2, tol=None).fit(*iris)._learner
    saved = Graphs.of(learner, learner.learned).saved(Base.of(None))
    score = onnx.load_from_string(decompressed(saved["score_model"]))
    assert {node.op_type for node in score.graph.node} == {""}
