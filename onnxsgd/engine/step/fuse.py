"""Fusion passes for the graph of a training step: fewer nodes, no branches, products fused with their sums.

Each pass changes the graph in place. It requires static shapes and topological order, and keeps both; the
numbers change by rounding only. The rules were chosen by times on one CPU thread; see ``benchmarks/``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from onnxsgd.engine.step.widened_factors import widen_factors
from onnxsgd.graph.model import REAL_TYPES, graph_names, unique_name
from onnxsgd.graph.nodes import attribute, constant, is_read_once, maker, shape_of
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.writing import Replacement, add_initializer, computed, replace_nodes

__all__ = [
    "add_products", "add_to_vectors", "fuse", "is_steep_mask", "ones", "separate_sums", "shared_initializer",
    "widen_scalars",
]  # fmt: skip

#: Maps a node to the value that replaces its output, or None; a value without a name is that of a new node.
_Rule = Callable[[ir.Graph, ir.Node], ir.Value | None]

#: x times this is at least 1 for every normal positive float32 x.
_STEEP = 3.3e38


#: Operators that broadcast their operands: not the bounds of Clip, which are single numbers.
_BROADCASTING = having(Fact.ELEMENTWISE) - {"Clip"}

#: From this many rows on, the runtime's slow broadcast takes longer than a Reshape.
#: ``benchmarks/constants.py``: the broadcast takes 1.04 of the time at 16 rows, 1.15 at 64, 1.67 at 256, 10.2
#: at 4,096.
_LONG = 64


def fuse(model: ir.Model) -> None:
    """Apply all passes to `model`."""
    CommonSubexpressionEliminationPass()(model)
    graph = model.graph
    widen_factors(graph)
    for rule in _RULES:
        _apply(rule, graph)
    for node in list(graph):
        widen_scalars(graph, node)
    RemoveUnusedNodesPass()(model)


def add_products(graph: ir.Graph) -> None:
    """Fuse every product that is added to a tensor with that sum."""
    _apply(_added_product, graph)


def add_to_vectors(model: ir.Model) -> None:
    """Fuse every sum over rows with the vector that it is added to.

    Case: ``Add(c, MatMul(ones, x))`` of c [k], ones [n] and x [n, k] becomes a Gemm to [1, k] and a Reshape.
    The runtime, from some version on, writes the same nodes, but computes those before all others.
    """
    graph = model.graph
    if replace_nodes(graph, partial(_added_vector, graph, graph_names(graph))):
        RemoveUnusedNodesPass()(model)


def separate_sums(graph: ir.Graph) -> None:
    """Separate every sum of float32 that is fused with a product: the other way round, for a GPU.

    There the runtime copies, or broadcasts, the summand into the result first, and the product reads it.
    """
    replace_nodes(graph, _separate_sum)


def _separate_sum(node: ir.Node) -> Replacement | None:
    """Write ``Gemm(a, b, c)`` as ``Add(Gemm(a, b), c)``."""
    if node.op_type != "Gemm" or len(node.inputs) < 3 or attribute(node, "beta", 1.0) != 1.0:
        return None
    *factors, summand = node.inputs
    result = node.outputs[0]
    if summand is None or result.dtype != ir.DataType.FLOAT:
        return None
    attributes = {name: node.attributes[name].value for name in node.attributes if name != "beta"}
    product = computed("Gemm", factors, attributes, like=result)
    new = computed("Add", [product, summand], name=result.name, like=result)
    return [maker(product), maker(new)], [new]


def _apply(rule: _Rule, graph: ir.Graph) -> None:
    replace_nodes(graph, partial(_replacement, rule, graph))


def _replacement(rule: _Rule, graph: ir.Graph, node: ir.Node) -> Replacement | None:
    """Return the new node of `rule`, under the names of `node`, or a value that exists."""
    new = rule(graph, node)
    if new is None:
        return None
    if new.name is not None:
        return [], [new]
    old = node.outputs[0]
    new.name, new.type, new.shape = old.name, old.type, old.shape
    return [maker(new)], [new]


def _idle_reshape(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    """Remove a Reshape to the shape of its operand."""
    if node.op_type != "Reshape":
        return None
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.shape is None or not x.shape.is_static() or x.shape != y.shape:
        return None
    if y.is_graph_output():
        if x.producer() is None or x.is_graph_output():
            return None
        x.name, y.name = y.name, x.name
    return x


def _steep_mask(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    """Compute the mask of a ReLU by one operator without branches.

    Cases: ``Cast(Greater(x, 0))``, and ``Cast(Cast(x, bool))`` of an x that a ReLU made, to the type of x
    become ``HardSigmoid(x)`` with a slope so steep that it is 0 for x <= 0 and 1 for every positive x that
    is not subnormal.
    """
    if node.op_type != "Cast" or (mask := _maker(node, 0, ("Greater", "Cast"))) is None:
        return None
    x = mask.inputs[0]
    if not (_number(mask.inputs[1]) == 0.0 if mask.op_type == "Greater" else _maker(mask, 0, ("Relu",))):
        return None
    if (
        x is None
        or x.shape is None
        or x.shape != node.outputs[0].shape
        or x.dtype != node.outputs[0].dtype
        # the runtime has no kernel for float64
        or x.dtype != ir.DataType.FLOAT
    ):
        return None
    return computed("HardSigmoid", [x], {"alpha": _STEEP, "beta": 0.0})


def is_steep_mask(node: ir.Node) -> bool:
    """Tell whether a node is the mask of a ReLU that fusion has written."""
    return node.op_type == "HardSigmoid" and np.float32(attribute(node, "alpha", 0.2)) == np.float32(_STEEP)


def _sum_as_product(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    """Sum a matrix over its rows by a product with a row of ones, which the next rule can fuse with a sum.

    Case: ``ReduceSum(x, axes=[0])`` of x [n, k] becomes ``MatMul(ones, x)``, ones of shape [n] or, with
    keepdims, [1, n].
    """
    if node.op_type != "ReduceSum" or len(node.inputs) < 2:
        return None
    x, axes = node.inputs[0], constant(node.inputs[1])
    if x is None or x.shape is None or axes is None or axes.tolist() not in ([0], [-2]):
        return None
    if x.dtype is None or x.dtype not in REAL_TYPES:
        return None
    if len(x.shape) != 2 or not x.shape.is_static():
        return None
    n = x.shape.numpy()[0]
    keepdims = attribute(node, "keepdims", 1)
    row = ones(graph, (1, n) if keepdims else (n,), x.dtype)
    return computed("MatMul", [row, x])


def _scaled_sum(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    """Move the factor of a sum over rows into its ones: ``Mul(MatMul(ones, x), c)``."""
    if node.op_type != "Mul" or (number := _number(node.inputs[1])) is None:
        return None
    product = _maker(node, 0, ("MatMul",))
    if product is None or not is_read_once(product.outputs[0]):
        return None
    row, x = constant(product.inputs[0]), product.inputs[1]
    if row is None or not (row == 1).all() or not _is_table(x):
        return None
    return computed("MatMul", [shared_initializer(graph, "factors", row * row.dtype.type(number)), x])


def _added_product(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    """Fuse a product with the sum that reads it.

    Cases: ``Add(c, Gemm(a, b))`` becomes ``Gemm(a, b, c)``, and so does a ``MatMul`` of two matrices; the
    product must have no other reader, and the shape of c.
    """
    if node.op_type != "Add":
        return None
    for c, product in (node.inputs, reversed(node.inputs)):
        factors = None if product is None else product.producer()
        if product is None or factors is None or not is_read_once(product):
            continue
        shapes_agree = c is not None and c.shape == product.shape == node.outputs[0].shape
        if shapes_agree and _is_table(c) and _is_plain_product(factors):
            attributes: dict[str, int | float] = {
                name: attribute(factors, name, 0) for name in ("transA", "transB")
            }
            attributes["alpha"] = attribute(factors, "alpha", 1.0)
            return computed("Gemm", [*factors.inputs[:2], c], attributes)
    return None


def _added_vector(graph: ir.Graph, names: set[str], node: ir.Node) -> Replacement | None:
    """Write the sum of a vector and of the rows of a table as a product."""
    if node.op_type != "Add":
        return None
    result = node.outputs[0]
    for c, total in (node.inputs, reversed(node.inputs)):
        product = None if total is None else total.producer()
        if c is None or total is None or product is None or not is_read_once(total):
            continue
        if product.op_type != "MatMul" or not c.shape == total.shape == result.shape:
            continue
        row, x = constant(product.inputs[0]), product.inputs[1]
        if row is None or row.ndim != 1 or x is None or x.dtype != ir.DataType.FLOAT or not _is_table(x):
            continue
        n_columns = shape_of(result).numpy()[0]
        table = computed(
            "Gemm",
            [shared_initializer(graph, "row", row.reshape(1, -1)), x, c],
            name=unique_name(f"{result.name}_row", names),
        )
        table.type, table.shape = result.type, ir.Shape([1, n_columns])
        sizes = shared_initializer(graph, "sizes", np.array([n_columns], np.int64))
        new = computed("Reshape", [table, sizes], name=result.name, like=result)
        return [maker(table), maker(new)], [new]
    return None


def _weighted_sum(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    """Sum products of two columns by one product of matrices.

    Cases: ``ReduceSum(Mul(a, b))`` of a and b [n, 1] to [1, 1] becomes ``Gemm(a, b, transA=1)``; a constant
    factor of a becomes the product's alpha.
    """
    if node.op_type != "ReduceSum" or len(node.inputs) > 1 or attribute(node, "keepdims", 1) != 1:
        return None
    product = _maker(node, 0, ("Mul",))
    if product is None or _has_integers(product):
        return None
    if any(not _is_column(value) for value in (*product.inputs, *product.outputs)):
        return None
    a, b = product.inputs
    if a is None or b is None or a.shape != b.shape or attribute(node, "noop_with_empty_axes", 0) != 0:
        return None
    alpha = 1.0
    factor = _maker(product, 0, ("Mul",))
    number = None if factor is None else _number(factor.inputs[1])
    if factor is not None and number is not None and _is_column(factor.inputs[0]):
        a, alpha = factor.inputs[0], number
    return computed("Gemm", [a, b], {"transA": 1, "alpha": alpha})


def widen_scalars(graph: ir.Graph, node: ir.Node) -> None:
    """Give scalars that broadcast against a column the shape [1, 1].

    With scalars of fewer dimensions the runtime loops over single elements: a product of a column of 20,000
    with one number then takes 126 instead of 4 us. Constants are replaced, inputs reshaped once, where the
    column is long. A scalar added to a product is left alone: the runtime fuses the two.
    """
    if node.op_type not in _BROADCASTING:
        return
    if node.op_type == "Add" and any(_maker(node, index, ("MatMul",)) for index in (0, 1)):
        return
    rows = max((_n_rows(value) for value in node.inputs), default=0)
    if rows < 2:
        return
    for index, value in enumerate(node.inputs):
        if (
            value is None
            or value.shape is None
            or len(value.shape) > 1
            or value.shape != (1,) * len(value.shape)
        ):
            continue
        if (number := constant(value)) is not None:
            node.replace_input_with(index, shared_initializer(graph, str(value.name), number.reshape(1, 1)))
        elif value.is_graph_input() and rows >= _LONG:
            node.replace_input_with(index, _reshaped(graph, value))


def _n_rows(value: ir.Value | None) -> float:
    """Return the length of a column, infinity if that is dynamic, 0 for other tensors."""
    if value is None or value.shape is None or not _is_column(value):
        return 0
    length = value.shape[0]
    return length if isinstance(length, int) else math.inf


def _reshaped(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Return an input of one number in the shape [1, 1]."""
    for node, _ in value.uses():
        if node.op_type == "Reshape" and node.outputs[0].shape == (1, 1):
            return node.outputs[0]
    target = shared_initializer(graph, "shape", np.array([1, 1], np.int64))
    table = computed("Reshape", [value, target], name=unique_name(f"{value.name}_table", graph_names(graph)))
    table.type, table.shape = value.type, ir.Shape([1, 1])
    graph.insert_before(graph[0], maker(table))
    return table


