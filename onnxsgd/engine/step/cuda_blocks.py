"""Blocks of training steps: their size, compilation, CUDA graph recording and buffer binding."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import onnx

from onnxsgd._library_errors import reason
from onnxsgd.engine.step.cuda_graph_operators import is_recordable
from onnxsgd.engine.step.unrolled import build_block
from onnxsgd.graph.model import subgraphs
from onnxsgd.runtime.cuda import Mode, make_step_session, runtime_errors
from onnxsgd.runtime.device import Device
from onnxsgd.runtime.editions import load_runtime
from onnxsgd.runtime.sessions import make_session

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.engine.step.training_step import CompiledStep
    from onnxsgd.losses import Loss

__all__ = ["Block", "BlockSession", "BoundBlock", "block_sizes"]

#: The largest numbers of steps and operators of a block, and of bytes that it may gather.
#: ``benchmarks/gpu.py`` measures updates with these blocks, and without recording.
_MOST_STEPS, _MOST_OPERATORS, _MOST_BYTES = 16, 512, 64_000_000
#: Recording a block takes about three runs of it: with fewer calls than this it is not recorded.
#: ``benchmarks/gpu.py`` has both in its table, "onnxsgd" and "onnxsgd, not recorded".
_WORTH_RECORDING = 16
#: A session keeps its recordings until it is destroyed, so sessions are renewed after this many.
_MOST_RECORDINGS = 64
#: Identifiers of recordings.
_recordings = count(1)


def block_sizes(step: CompiledStep, batches: Batches) -> tuple[int, ...]:
    """Return the numbers of steps of the blocks, in descending order; the last is 1.

    Steps that hold subgraphs are not repeated: the outer values that these read would need renaming.
    """
    nodes = onnx.load_from_string(step.model).graph.node
    if list(subgraphs(nodes)):
        return (1,)
    n_operators = len(nodes)
    most = min(_MOST_STEPS, _MOST_OPERATORS // n_operators, _MOST_BYTES // batches.nbytes, batches.n_batches)
    # a power of two, so that data of other lengths share the blocks
    size = 1 << max(0, most.bit_length() - 1)
    return (size, 1) if size > 1 else (1,)


class Block:
    """Several steps, compiled.

    Parameters
    ----------
    step : CompiledStep
        The step.
    loss : Loss
        Its loss.
    n_steps : int
        Their number.
    device : Device
        Their device.
    """

    def __init__(self, step: CompiledStep, loss: Loss, n_steps: int, device: Device) -> None:
        self._model = build_block(step, loss, n_steps, on_gpu=device.is_cuda)
        self._is_recordable = is_recordable(step.model)
        self._device = device
        self._lock = threading.Lock()
        self._n_recordings = 0
        self._compiled = self._compile()

    def session(self, n_recordings: int) -> tuple[Any, Mode]:
        """Return a session with room for `n_recordings` more recordings, and its mode."""
        with self._lock:
            if self._n_recordings + n_recordings > _MOST_RECORDINGS:
                self._compiled, self._n_recordings = self._compile(), 0
            self._n_recordings += n_recordings
            return self._compiled

    def _compile(self) -> tuple[Any, Mode]:
        if not self._device.is_cuda:
            return make_session(self._model, 1), "stepwise"
        return make_step_session(self._model, self._device.index, recordable=self._is_recordable)


class BlockSession:
    """The session of a block for one fit.

    Parameters
    ----------
    block : Block
        The block.
    device : Device
        Its device.
    n_calls : int
        The largest number of calls in the fit.
    """

    def __init__(self, block: Block, device: Device, n_calls: int) -> None:
        records = device.is_cuda and n_calls >= _WORTH_RECORDING
        self.session, mode = block.session(2 if records else 0)
        self.is_mixed = mode == "mixed"
        self.records = records and mode == "recorded"

    def options(self, *, unrecorded: bool = False) -> tuple[Any, Any]:
        """Return options of runs that wait for the device, and of runs that do not.

        They are for one set of buffers only: a recording holds addresses.
        """
        recording = str(next(_recordings) if self.records and not unrecorded else -1)
        waiting, queueing = (load_runtime().RunOptions() for _ in range(2))
        for options in (waiting, queueing):
            options.add_run_config_entry("gpu_graph_id", recording)
        if not self.is_mixed:
            queueing.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return waiting, queueing


class BoundBlock:
    """A block with its inputs and outputs."""

    def __init__(self, session: BlockSession, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        read = {value.name for value in session.session.get_inputs()}
        self._session = session
        self._waiting, self._queueing = session.options()
        self._records = session.records
        self._inputs = {name: value for name, value in inputs.items() if name in read}
        self._outputs = outputs
        self._binding = self._bind()

    def run(self, *, wait: bool) -> None:
        """Run the steps.

        Without `wait` the host continues at once, which is safe if the next call is one of this session: its
        work is done in order, but other sessions do not wait for it.
        """
        if self._session.is_mixed:
            # inputs read on the host are copied there when they are bound
            self._binding = self._bind()
        try:
            self._call(wait=wait)
        except runtime_errors() as error:
            if not self._records:
                raise
            # the block has written nothing, or results that it writes again
            self._waiting, self._queueing = self._session.options(unrecorded=True)
            self._records = False
            self._call(wait=True)
            warnings.warn(
                f"A block of training steps was not recorded on the GPU, and its operators are launched one "
                f"by one. Work of other threads there ends a recording, that of other libraries too. The "
                f"runtime says: {reason(error)}.",
                stacklevel=2,
            )

    def _call(self, *, wait: bool) -> None:
        options = self._waiting if wait else self._queueing
        self._session.session.run_with_iobinding(self._binding, options)

    def wait(self) -> None:
        """Wait for all work queued on the device."""
        self._binding.synchronize_outputs()

    def _bind(self) -> Any:
        binding = self._session.session.io_binding()
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            binding.bind_ortvalue_output(name, value)
        return binding
