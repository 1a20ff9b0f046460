"""The runner of a compiled step, one batch per call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd._library_errors import run_error
from onnxsgd.engine.step.buffers import Buffers, Tensors, bind
from onnxsgd.engine.step.update import WEIGHT

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.step_spec import StepSpec
    from onnxsgd.engine.step.training_step import CompiledStep

__all__ = ["StepRunner", "make_buffers"]

#: The most bytes of the features of several batches that are gathered at once: for more, a call of numpy for
#: each batch is no longer a part of the time that counts.
_GATHERED_BYTES = 100_000


def make_buffers(spec: StepSpec, weights: Mapping[str, np.ndarray]) -> Buffers:
    """Return buffers for weights like the given ones, and for their states."""
    tensors = {}
    for name in spec.weights:
        like = tensors[name, WEIGHT] = weights[name]
        for kind in spec.states(name):
            tensors[name, kind] = np.empty(spec.state_shape(name, kind, like.shape), like.dtype)
    for name in spec.statistics:
        tensors |= {(name, kind): weights[name] for kind in spec.kinds_of_statistics}
    return Buffers(tensors)


class StepRunner:
    """A training step, bound once to its buffers.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of ``step.model``.
    step : CompiledStep
        The names of its inputs and outputs.
    buffers : Buffers
        Weights and states, updated in place.
    batches : Batches
        The data.

    Attributes
    ----------
    batches : Batches
        The data, which may be replaced between calls.
    nbytes : int
        Bytes of the features of a batch.
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    #: Updates are written beside the present weights, which an interrupt leaves whole.
    is_whole = True

    def __init__(self, session: Any, step: CompiledStep, buffers: Buffers, batches: Batches) -> None:
        self._session = session
        self._step = step
        self.buffers = buffers
        self._batches: Any = batches
        self._allocate(batches)
        #: Whether features have sizes that the step leaves open.
        self._is_open = any(-1 in step.inputs[name][1] for name in self._features)
        self._target = _zeros(step, step.target)
        self._sample_weight = _zeros(step, step.sample_weight)
        self._gradient_weight = _zeros(step, step.gradient_weight)
        self._scalars = np.zeros(len(step.scalars), self._target.dtype)
        self._loss = np.zeros((1, 1), self._target.dtype)
        self._bind_both()

    @property
    def batches(self) -> Any:
        """The data."""
        return self._batches

    @batches.setter
    def batches(self, batches: Batches | None) -> None:
        self._batches = batches
        if batches is None or not self._is_open:
            return
        shapes = {name: self._shape_of_feature(name, batches) for name in self._features}
        if any(self._features[name].shape != shape for name, shape in shapes.items()):
            self._allocate(batches)
            self._bind_both()

    def _allocate(self, batches: Batches | None) -> None:
        """Make the arrays for the features of a batch."""
        inputs = self._step.inputs
        names = (name for name in self._step.features if name in inputs)
        self._features = {
            name: np.zeros(self._shape_of_feature(name, batches), inputs[name][0]) for name in names
        }
        self.nbytes = sum(array.nbytes for array in self._features.values())
        self._block: _Block | None = None

    def _shape_of_feature(self, name: str, batches: Batches | None) -> tuple[int, ...]:
        """Return the shape of a feature of a batch: sizes that the step leaves open are those of the data."""
        shape = self._step.inputs[name][1]
        if batches is None or -1 not in shape:
            return shape
        return (shape[0], *batches.features[name].shape[1:])

    def _bind_both(self) -> None:
        first, second = self.buffers.sets
        self._bindings = (self._bind(first, second), self._bind(second, first))

    @property
    def n_done(self) -> int:
        """Batches done by the last call to :meth:`run`."""
        return self.buffers.n_done

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch, until a loss is not finite.

        Parameters
        ----------
        plan : EpochPlan
            The order of the data.
        scalars : ndarray of shape [n_batches, n_scalars]
            The numbers of each update, in the order of ``step.scalars``.
        losses : ndarray of shape [n_batches]
            Takes the loss of each batch, before its update.
        """
        self.buffers.restart()
        gathered = self._gathered(plan)
        for number, rows in enumerate(plan.rows):
            if gathered is None:
                self.batches.fill(rows, self._features, self._target)
                plan.weigh(number, self._sample_weight, self._gradient_weight)
            else:
                for buffer, block in gathered:
                    buffer[...] = block[number]
            self._scalars[...] = scalars[number]
            try:
                self._session.run_with_iobinding(self._bindings[self.buffers.current])
            except Exception as error:
                raise run_error(error) from error
            loss = losses[number] = self._loss[0, 0]
            self.buffers.flip()
            if not math.isfinite(loss):
                break

    def _gathered(self, plan: EpochPlan) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Return the data of few small batches, gathered at once, beside the buffers of one; else None."""
        n_batches = len(plan.rows)
        if n_batches == 1 or n_batches * self.nbytes > _GATHERED_BYTES:
            return None
        if not all(type(array) is np.ndarray for array in self.batches.features.values()):
            return None
        block = self._block
        if block is None or block.n_batches != n_batches:
            weights = (self._sample_weight, self._gradient_weight)
            block = self._block = _Block(self._features, self._target, weights, n_batches)
        block.fill(self.batches, plan)
        return block.copies

    def _bind(self, sources: Tensors, targets: Tensors) -> Any:
        step, binding = self._step, self._session.io_binding()
        data = {
            step.target: self._target,
            step.sample_weight: self._sample_weight,
            step.gradient_weight: self._gradient_weight,
            **self._features,
        }
        states = {step.tensors[key][0]: buffer for key, buffer in sources.items()}
        for name, array in {**data, **states}.items():
            bind(
                binding.bind_input,
                name,
                array,
                array.shape if name in self._features else step.inputs[name][1],
            )
        for index, name in enumerate(step.scalars.values()):
            bind(binding.bind_input, name, self._scalars[index : index + 1], ())
        bind(binding.bind_output, step.loss, self._loss, self._loss.shape)
        for key, buffer in targets.items():
            old, new = step.tensors[key]
            bind(binding.bind_output, new, buffer, step.inputs[old][1])
        return binding


