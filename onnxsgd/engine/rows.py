"""Keep intercepts as rows, where a product can add to them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxsgd.engine.fuse import ones

__all__ = ["keep_as_rows"]


def keep_as_rows(graph: ir.Graph, carried: Iterable[tuple[ir.Value, ir.Value]]) -> list[ir.Value]:
    """Declare vectors as tables of one row, and update each of them by one product; return these inputs.

    Case: ``b_new = Add(b, MatMul(ones, x))`` of b [n] and x [m, n] becomes ``Gemm(ones, x, b)`` of b [1, n],
    if whatever else reads b adds it to a table, and nothing reads its new value.

    Parameters
    ----------
    graph : ir.Graph
        It is changed in place.
    carried : iterable of (ir.Value, ir.Value)
        Inputs of the graph, each with the output that is its next value.
    """
    rows = []
    for old, new in carried:
        update = new.producer()
        if update is None or new.uses() or (table := _summed_table(update, old)) is None:
            continue
        if not all(node is update or _adds_to_table(node, index) for node, index in old.uses()):
            continue
        assert table.shape is not None
        assert table.dtype is not None
        n_rows, columns = table.shape.numpy()
        old.shape = new.shape = ir.Shape([1, columns])
        product = ir.node("Gemm", [ones(graph, (1, n_rows), table.dtype), table, old])
        product.outputs[0].name = new.name
        product.outputs[0].type, product.outputs[0].shape = new.type, new.shape
        ir.convenience.replace_nodes_and_values(graph, update, [update], [product], [new], product.outputs)
        rows.append(old)
    return rows


def _summed_table(update: ir.Node, vector: ir.Value) -> ir.Value | None:
    """Return the table whose sum over its rows `update` adds to `vector`."""
    if (
        update.op_type != "Add"
        or vector not in update.inputs
        or vector.shape is None
        or len(vector.shape) != 1
    ):
        return None
    total = update.inputs[1] if update.inputs[0] is vector else update.inputs[0]
    product = None if total is None else total.producer()
    if product is None or product.op_type != "MatMul" or len(product.outputs[0].uses()) != 1:
        return None
    row, table = product.inputs
    known = None if row is None else ir.convenience.get_const_tensor(row)
    is_sum = known is not None and len(known.shape) == 1 and bool((known.numpy() == 1).all())
    is_table = table is not None and table.shape is not None and len(table.shape) == 2
    return table if is_sum and is_table else None


def _adds_to_table(node: ir.Node, index: int) -> bool:
    """Tell whether an operand may be a row as well as a vector."""
    if node.op_type == "Gemm":
        return index == 2
    other = node.inputs[1 - index] if node.op_type in ("Add", "Sub") else None
    return other is not None and other.shape is not None and len(other.shape) == 2
