"""BatchNormalization in training: statistics of the batch, and the update of the running ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.append import appending
from onnxsgd.graph.batch_normalization import batch_normalizations, momentum_of
from onnxsgd.graph.model import graph_names, unique_name, value_named
from onnxsgd.graph.nodes import attribute, element_type, fixed_size, required, shape_of
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.graph.writing import replace_input, replace_output

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["BatchStatistics", "mask_padding", "with_batch_statistics"]


@dataclass(frozen=True)
class BatchStatistics:
    """The statistics of a batch in one layer, as names of tensors; they survive the differentiation.

    Attributes
    ----------
    running, batch : tuple of (str, str)
        Mean and variance: the running ones, and those of the batch; the variance is the biased one.
    count : str
        The number of values of a channel.
    momentum : float
        The share of the running statistics that an update keeps.
    needs_two : bool
        Whether a batch may have a single value of a channel, which has no variance.
    """

    running: tuple[str, str]
    batch: tuple[str, str]
    count: str
    momentum: float
    needs_two: bool

    def updated(self, op: Builder, graph: ir.Graph) -> dict[str, ir.Value]:
        """Return the new running statistics by their names.

        ::

            running = momentum running + (1 - momentum) batch

        The variance of the batch has the divisor n - 1 here, as in torch; the operator of ONNX in training
        mode has n. A batch of one value changes nothing.
        """
        count = value_named(graph, self.count)
        rate: ir.Value | float = 1.0 - self.momentum
        if self.needs_two:
            rate = op.Mul(_has_two(op, count), 1.0 - self.momentum)
        unbiased = op.Div(count, op.Max(op.Sub(count, 1.0), 1.0))
        new = {}
        for name, batch, factor in zip(self.running, self.batch, (None, unbiased), strict=True):
            running, value = value_named(graph, name), value_named(graph, batch)
            target = value if factor is None else op.Mul(value, factor)
            step = op.Mul(op.Sub(target, _like(op, running, target)), rate)
            new[name] = op.Add(running, _like(op, step, running))
        return new


def with_batch_statistics(
    model: ir.Model, statistics: Collection[str], batch_size: int
) -> tuple[ir.Model, str, tuple[BatchStatistics, ...]]:
    """Return `model` with layers that normalise by the statistics of the rows that are no padding.

    ::

        y = scale (x - mean) / sqrt(var + epsilon) + bias

    mean and var are those of all values of a channel in the batch, or the running ones if that is a single
    value. Weights of the samples do not enter them.

    Parameters
    ----------
    model : ir.Model
        A graph of fixed sizes, which is changed. The running statistics become inputs.
    statistics : collection of str
        The running statistics of these layers.
    batch_size : int
        Rows of a batch, padding included.

    Returns
    -------
    model : ir.Model
        The same graph.
    mask : str
        The name of a new input [batch_size, 1]: 1 for each row that is no padding, else 0.
    layers : tuple of BatchStatistics
        The statistics of each layer.
    """
    graph = model.graph
    names = graph_names(graph)
    nodes = [node for node in batch_normalizations(graph) if required(node, 3).name in statistics]
    wide = any(required(node, 0).dtype == ir.DataType.DOUBLE for node in nodes)
    type_ = ir.TensorType(ir.DataType.DOUBLE if wide else ir.DataType.FLOAT)
    mask = ir.Value(name=unique_name("row_mask", names), type=type_, shape=ir.Shape([batch_size, 1]))
    graph.inputs.append(mask)
    for name in statistics:
        value = graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)
    layers = tuple(_train(graph, node, mask, names) for node in nodes)
    graph.sort()
    ShapeInferencePass(strict_mode=False)(model)
    return model, str(mask.name), layers


def mask_padding(graph: ir.Graph, mask: str, sample_weight: ir.Value) -> None:
    """Compute the mask from the weights of the samples: padding has none, and samples have one."""
    with appending(graph) as op:
        rows = _like(op, op.Sign(sample_weight), value_named(graph, mask))
    replace_input(graph, value_named(graph, mask), rows)


def _train(graph: ir.Graph, node: ir.Node, mask: ir.Value, names: set[str]) -> BatchStatistics:
    """Write a layer out, and return its statistics."""
    given, scale, bias, *running = (required(node, index) for index in range(5))
    _check_rows(node, given, fixed_size(mask, 0))
    places = math.prod(shape_of(given).numpy()[2:])
    with appending(graph) as op:
        # sums over many places exceed float16
        x = _like(op, given, mask)
        rows = _rows_of(op, mask, x)
        count = op.Mul(op.ReduceSum(rows, keepdims=0), float(places))
        shares = op.Div(rows, op.Max(count, 1.0))
        mean = _mean(op, x, shares)
        centred = op.Sub(x, _by_channel(op, mean, x))
        variance = _mean(op, op.Mul(centred, centred), shares)
        used = variance
        if places == 1:
            used_mean, used = _unless_single(op, count, (mean, variance), running)
            centred = op.Sub(x, _by_channel(op, used_mean, x))
        deviation = op.Sqrt(op.Add(used, attribute(node, "epsilon", 1e-5)))
        factor = op.Div(_like(op, scale, x), deviation)
        scaled = op.Mul(centred, _by_channel(op, factor, x))
        result = _like(op, op.Add(scaled, _by_channel(op, _like(op, bias, x), x)), given)
    for value, kind in ((mean, "mean"), (variance, "var"), (count, "count")):
        value.name = unique_name(f"{running[0].name}_{kind}_of_batch", names)
    replace_output(node.outputs[0], result)
    graph.remove(node, safe=True)
    return BatchStatistics(
        (str(running[0].name), str(running[1].name)), (str(mean.name), str(variance.name)), str(count.name),
        momentum_of(node), needs_two=places == 1,
    )  # fmt: skip


def _check_rows(node: ir.Node, x: ir.Value, batch_size: int) -> None:
    """Refuse an input whose rows are not known, or not those of the samples."""
    sizes = [size for size in x.shape or () if isinstance(size, int)]
    if not sizes or len(sizes) < len(x.shape or ()) or sizes[0] % batch_size:
        raise UnsupportedError(
            f"The BatchNormalization that computes {node.outputs[0].name!r} cannot train: its input has the "
            f"shape {x.shape or 'unknown'} for a batch of {batch_size}. Use batch_norm='frozen'."
        )


def _mean(op: Builder, x: ir.Value, shares: ir.Value) -> ir.Value:
    """Return the mean of each channel, as a product with the shares of the rows: it needs no copy of `x`."""
    n_rows, n_channels, *places = shape_of(x).numpy()
    sums = op.MatMul(shares, op.Reshape(x, [n_rows, n_channels * math.prod(places)]))
    return op.ReduceSum(op.Reshape(sums, [n_channels, math.prod(places)]), [1], keepdims=0)


def _unless_single(
    op: Builder, count: ir.Value, of_batch: Sequence[ir.Value], running: Sequence[ir.Value]
) -> list[ir.Value]:
    """Return the statistics of the batch, or the running ones if there is a single value."""
    share = _has_two(op, count)
    rest = op.Sub(1.0, share)
    return [
        op.Add(op.Mul(value, share), op.Mul(_like(op, kept, value), rest))
        for value, kept in zip(of_batch, running, strict=True)
    ]


def _rows_of(op: Builder, mask: ir.Value, x: ir.Value) -> ir.Value:
    """Return the mask as a row [1, n_rows]; a sample may have several rows in `x`, one after the other."""
    n_rows = fixed_size(x, 0)
    repeats = n_rows // fixed_size(mask, 0)
    if repeats > 1:
        mask = op.Expand(mask, [fixed_size(mask, 0), repeats])
    return _like(op, op.Reshape(mask, [1, n_rows]), x)


def _like(op: Builder, value: ir.Value, like: ir.Value) -> ir.Value:
    """Return a value in the element type of another."""
    return value if value.dtype == like.dtype else op.Cast(value, to=element_type(like))


def _has_two(op: Builder, count: ir.Value) -> ir.Value:
    """Return 1 if there are two values or more, else 0."""
    return op.Max(op.Min(op.Sub(count, 1.0), 1.0), 0.0)


def _by_channel(op: Builder, vector: ir.Value, x: ir.Value) -> ir.Value:
    """Reshape a value for each channel to broadcast along axis 1 of `x`."""
    trailing = list(range(1, len(shape_of(x)) - 1))
    return op.Unsqueeze(vector, trailing) if trailing else vector
