"""Numbers of several weights, computed as one column: an operator takes as long for a few as for one.

Where each weight has a rate of its own, as under :class:`~onnxsgd.optimizers.BlockAdam`, a third of the
operators of a step compute single numbers, of each weight alike.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import constant, element_type, maker, operands, read_values, shape_of
from onnxsgd.graph.writing import add_initializer, computed, new_node, replace_output

__all__ = ["join_numbers"]

#: The operators: each number of a column is that of the operator on it alone, to the last digit.
_OPERATORS = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sqrt", "Sub"})
#: One that the runtime computes by other code for several numbers of float64.
_OF_SINGLE_PRECISION = frozenset({"Exp"})
#: The most numbers of a column: of four, onnxruntime 1.19 takes roots by vector instructions, which round
#: otherwise. It can go with that version.
_MOST = 3

#: Nodes that compute numbers alike, and numbers of one column.
_Group = list[ir.Node]
_Numbers = tuple[ir.Value, ...]


def join_numbers(graph: ir.Graph) -> None:
    """Compute numbers that are made alike of other numbers as columns.

    Case: elementwise operators that make tensors of shape [1, 1], or of shape [1], of such tensors, of
    scalars and of constants, two or more by the same formula. The numbers stay the same to the last digit.
    The graph is left as it is where that takes no fewer nodes, or where numbers that are made alike depend
    on each other.

    Parameters
    ----------
    graph : ir.Graph
        The step in topological order, changed in place.
    """
    groups = _alike(graph)
    if not groups or not _are_independent(graph, groups):
        return
    joined = {node for group in groups for node in group}
    made = {_outputs(group): group for group in groups}
    taken = dict.fromkeys(values for group in groups for values in _columns(group))
    given = [values for values in taken if values not in made and not _is_shared(values)]
    read = {value for values in given for value in values}
    apart = [values for values in made if any(v in read or _is_read(v, joined) for v in values)]
    if len(groups) + len(given) + len(apart) < len(joined):
        _write(graph, groups, given, apart)


def _outputs(group: _Group) -> _Numbers:
    return tuple(node.outputs[0] for node in group)


def _columns(group: _Group) -> list[_Numbers]:
    """Return each operand of the nodes of a group."""
    return list(zip(*map(operands, group), strict=True))


def _is_shared(values: _Numbers) -> bool:
    """Tell whether an operand takes no node: one value for all numbers, or constants."""
    return len(set(values)) == 1 or all(map(_is_constant, values))


def _is_read(value: ir.Value, joined: Collection[ir.Node]) -> bool:
    """Tell whether a number is read apart from its column."""
    return value.is_graph_output() or any(node not in joined for node, _ in value.uses())


def _write(
    graph: ir.Graph, groups: Sequence[_Group], given: Sequence[_Numbers], apart: Sequence[_Numbers]
) -> None:
    """Replace groups of nodes by columns, `given` ones put together first, those of `apart` taken apart."""
    names, columns, written = graph_names(graph), dict[_Numbers, ir.Value](), list[ir.Node]()

    def write(
        op_type: str,
        inputs: Sequence[ir.Value],
        numbers: _Numbers,
        attributes: Mapping[str, int] | None = None,
    ) -> None:
        column = computed(op_type, inputs, attributes, name=unique_name(f"column_{op_type}", names))
        column.type, column.shape = numbers[0].type, ir.Shape([len(numbers), *shape_of(numbers[0])[1:]])
        columns[numbers] = column
        written.append(maker(column))

    def operand(values: _Numbers, shape: Sequence[int]) -> ir.Value:
        if len(set(values)) == 1:
            return values[0]
        if values in columns:
            return columns[values]
        array = np.array([constant(value) for value in values]).reshape(shape)
        return add_initializer(graph, unique_name("column", names), array)

    for values in given:
        write("Concat", values, values, {"axis": 0})
    for group in groups:
        shape = [len(group), *[1] * (len(shape_of(group[0].outputs[0])) - 1)]
        write(group[0].op_type, [operand(values, shape) for values in _columns(group)], _outputs(group))
    for values in apart:
        sizes = add_initializer(graph, unique_name("column_sizes", names), np.ones(len(values), np.int64))
        parts = [ir.Value() for _ in values]
        written.append(new_node("Split", [columns[values], sizes], parts, {"axis": 0}))
        for old, new in zip(values, parts, strict=True):
            replace_output(old, new)
    graph.remove([node for group in groups for node in group])
    graph.extend(written)
    graph.sort()
    for node in written:
        widen_scalars(graph, node)


def _alike(graph: ir.Graph) -> list[_Group]:
    """Return the groups of nodes with the same formula, each in the order of those that it reads."""
    numbers: dict[ir.Value, int] = {}
    found: dict[Hashable, _Group] = {}
    order = dict[Hashable, int]()
    for node in graph:
        if _computes_number(node):
            made = node.outputs[0]
            roles = (_role(value, numbers) for value in operands(node))
            key = (node.op_type, element_type(made), len(shape_of(made)), *roles)
            found.setdefault(key, []).append(node)
            numbers[made] = order.setdefault(key, len(order))
    groups: list[_Group] = []
    places: dict[ir.Value, int] = {}
    for alike in found.values():
        alike.sort(key=lambda node: next((places[v] for v in operands(node) if v in places), 0))
        places |= {node.outputs[0]: place for place, node in enumerate(alike)}
        n_columns = -(-len(alike) // _MOST)
        # of numbers that differ by one at most
        ends = [len(alike) * number // n_columns for number in range(n_columns + 1)]
        groups.extend(alike[start:end] for start, end in pairwise(ends) if end - start > 1)
    return groups


def _computes_number(node: ir.Node) -> bool:
    single = node.op_type in _OF_SINGLE_PRECISION and node.outputs[0].dtype == ir.DataType.FLOAT
    if node.domain or not (single or node.op_type in _OPERATORS):
        return False
    shape = node.outputs[0].shape
    return shape in ((1,), (1, 1)) and all(
        value is not None and (value.shape in (shape, ()) or _is_constant(value)) for value in node.inputs
    )


def _is_constant(value: ir.Value) -> bool:
    array = constant(value)
    return array is not None and array.size == 1 and array.ndim <= 2


def _role(value: ir.Value, numbers: Mapping[ir.Value, int]) -> Hashable:
    """Return the part of a value in a formula: that of a number, a constant, a scalar of all, or another."""
    if value in numbers:
        return numbers[value]
    if _is_constant(value):
        return "constant"
    if value.shape == ():
        return value
    made = value.producer()
    return None if made is None else (made.op_type, *(operand.is_graph_input() for operand in operands(made)))


def _are_independent(graph: ir.Graph, groups: Sequence[_Group]) -> bool:
    """Tell whether no number of a group depends on another one of it, through other groups or directly."""
    group_of: dict[ir.Node, Hashable] = {
        node: number for number, group in enumerate(groups) for node in group
    }
    sorter: TopologicalSorter[Hashable] = TopologicalSorter()
    for node in graph:
        made = (value.producer() for _, value in read_values(node))
        before = (group_of.get(other, other) for other in made if other is not None)
        sorter.add(group_of.get(node, node), *before)
    try:
        sorter.prepare()
    except CycleError:
        return False
    return True
