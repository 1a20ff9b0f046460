"""Merging of adapters into the weights that they stand beside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.graph.adapting.branches import Adapter
from onnxsgd.graph.model import ADAPTER
from onnxsgd.graph.nodes import content, first, is_real
from onnxsgd.graph.writing import replace_output

__all__ = ["merge_adapters", "merged_weight"]


def merge_adapters(model: ir.Model, adapters: Sequence[Adapter]) -> ir.Model:
    """Return `model` with adapters added to their weights, and without their branches.

    Outputs agree to rounding. Branches beside quantized weights stay. Adapters of weights that `model` does
    not hold are left out.
    """
    if not adapters:
        return model
    copy = model.clone()
    graph = copy.graph
    values = {adapter.weight: graph.initializers.get(adapter.weight) for adapter in adapters}
    real = {name for name, value in values.items() if value is not None and is_real(value)}
    held = {adapter.down: adapter for adapter in adapters if adapter.weight in real}
    for adapter in held.values():
        arrays = [content(graph.initializers[name]).numpy() for name in (adapter.weight, *adapter.names)]
        merged = merged_weight(adapter, *arrays)
        graph.initializers[adapter.weight].const_value = ir.tensor(merged, name=adapter.weight)
    for node in list(graph):
        if node.metadata_props.get(ADAPTER) in held:
            base, total = first(node), node.outputs[0]
            replace_output(total, base)
            graph.remove(node, safe=True)
    RemoveUnusedNodesPass()(copy)
    return copy


def merged_weight(adapter: Adapter, weight: np.ndarray, down: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return a weight with its adapter, in the type of the weight."""
    return (weight.astype(np.float64) + adapter.change(down, up)).astype(weight.dtype)
