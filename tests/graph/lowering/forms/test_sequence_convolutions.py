"""Convolutions of sequences in faster forms compute the same, and train the same."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDRegressor
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.gradient.portable.rules import sequence_windows
from onnxsgd.graph.lowering.forms import SEQUENCE_FORMS, sequence_convolutions, write_out
from onnxsgd.graph.model import to_ir, to_proto

RNG = np.random.default_rng(0)

#: Shapes of sequences and weight, attributes.
PRODUCTS = {
    "a rest": ((2, 16, 10), (17, 16, 3), "strides = [2]"),
    "windows side by side": ((3, 16, 9), (16, 16, 2), "strides = [2]"),
    "no rest": ((3, 16, 8), (16, 16, 2), "strides = [2]"),
    "padding": ((2, 16, 9), (16, 16, 4), "strides = [3], pads = [2, 1]"),
}
LONG = {
    "same size": ((3, 6, 5), (4, 3, 3), "group = 2, pads = [1, 1]"),
    "uneven padding": ((2, 6, 5), (9, 2, 4), "group = 3, pads = [3, 0]"),
    "gaps": ((2, 6, 7), (4, 3, 3), "group = 2, dilations = [2], pads = [1, 2]"),
    "many places, many taps": ((2, 4, 65), (4, 2, 16), "group = 2"),
}
KEPT = {
    "no groups": ((2, 4, 5), (4, 4, 3), "strides = [1]"),
    "single channels": ((2, 4, 5), (4, 1, 3), "group = 4"),
    "groups that move by two": ((2, 4, 5), (4, 2, 3), "group = 2, strides = [2]"),
    "one sequence": ((1, 4, 5), (4, 2, 3), "group = 2"),
    "many places": ((2, 4, 51), (4, 2, 3), "group = 2"),
    "images": ((2, 4, 5, 1), (4, 2, 3, 1), "group = 2"),
    "automatic padding": ((2, 4, 5), (4, 2, 3), 'group = 2, auto_pad = "SAME_UPPER"'),
    "negative padding": ((2, 4, 5), (4, 2, 3), "group = 2, pads = [1, -1]"),
}


def parsed(case, batch=None):
    """Return the model of a convolution."""
    x, weight, attributes = case
    sizes = ", ".join(map(str, (batch or x[0], *x[1:])))
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[{sizes}] X, float{list(weight)} W, float[{weight[0]}] B)
        => (float[{", ".join("abcd"[: len(x)])}] Y) {{ Y = Conv<{attributes}>(X, W, B) }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def both_passes(case):
    """Return a convolution with its gradients, and the same in other forms."""
    both = forward_backward_model(to_ir(parsed(case)), [], ["X", "W", "B"], "portable")
    before = to_proto(both)
    write_out(both, SEQUENCE_FORMS)
    both.graph.sort()
    return before, to_proto(both)


def operators(model):
    return [node.op_type for node in model.graph.node]


def test_every_form_of_sequences_is_tested():
    assert set(SEQUENCE_FORMS) == {("", "Conv")}


@pytest.mark.parametrize("name", [*PRODUCTS, *LONG])
def test_the_same_numbers(name):
    case = {**PRODUCTS, **LONG}[name]
    before, after = both_passes(case)
    assert operators(before) != operators(after)
    convolutions = [node for node in after.graph.node if node.op_type == "Conv"]
    if name in PRODUCTS:
        assert not convolutions
    else:
        assert all(shape_of(after, node)[0] == 1 for node in convolutions)
    feeds = {value.name: shape_of_value(value) for value in before.graph.input}
    feeds = {key: RNG.normal(size=shape).astype(np.float32) for key, shape in feeds.items()}
    expected, found = (ReferenceEvaluator(each).run(None, feeds) for each in (before, after))
    for wanted, array in zip(expected, found, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=0, atol=5e-5)


def shape_of(model, node):
    """Return the sizes of the first input of a node."""
    values = {value.name: value for value in (*model.graph.value_info, *model.graph.input)}
    return shape_of_value(values[node.input[0]])


def shape_of_value(value):
    return [size.dim_value for size in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", KEPT)
def test_other_convolutions_stay(name):
    model = to_ir(parsed(KEPT[name]))
    write_out(model, SEQUENCE_FORMS)
    assert [node.op_type for node in model.graph] == ["Conv"]


def test_open_sizes_stay():
    model = to_ir(parsed(LONG["same size"], batch="N"))
    write_out(model, SEQUENCE_FORMS)
    assert [node.op_type for node in model.graph] == ["Conv"]


def test_windows_of_other_places_are_not_taken():
    """Two convolutions of one tensor with tables of the same size and other places."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[2, 16, 9] X, float[16, 16, 4] W)
        => (float[2, 16, 4] Y, float[2, 16, 4] Z) {
        Y = Conv<strides = [2], pads = [0, 1]>(X, W) Z = Conv<strides = [2], pads = [1, 0]>(X, W) }"""
    )
    both = forward_backward_model(to_ir(model), [], ["W"], "portable")
    before = to_proto(both)
    write_out(both, SEQUENCE_FORMS)
    both.graph.sort()
    after = to_proto(both)
    assert "Conv" not in operators(after)
    feeds = {value.name: shape_of_value(value) for value in before.graph.input}
    feeds = {key: RNG.normal(size=shape).astype(np.float32) for key, shape in feeds.items()}
    for wanted, array in zip(
        *(ReferenceEvaluator(each).run(None, feeds) for each in (before, after)), strict=True
    ):
        np.testing.assert_allclose(array, wanted, rtol=0, atol=5e-5)


def test_a_result_whose_channels_move_to_the_end_is_moved_once():
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[3, 6, 5] X, float[4, 3, 3] W)
        => (float[3, 5, 4] Y)
        { T = Conv<group = 2, pads = [1, 1]>(X, W) Y = Transpose<perm = [0, 2, 1]>(T) }"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    written = to_ir(model)
    write_out(written, SEQUENCE_FORMS)
    after = to_proto(written)
    assert "Gather" in operators(after)
    feeds = {"X": (3, 6, 5), "W": (4, 3, 3)}
    feeds = {key: RNG.normal(size=shape).astype(np.float32) for key, shape in feeds.items()}
    expected, found = (ReferenceEvaluator(each).run(None, feeds)[0] for each in (model, after))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("_SHORT", 4), ("_MANY", 17)])
def test_the_limits(monkeypatch, name, value):
    monkeypatch.setattr(sequence_convolutions, name, value)
    model = to_ir(parsed(LONG["same size" if name == "_SHORT" else "many places, many taps"]))
    write_out(model, SEQUENCE_FORMS)
    assert [node.op_type for node in model.graph] == ["Conv"]


def _network():
    """Return a network of sequences with a convolution that moves by two places and one in groups."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, 16, 19] X) => (float[N, 2] Y)
        { H = Conv<strides = [2]>(X, A) R = Tanh(H) T = Conv<group = 4, pads = [1, 1]>(R, B, C) S = Tanh(T)
          P = GlobalAveragePool(S) F = Flatten(P) Y = MatMul(F, L) }"""
    )
    rng = np.random.default_rng(1)
    for name, shape in {"A": (16, 16, 3), "B": (8, 4, 3), "C": (8,), "L": (8, 2)}.items():
        array = rng.normal(scale=0.3, size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("n_batches", [3, 40], ids=["single steps", "a loop"])
def test_updates_are_the_same(monkeypatch, n_batches):
    X, y = RNG.normal(size=(4 * n_batches, 16, 19)).astype(np.float32), RNG.normal(size=(4 * n_batches, 2))

    def trained(n_threads):
        settings = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "batch_size": 4}
        estimator = OnnxSGDRegressor(
            _network(), penalty=None, shuffle=False, n_threads=n_threads, engine="portable", **settings
        )
        return estimator.fit(X, y).get_weights()

    found = trained(1)
    monkeypatch.setattr(sequence_windows, "_LEAST", 17)
    monkeypatch.setattr(sequence_convolutions, "_SHORT", 0)
    # another number of threads: nothing compiled is taken again
    expected = trained(2)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
    assert any(np.any(found[name] != array) for name, array in expected.items())
