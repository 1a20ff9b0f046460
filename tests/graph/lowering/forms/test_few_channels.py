"""Convolutions with few channels of results: transposed ones compute the same."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDRegressor
from onnxsgd.graph.lowering.forms import FEW_CHANNEL_FORMS, few_channels, write_out
from onnxsgd.graph.model import to_ir, to_proto

RNG = np.random.default_rng(0)

#: Shapes of the image and of the weight, attributes, whether there is a bias.
WRITTEN = {
    "same size": ((2, 8, 5, 6), (2, 8, 3, 3), "pads = [1, 1, 1, 1]", False),
    "bias": ((2, 8, 5, 6), (2, 8, 3, 3), "pads = [1, 1, 1, 1]", True),
    "no padding": ((2, 8, 5, 6), (2, 8, 3, 2), "strides = [1, 1]", False),
    "uneven padding": ((1, 8, 5, 6), (2, 8, 3, 3), "pads = [0, 2, 1, 1]", False),
    "dilations": ((2, 8, 7, 6), (2, 8, 3, 2), "dilations = [2, 3], pads = [4, 3, 1, 0]", True),
    "one result": ((2, 4, 5, 6), (1, 4, 3, 3), "pads = [1, 1, 1, 1]", False),
    "one row of taps": ((2, 8, 5, 6), (2, 8, 1, 3), "pads = [0, 1, 0, 1]", False),
}
KEPT = {
    "many results": ((2, 8, 5, 6), (3, 8, 3, 3), "pads = [1, 1, 1, 1]", False),
    "one tap": ((2, 8, 5, 6), (2, 8, 1, 1), "strides = [1, 1]", False),
    "strides": ((2, 8, 5, 6), (2, 8, 3, 3), "strides = [1, 2]", False),
    "groups": ((2, 16, 5, 6), (2, 8, 3, 3), "group = 2", False),
    "a sequence": ((2, 8, 5), (2, 8, 3), "strides = [1]", False),
    "more padding than taps": ((2, 8, 5, 6), (2, 8, 3, 3), "pads = [1, 3, 1, 1]", False),
    "automatic padding": ((2, 8, 5, 6), (2, 8, 3, 3), 'auto_pad = "SAME_UPPER"', False),
}


def models(case, batch=None):
    """Return the model of a convolution, and the same written out."""
    image, weight, attributes, has_bias = case
    sizes = [batch or image[0], *image[1:]]
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[{", ".join(map(str, sizes))}] X, float{list(weight)} W, float[{weight[0]}] B)
        => (float[{", ".join("abcd"[: len(image)])}] Y)
        {{ Y = Conv<{attributes}>(X, W{", B" * has_bias}) }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model)
    written = to_ir(model)
    write_out(written, FEW_CHANNEL_FORMS)
    return model, to_proto(written)


def operators(model):
    return [node.op_type for node in model.graph.node]


def test_every_form_of_few_channels_is_tested():
    assert set(FEW_CHANNEL_FORMS) == {("", "Conv")}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_numbers(name):
    image, weight, _, _ = case = WRITTEN[name]
    model, written = models(case)
    assert "ConvTranspose" in operators(written)
    feeds = {"X": image, "W": weight, "B": weight[:1]}
    feeds = {key: RNG.normal(size=shape).astype(np.float32) for key, shape in feeds.items()}
    expected, found = (ReferenceEvaluator(each).run(None, feeds)[0] for each in (model, written))
    assert expected.shape == found.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", KEPT)
def test_other_convolutions_stay(name):
    assert operators(models(KEPT[name])[1]) == ["Conv"]


def test_open_sizes_stay():
    assert operators(models(WRITTEN["same size"], batch="N")[1]) == ["Conv"]


def test_the_most_channels(monkeypatch):
    monkeypatch.setattr(few_channels, "_MOST", 1)
    assert operators(models(WRITTEN["same size"])[1]) == ["Conv"]


def _network():
    """Return two convolutions, from 3 channels to 8 and from 8 to 2, of images of 10 x 10."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, 3, 10, 10] X) => (float[N, 2] Y)
        { H = Conv<pads = [1, 1, 1, 1]>(X, A) R = Relu(H) T = Conv<pads = [1, 1, 1, 1]>(R, B, C)
          P = GlobalAveragePool(T) Y = Flatten(P) }"""
    )
    rng = np.random.default_rng(1)
    for name, shape in {"A": (8, 3, 3, 3), "B": (2, 8, 3, 3), "C": (2,)}.items():
        array = rng.normal(scale=0.3, size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("n_batches", [3, 40], ids=["single steps", "a loop"])
def test_updates_are_the_same(monkeypatch, n_batches):
    X, y = RNG.normal(size=(4 * n_batches, 3, 10, 10)).astype(np.float32), RNG.normal(size=(4 * n_batches, 2))

    def trained(n_threads):
        settings = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "batch_size": 4}
        estimator = OnnxSGDRegressor(_network(), penalty=None, shuffle=False, n_threads=n_threads, **settings)
        return estimator.fit(X, y).get_weights()

    found = trained(1)
    monkeypatch.setattr(few_channels, "_MOST", 0)
    # another number of threads: nothing compiled is taken again
    expected = trained(2)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
    assert any(np.any(found[name] != array) for name, array in expected.items())