class _Block:
    """The data of several batches, gathered at once; later calls take the arrays again.

    Parameters
    ----------
    features : dict of ndarray
        The buffers of a batch.
    target : ndarray
        That of its targets.
    weights : (ndarray, ndarray)
        Those of the weights of its samples, in the loss and in the gradient.
    n_batches : int
        The number of batches.

    Attributes
    ----------
    copies : list of (ndarray, ndarray)
        Each buffer with the array that holds its content for all batches.
    """

    def __init__(
        self,
        features: Mapping[str, np.ndarray],
        target: np.ndarray,
        weights: tuple[np.ndarray, np.ndarray],
        n_batches: int,
    ) -> None:
        self.n_batches = n_batches
        buffers = [*features.values(), target, *weights]
        arrays = [np.empty((n_batches, *buffer.shape), buffer.dtype) for buffer in buffers]
        self.copies = list(zip(buffers, arrays, strict=True))
        self._features = dict(zip(features, arrays, strict=False))
        self._target, self._sample_weight, self._gradient_weight = arrays[-3:]
        #: The weights and factors of the plan that the arrays of weights hold.
        self._weights: tuple[np.ndarray, np.ndarray] | None = None

    def fill(self, batches: Batches, plan: EpochPlan) -> None:
        """Gather the data of a plan."""
        batches.fill(plan.rows, self._features, self._target)
        # most plans of a fit share these
        known = self._weights
        if known is None or known[0] is not plan.sample_weight or known[1] is not plan.factors:
            self._weights = None
            plan.weigh(slice(None), self._sample_weight, self._gradient_weight)
            self._weights = plan.sample_weight, plan.factors


def _zeros(step: CompiledStep, name: str) -> np.ndarray:
    """Return an array of zeros of the type and shape of an input."""
    dtype, shape = step.inputs[name]
    return np.zeros(shape, dtype)
