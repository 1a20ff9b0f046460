"""Scans along any axis, in both directions, rewritten along the first axis, forwards.

The rules of loops, and the reference evaluator of onnx, support this form only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable.writing.call import place
from onnxsgd.graph.model import graph_names, nodes_within, unique_name
from onnxsgd.graph.nodes import attribute, graph_of, maker, required
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.graph.writing import computed, displace, new_node

__all__ = ["put_scan_axis_first"]

_INPUTS, _OUTPUTS = "scan_input", "scan_output"

#: Maps a value and its result to the nodes between.
_Maker = Callable[[ir.Value, ir.Value], list[ir.Node]]


@dataclass(frozen=True)
class _Order:
    """The axis of a sequence that a Scan runs along, and whether it begins at the end."""

    axis: int
    is_reversed: bool

    @property
    def is_plain(self) -> bool:
        return not self.axis and not self.is_reversed


def put_scan_axis_first(model: ir.Model) -> None:
    """Write each Scan in another order as a plain one between transpositions and reversals, in place.

    Raises
    ------
    NotTrainableError
        If the rank of a sequence along another axis is not known.
    """
    scans = [node for node in nodes_within(model.graph) if node.op_type == "Scan" and _is_turned(node)]
    if not scans:
        return
    # a transposition names all axes
    ShapeInferencePass(strict_mode=False)(model)
    names = graph_names(model.graph)
    for node in scans:
        _turn_inputs(node, names)
        _turn_outputs(node, names)
        for kind in (_INPUTS, _OUTPUTS):
            node.attributes.pop(f"{kind}_axes", None)
            node.attributes.pop(f"{kind}_directions", None)


def _is_turned(node: ir.Node) -> bool:
    counts = (len(node.inputs), _INPUTS), (len(node.outputs), _OUTPUTS)
    return not all(order.is_plain for count, kind in counts for _, order in _orders(node, kind, count))


def _orders(node: ir.Node, kind: str, count: int) -> Iterator[tuple[int, _Order]]:
    """Yield the place and the order of each sequence among `count` inputs or outputs of a Scan."""
    n_states = len(node.inputs) - attribute(node, "num_scan_inputs")
    axes, directions = (attribute(node, f"{kind}_{name}", ()) for name in ("axes", "directions"))
    for k in range(count - n_states):
        axis, backwards = (given[k] if k < len(given) else 0 for given in (axes, directions))
        yield n_states + k, _Order(axis, bool(backwards))


def _turn_inputs(node: ir.Node, names: set[str]) -> None:
    for index, order in _orders(node, _INPUTS, len(node.inputs)):
        value = required(node, index)
        makers: list[_Maker] = []
        if order.axis:
            perm = list(range(_rank(node, _INPUTS, index)))
            perm.insert(0, perm.pop(order.axis))
            makers.append(partial(_transposition, perm))
        if order.is_reversed:
            makers.append(partial(_reversal, names))
        if makers:
            ends = [_named_like(value, names) for _ in makers]
            graph_of(node).insert_before(node, _chain(value, makers, ends))
            node.replace_input_with(index, ends[-1])


def _turn_outputs(node: ir.Node, names: set[str]) -> None:
    for index, order in _orders(node, _OUTPUTS, len(node.outputs)):
        old = node.outputs[index]
        makers: list[_Maker] = [partial(_reversal, names)] if order.is_reversed else []
        if order.axis:
            perm = list(range(1, _rank(node, _OUTPUTS, index)))
            perm.insert(order.axis % (len(perm) + 1), 0)
            makers.append(partial(_transposition, perm))
        if makers and old.name:
            result, old.shape = displace(old, unique_name(f"{old.name}_turned", names)), None
            ends = [*(_named_like(old, names) for _ in makers[1:]), result]
            graph_of(node).insert_after(node, _chain(old, makers, ends))


def _rank(node: ir.Node, kind: str, index: int) -> int:
    """Return the number of axes of a sequence that a Scan reads or returns."""
    body = node.attributes["body"].as_graph()
    sequences, elements = (node.inputs, body.inputs) if kind == _INPUTS else (node.outputs, body.outputs)
    sequence, element = sequences[index], elements[index]
    if sequence is not None and sequence.shape is not None:
        return len(sequence.shape)
    if element.shape is None:
        raise NotTrainableError(f"{place(node)} with {kind}_axes needs sequences of known rank")
    return len(element.shape) + 1


def _named_like(value: ir.Value, names: set[str]) -> ir.Value:
    return ir.Value(name=unique_name(f"{value.name}_turned", names), type=value.type)


def _chain(value: ir.Value, makers: Sequence[_Maker], ends: Sequence[ir.Value]) -> list[ir.Node]:
    """Return the nodes that compute each of `ends` from the one before, the first from `value`."""
    starts = [value, *ends]
    return [node for make, *pair in zip(makers, starts, ends, strict=False) for node in make(*pair)]


def _transposition(perm: list[int], value: ir.Value, result: ir.Value) -> list[ir.Node]:
    return [new_node("Transpose", [value], [result], {"perm": perm})]


def _reversal(names: set[str], value: ir.Value, result: ir.Value) -> list[ir.Node]:
    """Return nodes that reverse the first axis."""
    numbers = {"start": -1, "end": -np.iinfo(np.int64).max, "axis": 0, "step": -1}
    bounds = []
    for name, number in numbers.items():
        held = ir.tensor(np.array([number], np.int64))
        bound = computed("Constant", [], {"value": held}, name=unique_name(f"{result.name}_{name}", names))
        bound.type = ir.TensorType(ir.DataType.INT64)
        bounds.append(bound)
    return [*map(maker, bounds), new_node("Slice", [value, *bounds], [result])]
