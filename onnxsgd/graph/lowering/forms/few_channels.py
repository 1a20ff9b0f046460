"""Convolutions with few channels of results, written as transposed ones.

The runtime copies the part of the image that each tap reads, of all channels, and multiplies it by a matrix
of few rows. A transposed convolution copies results, and its matrix has as many rows as there are taps and
channels together. For graphs with their gradients: none is taken of what is written here.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, element_type, first, required, shape_of
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["FEW_CHANNEL_FORMS"]

#: The most channels of the result, of an image that has at least `_TIMES` as many.
#: ``benchmarks/constants.py``, 16 x 16 places, 3 x 3 taps, four times as many channels in the images: 0.37 of
#: the time with 8 channels, 0.50 with 16, 0.70 with 32, 0.89 with 64; one image 0.56, 0.69, 0.89; with
#: onnxruntime 1.19.2 0.48 to 0.92, and 0.65 to 0.97. From 32 on, other sizes of images take longer.
_MOST = 16
#: The least ratio of the channels of the image to those of the result. ``benchmarks/constants.py``, 8 of the
#: result: 0.51 of the time with twice as many in the image, 0.38 with four times, 0.32 with eight times; with
#: onnxruntime 1.19.2 0.72, 0.48 and 0.38. With twice as many larger images take 0.95 there.
_TIMES = 4


def _convolution(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Conv(x, weight, bias)`` of two spatial axes without strides and groups."""
    x, weight, y = first(node), required(node, 1), node.outputs[0]
    if any(value.shape is None or not value.shape.is_static() for value in (x, weight, y)):
        return None
    (m, c, *kernel), sizes = shape_of(weight).numpy(), list(shape_of(y).numpy())
    has_few = len(kernel) == 2 and math.prod(kernel) > 1 and m <= _MOST and c >= _TIMES * m
    if not has_few or not _is_plain(node) or 0 in sizes:
        return None
    dilations = list(attribute(node, "dilations", [1, 1]))
    reach = [(k - 1) * dilation for k, dilation in zip(kernel, dilations, strict=True)] * 2
    pads = [r - pad for r, pad in zip(reach, attribute(node, "pads", [0] * 4), strict=True)]
    if min(pads) < 0:
        return None
    turned = _known_turned(weight, (m, c, *kernel)) or _turned(w, weight, (m, c, *kernel))
    bias = [node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] is not None else []
    return w.known("ConvTranspose", [x, turned, *bias], sizes, pads=pads, dilations=dilations)


def _is_plain(node: ir.Node) -> bool:
    has_pads = attribute(node, "auto_pad", "NOTSET") == "NOTSET"
    return has_pads and attribute(node, "group", 1) == 1 and max(attribute(node, "strides", [1])) == 1


def _turned(w: Writer, weight: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Return the weight with its taps reversed and its channels exchanged."""
    m, c, *kernel = shape
    places = math.prod(kernel)
    backwards = w.tensor("backwards", _backwards(places).astype(element_type(weight).numpy()))
    taps = w.known("MatMul", [w.reshaped(weight, [m, c, places]), backwards], [m, c, places])
    return w.reshaped(w.transposed(taps, [1, 0, 2]), [c, m, *kernel])


def _known_turned(weight: ir.Value, shape: tuple[int, ...]) -> ir.Value | None:
    """Return the same as the gradient of the image has it, if that is a convolution."""
    m, c, *kernel = shape
    backwards = _backwards(math.prod(kernel))
    for flat in _readers(weight, "Reshape"):
        for taps in _readers(flat.outputs[0], "MatMul"):
            factor = constant(taps.inputs[1])
            if factor is None or not np.array_equal(factor, backwards):
                continue
            for exchanged in _readers(taps.outputs[0], "Transpose"):
                for last in _readers(exchanged.outputs[0], "Reshape"):
                    if shape_of(last.outputs[0]) == (c, m, *kernel):
                        return last.outputs[0]
    return None


def _readers(value: ir.Value, op_type: str) -> list[ir.Node]:
    return [node for node, index in value.uses() if node.op_type == op_type and index == 0]


def _backwards(places: int) -> np.ndarray:
    return np.ascontiguousarray(np.eye(places)[::-1])


#: The form of convolutions of few channels.
FEW_CHANNEL_FORMS: Table = {("", "Conv"): _convolution}
