"""Split of a graph into a frozen part, computed once for each sample, and a trained part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd._cached_property import cached_property
from onnxsgd.graph.nodes import element_type, qualified_operator, read_values
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.reading.sample_axis import sample_rows
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["BATCH", "SplitGraph", "split_frozen", "undivided"]

#: The symbol for the number of samples.
BATCH = "n_samples"
#: Operators that are no layers.
_CONVERSIONS = (
    having(Fact.ELEMENTWISE)
    | having(Fact.FORM)
    | having(Fact.SIZES)
    | {"Concat", "Constant", "Resize", "Slice"}
)


@dataclass(frozen=True)
class SplitGraph:
    """A graph in two parts.

    Attributes
    ----------
    features : tuple of str
        Outputs of the frozen part, tensors of the whole graph with one row for each sample.
    tail : ir.Model
        The rest: inputs `features`, one output, and all trained weights.
    converts : bool
        Whether the frozen part has no layer: it converts elements one by one, moves and resizes them.
    """

    features: tuple[str, ...]
    tail: ir.Model
    converts: bool = False

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """The element type of the output."""
        return element_type(self.tail.graph.outputs[0]).numpy()


def split_frozen(model: ir.Model, weights: Sequence[str], dropouts: Collection[str] = ()) -> SplitGraph:
    """Split `model`, which has one output, before the first use of a trained weight.

    `weights` may include running statistics that training updates; `dropouts` are the outputs of nodes that
    draw in training. Cases:

    - a node that a trained weight reaches, or that draws, belongs to the tail;
    - a frozen value that such a node reads, or that its subgraphs capture, becomes a feature if each of its
      rows is proven to depend on one sample alone (see :mod:`onnxsgd.graph.reading.sample_axis`);
    - otherwise (a shape, a mean over the batch) the node that computes it belongs to the tail as well.
    """
    tail = _with_batch_symbol(model)
    graph = tail.graph
    in_tail = _reached_from({graph.initializers[name] for name in weights}, graph, dropouts)
    needed = [value for node in graph if node in in_tail for _, value in read_values(node)]
    rows = _rows_before(model, [value for value in needed if value.producer() not in in_tail])
    features: dict[str, ir.Value] = {}
    while needed:
        value = needed.pop()
        producer = value.producer()
        if value.is_initializer() or producer in in_tail:
            continue
        if producer is None or (value.name in rows and value.dtype is not None):
            features[str(value.name)] = value
        else:
            in_tail.add(producer)
            needed.extend(value for _, value in read_values(producer))
    before = {qualified_operator(node) for node in graph if node not in in_tail}
    _make_inputs(graph, features)
    return SplitGraph(
        tuple(features), RemoveUnusedNodesPass()(tail).model, bool(before) and before <= _CONVERSIONS
    )


def _rows_before(model: ir.Model, values: Sequence[ir.Value]) -> set[str]:
    """Return the names of the tensors with one row for each sample, among `values` and their ancestors."""
    computed = list(dict.fromkeys(str(value.name) for value in values if value.producer() is not None))
    if not computed:
        return set()
    # the proof infers all shapes twice: the extracted graph keeps it short
    inputs = [str(value.name) for value in model.graph.inputs]
    graph = ir.convenience.extract(model.graph, inputs, computed)
    return sample_rows(ir.Model(graph, ir_version=model.ir_version))


def undivided(model: ir.Model) -> SplitGraph:
    """Return `model` as a tail without a frozen part before it."""
    tail = _with_batch_symbol(model)
    return SplitGraph(tuple(str(value.name) for value in tail.graph.inputs), tail)


def _with_batch_symbol(model: ir.Model) -> ir.Model:
    copy = model.clone()
    for value in copy.graph.inputs:
        if value.shape is not None and len(value.shape) and not isinstance(value.shape[0], int):
            value.shape = ir.Shape([BATCH, *value.shape[1:]])
    ShapeInferencePass(strict_mode=False)(copy)
    return copy


def _reached_from(values: set[ir.Value], graph: ir.Graph, outputs: Collection[str]) -> set[ir.Node]:
    reached: set[ir.Node] = set()
    known = set(values)
    for node in graph:
        draws = node.outputs[0].name in outputs
        if draws or any(value in known for _, value in read_values(node)):
            reached.add(node)
            known.update(node.outputs)
    return reached


def _make_inputs(graph: ir.Graph, features: dict[str, ir.Value]) -> None:
    """Replace the inputs of `graph` by `features`."""
    graph.inputs[:] = []
    for name, value in features.items():
        if value.producer() is None:
            graph.inputs.append(value)
            continue
        shape = ir.Shape([BATCH, *value.shape[1:]]) if value.shape else None
        replacement = ir.Value(name=name, type=value.type, shape=shape)
        value.name = None
        ir.convenience.replace_all_uses_with(value, replacement)
        graph.inputs.append(replacement)
