"""Recurrences: the gradient of every weight runs back through all steps, in both directions of time."""

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


def test_peepholes_are_refused(check):
    operands = {**sizes("LSTM"), "C": (1, BATCH, HIDDEN), "O": (1, 3 * HIDDEN)}
    with pytest.raises(Exception, match="LSTM .* with peepholes"):
        check(f"Y = LSTM<hidden_size = {HIDDEN}>(X, W, R, B, , H, C, O)", operands)
