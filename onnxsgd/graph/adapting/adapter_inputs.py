"""Graphs whose trained weights are inputs, with the base as their default, for adapters in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.adapting.adapted_nodes import CONVOLUTION
from onnxsgd.graph.adapting.branches import Adapter
from onnxsgd.graph.model import ADAPTER, FROZEN, unique_name
from onnxsgd.graph.nodes import content, element_type, shape_of

__all__ = ["adapter_values", "with_adapter_inputs"]


def with_adapter_inputs(
    model: ir.Model, adapters: Sequence[Adapter], others: Mapping[str, np.ndarray]
) -> ir.Model:
    """Return `model` with its trained weights as inputs.

    Parameters
    ----------
    model : ir.Model
        A graph with the branches of `adapters`. It is not changed.
    adapters : sequence of Adapter
        Their matrices become inputs of any rank, whose default, of rank 1, adds zero; their scale is that of
        :func:`adapter_values`.
    others : mapping of str to ndarray
        Further trained weights, which become inputs too, and their defaults.

    Notes
    -----
    An input with an initializer of its name is optional: without an adapter the graph computes the base.
    """
    copy = model.clone()
    graph = copy.graph
    symbol = unique_name("rank", {str(size) for value in graph.inputs for size in value.shape or ()})
    for adapter in adapters:
        for name, axis in zip(adapter.names, _rank_axes(adapter), strict=True):
            value = graph.initializers[name]
            sizes = shape_of(value).numpy()
            dims: list[int | str] = [*sizes[:axis], symbol, *sizes[axis + 1 :]]
            _make_input(graph, value, np.zeros((*sizes[:axis], 1, *sizes[axis + 1 :])), dims)
            _forget_sizes(value)
    for name, array in others.items():
        _make_input(graph, graph.initializers[name], array, array.shape)
    factors = {adapter.down: adapter.scale for adapter in adapters}
    for value in graph.initializers.values():
        owner = value.metadata_props.get(ADAPTER)
        if owner in factors and FROZEN in value.metadata_props:
            _hold(value, content(value).numpy().astype(np.float64) / factors[owner])
    # inference of shapes orders them by size, which depends on the rank
    for name in sorted(graph.initializers):
        graph.register_initializer(graph.initializers.pop(name))
    return copy


def adapter_values(
    model: ir.Model, adapters: Sequence[Adapter], others: Iterable[str]
) -> dict[str, ir.TensorProtocol]:
    """Return the inputs with which :func:`with_adapter_inputs` of `model` computes the function of `model`.

    The factor of each product is in B, so that adapters of any factor fit the same graph.
    """
    copy = model.clone()
    values = copy.graph.initializers
    for adapter in adapters:
        _hold(values[adapter.up], content(values[adapter.up]).numpy().astype(np.float64) * adapter.scale)
    names = [*others, *(name for adapter in adapters for name in adapter.names)]
    return {name: content(values[name]) for name in names}


def _rank_axes(adapter: Adapter) -> tuple[int, int]:
    """Return the axes of the rank in A and B."""
    return (0, 1) if adapter.kind == CONVOLUTION else (1, 0)


def _make_input(graph: ir.Graph, value: ir.Value, default: np.ndarray, sizes: Sequence[int | str]) -> None:
    _hold(value, default)
    value.shape = ir.Shape(sizes)
    graph.inputs.append(value)


def _hold(value: ir.Value, array: np.ndarray) -> None:
    """Give an initializer other numbers, in its type."""
    held = np.asarray(array, content(value).numpy().dtype)
    value.const_value = ir.tensor(held, dtype=element_type(value), name=value.name)


def _forget_sizes(value: ir.Value) -> None:
    """Remove the shapes of a branch, which hold the rank."""
    for node, _ in value.uses():
        if ADAPTER not in node.metadata_props:
            for result in node.outputs:
                result.shape = None
                _forget_sizes(result)
