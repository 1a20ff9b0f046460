"""The two executors of forward and backward passes: the choice, equal numbers, differences."""

import functools
import gc
import logging
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.capi import _pybind_state as native

from onnxsgd.engine.forward_backward.forward_backward import OrtGradientForwardBackward
from onnxsgd.engine.forward_backward.runtime_options import copy_options
from onnxsgd.exceptions import (
    EngineError,
    MissingRuntimeError,
    NotTrainableError,
    ParameterError,
    ParameterTypeError,
)
from onnxsgd.gradient.native import builder as orttraining

ENGINES = ["onnxruntime-training", "portable"]


@pytest.fixture
def one_thread():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


@pytest.fixture(params=ENGINES)
def build(request, one_thread):
    """Return the class under test, to be called without `engine`."""
    return functools.partial(OrtGradientForwardBackward, engine=request.param, sess_options=one_thread)


@pytest.fixture
def portable(one_thread):
    return functools.partial(OrtGradientForwardBackward, engine="portable", sess_options=one_thread)


def parse(text, **weights):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def normal(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def run(function, inputs, seeds):
    outputs = [value.numpy().copy() for value in function.forward(inputs, training=True)]
    return outputs, [value.numpy() for value in function.backward(seeds)]


LINEAR = "g (float[N, 4] X) => (float[N, 1] Y) { Y = MatMul(X, W) }"
ATAN = "g (float[N, 4] X) => (float[N, 1] Y) { A = Atan(X) Y = MatMul(A, W) }"


def linear(text=LINEAR):
    return parse(text, W=normal((4, 1))[0])


@pytest.mark.native
def test_auto_is_the_training_edition_where_it_can_differentiate_the_graph():
    assert OrtGradientForwardBackward(linear()).engine_ == "onnxruntime-training"
    assert OrtGradientForwardBackward(linear(ATAN)).engine_ == "portable"
    # nothing is differentiated before W: the operator may be any
    assert OrtGradientForwardBackward(linear(ATAN), input_names=[]).engine_ == "onnxruntime-training"
    with pytest.raises(NotTrainableError, match="Atan has no gradient in onnxruntime-training"):
        OrtGradientForwardBackward(linear(ATAN), engine="onnxruntime-training")


def test_auto_is_the_portable_engine_elsewhere(monkeypatch):
    monkeypatch.setattr(orttraining, "is_available", lambda: False)
    assert OrtGradientForwardBackward(linear()).engine_ == "portable"


def test_the_portable_engine_needs_nothing_of_the_training_edition(monkeypatch, portable):
    def refuse():
        raise MissingRuntimeError("asked for the training edition")

    for module in ("onnxsgd.gradient.native.builder", "onnxsgd.engine.forward_backward.executors"):
        monkeypatch.setattr(f"{module}.bindings", refuse)
    x, w, seed = normal((3, 4), (4, 1), (3, 1))
    owner = pickle.loads(pickle.dumps(portable(linear())))
    (y,), gradients = run(owner.new_instance(), [x, w], [seed])
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)
    np.testing.assert_allclose(gradients[1], x.T @ seed, rtol=1e-5)
    with pytest.raises(MissingRuntimeError, match="asked for the training edition"):
        OrtGradientForwardBackward(linear(), engine="onnxruntime-training")


def test_an_unknown_engine_is_refused_with_the_list():
    with pytest.raises(ParameterError, match=r"engine='torch'.*'auto', 'onnxruntime-training', 'portable'"):
        OrtGradientForwardBackward(linear(), engine="torch")


def test_the_engine_is_reported_and_pickled(portable, caplog):
    with caplog.at_level(logging.INFO, "onnxsgd"):
        owner = portable(linear(), enable_logging=True)
    assert "engine='portable'" in caplog.text
    assert pickle.loads(pickle.dumps(owner)).engine == "portable"


def test_options_that_this_edition_does_not_have_are_left_out():
    options = copy_options(onnxruntime.RunOptions, {"logid": "mine", "of_another_edition": True})
    assert options.logid == "mine"


