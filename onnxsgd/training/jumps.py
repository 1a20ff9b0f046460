"""Jumps of the loss in a stream of targets: the data have changed, or one part of them is noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxsgd.training.state import FitState

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.training.program import Program

__all__ = ["SOME_ROWS", "has_changed", "is_noise"]

#: The fewest rows of a part that may be noise.
SOME_ROWS = 8
#: The loss of weights, in units of a constant's, up to which the target of a part is noise to them: weights
#: of other data than these have several times the loss of a constant.
_NO_WORSE = 1.5


def has_changed(state: FitState, program: Program, batches: Batches) -> bool:
    """Tell whether the data have changed: the loss jumped in the last part, and is as large in this one.

    Parameters
    ----------
    state : FitState
        The state before this part.
    program : Program
        The model.
    batches : Batches
        This part, raw.
    """
    return state.has_jumped and state.is_jump(program.mean_loss(batches, state.weights()))


def is_noise(before: FitState, state: FitState, program: Program, batches: Batches) -> bool:
    """Tell whether the loss jumped in this part because its targets are noise.

    The weights before it then predict the part no worse than a constant. If its targets grew instead, the
    next part tells, before it is learned.

    Parameters
    ----------
    before, state : FitState
        The state before this part and after it.
    program : Program
        The model.
    batches : Batches
        This part.
    """
    if not state.has_jumped:
        return False
    return program.mean_loss(batches, before.weights()) <= _NO_WORSE * program.mean_loss_of_constant(batches)
