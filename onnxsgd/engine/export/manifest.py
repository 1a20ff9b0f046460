"""The manifest of an exported training step: the meaning of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxsgd.engine.export.formulas import Formula, read_formula, to_text
from onnxsgd.engine.step.dropout_masks import KEY_RANGE, KEYS
from onnxsgd.engine.step.gradient_limits import DESCENT
from onnxsgd.engine.step.step_spec import OUTPUT_RATE, StepSpec, numbered
from onnxsgd.engine.step.training_step import CompiledStep
from onnxsgd.engine.step.update import ACTIVE, AVERAGE_RATE, L1_TOTAL, MULTIPLIER, average_rate
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.losses import DenseLoss, Loss
from onnxsgd.optimizers import L1_STRENGTH, RATE
from onnxsgd.penalties import Penalty
from onnxsgd.schedules import Schedule

__all__ = [
    "GroupState", "Training", "describe_data", "describe_numbers", "describe_penalties", "describe_tensors",
]  # fmt: skip


@dataclass(frozen=True)
class GroupState:
    """The numbers of a group of weights, of which an exported step makes formulas.

    Attributes
    ----------
    penalty : Penalty
        The strengths of the norms.
    factor : float
        The factor of the rate; 0: the weights are frozen.
    slots_from : int
        Updates before the slots of the optimizer began, and those that the weights did not receive since.
    l1_total : float
        The l1 penalty that each element could have received so far.
    """

    penalty: Penalty
    factor: float
    slots_from: int
    l1_total: float


@dataclass(frozen=True)
class Training:
    """The state that an exported training step continues from, beside its graph.

    Attributes
    ----------
    schedule : Schedule
        The learning rate.
    strengths : tuple of (Penalty, tuple of str)
        The different penalties, each with its weights.
    groups : tuple of GroupState
        The groups of weights that share their numbers; the first one has the common numbers.
    average_from : int
        The update at which averaging starts.
    average_decay : float or None
        The decay of exponential averages; None: all updates count the same.
    classes : list or None
        The labels of a classifier.
    tensors : dict of ndarray
        Weights and their states, under (weight, kind of tensor); missing ones are zero.
    t : int
        Updates made.
    eta : float
        The present learning rate.
    input_axes : dict of int
        The axis of the inputs of each weight whose penalty is of groups.
    output_unit : float
        The factor of the rate of the last layer.
    weight_unit : float or None
        The weight of a sample that counts as one, if batches count by their weights.
    limits : tuple of (str, float)
        The limits of the gradient by name.
    has_even_batches : bool
        Whether the samples of an epoch are divided evenly.
    """

    schedule: Schedule
    strengths: tuple[tuple[Penalty, tuple[str, ...]], ...]
    groups: tuple[GroupState, ...]
    average_from: int
    average_decay: float | None
    classes: list[Any] | None
    tensors: Mapping[tuple[str, str], np.ndarray]
    t: int
    eta: float
    input_axes: Mapping[str, int]
    output_unit: float = 1.0
    weight_unit: float | None = None
    limits: tuple[tuple[str, float], ...] = ()
    has_even_batches: bool = False


def describe_tensors(model: onnx.ModelProto) -> dict[str, dict[str, Any]]:
    """Return type and shape of each input and output; a dynamic size is null."""
    described = {}
    for value in (*model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        described[value.name] = {"dtype": str(dtype), "shape": shape}
    return described


def describe_data(
    step: CompiledStep, spec: StepSpec, training: Training, described: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Describe the inputs that hold a batch, and the loss."""
    normalised = "w" if spec.batch_size == 1 else "w / total"
    scaled = " * -eta" if spec.takes_scaled_gradient else ""
    gradient = {"formula": f"sample_weight{scaled}"}
    if training.weight_unit is not None:
        share = Formula("w") / (Formula("rows") * training.weight_unit)
        gradient = {"formula": to_text(share) + scaled, "rows": "the number of samples whose w is not 0"}
    return {
        "batch_size": spec.batch_size,
        "short_batch": "fill it up with any rows whose w is 0",
        "has_even_batches": training.has_even_batches,
        "even_batches": "as few as can be; the first ones may have one sample more than the others",
        "features": [{"input": name, **described[name]} for name in step.features if name in described],
        "target": {
            "input": step.target,
            **described[step.target],
            **_describe_target(spec.loss, spec.n_outputs, training.classes),
        },
        "sample_weight": {
            "input": step.sample_weight,
            **described[step.sample_weight],
            "formula": normalised,
            "w": "the weight of each sample: 1 unless samples have weights",
            "total": "the sum of w over the batch",
        },
        "gradient_weight": {
            "input": step.gradient_weight,
            **described[step.gradient_weight],
            **gradient,
        },
        "loss": {
            "output": step.loss,
            **described[step.loss],
            "loss": repr(spec.loss),
            "formula": "sum over the batch of sample_weight * loss, before the update",
        },
    }


