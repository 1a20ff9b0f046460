"""Graphs with large tensors: later fits take the structure of the first, and the numbers of each model."""

import gc
import weakref

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import GraphError
from onnxsgd.learner import model_source
from onnxsgd.learner.large_tensors import bytes_of_large, without_large
from onnxsgd.learner.model_source import read_source
from onnxsgd.runtime.cache import cache

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 70)).astype(np.float32)
Y = X[:, :2] @ np.array([[1.0, -1.0], [0.5, 2.0]], np.float32)


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch):
    """Take graphs above 20 kB for large ones: that of the tests has two weights of 17,920 bytes."""
    monkeypatch.setattr(model_source, "LARGEST_CACHED", 20_000)
    cache.clear()


def graph(seed=0, first=None, slope=0.1):
    """Return the graph of a network of 70-64-70-2, whose small tensors are those of all seeds."""
    rngs = {"a": np.random.default_rng(seed), "c": np.random.default_rng(0)}
    rngs |= {"b": rngs["a"], "i": rngs["c"]}
    sizes = {"a": (70, 64), "b": (64, 70), "c": (70, 2), "i": (2,)}
    arrays = {
        name: rngs[name].normal(scale=0.1, size=size).astype(np.float32) for name, size in sizes.items()
    }
    arrays["a"] = arrays["a"] if first is None else first
    nodes = [
        helper.make_node("MatMul", ["X", "a"], ["h"]),
        helper.make_node("LeakyRelu", ["h"], ["r"], alpha=slope),
        helper.make_node("MatMul", ["r", "b"], ["g"]),
        helper.make_node("Tanh", ["g"], ["t"]),
        helper.make_node("Gemm", ["t", "c", "i"], ["Y"]),
    ]
    floats = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", n]) for name, n in (("X", 70), ("Y", 2))
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    made = helper.make_graph(nodes, "network", floats[:1], floats[1:], initializers)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def estimator(model, **parameters):
    settings = {"learning_rate": "constant", "eta0": 0.01, "max_iter": 2, "tol": None, "random_state": 0}
    return OnnxSGDRegressor(model, **settings | parameters)


def fitted(model, **parameters):
    return estimator(model, **parameters).fit(X, Y)


def uses_template(model, **parameters):
    return fitted(model, **parameters)._learner.template is not None


def test_the_third_fit_of_a_structure_takes_the_template():
    models = [graph(), graph(seed=1), graph(seed=2)]
    assert [uses_template(model) for model in models] == [False, False, True]
    n_built = cache.n_built
    assert uses_template(graph(seed=3))
    # neither a graph nor a session
    assert cache.n_built == n_built


@pytest.mark.parametrize("parameters", [{}, {"learning_rate": "auto", "eta0": None}], ids=["named", "auto"])
@pytest.mark.parametrize("form", ["message", "bytes", "path"])
def test_fits_of_a_template_equal_those_of_another_process(form, parameters, tmp_path):
    def given():
        model = graph(seed=5)
        if form == "path":
            onnx.save(model, tmp_path / "model.onnx")
            return tmp_path / "model.onnx"
        return model if form == "message" else model.SerializeToString()

    expected = fitted(given(), **parameters)
    for _ in range(2):
        fitted(graph(seed=1), **parameters)
    found = fitted(given(), **parameters)
    assert expected._learner.template is None
    assert found._learner.template is not None
    assert found.to_onnx() == expected.to_onnx()
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    np.testing.assert_array_equal(found.loss_curve_, expected.loss_curve_)


def test_a_model_that_is_changed_in_place_is_read_again():
    model = graph()
    for _ in range(3):
        before = fitted(model).get_weights()["b"]
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "b")
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), "b"))
    after = fitted(model)
    assert after._learner.template is not None
    assert np.abs(after.get_weights()["b"]).sum() > 1.5 * np.abs(before).sum()


def test_everything_but_the_numbers_is_the_structure():
    for _ in range(3):
        fitted(graph())
    assert uses_template(graph(seed=1))
    assert not uses_template(graph(slope=0.2))
    assert not uses_template(graph(), trainable=["b"])
    small = graph()
    small.graph.initializer[3].CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "i"))
    assert not uses_template(small)


def test_numbers_that_decide_about_a_role_are_prepared_anew():
    for _ in range(3):
        fitted(graph())
    halves = np.where(RNG.random((70, 64)) < 0.5, 0.5, -0.5).astype(np.float32)
    assert not uses_template(graph(first=halves))
    missing = np.full((70, 64), np.nan, np.float32)
    assert read_source(graph(first=missing)).numbers
    assert np.isnan(OnnxSGDRegressor(graph(first=missing)).predict(X)).all()


def test_roles_of_other_constants_do_not_keep_numbers_from_a_template():
    """A graph with the fill value of a mask, which is recognised by its number."""

    def masked(seed):
        model = graph(seed)
        model.graph.node[1].input[0] = "masked"
        model.graph.node.insert(1, helper.make_node("Max", ["h", "fill"], ["masked"]))
        model.graph.initializer.append(numpy_helper.from_array(np.float32(-1e4), "fill"))
        return model

    assert [uses_template(masked(seed)) for seed in range(3)] == [False, False, True]


def test_frozen_large_tensors_stay_in_the_graph():
    for _ in range(3):
        frozen = fitted(graph(), trainable=["c", "i"])
    assert frozen._learner.template is None
    np.testing.assert_array_equal(frozen.to_onnx().graph.initializer[0].raw_data, _raw(graph(), "a"))


def _raw(model, name):
    return next(tensor.raw_data for tensor in model.graph.initializer if tensor.name == name)


@pytest.mark.parametrize("raw", [b"", b"\0" * 100], ids=["none", "too few"])
def test_tensors_of_another_size_than_declared_are_refused(raw):
    for _ in range(3):
        fitted(graph())
    model = graph()
    model.graph.initializer[0].raw_data = raw
    with pytest.raises(GraphError):
        fitted(model)


def test_the_structure_has_all_fields_of_a_model_but_large_numbers():
    model = graph()
    model.doc_string, model.producer_name = "a document", "a test"
    model.metadata_props.add(key="k", value="v")
    bare, numbers = without_large(model)
    assert list(numbers) == ["a", "b"]
    assert bytes_of_large(model) == sum(array.nbytes for array in numbers.values())
    for tensor in bare.graph.initializer:
        if tensor.name in numbers:
            assert not tensor.HasField("raw_data")
            tensor.raw_data = numbers[tensor.name].tobytes()
    assert bare == model


def test_the_cache_holds_no_large_numbers():
    references = []
    for seed in range(3):
        first = fitted(graph(seed=seed))
        references += [weakref.ref(first._learner)]
        numbers = read_source(graph(seed=seed)).numbers
        references += [weakref.ref(array) for array in numbers.values()]
    del first, numbers
    gc.collect()
    assert not any(reference() is not None for reference in references)


def test_a_fit_frees_the_weights_of_the_fit_before_at_once():
    """A collection of cycles may come many fits later."""
    model = estimator(graph())
    for _ in range(3):
        model.fit(X, Y)
    gc.collect()
    gc.disable()
    try:
        before = weakref.ref(model._state), weakref.ref(model._learner)
        model.fit(X, Y)
        assert [reference() for reference in before] == [None, None]
    finally:
        gc.enable()
