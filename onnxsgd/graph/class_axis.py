"""The axis of the classes among the axes of scores."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, first, operands, standard_operator

__all__ = ["class_axis"]

#: Operators that keep the axes of their first operand.
_KEEPING = frozenset(
    {
        "BatchNormalization", "Cast", "Clip", "Dropout", "Elu", "Gelu", "HardSwish", "Identity", "LeakyRelu",
        "PRelu", "Relu", "Resize", "Selu", "Sigmoid", "Tanh",
    }
)  # fmt: skip
#: Operators whose operands broadcast.
_JOINING = frozenset({"Add", "Div", "Mean", "Mul", "Sub", "Sum"})


def class_axis(score: ir.Value) -> int | None:
    """Return the axis of `score` that holds the outputs of the layer before it; None if that is unknown.

    Cases: the channels of a convolution, and the columns of a product, behind operators that keep or permute
    axes.
    """
    node = score.producer()
    operator = "" if node is None else standard_operator(node)
    n_axes = None if score.shape is None else len(score.shape)
    if node is None or n_axes is None:
        return None
    if operator in ("Conv", "ConvTranspose"):
        return 1
    if operator in ("Gemm", "MatMul"):
        return n_axes - 1
    if operator in _KEEPING:
        return class_axis(first(node))
    if operator in _JOINING:
        alike = [value for value in operands(node) if value.shape is not None and len(value.shape) == n_axes]
        return next((axis for axis in map(class_axis, alike) if axis is not None), None)
    if operator == "Transpose":
        axis, order = class_axis(first(node)), list(attribute(node, "perm", range(n_axes)[::-1]))
        return None if axis is None else order.index(axis)
    return None
