"""Recurrences: the gradient of every weight runs back through all steps, in both directions of time."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.gradient.portable import differentiate
from onnxsgd.gradient.portable.rules import recurrent
from onnxsgd.gradient.portable.rules.cell_gates import SLOPES
from onnxsgd.gradient.portable.rules.recurrent_cells import CELLS
from onnxsgd.gradient.portable.rules.time_steps import _WRITTEN_OUT

TIME, BATCH, INPUTS, HIDDEN = 4, 2, 3, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def sizes(name, directions=1):
    rows = GATES[name] * HIDDEN
    return {
        "X": (TIME, BATCH, INPUTS),
        "W": (directions, rows, INPUTS),
        "R": (directions, rows, HIDDEN),
        "B": (directions, 2 * rows),
        "H": (directions, BATCH, HIDDEN),
    }


def cell(name, attributes=""):
    outputs, states = ("Y, P, Q", "H, C") if name == "LSTM" else ("Y, P", "H")
    return f"{outputs} = {name}<hidden_size = {HIDDEN}{attributes}>(X, W, R, B, , {states})"


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", ["RNN", "LSTM"])
def test_all_operands_and_outputs(check, name, direction, dims):
    operands = sizes(name, 1 + (direction == "bidirectional"))
    outputs = ("Y", "P")
    if name == "LSTM":
        operands, outputs = {**operands, "C": operands["H"]}, ("Y", "P", "Q")
    text = cell(name, f', direction = "{direction}"')
    check(text, operands, dims, outputs=outputs, known=("W", "R", "B"))


@pytest.mark.parametrize("linear_before_reset", [0, 1])
def test_gru(check, linear_before_reset):
    check(cell("GRU", f", linear_before_reset = {linear_before_reset}"), sizes("GRU"), outputs=("Y", "P"))


@pytest.mark.parametrize("n_steps", [1, _WRITTEN_OUT, _WRITTEN_OUT + 1])
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_steps_written_out_and_in_a_loop(check, check_runtime, name, n_steps):
    operands, outputs = sizes(name, 2), ("Y", "P", "Q") if name == "LSTM" else ("Y", "P")
    operands |= {"X": (n_steps, BATCH, INPUTS)} | ({"C": operands["H"]} if name == "LSTM" else {})
    text = cell(name, ', direction = "bidirectional"')
    check(text, operands, outputs=outputs)
    summed = f" U = ReduceSum<keepdims = 0>(T) Y = Sum(U, {', '.join(outputs[1:])})"
    check_runtime(text.replace("Y,", "T,") + summed, operands)


@pytest.mark.parametrize(
    ("name", "count", "loops"),
    [("RNN", _WRITTEN_OUT, 0), ("RNN", _WRITTEN_OUT + 1, 1), ("LSTM", _WRITTEN_OUT + 1, 2)],
)
def test_directions_share_their_loops(name, count, loops):
    # a loop each would take twice the time: the nodes of a step cost more than their arithmetic
    rows = GATES[name] * HIDDEN
    model = ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[{count},2,3] X, float[2,{rows},3] W, float[2,{rows},2] R) => (float[{count},2,2,2] Y) {{
            Y = {name}<hidden_size = 2, direction = "bidirectional">(X, W, R) }}""")
    )
    gradient = differentiate(model, ["Y"], ["X", "W", "R"])
    assert sum(node.op_type == "Scan" for node in gradient.graph) == loops


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_directions_are_turned_in_one_piece(name):
    # otherwise each sequence is split, reversed in part and joined
    rows = GATES[name] * HIDDEN
    model = ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[9,2,3] X, float[2,{rows},3] W, float[2,{rows},2] R) => (float[9,2,2,2] Y) {{
            Y = {name}<hidden_size = 2, direction = "bidirectional">(X, W, R) }}""")
    )
    nodes = list(differentiate(model, ["Y"], ["W", "R"]).graph)
    reversals = [node for node in nodes if node.op_type == "Slice" and len(node.inputs) == 5]
    assert not reversals
    assert sum(node.op_type == "Gather" for node in nodes) >= 2


@pytest.mark.parametrize(
    ("most_rows", "inputs", "products"),
    [(4 * HIDDEN, INPUTS, 1), (4 * HIDDEN - 1, INPUTS, 3), (4 * HIDDEN, 4 * HIDDEN - HIDDEN, 3)],
    ids=["few rows", "many rows", "many inputs"],
)
def test_gradients_of_weights_by_one_product_and_by_three(check, monkeypatch, most_rows, inputs, products):
    monkeypatch.setattr(recurrent, "_ROWS", most_rows)
    operands = sizes("LSTM", 2) | {"X": (9, BATCH, inputs), "W": (2, 4 * HIDDEN, inputs)}
    operands["C"] = operands["H"]
    text = cell("LSTM", ', direction = "bidirectional"')
    check(text, operands, outputs=("Y", "P", "Q"), known=("W", "R", "B"))
    shapes = ", ".join(f"float{list(shape)} {name}" for name, shape in operands.items())
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g ({shapes}) => (float[9,2,2,2] Y) {{ {text} }}"""
    )
    gradient = differentiate(ir.from_proto(model), ["Y"], ["W", "R", "B"])
    # the gates are one more product
    assert sum(node.op_type == "MatMul" for node in gradient.graph) == 1 + products


