"""Deferred losses: a step without its loss, and the losses of many steps computed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_ir, to_proto, value_named
from onnxsgd.graph.nodes import fixed_size, shape_of
from onnxsgd.losses import DenseLoss
from onnxsgd.runtime.stages import stage

if TYPE_CHECKING:
    from onnxsgd.engine.step.training_step import CompiledStep
    from onnxsgd.losses import Loss

__all__ = ["add_losses", "build_deferred", "declare", "is_standard", "reduce_to_updates"]


def is_standard(step: CompiledStep) -> bool:
    """Tell whether all operators of a step are standard ones.

    Some operators of the training runtime crash the interpreter in a larger graph.
    """
    nodes = onnx.load_from_string(step.model).graph.node
    return all(onnx.defs.has(node.op_type, node.domain) for node in nodes)


def reduce_to_updates(model: ir.Model, step: CompiledStep) -> list[tuple[ir.Value, ir.Value]]:
    """Replace the loss of a step by its raw prediction; return its old and new weights and states.

    The inputs are then the old weights and states, and the other inputs of the updates; the outputs are the
    new weights and states, the gradients of products, and the raw prediction.
    """
    graph = model.graph
    raw_prediction = value_named(graph, step.raw_prediction)
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    carried = [(inputs[old], outputs[new]) for old, new in step.tensors.values()]
    gradients = [outputs[name] for _, name in step.products]
    graph.outputs[:] = [*(new for _, new in carried), *gradients, raw_prediction]
    RemoveUnusedNodesPass()(model)
    states = [old for old, _ in carried]
    graph.inputs[:] = [*states, *(value for value in graph.inputs if value not in states and value.uses())]
    return carried


@stage("compile").of
def build_deferred(step: CompiledStep, loss: Loss) -> tuple[bytes, bytes]:
    """Return the step without its loss, and a graph that computes the losses of stacked batches.

    Outputs of the first: the new weights and states, the gradients of products, the raw prediction.
    Inputs of the second: ``target``, ``raw_prediction`` and ``sample_weight``; its output is ``losses``
    [n_batches].
    """
    model = to_ir(onnx.load_from_string(step.model))
    single = next(value for value in model.graph.inputs if value.name == step.target)
    reduce_to_updates(model, step)
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(model.graph.opset_imports), name="losses")
    target = declare("target", single, stacked=True)
    raw_prediction = declare("raw_prediction", model.graph.outputs[-1], stacked=True)
    weight = ir.Value(name="sample_weight", type=target.type, shape=ir.Shape([None, fixed_size(single, 0)]))
    losses = add_losses(graph, loss, target, raw_prediction, weight)
    for node in list(graph):
        widen_scalars(graph, node)
    graph.inputs.extend([target, raw_prediction, weight])
    graph.outputs.append(losses)
    both = (model, ir.Model(graph, ir_version=model.ir_version, producer_name="onnxsgd"))
    updates, values = (to_proto(each).SerializeToString() for each in both)
    return updates, values


def add_losses(
    graph: ir.Graph, loss: Loss, target: ir.Value, raw_prediction: ir.Value, weight: ir.Value
) -> ir.Value:
    """Compute the losses of stacked batches; return them, [n_batches].

    Parameters
    ----------
    graph : ir.Graph
        The graph to add to.
    loss : Loss
        The loss.
    target : ir.Value of shape [n_batches, batch_size, n_targets] or [1, 1]
        The targets, or that of all samples.
    raw_prediction : ir.Value
        The raw predictions in the same order, of any shape.
    weight : ir.Value of shape [n_batches, batch_size]
        The normalised weights of the samples.
    """
    batch_size, n_targets = fixed_size(weight, 1), fixed_size(target, -1)
    n_outputs = loss.n_outputs if isinstance(loss, DenseLoss) else n_targets
    with appending(graph) as op:
        tables = []
        for value, width in ((target, n_targets), (raw_prediction, n_outputs)):
            table = op.Reshape(value, [-1, width])
            table.type, table.shape = target.type, ir.Shape([None, width])
            tables.append(table)
        value = loss.value(op, *tables)
        if n_outputs != 1:
            value = op.ReduceSum(value, [1], keepdims=1)
        losses = op.ReduceSum(op.Mul(op.Reshape(value, [-1, batch_size]), weight), [1], keepdims=0)
    losses.name, losses.type, losses.shape = "losses", target.type, ir.Shape([None])
    return losses


def declare(name: str, like: ir.Value, *, stacked: bool = False) -> ir.Value:
    """Return a tensor of the type and shape of another, or one for each batch if `stacked`."""
    shape = ir.Shape([*([None] if stacked else []), *shape_of(like)])
    return ir.Value(name=name, type=like.type, shape=shape)
