"""Gradients of the operators of neural networks that are neither convolutions, pools nor recurrences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add

import onnx_ir as ir

from onnxsgd.gradient.portable.rules.indexing import positions
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["NEURAL"]


def _axis(n: Call) -> list[int]:
    return [n.attribute("axis", -1) % n.rank]


def _softmax(n: Call) -> Tensor:
    y = _without_masked_rows(n)
    weighted = n.dy * y
    return weighted - y * op.ReduceSum(weighted, _axis(n), keepdims=1)


def _without_masked_rows(n: Call) -> Tensor:
    """Return the probabilities, with zeros in rows that are NaN where the graph replaces such rows.

    A row of scores that are all -inf is NaN, and so would be its gradient, although nothing depends on it.
    """
    if not any(_is_guard(node) for node in _readers(n.node.outputs[0])):
        return n.y
    found: Tensor = op.Where(op.IsNaN(n.y), 0.0, n.y)
    return found.known_as(n.y.dims)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that read a value, directly or through casts."""
    for node in value.consumers():
        if node.op_type in ("Cast", "CastLike", "Identity"):
            yield from _readers(node.outputs[0])
        yield node


def _is_guard(node: ir.Node) -> bool:
    return node.op_type in ("IsNaN", "Where")


def _log_softmax(n: Call) -> Tensor:
    return n.dy - op.Exp(n.y) * op.ReduceSum(n.dy, _axis(n), keepdims=1)


def _dropout(n: Call) -> Tensor:
    """Return the gradient of the kept elements, scaled as they were; unchanged outside of training."""
    training = n.constant(2) if n.optional(2) is not None else False
    if training is not None and not training:
        return n.g
    kept = n.g * n.extra_output(1, n.y.dims, ir.DataType.BOOL)
    ratio = n.optional(1)
    scale = 2.0 if ratio is None else 1 / (1 - ratio.cast(n.x.dtype))
    if training is None:
        return op.Where(n.c, kept * scale, n.g)
    return kept * scale


def _rank(n: Call) -> int:
    """Return the rank of the scores, which have one axis more than their labels."""
    return n.rank if n.b.rank is None else n.b.rank + 1


def _labels(n: Call) -> Tensor:
    """Return the labels with an axis of size 1 for the classes."""
    labels: Tensor = op.Unsqueeze(n.b.cast(ir.DataType.INT64), [1])
    return labels


def _class_hits(n: Call) -> Tensor:
    """Return a mask of the class of the label, along axis 1 of the scores."""
    hits: Tensor = op.Equal(_labels(n), positions(n.x, dim_of(n.x, 1), _rank(n) - 2))
    return hits


def _class_mask(n: Call) -> Tensor:
    """Return the labels as zeros and ones, one for each class, along axis 1 of the scores."""
    return _class_hits(n).cast(n.x.dtype)


def _sample_weights(n: Call, mask: Tensor) -> Tensor:
    """Return the weight of each sample, with an axis of size 1 for the classes; 0 for ignored labels."""
    weights = n.optional(2)
    if weights is not None:
        mask = mask * (op.Unsqueeze(weights, list(range(1, _rank(n) - 1))) if _rank(n) > 2 else weights)
    total: Tensor = op.ReduceSum(mask, [1], keepdims=1)
    return _without_ignored(n, total)


def _without_ignored(n: Call, samples: Tensor) -> Tensor:
    """Return `samples` with zeros for the ignored label."""
    ignored = n.attribute("ignore_index")
    return samples if ignored is None else samples * op.Not(op.Equal(_labels(n), int(ignored)))


def _weighted_dy(n: Call, weights: Tensor) -> Tensor:
    """Return the gradient of each sample's loss, weighted, with an axis of size 1 for the classes."""
    reduction = n.attribute("reduction", "mean")
    if reduction == "none":
        return op.Unsqueeze(n.dy, [1]) * weights
    return n.dy * (weights / op.ReduceSum(weights, keepdims=0) if reduction == "mean" else weights)


def _class_weights(n: Call, log_probabilities: Tensor) -> Tensor:
    """Return, for each class c, the sum of the derivatives of the weighted losses l of its samples.

    For ``sum`` and ``none`` the derivative is l; for ``mean``, L = sum w l / sum w, it is (l - L) / sum w.
    """
    hits = _class_hits(n)
    loss = -op.ReduceSum(op.Where(hits, log_probabilities, 0.0), [1], keepdims=1)
    if n.attribute("reduction", "mean") == "mean":
        loss = (loss - n.y) / op.ReduceSum(_sample_weights(n, hits.cast(n.x.dtype)), keepdims=0)
    g = op.Unsqueeze(n.dy, [1]) if n.attribute("reduction", "mean") == "none" else n.dy
    summed: Tensor = op.ReduceSum(hits * _without_ignored(n, loss * g), [0, *range(2, _rank(n))], keepdims=0)
    return summed


def _cross_entropy_weights(n: Call) -> Tensor:
    n.gradient(1)  # The logarithms of the probabilities do not depend on the weights.
    if n.gradient(0) is None:
        return zeros_like(n.c)
    return _class_weights(n, op.LogSoftmax(n.x, axis=1))


def _cross_entropy(n: Call) -> Tensor:
    p = op.Softmax(n.x, axis=1)
    parts = []
    if n.gradient(0) is not None:
        mask = _class_mask(n)
        parts.append((p - mask) * _weighted_dy(n, _sample_weights(n, mask)))
    g = n.gradient(1)
    if g is not None:
        parts.append(g - p * op.ReduceSum(g, [1], keepdims=1))
    return reduce(add, parts)


def _negative_log_likelihood(n: Call) -> Tensor:
    mask = _class_mask(n)
    return -mask * _weighted_dy(n, _sample_weights(n, mask))


NEURAL: Rules = {
    "Dropout": (_dropout, None, None),
    "LogSoftmax": (_log_softmax,),
    "NegativeLogLikelihoodLoss": (_negative_log_likelihood, None, lambda n: _class_weights(n, n.x)),
    "Softmax": (_softmax,),
    "SoftmaxCrossEntropyLoss": (_cross_entropy, None, _cross_entropy_weights),
}
