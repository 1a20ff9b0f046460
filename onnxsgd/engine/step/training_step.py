"""One training step as one graph: forward, loss, backward, penalties and update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.engine.step.batch_norm import BatchStatistics, mask_padding, with_batch_statistics
from onnxsgd.engine.step.dropout_masks import compute_keys, with_masks
from onnxsgd.engine.step.early_updates import update_early
from onnxsgd.engine.step.fuse import add_to_vectors, fuse
from onnxsgd.engine.step.gradient_limits import DESCENT, limit_gradients
from onnxsgd.engine.step.intercept_rows import keep_as_rows
from onnxsgd.engine.step.joined_numbers import join_numbers
from onnxsgd.engine.step.mixed_precision import LossScale, all_finite, narrowed, widen_inputs, widened
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.transposed_tables import transpose_tables
from onnxsgd.engine.step.update import (
    ACTIVE,
    AVERAGE,
    AVERAGE_RATE,
    GRADIENT_SUM,
    IS_LAST,
    WEIGHT,
    build_update,
)
from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.gradient.engines import PORTABLE, resolve_engine
from onnxsgd.graph.append import appending
from onnxsgd.graph.lowering.forms import (
    AFFINE_FORMS,
    COMPARED_POOL_FORMS,
    FEW_CHANNEL_FORMS,
    MATRIX_FORMS,
    MERGED_PATCH_FORMS,
    PATCH_FORMS,
    PICKED_PART_FORMS,
    POOL_FORMS,
    SEQUENCE_FORMS,
    SMALL_IMAGE_FORMS,
    STANDARDIZED_FORMS,
    factor_forms,
    standardized_window_forms,
    write_out,
)
from onnxsgd.graph.model import graph_names, to_proto, unique_name, value_named
from onnxsgd.graph.nodes import element_type, fixed_size, shape_of
from onnxsgd.graph.rewriting import Table
from onnxsgd.graph.sizes import fix_sizes
from onnxsgd.graph.writing import replace_input
from onnxsgd.losses import Loss
from onnxsgd.objective.score_table import check_shape, weighted_loss
from onnxsgd.runtime.stages import stage

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["BothPasses", "CompiledStep", "add_updates", "both_passes", "build_step"]

_SINGLE = ir.DataType.FLOAT


@dataclass(frozen=True)
class CompiledStep:
    """The graph of a step, and the names of its inputs and outputs.

    Attributes
    ----------
    model : bytes
        The graph, serialized.
    features, target, sample_weight, gradient_weight : tuple of str, str, str, str
        Names of the data inputs.
    loss : str
        Name of the loss output.
    raw_prediction : str
        Name of the tensor inside the graph that the loss is computed from.
    n_outputs : int
        Numbers of it for each sample.
    scalars : dict
        Input name of each number.
    tensors : dict
        (input name, output name) of each weight, under (weight, "weight"), and of its states; and of those
        of the loss scale, if there is one.
    rows : frozenset of (str, str)
        Those of them that have the shape [1, n] here, and [n] outside.
    inputs : dict
        Type and shape of each input, -1 for a size that differs between batches.
    products : tuple of (str, str)
        Input name of each product of sparse data, and output name of its gradient.
    """

    model: bytes
    features: tuple[str, ...]
    target: str
    sample_weight: str
    gradient_weight: str
    loss: str
    raw_prediction: str
    n_outputs: int
    scalars: dict[str, str]
    tensors: dict[tuple[str, str], tuple[str, str]]
    rows: frozenset[tuple[str, str]]
    inputs: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    products: tuple[tuple[str, str], ...] = ()


@stage("compile").of
def build_step(
    model: ir.Model, spec: StepSpec, *, with_rows: bool = True, with_transposes: bool = True
) -> CompiledStep:
    """Build the training step of `model`.

    Parameters
    ----------
    model : ir.Model
        A graph whose only output is the raw prediction, of shape [n_samples, ...], `n_outputs` for each.
    spec : StepSpec
        The rest.
    with_rows : bool
        Whether weights [n] may be declared as [1, n] where that is faster.
    with_transposes : bool
        With rows, whether tables may be kept transposed, numbers of several weights be joined, and
        convolutions be written as transposed ones, where the runtime is faster on the CPU then.

    Notes
    -----
    The weights of the samples are normalised by the caller: the loss is ``sum_i sample_weight_i loss_i``. The
    gradient is that of ``sum_i gradient_weight_i loss_i``, whose weights include minus the learning rate
    where the optimizer requires it.
    """
    names = (str(value.name) for value in model.graph.inputs)
    features = tuple(name for name in names if name not in spec.products)
    is_for_cpu = with_rows and with_transposes
    # onnxruntime 1.19 gives two constants of a native gradient one name with some of these forms
    is_portable = resolve_engine(spec.engine) == PORTABLE
    of_weights = (factor_forms(spec.weights), standardized_window_forms(spec.weights))
    before: tuple[Table, ...] = ()
    if is_for_cpu and is_portable:
        before = (POOL_FORMS, PATCH_FORMS, MERGED_PATCH_FORMS, PICKED_PART_FORMS, AFFINE_FORMS, *of_weights)
    both = both_passes(model, spec, (SMALL_IMAGE_FORMS, *before))
    graph, numbers = both.model.graph, _with_averages_of_updates(both, spec).data.scalars
    tensors, updated = add_updates(graph, both.gradients, numbers, spec, both.data.scale, both.layers)
    graph.outputs[:] = [both.loss, *updated]
    products = _add_gradients(both, spec)
    # an output during fusion, so that no pass removes it
    graph.outputs.append(both.raw_prediction)
    after = (COMPARED_POOL_FORMS, FEW_CHANNEL_FORMS, SEQUENCE_FORMS, STANDARDIZED_FORMS) if is_for_cpu else ()
    for table in (MATRIX_FORMS, *after):
        write_out(both.model, table)
    # a form reads what the gradient has computed
    graph.sort()
    fuse(both.model)
    rows = _keep_as_rows(both.model, spec, tensors) if with_rows else frozenset()
    if is_for_cpu:
        transpose_tables(graph)
        join_numbers(graph)
        add_to_vectors(both.model)
        update_early(graph)
    raw_prediction = graph.outputs.pop()
    return CompiledStep(
        model=to_proto(both.model).SerializeToString(),
        features=features,
        target=str(both.data.target.name),
        sample_weight=str(both.data.sample_weight.name),
        gradient_weight=str(both.data.gradient_weight.name),
        loss=str(both.loss.name),
        raw_prediction=str(raw_prediction.name),
        n_outputs=spec.n_outputs,
        scalars={name: str(value.name) for name, value in both.data.scalars.items()},
        tensors=tensors,
        rows=rows,
        inputs={str(value.name): _type_and_shape(value) for value in graph.inputs},
        products=products,
    )


def _type_and_shape(value: ir.Value) -> tuple[np.dtype[Any], tuple[int, ...]]:
    sizes = (size if isinstance(size, int) else -1 for size in shape_of(value))
    return element_type(value).numpy(), tuple(sizes)


@dataclass(frozen=True)
class _Data:
    """The inputs of a step beside the features: targets, weights of the samples, scalars, the loss scale."""

    target: ir.Value
    sample_weight: ir.Value
    gradient_weight: ir.Value
    scalars: Mapping[str, ir.Value]
    scale: LossScale | None = None


@dataclass(frozen=True)
class BothPasses:
    """A graph with forward and backward pass.

    It has data, raw prediction, loss, the gradient of each weight and of each product, and the statistics of
    the batch in the layers that normalise by them.
    """

    model: ir.Model
    data: _Data
    raw_prediction: ir.Value
    loss: ir.Value
    gradients: Mapping[str, ir.Value]
    layers: tuple[BatchStatistics, ...] = ()


def both_passes(model: ir.Model, spec: StepSpec, forms: Sequence[Table] = ()) -> BothPasses:
    """Return forward pass, loss and backward pass of `model`, for batches of a fixed size.

    Parameters
    ----------
    model : ir.Model
        As in :func:`build_step`.
    spec : StepSpec
        The rest; the update is left out.
    forms : sequence of mappings
        Forms of operators to write out before the graph is differentiated, table by table.
    """
    fixed = fix_sizes(model, spec.batch_size, dict(spec.row_shapes))
    for table in forms:
        write_out(fixed, table)
        # readers that nothing reads would keep a form of the next table from values read once
        _remove_idle(fixed.graph)
    row_mask, keys, layers = None, None, tuple[BatchStatistics, ...]()
    if spec.statistics:
        fixed, row_mask, layers = with_batch_statistics(fixed, spec.statistics, spec.batch_size)
    if spec.draws:
        fixed, keys = with_masks(fixed)
    with stage("differentiate"):
        both = _with_closed_form(fixed, spec) or _with_differentiated_loss(fixed, spec)
    if row_mask is not None:
        mask_padding(both.model.graph, row_mask, both.data.sample_weight)
    if keys is not None:
        compute_keys(both.model.graph, keys, both.data.scalars)
    if spec.half is not None:
        both = _in_single_precision(both)
    return replace(both, layers=layers)


def _remove_idle(graph: ir.Graph) -> None:
    """Remove nodes that nothing reads, such as those that other forms have replaced; initializers stay."""
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)


def _in_single_precision(both: BothPasses) -> BothPasses:
    """Return both passes with inputs in float32, and gradients in float32 of a loss without a scale."""
    graph, scale = both.model.graph, both.data.scale
    for name, gradient in both.gradients.items():
        like = value_named(graph, name)
        gradient.type, gradient.shape = like.type, like.shape
    widen_inputs(graph)
    with appending(graph) as op:
        gradients = {name: widened(op, value) for name, value in both.gradients.items()}
        if scale is not None:
            gradients = {name: scale.unscaled(op, value) for name, value in gradients.items()}
    return replace(both, gradients=gradients)


def _with_closed_form(model: ir.Model, spec: StepSpec) -> BothPasses | None:
    """Differentiate `model` and insert the loss and its closed-form gradient between the passes.

    None if the loss has no such gradient.
    """
    if type(spec.loss).gradient is Loss.gradient:
        return None
    both = forward_backward_model(model, spec.weights, spec.products, spec.engine)
    graph = both.graph
    raw, *gradients = graph.outputs
    seed = next(value for value in graph.inputs if value.name == f"{raw.name}_grad")
    data = _add_data(graph, raw, spec)
    with appending(graph) as op:
        table = _as_table(op, raw, spec)
        loss = weighted_loss(op, spec.loss, data.target, table, data.sample_weight)
        loss.name = "loss"
        own = spec.loss.gradient(op, data.target, table)
        if own is None:
            return None
        check_shape(spec.loss, "gradient", own, table)
        slope = op.Mul(own, data.gradient_weight)
        if data.scale is not None:
            slope = op.Mul(slope, data.scale.scale)
        if table is not raw:
            slope = op.Reshape(slope, _sizes(op, raw))
        if spec.half is not None:
            slope = narrowed(op, slope, raw)
    replace_input(graph, seed, slope)
    return BothPasses(both, data, table, loss, _by_name(spec, gradients))


def _with_differentiated_loss(model: ir.Model, spec: StepSpec) -> BothPasses:
    """Append the loss to `model` and differentiate the whole."""
    raw = model.graph.outputs[0]
    before = _add_data(model.graph, raw, spec)
    with appending(model.graph) as op:
        table = _as_table(op, raw, spec)
        objective = weighted_loss(op, spec.loss, before.target, table, before.gradient_weight)
        objective.name = "objective"
    model.graph.outputs[:] = [objective]
    both = forward_backward_model(model, spec.weights, spec.products, spec.engine)
    graph = both.graph
    inputs = {value.name: value for value in graph.inputs}
    data = _Data(
        inputs[before.target.name],
        inputs[before.sample_weight.name],
        inputs[before.gradient_weight.name],
        {name: inputs[value.name] for name, value in before.scalars.items()},
        None if before.scale is None else before.scale.found_in(inputs),
    )
    objective, *gradients = graph.outputs
    raw_again = value_named(graph, str(raw.name))
    with appending(graph) as op:
        seed = op.Reshape(op.CastLike(1.0, objective) if data.scale is None else data.scale.scale, [1, 1])
        table = _as_table(op, raw_again, spec)
        loss = weighted_loss(op, spec.loss, data.target, table, data.sample_weight)
        loss.name = "loss"
    replace_input(graph, inputs[f"{objective.name}_grad"], seed)
    return BothPasses(both, data, table, loss, _by_name(spec, gradients))


def _sizes(op: Builder, raw: ir.Value) -> list[int] | ir.Value:
    """Return the shape of raw predictions, as numbers where they are known."""
    return list(raw.shape.numpy()) if raw.shape is not None and raw.shape.is_static() else op.Shape(raw)


def _as_table(op: Builder, raw: ir.Value, spec: StepSpec) -> ir.Value:
    """Return raw predictions as a table, reshaped where they have another number of axes, not of 16 bits."""
    shape = [spec.batch_size, spec.n_outputs]
    raw = raw if spec.half is None else widened(op, raw)
    table = raw
    if raw.shape is None or len(raw.shape) != 2:
        table = op.Reshape(raw, shape)
        table.type = raw.type
    table.shape = ir.Shape(shape)
    return table


def _add_data(graph: ir.Graph, raw: ir.Value, spec: StepSpec) -> _Data:
    """Add targets, both weights of the samples and scalars as inputs, of the type of `raw`, or float32."""
    names, type_ = graph_names(graph), ir.TensorType(element_type(raw) if spec.half is None else _SINGLE)
    return _Data(
        _add_input(graph, names, "y_true", type_, ir.Shape([spec.batch_size, spec.n_targets])),
        _add_input(graph, names, "sample_weight", type_, ir.Shape([spec.batch_size, 1])),
        _add_input(graph, names, "gradient_weight", type_, ir.Shape([spec.batch_size, 1])),
        {name: _add_input(graph, names, name, type_, ir.Shape([])) for name in spec.scalars},
        LossScale.of_graph(graph) if spec.scales_loss else None,
    )


def _with_averages_of_updates(both: BothPasses, spec: StepSpec) -> BothPasses:
    """Let averages move in the last batch of an update alone, if all its batches get the same numbers."""
    scalars = both.data.scalars
    if not (spec.scales_loss and spec.accumulates and spec.average):
        return both
    given = scalars[AVERAGE_RATE]
    with appending(both.model.graph) as op:
        rate = op.Mul(given, scalars[IS_LAST])
    rate.type, rate.shape = given.type, given.shape
    return replace(both, data=replace(both.data, scalars={**scalars, AVERAGE_RATE: rate}))


def add_updates(
    graph: ir.Graph,
    given: Mapping[str, ir.Value],
    numbers: Mapping[str, ir.Value],
    spec: StepSpec,
    scale: LossScale | None = None,
    layers: Sequence[BatchStatistics] = (),
) -> tuple[dict[tuple[str, str], tuple[str, str]], list[ir.Value]]:
    """Add the update of each weight; return the names of its tensors, and the new values.

    Parameters
    ----------
    graph : ir.Graph
        A graph whose inputs include the weights; their states become inputs.
    given : mapping of str to ir.Value
        The gradient of each weight.
    numbers : mapping of str to ir.Value
        The scalars of the step.
    spec : StepSpec
        The specification of the step.
    scale : LossScale or None
        The scale of the loss, if there is one.
    layers : sequence of BatchStatistics
        The layers that update their running statistics.
    """
    names = graph_names(graph)
    inputs = {value.name: value for value in graph.inputs}
    old: dict[tuple[str, str], ir.Value] = {}
    new: dict[tuple[str, str], ir.Value] = {}
    for name in spec.weights:
        weight = old[name, WEIGHT] = inputs[name]
        for kind in spec.states(name):
            shape = ir.Shape(spec.state_shape(name, kind, tuple(shape_of(weight).numpy())))
            old[name, kind] = _add_input(graph, names, f"{name}_{kind}", weight.type, shape)
    for name in spec.statistics:
        statistic = old[name, WEIGHT] = inputs[name]
        if spec.average:
            old[name, AVERAGE] = _add_input(
                graph, names, f"{name}_{AVERAGE}", statistic.type, statistic.shape
            )
    gradients = {name: given[name] for name in spec.weights}
    for name, gradient in gradients.items():
        gradient.type, gradient.shape = inputs[name].type, inputs[name].shape
    factors = dict(spec.gradient_factors)
    with appending(graph) as op:
        sums = _add_sums(op, gradients, old) if spec.accumulates else {}
        gradients |= sums
        of_weights = {name: spec.numbers_of(name, numbers) for name in spec.weights}
        active = {name: of_name[ACTIVE] for name, of_name in of_weights.items() if ACTIVE in of_name}
        is_finite = None if scale is None else all_finite(op, gradients, active)
        if spec.limits or DESCENT in numbers:
            gradients = limit_gradients(op, gradients, numbers, active)
        for name in spec.weights:
            weight, gradient = inputs[name], gradients[name]
            scalars = _as_type_of(op, _numbers_of(op, name, numbers, spec), weight)
            if name in factors:
                gradient = op.Mul(gradient, factors[name])
            new[name, WEIGHT], states = build_update(
                op, spec.optimizer, weight, gradient,
                {kind: old[name, kind] for kind in spec.states(name)}, scalars,
                l2=spec.l2 and name in spec.penalised, norm_axes=dict(spec.norm_axes).get(name, ()),
                is_transposed=bool(dict(spec.preconditioned).get(name)),
            )  # fmt: skip
            new.update({(name, kind): value for kind, value in states.items()})
            if name in sums:
                is_last = op.Greater(numbers[IS_LAST], 0.0)
                new[name, GRADIENT_SUM] = op.Where(is_last, op.CastLike(0.0, weight), sums[name])
        _update_statistics(op, graph, numbers, layers, spec, old, new)
        if scale is not None and is_finite is not None:
            new = _unless_skipped(op, is_finite, old, new, spec)
            old |= scale.tensors
            ends = op.Greater(numbers[IS_LAST], 0.0) if spec.accumulates else None
            new |= scale.updated(op, is_finite, ends)
        for key, value in new.items():
            value.name, value.type, value.shape = f"{old[key].name}_new", old[key].type, old[key].shape
    tensors = {key: (str(old[key].name), str(value.name)) for key, value in new.items()}
    return tensors, list(new.values())


def _unless_skipped(
    op: Builder,
    is_finite: ir.Value,
    old: Mapping[tuple[str, str], ir.Value],
    new: Mapping[tuple[str, str], ir.Value],
    spec: StepSpec,
) -> dict[tuple[str, str], ir.Value]:
    """Return the new tensors, or the old ones if the gradients are not finite.

    The sum of gradients ends with the update all the same, and statistics are those of the forward pass.
    """
    kept = dict(new)
    for (name, kind), value in new.items():
        is_statistic = kind == WEIGHT and name in spec.statistics
        if kind != GRADIENT_SUM and not is_statistic:
            kept[name, kind] = op.Where(is_finite, value, old[name, kind])
    return kept


def _update_statistics(
    op: Builder,
    graph: ir.Graph,
    numbers: Mapping[str, ir.Value],
    layers: Sequence[BatchStatistics],
    spec: StepSpec,
    old: Mapping[tuple[str, str], ir.Value],
    new: dict[tuple[str, str], ir.Value],
) -> None:
    """Add the update of the running statistics, and of their averages, to those of the weights."""
    for layer in layers:
        for name, value in layer.updated(op, graph).items():
            new[name, WEIGHT] = value
            if spec.average:
                rate = op.CastLike(numbers[AVERAGE_RATE], value)
                average = old[name, AVERAGE]
                new[name, AVERAGE] = op.Add(average, op.Mul(op.Sub(value, average), rate))


def _add_sums(
    op: Builder, gradients: Mapping[str, ir.Value], old: Mapping[tuple[str, str], ir.Value]
) -> dict[str, ir.Value]:
    """Return the gradients added to those of earlier batches of the same update."""
    sums = {name: op.Add(old[name, GRADIENT_SUM], gradient) for name, gradient in gradients.items()}
    for name, value in sums.items():
        value.type, value.shape = gradients[name].type, gradients[name].shape
    return sums


def _numbers_of(
    op: Builder, weight: str, scalars: Mapping[str, ir.Value], spec: StepSpec
) -> Mapping[str, ir.Value]:
    """Return the numbers of the update of a weight, which is frozen in all batches of it but the last."""
    numbers = spec.numbers_of(weight, scalars)
    if spec.accumulates:
        is_last = scalars[IS_LAST]
        active = op.Mul(numbers[ACTIVE], is_last) if ACTIVE in numbers else is_last
        active.type, active.shape = is_last.type, is_last.shape
        numbers[ACTIVE] = active
    return numbers


def _add_gradients(both: BothPasses, spec: StepSpec) -> tuple[tuple[str, str], ...]:
    """Make the gradients of products outputs; return the names of both."""
    graph = both.model.graph
    names = graph_names(graph)
    with appending(graph) as op:
        # an output has one name, and the gradients of several products may be one tensor
        outputs = {name: op.Identity(both.gradients[name]) for name in spec.products}
    for name, value in outputs.items():
        value.name = unique_name(f"{name}_gradient", names)
        value.type = both.gradients[name].type
        value.shape = ir.Shape([spec.batch_size, fixed_size(value_named(graph, name), 1)])
    graph.outputs.extend(outputs.values())
    return tuple((name, str(value.name)) for name, value in outputs.items())


def _by_name(spec: StepSpec, gradients: Sequence[ir.Value]) -> dict[str, ir.Value]:
    return dict(zip((*spec.weights, *spec.products), gradients, strict=True))


def _keep_as_rows(
    model: ir.Model, spec: StepSpec, tensors: Mapping[tuple[str, str], tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """Declare intercepts and their states as rows where possible; return their keys."""
    values = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
    groups = [
        {values[old]: values[new] for (name, _), (old, new) in tensors.items() if name == weight}
        for weight in spec.weights
    ]
    rows = {value.name for value in keep_as_rows(model.graph, groups)}
    RemoveUnusedNodesPass()(model)
    return frozenset(key for key, (old, _) in tensors.items() if old in rows)


def _add_input(
    graph: ir.Graph, names: set[str], base: str, type_: ir.TypeProtocol | None, shape: ir.Shape | None
) -> ir.Value:
    value = ir.Value(name=unique_name(base, names), type=type_, shape=shape)
    graph.inputs.append(value)
    return value


def _as_type_of(op: Builder, scalars: Mapping[str, ir.Value], weight: ir.Value) -> Mapping[str, ir.Value]:
    if all(scalar.dtype == weight.dtype for scalar in scalars.values()):
        return scalars
    return {name: op.CastLike(scalar, weight) for name, scalar in scalars.items()}
