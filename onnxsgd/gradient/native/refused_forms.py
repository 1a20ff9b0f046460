"""Forms of operators that the gradient builder of onnxruntime-training 1.19.2 fails on, or gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxsgd.gradient.native.dimensions import broadcast_axes, same_shape
from onnxsgd.graph.nodes import attribute, constant, operands, rank

__all__ = ["REFUSALS"]


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _conv(node: ir.Node) -> str | None:
    return "with auto_pad" if attribute(node, "auto_pad", "NOTSET").startswith("SAME") else None


def _dropout(node: ir.Node) -> str | None:
    training = constant(_input(node, 2))
    return None if training is not None and training else "outside training mode"


def _layer_normalization(node: ir.Node) -> str | None:
    scale = _input(node, 1)
    known = scale is not None and scale.shape is not None and scale.shape.is_static()
    return None if _input(node, 2) is not None or known else "without bias, its scale of unknown shape,"


def _matmul(node: ir.Node) -> str | None:
    left, right = (rank(value) for value in node.inputs)
    return "with a vector on the right" if right == 1 or (left == 1 and right is None) else None


def _max_pool(node: ir.Node) -> str | None:
    if attribute(node, "storage_order", 0):
        return "with storage_order=1"
    return None


def _pad(node: ir.Node) -> str | None:
    if attribute(node, "mode", "constant") != "constant":
        return f"with mode={attribute(node, 'mode', 'constant')!r}"
    return "with an input 'axes'" if _input(node, 3) is not None else None


def _pow(node: ir.Node) -> str | None:
    base, exponent = operands(node)
    if base.dtype != exponent.dtype:
        return f"with an exponent of type {exponent.dtype}"
    if (array := constant(exponent)) is not None and (array == 0).any():
        # 0 times infinity where the base is 0
        return "with an exponent of 0"
    return None if rank(exponent) == 0 or broadcast_axes(base.shape, exponent.shape) == [] else _SHAPES


def _reduction(node: ir.Node) -> str | None:
    """Refuse keepdims=0 before opset 18: the builder writes Unsqueeze in a form that opset 13 removed."""
    return (
        None
        if attribute(node, "keepdims", 1) or "axes" not in node.attributes
        else "with keepdims=0 before opset 18"
    )


def _noop(node: ir.Node) -> str | None:
    none = attribute(node, "noop_with_empty_axes", 0) and constant(_input(node, 1)) is None
    return "with noop_with_empty_axes=1 and axes that are not constant" if none else None


def _scatter(node: ir.Node) -> str | None:
    data = _input(node, 0)
    if data is not None and data.dtype not in (None, ir.DataType.FLOAT):
        return f"of type {data.dtype}"
    reduction = attribute(node, "reduction", "none")
    return None if reduction == "none" else f"with reduction={reduction!r}"


def _slice(node: ir.Node) -> str | None:
    steps = constant(_input(node, 4))
    fine = _input(node, 4) is None or (steps is not None and (steps > 0).all())
    return None if fine else "with steps that are not constant and positive"


def _transpose(node: ir.Node) -> str | None:
    known = "perm" in node.attributes or rank(_input(node, 0)) is not None
    return None if known else "without perm, of a tensor of unknown rank,"


def _where(node: ir.Node) -> str | None:
    chosen = [value for value in node.inputs[1:] if constant(value) is None]
    return (
        None if all(same_shape(value.shape, node.outputs[0].shape) for value in chosen if value) else _SHAPES
    )


_SHAPES = "of operands whose shapes differ or are unknown"

#: The reason why an operator with a gradient has none in this form, or a wrong one; None if it has one.
REFUSALS: Mapping[str, Callable[[ir.Node], str | None]] = {
    "AveragePool": _conv,
    "Conv": _conv,
    "Dropout": _dropout,
    "LayerNormalization": _layer_normalization,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Pad": _pad,
    "Pow": _pow,
    "ReduceL2": _reduction,
    "ReduceLogSumExp": _reduction,
    "ReduceMean": _noop,
    "ReduceSum": _noop,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Slice": _slice,
    "Transpose": _transpose,
    "Where": _where,
}
