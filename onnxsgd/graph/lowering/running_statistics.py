"""Initializers for the running statistics of each BatchNormalization."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.batch_normalization import STATISTICS, batch_normalizations
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import content, graph_of, required, standard_operator
from onnxsgd.graph.writing import add_initializer

__all__ = ["with_own_statistics"]


def with_own_statistics(model: ir.Model) -> ir.Model:
    """Return `model` with running statistics of its own for each BatchNormalization.

    Exporters keep equal tensors once: the running variance of an untrained layer may be its scale, or the
    variance of another layer. Cases:

    - an initializer with one reader, or a statistic that is no constant: as it is;
    - any other initializer, also behind Identity nodes: a copy of it, named after the scale, as torch does.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    """
    if not any(_shared(node, index) for node in batch_normalizations(model.graph) for index in STATISTICS):
        return model
    result = model.clone()
    names = graph_names(result.graph)
    for node in list(batch_normalizations(result.graph)):
        for index in STATISTICS:
            _separate(node, index, names)
    return result


def _separate(node: ir.Node, index: int, names: set[str]) -> None:
    """Give a node an initializer of its own in place of a shared one."""
    source = _shared(node, index)
    if source is None:
        return
    graph, value = graph_of(node), required(node, index)
    node.replace_input_with(index, None)
    _remove_unused(value, names)
    stem = str(required(node, 1).name).removesuffix(".weight")
    name = unique_name(f"{stem}.{STATISTICS[index]}", names)
    node.replace_input_with(index, add_initializer(graph, name, content(source).numpy().copy()))


def _remove_unused(value: ir.Value, names: set[str]) -> None:
    """Remove the Identity nodes that computed `value` for one reader."""
    producer = value.producer()
    if producer is None or value.uses() or value.is_graph_output():
        return
    source = required(producer, 0)
    names.discard(str(value.name))
    graph_of(producer).remove(producer, safe=True)
    _remove_unused(source, names)


def _shared(node: ir.Node, index: int) -> ir.Value | None:
    """Return the initializer that a statistic comes from, if other nodes read it too; None otherwise."""
    value = required(node, index)
    source = value
    while (producer := source.producer()) is not None and standard_operator(producer) == "Identity":
        source = required(producer, 0)
    is_own = source is value and len(list(source.uses())) == 1 and not source.is_graph_output()
    return None if is_own or not source.is_initializer() else source
