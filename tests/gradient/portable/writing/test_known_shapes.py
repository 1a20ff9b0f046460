"""Shapes known while a graph is built are those of the values that the operators return."""

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxsgd.gradient.portable.writing.known_shapes import _RULES as RULES
from onnxsgd.gradient.portable.writing.known_shapes import broadcast, read_shape, result_dims, to_shape

#: Operator, attributes, and operands: shapes of real tensors, lists of integers.
CASES = [
    ("CumSum", {}, [(2, 3), [1]]),
    ("Expand", {}, [(3, 1), [2, 3, 4]]),
    ("Gemm", {}, [(2, 3), (3, 4)]),
    ("Gemm", {"transA": 1, "transB": 1}, [(3, 2), (4, 3)]),
    ("MatMul", {}, [(2, 3), (3, 4)]),
    ("MatMul", {}, [(5, 1, 2, 3), (6, 3, 4)]),
    *(
        (name, {"keepdims": keep}, [(2, 3, 4), axes])
        for name in ("ReduceMax", "ReduceMean", "ReduceProd", "ReduceSum")
        for keep in (0, 1)
        for axes in ([1], [0, -1])
    ),
    ("ReduceSum", {}, [(2, 3, 4)]),
    ("Reshape", {}, [(2, 3, 4), [6, 4]]),
    ("Reshape", {}, [(2, 3, 4), [4, -1, 2]]),
    ("ScatterElements", {"axis": 1}, [(2, 3), np.array([[0], [2]]), (2, 1)]),
    ("ScatterND", {}, [(2, 3), np.array([[1]]), (1, 3)]),
    ("Size", {}, [(2, 3)]),
    ("Softmax", {"axis": 0}, [(2, 3)]),
    ("Squeeze", {}, [(1, 2, 1), [0, -1]]),
    ("Transpose", {"perm": [2, 0, 1]}, [(2, 3, 4)]),
    ("Transpose", {}, [(2, 3, 4)]),
    ("Unsqueeze", {}, [(2, 3), [0, -1]]),
    ("Where", {}, [(2, 1), (3,), (4, 1, 1)]),
]


def tensor(dims):
    return SimpleNamespace(dims=dims)


def test_every_rule_has_a_case():
    assert set(RULES) <= {name for name, _, _ in CASES}


@pytest.mark.parametrize(("name", "attributes", "operands"), CASES)
def test_shapes_are_those_of_the_reference_evaluator(name, attributes, operands):
    arrays = [np.ones(entry) if isinstance(entry, tuple) else np.array(entry) for entry in operands]
    if name == "CumSum":
        arrays[1] = arrays[1][0]
    if name == "Where":
        arrays[0] = arrays[0] > 0
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    inputs = [helper.make_tensor_value_info(f"x{i}", kind, None) for i, kind in enumerate(kinds)]
    node = helper.make_node(name, [value.name for value in inputs], ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    (y,) = ReferenceEvaluator(model).run(None, {f"x{i}": array for i, array in enumerate(arrays)})
    arguments = [entry if isinstance(entry, list) else tensor(np.shape(array))
                 for entry, array in zip(operands, arrays, strict=True)]  # fmt: skip
    assert result_dims(name, attributes, arguments) == np.shape(y)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Add", [tensor(("N", 3)), tensor(("M", 1))]),
        ("Add", [tensor(None), tensor((3,))]),
        ("MatMul", [tensor((3,)), tensor((3, 4))]),
        ("ReduceSum", [tensor((2, 3)), tensor((1,))]),
        ("Reshape", [tensor(("N", 4)), [-1, 2]]),
        ("Reshape", [tensor((2, 4)), [0, 4]]),
        ("TopK", [tensor((2, 4)), tensor((1,))]),
        ("Transpose", [tensor(None)]),
        ("Unsqueeze", [tensor((2,)), tensor((1,))]),
    ],
)
def test_an_unknown_shape_stays_unknown(name, arguments):
    """A guess would write wrong constants into a gradient."""
    assert result_dims(name, {}, arguments) is None


def test_names_of_sizes_are_kept():
    """Rows of equal name need no sum over a broadcast axis."""
    assert broadcast(("N", 3), ("N", 1), (3,)) == ("N", 3)
    assert result_dims("MatMul", {}, [tensor(("N", 3)), tensor((3, 2))]) == ("N", 2)


def test_unnamed_sizes_get_names_that_do_not_reach_the_graph():
    first, second = (read_shape(ir.Shape([None, "N", 4]), owner) for owner in "ab")
    assert first[1:] == second[1:] == ("N", 4)
    assert first[0] != second[0]
    assert to_shape(first) == ir.Shape([None, "N", 4])
    assert read_shape(None, "a") is None
    assert to_shape(None) is None
