"""MaxPools in fewer passes: the same maxima and gradients, also of elements that tie."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd import OnnxSGDRegressor
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import COMPARED_POOL_FORMS, POOL_FORMS, max_pools, write_out
from onnxsgd.graph.model import to_ir, to_proto

RNG = np.random.default_rng(0)
_POOL = "Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>"
_SEQUENCE = "Y = MaxPool<kernel_shape = [2], strides = [2]>"

#: Shape of the image, nodes, and the operators in their place.
WRITTEN = {
    "rectified": ((2, 3, 4, 6), f"r = Relu(X) {_POOL}(r)", "MaxPool Relu"),
    "a sequence": ((2, 3, 8), f"r = Relu(X) {_SEQUENCE}(r)", "MaxPool Relu"),
    "windows that overlap": (
        (2, 3, 7, 7),
        """
        r = Relu(X) Y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(r)
        """,
        "MaxPool Relu",
    ),
    "windows that overlap, with automatic padding": (
        (2, 3, 7, 7),
        """
        r = Relu(X) Y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER">(r)
        """,
        "MaxPool Relu",
    ),
    "windows of rows": (
        (2, 3, 8, 3),
        "Y = MaxPool<kernel_shape = [4, 1], strides = [4, 1]>(X)",
        "MaxPool",
    ),
    "windows of columns": (
        (2, 3, 3, 6),
        "Y = MaxPool<kernel_shape = [1, 3], strides = [1, 3]>(X)",
        "MaxPool",
    ),
    "a large image": ((2, 3, 36, 40), f"r = Relu(X) {_POOL}(r)", "Reshape MaxPool Reshape Relu"),
    "a long sequence": ((2, 2, 3000), f"{_SEQUENCE}(X)", "Reshape MaxPool Reshape"),
}

KEPT = {
    "read twice": ((2, 3, 4, 4), """
        r = Relu(X) p = MaxPool<kernel_shape = [4, 4]>(r) z = Abs(r) Y = Add(p, z)"""),
    "another activation": ((2, 3, 4, 4), f"r = Tanh(X) {_POOL}(r)"),
    "places": ((2, 3, 4, 4), "r = Relu(X) Y, I = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)"),
    "many maxima": ((2, 3, 4, 4), "r = Relu(X) Y = MaxPool<kernel_shape = [2, 2]>(r)"),
    "windows past the edge": ((2, 3, 5, 5), """
        r = Relu(X) Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(r)"""),
    "elements apart": ((2, 3, 6, 6), """
        r = Relu(X) Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], dilations = [2, 2]>(r)"""),
    "a large image with a rest": ((2, 3, 37, 40), f"{_POOL}(X)"),
    "a large image, and windows from outside on": ((2, 3, 36, 40), """
        Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 0, 0]>(X)"""),
    "large windows": ((2, 3, 36, 36), "Y = MaxPool<kernel_shape = [3, 3], strides = [3, 3]>(X)"),
    "long rows": ((1, 1, 2, 1026), f"{_POOL}(X)"),
}  # fmt: skip


def parsed(shape, nodes, batch=None):
    sizes = ", ".join(map(str, (batch or shape[0], *shape[1:])))
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[{sizes}] X) => (float[A] Y) {{ {nodes} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def written_out(model):
    written = to_ir(model)
    write_out(written, POOL_FORMS)
    RemoveUnusedNodesPass()(written)
    return written


def operators(model):
    return " ".join(node.op_type for node in model.graph)


def with_gradient(model):
    both = forward_backward_model(model, [], ["X"], "portable")
    write_out(both, COMPARED_POOL_FORMS)
    both.graph.sort()
    return both


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_maxima_and_gradients(name):
    shape, nodes, operators_before = WRITTEN[name]
    model = parsed(shape, nodes)
    written = written_out(model)
    assert operators(written) == operators_before
    plain = forward_backward_model(to_ir(model), [], ["X"], "portable")
    both = [to_proto(with_gradient(written)), to_proto(plain)]
    # the gradient compares the elements of windows that lie side by side
    assert ("MaxPool" in {node.op_type for node in both[0].graph.node}) == ("overlap" in name)
    # whole numbers, many of which tie
    feeds = {"X": RNG.integers(-3, 4, shape).astype(np.float32)}
    sizes = [size.dim_value for size in both[0].graph.input[1].type.tensor_type.shape.dim]
    feeds["Y_grad"] = RNG.normal(size=sizes).astype(np.float32)
    (found, gradient), expected = (ReferenceEvaluator(each).run(None, feeds) for each in both)
    np.testing.assert_array_equal(found, expected[0])
    np.testing.assert_array_equal(gradient, expected[1])
    assert np.count_nonzero(gradient) > 0


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    model = parsed(*KEPT[name])
    assert operators(written_out(model)) == operators(to_ir(model))


def test_open_sizes_stay():
    shape, nodes, *_ = WRITTEN["rectified"]
    assert operators(written_out(parsed(shape, nodes, "N"))) == "Relu MaxPool"


def test_a_pool_without_a_gradient_stays():
    model = parsed((2, 3, 4, 6), f"{_POOL}(X)")
    written = to_ir(model)
    write_out(written, COMPARED_POOL_FORMS)
    assert operators(written) == "MaxPool"


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_another_split_are_none_of_windows(axis):
    """The graph has a table of the shape that a gradient makes, and splits it in its own way."""
    nodes = f"""{_POOL.replace("[2, 2]", "[2, 1]").replace("Y", "p")}(X) t = Reshape(X, table)
        a, b = Split<axis = {axis}>(t) d = Sub(a, b) m = ReduceMax(d) Y = Mul(p, m)"""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[2, 1, 4, 2] X) => (float[A, B, C, D] Y)
        <int64[2] table = {{4, 4}}> {{ {nodes} }}"""
    )
    model = onnx.shape_inference.infer_shapes(model)
    both = [
        to_proto(with_gradient(to_ir(model))),
        to_proto(forward_backward_model(to_ir(model), [], ["X"], "portable")),
    ]
    feeds = {"X": RNG.normal(size=(2, 1, 4, 2)).astype(np.float32)}
    feeds["Y_grad"] = RNG.normal(size=(2, 1, 2, 2)).astype(np.float32)
    found, expected = (ReferenceEvaluator(each).run(None, feeds) for each in both)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_form_of_pools_is_tested():
    assert set(POOL_FORMS) == set(COMPARED_POOL_FORMS) == {("", "MaxPool")}


