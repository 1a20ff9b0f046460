"""Products of first layers as inputs of a graph, for callers that multiply sparse data themselves."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name, value_named
from onnxsgd.graph.nodes import fixed_size, maker
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.writing import computed, replace_output

__all__ = ["with_product_inputs"]


def with_product_inputs(model: ir.Model, layers: Sequence[FirstLayer]) -> tuple[ir.Model, tuple[str, ...]]:
    """Return a copy of `model` whose inputs are products x W, and their names, one for each layer.

    Cases: ``MatMul(x, w)`` becomes the input, ``Gemm(x, w, b)`` an addition to it. The data that only these
    layers read, and their coefficients, are no longer part of the graph.

    Parameters
    ----------
    model : ir.Model
        The graph, which is not changed.
    layers : sequence of FirstLayer
        All layers of their data inputs, from :func:`onnxsgd.graph.reading.first_layers.first_layers`.
    """
    copy = model.clone()
    graph = copy.graph
    names = graph_names(graph)
    products = tuple(_make_input(graph, layer, names) for layer in layers)
    graph.inputs[:] = [value for value in graph.inputs if value.uses() or value.is_graph_output()]
    return copy, products


def _make_input(graph: ir.Graph, layer: FirstLayer, names: set[str]) -> str:
    data, weight = value_named(graph, layer.feature), value_named(graph, layer.weight)
    (node,) = [node for node, _ in weight.uses()]
    rows = None if data.shape is None else data.shape[0]
    width = fixed_size(weight, 0 if layer.is_transposed else 1)
    product = ir.Value(
        name=unique_name(f"{layer.weight}_product", names), type=data.type, shape=ir.Shape([rows, width])
    )
    graph.inputs.append(product)
    old = node.outputs[0]
    intercept = node.inputs[2] if len(node.inputs) > 2 else None
    new = computed("Identity", [product]) if intercept is None else computed("Add", [product, intercept])
    graph.insert_before(node, maker(new))
    replace_output(old, new)
    graph.remove(node, safe=True)
    graph.initializers.pop(layer.weight, None)
    return str(product.name)