@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_directions_with_activations_of_their_own(check, dims):
    operands = sizes("LSTM", 2)
    operands["C"] = operands["H"]
    listed = '["Sigmoid", "Tanh", "Tanh", "Relu", "Sigmoid", "Tanh"]'
    text = cell("LSTM", f', direction = "bidirectional", activations = {listed}')
    check(text, operands, dims, outputs=("Y", "P", "Q"), known=("W", "R", "B"))


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_last_state_alone(check, name):
    operands = {key: size for key, size in sizes(name).items() if key in "XWR"}
    check(f", P = {name}<hidden_size = {HIDDEN}>(X, W, R)", operands, outputs=("P",))


def read_at(index, name, direction, n_steps):
    """Return a cell whose hidden states after one step are read, as torch's exporter writes it."""
    count = 1 + (direction == "bidirectional")
    operands = {**sizes(name, count), "X": (n_steps, BATCH, INPUTS)}
    operands |= {"C": operands["H"]} if name == "LSTM" else {}
    text = (
        cell(name, f', direction = "{direction}"').replace("Y,", "S,").replace("P, Q", "").replace("P =", "=")
    )
    text = f"""I = Constant<value = int64 {{{index}}}>() Z = Constant<value = int64[3] {{0, 0, -1}}>() {text}
        D = Transpose<perm = [0, 2, 1, 3]>(S) T = Reshape(D, Z)
        L = Transpose<perm = [1, 0, 2]>(T) Y = Gather<axis = 1>(L, I)"""
    return text, operands


