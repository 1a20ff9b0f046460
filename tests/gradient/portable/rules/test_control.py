"""Branches and loops: the gradient follows the branch that was taken, through every iteration."""

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

STEP = 1e-4


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


def test_loop_of_a_fixed_trip_count(check):
    check(POWER, {"A": (2,), "W": (2,)}, constants={"N": np.array(3), "K": TRUE}, outputs=("T", "S"))


def test_loop_that_stops_on_a_condition(check):
    given = {"A": np.array([0.3, 0.5]), "W": np.array([1.7, 1.4])}
    check(UNTIL, given, constants={"K": TRUE, "L": np.array(3.0)}, outputs=("T",))


LOOPS = [
    f"{POWER} U = Mul(T, A) R = ReduceSum<keepdims = 0>(S) Y = Add(U, R)",
    f"{UNTIL} Y = Mul(T, A)",
    # the first state is captured, too, and so is the result of another loop
    f"{POWER} {POWER.replace('T, S', 'V, O').replace('Add(f, W)', 'Mul(T, A)')} Y = Mul(V, W)",
]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("trip_count", "condition"), [(0, TRUE), (2, FALSE), (2, TRUE)])
@pytest.mark.parametrize("nodes", LOOPS)
def test_a_loop_in_the_runtime_that_may_not_iterate(nodes, trip_count, condition, constant):
    """Central differences of the runtime itself, which scans no empty sequence."""
    runtime = pytest.importorskip("onnxruntime")
    numbers = f"<int64 N = {{{trip_count}}}, bool K = {{{int(condition)}}}>" if constant else ""
    inputs = "double[2] A, double[2] W, double L" + ("" if constant else ", int64 N, bool K")
    nodes = nodes.replace("Sin", "Tanh")  # whose gradient has kernels for float64 in every runtime
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (double[2] Y) {numbers} {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], ["A", "W"]))
    forward, backward = (runtime.InferenceSession(m.SerializeToString()) for m in (model, gradient))
    values = {"A": np.array([0.3, 0.5]), "W": np.array([1.7, 1.4]), "L": np.array(3.0), "K": condition,
              "N": np.array(trip_count), "Y_grad": np.array([0.7, -1.3])}  # fmt: skip

    def run(session, **moved):
        feeds = values | moved
        return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})

    for name, found in zip("AW", run(backward)[1:], strict=True):
        steps = STEP * np.eye(2)
        ends = [[run(forward, **{name: values[name] + sign * h})[0] for sign in (1, -1)] for h in steps]
        expected = [values["Y_grad"] @ (up - down) / (2 * STEP) for up, down in ends]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_loop_that_always_iterates_needs_no_branch(check):
    held = {"N": np.array(1), "K": TRUE}
    gradient = check(POWER, {"A": (2,), "W": (2,)}, constants=held, outputs=("T",))
    assert "If" not in {node.op_type for node in gradient.graph.node}


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


#: The axes and directions of a Scan with two sequences in and two out.
ORDERS = [
    ("scan_input_directions = [1, 0]", (4, 2), (4, 2)),
    ("scan_input_directions = [1, 1], scan_output_directions = [0, 1]", (4, 2), (4, 2)),
    ("scan_output_directions = [1, 1]", (4, 2), (4, 2)),
    ("scan_input_axes = [1, 0]", (2, 4), (4, 2)),
    ("scan_input_axes = [-1, 1], scan_output_axes = [1, 0]", (2, 4), (2, 4)),
    ("scan_output_axes = [-1, -2]", (4, 2), (4, 2)),
    (
        "scan_input_axes = [1, 0], scan_input_directions = [1, 1], scan_output_axes = [1, 1], "
        "scan_output_directions = [1, 0]",
        (2, 4),
        (4, 2),
    ),
]


def in_order(order):
    return f"""
    F, S, T = Scan <num_scan_inputs = 2, {order}, body = b (h, x, y) => (k, z, u)
        {{ p = Mul(h, W) q = Mul(x, y) r = Add(p, q) k = Tanh(r) z = Mul(k, x) u = Sin(r) }}> (H, X, Z)
    """


@pytest.mark.parametrize("outputs", [("F", "S", "T"), ("T",), ("F",)])
@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("order", "first", "second"), ORDERS)
def test_scans_in_other_orders(check, order, first, second, dims, outputs):
    operands = {"H": (2,), "X": first, "Z": second, "W": (2,)}
    check(in_order(order), operands, dims, outputs=outputs)


@pytest.mark.parametrize(("order", "first", "second"), ORDERS)
def test_scans_in_other_orders_at_run_time(check_runtime, evaluate, order, first, second):
    nodes, operands = in_order(order), {"H": (2,), "X": first, "Z": second, "W": (2,)}
    shapes = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in operands.items())
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g ({shapes}) => (float F, float S, float T) {{ {nodes} }}'
    )
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in operands.items()}
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(evaluate(model, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    sums = "s = ReduceSum<keepdims = 0>(S) t = ReduceSum<keepdims = 0>(T) Y = Sum(F, s, t)"
    check_runtime(nodes + sums, operands)


@pytest.mark.parametrize(
    ("into", "out", "shape"), [(2, 1, (2, 3, 4)), (1, -1, (2, 4, 3)), (-1, 2, (2, 3, 4))]
)
def test_scans_over_matrices_in_other_orders(check, check_runtime, into, out, shape):
    order = f"scan_input_axes = [{into}], scan_output_axes = [{out}], scan_output_directions = [1]"
    text = f"""
    F, S = Scan <num_scan_inputs = 1, {order}, body = b (h, x) => (k, z)
        {{ p = Mul(h, W) q = Add(p, x) k = Tanh(q) z = Mul(k, x) }}> (H, X)
    """
    operands = {"H": (2, 3), "X": shape, "W": (3,)}
    check(text, operands, outputs=("F", "S"))
    check(text, operands, "hidden", outputs=("S",))
    check_runtime(text + "s = ReduceSum<keepdims = 0>(S) Y = Sum(F, s)", operands)


def test_a_scan_within_a_branch_in_another_order(check):
    order = "scan_input_axes = [1, 0], scan_output_directions = [1, 1]"
    then = in_order(order).replace("F, S, T =", "f, R, t =")
    text = f"""
    A = If(M) <then_branch = t () => (double[4, 2] R) {{ {then} }},
               else_branch = e () => (double[4, 2] Q) {{ Q = Sin(Z) }}>
    Y = Tanh(A)
    """
    check(text, {"H": (2,), "X": (2, 4), "Z": (4, 2), "W": (2,)}, constants={"M": TRUE})


def test_sequences_of_unknown_rank_along_another_axis_are_refused():
    text = """
    <ir_version: 9, opset_import: ["": 18]>
    g (double[2] H, double[N, M] X, int64[K] I, double[2] W) => (double[2] F) {
        U = Reshape(X, I)
        F, S = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = b (h, x) => (k, z)
            { p = Mul(h, W) k = Add(p, x) z = Mul(k, x) }> (H, U)
    }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(NotTrainableError, match="scan_input_axes needs sequences of known rank"):
        differentiate(model, ["F"], ["W"])
