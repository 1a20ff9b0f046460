"""Convolutions of small images written as products of matrices.

The runtime computes a convolution image by image, each as a product with as many columns as the result has
places; with few of them, or with one channel in each group, most of the time is spent outside the product.
Written out, one product takes all images, and so do those of the gradients. The elements under each tap are
selected by products with matrices of zeros and ones, which grow with the square of the number of places:
hence the limits. Each was measured by the time of the forward pass, both gradients and the update together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, first, required
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["SMALL_IMAGE_FORMS"]

#: The most places of an image, and of its result, with one channel in each group.
#: ``benchmarks/constants.py``, 192 channels, batch 8: 0.04 of the time at 1 x 1, 0.28 at 2 x 2, 0.2 at 4 x 4,
#: 0.37 at 8 x 8, 1.23 at 10 x 10; the same with 64 images, 0.1 to 0.7 with one.
_SINGLE = 64

#: The most places of the result without groups, and with a kernel of one tap; the image has at most those of
#: `_SINGLE`. ``benchmarks/constants.py``, 3 x 3 taps, 128 channels, batch 8: 0.26 of the time at 2 x 2, 0.61
#: at 4 x 4, 0.75 at 6 x 6, 1.16 at 8 x 8; 64 images of 64 channels 0.22 at 2 x 2, 0.74 at 5 x 5. One tap,
#: 256 channels: 0.31 at 1 x 1, 0.53 at 2 x 2, 0.76 at 3 x 3, 1.02 at 4 x 4, for a single image 0.83 to 1.53.
_CONNECTED, _ONE_TAP = 36, 9

#: The least and the most channels of sequences whose windows move by several places, which are products
#: without a matrix of places: those of ``gradient.portable.rules.sequence_windows``.
_SEQUENCE = 16, 192


@dataclass(frozen=True)
class _Small:
    """A convolution of small images of known sizes.

    Attributes
    ----------
    n, c, m, group : int
        Images, channels of an image, channels of the result, groups.
    out : list of int
        Spatial sizes of the result.
    taps : ndarray of shape [taps, places of the image, places of the result]
        One where the tap meets a place of the image for a place of the result, else zero.
    """

    n: int
    c: int
    m: int
    group: int
    out: list[int]
    taps: np.ndarray


def _convolution(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Conv(x, weight, bias)`` of small images of known sizes."""
    small = _read(node)
    if small is None:
        return None
    n_taps, _, results = small.taps.shape
    if small.group == small.c == small.m > 1:
        return _by_channel(w, node, small)
    if _moves_over_sequence(node, small):
        return None
    fits = results <= (_CONNECTED if n_taps > 1 else _ONE_TAP) and small.taps.any()
    if small.group > 1 or not fits or small.n == n_taps == 1:
        return None
    return _all_images(w, node, small)


def _moves_over_sequence(node: ir.Node, small: _Small) -> bool:
    """Tell whether windows of a sequence move by several places, which takes no matrix of places.

    See :mod:`onnxsgd.graph.lowering.forms.sequence_convolutions`.
    """
    moves, dilations = (attribute(node, name, [1]) for name in ("strides", "dilations"))
    least, most = _SEQUENCE
    is_sequence = len(small.out) == small.group == max(dilations) == 1
    fits = min(small.c, small.m) >= least and max(small.c, small.m) <= most
    return is_sequence and fits and 1 < moves[0] <= len(small.taps)


def _read(node: ir.Node) -> _Small | None:
    """Return a convolution whose sizes are known and whose padding is given by numbers, or None."""
    x, weight, y = first(node), node.inputs[1], node.outputs[0]
    if weight is None or x.dtype != ir.DataType.FLOAT:
        # the runtime convolves in no other type on the CPU
        return None
    if any(value.shape is None or not value.shape.is_static() for value in (x, weight, y)):
        return None
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    (n, c, *sizes), kernel, out = (_sizes(x), _sizes(weight)[2:], _sizes(y)[2:])
    if max(math.prod(sizes), math.prod(out)) > _SINGLE or 0 in _sizes(y):
        return None
    rank = len(kernel)
    strides, dilations = (list(attribute(node, key, [1] * rank)) for key in ("strides", "dilations"))
    pads = list(attribute(node, "pads", [0] * 2 * rank))[:rank]
    axes = [_axis(*moves) for moves in zip(kernel, sizes, out, strides, dilations, pads, strict=True)]
    return _Small(n, c, _sizes(weight)[0], attribute(node, "group", 1), out, _outer(axes))


def _sizes(value: ir.Value) -> list[int]:
    return [] if value.shape is None else list(value.shape.numpy())


def _axis(k: int, size: int, out: int, stride: int, dilation: int, pad: int) -> np.ndarray:
    """Return the table of one axis, by [t, i, o]: 1 where tap t of result o meets element i, else 0."""
    tap, element, result = np.ogrid[:k, :size, :out]
    return (element == result * stride + tap * dilation - pad).astype(np.float64)