_RULES: tuple[_Rule, ...] = (
    _idle_reshape,
    _steep_mask,
    _sum_as_product,
    _scaled_sum,
    _added_product,
    _weighted_sum,
)


def _is_table(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == 2


def _is_plain_product(node: ir.Node) -> bool:
    """Tell whether a node multiplies two matrices and adds nothing."""
    if not all(_is_table(value) for value in node.inputs[:2]) or _has_integers(node):
        return False
    if node.op_type == "MatMul":
        return True
    added = len(node.inputs) > 2 and node.inputs[2] is not None
    return node.op_type == "Gemm" and not (added and attribute(node, "beta", 1.0) != 0.0)


def _has_integers(node: ir.Node) -> bool:
    """Tell whether an input or output of a node is known to hold integers."""
    return any(value and value.dtype not in (None, *REAL_TYPES) for value in (*node.inputs, *node.outputs))


def _maker(node: ir.Node, index: int, op_types: tuple[str, ...]) -> ir.Node | None:
    """Return the producer of an input, if it is of one of these types."""
    value = node.inputs[index]
    made = None if value is None else value.producer()
    return made if made is not None and made.op_type in op_types else None


def _number(value: ir.Value | None) -> float | None:
    """Return the only element of a constant."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def _is_column(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == 2 and value.shape[1] == 1


def ones(graph: ir.Graph, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
    """Return an initializer of `graph` filled with 1."""
    return shared_initializer(graph, "ones", np.ones(shape, dtype.numpy()))


def shared_initializer(graph: ir.Graph, base: str, array: np.ndarray) -> ir.Value:
    """Return an initializer of `graph` with these values: an existing one if possible, or a new one."""
    for value in graph.initializers.values():
        known = value.const_value
        if known is None or known.shape != array.shape or known.dtype.numpy() != array.dtype:
            continue
        if np.array_equal(known.numpy(), array):
            return value
    return add_initializer(graph, unique_name(base, graph_names(graph)), array)
