"""Products with a constant that are made of a factor, not of the larger product that it belongs to."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import attribute, constant, maker
from onnxsgd.graph.writing import Replacement, add_initializer, computed, replace_nodes

__all__ = ["widen_factors"]

#: The most terms of a product whose second factor is widened. ``benchmarks/constants.py``, update of a 3 x 3
#: kernel that is met by its centre alone: with 512 channels 0.79 of the time at 8 terms, 0.75 at 16, 0.89 at
#: 32, 0.98 at 64; with 256 channels 0.94 at 8, 1.04 at 16.
_TERMS = 8


def widen_factors(graph: ir.Graph) -> None:
    """Multiply a factor of a product by a constant where that has fewer rows than the product.

    Case: ``MatMul(Reshape(MatMul(a, b), [m c, k]), e)`` of a [m, n], b [n, c k] and a constant e [k, t], with
    few terms n, becomes ``Reshape(MatMul(a, d), [m c, t])`` with d [n, c t] made of b as that was of the
    product. Gradients of kernels of which some taps meet padding alone are of this form. The numbers change
    by rounding only.

    Parameters
    ----------
    graph : ir.Graph
        A graph of known sizes in topological order, changed in place.
    """
    replace_nodes(graph, partial(_widened, graph, graph_names(graph)))


def _widened(graph: ir.Graph, names: set[str], node: ir.Node) -> Replacement | None:
    if not _is_product(node) or attribute(node, "transA", 0) or constant(node.inputs[1]) is None:
        return None
    rows, e = node.inputs
    product = _reshaped_product(rows)
    if product is None or attribute(product, "transB", 0):
        return None
    a, b = product.inputs
    (m, wide), (count, k), t = _sizes(product.outputs[0]), _sizes(rows), _sizes(node.outputs[0])[1]
    n, c = _sizes(b)[0], wide // k
    if c * k != wide or m * c != count or n > _TERMS or 2 * n > m:
        return None
    written: list[ir.Node] = []

    def write(op_type: str, inputs: list[ir.Value | None], like: ir.Node | None, *sizes: int) -> ir.Value:
        attributes = {} if like is None else dict(like.attributes)
        value = computed(op_type, inputs, attributes, name=unique_name(op_type, names))
        value.type, value.shape = node.outputs[0].type, ir.Shape(sizes)
        written.append(maker(value))
        return value

    def reshape(x: ir.Value | None, *sizes: int) -> ir.Value:
        target = add_initializer(graph, unique_name("shape", names), np.array(sizes, np.int64))
        return write("Reshape", [x, target], None, *sizes)

    parts = write(node.op_type, [reshape(b, n * c, k), e], node, n * c, t)
    result = write(product.op_type, [a, reshape(parts, n, c * t)], product, m, c * t)
    output = reshape(result, count, t)
    output.name = node.outputs[0].name
    return written, [output]


def _sizes(value: ir.Value | None) -> list[int]:
    """Return the shape of a tensor, empty if a size is unknown."""
    if value is None or value.shape is None or not value.shape.is_static():
        return []
    return list(value.shape.numpy())


def _is_product(node: ir.Node) -> bool:
    """Return whether a node multiplies two tables of known sizes and adds nothing."""
    is_product = node.op_type in ("MatMul", "Gemm") and len(node.inputs) == 2
    return is_product and all(len(_sizes(value)) == 2 for value in (*node.inputs, *node.outputs))


def _reshaped_product(value: ir.Value | None) -> ir.Node | None:
    """Return the product that `value` is a Reshape of, if nothing else reads either."""
    reshape = None if value is None else value.producer()
    product = None if reshape is None or reshape.op_type != "Reshape" else reshape.inputs[0]
    if (
        value is None
        or product is None
        or any(len(v.uses()) != 1 or v.is_graph_output() for v in (value, product))
    ):
        return None
    node = product.producer()
    return node if node is not None and _is_product(node) else None
