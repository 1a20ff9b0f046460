"""The axis of a weight that belongs to the inputs of its layer."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.nodes import attribute, standard_operator

__all__ = ["input_axis"]

#: Operators whose result has the axes of their first operand.
_PASSING = frozenset({"Cast", "CastLike", "Identity"})


def input_axis(weight: ir.Value) -> int:
    """Return the axis of `weight` of which each slice holds the coefficients of one input of its layer.

    Cases: factors of ``Gemm`` and ``MatMul``, perhaps transposed before; filters of ``Conv`` and
    ``ConvTranspose``, whose inputs are channels; tables of ``Gather``, whose inputs are rows; weights of
    ``RNN``, ``GRU`` and ``LSTM``. A vector has one coefficient for each input, whatever reads it.

    Raises
    ------
    UnsupportedError
        If another operator reads it, or its readers disagree.
    """
    rank = None if weight.shape is None else len(weight.shape)
    if rank is not None and rank <= 1:
        return 0
    found = set(_axes(weight, rank))
    if len(found) == 1 and None not in found:
        return next(axis for axis in found if axis is not None)
    readers = sorted({use.node.op_type for use in weight.uses()})
    raise UnsupportedError(
        f"The weight {weight.name!r}, which {' and '.join(readers) or 'nothing'} reads, has no groups for a "
        "penalty: they are the coefficients of one input in a Gemm, MatMul, Conv with group=1, "
        "ConvTranspose, Gather, RNN, GRU or LSTM. Give it another penalty by its name."
    )


def _axes(value: ir.Value, rank: int | None) -> Iterator[int | None]:
    """Yield the axis that each reader of a value takes for that of inputs, None where it is unknown."""
    for node, index in value.uses():
        operator = standard_operator(node)
        if operator in _PASSING and index == 0:
            yield from _axes(node.outputs[0], rank)
        elif operator == "Transpose" and rank is not None:
            order = attribute(node, "perm", list(reversed(range(rank))))
            yield from (None if axis is None else order[axis] for axis in _axes(node.outputs[0], rank))
        else:
            yield _axis(node, operator, index, rank)


def _axis(node: ir.Node, operator: str | None, index: int, rank: int | None) -> int | None:
    match operator, index:
        case "Gemm", 0:
            return 0 if attribute(node, "transA", 0) else 1
        case "Gemm", 1:
            return 1 if attribute(node, "transB", 0) else 0
        case "MatMul", 0:
            return None if rank is None else rank - 1
        case "MatMul", 1:
            return None if rank is None else rank - 2
        case "Conv", 1:
            return 1 if attribute(node, "group", 1) == 1 else None
        case "ConvTranspose", 1:
            return 0
        case "Gather", 0:
            axis = attribute(node, "axis", 0)
            return None if rank is None else axis % rank
        case (("RNN" | "GRU" | "LSTM"), (1 | 2)):
            return 2
    return None
