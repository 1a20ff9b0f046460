"""The ratio of the Dropout nodes that act in training."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.dropout import acting_dropouts, ratio_of
from onnxsgd.graph.model import FROZEN, graph_names, unique_name
from onnxsgd.graph.nodes import first, graph_of
from onnxsgd.graph.writing import add_initializer

__all__ = ["with_dropout"]


def with_dropout(model: ir.Model, ratio: float | None) -> ir.Model:
    """Return `model` with this ratio in each Dropout that acts in training.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    ratio : float or None
        The ratio, below 1; None: that of each node. 0: the nodes are removed.

    Raises
    ------
    GraphError
        If a node drops all elements.
    """
    nodes = list(acting_dropouts(model.graph))
    if ratio is None:
        for node in nodes:
            _check_ratio(node)
    if ratio is None or not nodes:
        return model
    result = model.clone()
    names = graph_names(result.graph)
    for node in list(acting_dropouts(result.graph)):
        if ratio:
            value = add_initializer(
                result.graph, unique_name("dropout_ratio", names), np.array(ratio, np.float32)
            )
            value.metadata_props[FROZEN] = "ratio of a Dropout"
            node.resize_inputs(max(2, len(node.inputs)))
            node.replace_input_with(1, value)
        elif len(node.outputs) < 2 or not (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
            _remove(node)
        else:
            node.metadata_props.clear()
    return result


def _remove(node: ir.Node) -> None:
    """Give the uses of a Dropout to its operand; an output of the graph keeps its node."""
    if node.outputs[0].is_graph_output():
        node.metadata_props.clear()
        return
    ir.convenience.replace_all_uses_with(node.outputs[0], first(node))
    graph_of(node).remove(node, safe=True)


def _check_ratio(node: ir.Node) -> None:
    ratio = ratio_of(node)
    if ratio is None or not ratio < 1:
        raise GraphError(
            f"The Dropout that computes {node.outputs[0].name!r} has the ratio {ratio}: it must be below 1. "
            "The parameter dropout gives another one."
        )
