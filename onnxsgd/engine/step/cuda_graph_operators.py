"""Operators that a CUDA graph may record and replay.

A replay repeats the work of the device, with the same addresses and numbers, but not the work of the host:
a table that a kernel copied from host memory freed since would be copied again, with its new content, and
random numbers would be the same each time. The runtime does not check for that. So only operators are
recorded whose kernels take all arguments by value or from the device, in onnxruntime 1.19 to 1.31.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir

from onnxsgd.graph.operators import Fact, having

__all__ = ["is_recordable"]

#: The largest number of tensors that a kernel takes by value.
_MOST_TENSORS = 32


def is_recordable(model: bytes) -> bool:
    """Tell whether all operators of a graph of static shapes may be recorded."""
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(model), data_prop=True)
    return all(node.domain == "" and _can_record(node) for node in ir.from_proto(inferred).graph)


def _can_record(node: ir.Node) -> bool:
    condition = _CONDITIONS.get(node.op_type)
    return node.op_type in having(Fact.RECORDABLE) if condition is None else condition(node)


def _is_alike(values: tuple[ir.Value | None, ...] | tuple[ir.Value, ...]) -> bool:
    """Tell whether tensors are few and of one known shape; otherwise the kernel copies a table of sizes."""
    shapes = {None if value is None or value.shape is None else tuple(value.shape) for value in values}
    return len(values) <= _MOST_TENSORS and len(shapes) == 1 and None not in shapes


def _inputs_are_alike(node: ir.Node) -> bool:
    return _is_alike(tuple(node.inputs))


def _outputs_are_alike(node: ir.Node) -> bool:
    return _is_alike(tuple(node.outputs))


def _is_strided(node: ir.Node) -> bool:
    """Tell whether a product has a matrix on the right, or equal batch axes.

    Otherwise its kernel copies a table of addresses.
    """
    left, right = (None if value is None else value.shape for value in node.inputs)
    if left is None or right is None:
        return False
    return len(right) <= 2 or tuple(left[:-2]) == tuple(right[:-2])


#: Operators that are recordable in some forms.
_CONDITIONS: Mapping[str, Callable[[ir.Node], bool]] = {
    "Concat": _inputs_are_alike,
    "MatMul": _is_strided,
    "Split": _outputs_are_alike,
}
