"""OrtGradientForwardBackward: numbers, kinds of tensors, stacks of forwards, threads, pickles, refusals."""

import functools
import gc
import io
import logging
import pickle
import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import _pybind_state as native

from onnxsgd import random_feed
from onnxsgd.engine.forward_backward.forward_backward import (
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardFunction,
)
from onnxsgd.exceptions import (
    EngineError,
    NotTrainableError,
    ParameterError,
    ParameterTypeError,
    UnsupportedError,
)

LINEAR = """<ir_version: 9, opset_import: ["": 18]>
g (float[N, 4] X) => (float[N, 1] variable) <float[4, 1] coef = {1, 2, 3, 4}, float[1] intercept = {5}> {
    multiplied = MatMul(X, coef)
    variable = Add(multiplied, intercept)
}"""

#: Two inputs, four weights, two floating-point outputs and one of integers; W is frozen in some tests.
NETWORK = """<ir_version: 9, opset_import: ["": 18]>
g (float[N, 4] X, float[N, 3] Z) => (float[N, 3] P, int64[N] L, float[N, 5] H) {
    A = Gemm(X, W, b)
    H = Tanh(A)
    B = MatMul(H, V)
    D = Add(B, Z)
    E = Mul(D, scale)
    P = Softmax(E)
    L = ArgMax<axis=1, keepdims=0>(E)
}"""
ATAN = """<ir_version: 9, opset_import: ["": 18]>
g (float[N, 2] X) => (float[N, 2] Y) <float[2] V = {1, 2}, float[2] W = {1, 2}> {
    A = Mul(X, V)
    B = Atan(A)
    Y = Mul(B, W)
}"""

SHAPES = {"W": (4, 5), "b": (5,), "V": (5, 3), "scale": (3,)}


@pytest.fixture
def linear():
    return onnx.parser.parse_model(LINEAR)


@pytest.fixture
def network():
    model = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.fixture(params=["onnxruntime-training", "portable"])
def build(request):
    """Return the class under test, to be called without `engine`."""
    return functools.partial(OrtGradientForwardBackward, engine=request.param)


@pytest.fixture
def one_thread():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def values_of(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def run(function, inputs, seeds):
    outputs = [value.numpy() for value in function.forward(inputs, training=True)]
    return outputs, [value.numpy() for value in function.backward(seeds)]


def reference(model, feeds, seeds, wrt, step=1e-6):
    """Outputs, and gradients by central differences, in float64, of a graph in numpy."""

    def forward(at):
        return ReferenceEvaluator(copy).run(None, at)

    def total(at):
        pairs = zip(forward(at), seeds, strict=True)
        return sum((output * seed).sum() for output, seed in pairs if seed is not None)

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    at = {name: value.astype(np.float64) for name, value in {**values_of(model), **feeds}.items()}
    del copy.graph.initializer[:]
    gradients = []
    for name in wrt:
        gradient = np.zeros(at[name].shape)
        for index in np.ndindex(gradient.shape):
            high, low = at[name].copy(), at[name].copy()
            high[index] += step
            low[index] -= step
            gradient[index] = (total({**at, name: high}) - total({**at, name: low})) / (2 * step)
        gradients.append(gradient)
    return forward(at), gradients


def test_the_class_has_the_documented_attributes(build, linear):
    kind = build(linear, debug=True).cls_type_
    assert issubclass(kind, OrtGradientForwardBackwardFunction)
    assert kind._input_names == ["X"]
    assert kind._output_names == ["variable"]
    assert kind._weights_to_train == ["coef", "intercept"]
    assert kind._grad_input_names == kind._onx_inp == ["X", "coef", "intercept"]
    assert kind._bw_fetches_names == kind._onx_out == ["X_grad", "coef_grad", "intercept_grad"]
    assert [value.name for value in kind._sess.get_inputs()] == ["X", "coef", "intercept"]
    assert [value.name for value in kind._sess_eval.get_inputs()] == ["X", "coef", "intercept"]
    assert isinstance(kind._run_options, native.RunOptions)
    assert kind._debug is True
    assert kind._logger is None
    devices = (
        kind._devices,
        kind._fw_outputs_device_info,
        kind._bw_outputs_device_info,
        kind._fw_no_grad_output_device_info,
    )
    assert [len(found) for found in devices] == [3, 1, 3, 1]
    assert {kind.device_name(device) for found in devices for device in found} == {"Cpu"}
    assert "YieldOp" in [node.op_type for node in kind._trained_onnx.graph.node]
    assert [value.name for value in kind._optimized_pre_grad_model.graph.output] == ["variable"]


@pytest.mark.native
def test_the_class_has_the_objects_of_the_training_edition(linear):
    kind = OrtGradientForwardBackward(linear, engine="onnxruntime-training").cls_type_
    assert isinstance(kind._training_agent, native.TrainingAgent)
    assert isinstance(kind._cache, native.OrtValueCache)
    assert isinstance(kind._graph_builder, native.OrtModuleGraphBuilder)
    assert kind._graph_info.user_output_names == ["multiplied", "variable"]


def test_the_class_has_none_of_them_with_the_portable_engine(linear):
    kind = OrtGradientForwardBackward(linear, engine="portable").cls_type_
    assert (kind._training_agent, kind._cache, kind._graph_builder, kind._graph_info) == (None,) * 4


def test_the_evaluation_session_takes_the_weights(build, linear):
    x, coef, intercept = arrays((3, 4), (4, 1), (1,))
    session = build(linear).cls_type_._sess_eval
    (found,) = session.run(None, {"X": x, "coef": coef, "intercept": intercept})
    np.testing.assert_allclose(found, x @ coef + intercept, rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "OrtValue", "onnxruntime.OrtValue", "OrtValueVector"])
