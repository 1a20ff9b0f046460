"""InstanceNormalizations without scale and bias whose results the gradient has made too.

Exporters write a GroupNormalization as such a node, with scale and bias in nodes of their own. Its gradient
needs the standardized input, and makes it from the same statistics as the node.

``benchmarks/networks.py``, wav2vec2: 0.97 of the time of an update, with a factor less in the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, first, operands, rank, standard_operator
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["STANDARDIZED_FORMS"]


def _instance_normalization(_: Writer, node: ir.Node) -> ir.Value | None:
    """``InstanceNormalization(x, 1, 0)`` with (x - mean) / sqrt(var + eps) at hand."""
    x, scale, bias = operands(node)
    factors, offsets = constant(scale), constant(bias)
    if factors is None or offsets is None or (factors != 1).any() or offsets.any() or rank(x) is None:
        return None
    axes = list(range(2, rank(x) or 0))
    for centring in _readers(x, "Sub"):
        mean = centring.inputs[1]
        if mean is None or not _is_mean(mean, x, axes):
            continue
        for scaling in _readers(centring.outputs[0], "Mul"):
            epsilon = _epsilon(scaling.inputs[1], centring.outputs[0], axes)
            if epsilon == np.float32(attribute(node, "epsilon", 1e-5)):
                return scaling.outputs[0]
    return None


def _epsilon(inverse: ir.Value | None, centred: ir.Value, axes: Sequence[int]) -> float | None:
    """Return eps of ``1 / sqrt(mean(centred centred) + eps)``, None for another value."""
    value = inverse
    for operator in ("Reciprocal", "Sqrt"):
        node = None if value is None else value.producer()
        if node is None or standard_operator(node) != operator:
            return None
        value = first(node)
    added = None if value is None else value.producer()
    if added is None or standard_operator(added) != "Add":
        return None
    variance, epsilon = operands(added)
    mean, number = variance.producer(), constant(epsilon)
    square = None if mean is None else first(mean).producer()
    if square is None or standard_operator(square) != "Mul" or number is None or number.size != 1:
        return None
    is_square = all(value is centred for value in operands(square))
    return number.item() if is_square and _is_mean(variance, square.outputs[0], axes) else None


def _is_mean(value: ir.Value, of: ir.Value, axes: Sequence[int]) -> bool:
    """Tell whether a value is the mean of another one over `axes`, which are kept."""
    node = value.producer()
    if node is None or standard_operator(node) != "ReduceMean" or first(node) is not of:
        return False
    given = attribute(node, "axes") if len(node.inputs) < 2 else constant(node.inputs[1])
    return given is not None and list(given) == list(axes) and attribute(node, "keepdims", 1) == 1


def _readers(value: ir.Value, op_type: str) -> list[ir.Node]:
    return [node for node, index in value.uses() if node.op_type == op_type and index == 0]


#: The form of normalizations whose gradients are in the graph.
STANDARDIZED_FORMS: Table = {("", "InstanceNormalization"): _instance_normalization}
