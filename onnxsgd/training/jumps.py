"""Jumps of the loss in a stream: the data have changed, or one part of them is noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from onnxsgd.data.row_tables import as_array
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.runtime.events import decided
from onnxsgd.training.start import ENOUGH_ROWS
from onnxsgd.training.state import FitState

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.training.program import Program

__all__ = ["begin_again", "has_changed", "is_lost", "is_noise", "is_watched"]

#: The fewest rows of a part whose target may be noise.
_SOME_ROWS = 8
#: The loss of weights, in units of a constant's, up to which the target of a part is noise to them: weights
#: of other data than these have several times the loss of a constant.
_NO_WORSE = 1.5
#: The loss of parts of a classification, in units of that of scores of zero, above which the weights mislead;
#: that of most of the classes in the last of them; the fewest rows of these parts; and the loss of opposite
#: scores, in units of that of the scores, below which one part is enough. Of 144 streams of 6,000 rows whose
#: classes stay, 4 have begun again, all of which are noise nearly alone.
_MISLED, _MISLED_CLASS, _MISLED_ROWS, _OPPOSITE = 1.2, 0.9, 16, 0.7


def is_watched(program: Program, n_rows: int) -> bool:
    """Tell whether jumps of the loss in parts of so many rows tell that the data have changed.

    The target of a regression, and the classes of a linear classifier, are watched.
    """
    return (_has_target(program) and n_rows >= _SOME_ROWS) or _has_classes(program)


def _has_target(program: Program) -> bool:
    """Tell whether losses have ratios, and a constant's loss has meaning."""
    return program.plan.has_target_units and program.plan.loss_unit is None


def _has_classes(program: Program) -> bool:
    """Tell whether scores are zero where the weights of a linear layer are."""
    plan = program.plan
    return not plan.is_regression and program.is_linear and plan.output_layer.offset is not None


def has_changed(state: FitState, program: Program, batches: Batches) -> bool:
    """Tell whether the target has changed: the loss jumped in the last part, and is as large in this one.

    Parameters
    ----------
    state : FitState
        The state before this part.
    program : Program
        The model.
    batches : Batches
        This part, raw.
    """
    if not _has_target(program) or len(batches.target) < ENOUGH_ROWS:
        return False
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
    if not _has_target(program) or not state.has_jumped:
        return False
    return program.mean_loss(batches, before.weights()) <= _NO_WORSE * program.mean_loss_of_constant(batches)


def is_lost(before: FitState, state: FitState, program: Program, batches: Batches) -> bool:
    """Tell whether the classes of a stream have changed, so that the weights before this part mislead.

    The losses of this part and of those before it, of 16 rows together, exceed that of scores of zero, and so
    does the loss of most classes under the weights before this part: a class that comes alone, or anew, is no
    such change. Labels of one part may be noise: two are needed, unless opposite scores have a small loss.

    Parameters
    ----------
    before, state : FitState
        The state before this part and after it.
    program : Program
        The model.
    batches : Batches
        This part, raw.
    """
    if not _has_classes(program) or not before.t:
        return False
    target, weight = as_array(batches.target), batches.sample_weight
    n_parts = -(-_MISLED_ROWS // len(target))
    losses = state.loss_curve[-max(2, n_parts) :]
    least = _MISLED * program.loss_of_zeros(target)
    if not least > 0.0 or len(losses) < n_parts or min(losses[-n_parts:]) <= least:
        return False
    raw = np.reshape(program.raw_predictions(dict(batches.features), before.weights()), (len(target), -1))
    labels = target[:, 0] if target.shape[1] == 1 else target.argmax(axis=1)
    n_misled = 0
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        loss = program.loss_of_raw(target[rows], raw[rows], weight[rows])
        n_misled += loss > _MISLED_CLASS * program.loss_of_zeros(target)
    if 2 * n_misled <= max(2, raw.shape[1]):
        return False
    if len(losses) > 1 and min(losses) > least:
        return True
    opposite = program.loss_of_raw(target, -raw, weight)
    return opposite < _OPPOSITE * program.loss_of_raw(target, raw, weight)


def begin_again(before: FitState, state: FitState, program: Program) -> None:
    """Put into `state` what it was before a part, with scores of zero and without moments of gradients."""
    for records in (state.loss_curve, state.learning_rates):
        del records[-1:]
    del state.update_norms[len(state.loss_curve) :]
    vars(state).update(vars(before))
    state.forget(keep_data=True)
    for part in program.plan.output_layer.weights:
        key = part.name, WEIGHT
        state.tensors[key] = np.zeros_like(state.tensors[key])
    decided("start", "update %d: the classes have changed, the stream begins anew", state.t)
