"""The graph of an estimator in the stages of its training, marked for a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.drawing.marks import MarkedGraph, Role, mark_passes, mark_tensors
from onnxsgd.engine.step.training_step import both_passes, build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.model import to_ir, value_named
from onnxsgd.graph.shape_inference import ShapeInferencePass

if TYPE_CHECKING:
    from onnxsgd.engine.step.step_spec import StepSpec

__all__ = ["STAGES", "graph_with_shapes", "model_stage", "stage_of_training"]

#: The stages, with their titles.
STAGES: Mapping[str, str] = {
    "model": "the graph as given",
    "loss": "the graph with its loss",
    "gradient": "the graph with its loss and its gradient",
    "step": "the training step, gradient and update fused",
}


def graph_with_shapes(proto: onnx.ModelProto) -> ir.Graph:
    """Return a graph with the shapes that can be inferred, in topological order."""
    model = to_ir(proto)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    model.graph.sort()
    return model.graph


def model_stage(proto: onnx.ModelProto, weights: tuple[str, ...], title: str) -> MarkedGraph:
    """Return a graph with its trained tensors marked."""
    graph = graph_with_shapes(proto)
    return MarkedGraph(graph, title, roles=mark_tensors(graph, weights))


def stage_of_training(tail: ir.Model, spec: StepSpec, stage: str, title: str) -> MarkedGraph:
    """Return the graph of the stage "loss", "gradient" or "step".

    Parameters
    ----------
    tail : ir.Model
        The graph of raw scores.
    spec : StepSpec
        The specification of the training step.
    stage : {"loss", "gradient", "step"}
        The stage.
    title : str
        The title of the picture.

    Raises
    ------
    ParameterError
        If a graph of open sizes has no training step yet.
    """
    if stage == "step":
        return _fused(tail, spec, title)
    both = both_passes(tail, spec)
    graph = both.model.graph
    results: dict[ir.Value, tuple[str, ...]] = {}
    if stage == "gradient":
        for name, value in both.gradients.items():
            results[value] = (*results.get(value, ()), f"gradient of {name}")
    graph.outputs[:] = [both.loss, *results]
    # the pass finds all unused nodes in this order only
    graph.sort()
    RemoveUnusedNodesPass()(both.model)
    roles = mark_tensors(graph, spec.weights, set(tail.graph.initializers))
    roles |= {value: Role.STATE for value in graph.inputs if value.name in spec.statistics}
    return MarkedGraph(
        graph, title,
        parts=mark_passes(graph, both.raw_prediction, both.loss),
        roles=roles,
        results=results,
    )  # fmt: skip


def _fused(tail: ir.Model, spec: StepSpec, title: str) -> MarkedGraph:
    for value in tail.graph.inputs:
        if value.shape is None or not all(isinstance(size, int) for size in value.shape[1:]):
            raise ParameterError(
                f"stage='step' needs a graph whose inputs have fixed sizes, and {value.name!r} has the shape "
                f"{value.shape or 'unknown'}: a fit takes them from the data. stage='gradient' draws it."
            )
    step = build_step(tail, spec, with_rows=False)
    graph = ir.from_proto(onnx.load_from_string(step.model)).graph
    inputs = {str(value.name): value for value in graph.inputs}
    roles = mark_tensors(graph, spec.weights, set(tail.graph.initializers))
    roles |= {inputs[name]: Role.STATE for name in step.scalars.values() if name in inputs}
    results = {}
    for (name, kind), (old, new) in step.tensors.items():
        if old in inputs and (kind != WEIGHT or name in spec.statistics):
            roles[inputs[old]] = Role.STATE
        results[value_named(graph, new)] = (f"new {name}" if kind == WEIGHT else f"new {kind} of {name}",)
    updates = [*results, *(value for value, role in roles.items() if role == Role.STATE)]
    score, loss = value_named(graph, step.raw_prediction), value_named(graph, step.loss)
    return MarkedGraph(graph, title, mark_passes(graph, score, loss, updates), roles, results)
