"""A training step in standardised coordinates, for data and weights of raw coordinates.

Inside, first layers learn weights of centred and scaled data. A reader of the exported step knows nothing of
that: the graph standardises its inputs and converts weights on their way in and out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd._builder import Builder
from onnxsgd.engine.step.batches import Standard
from onnxsgd.engine.step.training_step import CompiledStep
from onnxsgd.engine.step.update import AVERAGE, START, WEIGHT
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_ir, to_proto, value_named
from onnxsgd.graph.nodes import shape_of
from onnxsgd.graph.reading.first_layers import FirstLayer

__all__ = ["with_raw_weights", "with_standardised_inputs"]


def with_standardised_inputs(
    model: ir.Model, layers: Iterable[FirstLayer], standards: Mapping[str, Standard]
) -> ir.Model:
    """Return `model` with each tensor of `standards` standardised before the layers that are trained.

    Frozen layers read it as it is.
    """
    copy, trained = model.clone(), {layer.weight for layer in layers}
    for name, standard in standards.items():
        value = value_named(copy.graph, name)
        readers = [
            use for use in value.uses() if trained & {v.name for v in use.node.inputs if v is not None}
        ]
        with appending(copy.graph) as op:
            centred = op.Sub(value, _constant(op, standard.shift))
            result = op.Mul(centred, _constant(op, standard.factor))
        for result_value in (centred, result):
            result_value.type, result_value.shape = value.type, value.shape
        for node, index in readers:
            node.replace_input_with(index, result)
    copy.graph.sort()
    return copy


def with_raw_weights(
    step: CompiledStep,
    layers: Iterable[FirstLayer],
    standards: Mapping[str, Standard],
    constants: Mapping[tuple[str, str], np.ndarray],
) -> CompiledStep:
    """Return `step` with weights of raw data as inputs and outputs, and constant states inside."""
    model = to_ir(onnx.load_from_string(step.model))
    graph = model.graph
    tensors = dict(step.tensors)
    for key, value in constants.items():
        if key in tensors:
            _fix(graph, *tensors.pop(key), value)
    for layer in layers:
        for kind in (WEIGHT, AVERAGE):
            if (layer.weight, kind) in tensors:
                intercept = None if layer.intercept is None else tensors[layer.intercept, kind]
                _convert(graph, layer, tensors[layer.weight, kind], intercept, standards[layer.feature])
        if (layer.weight, START) in tensors:
            _convert_start(graph, layer, tensors[layer.weight, START], standards[layer.feature])
    graph.sort()
    return replace(step, model=to_proto(model).SerializeToString(), tensors=tensors)


def _convert(
    graph: ir.Graph,
    layer: FirstLayer,
    weight: tuple[str, str],
    intercept: tuple[str, str] | None,
    standard: Standard,
) -> None:
    """Convert one layer: ``W' = s W, b' = b + m W`` on the way in, the inverse on the way out."""
    axis = 1 if layer.is_transposed else 0
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    raw, new = inputs[weight[0]], outputs[weight[1]]
    shape = shape_of(raw).numpy()
    shift, factor = (layer.spread(a.reshape(-1), shape) for a in (standard.shift, standard.factor))
    readers = {value: list(value.uses()) for value in (raw,)}
    converted: dict[ir.Value, ir.Value] = {}
    finished: dict[ir.Value, ir.Value] = {}
    with appending(graph) as op:
        converted[raw] = op.Div(raw, _constant(op, factor))
        finished[new] = op.Mul(new, _constant(op, factor))
        if intercept is not None:
            offset, new_offset = inputs[intercept[0]], outputs[intercept[1]]
            readers[offset] = list(offset.uses())
            row = list(shape_of(offset).numpy())
            before = op.ReduceSum(op.Mul(raw, _constant(op, shift)), [axis], keepdims=0)
            after = op.ReduceSum(op.Mul(finished[new], _constant(op, shift)), [axis], keepdims=0)
            converted[offset] = op.Add(offset, op.Reshape(before, row))
            finished[new_offset] = op.Sub(new_offset, op.Reshape(after, row))
    for value, result in converted.items():
        for node, index in readers[value]:
            node.replace_input_with(index, result)
    for value, result in finished.items():
        _take_output(graph, value, result)


def _convert_start(graph: ir.Graph, layer: FirstLayer, start: tuple[str, str], standard: Standard) -> None:
    """Convert the first weight of a layer on the way in; it is passed on as it came."""
    raw = next(value for value in graph.inputs if value.name == start[0])
    readers = [(node, index) for node, index in raw.uses() if node.outputs[0].name != start[1]]
    factor = layer.spread(standard.factor.reshape(-1), shape_of(raw).numpy())
    with appending(graph) as op:
        converted = op.Div(raw, _constant(op, factor))
    for node, index in readers:
        node.replace_input_with(index, converted)


def _take_output(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Return `new` in place of the output `old`, under its name."""
    name = old.name
    old.name = f"{name}_standardised"
    new.name, new.type, new.shape = name, old.type, old.shape
    graph.outputs[graph.outputs.index(old)] = new


def _fix(graph: ir.Graph, old: str, new: str, value: np.ndarray) -> None:
    """Turn a constant state into an initializer."""
    given = next(v for v in graph.inputs if v.name == old)
    graph.inputs.remove(given)
    given.const_value = ir.tensor(value, name=old)
    graph.register_initializer(given)
    passed = next(v for v in graph.outputs if v.name == new)
    graph.outputs.remove(passed)
    node = passed.producer()
    if node is not None and node.op_type == "Identity":
        graph.remove(node, safe=True)


def _constant(op: Builder, array: np.ndarray) -> ir.Value:
    names = op.builder.graph.initializers
    return op.initializer(ir.tensor(array), name=f"standard_{len(names)}")