#: A convolution, a normalization, maxima, an attention: their saved tensors differ most.
NETWORKS = {
    "convolution": (
        """g (float[N, 2, 6, 6] X) => (float[N, 3] Y) {
            A = Conv<pads=[1, 1, 1, 1]>(X, K, kb)
            B = Relu(A)
            C = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(B)
            D = Flatten(C)
            E = Gemm(D, W, wb)
            Y = LogSoftmax(E)
        }""",
        {"K": (4, 2, 3, 3), "kb": (4,), "W": (36, 3), "wb": (3,)},
        {"X": (5, 2, 6, 6)},
    ),
    "attention": (
        """g (float[N, 5, 4] X) => (float[N, 5, 4] Y, float[N, 5, 5] P) {
            Q = MatMul(X, WQ)
            K = MatMul(X, WK)
            T = Transpose<perm=[0, 2, 1]>(K)
            S = MatMul(Q, T)
            P = Softmax<axis=-1>(S)
            V = MatMul(P, X)
            Z = Add(V, X)
            Y = LayerNormalization(Z, G, H)
        }""",
        {"WQ": (4, 4), "WK": (4, 4), "G": (4,), "H": (4,)},
        {"X": (3, 5, 4)},
    ),
    "mixture": (
        """g (float[N, 4] X, float[N, 4] Z) => (float[N] Y, float[N, 2] M)
        <int64[1] last = {1}, int64[1] two = {2}> {
            A = LeakyRelu(X)
            B = Mul(A, U)
            C = Max(B, Z)
            M, I = TopK(C, two)
            D = Exp(C)
            E = Sqrt(D)
            F = Concat<axis=1>(E, M)
            Y = ReduceMean<keepdims=0>(F, last)
        }""",
        {"U": (4,)},
        {"X": (6, 4), "Z": (6, 4)},
    ),
}


@pytest.mark.native
@pytest.mark.parametrize("name", NETWORKS)
def test_both_engines_give_the_same_numbers(name, one_thread):
    text, shapes, data = NETWORKS[name]
    weights = dict(zip(shapes, normal(*shapes.values()), strict=True))
    model = parse(text, **weights)
    owners = [OrtGradientForwardBackward(model, sess_options=one_thread, engine=engine) for engine in ENGINES]
    assert [owner.engine_ for owner in owners] == ENGINES
    kinds = [owner.cls_type_ for owner in owners]
    assert kinds[0]._onx_inp == kinds[1]._onx_inp
    assert kinds[0]._onx_out == kinds[1]._onx_out
    inputs = [*normal(*data.values(), seed=1), *weights.values()]
    shapes_of_outputs = [value.shape() for value in owners[0].new_instance().forward(inputs)]
    seeds = normal(*shapes_of_outputs, seed=2)
    (outputs, gradients), (others, portables) = (run(o.new_instance(), inputs, seeds) for o in owners)
    for one, other in zip([*outputs, *gradients], [*others, *portables], strict=True):
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4 * np.abs(one).max())


