"""Gradients of the outputs: inputs of the graph, ones, or results of a ``YieldOp``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import element_type, maker
from onnxsgd.graph.writing import computed, new_node, replace_input

__all__ = ["fill_seeds", "find_seeds", "yield_seeds"]


def find_seeds(graph: ir.Graph, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Return, for each of `outputs` that has one, the input ``<output>_grad`` of `graph`."""
    inputs = {value.name: value for value in graph.inputs}
    return {y: inputs[f"{y.name}_grad"] for y in outputs if f"{y.name}_grad" in inputs}


def fill_seeds(graph: ir.Graph, seeds: Mapping[ir.Value, ir.Value]) -> None:
    """Replace the inputs `seeds` by ones of the shape of their outputs, in place."""
    names = graph_names(graph)
    for y, seed in seeds.items():
        one = ir.tensor(np.ones(1, element_type(y).numpy()))
        shape = computed("Shape", [y], name=unique_name(f"{y.name}_shape", names))
        ones = computed("ConstantOfShape", [shape], {"value": one}, like=seed)
        ones.name = unique_name(f"{seed.name}_filled", names)
        graph.extend([maker(shape), maker(ones)])
        replace_input(graph, seed, ones)
    graph.sort()


def yield_seeds(graph: ir.Graph, outputs: Sequence[ir.Value], seeds: Mapping[ir.Value, ir.Value]) -> None:
    """Replace the inputs `seeds` by the results of a ``YieldOp`` on all of `outputs`, in place."""
    missing = [index for index, y in enumerate(outputs) if y not in seeds]
    attributes: dict[str, list[int]] = {"full_shape_outputs": list(range(len(outputs)))}
    if missing:
        attributes["non_differentiable_outputs"] = missing
    values = [ir.Value() for _ in seeds]
    graph.append(new_node("YieldOp", outputs, values, attributes, domain="com.microsoft", name="YieldOp"))
    graph.opset_imports.setdefault("com.microsoft", 1)
    for seed, value in zip(seeds.values(), values, strict=True):
        name = seed.name
        value.type, value.shape = seed.type, seed.shape
        replace_input(graph, seed, value)
        value.name = name
    graph.sort()
