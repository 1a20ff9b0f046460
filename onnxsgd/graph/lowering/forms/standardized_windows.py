"""Convolutions of an input of one channel whose results are standardized, as one product.

The mean and the variance of ``weight x`` over the windows x of a sequence are the weight times the mean of
the windows, and ``weight^T C weight`` with their covariance matrix C, which is as small as a window. So the
standardized result is the product of the centred windows with another weight, made for each sample:
``weight scale / sqrt(variance + eps)``, with the shift behind it as one tap more. Neither mean nor variance
of the large result is taken, nor their gradients: these are those of the small weight.

The covariances are in float64. Where neighbouring places are nearly equal, the variance of a weight whose
taps cancel is a difference of large numbers: 1e-7 of these is more than the variance itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import (
    attribute,
    constant,
    first,
    holds_input,
    is_fixed_float32,
    is_read_once,
    operands,
    shape_of,
    standard_operator,
)
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["standardized_window_forms"]

#: The least channels of the result, and their least ratio to the taps of a window.
#: ``benchmarks/constants.py``, an update of the layer and a tanh, 1,024 places, 8 taps, every fourth place,
#: batch 8: 1.03 of the time with 24 channels, 0.92 with 32, 0.71 with 64, 0.59 with 256, with onnxruntime
#: 1.19.2 0.99, 0.88, 0.71 and 0.60; 32 channels with 10 taps 0.97 and 0.95, with 16 taps 0.95 and 1.07.
#: ``benchmarks/networks.py``, wav2vec2-small: 0.95 of the time of an update, 0.94 with onnxruntime 1.19.2.
_LEAST, _RATIO = 32, 3


@dataclass(frozen=True)
class _Standardized:
    """``(y - mean) / sqrt(var + eps)`` of the convolution y of an input.

    Attributes
    ----------
    x, weight : ir.Value
        The input, [n, 1, length], and the weight, [m, 1, taps].
    n, m, out, taps, stride : int
        Samples, channels and places of the result, places of a window, and of a move.
    epsilon : float
        The number beside the variance.
    """

    x: ir.Value
    weight: ir.Value
    n: int
    m: int
    out: int
    taps: int
    stride: int
    epsilon: float


def standardized_window_forms(trained: Collection[str]) -> Table:
    """Return the forms, for a graph whose initializers of these names are trained: they are no constants."""
    return {
        ("", "Add"): partial(_scaled, trained),
        ("", "InstanceNormalization"): partial(_scaled_itself, trained),
    }


def _scaled(trained: Collection[str], w: Writer, node: ir.Node) -> ir.Value | None:
    """``Add(Mul(InstanceNormalization(Conv(x, weight), 1, 0), scale), shift)``, a number for each channel."""
    if not is_fixed_float32(node.outputs[0]):
        return None
    for product, shift in (operands(node), operands(node)[::-1]):
        scaling = product.producer()
        if scaling is None or standard_operator(scaling) != "Mul" or not is_read_once(product):
            continue
        for standardized, scale in (operands(scaling), operands(scaling)[::-1]):
            normalization = _behind_reshapes(standardized).producer()
            if normalization is None or not is_read_once(standardized):
                continue
            s = _read(standardized, normalization) if _is_plain(normalization, trained) else None
            if s is not None and all(_is_by_channel(value, s) for value in (scale, shift)):
                return _product(w, s, scale, shift)
    return None


def _scaled_itself(trained: Collection[str], w: Writer, node: ir.Node) -> ir.Value | None:
    """``InstanceNormalization(Conv(x, weight), scale, shift)``; readers may have scale and shift instead."""
    s = None if _is_plain(node, trained) else _read(node.outputs[0], node)
    _, scale, shift = operands(node)
    are_fixed = is_fixed_float32(scale) and is_fixed_float32(shift)
    return None if s is None or not are_fixed else _product(w, s, scale, shift)


def _is_plain(node: ir.Node, trained: Collection[str]) -> bool:
    """Tell whether a node is an InstanceNormalization with the constants 1 and 0."""
    if standard_operator(node) != "InstanceNormalization":
        return False
    _, scale, bias = operands(node)
    factors, offsets = constant(scale), constant(bias)
    are_known = factors is not None and offsets is not None and not {scale.name, bias.name} & set(trained)
    return are_known and bool(np.all(factors == 1) and not np.any(offsets))


def _read(value: ir.Value, node: ir.Node) -> _Standardized | None:
    """Return the layer that an InstanceNormalization ends, if its input is one of the graph."""
    y = _behind_reshapes(first(node))
    convolution = y.producer()
    if convolution is None or standard_operator(convolution) != "Conv" or len(operands(convolution)) > 2:
        return None
    x, weight = operands(convolution)
    are_fixed = all(is_fixed_float32(each) for each in (x, weight, y, value))
    # a normalization of groups of channels has another shape
    is_by_channel = value.shape == y.shape == first(node).shape
    if not (are_fixed and is_by_channel) or len(shape_of(y)) != 3 or not holds_input(x):
        return None
    (n, m, out), (_, c, taps) = shape_of(y).numpy(), shape_of(weight).numpy()
    stride, dilation = (attribute(convolution, name, [1])[0] for name in ("strides", "dilations"))
    is_padded = attribute(convolution, "auto_pad", "NOTSET") != "NOTSET" or any(
        attribute(convolution, "pads", [0])
    )
    if is_padded or not c == dilation == 1 or 0 in (n, out) or attribute(convolution, "group", 1) > 1:
        return None
    if m < max(_LEAST, _RATIO * taps):
        return None
    return _Standardized(x, weight, n, m, out, taps, stride, attribute(node, "epsilon", 1e-5))


def _behind_reshapes(value: ir.Value) -> ir.Value:
    """Return the tensor that a value has been before it was reshaped; others may read its sizes."""
    while (node := value.producer()) is not None and standard_operator(node) == "Reshape":
        value = first(node)
    return value


def _is_by_channel(value: ir.Value, s: _Standardized) -> bool:
    if not is_fixed_float32(value):
        return False
    sizes = list(shape_of(value).numpy())
    return sizes[-2:] == [s.m, 1] and math.prod(sizes) == s.m and len(sizes) <= 3


def _product(w: Writer, s: _Standardized, scale: ir.Value, shift: ir.Value) -> ir.Value:
    """Write the product of the windows with a weight for each sample."""
    windows = _as_type(w, _windows(w, s), ir.DataType.DOUBLE)
    exact = w.known("Sub", [windows, w.reduce("ReduceMean", windows, [1])], [s.n, s.out, s.taps])
    centred = _as_type(w, exact, ir.DataType.FLOAT)
    weight = w.transposed(w.reshaped(s.weight, [s.m, s.taps]), [1, 0])
    inverse = _inverse_deviation(w, s, exact, weight)
    factors = w.known("Mul", [inverse, w.reshaped(scale, [1, 1, s.m])], [s.n, 1, s.m])
    scaled = w.known("Mul", [weight, factors], [s.n, s.taps, s.m])
    sizes = w.tensor("sizes", np.array([s.n, 1, s.m]))
    shifts = w.known("Expand", [w.reshaped(shift, [1, 1, s.m]), sizes], [s.n, 1, s.m])
    taps = w.known("Concat", [scaled, shifts], [s.n, s.taps + 1, s.m], axis=1)
    ones = w.tensor("ones", np.ones((s.n, s.out, 1), np.float32), frozen="column of ones")
    table = w.known("Concat", [centred, ones], [s.n, s.out, s.taps + 1], axis=2)
    return w.transposed(w.known("MatMul", [table, taps], [s.n, s.out, s.m]), [0, 2, 1])


def _windows(w: Writer, s: _Standardized) -> ir.Value:
    """Write the windows [n, out, taps], made of blocks as long as a move."""
    (*_, length), blocks = shape_of(s.x).numpy(), -(-s.taps // s.stride)
    count = s.out + blocks - 1
    rows = w.reshaped(s.x, [s.n, length])
    if length > count * s.stride:
        rows = w.op.Slice(rows, [0], [count * s.stride], [1])
    elif length < count * s.stride:
        rows = w.op.Pad(rows, [0, 0, 0, count * s.stride - length])
    table = w.reshaped(rows, [s.n, count, s.stride])
    parts = []
    for block in range(blocks):
        width = min(s.stride, s.taps - block * s.stride)
        part = w.op.Slice(table, [block, 0], [block + s.out, width], [1, 2])
        parts.append(part)
    return w.known("Concat", parts, [s.n, s.out, s.taps], axis=2) if blocks > 1 else parts[0]


def _inverse_deviation(w: Writer, s: _Standardized, centred: ir.Value, weight: ir.Value) -> ir.Value:
    """Write ``1 / sqrt(variance + eps)``, [n, 1, m], of the products of windows and weight [taps, m].

    In float64 onnxruntime 1.19.2 joins a Transpose and a MatMul to an operator without a kernel, unless a
    Reshape is between them; its Gemm has the kernel.
    """
    taps, exact = s.taps, _as_type(w, weight, ir.DataType.DOUBLE)
    turned = w.reshaped(w.transposed(centred, [0, 2, 1]), [s.n, 1, taps, s.out])
    windows = w.reshaped(centred, [s.n, 1, s.out, taps])
    covariances = w.known("MatMul", [turned, windows], [s.n, 1, taps, taps])
    rows = w.reshaped(covariances, [s.n * taps, taps])
    products = w.known("Gemm", [rows, exact], [s.n * taps, s.m], alpha=1 / s.out)
    squares = w.known("Mul", [w.reshaped(products, [s.n, taps, s.m]), exact], [s.n, taps, s.m])
    deviation = w.op.Sqrt(w.op.Add(w.reduce("ReduceSum", squares, [1]), s.epsilon))
    inverse = w.op.Reciprocal(deviation)
    inverse.shape = ir.Shape([s.n, 1, s.m])
    return _as_type(w, inverse, ir.DataType.FLOAT)


def _as_type(w: Writer, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Write a tensor in another type."""
    value = w.op.Cast(x, to=dtype)
    value.type, value.shape = ir.TensorType(dtype), x.shape
    return value
