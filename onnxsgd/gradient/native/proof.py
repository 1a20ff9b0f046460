"""Forms of operators, and those whose gradient by onnxruntime-training is proven right.

The table is the result of a sweep, ``python tests/gradient/native/sweep.py``: a form that is not in it is
refused, because the builder's gradients of some forms are wrong, and others end the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import onnx_ir as ir

from onnxsgd.gradient.native.builder_forms import OPTIONAL_OUTPUTS
from onnxsgd.gradient.native.dimensions import broadcast_axes
from onnxsgd.gradient.native.proven_forms import PROVEN
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import attribute, constant

__all__ = ["form_of", "rank_of", "unproven"]

#: Attributes that define another form, with the values that do not.
_DEFAULTS: dict[str, tuple[object, ...]] = {
    "auto_pad": ("NOTSET", "VALID"),
    "batch_dims": (0,),
    "ceil_mode": (0,),
    "count_include_pad": (0,),
    "group": (1,),
    "keepdims": (1,),
    "reduction": ("none", "mean", "sum"),
    "storage_order": (0,),
}

#: The operators that read sizes, axes or places as tensors, which may be computed.
_SIZED = frozenset(
    [
        *("Expand", "Pad", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "Reshape", "Slice"),
        *("Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze"),
    ]
)

#: The operators that broadcast their operands, and the number of last axes that they do not broadcast.
_BROADCASTING = {
    **dict.fromkeys(("Add", "Div", "Expand", "Gemm", "Max", "Min", "Mul", "Sub"), 0),
    "MatMul": 2,
}


def form_of(node: ir.Node) -> str:
    """Return the form of a node as words.

    These are the operator, the type of its elements, its sizes, and all that differs from the defaults. Sizes
    are "fixed", or open along the first axis ("batch") or along others ("open"); "unmatched" ones may turn
    out to be 1 where those of another operand are not; "computed" are those that the node reads as a tensor;
    "all" is a reduction along all axes.
    """
    real = _real_inputs(node)
    dtype = real[0].dtype if real else None
    words = [node.op_type, "untyped" if dtype is None else dtype.name, _sizes(real), *_attributes(node)]
    if node.op_type in OPTIONAL_OUTPUTS and any(_is_read(value) for value in node.outputs[1:]):
        words.append("outputs")
    if node.op_type in _SIZED and any(_is_computed(value) for value in node.inputs[1:]):
        words.append("computed")
    if not _is_matched(node, real):
        words.append("unmatched")
    return " ".join(words)


def rank_of(node: ir.Node) -> int | None:
    """Return the largest rank among the operands of a node; None if one of them is unknown."""
    shapes = [value.shape for value in _real_inputs(node)]
    ranks = [len(shape) for shape in shapes if shape is not None]
    return max(ranks, default=0) if len(ranks) == len(shapes) else None


def unproven(node: ir.Node) -> str | None:
    """Return why the gradient of a node is not trusted, as a phrase; None if its form was found right."""
    form, rank = form_of(node), rank_of(node)
    if rank in PROVEN.get(form, ()):
        return None
    words = "unknown rank" if rank is None else f"rank {rank}"
    return f"{form} of {words} has no gradient in onnxruntime-training that is proven right"


def _attributes(node: ir.Node) -> list[str]:
    """Return a word for each attribute that defines another form."""
    words = ["dilations"] if any(size != 1 for size in attribute(node, "dilations", ())) else []
    words += [name for name, usual in _DEFAULTS.items() if attribute(node, name, usual[0]) not in usual]
    if node.op_type.startswith("Reduce") and "axes" not in node.attributes and not any(node.inputs[1:]):
        words.append("all")
    return words


def _real_inputs(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None and value.dtype in REAL_TYPES]


def _sizes(values: Sequence[ir.Value]) -> str:
    shapes = [value.shape for value in values]
    if any(shape is None or any(not isinstance(dim, int) for dim in list(shape)[1:]) for shape in shapes):
        return "open"
    return "fixed" if all(shape.is_static() for shape in shapes if shape is not None) else "batch"


def _is_matched(node: ir.Node, real: Sequence[ir.Value]) -> bool:
    """Return whether the broadcast axes of each operand are known.

    The builder takes sizes of two names for equal, and does not sum if one of them is 1 at run time.
    """
    kept = _BROADCASTING.get(node.op_type)
    if kept is None:
        return True
    # an Expand broadcasts its operand to the sizes of its result, and a Gemm its bias
    operands = [*real[2:], node.outputs[0]] if node.op_type == "Gemm" else list(real)
    operands += node.outputs if node.op_type == "Expand" else ()
    shapes = [_stack(value.shape, kept) for value in operands]
    return all(broadcast_axes(*pair) is not None for pair in permutations(shapes, 2))


def _stack(shape: ir.Shape | None, kept: int) -> ir.Shape | None:
    """Return the sizes of all axes but the last `kept`."""
    return shape if shape is None or not kept else ir.Shape(list(shape)[:-kept])


def _is_computed(value: ir.Value | None) -> bool:
    return value is not None and constant(value) is None


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
