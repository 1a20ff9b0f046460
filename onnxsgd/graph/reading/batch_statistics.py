"""The running statistics of BatchNormalization that training updates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NoReturn

import onnx_ir as ir

from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.batch_normalization import STATISTICS, batch_normalizations
from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.nodes import required, standard_operator
from onnxsgd.graph.reading.sample_axis import Along, sample_axes

if TYPE_CHECKING:
    from onnxsgd.graph.reading.trainable import Trainable

__all__ = ["find_statistics", "refuse_without_statistics", "without_statistics"]


def find_statistics(model: ir.Model, batch_norm: str | None, training: Collection[str]) -> tuple[str, ...]:
    """Return the names of the running statistics that training updates: mean and variance of each layer.

    Parameters
    ----------
    model : ir.Model
        The graph of the score, in its inference form; each layer has statistics of its own.
    batch_norm : {"frozen", "train", None}
        "train": those of all layers; None: those of layers that were exported for training.
    training : collection of str
        The outputs of the latter.

    Raises
    ------
    ParameterError
        If all layers are to be trained, and there is none.
    UnsupportedError
        If the batch of such a layer has no rows of samples, or the layer lies in a subgraph.
    """
    if batch_norm == "frozen" or (batch_norm is None and not training):
        return ()
    everywhere = [
        node for node in nodes_within(model.graph) if standard_operator(node) == "BatchNormalization"
    ]
    chosen = [node for node in everywhere if batch_norm == "train" or node.outputs[0].name in training]
    if batch_norm == "train" and not chosen:
        refuse_without_statistics()
    if not chosen:
        return ()
    of_graph, states = list(batch_normalizations(model.graph)), sample_axes(model)
    names = []
    for node in chosen:
        if node not in of_graph:
            _refuse(node, "it lies in a subgraph")
        if states.get(str(required(node, 0).name)) != Along(0):
            _refuse(node, "the first axis of its input is not proven to be that of the samples")
        statistics = [required(node, index) for index in STATISTICS]
        if not all(value.is_initializer() for value in statistics):
            _refuse(node, "its running statistics are no constants of the graph")
        names += [str(value.name) for value in statistics]
    return tuple(names)


def without_statistics(
    selected: Sequence[str], trainable: Trainable, statistics: Collection[str]
) -> tuple[str, ...]:
    """Return the selected initializers but for running statistics that training updates.

    Raises
    ------
    ParameterError
        If `trainable` names one of these.
    """
    if callable(trainable):
        return tuple(name for name in selected if name not in statistics)
    if refused := [name for name in selected if name in statistics]:
        raise ParameterError(
            f"trainable names {refused[0]!r}, a running statistic of BatchNormalization, which is updated "
            "without a gradient: leave it out, or freeze the statistics with batch_norm='frozen'."
        )
    return tuple(selected)


def refuse_without_statistics() -> NoReturn:
    """Refuse to train the statistics of a model that has none."""
    raise ParameterError(
        "batch_norm='train' needs a BatchNormalization before the score, and the model has none. Exporters "
        "fold them into the layer before, unless they are told not to: with torch, "
        "torch.onnx.export(..., dynamo=True, optimize=False)."
    )


def _refuse(node: ir.Node, reason: str) -> NoReturn:
    raise UnsupportedError(
        f"The BatchNormalization that computes {node.outputs[0].name!r} cannot train: {reason}. Use "
        "batch_norm='frozen', which normalises by its running statistics."
    )
