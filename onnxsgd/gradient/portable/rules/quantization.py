"""Gradients of QuantizeLinear and DequantizeLinear, which treat rounding as the identity.

Rounding has no slope, so QuantizeLinear, q = clip(round(x / s) + z), takes that of x / s where the result is
not clipped, and none where it is ::

    dx = dq / s              ds = - dq x / s^2            inside of the range of q
    dx = 0                   ds = 0                       where q is clipped to its range

DynamicQuantizeLinear has a range that holds every x: dx = dq / s. Its scale and its zero point, which follow
the extremes of x, count as constants.

DequantizeLinear, y = (q - z) s, has the gradients dq = dy s and ds = dy (q - z). One after the other they
give the straight-through estimator for x, and for s the gradient of learned step size: round(x / s) - x / s
inside of the range. Between the two, gradients pass operators that move elements, and
products (:mod:`~.rules.integer_products`). A zero point has none.

References
----------
Y. Bengio, N. Leonard, A. Courville: Estimating or Propagating Gradients Through Stochastic Neurons, 2013.
S. K. Esser, J. L. McKinstry, D. Bablani, R. Appuswamy, D. S. Modha: Learned Step Size Quantization, 2020.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.gradient.portable.rules.indexing import gather_back, positions
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, reshape_to, sum_to
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.operators import Fact, having

__all__ = ["QUANTIZATION", "READ_QUANTIZED", "is_quantized"]

#: Operators that gradients with respect to quantized tensors pass.
READ_QUANTIZED = having(Fact.FORM) | {
    "Concat", "ConvInteger", "DequantizeLinear", "Gather", "MatMulInteger", "Slice", "Tile",
}  # fmt: skip

_REAL = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

#: The smallest and the largest number of each type that QuantizeLinear returns.
_RANGES = {
    "INT2": (-2, 1),
    "UINT2": (0, 3),
    "INT4": (-8, 7),
    "UINT4": (0, 15),
    "INT8": (-128, 127),
    "UINT8": (0, 255),
    "INT16": (-(2**15), 2**15 - 1),
    "UINT16": (0, 2**16 - 1),
    "FLOAT4E2M1": (-6, 6),
    "FLOAT8E4M3FN": (-448, 448),
    "FLOAT8E4M3FNUZ": (-240, 240),
    "FLOAT8E5M2": (-57344, 57344),
    "FLOAT8E5M2FNUZ": (-57344, 57344),
}


def is_quantized(value: ir.Value | None) -> bool:
    """Return whether the elements of a value have a type that only represents real numbers."""
    return value is not None and value.dtype is not None and value.dtype not in _REAL


def _spread(n: Call, parameter: Tensor) -> Tensor:
    """Return a scale or zero point such that it broadcasts against the first input."""
    rank, axis = parameter.rank, n.attribute("axis", 1)
    if rank is None:
        raise n.refuse(f"needs a parameter {parameter.value.name!r} of known rank")
    if rank == 0 or n.rank == 0:
        return parameter
    if _is_blocked(n):
        whole: Tensor = op.Gather(parameter, _blocks(n), axis=axis % n.rank)
        return whole.known_as(n.x.dims)
    # Without an axis of that number there is one scale for all elements.
    place = axis % n.rank if axis < n.rank else 0
    dims = tuple(dim if k == place else 1 for k, dim in enumerate((parameter.dims or ()) * n.rank))
    return op.Reshape(parameter, [-1 if k == place else 1 for k in range(n.rank)]).known_as(dims)


def _is_blocked(n: Call) -> bool:
    return bool(n.attribute("block_size", 0))


def _blocks(n: Call) -> Tensor:
    """Return the number of the block of each element along the axis."""
    axis = n.attribute("axis", 1) % n.rank
    blocks: Tensor = op.Div(positions(n.x, dim_of(n.x, axis), 0), n.attribute("block_size"))
    return blocks.known_as(("elements",))


def _sum_to_scale(n: Call, g: Tensor) -> Tensor:
    """Return a gradient of the shape of the first input, summed to that of the scale."""
    if _is_blocked(n) and n.rank:
        axis = n.attribute("axis", 1) % n.rank
        return gather_back(g.known_as(n.x.dims), _blocks(n), axis, dim_of(n.b, axis))
    return reshape_to(sum_to(g, n.x, _spread(n, n.b)), n.b)


def _zero_point(n: Call, dtype: ir.DataType | None) -> Tensor | int:
    point = n.optional(2)
    return 0 if point is None else _spread(n, point.cast(dtype))


def _passed(n: Call) -> Tensor:
    """Return the gradient of the quantized result where that is not clipped."""
    kind = (n.y.dtype or ir.DataType.UINT8).name
    if kind not in _RANGES:
        raise n.refuse(f"has no gradient rule for type {kind}; accepted types: {', '.join(_RANGES)}")
    low, high = _RANGES[kind]
    level = op.Round(n.x / _scale(n)) + _zero_point(n, n.x.dtype)
    return n.dy.cast(n.x.dtype) * (level >= low) * (level <= high)


def _scale(n: Call) -> Tensor:
    return _spread(n, n.b.cast(n.x.dtype))


def _quantized(n: Call) -> Tensor:
    return n.once("passed", _passed) / _scale(n)


def _quantized_scale(n: Call) -> Tensor:
    scale = _scale(n)
    return _sum_to_scale(n, -n.once("passed", _passed) * n.x / (scale * scale)).cast(n.b.dtype)


def _dequantized(n: Call) -> Tensor:
    return n.dy * _spread(n, n.b).cast(n.dy.dtype)


def _dequantized_scale(n: Call) -> Tensor:
    level = n.x.cast(n.dy.dtype) - _zero_point(n, n.dy.dtype)
    return _sum_to_scale(n, n.dy * level).cast(n.b.dtype)


def _dynamically_quantized(n: Call) -> Tensor:
    scale = n.emitter.tensor(n.node.outputs[1])
    return n.dy.cast(n.x.dtype) / scale


QUANTIZATION: Rules = {
    "DequantizeLinear": (_dequantized, _dequantized_scale, None),
    "DynamicQuantizeLinear": (_dynamically_quantized,),
    "QuantizeLinear": (_quantized, _quantized_scale, None),
}
