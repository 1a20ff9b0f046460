"""Convolutions of small images written as products, against sums in float64."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxsgd import OnnxSGDRegressor
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import SMALL_IMAGE_FORMS, write_out
from onnxsgd.runtime.cache import cache


def test_every_form_of_small_images_is_tested():
    """The cases below are convolutions."""
    assert list(SMALL_IMAGE_FORMS) == [("", "Conv")]


def convolved(x, weight, strides, dilations, pads, group):
    """Return a convolution, sum by sum, in float64."""
    rank, n, (m, width, *kernel) = len(strides), len(x), weight.shape
    wide = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    moves = list(zip(wide.shape[2:], kernel, strides, dilations, strict=True))
    out = [(size - (k - 1) * d - 1) // s + 1 for size, k, s, d in moves]
    y = np.zeros((n, m, *out))
    for place in np.ndindex(*out):
        for tap in np.ndindex(*kernel):
            at = tuple(p * s + t * d for p, s, t, d in zip(place, strides, tap, dilations, strict=True))
            for channel in range(m):
                first = channel // (m // group) * width
                part = wide[(slice(None), slice(first, first + width), *at)]
                y[(slice(None), channel, *place)] += part @ weight[(channel, slice(None), *tap)]
    return y


#: Images [N, C, ...], weights [M, C / group, ...], strides, dilations, pads, whether the form applies.
CASES = {
    "all taps": ((3, 4, 2, 2), (5, 4, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), True),
    "centre tap": ((3, 4, 1, 1), (5, 4, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), True),
    "four taps": ((3, 4, 2, 2), (5, 4, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), True),
    "one tap": ((3, 4, 2, 3), (5, 4, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), True),
    "one tap, strides": ((3, 4, 4, 4), (5, 4, 1, 1), (2, 2), (1, 1), (0, 0, 0, 0), True),
    "one place, one tap": ((3, 4, 1, 1), (5, 4, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), True),
    "one image": ((1, 4, 3, 3), (5, 4, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), True),
    "uneven": ((2, 3, 5, 4), (4, 3, 2, 3), (2, 1), (1, 2), (1, 0, 2, 1), True),
    "series": ((2, 3, 9), (4, 3, 3), (1,), (1,), (1, 1), True),
    "volume": ((2, 3, 2, 3, 2), (4, 3, 3, 2, 1), (1, 1, 1), (1, 1, 1), (1, 0, 0, 1, 0, 0), True),
    "single channels": ((3, 4, 4, 4), (4, 1, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), True),
    "single channels, strides": ((3, 4, 5, 4), (4, 1, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), True),
    "single elements": ((3, 4, 1, 1), (4, 1, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), True),
    "single element to more": ((3, 4, 1, 1), (4, 1, 3, 3), (1, 1), (1, 1), (2, 2, 2, 2), True),
    "padding beside taps": ((2, 3, 1, 1), (4, 3, 2, 2), (2, 2), (1, 1), (3, 3, 1, 1), True),
    "padding alone": ((2, 3, 1, 1), (4, 3, 1, 1), (2, 2), (1, 1), (1, 1, 1, 1), False),
    "many places": ((2, 3, 7, 7), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), False),
    "large image": ((2, 3, 9, 9), (4, 3, 3, 3), (4, 4), (1, 1), (0, 0, 0, 0), False),
    "large channel": ((2, 3, 9, 9), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), False),
    "one tap, many places": ((3, 4, 4, 4), (5, 4, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), False),
    "one tap, one image": ((1, 4, 2, 2), (5, 4, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), False),
    "groups of channels": ((2, 4, 2, 2), (6, 2, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), False),
}


def graph(case, opset=18, has_bias=True):
    """Return a convolution whose operands are inputs."""
    x, weight, strides, dilations, pads, _ = case
    group = x[1] // weight[1]
    attributes = f"strides={list(strides)}, dilations={list(dilations)}, pads={list(pads)}, group={group}"
    bias = (f", float[{weight[0]}] B", ", B") if has_bias else ("", "")
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float{list(x)} X, float{list(weight)} W{bias[0]}) => (float[A] Y)
        {{ Y = Conv<{attributes}>(X, W{bias[1]}) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def run(model, feeds):
    import onnxruntime

    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("opset", "has_bias"), [(13, True), (18, False), (21, True)])
def test_the_result_and_its_gradients(name, opset, has_bias):
    """The sums are those of the definition, and so are the derivatives: each operand enters linearly."""
    case, rng = CASES[name], np.random.default_rng(0)
    model = graph(case, opset, has_bias)
    write_out(model, SMALL_IMAGE_FORMS)
    assert ("Conv" not in [node.op_type for node in model.graph]) == case[-1]
    x, weight, strides, dilations, pads, _ = case
    shapes = {"X": x, "W": weight, **({"B": weight[:1]} if has_bias else {})}
    feeds = {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    exact = {key: value.astype(np.float64) for key, value in feeds.items()}
    moves = strides, dilations, pads, x[1] // weight[1]
    bias = exact["B"].reshape(1, -1, *[1] * len(strides)) if has_bias else 0.0
    y = convolved(exact["X"], exact["W"], *moves) + bias
    slope = rng.normal(size=y.shape).astype(np.float32)
    both = forward_backward_model(model, [], list(feeds), "portable")
    found = run(both, {**feeds, "Y_grad": slope})
    np.testing.assert_allclose(found["Y"], y, rtol=0, atol=2e-5)
    for key in ("X", "W"):
        direction = rng.normal(size=shapes[key])
        change = convolved(*(direction if other == key else exact[other] for other in ("X", "W")), *moves)
        # sums of up to 500 products of magnitude 1
        assert np.sum(found[f"{key}_grad"] * direction) == pytest.approx(np.sum(slope * change), abs=1e-4)
    if has_bias:
        axes = (0, *range(2, y.ndim))
        np.testing.assert_allclose(found["B_grad"], slope.sum(axes, np.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.graph.inputs[0], "shape", ir.Shape(["N", 4, 2, 2])),
        lambda model: model.graph[0].attributes.add(ir.AttrString("auto_pad", "SAME_UPPER")),
        lambda model: setattr(model.graph.outputs[0], "shape", None),
    ],
    ids=["unknown batch", "automatic padding", "unknown result"],
)
def test_an_unknown_size_keeps_the_operator(change):
    """Forms are chosen by numbers: the operator stays where one of them is not there to be read."""
    model = graph(CASES["all taps"])
    change(model)
    write_out(model, SMALL_IMAGE_FORMS)
    assert [node.op_type for node in model.graph] == ["Conv"]


def network(size):
    """Return a small network with a depthwise and a plain convolution, and its last layer."""
    rng = np.random.default_rng(0)
    shapes = {"D": (4, 1, 3, 3), "C": (6, 4, 3, 3), "L": (6, 1)}
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, 4, {size}, {size}] X) => (float[N, 1] Y) {{
        a = Conv<pads=[1, 1, 1, 1], group=4>(X, D) b = Relu(a) c = Conv<pads=[1, 1, 1, 1]>(b, C) d = Relu(c)
        e = GlobalAveragePool(d) f = Flatten(e) Y = MatMul(f, L) }}"""
    )
    for name, shape in shapes.items():
        array = rng.normal(size=shape).astype(np.float32) / 2
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("size", [1, 2, 4])
def test_training_follows_the_operator(size, monkeypatch):
    """A fit has the weights of one without the forms, and its model the nodes of the user."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(22, 4, size, size)).astype(np.float32)
    y = rng.normal(size=22)

    def fitted():
        cache.clear()
        estimator = OnnxSGDRegressor(
            network(size), trainable=["D", "C", "L"], batch_size=4, max_iter=3, tol=None,
            learning_rate="constant", eta0=0.02, random_state=0,
        )  # fmt: skip
        return estimator.fit(X, y).to_onnx()

    found = fitted()
    monkeypatch.setattr("onnxsgd.engine.step.training_step.SMALL_IMAGE_FORMS", {})
    expected = fitted()
    assert [node.op_type for node in found.graph.node].count("Conv") == 2
    before, arrays, others = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for model in (network(size), found, expected)
    )
    for name in before:
        assert np.abs(arrays[name] - before[name]).max() > 1e-3
        np.testing.assert_allclose(arrays[name], others[name], rtol=0, atol=2e-6)