def test_inputs_of_each_kind(build, kind, training, linear):
    function = build(linear, debug=True).new_instance()
    given = arrays((3, 4), (4, 1), (1,))
    device = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
    make = {
        "numpy": list,
        "OrtValue": lambda values: [native.OrtValue.ortvalue_from_numpy(v, device) for v in values],
        "onnxruntime.OrtValue": lambda values: [onnxruntime.OrtValue.ortvalue_from_numpy(v) for v in values],
        "OrtValueVector": lambda values: function.input_to_ort(values, [device] * len(values)),
    }[kind]
    outputs = function.forward(make(given), training=training)
    assert isinstance(outputs, native.OrtValueVector)
    x, coef, intercept = given
    np.testing.assert_allclose(outputs[0].numpy(), x @ coef + intercept, rtol=1e-5)
    if training:
        (seed,) = arrays((3, 1), seed=1)
        gradients = function.backward(make([seed]))
        assert isinstance(gradients, native.OrtValueVector)
        for found, expected in zip(gradients, (seed @ coef.T, x.T @ seed, seed.sum(axis=0)), strict=True):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "weights", [["W", "b", "V", "scale"], ["scale", "V", "b", "W"], ["V"], ["b", "scale"]], ids="-".join
)
def test_weights_in_any_order_and_any_number(build, weights, network, one_thread):
    x, z, p, h = arrays((6, 4), (6, 3), (6, 3), (6, 5), seed=4)
    function = build(network, weights, sess_options=one_thread).new_instance()
    outputs, gradients = run(function, [x, z, *(values_of(network)[name] for name in weights)], [p, h])
    names = ["X", "Z", *weights]
    expected, differences = reference(network, {"X": x, "Z": z}, [p, None, h], names)
    assert function._onx_out == [f"{name}_grad" for name in names]
    for found, value in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
    for found, value in zip(gradients, differences, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)


