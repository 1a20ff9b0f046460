"""One training step as one graph: forward, loss, backward, penalties and update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from onnxscript import GraphBuilder

from onnxsgd.engine.update import AVERAGE_RATE, L1_TOTAL, WEIGHT, build_update, state_names
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.model import graph_names, to_proto, unique_name
from onnxsgd.losses import Loss
from onnxsgd.objective.attach import weighted_loss

if TYPE_CHECKING:
    from onnxsgd.optimizers import Optimizer

__all__ = ["CompiledStep", "StepSpec", "build_step", "fix_batch_size"]


@dataclass(frozen=True)
class StepSpec:
    """What a step depends on, beside the graph. Equal specifications compile to the same step.

    Attributes
    ----------
    weights : tuple of str
        The initializers that are trained.
    penalised : frozenset of str
        Those of them that penalties apply to.
    loss : Loss
        The loss.
    optimizer : Optimizer
        The update rule; its numbers are inputs of the step.
    l1, l2 : bool
        Whether there is a penalty of that kind; its strength is an input of the step.
    average : bool
        Whether running averages of the weights are kept.
    batch_size : int
        Rows of a batch.
    n_outputs : int
        Columns of the raw prediction and of the target.
    engine : str
        Which engine differentiates.
    """

    weights: tuple[str, ...]
    penalised: frozenset[str]
    loss: Loss
    optimizer: Optimizer
    l1: bool
    l2: bool
    average: bool
    batch_size: int
    n_outputs: int
    engine: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies the compiled step: as the specification, less the optimizer's numbers."""
        return (
            self.weights, self.penalised, self.loss, self.optimizer.structure, self.l1, self.l2,
            self.average, self.batch_size, self.n_outputs, self.engine,
        )  # fmt: skip

    def states(self, weight: str) -> tuple[str, ...]:
        """Return the names of the tensors kept for `weight`."""
        return state_names(self.optimizer, l1=self.l1 and weight in self.penalised, average=self.average)

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of the numbers that a step is given."""
        names = tuple(self.optimizer.scalars(1, 1.0, 0.0))
        return (*names, *((L1_TOTAL,) if self.l1 else ()), *((AVERAGE_RATE,) if self.average else ()))


@dataclass(frozen=True)
class CompiledStep:
    """The graph of a step, and what its inputs and outputs are called.

    Attributes
    ----------
    model : bytes
        The graph, serialized.
    features, target, sample_weight, loss : tuple of str, str, str, str
        Names of the data inputs and of the loss output.
    scalars : dict
        Input name of each number.
    tensors : dict
        (input name, output name) of each weight, under (weight, "weight"), and of its states.
    """

    model: bytes
    features: tuple[str, ...]
    target: str
    sample_weight: str
    loss: str
    scalars: dict[str, str]
    tensors: dict[tuple[str, str], tuple[str, str]]


def fix_batch_size(model: ir.Model, batch_size: int) -> ir.Model:
    """Return a copy of `model` whose inputs have `batch_size` rows; shapes inside are inferred anew."""
    fixed = model.clone()
    for value in fixed.graph.inputs:
        if value.shape is not None and len(value.shape):
            value.shape = ir.Shape([batch_size, *value.shape[1:]])
    for node in fixed.graph:
        for value in node.outputs:
            value.shape = None
    return ShapeInferencePass()(fixed).model


def build_step(model: ir.Model, spec: StepSpec) -> CompiledStep:
    """Build the training step of `model`.

    Parameters
    ----------
    model : ir.Model
        A graph whose only output is the raw prediction, of shape [n_samples, n_outputs] or [n_samples].
    spec : StepSpec
        The rest.

    Notes
    -----
    The weights of the samples arrive normalised: the loss is ``sum_i sample_weight_i loss_i``.
    """
    fixed = fix_batch_size(model, spec.batch_size)
    features = tuple(str(value.name) for value in fixed.graph.inputs)
    closed_form = type(spec.loss).gradient is not Loss.gradient
    differentiated = _closed_form(fixed, spec) if closed_form else _differentiated_loss(fixed, spec)
    return _add_updates(differentiated, features, spec)


@dataclass(frozen=True)
class _Differentiated:
    """A graph with forward and backward pass, its data inputs, its loss, its gradients by weight."""

    model: ir.Model
    target: ir.Value
    sample_weight: ir.Value
    loss: ir.Value
    gradients: dict[str, ir.Value]


def _closed_form(model: ir.Model, spec: StepSpec) -> _Differentiated:
    """Differentiate `model`, and put the loss and its own gradient between the two passes."""
    both = forward_backward_model(model, spec.weights, engine=spec.engine)
    graph = both.graph
    op = GraphBuilder(graph).op
    raw, *gradients = graph.outputs
    seed = next(value for value in graph.inputs if value.name == f"{raw.name}_grad")
    table, target, sample_weight = _attach_data(graph, op, raw, spec)
    loss = weighted_loss(op, spec.loss, target, table, sample_weight)
    slope = op.Mul(spec.loss.gradient(op, target, table), sample_weight)
    ir.convenience.replace_all_uses_with(
        seed, slope if table is raw else op.Reshape(slope, [spec.batch_size])
    )
    graph.inputs.remove(seed)
    return _Differentiated(both, target, sample_weight, loss, dict(zip(spec.weights, gradients, strict=True)))


def _differentiated_loss(model: ir.Model, spec: StepSpec) -> _Differentiated:
    """Put the loss on top of `model` and differentiate the whole."""
    graph = model.graph
    op = GraphBuilder(graph).op
    table, target, sample_weight = _attach_data(graph, op, graph.outputs[0], spec)
    loss = weighted_loss(op, spec.loss, target, table, sample_weight)
    loss.name = unique_name("loss", graph_names(graph))
    graph.outputs[:] = [loss]
    both = forward_backward_model(model, spec.weights, engine=spec.engine)
    graph = both.graph
    inputs = {value.name: value for value in graph.inputs}
    seed = inputs[f"{loss.name}_grad"]
    one = GraphBuilder(graph).op.CastLike(1.0, graph.outputs[0])
    ir.convenience.replace_all_uses_with(seed, GraphBuilder(graph).op.Reshape(one, [1, 1]))
    graph.inputs.remove(seed)
    return _Differentiated(
        both, inputs[target.name], inputs[sample_weight.name], graph.outputs[0],
        dict(zip(spec.weights, graph.outputs[1:], strict=True)),
    )  # fmt: skip


def _attach_data(
    graph: ir.Graph, op: Any, raw: ir.Value, spec: StepSpec
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Add the target and the weights of the samples as inputs; return `raw` as a table, and these two."""
    names, type_ = graph_names(graph), ir.TensorType(raw.dtype)
    table = raw
    if raw.shape is None or len(raw.shape) != 2:
        table = op.Reshape(raw, [spec.batch_size, spec.n_outputs])
        table.type = type_
    table.shape = ir.Shape([spec.batch_size, spec.n_outputs])
    target = _add_input(graph, names, "y_true", type_, table.shape)
    sample_weight = _add_input(graph, names, "sample_weight", type_, ir.Shape([spec.batch_size, 1]))
    return table, target, sample_weight


