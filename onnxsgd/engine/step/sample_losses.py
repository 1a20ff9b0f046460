"""The mean loss of raw predictions, without an update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from onnxsgd._cache_keys import cache_key
from onnxsgd._library_errors import run_error
from onnxsgd.engine.predict import InferenceGraph, weights_as_inputs
from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import graph_names, to_proto, unique_name
from onnxsgd.losses import FromCallable, Loss
from onnxsgd.runtime.cache import cached
from onnxsgd.runtime.sessions import make_session

__all__ = ["mean_loss", "mean_loss_of_graph", "sample_losses"]

#: Samples of one call: a bound of memory, not measured.
_BLOCK = 65_536


def mean_loss(
    loss: Loss,
    target: np.ndarray,
    raw_prediction: np.ndarray,
    sample_weight: np.ndarray,
    model: ir.Model,
) -> float:
    """Return the weighted mean of :func:`sample_losses`; infinite if it is not finite.

    Parameters
    ----------
    loss, target, raw_prediction, model
        See :func:`sample_losses`.
    sample_weight : ndarray of shape [n_samples]
        Weights of the samples.
    """
    return _mean(sample_losses(loss, target, raw_prediction, model), sample_weight)


def sample_losses(loss: Loss, target: np.ndarray, raw_prediction: np.ndarray, model: ir.Model) -> np.ndarray:
    """Return the losses of samples, [n_samples].

    Parameters
    ----------
    loss : Loss
        The loss.
    target : ndarray of shape [n_samples, n_targets]
        The target, encoded for the loss.
    raw_prediction : ndarray of shape [n_samples, ...]
        Raw predictions, of the same type.
    model : ir.Model
        The graph of the raw predictions: the formula of the loss is written in its opsets.
    """
    n_samples = len(target)
    raw = raw_prediction.reshape(n_samples, -1)
    if not loss.is_formula:
        return np.asarray(cast("FromCallable", loss).evaluate(target, raw)[0])
    widths = (target.shape[1], raw.shape[1])
    versions = (model.ir_version, *sorted(model.graph.opset_imports.items()))
    key = ("losses", cache_key(loss), target.dtype, widths, versions)
    session = cached(key, lambda: make_session(_build_losses(loss, target.dtype, widths, model), 1))
    losses = np.empty(n_samples)
    for start in range(0, n_samples, _BLOCK):
        part = slice(start, start + _BLOCK)
        losses[part] = _run(session, {"target": target[part], "raw_prediction": raw[part]})
    return losses


def mean_loss_of_graph(
    loss: Loss,
    target: np.ndarray,
    features: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    sample_weight: np.ndarray,
    graph: InferenceGraph,
    model: ir.Model,
    n_threads: int | None = None,
) -> float:
    """Return the mean loss of samples by one call of the runtime; raw predictions are not returned.

    Parameters
    ----------
    loss : Loss
        The loss, a formula.
    target : ndarray of shape [n_samples, n_targets]
        The target, encoded for the loss.
    features : mapping of str to ndarray
        The data inputs of the graph, of two rows or more.
    weights : mapping of str to ndarray
        The present weights.
    sample_weight : ndarray of shape [n_samples]
        Weights of the samples.
    graph : InferenceGraph
        The raw predictions, [n_samples, n_outputs].
    model : ir.Model
        Their graph.
    n_threads : int or None
        Threads of the session; None: chosen by the size of the graph.
    """
    n_threads = graph.threads(n_threads)
    key = ("losses of a graph", graph.key, cache_key(loss), target.dtype, target.shape[1], n_threads)

    def make() -> tuple[Any, str]:
        content, name = _build_losses_of_graph(loss, target.dtype, target.shape[1], model, graph.weights)
        return make_session(content, n_threads), name

    session, name = cached(key, make, graph.nbytes, n_threads=n_threads)
    feeds = {weight: weights[weight] for weight in graph.weights}
    for feature in graph.features:
        feeds[feature] = features[feature]
    feeds[name] = target
    return _mean(_run(session, feeds).astype(np.float64), sample_weight)


def _mean(losses: np.ndarray, sample_weight: np.ndarray) -> float:
    """Return the weighted mean; infinite if it is not finite."""
    with np.errstate(all="ignore"):
        # a dot product of many numbers would start the threads of BLAS, and the method sum is one of Python
        mean = float(np.add.reduce(losses * sample_weight) / np.add.reduce(sample_weight))
    return mean if math.isfinite(mean) else math.inf


def _run(session: Any, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    try:
        losses: np.ndarray = session.run(None, feeds)[0]
    except Exception as error:
        raise run_error(error) from error
    return losses


def _build_losses(loss: Loss, dtype: np.dtype[Any], widths: tuple[int, int], model: ir.Model) -> bytes:
    """Return a graph that computes the loss of each sample, [n_samples]."""
    type_ = ir.TensorType(ir.DataType.from_numpy(dtype))
    inputs = [
        ir.Value(name=name, type=type_, shape=ir.Shape([None, width]))
        for name, width in zip(("target", "raw_prediction"), widths, strict=True)
    ]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports=dict(model.graph.opset_imports), name="losses")
    with appending(graph) as op:
        losses = op.ReduceSum(loss.value(op, *inputs), [1], keepdims=0)
    for node in list(graph):
        widen_scalars(graph, node)
    losses.name, losses.type, losses.shape = "losses", type_, ir.Shape([None])
    graph.outputs.append(losses)
    return to_proto(ir.Model(graph, ir_version=model.ir_version, producer_name="onnxsgd")).SerializeToString()


def _build_losses_of_graph(
    loss: Loss, dtype: np.dtype[Any], n_targets: int, model: ir.Model, weights: Sequence[str]
) -> tuple[bytes, str]:
    """Return a graph of the loss of each sample, [n_samples], and the name of its input for the targets."""
    made = weights_as_inputs(model, weights)
    graph, type_ = made.graph, ir.TensorType(ir.DataType.from_numpy(dtype))
    (raw,) = graph.outputs
    target = ir.Value(
        name=unique_name("target", graph_names(graph)), type=type_, shape=ir.Shape([None, n_targets])
    )
    with appending(graph) as op:
        losses = op.ReduceSum(loss.value(op, target, raw), [1], keepdims=0)
    for node in list(graph):
        widen_scalars(graph, node)
    losses.type, losses.shape = type_, ir.Shape([None])
    graph.inputs.append(target)
    graph.outputs[:] = [losses]
    return to_proto(made).SerializeToString(), str(target.name)