def test_chosen_inputs_and_outputs(build, network, one_thread):
    function = build(
        network, ["W"], input_names=["Z"], output_names=["H", "P"], sess_options=one_thread
    ).new_instance()
    assert function._output_names == ["H", "P"]
    assert function._onx_out == ["Z_grad", "W_grad"]
    x, z, p, h = arrays((6, 4), (6, 3), (6, 3), (6, 5), seed=4)
    outputs, gradients = run(function, [x, z, values_of(network)["W"]], [h, p])
    expected, differences = reference(network, {"X": x, "Z": z}, [p, None, h], ["Z", "W"])
    np.testing.assert_allclose(outputs[0], expected[2], rtol=1e-5, atol=1e-6)
    for found, value in zip(gradients, differences, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)


def test_float64(build, one_thread):
    model = onnx.parser.parse_model(LINEAR.replace("float", "double"))
    function = build(model, sess_options=one_thread).new_instance()
    x, coef, intercept, seed = (a.astype(np.float64) for a in arrays((3, 4), (4, 1), (1,), (3, 1)))
    _, gradients = run(function, [x, coef, intercept], [seed])
    np.testing.assert_allclose(gradients[1], x.T @ seed, rtol=1e-14)


def test_batches_of_different_sizes(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    for rows in (5, 1, 8, 5):
        x, coef, intercept, seed = arrays((rows, 4), (4, 1), (1,), (rows, 1), seed=rows)
        _, gradients = run(function, [x, coef, intercept], [seed])
        np.testing.assert_allclose(gradients[1], x.T @ seed, rtol=1e-4, atol=1e-5)


def test_forwards_that_wait_form_a_stack(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    _, coef, intercept = arrays((1, 4), (4, 1), (1,))
    batches = [arrays((rows, 4), (rows, 1), seed=rows) for rows in (2, 3, 4)]
    for x, _ in batches:
        function.forward([x, coef, intercept], training=True)
    # a forward without training does not disturb them
    function.forward([batches[0][0], coef, intercept])
    assert len(function.states_) == 3
    for x, seed in reversed(batches):
        gradients = function.backward([seed])
        np.testing.assert_allclose(gradients[1].numpy(), x.T @ seed, rtol=1e-4, atol=1e-5)
    assert function.states_ == []


def test_arrays_are_kept_for_as_long_as_they_are_read(build, one_thread):
    # the runtime borrows the memory of arrays; temporary ones would be overwritten before backward
    model = onnx.parser.parse_model(LINEAR.replace("4", "4000"))
    del model.graph.initializer[0]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((4000, 1), np.float32), "coef"))
    function = build(model, ["coef", "intercept"], sess_options=one_thread).new_instance()
    function.forward([np.full((50, 4000), 2.0, np.float32), np.ones((4000, 1), np.float32),
                      np.ones(1, np.float32)], training=True)  # fmt: skip
    gc.collect()
    waste = [np.full((50, 4000), 7.0, np.float32) for _ in range(20)]
    gradients = function.backward([np.ones((50, 1), np.float32)])
    assert len(waste) == 20
    np.testing.assert_array_equal(gradients[1].numpy(), np.full((4000, 1), 100.0))
    np.testing.assert_array_equal(gradients[0].numpy(), np.ones((50, 4000)))


