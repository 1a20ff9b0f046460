"""The table of proven forms covers the operators of the engine, and no form known to be wrong or deadly."""

import onnx_ir as ir
import pytest

from onnxsgd.gradient.native.coverage import DIFFERENTIABLE
from onnxsgd.gradient.native.proof import form_of, rank_of, unproven
from onnxsgd.gradient.native.proven_forms import PROVEN


def value(*shape, dtype=ir.DataType.FLOAT):
    return ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape(shape))


def unranked():
    return ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))


FORMS = [
    (
        ir.node("Conv", [value("N", 4, 8), value(4, 2, 3)], {"group": 2, "dilations": [2]}),
        "Conv FLOAT batch dilations group",
        3,
    ),
    (ir.node("Conv", [value(1, 4, 8, 8), value(4, 4, 3, 3)], {"group": 1}), "Conv FLOAT fixed", 4),
    (
        ir.node("MaxPool", [value("N", 4, "H", "W")], {"kernel_shape": [2, 2], "ceil_mode": 1}),
        "MaxPool FLOAT open ceil_mode",
        4,
    ),
    (ir.node("Abs", [value(2, dtype=ir.DataType.FLOAT16)]), "Abs FLOAT16 fixed", 1),
    (ir.node("Abs", [unranked()]), "Abs FLOAT open", None),
    (ir.node("ReduceSum", [value(2, 3)], {"keepdims": 0}), "ReduceSum FLOAT fixed keepdims all", 2),
    (ir.node("ReduceMean", [value(2, 3)], {"axes": [0]}), "ReduceMean FLOAT fixed", 2),
    (ir.node("Expand", [value("N", 1)], outputs=[value("N", 4)]), "Expand FLOAT batch", 2),
    (ir.node("Expand", [value("N", 1)], outputs=[value(3, 4)]), "Expand FLOAT batch unmatched", 2),
    (ir.node("Gemm", [value("N", 4), value(4, 3), value(3)], outputs=[value("N", 3)]), "Gemm FLOAT batch", 2),
    (ir.node("Add", [value("N", 4), value(4)]), "Add FLOAT batch", 2),
    (ir.node("Add", [value("N", 4), value("N", 1)]), "Add FLOAT batch", 2),
    (ir.node("Add", [value("N", 4), value("M", 4)]), "Add FLOAT batch unmatched", 2),
    (ir.node("Add", [value("N", 4), value(3, 4)]), "Add FLOAT batch unmatched", 2),
    (ir.node("Add", [value("N", "L", 4), value(1, None, 4)]), "Add FLOAT open unmatched", 3),
    (ir.node("MatMul", [value("N", "L", 4), value("M", 4, "L")]), "MatMul FLOAT open unmatched", 3),
    (ir.node("MatMul", [value("N", "L", 4), value(4, 3)]), "MatMul FLOAT open", 3),
]


@pytest.mark.parametrize(("node", "form", "rank"), FORMS)
def test_a_form_is_type_sizes_and_differences_from_the_defaults(node, form, rank):
    """The table is read by these words."""
    assert form_of(node) == form
    assert rank_of(node) == rank


def test_sizes_that_are_read_from_a_tensor_are_another_form():
    """Positions sliced to an open length: their gradient was wrong, or had another shape."""
    ends = ir.Value(name="e", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    places = [ir.Value(name=name, const_value=ir.tensor([0], name=name)) for name in "sa"]
    node = ir.node("Slice", [value(1, 8, 4), places[0], ends, places[1]])
    assert form_of(node) == "Slice FLOAT fixed computed"
    ends.const_value = ir.tensor([5], name="e")
    assert form_of(node) == "Slice FLOAT fixed"


def test_each_operator_is_proven_in_some_form():
    """An operator without one could be dropped from the table of operators."""
    assert {form.split()[0] for form in PROVEN} == set(DIFFERENTIABLE)


@pytest.mark.parametrize(
    ("form", "rank"),
    [
        ("AveragePool FLOAT batch", 3),
        ("AveragePool FLOAT batch", 4),
        ("AveragePool FLOAT fixed", 5),
        ("AveragePool FLOAT fixed dilations", 4),
        ("AveragePool FLOAT16 fixed", 4),
        ("Conv FLOAT fixed group", 3),
        ("Conv FLOAT fixed auto_pad", 4),
        ("MaxPool FLOAT16 fixed", 4),
        ("MaxPool FLOAT fixed storage_order", 4),
        ("MaxPool FLOAT open ceil_mode", 4),
        ("Add FLOAT batch unmatched", 2),
        ("Slice FLOAT16 fixed", 2),
        ("SoftmaxCrossEntropyLoss FLOAT fixed outputs", 2),
    ],
)
def test_forms_known_to_be_wrong_are_not_in_the_table(form, rank):
    """A wrong gradient trains without an error; some of these end the interpreter."""
    assert rank not in PROVEN.get(form, ())


def test_no_form_with_unknown_broadcast_axes_is_in_the_table():
    """Wrong at every rank that was tried, as the builder takes sizes of two names for equal."""
    assert not [form for form in PROVEN if form.endswith("unmatched")]


def test_a_form_that_is_not_proven_is_named():
    """The message says which form to avoid."""
    node = ir.node("AveragePool", [value("N", 1, 4, 4)], {"kernel_shape": [2, 2]})
    assert "AveragePool FLOAT batch of rank 4 has no gradient" in unproven(node)
    assert "of unknown rank" in unproven(ir.node("AveragePool", [unranked()]))
    assert unproven(ir.node("Tanh", [value("N", 4)])) is None
