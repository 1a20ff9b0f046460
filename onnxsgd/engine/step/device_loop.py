"""Training with data, weights and losses resident on a device; the host only launches blocks.

Before each epoch the host sends its order, sample weights and scalars; after it the host reads the losses,
and the weights on request. In between, every call is a block of steps that needs nothing from the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd.engine.step.buffers import Tensors, dtype_of
from onnxsgd.engine.step.cuda_blocks import Block, BlockSession, BoundBlock
from onnxsgd.engine.step.mixed_precision import SCALER, SKIPPED
from onnxsgd.engine.step.unrolled import (
    COUNTER,
    LOSSES,
    ROWS,
    UPDATES,
    input_name,
    numbers_of_updates,
    output_name,
)
from onnxsgd.engine.step.update import IS_LAST
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.runtime.cuda import explained
from onnxsgd.runtime.device import Device, hold
from onnxsgd.runtime.editions import load_runtime

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.training_step import CompiledStep

__all__ = ["ResidentBuffers", "ResidentRunner", "check_data"]

#: The largest index of an element that operators of the runtime can address on a GPU.
_LAST_ELEMENT = np.iinfo(np.int32).max


def check_data(batches: Batches, device: Device) -> None:
    """Refuse data that cannot be resident on a device.

    Raises
    ------
    UnsupportedError
        If they are sparse, not numbers, or too many.
    """
    if batches.is_sparse:
        raise UnsupportedError(
            f"device={str(device)!r} takes dense data, and X is a sparse matrix: give X.toarray() if that "
            "fits into memory, or use device='cpu'."
        )
    for name, array in {**batches.features, "y": batches.target}.items():
        if array.dtype.kind not in "biuf":
            raise UnsupportedError(
                f"device={str(device)!r} takes numbers, and {name!r} has elements of type {array.dtype}: let "
                "the frozen part of the graph turn them into numbers, or use device='cpu'."
            )
        size = math.prod(array.shape)
        if size > _LAST_ELEMENT:
            raise UnsupportedError(
                f"device={str(device)!r} takes arrays of up to {_LAST_ELEMENT:,} numbers, and {name!r} has "
                f"{size:,}: train on a part of the data at a time with partial_fit, or use "
                "device='cpu'."
            )


class ResidentBuffers:
    """Weights and states on a device, in two sets; see :class:`onnxsgd.engine.step.buffers.Buffers`.

    Parameters
    ----------
    step : CompiledStep
        The step.
    session : onnxruntime.InferenceSession
        A block of it, which gives shapes and types.
    device : Device
        The device.
    """

    def __init__(self, step: CompiledStep, session: Any, device: Device) -> None:
        inputs = {value.name: value for value in session.get_inputs()}
        like = {key: inputs[input_name(old)] for key, (old, _) in step.tensors.items()}
        self._device = device
        self._zeros = {key: np.zeros(value.shape, dtype_of(value)) for key, value in like.items()}
        self._rows = step.rows
        self.sets = tuple(
            {key: _place(zeros.copy(), device) for key, zeros in self._zeros.items()} for _ in range(2)
        )
        self.current = 0

    def flip(self) -> None:
        """Swap the two sets."""
        self.current = 1 - self.current

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy `tensors` into the present set; missing ones become zero."""
        with hold(self._device):
            for key, value in self.sets[self.current].items():
                zeros = self._zeros[key]
                array = np.asarray(tensors.get(key, zeros), zeros.dtype)
                value.update_inplace(np.ascontiguousarray(array.reshape(zeros.shape)))

    def forget_skipped(self) -> None:
        """Set the count of skipped updates to zero."""
        if (SCALER, SKIPPED) in self._zeros:
            self.sets[self.current][SCALER, SKIPPED].update_inplace(self._zeros[SCALER, SKIPPED])

    @property
    def n_skipped(self) -> int:
        """The number of updates skipped since then."""
        counts = self.sets[self.current].get((SCALER, SKIPPED))
        return 0 if counts is None else int(counts.numpy()[0])

    def snapshot(self) -> Tensors:
        """Return a copy of the weights and of their states."""
        with hold(self._device):
            return {key: self._read(key, value) for key, value in self.sets[self.current].items()}

    def _read(self, key: tuple[str, str], value: Any) -> np.ndarray:
        # a read from a GPU is a copy already
        array = value.numpy() if self._device.is_cuda else value.numpy().copy()
        return array[0] if key in self._rows else array


