"""Gradients of convolutions.

A convolution's gradients are convolutions: with respect to its input a transposed one, with respect to its
weight one of the input by the output's gradient. Both have several forms in standard operators, chosen by the
sizes.
"""

from __future__ import annotations

from dataclasses import replace

from onnxsgd.gradient.portable.rules.convolution_image import spread
from onnxsgd.gradient.portable.rules.convolution_weight import correlate
from onnxsgd.gradient.portable.rules.windows import (
    Window,
    bare_window,
    kernel_of,
    read_window,
    transposed_pads,
)
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["CONVOLUTION"]


def _gradient(n: Call) -> Tensor:
    """Return the gradient of the result, with its known sizes."""
    return n.dy.known_as(n.y.dims)


def _image(n: Call, image: Tensor) -> Tensor:
    """Return the image of a convolution by the second input, with the number of channels from there."""
    group, weight = n.attribute("group", 1), n.b.dims
    dims = image.dims
    if dims is not None and weight is not None and isinstance(weight[1], int):
        dims = (dims[0], group * weight[1], *dims[2:])
    if group > 1 and (dims is None or not isinstance(dims[1], int)):
        raise n.refuse(f"in groups needs a known number of channels of {image.value.name!r}")
    return Tensor(image.emitter, image.value, image.dtype, dims)


def _conv_x(n: Call) -> Tensor:
    window = read_window(n, n.x, n.y, kernel_of(n, n.b))
    return spread(_gradient(n), n.b, window, n.attribute("group", 1), n.x)


def _conv_w(n: Call) -> Tensor:
    window = read_window(n, n.x, n.y, kernel_of(n, n.b))
    return correlate(_image(n, n.x), _gradient(n), window, n.attribute("group", 1))


def _bias(n: Call) -> Tensor:
    total: Tensor = op.ReduceSum(n.dy, [0, *range(2, n.rank)], keepdims=0)
    return total


def _transpose_window(n: Call) -> Window:
    """Return the window of the convolution that a ConvTranspose transposes."""
    before, after = transposed_pads(n, kernel_of(n, n.b))
    window = replace(bare_window(n, kernel_of(n, n.b)), before=before)
    if any(-pad >= stride for pad, stride in zip(after, window.strides, strict=True)):
        # onnxruntime is wrong here: it takes the result for that of an image with more places.
        raise n.refuse("has a result that reaches past its windows by a stride: no runtime computes it")
    return replace(window, after=tuple(max(pad, 0) for pad in after))


def _transpose_x(n: Call) -> Tensor:
    window = _transpose_window(n)
    narrowed: Tensor = op.Conv(
        n.dy,
        n.b,
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*window.before, *window.after],
        group=n.attribute("group", 1),
    )
    return narrowed


def _transpose_w(n: Call) -> Tensor:
    return correlate(_image(n, _gradient(n)), n.x, _transpose_window(n), n.attribute("group", 1))


CONVOLUTION: Rules = {
    "Conv": (_conv_x, _conv_w, _bias),
    "ConvTranspose": (_transpose_x, _transpose_w, _bias),
}
