"""Guards on sizes and trips that a graph computes from its data, which no check of the graph alone can tell.

A guard is a few small nodes in front of an operator, in the graph of a session only. They count the elements
of its result from its operands, and end in a Gather that fails if these are too many.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import MutableSequence

import numpy as np
import onnx
import onnx.parser

from onnxsgd._library_errors import INDEX, guard_name, short_name
from onnxsgd.graph.loading.loop_trips import MOST_TRIPS, stays_true
from onnxsgd.graph.model import subgraphs

__all__ = ["MOST_COMPUTED", "MOST_COMPUTED_TRIPS", "with_guards"]

#: The most elements of a tensor whose size is computed from data: 2 GiB of float32.
MOST_COMPUTED = 2**29

#: The most trips of a Loop whose number is computed from data, or that only a condition ends: a second of
#: short ones, and half a gigabyte of states kept for gradients.
MOST_COMPUTED_TRIPS = 2**18

#: A size of up to so many times others, which are those of existing tensors, needs no guard.
_FEW = 2**20

#: The most numbers of a constant of sizes.
_LONGEST = 64

#: The elements of a result, `n`, written in operators of opset 13; `a0` is the first operand of the node.
_PRODUCT = "s = Cast <to = 1> ({}) n = ReduceProd <keepdims = 0> (s)"
_REPEATED = _PRODUCT.replace("n =", "p =") + " z = Size (a0) f = Cast <to = 1> (z) n = Mul (p, f)"
_PADDED = """
    two = Constant <value_ints = [2, -1]> () zero = Constant <value_ints = [0]> ()
    pairs = Reshape (a1, two) added = ReduceSum <keepdims = 0> (pairs, zero)
    every = Shape (a0) dims = {} all = Add (dims, added)
    s = Cast <to = 1> (all) n = ReduceProd <keepdims = 0> (s)
"""
_RANGE = """
    low = Cast <to = 1> (a0) high = Cast <to = 1> (a1) step = Cast <to = 1> (a2)
    long = Sub (high, low) s = Div (long, step) n = ReduceProd <keepdims = 0> (s)
"""

#: Operators whose result has as many elements as the values of an operand say: its place, and the count.
_SIZED = {
    "AffineGrid": (1, _PRODUCT),
    "BlackmanWindow": (0, _PRODUCT),
    "CenterCropPad": (1, _PRODUCT),
    "Col2Im": (1, _PRODUCT),
    "ConstantOfShape": (0, _PRODUCT),
    "Expand": (1, _PRODUCT),
    "HammingWindow": (0, _PRODUCT),
    "HannWindow": (0, _PRODUCT),
    "MaxUnpool": (2, _PRODUCT),
    "OneHot": (1, _REPEATED),
    "Pad": (1, _PADDED.format("Identity (every)")),
    "Range": (1, _RANGE),
    "Tile": (1, _REPEATED),
}
#: Forms with a further operand: scales or sizes; the axes that are padded.
_RESIZED = {True: (2, _REPEATED), False: (3, _PRODUCT)}
_PADDED_AXES = (1, _PADDED.format("Gather (every, a3)"))

#: A count and the end of its guard: `guarded` is `value`, or an error of the index `n`.
_COUNTED = """
    {} most = Constant <value_float = {}.0> () none = Constant <value_float = 0.0> ()
    largest = Constant <value_float = 4e18> () over = Greater (n, most) cut = Min (n, largest)
    index = Where (over, cut, none) place = Cast <to = 7> (index)
    axis = Constant <value_ints = [0]> () among = Unsqueeze (value, axis) guarded = Gather (among, place)
"""
#: The same for the number of a trip, in few nodes: an error of the index 1.
_NUMBERED = """
    most = Constant <value_int = {}> () place = Div (a0, most)
    axis = Constant <value_ints = [0]> () among = Unsqueeze (value, axis) guarded = Gather (among, place)
