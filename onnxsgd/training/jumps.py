"""Jumps of the loss in a stream: the data have changed, or one part of them is noise, or in other units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from onnxsgd.data.row_tables import as_array
from onnxsgd.engine.step.update import AVERAGE, WEIGHT
from onnxsgd.runtime.events import decided
from onnxsgd.training.start import ENOUGH_ROWS
from onnxsgd.training.state import SOME_ROWS, TARGET, FitState

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.training.program import Program

__all__ = ["is_left_out", "renew"]

#: The loss of weights, in units of a constant's, up to which the target of a part is noise to them: weights
#: of other data than these have several times the loss of a constant.
_NO_WORSE = 1.5
#: The same up to which weights tell a part of a target that depends on columns that begin to vary.
_TELLS = 0.75
#: The rows of calls of few rows that show together that the data have changed, the growth of their losses,
#: and the calls before, in multiples of these. ``benchmarks/streams.py``, calls of 1, 8 and 20 rows: R2 of
#: streams with a sudden change is 0.82, 0.85 and 0.85 in place of 0.80, 0.79 and 0.79, with a jump of the
#: level 0.96, 0.95 and 0.94 in place of 0.96, 0.81 and 0.81.
_JUDGED_ROWS, _JUMP, _EARLIER = 64, 10.0, 4
#: The parts of a stream of which the best one is known, and the growth of the loss since then to be examined.
_DOUBTED_SINCE, _DOUBTED = 16, 1.5
#: Weights mislead if the losses of parts of so many rows, this one among them, are so many times that of
#: scores of zero, and if at least this share of the samples, in most classes, has a larger loss than with
#: these. Of 144 streams of 6,000 rows whose classes stay, 5 begin anew, all of them nearly noise alone.
_MISLED_ROWS, _MISLED, _MISLED_SHARE = 16, 1.2, 0.4
#: The least share of either of two classes in a part that tells whether one of them is misled, which is
#: enough there. 8,000 rows, one of eight columns 100 and 1,000 times as large in the second half, calls of 50
#: and 400, three draws: the accuracy of the last 2,000 is 0.94 to 0.97; 0.50 to 0.59 in half of them where
#: both classes are to be misled.
_BOTH_CLASSES = 0.2
#: The rows of the parts before this one that mislead then too: more than a burst of rows in another place.
_LASTING_ROWS = 128


def renew(state: FitState, program: Program, batches: Batches) -> None:
    """Let a stream begin anew, before it learns a part, if the data have changed.

    The weights of a regression are kept, and judged later; those of a linear classifier become zeros, and so
    do those of a linear regression in calls of fewer than 32 rows, which cannot be judged by one call.

    Parameters
    ----------
    state : FitState
        The state before this part, which may change.
    program : Program
        The model.
    batches : Batches
        This part, raw.
    """
    if program.has_ratios and len(batches.target) < ENOUGH_ROWS:
        if program.is_linear and _errors_have_changed(state, program, len(batches.target)):
            state.forget()
            _forget_layer(state, program)
            decided("start", "update %d: the data have changed, the stream begins anew", state.t)
    elif program.has_ratios and _target_has_changed(state, program, batches):
        state.forget()
    elif program.has_zero_scores and _classes_have_changed(state, program, batches):
        state.forget(keep_data=True)
        _forget_layer(state, program)
        decided("start", "update %d: the classes have changed, the stream begins anew", state.t)


def _forget_layer(state: FitState, program: Program) -> None:
    """Let the weights of the last layer be zeros."""
    layer = {part.name for part in program.plan.output_layer.weights}
    for (name, kind), array in state.tensors.items():
        if name in layer and kind in (WEIGHT, AVERAGE):
            state.tensors[name, kind] = np.zeros_like(array)


def _errors_have_changed(state: FitState, program: Program, n_rows: int) -> bool:
    """Tell whether the losses of the last calls of few rows exceed those before, and that of a constant.

    They are the median of calls of 64 rows together, the mean of four times as many before, and the loss of a
    residual of one deviation of the target.
    """
    n_calls, curve = -(-_JUDGED_ROWS // n_rows), state.loss_curve
    earlier = curve[-(_EARLIER + 1) * n_calls : -n_calls]
    if len(earlier) < _EARLIER * n_calls:
        return False
    least = _JUMP * sum(earlier) / len(earlier)
    # nearly all calls end here
    if not curve[-1] > least:
        return False
    middle, known = sorted(curve[-n_calls:])[n_calls // 2], state.moments.get(TARGET)
    if known is None or not middle > least:
        return False
    dtype = program.parts.split.dtype
    mean, deviation = known.centre[None], known.deviation(dtype)[None]
    of_constant = program.sample_losses((mean + deviation).astype(dtype), mean.astype(dtype))[0]
    return bool(middle > _NO_WORSE * of_constant)


def _target_has_changed(state: FitState, program: Program, batches: Batches) -> bool:
    """Tell whether the loss jumped in the last part, and is as large in this one."""
    return state.has_jumped and state.is_jump(program.mean_loss(batches, state.weights()))


def _classes_have_changed(state: FitState, program: Program, batches: Batches) -> bool:
    """Tell whether the weights mislead in the last parts, of several rows, and for most classes of this one.

    A class that comes alone, or anew, is no such change, nor are some extreme rows, or noise in one part. Of
    two classes one is enough, where a part has both in 32 rows or more, after parts of 128 that mislead.
    """
    n_rows, curve = len(batches.target), state.loss_curve
    least = min(curve[-max(1, -(-_MISLED_ROWS // n_rows) - 1) :], default=0.0)
    if least <= _DOUBTED * min(curve[-_DOUBTED_SINCE:], default=0.0):
        return False
    target, weight = as_array(batches.target), batches.sample_weight
    raw = np.reshape(program.raw_predictions(dict(batches.features), state.weights()), (n_rows, -1))
    zero_losses = program.sample_losses(target, np.zeros_like(raw))
    loss_of_zeros = float(np.average(zero_losses, weights=weight))
    if not loss_of_zeros > 0.0 or least <= _MISLED * loss_of_zeros:
        return False
    misled = weight * (program.sample_losses(target, raw) > zero_losses)
    labels = target[:, 0] if target.shape[1] == 1 else target.argmax(axis=1)
    of_classes = [labels == label for label in np.unique(labels)]
    n_misled = sum(misled[rows].sum() >= _MISLED_SHARE * weight[rows].sum() for rows in of_classes)
    if raw.shape[1] == 1 and n_rows >= ENOUGH_ROWS and len(of_classes) == 2:
        # a column in another unit outweighs all others: its scores have one sign, and mislead one class
        fewest = min(np.count_nonzero(rows) for rows in of_classes)
        lasts = min(curve[-_LASTING_ROWS // n_rows :]) > _MISLED * loss_of_zeros
        if n_misled and lasts and fewest >= _BOTH_CLASSES * n_rows:
            return True
    return bool(2 * n_misled > max(2, raw.shape[1]))


def is_left_out(before: FitState, state: FitState, program: Program, batches: Batches) -> bool:
    """Tell whether a part is left out.

    Cases: training diverged at all rates, and no update is left; where losses have ratios and the loss
    jumped, a loss above all so far, as that of rows in other units, of which a second part with as large a
    loss is learned; and targets that are noise, which the weights before predict no worse than a constant. If
    the data have changed instead, the next part tells, before it is learned. Columns that were constant
    before this part, and vary in it, explain a jump where the weights before predict the target better than a
    constant: the part is learned then.

    Parameters
    ----------
    before, state : FitState
        The state before this part and after it.
    program : Program
        The model.
    batches : Batches
        This part.
    """
    curve = state.loss_curve
    if state.t == before.t and state.learning_rates[-1] == 0.0:
        # updates that are skipped in 16 bits have a rate
        return True
    if not (program.has_ratios and len(batches.target) >= SOME_ROWS and state.has_jumped):
        return False
    loss, of_constant = program.mean_loss(batches, before.weights()), program.mean_loss_of_constant(batches)
    columns = [(known, state.moments[name]) for name, known in before.moments.items() if name != TARGET]
    begin = any(known.begins_to_vary(later) for known, later in columns)
    if begin and loss <= _TELLS * of_constant:
        return False
    return curve[-1] > max(curve[:-1]) or loss <= _NO_WORSE * of_constant
