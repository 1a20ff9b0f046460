"""Gradients of normalizations: scale * (x - mean) / sqrt(var + epsilon) + bias, over some axes.

The statistics are computed again from ``x``; only those of a LayerNormalization are read from its optional
outputs, which have a gradient too, so that the gradient can be differentiated once more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.writing.broadcasting import mean_over, reshape_to, size_of, sum_to, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.nodes import constant, operands, standard_operator

__all__ = ["NORMALIZATION"]


def _standardized(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x with mean 0 and variance 1 over `axes`, and one over its standard deviation."""
    centred = x - mean_over(x, axes)
    inverse = op.Reciprocal(op.Sqrt(mean_over(centred * centred, axes) + epsilon))
    return centred * inverse, inverse


def _through_statistics(g: Tensor, hat: Tensor, inverse: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the gradient with respect to x, given `g`, that with respect to its standardized form `hat`."""
    return inverse * (g - mean_over(g, axes) - hat * mean_over(g * hat, axes))


def _without_factor(g: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Return a product without a factor that is the same along `axes`, and this factor or None.

    Means over the axes have the factor too: a result computed from them is scaled once, at its end.
    """
    node = g.value.producer()
    if node is None or standard_operator(node) != "Mul" or g.rank is None:
        return g, None
    a, b = (g.emitter.tensor(value) for value in operands(node))
    for rest, factor in ((a, b), (b, a)):
        if rest.dims == g.dims and factor.dims is not None:
            dims = (*[1] * (g.rank - len(factor.dims)), *factor.dims)
            if all(dims[axis] == 1 for axis in axes):
                return rest, factor
    return g, None


def _per_channel(n: Call, v: Tensor) -> Tensor:
    """Return a vector over the channels (axis 1) in a shape that broadcasts against the input."""
    shaped: Tensor = op.Unsqueeze(v, list(range(1, n.rank - 1))) if n.rank > 2 else v
    return shaped


def _other_axes(n: Call) -> list[int]:
    return [0, *range(2, n.rank)]


def _sum_per_channel(n: Call, g: Tensor) -> Tensor:
    total: Tensor = op.ReduceSum(g, _other_axes(n), keepdims=0)
    return total


def _epsilon(n: Call) -> float:
    return float(n.attribute("epsilon", 1e-5))


# LayerNormalization: over the last axes.


def _layer_axes(n: Call) -> list[int]:
    return list(range(n.attribute("axis", -1) % n.rank, n.rank))


def _layer_hat(n: Call) -> tuple[Tensor, Tensor]:
    """Return the standardized input, and one over its standard deviation.

    In single precision they are computed from the statistics that the operator returns, which saves six nodes
    for each LayerNormalization (``benchmarks/networks.py``, vit); in another, these differ in type from the
    input.
    """
    axes = _layer_axes(n)
    if n.x.dtype != ir.DataType.FLOAT or n.attribute("stash_type", 1) != 1:
        return _standardized(n.x, axes, _epsilon(n))
    dims = None if n.x.dims is None else (*n.x.dims[: axes[0]], *(1 for _ in axes))
    mean, inverse = (n.extra_output(index, dims, n.x.dtype) for index in (1, 2))
    return (n.x - mean) * inverse, inverse


def _layer_x(n: Call) -> Tensor:
    axes, (hat, inverse) = _layer_axes(n), n.once("hat", _layer_hat)
    width = n.x.dims[-1] if n.x.dims is not None else None
    total = zeros_like(n.x) if n.gradient(0) is None else None
    if total is None and isinstance(width, int) and n.b.dims == (width,):
        # The means over the last axis as products with a column, which the scale of g = dy scale is part of.
        column = op.Reshape(n.b, [width, 1]) * (1 / width)
        means = op.MatMul(n.dy, column), op.MatMul(n.dy * hat, column)
        total = inverse * (n.dy * n.b - means[0] - hat * means[1])
    elif total is None:
        total = _through_statistics(n.dy * n.b, hat, inverse, axes)
    return _through_returned_statistics(n, total)


def _through_returned_statistics(n: Call, total: Tensor) -> Tensor:
    """Add the gradients through the mean, and through one over the standard deviation, as outputs."""
    hat, inverse = n.once("hat", _layer_hat)
    count, (mean, deviation) = size_of(n.x, _layer_axes(n)), (n.gradient(1), n.gradient(2))
    if mean is not None:
        total = total + mean.cast(n.x.dtype) / count
    if deviation is not None:
        total = total - hat * (deviation.cast(n.x.dtype) * inverse * inverse / count)
    return total


def _layer_scale(n: Call) -> Tensor:
    if n.gradient(0) is None:
        return zeros_like(n.b)
    return sum_to(n.dy * n.once("hat", _layer_hat)[0], n.y, n.b)


def _layer_bias(n: Call) -> Tensor:
    return zeros_like(n.c) if n.gradient(0) is None else sum_to(n.dy, n.y, n.c)


# RMSNormalization: likewise, without a mean.


def _rms(n: Call) -> tuple[Tensor, Tensor]:
    inverse = op.Reciprocal(op.Sqrt(mean_over(n.x * n.x, _layer_axes(n)) + _epsilon(n)))
    return n.x * inverse, inverse


def _rms_x(n: Call) -> Tensor:
    (hat, inverse), g = _rms(n), n.dy * n.b
    return inverse * (g - hat * mean_over(g * hat, _layer_axes(n)))


# BatchNormalization: over all axes but the channels, with given statistics unless it is training.


def _batch_hat(n: Call) -> tuple[Tensor, Tensor]:
    return _standardized(n.x, _other_axes(n), _epsilon(n))


def _batch_inverse(n: Call) -> Tensor:
    inverse: Tensor = op.Reciprocal(op.Sqrt(n.input(4) + _epsilon(n)))
    return inverse


def _batch_x(n: Call) -> Tensor:
    if n.attribute("training_mode", 0):
        return _through_statistics(n.dy * _per_channel(n, n.b), *_batch_hat(n), _other_axes(n))
    return n.dy * _per_channel(n, n.b * _batch_inverse(n))


def _batch_scale(n: Call) -> Tensor:
    if n.attribute("training_mode", 0):
        return _sum_per_channel(n, n.dy * _batch_hat(n)[0])
    # centred and scaled after the sum: two passes over the data less
    return (_sum_per_channel(n, n.dy * n.x) - _sum_per_channel(n, n.dy) * n.input(3)) * _batch_inverse(n)


def _given_statistics(n: Call) -> None:
    if n.attribute("training_mode", 0):
        raise n.refuse("in training mode has no gradient with respect to the running mean and variance")


def _batch_mean(n: Call) -> Tensor:
    _given_statistics(n)
    return -_sum_per_channel(n, n.dy) * (n.b * _batch_inverse(n))


def _batch_variance(n: Call) -> Tensor:
    _given_statistics(n)
    inverse = _batch_inverse(n)
    return _batch_scale(n) * n.b * (-0.5 * inverse * inverse)


# InstanceNormalization: over the spatial axes.


def _instance_hat(n: Call) -> tuple[Tensor, Tensor]:
    return _standardized(n.x, list(range(2, n.rank)), _epsilon(n))


def _instance_x(n: Call) -> Tensor:
    axes, scale, (hat, inverse) = list(range(2, n.rank)), constant(n.b.value), _instance_hat(n)
    # exporters scale the result of a GroupNormalization by a node of its own
    is_scaled = scale is None or not (scale == 1).all()
    g, factor = _without_factor(n.dy * _per_channel(n, n.b) if is_scaled else n.dy, axes)
    return _through_statistics(g, hat, inverse if factor is None else inverse * factor, axes)


# GroupNormalization: over the spatial axes and the channels of a group.


def _groups(n: Call, x: Tensor) -> Tensor:
    """Return `x`, of the shape of the input, as (batch, groups, everything else)."""
    if n.opset < 21:
        raise n.refuse("has a gradient rule for version 21 and later, which has a scale for each channel")
    grouped: Tensor = op.Reshape(x, [0, n.attribute("num_groups"), -1])
    return grouped


def _group_hat(n: Call) -> tuple[Tensor, Tensor]:
    return _standardized(_groups(n, n.x), [2], _epsilon(n))


def _group_x(n: Call) -> Tensor:
    scaled = _groups(n, n.dy * _per_channel(n, n.b))
    return reshape_to(_through_statistics(scaled, *_group_hat(n), [2]), n.x)


def _group_scale(n: Call) -> Tensor:
    return _sum_per_channel(n, n.dy * reshape_to(_group_hat(n)[0], n.x))


# LRN: every channel divided by a power of the sum of squares of the channels beside it.


def _lrn(n: Call) -> Tensor:
    channels = n.x.dims[1] if n.x.dims is not None else None
    if not isinstance(channels, int) or n.x.dtype is None:
        raise n.refuse("needs a known number of channels")
    size, beta = n.attribute("size"), n.attribute("beta", 0.75)
    alpha = n.attribute("alpha", 1e-4) / size
    ahead = np.arange(channels) - np.arange(channels)[:, None]
    near = (ahead >= -((size - 1) // 2)) & (ahead <= size // 2)
    window = n.emitter.constant(near.astype(n.x.dtype.numpy()))
    x, dy = (op.Reshape(t, [0, channels, -1]) for t in (n.x, n.dy))
    base = alpha * op.MatMul(window, x * x) + n.attribute("bias", 1.0)
    scaled = base ** (-beta)
    around = op.MatMul(op.Transpose(window, perm=[1, 0]), dy * x * scaled / base)
    return reshape_to(dy * scaled - (2 * alpha * beta) * x * around, n.x)


NORMALIZATION: Rules = {
    "BatchNormalization": (
        _batch_x,
        _batch_scale,
        lambda n: _sum_per_channel(n, n.dy),
        _batch_mean,
        _batch_variance,
    ),
    "GroupNormalization": (
        _group_x,
        _group_scale,
        lambda n: _sum_per_channel(n, n.dy),
    ),
    "InstanceNormalization": (
        _instance_x,
        lambda n: _sum_per_channel(n, n.dy * _instance_hat(n)[0]),
        lambda n: _sum_per_channel(n, n.dy),
    ),
    "LRN": (_lrn,),
    "LayerNormalization": (_layer_x, _layer_scale, _layer_bias),
    "RMSNormalization": (_rms_x, lambda n: sum_to(n.dy * _rms(n)[0], n.y, n.b)),
}
