"""The table of proven forms covers the operators of the engine, and no form known to be wrong or deadly."""

import onnx_ir as ir
import pytest

from onnxsgd.gradient.native_proof import form_of, unproven
from onnxsgd.gradient.native_table import PROVEN
from onnxsgd.gradient.registered import DIFFERENTIABLE


def value(*shape, dtype=ir.DataType.FLOAT):
    return ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape(shape))


def test_forms_say_the_type_the_sizes_and_what_differs_from_the_defaults():
    """The table is read by these words."""
    node = ir.node("Conv", [value("N", 4, 8), value(4, 2, 3)], {"group": 2, "dilations": [2]})
    assert form_of(node) == "Conv FLOAT open 1-D dilations group"
    assert (
        form_of(ir.node("Conv", [value(1, 4, 8, 8), value(4, 4, 3, 3)], {"group": 1}))
        == "Conv FLOAT fixed 2-D"
    )
    assert form_of(ir.node("Abs", [value(2, dtype=ir.DataType.FLOAT16)])) == "Abs FLOAT16 fixed"


def test_each_operator_is_proven_in_some_form():
    """An operator without one could as well leave the table of operators."""
    assert {form.split()[0] for form in PROVEN} == set(DIFFERENTIABLE)


@pytest.mark.parametrize(
    "form",
    [
        "AveragePool FLOAT open 1-D",
        "AveragePool FLOAT open 2-D",
        "AveragePool FLOAT fixed 3-D",
        "AveragePool FLOAT fixed 2-D dilations",
        "AveragePool FLOAT16 fixed 2-D",
        "Conv FLOAT fixed 1-D group",
        "Conv FLOAT fixed 2-D auto_pad",
        "MaxPool FLOAT16 fixed 2-D",
        "MaxPool FLOAT fixed 2-D storage_order",
        "Slice FLOAT16 fixed",
        "SoftmaxCrossEntropyLoss FLOAT fixed outputs",
    ],
)
def test_forms_known_to_be_wrong_are_not_in_the_table(form):
    """A wrong gradient trains without an error; some of these end the interpreter."""
    assert form not in PROVEN


def test_a_form_that_is_not_proven_is_named():
    """The message says which form to avoid."""
    node = ir.node("AveragePool", [value("N", 1, 4, 4)], {"kernel_shape": [2, 2]})
    assert "AveragePool FLOAT open 2-D" in unproven(node)
    assert unproven(ir.node("Tanh", [value("N", 4)])) is None
