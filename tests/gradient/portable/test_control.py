"""Branches and loops: the gradient follows the branch that was taken, through every turn that was made."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable import differentiate

THEN = "then_branch = t () => (double[3] P) { U = Mul(A, B) P = Tanh(U) }"
ELSE = "else_branch = e () => (double[3] Q) { Q = Sin(A) }"
BRANCHES = f"C = Relu(A) D = If(M) <{THEN}, {ELSE}> Y = Mul(C, D)"

DECAY = """
    F, S = Scan <num_scan_inputs = 1, body = b (double[2] h, double[2] x) => (double[2] k, double[2] z)
        { p = Mul(h, W) q = Add(p, x) k = Tanh(q) z = Mul(k, x) }> (H, X)
"""

POWER = """
    T, S = Loop <body = b (int64 i, bool c, double[2] s) => (bool d, double[2] t, double[2] z)
        { d = Identity(c) f = Cast<to = 11>(i) g = Add(f, W) t = Mul(s, g) z = Sin(t) }> (N, K, A)
"""

UNTIL = """
    T = Loop <body = b (int64 i, bool c, double[2] s) => (bool d, double[2] t)
        { t = Mul(s, W) m = ReduceMax<keepdims = 0>(t) d = Less(m, L) }> (, K, A)
"""

NESTED = """
    T = Loop <body = b (int64 i, bool c, double[2] s) => (bool d, double[2] t)
        { d = Identity(c) e = Greater(i, Z) t = If(e) <
            then_branch = x () => (double[2] p) { p = Mul(s, W) },
            else_branch = y () => (double[2] q) { q = Mul(s, s) }> }> (N, K, A)
"""

OUTER = """
    X = Constant <value_ints = [-1]> () Z = Constant <value_ints = [-2]> ()
    F, S = Scan <num_scan_inputs = 2, body = b (h, p, q) => (k, z)
        { c = Unsqueeze(p, X) r = Unsqueeze(q, Z) m = MatMul(c, r) k = Add(h, m)
          u = Unsqueeze(p, Z) w = MatMul(u, k) z = Squeeze(w, Z) }> (H, A, B)
"""

MATRICES = """
    T = Loop <body = b (int64 i, bool c, s) => (bool d, t)
        { d = Identity(c) m = MatMul(s, W) t = Tanh(m) }> (N, K, A)
    Y = MatMul(T, W)
"""

TRUE, FALSE = np.array(True), np.array(False)


@pytest.mark.parametrize("taken", [TRUE, FALSE])
def test_the_branch_that_is_taken(check, taken):
    check(BRANCHES, {"A": (3,), "B": (3,)}, constants={"M": taken})


def test_branches_of_stored_weights(check):
    then = "then_branch = t () => (double[3] P) <double[3] w = {1.0, 2.0, 3.0}> { P = Mul(A, w) }"
    check(f"Y = If(M) <{then}, {ELSE}>", {"A": (3,)}, constants={"M": TRUE})


@pytest.mark.parametrize("outputs", [("F", "S"), ("F",), ("S",)])
def test_scan(check, outputs):
    check(DECAY, {"H": (2,), "X": (4, 2), "W": (2,)}, outputs=outputs)


def test_scan_of_sequences_of_any_length(check):
    check(DECAY, {"H": (2,), "X": (4, 2), "W": (2,)}, "hidden", outputs=("F", "S"), known=("H", "W"))


def test_loop_of_a_fixed_number_of_turns(check):
    check(POWER, {"A": (2,), "W": (2,)}, constants={"N": np.array(3), "K": TRUE}, outputs=("T", "S"))


def test_loop_that_stops_on_a_condition(check):
    given = {"A": np.array([0.3, 0.5]), "W": np.array([1.7, 1.4])}
    check(UNTIL, given, constants={"K": TRUE, "L": np.array(3.0)}, outputs=("T",))


def test_scan_of_products_whose_axes_come_from_outside(check):
    check(OUTER, {"H": (3, 2), "A": (4, 3), "B": (4, 2)}, outputs=("F", "S"))


def test_loop_of_products_that_declares_no_shapes(check):
    # onnx's evaluator stacks vectors only.
    check(MATRICES, {"A": (3,), "W": (3, 3)}, constants={"N": np.array(3), "K": TRUE})


def test_a_branch_within_a_loop(check):
    held = {"N": np.array(3), "K": TRUE, "Z": np.array(0)}
    check(NESTED, {"A": (2,), "W": (2,)}, constants=held, outputs=("T",))


def test_a_loop_can_be_differentiated_twice(check_twice):
    check_twice(DECAY, {"H": (2,), "X": (3, 2), "W": (2,)}, outputs=("F",))


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_a_recurrence_can_be_differentiated_twice(check_twice, name):
    rows = {"RNN": 2, "GRU": 6, "LSTM": 8}[name]
    operands = {"X": (3, 1, 2), "W": (1, rows, 2), "R": (1, rows, 2)}
    check_twice(f"Y = {name}<hidden_size = 2>(X, W, R)", operands)


def test_a_scan_in_another_order_is_refused():
    nodes = DECAY.replace("num_scan_inputs", "scan_input_directions = [1], num_scan_inputs")
    text = f"""
    <ir_version: 9, opset_import: ["": 18]>
    g (double[2] H, double[T, 2] X, double[2] W) => (double[2] F) {{ {nodes} }}
    """
    with pytest.raises(NotTrainableError, match=r"Scan .*scan_input_directions=\[1\]"):
        differentiate(ir.from_proto(onnx.parser.parse_model(text)), ["F"], ["W"])
