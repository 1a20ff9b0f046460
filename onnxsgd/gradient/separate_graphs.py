"""Forward and backward pass of one graph as two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.saved_tensors import forward_nodes
from onnxsgd.graph.named_shapes import infer_shapes
from onnxsgd.graph.nodes import read_values

__all__ = ["Halves", "split"]


@dataclass(frozen=True)
class Halves:
    """Two graphs, the second of which reads tensors of the first.

    Attributes
    ----------
    forward : ir.Model
        Takes the inputs of the whole but the seeds; returns its outputs, then the saved tensors.
    backward : ir.Model
        Takes the inputs, then the outputs of `forward` that it reads, under their names, then all seeds;
        returns the gradients.
    """

    forward: ir.Model
    backward: ir.Model


def split(model: ir.Model, outputs: Sequence[str], seeds: Sequence[str], gradients: Sequence[str]) -> Halves:
    """Split a graph at the tensors that its backward pass needs of its forward pass.

    No node runs twice, and as few bytes as possible are saved: see
    :func:`~onnxsgd.gradient.saved_tensors.forward_nodes`.

    Parameters
    ----------
    model : ir.Model
        Forward and backward pass, as :func:`~onnxsgd.gradient.joint_graph.forward_backward_model`
        returns them; it is not changed.
    outputs : sequence of str
        Its outputs other than gradients, each computed by a node.
    seeds : sequence of str
        Its inputs that are gradients.
    gradients : sequence of str
        Its outputs that are gradients.

    Raises
    ------
    NotTrainableError
        If the type of a tensor that must be saved is unknown.
    """
    whole = model.clone()
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(whole)
    whole.graph.sort()
    infer_shapes(whole)
    read = _read_by_backward(whole.graph, outputs, seeds, gradients)
    inputs = [name for name, value in read.items() if value.producer() is None]
    returned = [name for name in read if name not in inputs]
    saved = [name for name in returned if name not in outputs]
    taken = [str(value.name) for value in whole.graph.inputs if value.name not in seeds]
    return Halves(
        _extract(whole, taken, [*outputs, *saved]), _extract(whole, [*inputs, *returned, *seeds], gradients)
    )


def _read_by_backward(
    graph: ir.Graph, outputs: Sequence[str], seeds: Sequence[str], gradients: Sequence[str]
) -> dict[str, ir.Value]:
    """Return the values of the forward pass that the backward pass reads, by name."""
    values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    ends = ([values[name] for name in names] for names in (outputs, seeds, gradients))
    first = forward_nodes(graph, *ends)
    read: dict[str, ir.Value] = {}
    needed = {values[name] for name in gradients}
    for node in reversed(graph):
        if node in first or needed.isdisjoint(node.outputs):
            continue
        for _, value in read_values(node):
            needed.add(value)
            is_ready = value.producer() is None or value.producer() in first
            if is_ready and not value.is_initializer() and value.name not in seeds:
                read[str(value.name)] = _typed(value)
    return read


def _typed(value: ir.Value) -> ir.Value:
    if value.dtype is None:
        raise NotTrainableError(
            f"The type of the tensor {value.name!r}, which the backward pass reads, is unknown and cannot be "
            f"inferred: declare it in the graph's value_info."
        )
    return value


def _extract(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    graph = ir.convenience.extract(model.graph, inputs, outputs)
    # extract collects initializers in a set, and so in an order that changes from call to call
    for name in [name for name in model.graph.initializers if name in graph.initializers]:
        graph.initializers[name] = graph.initializers.pop(name)
    return ir.Model(graph, ir_version=model.ir_version)
