"""The update of one weight: optimizer, penalties, running average; none while it is frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd.graph.nodes import shape_of
from onnxsgd.optimizers import DECAY, L1_STRENGTH, RATE, TINY, BlockAdam

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder
    from onnxsgd.optimizers import Optimizer

__all__ = [
    "ACTIVE", "AVERAGE", "AVERAGE_RATE", "CONSTANT_STATES", "GRADIENT_SUM", "IS_LAST", "L1_DEBT", "L1_TOTAL",
    "MULTIPLIER", "PENALTY_SCALE", "PRECONDITIONER", "RATE_SCALE", "START", "WEIGHT", "average_rate",
    "build_update", "state_names",
]  # fmt: skip

#: The kind of a weight itself, beside the kinds of its states.
WEIGHT = "weight"
#: Tensors kept for a weight beside the optimizer's.
L1_DEBT, AVERAGE = "l1_debt", "average"
#: The factor of the l2 penalty for each column of the data, constant: a weight of standardised data, s times
#: that of the raw data, has 1 / s^2.
PENALTY_SCALE = "penalty_scale"
#: The factor of the rate of a weight, constant: one, or one for each output.
RATE_SCALE = "rate_scale"
#: The symmetric matrix that multiplies the gradient of the coefficients of a linear model, constant.
PRECONDITIONER = "preconditioner"
#: The states that no update changes: the coordinates determine them.
CONSTANT_STATES = (PENALTY_SCALE, RATE_SCALE, PRECONDITIONER)
#: The weight before the first update, which no update changes either: penalties of the distance from it.
START = "start"
#: The sum of the gradients of earlier batches of the same update.
GRADIENT_SUM = "gradient_sum"
#: Numbers of a step beside the optimizer's.
L1_TOTAL, AVERAGE_RATE = "l1_total", "average_rate"
#: Those of weights whose rate has a factor: the factor, for gradients that include the common rate, and 1,
#: or 0 while the weight is frozen.
MULTIPLIER, ACTIVE = "multiplier", "active"
#: Those of the l1 penalty.
_L1_NUMBERS = (L1_TOTAL, L1_STRENGTH)
#: That of an update of several batches: 1 in the last one, whose gradient makes it whole, 0 in the others.
IS_LAST = "is_last"


def average_rate(t: Any, first: int, decay: float | None) -> Any:
    """Return the share of the difference from the weights by which an average moves in updates `t`.

    Averages of the weights of all updates since `first` have ``1 / (t - first + 1)``, exponential ones
    ``1 - decay``; either is the weights themselves up to `first`. A formula without branches: `t` may be an
    array of numbers, or symbolic.
    """
    after = t - first
    if decay is None:
        return 1.0 / np.maximum(1.0, after + 1.0)
    return np.maximum(1.0 - decay, np.minimum(1.0, 1.0 - after))


def state_names(
    optimizer: Optimizer,
    *,
    l1: bool,
    average: bool,
    penalty_scale: bool = False,
    rate_scale: bool = False,
    preconditioner: bool = False,
    start: bool = False,
    accumulates: bool = False,
) -> tuple[str, ...]:
    """Return the names of the tensors kept for a weight, with those that coordinates determine."""
    further = {
        L1_DEBT: l1 and not optimizer.is_proximal, AVERAGE: average,
        PENALTY_SCALE: penalty_scale, RATE_SCALE: rate_scale, PRECONDITIONER: preconditioner, START: start,
        GRADIENT_SUM: accumulates,
    }  # fmt: skip
    return (*optimizer.slots, *(kind for kind, is_kept in further.items() if is_kept))


def build_update(
    op: Builder,
    optimizer: Optimizer,
    weight: ir.Value,
    gradient: ir.Value,
    states: Mapping[str, ir.Value],
    scalars: Mapping[str, ir.Value],
    *,
    l2: bool,
    norm_axes: tuple[int, ...] = (),
    is_transposed: bool = False,
) -> tuple[ir.Value, dict[str, ir.Value]]:
    """Build the new weight and its new states; the names in `states` select the parts of the update.

    With `norm_axes` the l1 penalty is of the norms of groups, which these axes of the weight span. A
    preconditioner multiplies the columns of a gradient, or its rows if it `is_transposed`.
    """
    if norm_axes:
        root = math.sqrt(math.prod(shape_of(weight).numpy()[axis] for axis in norm_axes))
        scalars = {name: op.Mul(v, root) if name in _L1_NUMBERS else v for name, v in scalars.items()}
    if RATE_SCALE in states:
        scalars = {**scalars, RATE: op.Mul(scalars[RATE], states[RATE_SCALE])}
    if PENALTY_SCALE in states:
        scalars = _scaled_penalties(op, scalars, states[PENALTY_SCALE])
    # penalties shrink the weight itself, or its distance from the first weight: updates are the same wherever
    # weights are counted from
    start, given = states.get(START), weight
    if MULTIPLIER in scalars:
        gradient = op.Mul(gradient, scalars[MULTIPLIER])
    weight = weight if start is None else op.Sub(weight, start)
    slots = tuple(states[name] for name in optimizer.slots)
    if PRECONDITIONER in states and isinstance(optimizer, BlockAdam):
        # the penalty is a part of the gradient: a step that shrinks coefficients would be another direction
        gradient = op.Add(gradient, op.Mul(weight, scalars[DECAY])) if l2 else gradient
        factors = (gradient, states[PRECONDITIONER])
        direction = op.MatMul(*(factors if is_transposed else factors[::-1]))
        direction.type, direction.shape = weight.type, weight.shape
        weight, new_slots = optimizer.update_along(op, weight, gradient, direction, slots, scalars)
    elif norm_axes and optimizer.is_proximal:
        weight, new_slots = optimizer.update_groups(op, weight, gradient, slots, scalars, l2, norm_axes)
    else:
        weight, new_slots = optimizer.update(op, weight, gradient, slots, scalars, l2)
    new_states = dict(zip(optimizer.slots, new_slots, strict=True))
    if AVERAGE in states:
        present = weight if start is None else op.Add(weight, start)
        present = _unless_frozen(op, scalars, present, given)
        step = op.Mul(op.Sub(present, states[AVERAGE]), scalars[AVERAGE_RATE])
        new_states[AVERAGE] = op.Add(states[AVERAGE], step)
    if L1_DEBT in states:
        weight, new_states[L1_DEBT] = _truncate(op, weight, states[L1_DEBT], scalars[L1_TOTAL], norm_axes)
    weight = weight if start is None else op.Add(weight, start)
    weight = _unless_frozen(op, scalars, weight, given)
    new_states |= {
        kind: _unless_frozen(op, scalars, value, states[kind])
        for kind, value in new_states.items()
        if kind != AVERAGE
    }
    constant_kinds = (kind for kind in (*CONSTANT_STATES, START) if kind in states)
    return weight, new_states | {kind: op.Identity(states[kind]) for kind in constant_kinds}


def _unless_frozen(op: Builder, scalars: Mapping[str, ir.Value], new: ir.Value, old: ir.Value) -> ir.Value:
    """Return the new value of a tensor, or the old one while its weight is frozen."""
    if ACTIVE not in scalars:
        return new
    return op.Where(op.Greater(scalars[ACTIVE], 0.0), new, old)


def _scaled_penalties(
    op: Builder, scalars: Mapping[str, ir.Value], scale: ir.Value
) -> Mapping[str, ir.Value]:
    """Return the numbers of an update with a strength of the penalties for each column."""
    scaled = {DECAY: op.Mul(scalars[DECAY], scale)} if DECAY in scalars else {}
    if L1_STRENGTH in scalars:
        scaled[L1_STRENGTH] = op.Mul(scalars[L1_STRENGTH], op.Sqrt(scale))
    return {**scalars, **scaled}


def _truncate(
    op: Builder, weight: ir.Value, debt: ir.Value, total: ir.Value, axes: tuple[int, ...]
) -> tuple[ir.Value, ir.Value]:
    """Apply the cumulative l1 penalty, which stops weights at exactly zero.

    `total` is the penalty that a weight could have received so far, `debt` the penalty that it received, as a
    negative number for positive weights; each step applies the difference (Tsuruoka, Tsujii,
    Ananiadou, "Stochastic Gradient Descent Training for L1-regularized Log-linear Models with Cumulative
    Penalty", ACL 2009).

    Of a group, the part of ``weight - debt`` within a ball of radius `total` is applied, and stops the
    group at exactly zero. For groups of one element it is the same.
    """
    if axes:
        rest = op.Sub(weight, debt)
        norm = op.Add(op.Sqrt(op.ReduceSumSquare(rest, axes, keepdims=1)), TINY)
        truncated = op.Mul(rest, op.Max(op.Sub(1.0, op.Div(total, norm)), 0.0))
        return truncated, op.Add(debt, op.Sub(truncated, weight))
    zero = op.Mul(total, 0.0)
    lowered = op.Max(op.Sub(weight, op.Add(debt, total)), zero)
    raised = op.Min(op.Add(weight, op.Sub(total, debt)), zero)
    truncated = op.Where(op.Greater(weight, zero), lowered, op.Where(op.Less(weight, zero), raised, weight))
    return truncated, op.Add(debt, op.Sub(truncated, weight))
