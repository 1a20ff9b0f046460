"""Tables of a step that are kept transposed, so that products compute no idle columns and copy no factor.

The runtime computes products in columns of 16: in a layer of 50 units 14 of 64 columns are idle, and with
their transposes, of which each column is a sample, none is in a batch of 32 or 256.

The gradient of a weight of 100 inputs and 50 units has 14 of 64 columns idle too, its transpose 12 of 112. A
product with a factor that is read transposed copies it first. A loop over batches carries the transpose of a
weight where its gradient is computed in fewer idle columns then, or without such a factor, and where the rows
of the weight are a multiple of 4 KiB apart, but those of its transpose are not: the caches of processors keep
few numbers at such distances, and a product copies the columns of its factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import REAL_TYPES, graph_names, unique_name
from onnxsgd.graph.nodes import attribute, element_type, first, maker, shape_of
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.writing import add_initializer, computed

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["Transposed", "carry_transposed", "operands_of_its_shape", "transpose_tables"]

_ELEMENTWISE = having(Fact.ELEMENTWISE)
#: The columns of a product that the runtime computes together.
_LANES = 16
#: The fewest rows of a batch whose tables are transposed, and the least share of the multiplications saved.
#: ``benchmarks/constants.py``, whole fits, layers of 100 and 50 units, which save 0.19: 1.02 of the time with
#: 16 rows, 0.97 with 32, 0.95 with 64, 0.92 with 128, 0.94 with 256. Layers that save less take 0.96 to 1.01.
_FEWEST_ROWS, _LEAST_SAVING = 32, 0.15
#: The most terms of a sum of products that is worth it: a layer of 50 units on 784 columns takes 1.07 of the
#: time with 32 rows, one on 64 columns 0.97.
_MOST_TERMS = 256
#: The fewest outputs of a layer whose weight the loop carries transposed, and the least difference of the
#: shares of idle columns. ``benchmarks/constants.py``, whole fits of 10 classes: 0.97 to 1.01 of the time.
#: The three products of a layer alone, 21 shapes, 10 to 128 rows: 0.73 to 1.01 of it from 0.08 on, and 1.02
#: to 1.2 where the transpose has more idle columns. Of one output, in transposed tables, whole fits take 1.01
#: to 1.08 of it.
_FEWEST_OUTPUTS, _LEAST_DIFFERENCE = 4, 0.05
#: The distance of rows, in bytes, whose multiples fall into one part of a cache. ``benchmarks/constants.py``,
#: whole fits, 128 inputs, batches of 8: 0.96 of the time with 1,024 and 2,048 units. Three products of the
#: layer alone 0.77 with 8 rows, 0.93 with 32, 0.96 with 128; 0.97 to 1.01 with 1,000 and 1,152 units. With
#: onnxruntime 1.19.2 the same. ``benchmarks/networks.py``, vgg: 0.99.
_PAGE = 4096


def transpose_tables(graph: ir.Graph) -> None:
    """Keep tables transposed where that saves idle columns of products.

    Case: tables of one shape [n, k] that are inside the graph, made by ``Gemm`` or ``MatMul``, perhaps with a
    row that is added, or from each other by elementwise operators, and read by such operators, and as factors
    of products. The numbers stay the same but for rounding.

    Parameters
    ----------
    graph : ir.Graph
        The step in topological order, changed in place.
    """
    made: dict[ir.Value, list[ir.Value]] = {}
    saved = total = 0.0
    for node in graph:
        table = node.outputs[0]
        if not _is_product(node) or not _is_wide(table) or (tables := _connected(graph, table)) is None:
            continue
        rows, columns = shape_of(table).numpy()
        n_terms = np.prod(shape_of(first(node)).numpy()) // rows
        if n_terms <= _MOST_TERMS:
            saved += n_terms * columns * (_idle_share(columns) - _idle_share(rows))
        total += n_terms * columns
        if not any(table in others for others in made.values()):
            made[table] = tables
    if saved > _LEAST_SAVING * total:
        for tables in made.values():
            _transpose(graph, tables)


@dataclass(frozen=True)
class Transposed:
    """The form of a weight, or of a state of it, that a loop carries transposed."""

    def taken(self, op: Builder, weight: ir.Value) -> ir.Value:
        """Return the table that the loop begins with."""
        return op.Transpose(weight, perm=[1, 0])

    def put_back(self, op: Builder, weight: ir.Value, table: ir.Value) -> ir.Value:
        """Return the weight after the loop; `weight` is that before it."""
        return op.Transpose(table, perm=[1, 0])


def carry_transposed(graph: ir.Graph, carried: Sequence[tuple[ir.Value, ir.Value]]) -> dict[int, Transposed]:
    """Let a step read and return the transposes of weights, and of their states, where that saves time.

    Case: a weight [n, k] that products read, and whose new value is one, such as ``Gemm<transA=1>(x, g, W)``,
    or follows from one and from the states by elementwise operators. The numbers stay the same but for
    rounding.

    Parameters
    ----------
    graph : ir.Graph
        The step in topological order, changed in place.
    carried : sequence of (ir.Value, ir.Value)
        Its old and new weights and states.

    Returns
    -------
    dict
        The form of each transposed one, under its index.
    """
    places = {old: index for index, (old, _) in enumerate(carried)}
    names, found = graph_names(graph), dict[int, Transposed]()
    for index, (old, _) in enumerate(carried):
        tables = _connected(graph, old, dict(carried)) if index not in found and _is_weight(old) else None
        if tables is None or not _is_slower(old, tables):
            continue
        _transpose(graph, tables)
        for value in tables:
            if value in places:
                found[places[value]] = Transposed()
                value.name = unique_name(f"{value.name}_transposed", names)
    return found


def _is_weight(value: ir.Value) -> bool:
    """Tell whether a value is a table of several outputs."""
    if value.shape is None or len(value.shape) != 2 or not value.shape.is_static():
        return False
    return bool(value.shape.numpy()[1] >= _FEWEST_OUTPUTS)


def _is_slower(weight: ir.Value, tables: Collection[ir.Value]) -> bool:
    """Tell whether the products that make some tables, one at least, take longer than with transposes.

    Both factors of the first layer are read transposed where gradients are kept transposed, and inputs are
    not; then none is. Of the others one is, in either form.
    """
    makers = (table.producer() for table in tables)
    products = [node for node in makers if node is not None and _is_product(node)]
    forms = {(attribute(node, "transA", 0), attribute(node, "transB", 0)) for node in products}
    if forms == {(1, 1)}:
        return True
    n_inputs, n_outputs = shape_of(weight).numpy()
    saved = _idle_share(n_outputs) - _idle_share(n_inputs)
    is_far_apart = _is_page(weight, n_outputs) and not _is_page(weight, n_inputs)
    least = -_LEAST_DIFFERENCE if is_far_apart else _LEAST_DIFFERENCE
    return forms in ({(1, 0)}, {(0, 1)}) and bool(saved > least)


def _is_page(table: ir.Value, columns: int) -> bool:
    """Tell whether rows of so many columns have a multiple of 4 KiB."""
    return columns * element_type(table).itemsize % _PAGE == 0


def _is_wide(table: ir.Value) -> bool:
    if table.shape is None or len(table.shape) != 2 or not table.shape.is_static():
        return False
    rows, columns = table.shape.numpy()
    return bool(rows >= _FEWEST_ROWS and columns >= _LANES)


def _idle_share(columns: int) -> float:
    return -columns % _LANES / columns


def _connected(
    graph: ir.Graph, table: ir.Value, carried: Mapping[ir.Value, ir.Value] | None = None
) -> list[ir.Value] | None:
    """Return a table and those that elementwise operators connect with it; None if one has to stay.

    Old and new values of a loop may be among them, as pairs, and tables that are added to a product.
    """
    after = carried or {}
    before = {new: old for old, new in after.items()}
    tables = [table]
    # the list grows during the loop
    for value in tables:
        node = value.producer()
        pair = after.get(value) if node is None else before.get(value)
        if value.shape != table.shape or (pair is None and (node is None or value.is_graph_output())):
            return None
        further = [] if pair is None else [pair]
        readers = [reader for reader, _ in value.uses()]
        nodes = readers if node is None else [node, *readers]
        if any(each.graph is not graph or len(each.outputs) != 1 for each in nodes):
            return None
        if sums := [reader for reader, index in value.uses() if _is_product(reader) and index == 2]:
            if not after:
                return None
            further += [reader.outputs[0] for reader in sums]
        if node is not None and _is_product(node):
            added = node.inputs[2] if len(node.inputs) > 2 else None
            if after and added is not None:
                further.append(added)
            elif not _is_row(added, table):
                return None
        elif node is not None:
            if (operands := operands_of_its_shape(node, table)) is None:
                return None
            further += operands
        further += [reader.outputs[0] for reader in readers if not _is_product(reader)]
        tables.extend(each for each in dict.fromkeys(further) if each not in tables)
    return tables


def _is_product(node: ir.Node) -> bool:
    """Tell whether a node multiplies two matrices of real numbers."""
    if node.domain or node.op_type not in ("Gemm", "MatMul"):
        return False
    factors = (node.inputs[0], node.inputs[1])
    return all(
        value is not None and value.dtype in REAL_TYPES and value.shape is not None and len(value.shape) == 2
        for value in factors
    )


def _is_row(value: ir.Value | None, table: ir.Value) -> bool:
    columns = shape_of(table)[1]
    return value is None or value.shape in ((columns,), (1, columns))


def operands_of_its_shape(node: ir.Node, table: ir.Value) -> list[ir.Value] | None:
    """Return the operands with the shape of `table`; None if the operator has others than single numbers."""
    if node.domain or node.op_type not in _ELEMENTWISE:
        return None
    given = [value for value in node.inputs if value is not None]
    same = [value for value in given if value.shape == table.shape]
    numbers = [value for value in given if value.shape in ((), (1,), (1, 1))]
    return same if len(same) + len(numbers) == len(given) else None


def _transpose(graph: ir.Graph, tables: Collection[ir.Value]) -> None:
    products = {value.producer(): None for value in tables}
    products |= {node: None for value in tables for node, _ in value.uses()}
    for value in tables:
        value.shape = ir.Shape(reversed(shape_of(value).numpy()))
    for node in products:
        if node is not None and _is_product(node):
            _rewrite(graph, node, tables)


def _rewrite(graph: ir.Graph, node: ir.Node, tables: Collection[ir.Value]) -> None:
    """Let a product read and make transposed tables: ``A B + c`` becomes ``B' A' + c'``."""
    factors = [node.inputs[0], node.inputs[1]]
    turned = [bool(attribute(node, name, 0)) for name in ("transA", "transB")]
    turned = [is_turned != (factor in tables) for is_turned, factor in zip(turned, factors, strict=True)]
    if node.outputs[0] in tables:
        factors.reverse()
        turned = [not is_turned for is_turned in reversed(turned)]
        if len(node.inputs) > 2 and node.inputs[2] is not None and node.inputs[2] not in tables:
            node.replace_input_with(2, _as_column(graph, node, node.inputs[2]))
    node.op_type = "Gemm"
    for index, factor in enumerate(factors):
        node.replace_input_with(index, factor)
    for name, is_turned in zip(("transA", "transB"), turned, strict=True):
        node.attributes[name] = ir.AttrInt64(name, int(is_turned))


def _as_column(graph: ir.Graph, node: ir.Node, row: ir.Value) -> ir.Value:
    names = graph_names(graph)
    shape = add_initializer(graph, unique_name("column", names), np.array([-1, 1], np.int64))
    column = computed("Reshape", [row, shape], name=unique_name(f"{row.name}_column", names))
    column.type, column.shape = row.type, ir.Shape([shape_of(row)[-1], 1])
    graph.insert_before(node, maker(column))
    return column
