"""Training steps whose loss Python computes: the gradient is given in the place of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from onnxsgd._library_errors import run_error
from onnxsgd.engine.step.single_step import StepRunner
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.losses import FromCallable, Loss
from onnxsgd.runtime.stages import stage

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.buffers import Buffers
    from onnxsgd.engine.step.training_step import CompiledStep

__all__ = ["CallableRunner", "GivenGradient", "build_forward"]


@dataclass(frozen=True)
class GivenGradient(Loss):
    """The loss of a step whose input `y_true` holds the gradient by the raw predictions."""

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        """Build a value with this gradient; the runner has the loss itself."""
        return op.Mul(y_true, raw_prediction)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        """Build the given gradient."""
        return op.Identity(y_true)


@stage("compile").of
def build_forward(step: CompiledStep) -> bytes:
    """Return the graph of the raw predictions of a step, from its features and weights."""
    model = cut_at(to_ir(onnx.load_from_string(step.model)), step.raw_prediction)
    return bytes(to_proto(model).SerializeToString())


class CallableRunner(StepRunner):
    """A training step with calls of Python between forward and backward pass.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of ``step.model``, whose loss is :class:`GivenGradient`.
    forward : onnxruntime.InferenceSession
        The session of :func:`build_forward`.
    step, buffers, batches : objects
        As in :class:`StepRunner`.
    loss : FromCallable
        The loss.
    """

    def __init__(
        self,
        session: Any,
        forward: Any,
        step: CompiledStep,
        buffers: Buffers,
        batches: Batches,
        loss: FromCallable,
    ) -> None:
        super().__init__(session, step, buffers, batches)
        self._forward, self._function = forward, loss
        self._read = {value.name for value in forward.get_inputs()}

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch, until a loss is not finite; see :class:`StepRunner`."""
        self.buffers.restart()
        for number, rows in enumerate(plan.rows):
            self.batches.fill(rows, self._features, self._target)
            plan.weigh(number, self._sample_weight, self._gradient_weight)
            self._scalars[...] = scalars[number]
            loss = losses[number] = self._put_gradient()
            if not math.isfinite(loss):
                # done, with an infinite loss: the caller restores the weights before
                self.buffers.skip()
                break
            try:
                self._session.run_with_iobinding(self._bindings[self.buffers.current])
            except Exception as error:
                raise run_error(error) from error
            self.buffers.flip()

    def _put_gradient(self) -> float:
        """Replace the target of the batch by the gradient; return the loss."""
        raw = self._raw_predictions()
        # rows that fill a batch up have no weight
        share = self._sample_weight[:, 0]
        rows = share > 0
        losses, gradient = self._function.evaluate(self._target[rows], raw[rows])
        self._target[...] = 0
        self._target[rows] = gradient
        with np.errstate(invalid="ignore", over="ignore"):
            return float((losses * share[rows]).sum())

    def _raw_predictions(self) -> np.ndarray:
        step, present = self._step, self.buffers.sets[self.buffers.current]
        given = {step.tensors[key][0]: array for key, array in present.items() if key in step.tensors}
        # masks of dropout follow from numbers of the update, statistics of a batch from weights of its rows
        numbers = {name: self._scalars[index : index + 1] for index, name in enumerate(step.scalars.values())}
        feeds = {**self._features, step.sample_weight: self._sample_weight, **numbers, **given}
        shaped = {name: feeds[name].reshape(step.inputs[name][1]) for name in self._read}
        try:
            raw: np.ndarray = self._forward.run(None, shaped)[0]
        except Exception as error:
            raise run_error(error) from error
        return raw.reshape(self._target.shape)