@pytest.mark.parametrize("n_batches", [3, 40], ids=["single steps", "a loop"])
@pytest.mark.parametrize("size", [8, 40])
def test_updates_are_the_same(monkeypatch, n_batches, size):
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[N, 2, {size}, {size}] X) => (float[N, 4] Y)
        <int64[2] axis = {{2, 3}}> {{
        c = Conv<pads = [1, 1, 1, 1]>(X, W, B) r = Relu(c) {_POOL.replace("Y", "p")}(r)
        Y = ReduceMean<keepdims = 0>(p, axis) }}"""
    )
    rng = np.random.default_rng(1)
    for name, shape in {"W": (4, 2, 3, 3), "B": (4,)}.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    X = rng.normal(size=(4 * n_batches, 2, size, size)).astype(np.float32)
    y = rng.normal(size=(4 * n_batches, 4))

    def trained(n_threads):
        settings = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "batch_size": 4}
        estimator = OnnxSGDRegressor(
            model, penalty=None, shuffle=False, n_threads=n_threads, engine="portable",
            trainable=["W", "B"], **settings,
        )  # fmt: skip
        return estimator.fit(X, y).get_weights()

    found = trained(1)
    monkeypatch.setattr(max_pools, "_is_plain", lambda _: False)
    # another number of threads: nothing compiled is taken again
    expected = trained(2)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
