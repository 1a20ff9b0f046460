"""Tables from which loops pick rows: the gradient is summed once, after the loop, for any picks."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.gradient.portable import differentiate
from onnxsgd.gradient.portable.rules import loop_gather as picks

TRUE = np.array(True)

# The place is a state: onnx's evaluator makes a column of the numbers of the iterations.
BAG = """
    O = Constant <value_ints = [0]> () I = Constant <value_ints = [1]> ()
    E, S = Loop <body = b (int64 i, bool c, int64[1] e) => (bool d, int64[1] j, double[3] z)
        { d = Identity(c) j = Add(e, I) u = Gather(B, e) v = Gather(B, j) p = Slice(P, u, v) r = Gather(T, p)
          q = Mul(r, r) t = ReduceSum<keepdims = 0>(q, O) z = Sin(t) }> (N, K, O)
"""

BAGS = {
    "N": np.array(4), "K": TRUE, "B": np.array([0, 3, 3, 4, 6]),
    "P": np.array([1, 4, 1, -1, 0, 1]),
}  # fmt: skip

TWO = """
    F, S = Scan <num_scan_inputs = 2, body = b (double[2] h, int64 p, int64[2, 1] m)
        => (double[2] k, double[2, 1, 2] z)
        { r = Gather(T, p) s = Gather(T, m) a = Mul(r, h) k = Tanh(a) z = Mul(s, k) }> (H, P, M)
"""

PAIRS = {"P": np.array([2, 0, 2]), "M": np.array([[[0], [2]], [[1], [1]], [[-1], [2]]])}

NUMBERS = """
    F = Scan <num_scan_inputs = 1, body = b (double h, int64 p) => (double k)
        { r = Gather(T, p) s = Sin(r) k = Add(h, s) }> (H, P)
"""

BOTH = """
    F = Scan <num_scan_inputs = 1, body = b (double[2] h, int64 p) => (double[2] k)
        { r = Gather(T, p) m = MatMul(T, r) c = Constant<value_ints = [0, 1]>() q = Gather(m, c)
          k = Add(h, q) }> (H, P)
"""


BRANCH = """
    F = Scan <num_scan_inputs = 1, body = b (double[2] h, int64 p) => (double[2] k)
        { r = Gather(T, p) g = Cast<to = 9>(p) w = If(g) <
            then_branch = x () => (double[2, 2] n) { n = Identity(T) },
            else_branch = y () => (double[2, 2] e) { e = Sin(T) }>
          m = MatMul(w, r) k = Add(h, m) }> (H, P)
"""


@pytest.fixture(autouse=True)
def every_table(monkeypatch):
    """Take small tables for large ones."""
    monkeypatch.setattr(picks, "_LARGE", 0)
    monkeypatch.setattr(picks, "_FEW", 0)


def _float_model(n_rows):
    return f"""
    <ir_version: 9, opset_import: ["": 18]>
    g (float[{n_rows}, 3] T, int64 N, bool K, int64[5] B, int64[6] P) => (float[n, 3] S)
    {{ {BAG.replace("double[3]", "float[3]")} }}
    """


def _scatters_in_bodies(text):
    model = differentiate(ir.from_proto(onnx.parser.parse_model(text)), ["S"], ["T"])
    scans = [node for node in model.graph.all_nodes() if node.op_type == "Scan"]
    return [n.op_type for scan in scans for n in scan.attributes["body"].as_graph() if "Scatter" in n.op_type]


def test_iterations_that_pick_some_rows_one_row_twice_or_none(check):
    check(BAG, {"T": (5, 3)}, constants=BAGS, outputs=("S",))


@pytest.mark.parametrize("trip_count", [0, 1, 4])
def test_the_runtime_picks_at_any_trip_count(trip_count):
    runtime = pytest.importorskip("onnxruntime")
    model = ir.to_proto(differentiate(ir.from_proto(onnx.parser.parse_model(_float_model(5))), ["S"], ["T"]))
    rng = np.random.default_rng(0)
    table, seed = (rng.normal(size=size).astype(np.float32) for size in ((5, 3), (trip_count, 3)))
    feeds = {**BAGS, "N": np.array(trip_count), "T": table, "S_grad": seed}
    found = runtime.InferenceSession(model.SerializeToString()).run(["T_grad"], feeds)[0]
    bags = [BAGS["P"][a:b] for a, b in zip(BAGS["B"], BAGS["B"][1:], strict=False)][:trip_count]
    expected = np.zeros((5, 3))
    for bag, dz in zip(bags, seed, strict=True):
        slope = dz * np.cos((table[bag] ** 2).sum(axis=0))
        np.add.at(expected, bag, 2 * table[bag] * slope)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outputs", [("F", "S"), ("F",), ("S",)])
def test_two_picks_from_one_table(check, outputs):
    check(TWO, {"T": (3, 2), "H": (2,)}, constants=PAIRS, outputs=outputs)


def test_a_table_of_numbers(check):
    check(NUMBERS, {"T": (3,), "H": ()}, constants={"P": np.array([1, 1, 0])}, outputs=("F",))


@pytest.mark.parametrize("nodes", [BOTH, BRANCH])
def test_a_table_that_is_read_in_another_way(check, nodes):
    check(nodes, {"T": (2, 2), "H": (2,)}, constants={"P": np.array([1, 1, 0])}, outputs=("F",))


def test_picks_can_be_differentiated_twice(check_twice):
    check_twice(TWO, {"T": (3, 2), "H": (2,)}, constants=PAIRS, outputs=("F",))


@pytest.mark.parametrize(("n_rows", "n_scatters"), [(20_000, 0), (200, 1)])
def test_no_iteration_passes_over_a_large_table(monkeypatch, n_rows, n_scatters):
    monkeypatch.undo()
    assert len(_scatters_in_bodies(_float_model(n_rows))) == n_scatters
