"""Recurrences: the gradient of every weight runs back through all steps, in both directions of time."""

import numpy as np
import pytest

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


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_last_state_alone(check, name):
    operands = {key: size for key, size in sizes(name).items() if key in "XWR"}
    check(f", P = {name}<hidden_size = {HIDDEN}>(X, W, R)", operands, outputs=("P",))


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


def test_peepholes_are_refused(check):
    operands = {**sizes("LSTM"), "C": (1, BATCH, HIDDEN), "O": (1, 3 * HIDDEN)}
    with pytest.raises(Exception, match="LSTM .* with peepholes"):
        check(f"Y = LSTM<hidden_size = {HIDDEN}>(X, W, R, B, , H, C, O)", operands)
