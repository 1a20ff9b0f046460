"""Proof that a tensor has one part for each sample, computed from that sample alone.

States of values are propagated from the inputs to the outputs of a graph:

- :data:`CONSTANT`: it depends neither on the data nor on the number of samples;
- :class:`Along`: the part at position i of one axis depends on sample i alone;
- :class:`Sizes`: integers computed from sizes, some of them from the number of samples;
- None: any other value, such as a mean over the batch, or an unknown tensor.

A rule in :mod:`onnxsgd.graph.reading.sample_axis_rules` gives the states of an operator's outputs. An
operator without a rule yields None: the proof may fail, it is never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.lowering.inference_mode import RANDOM
from onnxsgd.graph.nodes import attribute, constant, read_values, standard_operator
from onnxsgd.graph.sizes import fix_sizes

__all__ = [
    "CONSTANT",
    "Along",
    "Dims",
    "Many",
    "NodeView",
    "Rule",
    "Sizes",
    "State",
    "sample_axes",
    "sample_rows",
]

#: Two numbers of samples, one of them even. They identify the axis of the samples; :class:`Sizes` alone
#: shows that another size depends on their number.
_NUMBERS = (4, 9973)


@dataclass(frozen=True)
class Constant:
    """The state of a value that depends neither on the data nor on the number of samples."""


@dataclass(frozen=True)
class Along:
    """The state of a value with a part for each sample.

    Attributes
    ----------
    axis : int
        The axis of the samples, >= 0. Its size may be a multiple of their number: the positions of one
        sample are then consecutive.
    """

    axis: int


@dataclass(frozen=True)
class Sizes:
    """The state of an integer, or a vector of integers, computed from sizes.

    Attributes
    ----------
    depends : tuple of bool
        For each element, True if it depends on the number of samples.
    """

    depends: tuple[bool, ...]


@dataclass(frozen=True)
class Many:
    """A size that is a multiple of the number of samples."""

    multiple: int


CONSTANT = Constant()
State = Constant | Along | Sizes | None
#: The size of each axis: a number, a multiple of the number of samples, or None.
Dims = tuple[int | Many | None, ...] | None


class NodeView:
    """A node with the states and the sizes of its inputs, as rules read it.

    Attributes
    ----------
    node : ir.Node
        The node.
    states : list of State
        The states of its inputs; a missing input is a constant.
    dims : list of Dims
        The sizes of its inputs.
    result_dims : list of Dims
        The sizes of its outputs.
    """

    def __init__(self, node: ir.Node, states: dict[str, State], dims: dict[str, Dims]) -> None:
        self.node = node
        self.states = [CONSTANT if value is None else states.get(str(value.name)) for value in node.inputs]
        self.dims = [None if value is None else dims.get(str(value.name)) for value in node.inputs]
        self.result_dims = [dims.get(str(value.name)) for value in node.outputs]

    def state(self, index: int) -> State:
        """Return the state of an input; a missing one is a constant."""
        return self.states[index] if index < len(self.states) else CONSTANT

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        return attribute(self.node, name, default)

    def constant(self, index: int) -> np.ndarray | None:
        """Return the array of an input that is an initializer; None for any other."""
        return constant(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def has(self, index: int) -> bool:
        """Return whether the node has this input."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def rank(self, index: int) -> int | None:
        """Return the number of axes of an input."""
        dims = self.dims[index] if index < len(self.dims) else None
        return None if dims is None else len(dims)

    def result_rank(self) -> int | None:
        """Return the number of axes of the first output."""
        return None if self.result_dims[0] is None else len(self.result_dims[0])

    def rest_is_constant(self, first: int = 1) -> bool:
        """Return whether all inputs from number `first` on are constants."""
        return all(state == CONSTANT for state in self.states[first:])


#: Returns the state of the first output, or one for each output.
Rule = Callable[[NodeView], State | Sequence[State]]


def sample_rows(model: ir.Model) -> set[str]:
    """Return the names of the tensors whose row i depends on sample i alone, for any number of samples.

    Parameters
    ----------
    model : ir.Model
        The first axis of each input counts the samples.
    """
    states, dims = _follow(model)
    return {
        name
        for name, state in states.items()
        if state == Along(0) and (found := dims.get(name)) is not None and found[0] == Many(1)
    }


def sample_axes(model: ir.Model) -> dict[str, State]:
    """Return the state of each tensor of the main graph of `model`, by name."""
    return _follow(model)[0]


def _follow(model: ir.Model) -> tuple[dict[str, State], dict[str, Dims]]:
    from onnxsgd.graph.reading.sample_axis_rules import RULES

    small, large = (_dims(fix_sizes(model, number)) for number in _NUMBERS)
    dims = {name: _together(small[name], large.get(name)) for name in small}
    states: dict[str, State] = dict.fromkeys(model.graph.initializers, CONSTANT)
    for value in model.graph.inputs:
        states[str(value.name)] = Along(0) if dims.get(str(value.name)) != () else None
    for node in model.graph:
        read = [states.get(str(value.name)) for _, value in read_values(node)]
        found = _result(node, read, NodeView(node, states, dims), RULES)
        for index, value in enumerate(node.outputs):
            name = str(value.name)
            states[name] = _consistent(found[index], dims.get(name)) if index < len(found) else None
    return states, dims


def _result(
    node: ir.Node, read: list[State], view: NodeView, rules: dict[tuple[str, str], Rule]
) -> Sequence[State]:
    """Return the states of the outputs of `node`."""
    rule = rules.get((node.domain, node.op_type))
    if standard_operator(node) in RANDOM:
        return []
    if all(state == CONSTANT for state in read):
        return [CONSTANT] * len(node.outputs)
    if rule is None:
        return []
    if None in read:
        return []
    found = rule(view)
    return found if isinstance(found, Sequence) else [found] * len(node.outputs)


def _consistent(state: State, dims: Dims) -> State:
    """Return `state`, or None if the size of the axis of the samples is not their number."""
    if not isinstance(state, Along) or dims is None:
        return state
    fits = state.axis < len(dims) and (dims[state.axis] is None or isinstance(dims[state.axis], Many))
    return state if fits else None


def _dims(model: ir.Model) -> dict[str, tuple[int | None, ...] | None]:
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    return {
        str(value.name): None
        if value.shape is None
        else tuple(size if isinstance(size, int) else None for size in value.shape)
        for value in values
    }


def _together(small: tuple[int | None, ...] | None, large: tuple[int | None, ...] | None) -> Dims:
    if small is None or large is None or len(small) != len(large):
        return None
    return tuple(_size(*sizes) for sizes in zip(small, large, strict=True))


def _size(small: int | None, large: int | None) -> int | Many | None:
    if small is None or large is None or small == large:
        return small if small == large else None
    multiples = [divmod(size, number) for size, number in zip((small, large), _NUMBERS, strict=True)]
    return Many(multiples[0][0]) if multiples[0] == multiples[1] and multiples[0][1] == 0 else None
