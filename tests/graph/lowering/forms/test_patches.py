"""Embeddings of patches of an input as one product: the same numbers, gradients and updates."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDRegressor
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import PATCH_FORMS, patches, write_out
from onnxsgd.graph.model import to_ir, to_proto

RNG = np.random.default_rng(0)

#: Shapes of images and weight, nodes.
WRITTEN = {
    "squares": ((2, 3, 8, 12), (5, 3, 4, 4), "Y = Conv<strides = [4, 4]>(X, W, B)"),
    "rectangles": ((2, 3, 8, 12), (5, 3, 8, 3), "Y = Conv<strides = [8, 3]>(X, W, B)"),
    "one patch": ((2, 3, 4, 4), (5, 3, 4, 4), "Y = Conv<strides = [4, 4]>(X, W, B)"),
    "no bias": ((2, 3, 8, 8), (5, 3, 4, 4), "Y = Conv<strides = [4, 4]>(X, W)"),
    "a sequence": ((2, 3, 32), (5, 3, 16), "Y = Conv<strides = [16]>(X, W, B)"),
    "a volume": ((2, 1, 4, 6, 4), (5, 1, 4, 3, 2), "Y = Conv<strides = [4, 3, 2]>(X, W, B)"),
    "a channel more": ((2, 8, 8), (5, 1, 4, 4), "x = Unsqueeze(X, axis) Y = Conv<strides = [4, 4]>(x, W, B)"),
}
KEPT = {
    "a rest": ((2, 3, 9, 8), (5, 3, 4, 4), "Y = Conv<strides = [4, 4]>(X, W, B)"),
    "windows that overlap": ((2, 3, 7, 8), (5, 3, 4, 4), "Y = Conv<strides = [3, 4]>(X, W, B)"),
    "padding": ((2, 3, 6, 8), (5, 3, 4, 4), "Y = Conv<strides = [4, 4], pads = [1, 0, 1, 0]>(X, W, B)"),
    "automatic padding": ((2, 3, 8, 8), (5, 3, 4, 4), """
        Y = Conv<strides = [4, 4], auto_pad = "SAME_UPPER">(X, W, B)"""),
    "groups": ((2, 2, 8, 8), (4, 1, 4, 4), "Y = Conv<strides = [4, 4], group = 2>(X, W)"),
    "taps apart": ((2, 3, 7, 7), (5, 3, 4, 4), "Y = Conv<strides = [4, 4], dilations = [2, 2]>(X, W, B)"),
    "few taps": ((2, 3, 6, 6), (5, 3, 3, 3), "Y = Conv<strides = [3, 3]>(X, W, B)"),
    "many windows": ((1, 1, 4, 4100), (5, 1, 4, 4), "Y = Conv<strides = [4, 4]>(X, W, B)"),
    "a computed image": ((2, 3, 8, 8), (5, 3, 4, 4), "x = Abs(X) Y = Conv<strides = [4, 4]>(x, W, B)"),
}  # fmt: skip


def parsed(case, batch=None):
    x, weight, nodes = case
    sizes = ", ".join(map(str, (batch or x[0], *x[1:])))
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[{sizes}] X, float{list(weight)} W, float[{weight[0]}] B) => (float[A] Y)
        <int64[1] axis = {{1}}> {{ {nodes} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def written_out(model):
    written = to_ir(model)
    write_out(written, PATCH_FORMS)
    return written


def test_every_form_of_patches_is_tested():
    assert set(PATCH_FORMS) == {("", "Conv")}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_numbers_and_gradients(name):
    model = parsed(WRITTEN[name])
    written = written_out(model)
    assert "Conv" not in {node.op_type for node in written.graph}
    weights = ["W", "B"] if "B)" in WRITTEN[name][2] else ["W"]
    both = [
        to_proto(forward_backward_model(each, [], weights, "portable")) for each in (to_ir(model), written)
    ]
    feeds = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in both[0].graph.input
    }
    feeds = {key: RNG.normal(size=shape).astype(np.float32) for key, shape in feeds.items()}
    results = [ReferenceEvaluator(each).run(None, feeds) for each in both]
    assert len(results[0]) == 1 + len(weights)
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    model = parsed(KEPT[name])
    assert [node.op_type for node in written_out(model).graph] == [node.op_type for node in model.graph.node]


def test_open_sizes_stay():
    assert [node.op_type for node in written_out(parsed(WRITTEN["squares"], "N")).graph] == ["Conv"]


@pytest.mark.parametrize("n_batches", [3, 40], ids=["single steps", "a loop"])
def test_updates_are_the_same(monkeypatch, n_batches):
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, 3, 32, 32] X) => (float[N, 5] Y)
        <int64[3] sizes = {0, 5, 64}, int64[1] axis = {1}> {
        c = Conv<strides = [4, 4]>(X, W, B) r = Reshape(c, sizes) t = Transpose<perm = [0, 2, 1]>(r)
        h = Tanh(t) Y = ReduceMean<keepdims = 0>(h, axis) }"""
    )
    rng = np.random.default_rng(1)
    for name, shape in {"W": (5, 3, 4, 4), "B": (5,)}.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    X, y = rng.normal(size=(4 * n_batches, 3, 32, 32)).astype(np.float32), rng.normal(size=(4 * n_batches, 5))

    def trained(n_threads):
        settings = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "batch_size": 4}
        estimator = OnnxSGDRegressor(
            model, penalty=None, shuffle=False, n_threads=n_threads, engine="portable",
            trainable=["W", "B"], **settings,
        )  # fmt: skip
        return estimator.fit(X, y).get_weights()

    found = trained(1)
    monkeypatch.setattr(patches, "_TAPS", 17)
    # another number of threads: nothing compiled is taken again
    expected = trained(2)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
    assert any(np.any(found[name] != array) for name, array in expected.items())
