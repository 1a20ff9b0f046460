"""The compiled program of a fit: the frozen part, the tail and the training step of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy import sparse

from onnxsgd.data.features import Features, n_rows, take_rows
from onnxsgd.engine.predict import InferenceGraph
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.deferred_losses import can_repeat, is_standard
from onnxsgd.engine.step.scan_epoch import EpochRunner, build_epoch
from onnxsgd.engine.step.single_step import StepRunner, make_buffers
from onnxsgd.engine.step.training_step import CompiledStep, StepSpec, build_step
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.reading.frozen_split import SplitGraph, split_frozen, undivided
from onnxsgd.learner.learner import Learner
from onnxsgd.losses import Loss
from onnxsgd.runtime.session_cache import compiled
from onnxsgd.runtime.sessions import HOST, Device, make_session, resolve_threads, shared
from onnxsgd.training.loop import Recipe, Runners

__all__ = ["Program", "make_program", "step_spec"]

#: The number of steps from which on compiling the loop inside the runtime pays.
_MANY_STEPS = 500
#: The largest stored output of the frozen part for all samples, unless the data are larger still.
_KEPT_BYTES = 256_000_000


@dataclass(frozen=True)
class Program:
    """The compiled parts of a fit.

    Attributes
    ----------
    split : SplitGraph
        The two parts of the graph.
    frozen : dict of InferenceGraph
        The graph of each feature of the tail that the frozen part computes.
    tail : InferenceGraph
        Raw predictions from these features.
    spec : StepSpec
        The training step, for the requested batch size.
    n_threads : int or None
        Threads of a step on the CPU.
    device : Device
        The device.
    """

    split: SplitGraph
    frozen: Mapping[str, InferenceGraph]
    tail: InferenceGraph
    spec: StepSpec
    n_threads: int | None
    device: Device = HOST

    def tail_features(self, features: Features) -> Features:
        """Return the inputs of the tail: the results of the frozen part, computed once for each sample."""
        return {
            name: self.frozen[name].run(features, {}) if name in self.frozen else features[name]
            for name in self.split.features
        }

    def batches(self, features: Features, target: np.ndarray, sample_weight: np.ndarray) -> Batches:
        """Return the training data, cut into batches."""
        # the next power of two, so that calls with few samples, of any number, share some compiled steps
        size = min(self.spec.batch_size, 1 << (len(target) - 1).bit_length())
        target = np.ascontiguousarray(target, self.split.dtype)
        is_mean = self.spec.batch_size > 1
        return Batches(self.tail_features(features), target, sample_weight, size, is_mean)

    def runners(
        self, tensors: Mapping[tuple[str, str], np.ndarray], batches: Batches, epochs: int
    ) -> Runners:
        """Return runners with new buffers; equal steps share one session.

        The loop over batches inside the runtime is compiled where it pays: for dense data and many steps.
        """
        shapes = tuple((name, tuple(array.shape[1:])) for name, array in batches.features.items())
        spec = replace(self.spec, batch_size=batches.batch_size, row_shapes=shapes)
        if self.device.keeps_data:
            return self._resident_runners(spec, tensors, batches, epochs)
        work = 3 * spec.batch_size * sum(array.size for array in tensors.values())
        n_threads = resolve_threads(self.n_threads, work)
        key = (self.tail.key, spec.key, n_threads)

        def build() -> tuple[Any, CompiledStep]:
            step = build_step(self.split.tail, spec)
            return make_session(step.model, n_threads), step

        session, step = compiled.get(key, build, self.tail.nbytes)
        buffers = make_buffers(session, step)
        buffers.load(tensors)
        one = StepRunner(session, step, buffers, batches)
        is_long = epochs * batches.n_batches >= _MANY_STEPS
        if batches.is_sparse or not is_long or not can_repeat(step):
            return Runners(buffers, one)

        def build_loop() -> Any:
            return make_session(build_epoch(step, spec.loss), n_threads)

        loop = compiled.get((*key, "epoch"), build_loop, self.tail.nbytes)
        return Runners(buffers, one, EpochRunner(loop, step, buffers, batches))

    def _resident_runners(
        self, spec: StepSpec, tensors: Mapping[tuple[str, str], np.ndarray], batches: Batches, epochs: int
    ) -> Runners:
        """Return runners on a device with resident data; equal blocks share a session."""
        from onnxsgd.engine.step.cuda_blocks import Block, block_sizes
        from onnxsgd.engine.step.device_loop import ResidentRunner, check_data

        check_data(batches, self.device)
        key = (self.tail.key, spec.key, self.device)
        step = compiled.get((*key, "step"), lambda: build_step(self.split.tail, spec))
        if not is_standard(step):
            raise UnsupportedError(
                f"device={str(self.device)!r} needs a training step of standard operators, and the step of "
                f"the engine {spec.engine!r} has others: use engine='portable', or device='cpu'."
            )
        blocks = {
            size: shared((*key, size), self.device, partial(Block, step, spec.loss, size, self.device))
            for size in block_sizes(step, batches)
        }
        runner = ResidentRunner(blocks, step, batches, self.device, epochs)
        runner.buffers.load(tensors)
        return Runners(runner.buffers, runner)


def make_program(
    learner: Learner,
    recipe: Recipe,
    loss: Loss,
    engine: str,
    n_outputs: int,
    batch_size: int,
    n_threads: int | None,
    features: Features,
    device: Device = HOST,
) -> Program:
    """Return the program of a fit on data like `features`; the training step is not compiled yet.

    The results of the frozen part are stored for all samples if they fit into memory. Otherwise, and for
    sparse data, whose results would be dense, the frozen part is computed in each step.
    """
    is_sparse = any(sparse.issparse(array) for array in features.values())
    parts, frozen = _undivided(learner) if is_sparse else _divided(learner, n_threads, device)
    has_strings = any(value.dtype == ir.DataType.STRING for value in learner.inputs)
    if frozen and not has_strings and not _fits(frozen, features):
        parts, frozen = _undivided(learner)
    _refuse_strings(parts.tail)
    tail = learner.once(
        ("tail", parts.features, n_threads, device),
        lambda: InferenceGraph(parts.tail, learner.score, learner.weights, n_threads, device),
    )
    return Program(
        split=parts,
        frozen=frozen,
        tail=tail,
        spec=step_spec(learner, recipe, loss, engine, n_outputs, batch_size),
        n_threads=n_threads,
        device=device,
    )


def _refuse_strings(tail: ir.Model) -> None:
    """Refuse a graph whose trained part reads strings: batches hold numbers."""
    value = next((value for value in tail.graph.inputs if value.dtype == ir.DataType.STRING), None)
    if value is not None:
        nodes = sorted({use.node.op_type for use in value.uses()})
        raise UnsupportedError(
            f"{value.name!r} holds strings, and its consumer {' and '.join(nodes)} must run in each update: "
            "the rows of its results are not proven to depend on one sample each. Convert the strings to "
            "numbers before the graph."
        )


def _divided(
    learner: Learner, n_threads: int | None, device: Device
) -> tuple[SplitGraph, Mapping[str, InferenceGraph]]:
    """Return the parts of the graph, and the graph of each feature of the tail that is not an input."""
    model = learner.score_model

    def divide() -> tuple[SplitGraph, Mapping[str, InferenceGraph]]:
        parts = split_frozen(model, learner.weights)
        given = {str(value.name) for value in learner.inputs}
        made = [name for name in parts.features if name not in given]
        return parts, {name: InferenceGraph(model, name, (), n_threads, device) for name in made}

    return learner.once(("divided", n_threads, device), divide)


def _undivided(learner: Learner) -> tuple[SplitGraph, Mapping[str, InferenceGraph]]:
    return learner.once("undivided", lambda: undivided(learner.score_model)), {}


def step_spec(
    learner: Learner, recipe: Recipe, loss: Loss, engine: str, n_outputs: int, batch_size: int
) -> StepSpec:
    """Return the specification of a learner's training step."""
    return StepSpec(
        weights=learner.weights, penalised=recipe.penalised, loss=loss, optimizer=recipe.optimizer,
        l1=recipe.penalty.l1 is not None, l2=recipe.penalty.l2 is not None,
        average=recipe.average_from > 0, batch_size=batch_size, n_outputs=n_outputs, engine=engine,
    )  # fmt: skip


def _fits(frozen: Mapping[str, InferenceGraph], features: Features) -> bool:
    """Tell whether the frozen part's results for all samples may be stored, estimated from the first one."""
    first = take_rows(features, slice(0, 1))
    made = n_rows(features) * sum(graph.run(first, {}).nbytes for graph in frozen.values())
    return made <= max(_KEPT_BYTES, sum(array.nbytes for array in features.values()))