"""

#: Operators that select from the sizes in their first operand.
_SELECTING = frozenset({"Cast", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"})

#: Operators that join the sizes in their operands; a condition is none.
_JOINING = frozenset({"Concat", "Sub", "Where"})

#: Bounds of the products of numbers that are taken from shapes and constants, over sizes in those shapes.
_Bounds = ChainMap[str, float]
_Constants = ChainMap[str, onnx.TensorProto]


def with_guards(model: bytes) -> bytes:
    """Return a model that fails before it makes a tensor, or trips, of a computed number that is too large.

    Cases:

    - an operator such as Expand or Range, whose sizes are computed from data or by arithmetic, makes up to
      :data:`MOST_COMPUTED` elements;
    - a Loop makes up to :data:`MOST_COMPUTED_TRIPS` trips: their number is read before the first one; where
      only a condition ends it, trips are counted.

    Sizes that are taken from shapes as they are, as those of gradients, have no guard.

    Parameters
    ----------
    model : bytes
        The graph of a session.

    Returns
    -------
    bytes
        `model` itself if nothing needs a guard.
    """
    proto = onnx.load_model_from_string(model)
    guards = _Guards()
    guards.add(proto.graph, ChainMap(), ChainMap())
    return proto.SerializeToString() if guards.n_added else model


class _Guards:
    """The guards of the graphs so far."""

    def __init__(self) -> None:
        self.n_added = 0

    def add(self, graph: onnx.GraphProto, outer: _Bounds, given: _Constants) -> None:
        """Add those of one graph and of its subgraphs, given the bounds and the constants outside."""
        bounds, constants, n_before = outer.new_child(), given.new_child(), self.n_added
        for tensor in graph.initializer:
            _note(tensor, tensor.name, bounds, constants)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in subgraphs([node]):
                self.add(body, bounds, constants)
            nodes += self._of_loop(node, bounds, constants) if _is(node, "Loop") else self._of(node, bounds)
            nodes.append(node)
            _follow(node, bounds, constants)
        if self.n_added > n_before:
            del graph.node[:]
            graph.node.extend(nodes)

    def _of(self, node: onnx.NodeProto, bounds: _Bounds) -> list[onnx.NodeProto]:
        """Return the nodes in front of a node, which then reads their result."""
        found = _sizes(node)
        if found is None:
            return []
        place, count = found
        read = node.input if node.op_type == "Range" else [node.input[place]]
        if math.prod(bounds.get(name, math.inf) for name in read) <= _FEW:
            return []
        text = _COUNTED.format(count.format(f"a{place}"), MOST_COMPUTED)
        name = _name(node, "elements", MOST_COMPUTED)
        return self._guard(text, name, node.input, place)

    def _of_loop(self, node: onnx.NodeProto, bounds: _Bounds, constants: _Constants) -> list[onnx.NodeProto]:
        """Return the nodes in front of a Loop; where a condition may end it, add them to its body."""
        trips, most = node.input[0], MOST_COMPUTED_TRIPS
        if trips and bounds.get(trips, math.inf) <= MOST_TRIPS:
            return []
        if trips and stays_true(node, constants):
            name = _name(node, "trips", most)
            return self._guard(_COUNTED.format(_PRODUCT.format("a0"), most), name, node.input, 0)
        (body,) = subgraphs([node])
        # the condition of the next trip waits for the number of this one
        operands = [body.input[0].name, body.output[0].name]
        name = guard_name(
            f"{short_name(node.op_type, node.name)} has made {most:,} trips: no more are accepted"
        )
        body.node.extend(self._guard(_NUMBERED.format(most), name, operands, 1))
        body.output[0].name = operands[1]
        return []

    def _guard(
        self, text: str, name: str, operands: MutableSequence[str], place: int
    ) -> list[onnx.NodeProto]:
        """Return the nodes of a guard called `name`, for which ``operands[place]`` waits from now on."""
        self.n_added += 1
        given = {f"a{number}": operand for number, operand in enumerate(operands)}
        given["value"] = operands[place]
        nodes = list(onnx.parser.parse_graph(f"g () => () {{ {text} }}").node)
        for node in nodes:
            node.input[:] = [given[operand] for operand in node.input]
            given[node.output[0]] = node.output[0] = f"guard {self.n_added} {node.output[0]}"
        nodes[-1].name = name
        operands[place] = nodes[-1].output[0]
        return nodes


def _is(node: onnx.NodeProto, operator: str) -> bool:
    return node.op_type == operator and node.domain in ("", "ai.onnx")


def _sizes(node: onnx.NodeProto) -> tuple[int, str] | None:
    """Return the place of the sizes among the operands of a node, and the count; None if it has none."""
    if _is(node, "Resize"):
        found = _RESIZED[len(node.input) < 4 or not node.input[3]]
    elif _is(node, "Pad") and len(node.input) > 3 and node.input[3]:
        found = _PADDED_AXES
    elif node.op_type in _SIZED and _is(node, node.op_type):
        found = _SIZED[node.op_type]
    else:
        return None
    return found if found[0] < len(node.input) else None


def _name(node: onnx.NodeProto, unit: str, most: int) -> str:
    """Return the name of the guard of a node: the sentence of its error."""
    return guard_name(
        f"{short_name(node.op_type, node.name)} makes about {INDEX} {unit}, a number computed from data: up "
        f"to {most:,} are accepted"
    )


def _follow(node: onnx.NodeProto, bounds: _Bounds, constants: _Constants) -> None:
    """Note the bound of the result of a node, if it follows from shapes and constants alone."""
    if node.op_type in ("Shape", "Size"):
        bounds[node.output[0]] = 1.0
    elif node.op_type == "Constant":
        _note(onnx.helper.get_attribute_value(node.attribute[0]), node.output[0], bounds, constants)
    elif node.op_type in _SELECTING:
        bounds.update(dict.fromkeys(node.output, bounds.get(node.input[0], math.inf)))
    elif node.op_type == "ConstantOfShape":
        numbers = [onnx.numpy_helper.to_array(attribute.t) for attribute in node.attribute]
        # masks of sizes, in files of torch
        bounds[node.output[0]] = 1.0 if np.all(np.abs(numbers) <= 1) else math.inf
    elif node.op_type in _JOINING:
        joined = node.input[1:] if node.op_type == "Where" else node.input
        bounds[node.output[0]] = math.prod(bounds.get(name, math.inf) for name in joined)


def _note(value: object, name: str, bounds: _Bounds, constants: _Constants) -> None:
    """Note the numbers of a small constant: a tensor, or an attribute."""
    if isinstance(value, onnx.TensorProto):
        if math.prod(value.dims) > _LONGEST:
            return
        constants[name] = value
        value = onnx.numpy_helper.to_array(value)
    numbers = np.asarray(value)
    if numbers.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            bounds[name] = float(np.maximum(np.abs(numbers.astype(np.float64)), 1.0).prod())