def _describe_target(loss: Loss, n_outputs: int, classes: list[Any] | None) -> dict[str, Any]:
    if classes is None:
        count = len(loss.score_factors)
        encoding = "the numbers to predict, a column for each"
        if count == 1:
            return {"encoding": encoding}
        return {"encoding": f"{encoding}, all of them `copies` times side by side", "copies": count}
    if isinstance(loss, DenseLoss):
        encoding = "the position among the classes of the label of each element"
        if loss.is_weighted:
            encoding += "; then the weight of each element, by whose mean over the sample its w is multiplied"
        return {"encoding": encoding, "classes": classes}
    if getattr(loss, "soft", False):
        return {"encoding": "the probability of the class of the column", "classes": classes}
    low = 0 if loss.targets == "indicator" else -1
    where = "the second class" if n_outputs == 1 else "the class of the column"
    encoding = f"high where a sample is of {where}, low elsewhere"
    ignored = getattr(loss, "ignore_index", None)
    if ignored is not None:
        encoding += f"; low in all columns where its label is {ignored!r}, with w = 0"
    return {"encoding": encoding, "high": 1, "low": low, "classes": classes}


def describe_numbers(
    step: CompiledStep, spec: StepSpec, training: Training, described: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Describe the numbers of an update, each by earlier entries of the list and by its previous value."""
    t, eta = Formula("t"), Formula("eta")
    formulas: dict[str, str | None] = {"t": to_text(t + 1), "eta": _read_rate(training.schedule)}
    start: dict[str, float] = {"t": training.t, "eta": training.eta}
    for place, group in enumerate(training.groups):
        l1, total = group.penalty.l1 or 0.0, numbered(L1_TOTAL, place)
        of_group = _read_scalars(spec, training, group)
        of_group |= {
            L1_STRENGTH: to_text(l1),
            L1_TOTAL: to_text(Formula(total) + eta * (l1 * group.factor)),
            MULTIPLIER: to_text(group.factor),
            ACTIVE: to_text(float(group.factor > 0)),
        }
        formulas |= {numbered(name, place): formula for name, formula in of_group.items()}
        start[total] = group.l1_total
    formulas |= {
        AVERAGE_RATE: to_text(average_rate(t, training.average_from, training.average_decay)),
        **{name: to_text(limit) for name, limit in training.limits},
        DESCENT: to_text(eta * -1.0),
        **dict.fromkeys(KEYS),
    }
    numbers = []
    for name, formula in formulas.items():
        if name not in ("t", "eta", *step.scalars):
            continue
        number: dict[str, Any] = {"name": name, "formula": formula}
        if name in start:
            number["start"] = start[name]
        if name in KEYS:
            number |= {"random": "a whole number from 0 on, drawn for each update", "below": KEY_RANGE}
        if name == "eta":
            number["schedule"] = repr(training.schedule)
        if name in step.scalars:
            number |= {"input": step.scalars[name], **described[step.scalars[name]]}
        numbers.append(number)
    return numbers


def _read_rate(schedule: Schedule) -> str | None:
    """Return the formula of the learning rate; refuse a schedule that should have one and has none."""
    if not schedule.has_formula:
        return None
    formula = read_formula(schedule.rate, "t", "eta")
    if formula is None:
        raise UnsupportedError(
            f"The training step cannot be exported: the rate of learning_rate={schedule!r} has no formula. "
            "Write it with + - * / // ** and minimum, maximum, floor, sqrt, exp, log, cos of numpy, or set "
            "has_formula = False on the schedule, which leaves the rates to the reader of the manifest."
        )
    return formula


def _read_scalars(spec: StepSpec, training: Training, group: GroupState) -> dict[str, str | None]:
    """Return the formula of each number of the optimizer, None where it has none."""
    factor = group.factor * float(training.schedule.for_batches(np.ones(1), spec.batch_size)[0])
    start, l2 = group.slots_from, group.penalty.l2 or 0.0

    def scalar(name: str) -> Any:
        return lambda t, eta: spec.optimizer.scalars(
            t - start if start else t, eta if factor == 1 else eta * factor, l2
        )[name]

    names = spec.optimizer.scalars(np.ones(1), np.ones(1), l2)
    formulas = {name: read_formula(scalar(name), "t", "eta") for name in names}
    if not spec.output_weights:
        return formulas
    unit = training.output_unit
    return formulas | {OUTPUT_RATE: read_formula(lambda t, eta: scalar(RATE)(t, eta) * unit, "t", "eta")}


def describe_penalties(training: Training) -> list[dict[str, Any]]:
    """Describe the penalties added to the mean loss, each with its weights."""
    return [
        _describe_penalty(penalty, weights, training.input_axes) for penalty, weights in training.strengths
    ]


def _describe_penalty(
    penalty: Penalty, weights: Iterable[str], input_axes: Mapping[str, int]
) -> dict[str, Any]:
    norm = "l1 * sum(abs(d))"
    if penalty.groups:
        norm = "l1 * sum over slices s along the axis in groups of sqrt(size(s)) * sqrt(sum(d[s] * d[s]))"
    return {
        "l1": penalty.l1 or 0.0,
        "l2": penalty.l2 or 0.0,
        "of": list(weights),
        "groups": {name: input_axes[name] for name in weights} if penalty.groups else None,
        "from_start": bool(penalty.from_start),
        "formula": f"{norm} + l2 / 2 * sum(d * d), part of each update, not of the loss",
        "d": "w - start, its state" if penalty.from_start else "w",
    }