def test_operators_that_only_the_portable_engine_differentiates(portable):
    model = parse(
        """g (float[N, 4] X, bool c) => (float[N, 4] Y) {
            A = Mul(X, W)
            B = If (c) <then_branch = a () => (float[N, 4] P) { P = Atan(A) },
                        else_branch = b () => (float[N, 4] Q) { Q = Sinh(A) }>
            Y = Mul(B, X)
        }""",
        W=np.ones(4, np.float32),
    )
    function = portable(model, ["W"]).new_instance()
    x, w, seed = normal((3, 4), (4,), (3, 4))
    for condition, value, slope in (
        (True, np.arctan, lambda a: 1 / (1 + a * a)),
        (False, np.sinh, np.cosh),
    ):
        (y,), (for_x, for_w) = run(function, [x, np.array(condition), w], [seed])
        a = (x * w).astype(np.float64)
        np.testing.assert_allclose(y, value(a) * x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(for_w, (seed * x * slope(a) * x).sum(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(for_x, seed * (value(a) + x * slope(a) * w), rtol=1e-4, atol=1e-5)


def test_sizes_that_an_exporter_wrote_as_minus_one_are_not_known(build):
    model = parse(
        "g (float[N, 4] X) => (float Y) { A = Mul(X, W) B = Tanh(A) Y = ReduceMean<keepdims=0>(B) }",
        W=np.ones(4, np.float32),
    )
    for name in "AB":
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, 1, [-1, 4]))
    function = build(model).new_instance()
    x, w = normal((3, 4), (4,))
    _, (_, gradient) = run(function, [x, w], [np.ones((), np.float32)])
    np.testing.assert_allclose(gradient, ((1 - np.tanh(x * w) ** 2) * x).sum(axis=0) / 12, rtol=1e-4)


def test_places_that_one_gather_reads_reach_the_backward_pass(portable):
    # an optimizer of the runtime fuses Range and Gather, although the graph returns the former
    text = """g (int64[N, L] T) => (float[L, 3] Y, int64[L] P) <int64 zero = {0}, int64 one = {1}> {
        S = Shape(T)
        L = Gather(S, one)
        P = Range(zero, L, one)
        Y = Gather(W, P)
    }"""
    weight, seed = normal((5, 3), (4, 3))
    function = portable(parse(text, W=weight)).new_instance()
    (y, places), (gradient,) = run(function, [np.zeros((2, 4), np.int64), weight], [seed])
    np.testing.assert_array_equal(y, weight[:4])
    np.testing.assert_array_equal(places, np.arange(4))
    np.testing.assert_array_equal(gradient, np.concatenate([seed, np.zeros((1, 3), np.float32)]))
    places = function.forward([np.zeros((2, 3), np.int64), weight])[1].numpy()
    np.testing.assert_array_equal(places, np.arange(3))


def test_outputs_that_are_inputs_are_copied(build):
    # without a copy, they would be read in the caller's array after it is freed
    model = parse(
        "g (float[N, 4] X) => (float[N, 1] Y, float[N, 4] X, float[4, 1] W, float[1] c) { Y = MatMul(X, W) }",
        W=np.ones((4, 1), np.float32),
        c=np.full(1, 5, np.float32),
    )
    function = build(model, ["W"]).new_instance()
    for training in (False, True):
        x, w = normal((10_000, 4), (4, 1))
        kept = x.copy()
        outputs = function.forward([x, w], training)
        x[:] = 7
        np.testing.assert_array_equal(outputs[1].numpy(), kept)
        np.testing.assert_array_equal(outputs[2].numpy(), w)
        np.testing.assert_array_equal(outputs[3].numpy(), [5])
    assert function._output_names == ["Y", "X", "W", "c"]


def test_gradients_do_not_share_memory_with_arguments(build):
    # the gradient of X is that of Y, of which the array belongs to the caller
    model = parse("g (float[N, 4] X) => (float[N, 4] Y) { Y = Add(X, W) }", W=np.ones(4, np.float32))
    function = build(model).new_instance()
    x, w, seed = normal((3, 4), (4,), (3, 4))
    kept = seed.copy()
    _, gradients = run(function, [x, w], [seed])
    seed[:] = 7
    np.testing.assert_array_equal(gradients[0], kept)


def test_a_gradient_is_taken_for_an_output_that_nothing_trained_leads_to(build):
    model = parse("g (float[N, 4] X) => (float[N, 1] Y, float[N, 4] Z) { Y = MatMul(X, W) Z = Neg(X) }",
                  W=np.ones((4, 1), np.float32))  # fmt: skip
    function = build(model, ["W"], input_names=[]).new_instance()
    x, w, y, z = normal((3, 4), (4, 1), (3, 1), (3, 4))
    (_, found), (gradient,) = run(function, [x, w], [y, z])
    np.testing.assert_array_equal(found, -x)
    np.testing.assert_allclose(gradient, x.T @ y, rtol=1e-5)


def test_caches_that_do_not_fit_are_refused_and_the_object_stays_usable(build):
    function = build(linear()).new_instance()
    x, w, seed = normal((3, 4), (4, 1), (3, 1))
    two = function.input_to_ort([x, w], function._devices)
    wrong_shape = function.input_to_ort([x], function._devices[:1])
    for training in (False, True):
        with pytest.raises(
            EngineError, match="forward_outputs_cache holds 2 tensors: it must be empty or hold 1"
        ):
            function.forward([x, w], training, two)
        with pytest.raises(
            ParameterTypeError, match="forward_outputs_cache must be an OrtValueVector, not list"
        ):
            function.forward([x, w], training, [])
        with pytest.raises(EngineError, match="onnxruntime cannot run"):
            function.forward([x, w], training, wrong_shape)
    assert function.states_ == []
    function.forward([x, w], True)
    with pytest.raises(EngineError, match="backward_outputs_cache holds 1 tensors"):
        function.backward([seed], wrong_shape)
    np.testing.assert_allclose(function.backward([seed])[1].numpy(), x.T @ seed, rtol=1e-5)


def test_many_outputs_go_into_the_memory_of_a_cache(build):
    text, shapes, _ = NETWORKS["attention"]
    weights = normal(*shapes.values())
    function = build(parse(text, **dict(zip(shapes, weights, strict=True)))).new_instance()
    first, second = normal((3, 5, 4), (3, 5, 4), seed=1)
    seeds = normal((3, 5, 4), (3, 5, 5), seed=2)
    expected = run(function, [second, *weights], seeds)
    outputs, gradients = native.OrtValueVector(), native.OrtValueVector()
    function.forward([first, *weights], True, outputs)
    function.backward(seeds, gradients)
    places = [value.data_ptr() for vector in (outputs, gradients) for value in vector]
    function.forward([second, *weights], True, outputs)
    function.backward(seeds, gradients)
    assert [value.data_ptr() for vector in (outputs, gradients) for value in vector] == places
    for found, wanted in zip((outputs, gradients), expected, strict=True):
        for value, array in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(value.numpy(), array)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_saved_tensors_are_freed_with_a_discarded_forward(build):
    v, w = normal((4, 64), (64, 1))
    text = "g (float[N, 4] X) => (float[N, 1] Y) { A = MatMul(X, V) B = Tanh(A) Y = MatMul(B, W) }"
    function = build(parse(text, V=v, W=w)).new_instance()
    (x,) = normal((2_000, 4))

    def forwards(count):
        for _ in range(count):
            function.forward([x, v, w], training=True)
        function.states_.clear()
        gc.collect()

    forwards(50)
    before = resident_bytes()
    for _ in range(10):
        forwards(50)
    # the saved tensors of 50 forwards take 25 MB, which the runtime reuses; those of 500 would take 250 MB
    assert resident_bytes() - before < 40e6


def test_run_options_apply_to_both_passes_of_the_portable_engine(portable):
    options = onnxruntime.RunOptions()
    function = portable(linear(), run_options=options).new_instance()
    x, w, seed = normal((3, 4), (4, 1), (3, 1))
    function.forward([x, w], True)
    options.terminate = True
    with pytest.raises(EngineError, match="terminate"):
        function.backward([seed])
    with pytest.raises(EngineError, match="terminate"):
        function.forward([x, w], True)
    assert function.states_ == []


def test_the_saved_halves_run_in_any_runtime(portable, tmp_path):
    files = portable(linear(ATAN)).new_instance().save_onnx_graph(tmp_path)
    x, w, seed = normal((3, 4), (4, 1), (3, 1))
    forward, backward = (
        onnxruntime.InferenceSession(files[name], providers=["CPUExecutionProvider"])
        for name in ("_forward_onnx", "_backward_onnx")
    )
    tensors = {"X": x, "W": w, "Y_grad": seed}
    for session in (forward, backward):
        taken = {value.name: tensors[value.name] for value in session.get_inputs()}
        tensors |= dict(
            zip([value.name for value in session.get_outputs()], session.run(None, taken), strict=True)
        )
    np.testing.assert_allclose(tensors["Y"], np.arctan(x) @ w, rtol=1e-5)
    np.testing.assert_allclose(tensors["W_grad"], np.arctan(x).T @ seed, rtol=1e-4)
    np.testing.assert_allclose(tensors["X_grad"], seed @ w.T / (1 + x * x), rtol=1e-4)
    for name in ("_forward_onnx", "_backward_onnx"):
        assert {entry.domain for entry in onnx.load(files[name]).opset_import} == {""}