def test_arrays_that_are_not_contiguous_are_read_right(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    wide, coef, intercept, seed = arrays((6, 8), (1, 4), (1,), (2, 3))
    x = wide[::2, ::2]
    _, gradients = run(function, [x, coef.T, intercept], [seed.T[:, :1]])
    np.testing.assert_allclose(gradients[1], x.T @ seed.T[:, :1], rtol=1e-4, atol=1e-5)


def test_a_gradient_with_as_many_elements_is_read_in_the_shape_of_its_output(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    x, coef, intercept, seed = arrays((3, 4), (4, 1), (1,), (3, 1))
    expected = run(function, [x, coef, intercept], [seed])[1]
    for given in ([seed.ravel()], [seed.T], function.input_to_ort([seed.T], function._grad_devices)):
        for found, value in zip(run(function, [x, coef, intercept], given)[1], expected, strict=True):
            np.testing.assert_array_equal(found, value)


def test_outputs_survive_the_backward_pass(build, network, one_thread):
    # by default the runtime reuses their memory for gradients
    function = build(network, sess_options=one_thread).new_instance()
    x, z, p, h = arrays((6, 4), (6, 3), (6, 3), (6, 5))
    outputs = function.forward([x, z, *values_of(network).values()], training=True)
    before = [value.numpy().copy() for value in outputs]
    function.backward([p, h])
    for value, kept in zip(outputs, before, strict=True):
        np.testing.assert_array_equal(value.numpy(), kept)


def test_caches_receive_the_results(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    x, coef, intercept, seed = arrays((3, 4), (4, 1), (1,), (3, 1))
    for training in (False, True):
        outputs = native.OrtValueVector()
        assert function.forward([x, coef, intercept], training, outputs) is outputs
        address = outputs[0].data_ptr()
        np.testing.assert_allclose(outputs[0].numpy(), x @ coef + intercept, rtol=1e-5)
    gradients = native.OrtValueVector()
    assert function.backward([seed], gradients) is gradients
    places = [value.data_ptr() for value in gradients]
    # a second time, the same memory is written
    function.forward([2 * x, coef, intercept], True, outputs)
    function.backward([seed], gradients)
    assert outputs[0].data_ptr() == address
    assert [value.data_ptr() for value in gradients] == places
    np.testing.assert_allclose(gradients[1].numpy(), 2 * x.T @ seed, rtol=1e-4, atol=1e-5)


def test_a_cache_that_is_still_read_is_refused(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    given, outputs = arrays((3, 4), (4, 1), (1,)), native.OrtValueVector()
    function.forward(given, True, outputs)
    with pytest.raises(ParameterError, match="waits for its backward"):
        function.forward(given, True, outputs)


def test_saved_tensors(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    given = arrays((3, 4), (4, 1), (1,))
    with pytest.raises(RuntimeError, match="No tensors are saved"):
        _ = function.saved_tensors
    function.forward(given)
    with pytest.raises(EngineError):
        _ = function.saved_tensors
    function.forward(given, training=True)
    for saved, array in zip(function.saved_tensors, given, strict=True):
        np.testing.assert_array_equal(saved.numpy(), array)
    function.save_for_backward(["anything"])
    assert function.saved_tensors == ["anything"]


def test_operators_are_rewritten_and_frozen_parts_may_hold_anything(build, one_thread):
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
    g (float[N, 3] X, bool c) => (float[N, 3] Y) <float[3] W = {1, 2, 3}> {
        F = If (c) <then_branch = a () => (float[N, 3] A) { A = Neg(X) },
                    else_branch = b () => (float[N, 3] B) { B = Abs(X) }>
        S = Mul(F, W)
        Y = Softplus(S)
    }""")
    forward_backward = build(model, ["W"], input_names=[], sess_options=one_thread)
    x, seed = arrays((4, 3), (4, 3))
    w = np.array([1, 2, 3], np.float32)
    for condition, frozen in ((True, -x), (False, np.abs(x))):
        outputs, (gradient,) = run(forward_backward.new_instance(), [x, np.array(condition), w], [seed])
        np.testing.assert_allclose(outputs[0], np.log1p(np.exp(frozen * w)), rtol=1e-5)
        np.testing.assert_allclose(
            gradient, (seed * frozen / (1 + np.exp(-frozen * w))).sum(axis=0), rtol=1e-4
        )


def test_an_ir_version_that_the_runtime_does_not_read_is_lowered(build, linear, one_thread):
    linear.ir_version = 12
    function = build(linear, sess_options=one_thread).new_instance()
    assert linear.ir_version == 12
    assert function._trained_onnx.ir_version == 10


def test_threads_with_an_instance_each(build, network, one_thread):
    forward_backward = build(network, sess_options=one_thread)
    weights = list(values_of(network).values())
    jobs = [arrays((rows, 4), (rows, 3), (rows, 3), (rows, 5), seed=rows) for rows in (2, 3, 5, 7)]

    def work(job, results, index):
        x, z, p, h = job
        function = forward_backward.new_instance()
        results[index] = [run(function, [x, z, *weights], [p, h]) for _ in range(50)]

    expected: list = [None] * 4
    for index, job in enumerate(jobs):
        work(job, expected, index)
    results: list = [None] * 4
    threads = [threading.Thread(target=work, args=(job, results, index)) for index, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found, wanted in zip(results, expected, strict=True):
        for (outputs, gradients), (outputs_wanted, gradients_wanted) in zip(found, wanted, strict=True):
            for one, other in zip(outputs + gradients, outputs_wanted + gradients_wanted, strict=True):
                np.testing.assert_array_equal(one, other)


def test_pickle_gives_a_working_object(build, network, one_thread):
    run_options = native.RunOptions()
    run_options.logid = "mine"
    original = build(
        network, ["scale", "W"], ["Z"], ["P"], "Mine", one_thread, ["CPUExecutionProvider"], [{}],
        run_options, None, 0, False, True,
    )  # fmt: skip
    stream = io.BytesIO()
    pickle.dump(original, stream)
    restored = pickle.loads(stream.getvalue())
    assert restored.cls_type_.__name__ == "Mine"
    assert restored.cls_type_._onx_inp == ["X", "Z", "scale", "W"]
    assert restored.cls_type_._onx_out == ["Z_grad", "scale_grad", "W_grad"]
    assert restored.sess_options.intra_op_num_threads == 1
    assert restored.cls_type_._run_options.logid == "mine"
    assert restored.cls_type_._debug is True
    x, z, p = arrays((6, 4), (6, 3), (6, 3))
    given = [x, z, values_of(network)["scale"], values_of(network)["W"]]
    found, wanted = (run(owner.new_instance(), given, [p]) for owner in (restored, original))
    for one, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_initializers_can_be_read(build, linear):
    forward_backward = build(linear)
    np.testing.assert_array_equal(forward_backward.get_initializer("intercept"), [5.0])
    assert forward_backward.get_initializer("none", exc=False) is None
    with pytest.raises(RuntimeError, match=r"no initializer 'none'.*'coef'"):
        forward_backward.get_initializer("none")


def test_graphs_are_saved(build, linear, tmp_path):
    function = build(linear).new_instance()
    files = function.save_onnx_graph(tmp_path / "new", prefix="a_", suffix="_z")
    halves = ["_backward_onnx", "_forward_onnx"] if function._training_agent is None else []
    assert sorted(files) == sorted(["_optimized_pre_grad_model", "_trained_onnx", *halves])
    assert onnx.load(files["_trained_onnx"]) == function._trained_onnx
    expected = sorted(f"a_{name.strip('_')}_z.onnx" for name in files)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == expected
    contents = function.save_onnx_graph(bytes)
    assert onnx.load_from_string(contents["_optimized_pre_grad_model"]) == function._optimized_pre_grad_model
    with pytest.raises(ParameterTypeError, match="prefix must be a str"):
        function.save_onnx_graph(tmp_path, prefix=1)
    with pytest.raises(ParameterTypeError, match="folder must be"):
        function.save_onnx_graph(3)


def test_the_logger_reports_the_names(build, linear, caplog):
    with caplog.at_level(logging.DEBUG, "onnxsgd"):
        forward_backward = build(linear, enable_logging=True)
        forward_backward.new_instance().forward(arrays((3, 4), (4, 1), (1,)))
    assert "[OrtGradientForwardBackward] weights_to_train=['coef', 'intercept']" in caplog.text
    assert "bw_fetches_names=['X_grad', 'coef_grad', 'intercept_grad']" in caplog.text
    assert "shapes=[[3, 4], [4, 1], [1]]" in caplog.text
    assert {record.name for record in caplog.records} == {"onnxsgd"}


def test_nothing_is_logged_otherwise(build, linear, caplog):
    with caplog.at_level(logging.DEBUG, "onnxsgd"):
        build(linear).new_instance().forward(arrays((3, 4), (4, 1), (1,)))
    assert [record for record in caplog.records if record.name == "onnxsgd"] == []


def test_session_options_are_used(build, linear, tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    build(linear, sess_options=options)
    assert (tmp_path / "optimized.onnx").exists()


def test_run_options_are_used(build, linear):
    options = native.RunOptions()
    options.terminate = True
    function = build(linear, run_options=options).new_instance()
    with pytest.raises(EngineError, match="terminate"):
        function.forward(arrays((3, 4), (4, 1), (1,)))


def test_dropout_drops_the_same_elements_forward_and_backward(build, one_thread):
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
    g (float[N, 4] X) => (float[N, 4] Y) <float r = {0.5}, float[4] W = {1, 1, 1, 1}, bool t = {1}> {
        Z, mask = Dropout(X, r, t)
        Y = Mul(Z, W)
    }""")
    function = build(model, ["W"], sess_options=one_thread).new_instance()
    x, w = np.ones((20, 4), np.float32), np.ones(4, np.float32)
    (y,), (for_x, for_w) = run(function, [x, w], [x])
    assert set(np.unique(y)) == {0.0, 2.0}
    np.testing.assert_array_equal(for_x, y)
    np.testing.assert_array_equal(for_w, y.sum(axis=0))


@pytest.mark.native
def test_a_builder_configuration_is_used(network):
    config = native.OrtModuleGraphBuilderConfiguration()
    config.initializer_names_to_train = ["V", "W"]
    config.input_names_require_grad = ["X"]
    config.use_memory_efficient_gradient = True
    found = OrtGradientForwardBackward(network, graph_builder_config=config)
    assert found.cls_type_._onx_out == ["X_grad", "V_grad", "W_grad"]
    assert pickle.loads(pickle.dumps(found)).cls_type_._onx_out == found.cls_type_._onx_out
    assert config.initializer_names == []
    # it configures the native builder: no fallback to another engine
    with pytest.raises(NotTrainableError, match="Atan has no gradient in onnxruntime-training"):
        OrtGradientForwardBackward(onnx.parser.parse_model(ATAN), graph_builder_config=config)
    # an argument has precedence
    assert OrtGradientForwardBackward(network, ["b"], graph_builder_config=config).weights_to_train == ["b"]
    config.enable_caching = True
    with pytest.raises(UnsupportedError, match="enable_caching"):
        OrtGradientForwardBackward(network, graph_builder_config=config)
    with pytest.raises(ParameterTypeError, match="OrtModuleGraphBuilderConfiguration, not dict"):
        OrtGradientForwardBackward(network, graph_builder_config={})
    with pytest.raises(ParameterError, match="engine='portable' does not use"):
        OrtGradientForwardBackward(network, graph_builder_config=config, engine="portable")


@pytest.mark.parametrize(
    "providers",
    [None, "cpu", "CPUExecutionProvider", ["CPUExecutionProvider"] * 2, [("CPUExecutionProvider", {})]],
)
def test_names_of_providers(build, providers, linear):
    kind = build(linear, providers=providers).cls_type_
    assert kind._sess.get_providers() == kind._sess_eval.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"providers": ["NONE"]}, ValueError, r"'NONE' is not available.*'CPUExecutionProvider'"),
        ({"providers": []}, ParameterError, "providers is empty"),
        ({"providers": [3]}, ParameterTypeError, "names of execution providers"),
        ({"providers": "cuda:1"}, ParameterError, "'CUDAExecutionProvider' is not available"),
        ({"provider_options": [{}, {}]}, ParameterError, "has 2 elements and providers 1"),
        ({"device_index": -1}, ParameterError, "device_index=-1"),
        ({"weights_to_train": ["none"]}, ValueError, r"'none' is not an initializer.*'coef'"),
        ({"weights_to_train": ["coef", "coef"]}, ValueError, r"names \['coef'\] more than once"),
        ({"weights_to_train": "coef"}, ParameterTypeError, "weights must be a list of names"),
        ({"weights_to_train": [], "input_names": []}, NotTrainableError, "nothing to differentiate for"),
        ({"input_names": ["none"]}, ParameterError, r"'none' is not an input.*'X'"),
        ({"output_names": ["none"]}, ParameterError, r"'none' is not an output.*'variable'"),
        ({"output_names": []}, ParameterError, "at least one output"),
        ({"output_names": "variable"}, ParameterTypeError, "output_names must be a list"),
    ],
)
def test_wrong_arguments_are_refused(build, options, error, message, linear):
    with pytest.raises(error, match=message):
        build(linear, **options)


