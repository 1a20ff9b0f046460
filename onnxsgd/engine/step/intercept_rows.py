"""Intercepts declared as rows, so that a product can add to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.step.fuse import add_products, shared_initializer
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import constant, maker, operands, shape_of
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.writing import computed

__all__ = ["keep_as_rows"]

#: Elementwise operators, of tensors of any rank.
_ELEMENTWISE = having(Fact.ELEMENTWISE) | {"CastLike"}


def keep_as_rows(graph: ir.Graph, groups: Iterable[Mapping[ir.Value, ir.Value]]) -> list[ir.Value]:
    """Declare vectors as matrices of one row, so that one product can compute a sum over rows and add it.

    Case: a vector and its states, if elementwise operators and additions to a matrix alone read them and
    lead to their next values, and to no others. They get the shape [1, n], and so do the gradients that are
    added to them: ``Add(v, MatMul(ones, x))`` becomes ``Gemm(ones, x, v)``.

    Parameters
    ----------
    graph : ir.Graph
        The step, changed in place.
    groups : iterable of mapping
        Each weight with its states: inputs of the graph, and the outputs with their next values.

    Returns
    -------
    list of ir.Value
        The inputs that became rows.
    """
    rows: list[ir.Value] = []
    for group in groups:
        if (vectors := _computed_from(group)) is not None:
            _make_rows(graph, vectors)
            rows.extend(group)
    add_products(graph)
    return rows


def _computed_from(group: Mapping[ir.Value, ir.Value]) -> list[ir.Value] | None:
    """Return a group and the vectors computed from it; None if it cannot be rows."""
    vectors = list(group)
    shape = vectors[0].shape
    if shape is None or len(shape) != 1:
        return None
    # the list grows during the loop
    for vector in vectors:
        if vector.shape != shape:
            return None
        for node, index in vector.uses():
            if node.op_type == "Gemm" and index == 2:
                continue
            shapes = [value.shape for value in node.inputs if value is not None]
            if node.op_type not in _ELEMENTWISE or None in shapes:
                return None
            is_vector = all(len(shape) < 2 for shape in shapes if shape is not None)
            if is_vector and node.outputs[0] not in vectors:
                vectors.append(node.outputs[0])
    made = {vector for vector in vectors if vector.is_graph_output()}
    return vectors if made == set(group.values()) else None


def _make_rows(graph: ir.Graph, vectors: Sequence[ir.Value]) -> None:
    """Declare `vectors` as rows, and reshape the sums over rows that are combined with them."""
    row = [1, *shape_of(vectors[0])]
    sums: dict[ir.Value, ir.Value] = {}
    for vector in vectors:
        vector.shape = ir.Shape(row)
    for node in filter(None, (vector.producer() for vector in vectors)):
        for index, value in enumerate(node.inputs):
            product = None if value is None else value.producer()
            if value is None or product is None or not _sums_rows(product):
                continue
            if value not in sums:
                sums[value] = _as_row(graph, product, row)
            node.replace_input_with(index, sums[value])


def _sums_rows(node: ir.Node) -> bool:
    """Tell whether a node is ``MatMul(c ones, x)``, with a number c, ones [m] and x [m, n]."""
    if node.op_type != "MatMul":
        return False
    weights, table = node.inputs
    known = constant(weights)
    is_constant_vector = known is not None and known.ndim == 1 and bool((known == known[:1]).all())
    return is_constant_vector and table is not None and table.shape is not None and len(table.shape) == 2


def _as_row(graph: ir.Graph, product: ir.Node, row: Sequence[int]) -> ir.Value:
    """Return the sum over rows that `product` computes, as a row."""
    weights, table = operands(product)
    rows = shared_initializer(graph, "ones", np.array(constant(weights))[None])
    (vector,) = product.outputs
    total = computed("MatMul", [rows, table], name=unique_name(f"{vector.name}_row", graph_names(graph)))
    total.type, total.shape = vector.type, ir.Shape(row)
    graph.insert_after(product, maker(total))
    return total