def _outer(axes: list[np.ndarray]) -> np.ndarray:
    """Return the table of all axes together, each of its three axes flattened."""
    table = axes[0]
    for other in axes[1:]:
        joined = np.einsum("tio,ujp->tuijop", table, other)
        table = joined.reshape([a * b for a, b in zip(table.shape, other.shape, strict=True)])
    return table


def _table(w: Writer, table: np.ndarray) -> ir.Value:
    return w.tensor("taps", np.ascontiguousarray(table, np.float32), frozen="places of taps")


def _bias(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _by_channel(w: Writer, node: ir.Node, small: _Small) -> ir.Value:
    """Multiply the images of each channel by a matrix of its own, which holds the taps.

    A single element is multiplied by the one tap that meets it.
    """
    x, weight = first(node), required(node, 1)
    n_taps, places, results = small.taps.shape
    flat = w.reshaped(weight, [small.c, n_taps])
    table = _table(w, small.taps.reshape(n_taps, places * results))
    matrix = w.known("MatMul", [flat, table], [small.c, places * results])
    sizes = [small.n, small.c, *small.out]
    if places == results == 1:
        y = w.known("Mul", [x, w.reshaped(matrix, [1, small.c, *small.out])], sizes)
    else:
        images = w.transposed(w.reshaped(x, [small.n, small.c, places]), [1, 0, 2])
        matrices = w.reshaped(matrix, [small.c, places, results])
        product = w.known("MatMul", [images, matrices], [small.c, small.n, results])
        y = w.reshaped(w.transposed(product, [1, 0, 2]), sizes)
    bias = _bias(node)
    if bias is None:
        return y
    return w.known("Add", [y, w.reshaped(bias, [1, small.m, *[1] * len(small.out)])], sizes)


def _all_images(w: Writer, node: ir.Node, small: _Small) -> ir.Value:
    """Multiply the weight by the columns under it, those of all places of all images beside each other.

    Taps that meet padding alone are left out.
    """
    n_taps, _, results = small.taps.shape
    met = np.flatnonzero(small.taps.any(axis=(1, 2)))
    if len(met) == n_taps > 1 and min(small.c, results) > 1:
        kernel, columns = _taps_first(w, node, small)
    else:
        kernel, columns = _channels_first(w, node, small, met)
    bias = _bias(node)
    offsets = [] if bias is None else [w.reshaped(bias, [small.m, 1])]
    product = w.known("Gemm", [kernel, columns, *offsets], [small.m, small.n * results], transB=1)
    product = w.transposed(w.reshaped(product, [small.m, small.n, results]), [1, 0, 2])
    return w.reshaped(product, [small.n, small.m, *small.out])


def _taps_first(w: Writer, node: ir.Node, small: _Small) -> tuple[ir.Value, ir.Value]:
    """Return the weight [m, taps x c] and the columns [n x results, taps x c].

    They are made of images whose channels come last, which are fewer numbers to move than columns are. A loop
    carries the weight in this order.
    """
    x, weight = first(node), required(node, 1)
    n_taps, places, results = small.taps.shape
    kernel = w.transposed(w.reshaped(weight, [small.m, small.c, n_taps]), [0, 2, 1])
    kernel = w.reshaped(kernel, [small.m, n_taps * small.c])
    table = _table(w, small.taps.transpose(2, 0, 1).reshape(results * n_taps, places))
    images = w.transposed(w.reshaped(x, [small.n, small.c, places]), [0, 2, 1])
    columns = w.known("MatMul", [table, images], [small.n, results * n_taps, small.c])
    return kernel, w.reshaped(columns, [small.n * results, n_taps * small.c])


def _channels_first(w: Writer, node: ir.Node, small: _Small, met: np.ndarray) -> tuple[ir.Value, ir.Value]:
    """Return the weight [m, c x met] and the columns [n x results, c x met] of the met taps."""
    x, weight = first(node), required(node, 1)
    n_taps, places, results = small.taps.shape
    n_rows = small.c * len(met)
    kernel = w.reshaped(weight, [small.m, small.c * n_taps])
    if len(met) < n_taps:
        by_tap = w.reshaped(weight, [small.m * small.c, n_taps])
        chosen = _table(w, np.eye(n_taps)[:, met])
        kernel = w.reshaped(
            w.known("MatMul", [by_tap, chosen], [small.m * small.c, len(met)]), [small.m, n_rows]
        )
    table = small.taps[met].transpose(1, 2, 0).reshape(places, results * len(met))
    columns = w.reshaped(x, [small.n * small.c, places])
    if not np.array_equal(table, np.eye(places)):
        columns = w.known("MatMul", [columns, _table(w, table)], [small.n * small.c, results * len(met)])
    if results > 1:
        columns = w.reshaped(columns, [small.n, small.c, results, len(met)])
        columns = w.transposed(columns, [0, 2, 1, 3])
    return kernel, w.reshaped(columns, [small.n * results, n_rows])


#: The forms of layers of small images, of known sizes.
SMALL_IMAGE_FORMS: Table = {("", "Conv"): _convolution}
