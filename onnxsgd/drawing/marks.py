"""Parts of a graph and roles of its tensors, for a picture."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import onnx_ir as ir

from onnxsgd.graph.nodes import constant, read_values

__all__ = ["MarkedGraph", "Part", "Role", "mark_by_names", "mark_passes", "mark_tensors"]

#: The names of outputs of :func:`onnxsgd.onnx_derivative` end so.
_SUFFIX = "_grad"
#: The default names of :func:`onnxsgd.add_loss_output`.
_LOSS, _LABEL = "loss", "label"


class Part(StrEnum):
    """The part of a training step that a node belongs to, in the order of computation."""

    MODEL = "model"
    LOSS = "loss"
    GRADIENT = "gradient"
    UPDATE = "update"


class Role(StrEnum):
    """The role of a tensor that is no data."""

    TRAINED = "trained"
    FROZEN = "frozen"
    STATE = "state"


@dataclass(frozen=True)
class MarkedGraph:
    """A graph with the marks that its picture shows.

    Attributes
    ----------
    graph : ir.Graph
        In topological order.
    title : str
        The title of the picture.
    parts : mapping of ir.Node to Part
        The part of each node; nodes that are missing belong to the model.
    roles : mapping of ir.Value to Role
        The roles of inputs and initializers that are no data.
    results : mapping of ir.Value to tuple of str
        Outputs that are named inside the box of their node, such as gradients, with these names.
    """

    graph: ir.Graph
    title: str
    parts: Mapping[ir.Node, Part] = field(default_factory=dict)
    roles: Mapping[ir.Value, Role] = field(default_factory=dict)
    results: Mapping[ir.Value, tuple[str, ...]] = field(default_factory=dict)

    def part(self, node: ir.Node) -> Part:
        """Return the part of `node`."""
        return self.parts.get(node, Part.MODEL)


def mark_passes(
    graph: ir.Graph, score: ir.Value, loss: ir.Value, updates: Collection[ir.Value] = ()
) -> dict[ir.Node, Part]:
    """Return the part of each node of a graph with a loss, and perhaps a gradient and an update.

    Parameters
    ----------
    graph : ir.Graph
        In topological order.
    score : ir.Value
        The raw prediction: the model is all that it depends on.
    loss : ir.Value
        The loss: the part of the loss is all else that it depends on.
    updates : collection of ir.Value
        Numbers and states of the optimizer, new weights and new states: the update is all that depends on
        the former, and the nodes that make the latter. The rest is the gradient.
    """
    forward, objective = _nodes_before(graph, [score]), _nodes_before(graph, [loss])
    updating = _nodes_behind(graph, updates)
    new = set(updates)
    updating.update(node for node in graph if not new.isdisjoint(node.outputs))
    parts = {}
    for node in graph:
        if node in forward:
            parts[node] = Part.MODEL
        elif node in objective:
            parts[node] = Part.LOSS
        else:
            parts[node] = Part.UPDATE if node in updating else Part.GRADIENT
    return parts


def mark_by_names(graph: ir.Graph) -> tuple[dict[ir.Node, Part], dict[ir.Value, tuple[str, ...]]]:
    """Return parts and results of a graph of unknown origin, by the names that the graph toolkit gives.

    An output ``t_grad`` is the gradient of an input or initializer ``t``; all that only gradients depend on
    belongs to them. An output ``loss`` beside other outputs, or with an input ``label``, is a loss: its part
    is all that no other output depends on, or that depends on the label.
    """
    tensors = {str(value.name) for value in graph.inputs} | set(graph.initializers)
    results: dict[ir.Value, tuple[str, ...]] = {
        value: (f"gradient of {value.name.removesuffix(_SUFFIX)}",)
        for value in graph.outputs
        if value.name and value.name.endswith(_SUFFIX) and value.name.removesuffix(_SUFFIX) in tensors
    }
    others = [value for value in graph.outputs if value not in results]
    kept = _nodes_before(graph, others)
    parts = {node: Part.GRADIENT for node in graph if node not in kept}
    loss = [value for value in others if value.name == _LOSS]
    scores = [value for value in others if value.name != _LOSS]
    labels = [value for value in graph.inputs if value.name == _LABEL]
    if loss and (scores or labels):
        before = _nodes_before(graph, loss)
        own = before - _nodes_before(graph, scores) if scores else before & _nodes_behind(graph, labels)
        parts.update(dict.fromkeys(own, Part.LOSS))
    return parts, results


def mark_tensors(
    graph: ir.Graph, trained: Collection[str], given: Collection[str] | None = None
) -> dict[ir.Value, Role]:
    """Return the roles of trained tensors and of others of real numbers, by name.

    Parameters
    ----------
    graph : ir.Graph
        The graph.
    trained : collection of str
        The names of trained inputs and initializers.
    given : collection of str or None
        The names of tensors of the user's model, beside which all are constants of formulas; None: all of
        more than one number.
    """
    roles = {}
    tensors = dict.fromkeys(value for node in graph for _, value in read_values(node))
    for value in tensors:
        array = constant(value)
        if value.name in trained and (array is not None or value.is_graph_input()):
            roles[value] = Role.TRAINED
        elif given is not None and value.name not in given:
            continue
        elif array is not None and array.size > 1 and array.dtype.kind == "f":
            roles[value] = Role.FROZEN
    return roles


def _nodes_before(graph: ir.Graph, values: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes that `values` depend on."""
    needed, found = set(values), set()
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            found.add(node)
            needed.update(value for _, value in read_values(node))
    return found


def _nodes_behind(graph: ir.Graph, values: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes that depend on `values`."""
    reached, found = set(values), set()
    for node in graph:
        if any(value in reached for _, value in read_values(node)):
            found.add(node)
            reached.update(node.outputs)
    return found