def test_a_graph_without_weights_is_refused(build):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (int64[N, 4] X) => (int64[N, 4] Y) { Y = Neg(X) }'
    )
    with pytest.raises(ValueError, match="nothing to differentiate for"):
        build(model)


def test_nothing_to_train_is_refused(build, linear):
    for arguments in [(linear, []), (without_weights(),)]:
        with pytest.raises(ValueError, match="nothing to train"):
            build(*arguments)


def without_weights():
    return onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 4] Y) { Y = Relu(X) }'
    )


def test_none_is_refused_forward_and_backward(build, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    with pytest.raises(NotImplementedError, match="None is not accepted"):
        function.forward(None)
    function.forward(arrays((3, 4), (4, 1), (1,)), training=True)
    with pytest.raises(NotImplementedError, match="None is not accepted"):
        function.backward(None)


def test_another_object_than_a_model_is_refused(build):
    with pytest.raises(TypeError, match="onnx.ModelProto, not str"):
        build("model.onnx")


@pytest.mark.parametrize("training", [False, True])
def test_wrong_inputs_are_refused_and_the_object_stays_usable(build, training, linear, one_thread):
    function = build(linear, sess_options=one_thread).new_instance()
    x, coef, intercept = given = arrays((3, 4), (4, 1), (1,))
    cases = [
        (RuntimeError, [x, coef], r"2 tensors were given: 3 are expected, \['X', 'coef', 'intercept'\]"),
        (NotImplementedError, [x, None, intercept], "A tensor is None"),
        (
            ParameterError,
            [x.astype(np.float64), coef, intercept],
            "'X' has elements of type float64.*float32",
        ),
        (ParameterError, [x, coef.T, intercept], r"'coef' has shape \[1, 4\]: it must have shape \[4, 1\]"),
        (ParameterError, [x[0], coef, intercept], r"'X' has shape \[4\]: it must have shape \[\?, 4\]"),
        (ParameterTypeError, [x, [1.0], intercept], "A tensor is a list"),
    ]
    for error, inputs, message in cases:
        with pytest.raises(error, match=message):
            function.forward(inputs, training=training)
    assert function.states_ == []
    np.testing.assert_allclose(function.forward(given, training)[0].numpy(), x @ coef + intercept, rtol=1e-5)


def test_wrong_gradients_are_refused_and_the_forward_still_waits(build, network, one_thread):
    function = build(network, ["b"], [], sess_options=one_thread).new_instance()
    with pytest.raises(EngineError, match="needs a forward with training=True"):
        function.backward([])
    x, z, p, h = arrays((6, 4), (6, 3), (6, 3), (6, 5))
    function.forward([x, z, values_of(network)["b"]], training=True)
    cases = [
        (RuntimeError, [p], r"1 tensors were given: 2 are expected, \['P_grad', 'H_grad'\]"),
        (NotImplementedError, [p, None], "A tensor is None"),
        (ParameterError, [p, h[:2]], r"'H_grad' has shape \[2, 5\]: it must have shape \[6, 5\]"),
        (ParameterError, [p.astype(np.float64), h], "'P_grad' has elements of type float64"),
    ]
    for error, gradients, message in cases:
        with pytest.raises(error, match=message):
            function.backward(gradients)
    assert function.backward([p, h])[0].numpy().shape == (5,)
    with pytest.raises(EngineError, match="each only once"):
        function.backward([p, h])


def test_debug_checks_the_devices_of_tensors(build, linear):
    function = build(linear, debug=True).new_instance()
    gpu = native.OrtDevice(native.OrtDevice.cuda(), native.OrtDevice.default_memory(), 0)
    assert function.device_name(gpu) == "Gpu"
    vector = function.input_to_ort(arrays((3, 4)), function._devices[:1])
    assert function.input_to_ort(vector, function._devices[:1], debug=True) is vector
    with pytest.raises(EngineError, match=r"on \['Cpu'\]: they must be on \['Gpu'\]"):
        function.input_to_ort(vector, [gpu], debug=True)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(not __import__("os").path.exists("/proc/self/statm"), reason="reads /proc")
def test_two_thousand_steps_do_not_leak(build, network, one_thread):
    function = build(network, sess_options=one_thread).new_instance()
    weights = list(values_of(network).values())

    def steps(count):
        # 0.5 MB of fresh arrays a step
        for _ in range(count):
            x, z, p, h = (np.ones((8_000, n), np.float32) for n in (4, 3, 3, 5))
            run(function, [x, z, *weights], [p, h])

    steps(200)
    before = resident_bytes()
    steps(1_800)
    # one array kept for each step would be 200 MB
    assert resident_bytes() - before < 20e6


def test_a_weight_may_lack_axes_of_size_one():
    """Three numbers are read as a matrix of one row; other shapes are refused."""
    onx = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>'
        "g (float[N, 3] X) => (float[N, 3] Y) <float[1, 3] W = {1, 2, 3}> { Y = Mul(X, W) }"
    )
    function = OrtGradientForwardBackward(onx, engine="portable").new_instance()
    X, W = np.ones((2, 3), np.float32), np.array([4, 5, 6], np.float32)
    np.testing.assert_array_equal(function.forward([X, W], training=True)[0].numpy(), [[4, 5, 6]] * 2)
    gradient = function.backward([np.ones((2, 3), np.float32)])[1].numpy()
    np.testing.assert_array_equal(gradient, [[2, 2, 2]])
    for shape in ((3, 1), (1, 2), (3, 2)):
        with pytest.raises(ParameterError, match="'W' has shape"):
            function.forward([X, np.resize(W, shape)])


