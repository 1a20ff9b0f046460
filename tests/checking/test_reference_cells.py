"""The recurrent operators that judge gradients, against onnx's own and against the runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxsgd.checking.reference_cells import _ACTIVATIONS as ACTIVATIONS
from onnxsgd.checking.reference_cells import CELLS
from onnxsgd.exceptions import GradientError, UnsupportedError
from onnxsgd.gradient.portable.rules.sequence_lengths import Lengths
from onnxsgd.testing import check_gradients

TIME, BATCH, INPUTS, HIDDEN = 4, 3, 3, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = ("forward", "reverse", "bidirectional")


def recurrent(name, attributes="", *, lengths=False, batch_first=False):
    """Return a graph of one node with all its operands as inputs, and values for them."""
    directions, rows = 1 + ("bidirectional" in attributes), GATES[name] * HIDDEN
    shapes = {"X": (TIME, BATCH, INPUTS), "W": (directions, rows, INPUTS), "R": (directions, rows, HIDDEN)}
    shapes |= {"B": (directions, 2 * rows), "H": (directions, BATCH, HIDDEN)}
    operands = ["X", "W", "R", "B", "L" if lengths else "", "H"]
    if name == "LSTM":
        shapes |= {"C": (directions, BATCH, HIDDEN), "P": (directions, 3 * HIDDEN)}
        operands += ["C", "P"]
    if batch_first:
        shapes |= {key: (shapes[key][1], shapes[key][0], *shapes[key][2:]) for key in "XHC" if key in shapes}
    outputs = ["Y", "Y_h", "Y_c"] if name == "LSTM" else ["Y", "Y_h"]
    text = f"{', '.join(outputs)} = {name}<hidden_size = {HIDDEN}{attributes}>({', '.join(operands)})"
    rng = np.random.default_rng(0)
    feeds = {key: (0.7 * rng.normal(size=shape)).astype(np.float32) for key, shape in shapes.items()}
    inputs = [
        helper.make_tensor_value_info(key, TensorProto.FLOAT, array.shape) for key, array in feeds.items()
    ]
    if lengths:
        feeds["L"] = np.array([2, TIME, 1], dtype=np.int32)
        inputs.append(helper.make_tensor_value_info("L", TensorProto.INT32, [BATCH]))
    nodes = onnx.parser.parse_graph("g () => () {" + text + "}").node
    results = [helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in outputs]
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, results), ir_version=8, opset_imports=opsets
    ), feeds


def evaluate(model, feeds, ops=CELLS):
    wide = {key: array.astype(np.float64) if key != "L" else array for key, array in feeds.items()}
    return ReferenceEvaluator(model, new_ops=ops).run(None, wide)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("name", GATES)
def test_plain_forms_are_those_of_onnx(name, layout, direction):
    model, feeds = recurrent(
        name, f', direction = "{direction}", layout = {layout}', batch_first=bool(layout)
    )
    for ours, theirs in zip(evaluate(model, feeds), evaluate(model, feeds, None), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("RNN", ""),
        ("RNN", ", clip = 0.3"),
        ("GRU", ", linear_before_reset = 1"),
        ("GRU", ", clip = 0.3"),
        ("GRU", ", linear_before_reset = 1, clip = 0.3"),
        ("LSTM", ""),
        ("LSTM", ", clip = 0.3"),
        ("LSTM", ", input_forget = 1"),
        ("LSTM", ", input_forget = 1, clip = 0.3"),
    ],
)
def test_the_runtime_computes_the_same(name, attributes, direction, lengths):
    model, feeds = recurrent(name, f', direction = "{direction}"{attributes}', lengths=lengths)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(evaluate(model, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


#: Activations of the gates in another order than by default.
NAMED = [("RNN", ["Relu"]), ("GRU", ["Tanh", "Sigmoid"]), ("LSTM", ["Sigmoid", "Relu", "Sigmoid"])]


def test_every_activation_has_a_case():
    assert set(ACTIVATIONS) == {entry.lower() for _, activations in NAMED for entry in activations}


@pytest.mark.parametrize(("name", "activations"), NAMED)
def test_activations_are_those_named(name, activations):
    listed = ", ".join(f'"{entry}"' for entry in activations)
    model, feeds = recurrent(name, f", activations = [{listed}]")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(evaluate(model, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_a_sample_without_steps_ends_in_zeros():
    model, feeds = recurrent("LSTM", lengths=True)
    feeds["L"] = np.array([0, TIME, 1], dtype=np.int32)
    for result, axis in zip(evaluate(model, feeds), (2, 1, 1), strict=True):
        assert not np.take(result, 0, axis).any()
        assert np.take(result, 1, axis).all()


# Gradients, judged by them.


@pytest.mark.parametrize("output", ["Y", "Y_h"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", GATES)
def test_gradients_over_samples_of_lengths_pass(name, direction, output):
    model, feeds = recurrent(name, f', direction = "{direction}"', lengths=True)
    assert check_gradients(model, output=output, feeds=feeds).max_error < 1e-5


@pytest.mark.parametrize("name", GATES)
def test_other_activations_pass(name):
    count = {"RNN": 1, "GRU": 2, "LSTM": 3}[name]
    listed = ", ".join(['"Sigmoid"'] * count)
    model, feeds = recurrent(name, f", activations = [{listed}]")
    assert check_gradients(model, output="Y", feeds=feeds).max_error < 1e-5


@pytest.mark.parametrize(("method", "output"), [("kept", "Y"), ("at_ends", "Y_h"), ("flipped", "Y_h")])
@pytest.mark.parametrize("name", GATES)
def test_a_gradient_that_ignores_lengths_is_found(monkeypatch, name, method, output):
    model, feeds = recurrent(name, ', direction = "reverse"', lengths=True)
    assert check_gradients(model, output=output, feeds=feeds, max_elements=100).max_error < 1e-5
    ignoring = {
        "kept": lambda self, sequence: sequence,
        "at_ends": lambda self, state, sequence: sequence * 0,
        "flipped": lambda self, sequence: sequence,
    }
    monkeypatch.setattr(Lengths, method, ignoring[method])
    with pytest.raises(GradientError, match="The gradient by"):
        check_gradients(model, output=output, feeds=feeds, max_elements=100)


def test_an_activation_without_a_formula_is_refused():
    model, feeds = recurrent("RNN", ', activations = ["Softsign"]')
    with pytest.raises(UnsupportedError, match="Softsign cannot be evaluated; relu, sigmoid, tanh can"):
        evaluate(model, feeds)