@pytest.mark.parametrize("n_steps", [4, _WRITTEN_OUT + 2])
@pytest.mark.parametrize("index", [0, 2, -1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_one_step_is_read(check, check_runtime, name, direction, index, n_steps):
    text, operands = read_at(index, name, direction, n_steps)
    check(text, operands, known=("W", "R", "B"))
    check_runtime(text, operands)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_one_step_is_read_at_hidden_sizes_and_beside_others(check, direction):
    text, operands = read_at(-1, "LSTM", direction, 4)
    check(text, operands, "hidden", known=("W", "R", "B"))
    # the last states, and all of them, are read too
    check(
        text.replace("S, ", "S, P, Q").replace("P, QP", "P"),
        operands,
        outputs=("Y", "Q"),
        known=("W", "R", "B"),
    )
    check(f"{text} U = ReduceSum<keepdims = 0>(S)", operands, outputs=("Y", "U"), known=("W", "R", "B"))


def test_steps_that_no_gradient_reaches_are_left_out():
    # the reverse direction has made one step when the last one is read
    text, operands = read_at(-1, "LSTM", "bidirectional", 20)
    shapes = ", ".join(f"float{list(shape)} {name}" for name, shape in operands.items())
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g ({shapes}) => (float[2,4] Y) {{ {text} }}"""
    )
    graph = differentiate(ir.from_proto(model), ["Y"], ["W", "R", "B"]).graph
    loops = [node for node in graph if node.op_type == "Scan"]
    # the memory, and the gradient: through the slopes of three, without one that enters at each step
    assert [node.attributes["num_scan_inputs"].as_int() for node in loops] == [2, 3]
    assert all(node.inputs[-1].shape.numpy()[:2] == (20, 1) for node in loops)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_batch_before_time(check_runtime, gradients, name):
    # No runtime computes this form: its gradients are those of the other one between transpositions.
    turned = cell(name, "").replace("(X, ", "(U, ").replace("H, C", "V, Z").replace(", H)", ", V)")
    turned = f"U = Transpose<perm = [1, 0, 2]>(X) V = Transpose<perm = [1, 0, 2]>(H) {turned}"
    plain = cell(name, ", layout = 1")
    if name == "LSTM":
        turned = f"Z = Transpose<perm = [1, 0, 2]>(C) {turned}"
    turned = turned.replace("Y, P", "T, P") + " Y = Transpose<perm = [2, 0, 1, 3]>(T)"
    rng = np.random.default_rng(0)
    shapes = {**sizes(name), "X": (BATCH, TIME, INPUTS), "H": (BATCH, 1, HIDDEN)}
    shapes = {**shapes, "C": (BATCH, 1, HIDDEN)} if name == "LSTM" else shapes
    arrays = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    found, expected = gradients(plain, **arrays), gradients(turned, **arrays)
    for dx, target in zip(found, expected, strict=True):
        np.testing.assert_allclose(dx, target, rtol=1e-9, atol=1e-12)
    check_runtime(plain, arrays)


#: Of each cell: activations of its gates in another order than by default.
ACTIVATIONS = {
    "RNN": ["Sigmoid"],
    "GRU": ["Tanh", "Relu"],
    "LSTM": ["Relu", "Sigmoid", "Tanh"],
}


def test_every_cell_and_every_slope_has_a_case():
    assert set(CELLS) == set(ACTIVATIONS) == set(GATES)
    assert set(SLOPES) == set().union(*ACTIVATIONS.values())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(check, name):
    listed = ", ".join(f'"{activation}"' for activation in ACTIVATIONS[name])
    operands, outputs = sizes(name), ("Y", "P")
    if name == "LSTM":
        operands, outputs = {**operands, "C": operands["H"]}, ("Y", "P", "Q")
    check(cell(name, f", activations = [{listed}]"), operands, outputs=outputs)


def of_lengths(name, attributes="", counts=(TIME, 0, 2)):
    """Return the text, operands and outputs of a cell over samples of these lengths."""
    samples, operands = len(counts), sizes(name, 1 + ("bidirectional" in attributes))
    directions = operands["H"][0]
    operands |= {"X": (TIME, samples, INPUTS), "H": (directions, samples, HIDDEN)}
    if "layout" in attributes:
        operands |= {"X": (samples, TIME, INPUTS), "H": (samples, directions, HIDDEN)}
    if name == "LSTM":
        operands["C"] = operands["H"]
    operands["L"] = np.array(counts, dtype=np.int32)
    outputs = ("Y", "P", "Q") if name == "LSTM" else ("Y", "P")
    return cell(name, attributes).replace("B, ,", "B, L,"), operands, outputs


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_lengths(check, name, direction, dims):
    text, operands, outputs = of_lengths(name, f', direction = "{direction}"')
    check(text, operands, dims, outputs=outputs, known=("W", "R", "B"))


@pytest.mark.parametrize("attributes", [", linear_before_reset = 1", ", layout = 1"])
def test_lengths_of_a_gru(check, attributes):
    text, operands, outputs = of_lengths("GRU", attributes)
    check(text, operands, outputs=outputs)


@pytest.mark.parametrize("output", ["Y", "P", "Q"])
def test_lengths_and_one_output_without_first_states(check, output):
    text, operands, _ = of_lengths("LSTM", ', direction = "bidirectional"')
    operands = {key: size for key, size in operands.items() if key not in "HC"}
    check(text.replace("H, C", ""), operands, outputs=(output,))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_lengths_at_run_time(check_runtime, name, direction):
    # No sample without steps: onnxruntime 1.19 leaves the last state of an RNN there to chance.
    text, operands, outputs = of_lengths(name, f', direction = "{direction}"', (2, TIME, 1))
    text = text.replace("Y,", "T,") + f" U = ReduceSum<keepdims = 0>(T) Y = Sum(U, {', '.join(outputs[1:])})"
    check_runtime(text, operands)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_nothing_after_the_end_counts(gradients, name):
    text, operands, _ = of_lengths(name)
    rng = np.random.default_rng(0)
    arrays = {k: v if k == "L" else rng.normal(size=v) for k, v in operands.items()}
    expected = gradients(text, **arrays)
    arrays["X"][2:, 2] = np.nan
    for dx, target in zip(gradients(text, **arrays), expected, strict=True):
        np.testing.assert_array_equal(dx, target)


GROWING = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[time,2,1] X, float[1,4,1] W, float[1,4,1] R, float[1,8] B) => (float[1,2,1] Q)
<int32[2] L = {2, 1}> {
    , , Q = LSTM<hidden_size = 1, activations = ["Relu", "Tanh", "Tanh"]>(X, W, R, B, L)
}
"""


def test_memory_that_grows_after_the_end():
    # Gates of a Relu double the memory in each step: it would overflow long before the last one.
    runtime = pytest.importorskip("onnxruntime")
    model = ir.from_proto(onnx.parser.parse_model(GROWING))
    gradient = ir.to_proto(differentiate(model, ["Q"], ["X", "W", "R", "B"]))
    session = runtime.InferenceSession(gradient.SerializeToString(), providers=["CPUExecutionProvider"])
    found = []
    for time in (2, 400):
        x = np.full((time, 2, 1), 0.5)
        weights = [np.full((1, 4, 1), 0.3), np.full((1, 4, 1), 0.2), np.array([[2, 1, 2, 1, 0, 0, 0, 0]])]
        feeds = dict(zip("XWRB", [x, *weights], strict=True), Q_grad=np.ones((1, 2, 1)))
        dx, *rest = session.run(None, {key: array.astype(np.float32) for key, array in feeds.items()})[1:]
        found.append([dx[:2], *rest])
    for short, long in zip(*found, strict=True):
        assert np.abs(short).max() > 0.1
        np.testing.assert_allclose(long, short, rtol=1e-6)


@pytest.mark.parametrize("counts", [None, (TIME, 0, 2)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_peepholes(check, direction, counts):
    text, operands, outputs = of_lengths("LSTM", f', direction = "{direction}"', counts or (TIME, TIME))
    operands["O"] = (operands["H"][0], 3 * HIDDEN)
    text = text.replace("H, C)", "H, C, O)")
    if counts is None:
        del operands["L"]
        text = text.replace("L,", ",")
    check(text, operands, "hidden", outputs=outputs, known=("W", "R", "B"))


@pytest.mark.parametrize("counts", [(TIME, TIME), (2, TIME, 1)])
def test_peepholes_at_run_time(check_runtime, counts):
    text, operands, _ = of_lengths("LSTM", ', direction = "bidirectional"', counts)
    text = text.replace("H, C)", "H, C, O)").replace("Y,", "T,")
    text += " U = ReduceSum<keepdims = 0>(T) Y = Sum(U, P, Q)"
    check_runtime(text, {**operands, "O": (2, 3 * HIDDEN)})


#: A bound that the gates exceed about half of the time, and the forget gate 1 - i.
BOUNDED, COUPLED = ", clip = 0.8", ", input_forget = 1"


@pytest.mark.parametrize("counts", [None, (TIME, 0, 2)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("RNN", BOUNDED),
        ("GRU", BOUNDED),
        ("GRU", f"{BOUNDED}, linear_before_reset = 1"),
        ("LSTM", BOUNDED),
        ("LSTM", COUPLED),
        ("LSTM", BOUNDED + COUPLED),
        ("LSTM", f"{BOUNDED}{COUPLED}, layout = 1"),
    ],
)
def test_bounds_and_coupled_gates(check, name, attributes, direction, counts):
    attributes += f', direction = "{direction}"'
    text, operands, outputs = of_lengths(name, attributes, counts or (TIME, TIME))
    if counts is None:
        del operands["L"]
        text = text.replace("L,", ",")
    check(text, operands, "hidden", outputs=outputs, known=("W", "R", "B"), step=5e-5)


@pytest.mark.parametrize("attributes", [BOUNDED, COUPLED, BOUNDED + COUPLED])
@pytest.mark.parametrize("counts", [None, (TIME, 0, 2)])
def test_bounds_and_coupled_gates_with_peepholes(check, attributes, counts):
    attributes += ', direction = "bidirectional"'
    text, operands, outputs = of_lengths("LSTM", attributes, counts or (TIME, TIME))
    operands["O"] = (2, 3 * HIDDEN)
    text = text.replace("H, C)", "H, C, O)")
    if counts is None:
        del operands["L"]
        text = text.replace("L,", ",")
    check(text, operands, outputs=outputs, step=5e-5)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [("RNN", BOUNDED), ("GRU", BOUNDED), ("LSTM", BOUNDED), ("LSTM", COUPLED), ("LSTM", BOUNDED + COUPLED)],
)
def test_bounds_at_run_time(check_runtime, name, attributes):
    text, operands, outputs = of_lengths(name, f'{attributes}, direction = "bidirectional"', (2, TIME, 1))
    text = text.replace("Y,", "T,") + f" U = ReduceSum<keepdims = 0>(T) Y = Sum(U, {', '.join(outputs[1:])})"
    check_runtime(text, operands)