def _add_updates(source: _Differentiated, features: tuple[str, ...], spec: StepSpec) -> CompiledStep:
    """Add the update of each weight; the outputs are the loss, then what was updated."""
    graph = source.model.graph
    op = GraphBuilder(graph).op
    names = graph_names(graph)
    inputs = {value.name: value for value in graph.inputs}
    scalars = {
        name: _add_input(graph, names, name, source.target.type, ir.Shape([])) for name in spec.scalars
    }
    source.loss.name = source.loss.name if source.loss.is_graph_output() else unique_name("loss", names)
    graph.outputs[:] = [source.loss]
    tensors: dict[tuple[str, str], tuple[str, str]] = {}
    for name, gradient in source.gradients.items():
        weight = inputs[name]
        gradient.type, gradient.shape = weight.type, weight.shape
        old = {
            kind: _add_input(graph, names, f"{name}_{kind}", weight.type, weight.shape)
            for kind in spec.states(name)
        }
        new_weight, new = build_update(
            op, spec.optimizer, weight, gradient, old,
            _as_type_of(op, scalars, weight), l2=spec.l2 and name in spec.penalised,
        )  # fmt: skip
        old, new = {WEIGHT: weight, **old}, {WEIGHT: new_weight, **new}
        for kind, value in new.items():
            value.name = unique_name(f"{old[kind].name}_new", names)
            value.type, value.shape = weight.type, weight.shape
            graph.outputs.append(value)
            tensors[name, kind] = (str(old[kind].name), value.name)
    graph.sort()
    return CompiledStep(
        model=to_proto(source.model).SerializeToString(),
        features=features,
        target=str(source.target.name),
        sample_weight=str(source.sample_weight.name),
        loss=str(source.loss.name),
        scalars={name: str(value.name) for name, value in scalars.items()},
        tensors=tensors,
    )


def _add_input(
    graph: ir.Graph, names: set[str], base: str, type_: ir.TypeProtocol | None, shape: ir.Shape | None
) -> ir.Value:
    value = ir.Value(name=unique_name(base, names), type=type_, shape=shape)
    graph.inputs.append(value)
    return value


def _as_type_of(op: Any, scalars: Mapping[str, ir.Value], weight: ir.Value) -> Mapping[str, ir.Value]:
    if all(scalar.dtype == weight.dtype for scalar in scalars.values()):
        return scalars
    return {name: op.CastLike(scalar, weight) for name, scalar in scalars.items()}