def test_graphs_are_saved_from_the_class(tmp_path):
    """The documented call."""
    onx = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>'
        "g (float[N, 3] X) => (float[N, 3] Y) <float[1, 3] W = {1, 2, 3}> { Y = Mul(X, W) }"
    )
    found = OrtGradientForwardBackward(onx, engine="portable")
    saved = found.cls_type_.save_onnx_graph(tmp_path, prefix="a_")
    assert saved == found.new_instance().save_onnx_graph(str(tmp_path), prefix="a_")
    assert onnx.load(saved["_forward_onnx"]) == found.cls_type_._forward_onnx


def test_arrays_of_strings_are_refused_by_name():
    text = """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    g (string[N, 1] word, float[N, 2] x) => (float[N, 2] y) <float[2] w = {1, 2}> {
        k = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_floats = [1.0]>(word)
        h = Mul(x, w)
        y = Add(h, k)
    }"""
    instance = OrtGradientForwardBackward(onnx.parser.parse_model(text), engine="portable").new_instance()
    arrays = [np.array([["a"]], object), np.ones((1, 2), np.float32), np.ones(2, np.float32)]
    with pytest.raises(UnsupportedError, match="'word' is an array of object"):
        instance.forward(arrays, training=True)


def test_arrays_of_bfloat16_are_refused_by_name():
    text = """<ir_version: 8, opset_import: ["" : 18]> g (bfloat16[N, 2] x) => (float[N, 2] y)
    <float[2] w = {1, 2}> { c = Cast<to = 1>(x)  y = Mul(c, w) }"""
    instance = OrtGradientForwardBackward(onnx.parser.parse_model(text), engine="portable").new_instance()
    (x,) = random_feed(onnx.parser.parse_model(text)).values()
    with pytest.raises(UnsupportedError, match="'x' is an array of bfloat16"):
        instance.forward([x, np.ones(2, np.float32)])
