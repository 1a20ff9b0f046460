"""Each gradient rule, for each input that it differentiates, has a case against central differences.

Cases are the rows of CASES in the modules of this folder. Below are those of rules whose modules have none,
because their tests draw operands from settings.
"""

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxsgd.gradient.portable.rules.table import CONTROL, RULES

IMAGE, KERNEL = (2, 4, 5, 6), (6, 2, 3, 2)
CELL = {"X": (4, 3, 2), "H": (1, 3, 3)}


def _weights(gates):
    return {"W": (1, gates * 3, 2), "R": (1, gates * 3, 3), "B": (1, 2 * gates * 3)}


#: Nodes, operands, options; see :class:`conftest.Case`.
CASES = [
    ("Y = AveragePool<kernel_shape = [2, 3], strides = [2, 1]>(A)", {"A": IMAGE}, {"known_axes": (1,)}),
    ("Y = Conv<group = 2, strides = [1, 2]>(A, W, B)", {"A": IMAGE, "W": KERNEL, "B": (6,)},
     {"known": ("W",)}),
    ("Y = ConvTranspose<strides = [2, 1]>(A, W, B)", {"A": (2, 4, 3, 2), "W": (4, 3, 2, 3), "B": (3,)},
     {"known": ("W",)}),
    ("Y = DequantizeLinear(Q, S)", {"Q": np.arange(-6, 6, dtype=np.int8).reshape(3, 4), "S": (4,)},
     {"since": 19, "single": True, "rtol": 1e-5}),
    ('Y = Einsum<equation = "bij, bjk -> bik">(A, B)', {"A": (2, 3, 4), "B": (2, 4, 2)}, {}),
    ("Y, P = GRU<hidden_size = 3>(X, W, R, B, , H)", CELL | _weights(3),
     {"outputs": ("Y", "P"), "known": ("W", "R", "B")}),
    ("Y = Gemm<alpha = 0.7, beta = 1.3, transB = 1>(A, B, C)", {"A": (3, 4), "B": (2, 4), "C": (2,)}, {}),
    ("Y = GlobalAveragePool(A)", {"A": IMAGE}, {}),
    ("Y = GlobalLpPool<p = 3>(A)", {"A": IMAGE}, {}),
    ("Y = GlobalMaxPool(A)", {"A": IMAGE}, {"step": 1e-4}),
    ("Y = If(M) <then_branch = t () => (double[3] P) { P = Tanh(A) },"
     " else_branch = e () => (double[3] Q) { Q = Sin(A) }>", {"A": (3,)},
     {"constants": {"M": np.array(True)}}),
    ("Y = LRN<size = 3, alpha = 0.3, beta = 0.6>(A)", {"A": IMAGE}, {"known_axes": (1,)}),
    ("Y, P, Q = LSTM<hidden_size = 3>(X, W, R, B, , H, C, O)",
     CELL | _weights(4) | {"C": (1, 3, 3), "O": (1, 9)},
     {"outputs": ("Y", "P", "Q"), "known": ("W", "R", "B", "O")}),
    ("Y = Loop <body = b (int64 i, bool c, double[2] s) => (bool d, double[2] t)"
     " { d = Identity(c) u = Mul(s, W) t = Tanh(u) }> (N, K, A)", {"A": (2,), "W": (2,)},
     {"constants": {"N": np.array(3), "K": np.array(True)}}),
    ("Y = LpPool<p = 3, kernel_shape = [2, 2]>(A)", {"A": IMAGE}, {"since": 18, "known_axes": (1,)}),
    ("Y = MatMul(A, B)", {"A": (3, 2, 4), "B": (4, 5)}, {}),
    ("Y = MaxPool<kernel_shape = [2, 3]>(A)", {"A": IMAGE}, {"step": 1e-6}),
    ("Y, P = RNN<hidden_size = 3>(X, W, R, B, , H)", CELL | _weights(1),
     {"outputs": ("Y", "P"), "known": ("W", "R", "B")}),
    ('Y = Resize<mode = "linear">(A, , S)', {"A": (1, 2, 4, 5)},
     {"constants": {"S": np.array([1.0, 1.0, 1.5, 2.0], np.float32)}, "rtol": 1e-5}),
    ("F, Y = Scan <num_scan_inputs = 1, body = b (double[2] h, double[2] x) => (double[2] k, double[2] z)"
     " { p = Mul(h, W) q = Add(p, x) k = Tanh(q) z = Mul(k, x) }> (H, X)",
     {"H": (2,), "X": (4, 2), "W": (2,)}, {}),
    ("Y = Slice(A, S, E)", {"A": (4, 5), "S": np.array([1]), "E": np.array([3])}, {}),
]  # fmt: skip

#: Inputs whose gradient is no derivative, because rounding is passed: the tests of their convention.
CONVENTIONS = {
    ("ConvInteger", 0): "test_integer_products.test_convolutions_after_a_dynamic_quantization",
    ("DynamicQuantizeLinear", 0): "test_quantization.test_a_dynamic_quantization_passes_all_gradients",
    ("MatMulInteger", 0): "test_integer_products.test_matrices_after_a_dynamic_quantization",
    ("DequantizeLinear", 0): "test_quantization.test_straight_through_and_learned_step_size",
    ("com.microsoft.MatMulNBits", 0): "test_packed_products.test_the_gradient_is_the_product_with_the_matrix",
    ("QuantizeLinear", 0): "test_quantization.test_straight_through_and_learned_step_size",
    ("QuantizeLinear", 1): "test_quantization.test_straight_through_and_learned_step_size",
}


@cache
def modules():
    """Return the other test modules of this folder, by name."""
    found = {}
    for path in sorted({*Path(__file__).parent.glob("test_*.py")} - {Path(__file__)}):
        spec = importlib.util.spec_from_file_location(f"cases_of_{path.stem}", path)
        found[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[path.stem])
    return found


def differentiated(text, operands):
    """Return the operators of a case and their inputs that depend on a differentiated operand."""
    live = {name for name, a in operands.items() if not isinstance(a, np.ndarray) or a.dtype.kind == "f"}
    found = set()
    for node in onnx.parser.parse_graph("g () => () {" + text + "}").node:
        inputs = {(node.op_type, index) for index, name in enumerate(node.input) if name in live}
        if inputs or node.op_type in CONTROL:
            live |= set(node.output)
        found |= inputs or {(node.op_type, None)}
    return found


def rows():
    """Return each rule with each input that it differentiates; the first stands for inputs without number."""
    found = {(operator, None) for operator in CONTROL}
    for operator, rule in RULES.items():
        rules = (rule,) if callable(rule) else rule
        found |= {(operator, index) for index, one in enumerate(rules) if one is not None}
    return found


def test_every_rule_has_a_case_for_each_input():
    tables = [CASES, *(module.CASES for module in modules().values() if hasattr(module, "CASES"))]
    tried = set().union(*(differentiated(text, operands) for table in tables for text, operands, _ in table))
    tried |= {(operator, None) for operator, _ in tried if operator in CONTROL}
    assert rows() - tried == set(CONVENTIONS)


@pytest.mark.parametrize("place", sorted(set(CONVENTIONS.values())))
def test_conventions_are_tested(place):
    module, _, test = place.partition(".")
    assert callable(getattr(modules()[module], test))


def test_gradient_is_the_derivative(check, case):
    check(*case)
