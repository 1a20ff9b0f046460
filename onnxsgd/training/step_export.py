"""Export of the training step of a fitted estimator to files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnxsgd.engine.export.manifest import GroupState, Training
from onnxsgd.engine.export.raw_weights import with_raw_weights, with_standardised_inputs
from onnxsgd.engine.export.step_file import write_training_step
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.nodes import element_type, shape_of
from onnxsgd.graph.reading.first_layers import first_layers
from onnxsgd.training.coordinates import Coordinates, make_coordinates, share_of_columns
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.state import FitState, missing_starts, output_unit, rate_scales

__all__ = ["export_step"]


def export_step(
    path: str | os.PathLike[str],
    plan: FitPlan,
    state: FitState,
    classes: Iterable[object] | None,
    row_shapes: Mapping[str, tuple[int, ...]],
) -> Path:
    """Write the training step of a plan; see :func:`onnxsgd.engine.export.step_file.write_training_step`.

    The graph includes the frozen part, so that it takes the same features as the estimator. The portable
    engine always makes it: gradients of the other engine run only in its own edition of the runtime.

    Parameters
    ----------
    path : str or path-like
        The file of the graph.
    plan : FitPlan
        The plan of the next updates.
    state : FitState
        The present state.
    classes : iterable of labels or None
        The label of each column of a classifier.
    row_shapes : mapping of str to tuple of int
        The shape of a row of each feature, for graphs that leave sizes open.
    """
    recipe = plan.recipe
    if plan.n_accumulated > 1:
        raise UnsupportedError(
            f"gradient_accumulation_steps={plan.n_accumulated} cannot be exported: a run of the graph is one "
            f"update, of one batch. Set it to 1, and batch_size={plan.n_accumulated * plan.batch_size} for "
            "the same updates."
        )
    spec, tail = replace(plan, engine="portable").step_spec, plan.learner.undivided.split.tail
    # the file is for any runtime: it computes in float32, whose gradients need no scale
    spec = replace(spec, row_shapes=tuple(row_shapes.items()), half=None)
    coordinates = _coordinates(plan, state) if recipe.is_auto else Coordinates((), {})
    # the next update is one of a stream
    is_linear = plan.is_linear(coordinates.layers)
    spec = replace(spec, optimizer=plan.optimizer_of(plan.batch_size, is_linear=is_linear))
    columns = share_of_columns(coordinates.standards, state.moments, is_linear=is_linear)
    eta = plan.rate_of_stream(is_linear, columns) if recipe.is_auto else state.eta
    training = Training(
        schedule=recipe.schedule, strengths=plan.strengths,
        groups=_groups(plan, state), average_from=state.first_averaged(recipe.average_from),
        average_decay=recipe.average_decay,
        classes=None if classes is None else [_plain(label) for label in classes],
        tensors=state.tensors | missing_starts(state, plan), t=state.t, eta=eta,
        input_axes=plan.input_axes,
        output_unit=output_unit(plan, state) if spec.output_weights else 1.0,
        weight_unit=(state.mean_weight or 1.0) if recipe.is_auto else None,
        has_even_batches=recipe.is_auto and not recipe.in_blocks,
        limits=recipe.limits,
    )  # fmt: skip
    if not recipe.is_auto:
        return write_training_step(path, build_step(tail, spec, with_rows=False), spec, training)
    coordinates = replace(coordinates, rate_scales=rate_scales(plan, state, coordinates.layers))
    constants = coordinates.constants(state.tensors)
    standardised = with_standardised_inputs(tail, coordinates.layers, coordinates.standards)
    step = build_step(standardised, coordinates.spec(spec, constants), with_rows=False)
    step = with_raw_weights(step, coordinates.layers, coordinates.standards, constants)
    return write_training_step(path, step, spec, training)


def _groups(plan: FitPlan, state: FitState) -> tuple[GroupState, ...]:
    """Return the numbers of the groups; refuse weights that begin to learn in a later epoch."""
    groups, next_epoch = [], len(state.loss_curve) + 1
    for group in plan.groups:
        factor, first = group.multiplier.factor, group.multiplier.from_epoch
        if next_epoch < first and factor > 0:
            raise UnsupportedError(
                f"The training step cannot be exported in epoch {next_epoch}: {list(group.weights)} learn "
                f"from epoch {first} on, and the file counts updates, not epochs. Export it from that epoch "
                "on, or with other learning_rate_multipliers."
            )
        missed = state.missed.get(group.weights[0], 0) if group.weights else 0
        total = next((state.l1_totals.get(name, 0.0) for name in plan.penalised(group)), 0.0)
        groups.append(GroupState(group.penalty, factor, state.slots_from + missed, total))
    return tuple(groups)


def _coordinates(plan: FitPlan, state: FitState) -> Coordinates:
    """Return the coordinates of the present moments."""
    known = [parts.split.tail for parts in (plan.learner.divided, plan.learner.undivided)]
    for tail in known:
        layers = first_layers(tail, plan.learner.weights)
        if all(layer.feature in state.moments for layer in layers):
            features = {
                str(value.name): np.empty((0,) * len(shape_of(value)), element_type(value).numpy())
                for value in tail.graph.inputs
                if value.name in {layer.feature for layer in layers}
            }
            return make_coordinates(layers, features, state.moments, state.mean_weight or 1.0)
    return Coordinates((), {})


def _plain(label: object) -> object:
    """Return a label as a JSON value."""
    plain = label.item() if isinstance(label, np.generic) else label
    return plain if isinstance(plain, str | bool | int | float) else str(plain)
