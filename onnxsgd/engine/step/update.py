"""The update of one weight: optimizer, cumulative l1 penalty, running average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder
    from onnxsgd.optimizers import Optimizer

__all__ = ["AVERAGE", "AVERAGE_RATE", "L1_DEBT", "L1_TOTAL", "WEIGHT", "build_update", "state_names"]

#: The kind of a weight itself, beside the kinds of its states.
WEIGHT = "weight"
#: Tensors kept for a weight beside the optimizer's.
L1_DEBT, AVERAGE = "l1_debt", "average"
#: Numbers of a step beside the optimizer's.
L1_TOTAL, AVERAGE_RATE = "l1_total", "average_rate"


def state_names(optimizer: Optimizer, *, l1: bool, average: bool) -> tuple[str, ...]:
    """Return the names of the tensors kept for one weight."""
    return (*optimizer.slots, *((L1_DEBT,) if l1 else ()), *((AVERAGE,) if average else ()))


def build_update(
    op: Builder,
    optimizer: Optimizer,
    weight: ir.Value,
    gradient: ir.Value,
    states: Mapping[str, ir.Value],
    scalars: Mapping[str, ir.Value],
    *,
    l2: bool,
) -> tuple[ir.Value, dict[str, ir.Value]]:
    """Build the new weight and its new states; the names in `states` select the parts of the update."""
    slots = tuple(states[name] for name in optimizer.slots)
    weight, new_slots = optimizer.update(op, weight, gradient, slots, scalars, l2)
    new_states = dict(zip(optimizer.slots, new_slots, strict=True))
    if AVERAGE in states:
        step = op.Mul(op.Sub(weight, states[AVERAGE]), scalars[AVERAGE_RATE])
        new_states[AVERAGE] = op.Add(states[AVERAGE], step)
    if L1_DEBT in states:
        weight, new_states[L1_DEBT] = _truncate(op, weight, states[L1_DEBT], scalars[L1_TOTAL])
    return weight, new_states


def _truncate(op: Builder, weight: ir.Value, debt: ir.Value, total: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Apply the cumulative l1 penalty, which stops weights at exactly zero.

    `total` is the penalty that a weight could have received so far, `debt` the penalty that it received, as a
    negative number for positive weights; each step applies the difference (Tsuruoka, Tsujii,
    Ananiadou, "Stochastic Gradient Descent Training for L1-regularized Log-linear Models with Cumulative
    Penalty", ACL 2009).
    """
    zero = op.Mul(total, 0.0)
    lowered = op.Max(op.Sub(weight, op.Add(debt, total)), zero)
    raised = op.Min(op.Add(weight, op.Sub(total, debt)), zero)
    truncated = op.Where(op.Greater(weight, zero), lowered, op.Where(op.Less(weight, zero), raised, weight))
    return truncated, op.Add(debt, op.Sub(truncated, weight))