class ResidentRunner:
    """Training steps on data resident on a device.

    Parameters
    ----------
    blocks : dict of Block
        The blocks by their number of steps, 1 among them.
    step : CompiledStep
        The step inside.
    batches : Batches
        The data, dense; they are copied to the device once.
    device : Device
        The device.
    n_epochs : int
        The largest number of epochs.

    Attributes
    ----------
    buffers : ResidentBuffers
        Weights and states.
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    is_whole : bool
        Whether weights and states are those of `n_done` batches; not where an interrupt found the device at
        work and kept the host from waiting for it.
    n_skipped : int
        Updates of them that were not made, as their gradients were not finite.

    Notes
    -----
    The device works asynchronously, and a running block is not interrupted: an interrupt takes effect between
    two blocks, and all launched blocks are done when :meth:`run` ends.
    """

    def __init__(
        self,
        blocks: Mapping[int, Block],
        step: CompiledStep,
        batches: Batches,
        device: Device,
        n_epochs: int,
    ) -> None:
        check_data(batches, device)
        self._device, self._step = device, step
        self._n_batches = batches.n_batches
        self._sizes = sorted(blocks, reverse=True)
        data = {name: batches.table(name) for name in batches.features}
        data[step.target] = np.ascontiguousarray(batches.target)
        n_bytes = sum(array.nbytes for array in data.values())
        self._contents = (
            f"the data of this fit ({n_bytes:,} bytes) and the tensors of a batch of {batches.batch_size}"
        )
        with hold(device), explained(str(device), self._contents):
            n_calls = dict(self._calls(batches.n_batches))
            sessions = {
                size: BlockSession(blocks[size], device, n_epochs * n_calls.get(size, 0))
                for size in self._sizes
            }
            self.buffers = ResidentBuffers(step, sessions[1].session, device)
            self._plan = _Plan(step, sessions[1].session, batches, device)
            read = {value.name for value in sessions[1].session.get_inputs()}
            self._data = {
                input_name(name): _place(array, device)
                for name, array in data.items()
                if input_name(name) in read
            }
            self._bound = {
                (size, current): self._bind(session, current)
                for size, session in sessions.items()
                for current in range(2)
            }
        self.n_done = self.n_skipped = 0
        self.is_whole = True

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.step.single_step.StepRunner.run`.

        A loss that is not finite does not stop the updates: the host reads it after the last one. A call
        whose updates may be skipped is for one epoch at most.
        """
        self.n_done = self.n_skipped = 0
        n_batches = self._n_batches
        parts = iter([plan]) if len(losses) <= n_batches else _parts(plan, n_batches)
        with hold(self._device), explained(str(self._device), self._contents):
            part, start = next(parts, None), 0
            while part is not None:
                place = slice(start, start + n_batches)
                part, start = self._run_epoch(part, scalars[place], losses[place], parts), place.stop

    def _run_epoch(
        self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray, parts: Iterator[EpochPlan]
    ) -> EpochPlan | None:
        """Make the updates of one epoch at most, for which the inputs on the device have room.

        Return the plan of the next one, which is made while the device works.
        """
        self._plan.send(plan, scalars, self.buffers.current)
        self.buffers.forget_skipped()
        calls = [size for size, n_calls in self._calls(len(losses)) for _ in range(n_calls)]
        n_done, coming = 0, None
        self.is_whole = False
        try:
            for number, (size, following) in enumerate(zip_longest(calls, calls[1:]), start=1):
                if number == len(calls):
                    coming = next(parts, None)
                # a call of another session does not wait for those of this one
                self._bound[size, self.buffers.current].run(wait=following != size)
                self.buffers.flip()
                n_done += size
        finally:
            for size in self._sizes:
                self._bound[size, 0].wait()
            found = self._plan.losses[self.buffers.current].numpy()
            losses[:n_done] = found[:n_done]
            self.n_done += n_done
            self.n_skipped = self.buffers.n_skipped
            self.is_whole = True
        return coming

    def _calls(self, n_batches: int) -> Iterator[tuple[int, int]]:
        """Yield the size of each block, and the number of calls to it."""
        for size in self._sizes:
            n_calls, n_batches = divmod(n_batches, size)
            yield size, n_calls

    def _bind(self, session: BlockSession, current: int) -> BoundBlock:
        """Bind one block to read the set `current` and to write the other one."""
        old, plan = self.buffers.sets, self._plan
        inputs = {
            **self._data, **plan.sent,
            COUNTER: plan.counters[current], LOSSES: plan.losses[current],
            **{input_name(name): old[current][key] for key, (name, _) in self._step.tensors.items()},
        }  # fmt: skip
        after = 1 - current
        outputs = {
            output_name(COUNTER): plan.counters[after], output_name(LOSSES): plan.losses[after],
            **{output_name(name): old[after][key] for key, (name, _) in self._step.tensors.items()},
        }  # fmt: skip
        return BoundBlock(session, inputs, outputs)


class _Plan:
    """The inputs of an epoch on the device, and its losses.

    Parameters
    ----------
    step : CompiledStep
        The step.
    session : onnxruntime.InferenceSession
        A block of it.
    batches : Batches
        The data.
    device : Device
        The device.
    """

    def __init__(self, step: CompiledStep, session: Any, batches: Batches, device: Device) -> None:
        n_batches, n_rows = batches.n_batches, batches.batch_size
        read = {value.name: value for value in session.get_inputs()}
        dtype = dtype_of(read[LOSSES])
        self._rows = np.zeros([n_batches, n_rows], np.int32)
        self._sample_weight = np.zeros([n_batches, n_rows, 1], dtype)
        self._gradient_weight = np.zeros([n_batches, n_rows, 1], dtype)
        self._scalars = [np.zeros(n_batches, dtype) for _ in step.scalars]
        names = list(step.scalars)
        self._of_updates = {names.index(name) for name in numbers_of_updates(step)}
        self._is_last = names.index(IS_LAST) if IS_LAST in names else None
        self._updates = np.zeros(n_batches, np.int64)
        arrays: dict[str, np.ndarray] = {
            ROWS: self._rows,
            UPDATES: self._updates,
            input_name(step.sample_weight): self._sample_weight,
            input_name(step.gradient_weight): self._gradient_weight,
            **dict(zip(map(input_name, step.scalars.values()), self._scalars, strict=True)),
        }
        self._arrays = {name: array for name, array in arrays.items() if name in read}
        #: The plan whose weights are on the device.
        self._weights_of: EpochPlan | None = None
        self._names_of_weights = input_name(step.sample_weight), input_name(step.gradient_weight)
        self.sent = {name: _place(array.copy(), device) for name, array in self._arrays.items()}
        self.counters = [_place(np.zeros(1, np.int64), device) for _ in range(2)]
        self.losses = [_place(np.zeros(n_batches, dtype), device) for _ in range(2)]

    def send(self, plan: EpochPlan, scalars: np.ndarray, current: int) -> None:
        """Copy a plan of at most all batches, and set the counter to zero."""
        present = slice(len(plan.totals))
        self._rows[present] = plan.rows
        known = self._weights_of
        is_known = known is not None and _are_equal(plan.sample_weight, known.sample_weight)
        are_known = is_known and known is not None and np.array_equal(plan.factors, known.factors)
        if not are_known:
            plan.weigh(slice(None), self._sample_weight[present], self._gradient_weight[present])
        self._weights_of = plan
        for array, column in zip(self._scalars, scalars.T, strict=True):
            array[present] = column
        if self._of_updates:
            self._updates[present] = updates = self._updates_of(scalars)
            lasts = np.flatnonzero(np.diff(updates, append=updates[-1] + 1))
            for number in self._of_updates:
                self._scalars[number][: len(lasts)] = scalars[lasts, number]
        sent = {self._names_of_weights[0]} if is_known else set()
        if are_known:
            sent.add(self._names_of_weights[1])
        for name, array in self._arrays.items():
            if name not in sent:
                self.sent[name].update_inplace(array)
        self.counters[current].update_inplace(np.zeros(1, np.int64))

    def _updates_of(self, scalars: np.ndarray) -> np.ndarray:
        """Return the update of each batch, the first being 0."""
        if self._is_last is None:
            return np.arange(len(scalars))
        is_last = scalars[:, self._is_last] > 0
        return np.cumsum(is_last) - is_last


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Tell whether weights are equal: those of several epochs are parts of one array."""
    return one is other or np.array_equal(one, other)


def _parts(plan: EpochPlan, n_batches: int) -> Iterator[EpochPlan]:
    """Cut the plan of several epochs into plans of `n_batches` each."""
    for start in range(0, len(plan.totals), n_batches):
        yield plan.part(slice(start, start + n_batches))


def _place(array: np.ndarray, device: Device) -> Any:
    """Return an array as a tensor on a device; on the CPU it is the array itself."""
    return load_runtime().OrtValue.ortvalue_from_numpy(array, device.kind, device.index)
