"""Many training steps in one call of the runtime: a graph that scans over batches.

For small models, call overhead of the runtime and of operators on a few numbers dominates a step. The rows
of a block of batches are gathered into one array; the graph runs the step for one slice of it after another,
and then computes the losses of all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd._library_errors import run_error
from onnxsgd.data.row_tables import take_into
from onnxsgd.engine.step.batches import copy_rows
from onnxsgd.engine.step.buffers import Buffers, Tensors, all_finite, bind, dtype_of
from onnxsgd.engine.step.constant_units import add_constant_units
from onnxsgd.engine.step.deferred_losses import add_losses, declare, reduce_to_updates
from onnxsgd.engine.step.early_updates import update_early
from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.engine.step.joined_intercepts import join_intercepts
from onnxsgd.engine.step.met_taps import MetTaps, carry_met_taps
from onnxsgd.engine.step.scaled_weights import MOST_ROWS, is_in_range, scale_weights
from onnxsgd.engine.step.taps_first import TapsFirst, carry_taps_first
from onnxsgd.engine.step.transposed_tables import Transposed, carry_transposed
from onnxsgd.engine.step.weight_decay import decay_of, factor_decay, shares_of_batches
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.nodes import shape_of
from onnxsgd.graph.writing import new_node
from onnxsgd.runtime.stages import stage

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.training_step import CompiledStep
    from onnxsgd.losses import Loss

__all__ = ["EpochRunner", "Loops", "ScaledForm", "build_epoch", "build_scaled_epoch"]

#: The prefix of all names of the step. Names of the outer graph have others.
_PREFIX = "step/"
#: The most bytes of data and scores of a block: larger ones are not kept between fits, and an interrupt takes
#: effect between blocks. ``benchmarks/constants.py``, 10 and 100 features: 0.97 to 1.03 of the time with
#: 250 kB to 16 MB. Epochs of ``benchmarks/network_fits.py``, batches of 10 to 256: 0.97 to 1.01 of the time
#: of 900 kB with 2 MB, 0.96 to 0.99 with 4 MB.
_BLOCK_BYTES = 2_500_000
#: With large weights, the batches of a block that has room for them in this share of the bytes of weights and
#: states: each call of the runtime reads and writes them all. ``benchmarks/networks.py``, resnet18: 0.93 to
#: 0.95 of the time of an update with 32 batches in place of 8.
_BATCHES, _SHARE_OF_WEIGHTS = 32, 0.05
#: The most batches of a block, for batches of few bytes: a bound, not measured.
_MOST_BATCHES = 10_000
#: The least batches of a call with weights in other units: to compile a second loop takes longer than calls
#: with fewer batches save. The largest share of batches whose rows are multiplied one by one, and the largest
#: ratio of the rates of two samples there: bounds, not measured.
_LEAST_SCALED, _MOST_OTHERS, _MOST_RATIO = 256, 0.02, 1e4
#: The most sizes of blocks that stay bound, as parts of a stream may have any: a bound of memory.
_MOST_SIZES = 16


def build_epoch(step: CompiledStep, loss: Loss) -> bytes:
    """Return a graph that runs the step for one batch after another.

    Inputs: weights and states; the other inputs of the step, and the weights of the samples, each stacked
    over batches. A feature may have one more column, of ones.
    Outputs: new weights and states; `losses` [n_batches].

    Parameters
    ----------
    step : CompiledStep
        The step.
    loss : Loss
        Its loss.
    """
    return build_scaled_epoch(step, loss, ())[0]


class ScaledForm(Enum):
    """The form of a loop with weights in other units; see :mod:`~onnxsgd.engine.step.scaled_weights`."""

    #: All samples of a call have the same rate.
    OF_ALL = "of all"
    #: Rows of features with ones, and of targets, that are r times as large have r^2 times the rate.
    OF_ROWS = "of rows"


@stage("compile").of
def build_scaled_epoch(
    step: CompiledStep, loss: Loss, scaled_forms: Collection[ScaledForm]
) -> tuple[bytes, ScaledForm | None]:
    """Return the same in one of these forms, which it has where the step allows it; None: in no such form.

    The inputs then include the rates of all samples, minus and divided by the rows of a batch.
    """
    model = to_ir(onnx.load_from_string(step.model))
    body = model.graph
    targets = next(value for value in body.inputs if value.name == step.target)
    carried = reduce_to_updates(model, step)
    _add_prefix(body)
    scalars = {f"{_PREFIX}{name}" for name in step.scalars.values()}
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(body.opset_imports), name="epoch")
    first = [declare(f"first/{old.name}", old) for old, _ in carried]
    last = [declare(f"last/{old.name}", old) for old, _ in carried]
    carried, taps = carry_met_taps(model, carried)
    forms: dict[int, MetTaps | TapsFirst | Transposed] = {**carry_transposed(body, carried), **taps}
    # last: its tables are not transposed
    forms |= carry_taps_first(model, carried)
    before, after = list(first), list(last)
    for index, of_weight in forms.items():
        with appending(graph) as op:
            before[index] = of_weight.taken(op, first[index])
        after[index] = declare(f"last/{carried[index][0].name}", carried[index][0])
    factor_decay(body, carried, [value for value in body.inputs if value.name in scalars])
    joined = add_constant_units(body, carried, join_intercepts(body, carried))
    update_early(body)
    for table in joined:
        with appending(graph) as op:
            before[table.weight] = table.taken(op, before[table.weight], before[table.intercept])
        after[table.weight] = declare(f"last/{table.table.name}", table.table)
    apart = {table.intercept for table in joined}
    old, new = ([v for index, v in enumerate(values) if index not in apart] for values in (before, after))
    factor = next((v for v in body.inputs if v.name == f"{_PREFIX}{step.gradient_weight}"), None)
    scaled = None
    if scaled_forms and factor is not None:
        pairs = [pair for index, pair in enumerate(carried) if index not in apart]
        scaled = scale_weights(body, pairs, targets, factor, only_rows=ScaledForm.OF_ALL not in scaled_forms)
    sliced = [value for value in body.inputs if value not in dict(carried)]
    given = [decay_of(value) or value for value in sliced]
    stacked = {value: declare(f"all/{value.name}", value, stacked=True) for value in given}
    with appending(graph) as op:
        of_batches = {
            value: stacked[value] if decay is value else shares_of_batches(op, value, stacked[decay])
            for value, decay in zip(sliced, given, strict=True)
        }
    raw_prediction = declare("all/raw_prediction", body.outputs[-1], stacked=True)
    attributes = {"body": body, "num_scan_inputs": len(sliced)}
    further: list[ir.Value] = []
    if scaled is None or factor is None:
        graph.append(new_node("Scan", [*old, *of_batches.values()], [*new, raw_prediction], attributes))
    else:
        further.append(declare(f"all/{factor.name}", factor, stacked=True))
        with appending(graph) as op:
            powers = scaled.powers(op, further[0])
            scaled.scale_sums(op, powers)
            begun = scaled.in_units(op, powers, old)
            targets_in_units = powers.times(op, scaled.of_predictions, stacked[targets])
        rows_in_units = (of_batches | {targets: targets_in_units}).values()
        ended = [declare(f"units/{value.name}", value) for value in new]
        predicted = declare("units/raw_prediction", body.outputs[-1], stacked=True)
        graph.append(new_node("Scan", [*begun, *rows_in_units], [*ended, predicted], attributes))
        with appending(graph) as op:
            made = scaled.put_back(op, powers, old, begun, ended)
            raw = powers.times(op, -scaled.of_predictions, predicted)
        for value, in_place in zip((*new, raw_prediction), (*made, raw), strict=True):
            in_place.name, in_place.type, in_place.shape = value.name, value.type, value.shape
        replaced = dict(zip(new, made, strict=True))
        after = [replaced.get(value, value) for value in after]
        raw_prediction = raw
    for table in joined:
        with appending(graph) as op:
            after[table.weight], after[table.intercept] = table.put_back(op, after[table.weight])
    for index, of_weight in forms.items():
        with appending(graph) as op:
            after[index] = of_weight.put_back(op, first[index], after[index])
    for value, whole in zip(last, after, strict=True):
        whole.name, whole.type, whole.shape = value.name, value.type, value.shape
    # the gradient of a loss need not depend on the target
    target = stacked.setdefault(targets, declare(f"all/{_PREFIX}{step.target}", targets, stacked=True))
    rows = ir.Shape(shape_of(target)[:2])
    weights = next((v for v in stacked if v.name == f"{_PREFIX}{step.sample_weight}"), None)
    if weights is None:
        weight = ir.Value(name=f"all/{_PREFIX}{step.sample_weight}", type=target.type, shape=rows)
        further.append(weight)
    else:
        # the step reads them too, as a column for each batch
        with appending(graph) as op:
            weight = op.Squeeze(stacked[weights], [2])
        weight.type, weight.shape = target.type, rows
    losses = add_losses(graph, loss, target, raw_prediction, weight)
    for node in list(graph):
        widen_scalars(graph, node)
    graph.inputs.extend([*first, *stacked.values(), *further])
    graph.outputs.extend([*after, losses])
    made_model = ir.Model(graph, ir_version=model.ir_version, producer_name="onnxsgd")
    form = None
    if scaled is not None:
        form = ScaledForm.OF_ROWS if scaled.are_of_rows else ScaledForm.OF_ALL
    return to_proto(made_model).SerializeToString(), form


def _add_prefix(graph: ir.Graph) -> None:
    """Prefix the names of all tensors of the step, its subgraphs included: names of the loop are others.

    Outputs that nobody reads have no name, and get none.
    """
    for part in (graph, *graph.subgraphs()):
        made = (value for node in part for value in node.outputs if value.name)
        for value in [*made, *part.inputs, *part.initializers.values()]:
            value.name = f"{_PREFIX}{value.name}"


class Loops(Protocol):
    """The sessions of a loop over batches, each compiled when it is needed."""

    @property
    def loop(self) -> Any:
        """The session of :func:`build_epoch`."""

    def scaled_loop(self, *, is_even: bool) -> tuple[Any, ScaledForm | None]:
        """Return a session for batches whose samples have the same rate, or for others, and its form."""


class EpochRunner:
    """The loop over batches, on the buffers of a :class:`~onnxsgd.engine.step.single_step.StepRunner`.

    Parameters
    ----------
    loops : Loops
        The sessions.
    step : CompiledStep
        The step inside.
    buffers : Buffers
        Weights and states, updated in place.
    batches : Batches
        The data, which may be replaced between calls by others of the same types and shapes of rows.
    block : int or None
        Batches of one call; an interrupt takes effect between calls. None: chosen by the size of a batch.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    #: Updates are written beside the present weights, which an interrupt leaves whole.
    is_whole = True

    def __init__(
        self, loops: Loops, step: CompiledStep, buffers: Buffers, batches: Batches, block: int | None = None
    ) -> None:
        self._loops, self._step = loops, step
        self.batches: Any = batches
        self._buffers = buffers
        self._size = block
        #: The inputs of the sessions, which all have the same.
        self._inputs: list[Any] = []
        #: The features that have a column of ones in the loop, with the shape of a batch without it.
        self._narrow_shapes: dict[str, tuple[int, ...]] = {}
        self._blocks: dict[int, _Block] = {}
        self._arrays: dict[str, np.ndarray] = {}
        #: The rows of features that have a column of ones in the loop, without it.
        self._narrow: dict[str, np.ndarray] = {}
        #: Bytes of the inputs of all calls, which share them.
        self.nbytes = 0

    @property
    def n_done(self) -> int:
        """Batches done by the last call to :meth:`run`."""
        return self._buffers.n_done

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.step.single_step.StepRunner.run`."""
        self._buffers.restart()
        session, form = self._session_for(plan)
        most = self._most_batches(session)
        n_blocks = -(-len(losses) // most)
        # of even sizes: each other one takes bindings of its own
        size = -(-len(losses) // max(1, n_blocks))
        for start in range(0, len(losses), max(1, size)):
            part = slice(start, start + size)
            n_batches = len(losses[part])
            block = self._block(n_batches)
            is_whole = n_batches == len(losses)
            block.fill(self.batches, plan if is_whole else plan.part(part), scalars[part])
            if form is ScaledForm.OF_ROWS:
                block.scale_rows(plan)
            try:
                session.run_with_iobinding(block.binding(session, form, self._buffers))
            except Exception as error:
                raise run_error(error) from error
            finally:
                block.restore_ones()
            losses[part] = block.losses
            self._buffers.flip(n_batches)
            if not all_finite(block.losses):
                break

    def _session_for(self, plan: EpochPlan) -> tuple[Any, ScaledForm | None]:
        """Return the session for some batches, and its form."""
        weight, factors = plan.sample_weight, plan.factors
        if weight.shape[1] > MOST_ROWS or len(weight) < _LEAST_SCALED:
            return self._loops.loop, None
        first, factor = weight.item(0), factors.item(0)
        if not is_in_range(-first * factor):
            return self._loops.loop, None
        if weight.min() == weight.max() and factors.min() == factors.max():
            return self._loops.scaled_loop(is_even=True)
        is_other = np.logical_or.reduce(weight[..., 0] != first, axis=1) | (factors != factor)
        if np.count_nonzero(is_other) > _MOST_OTHERS * len(weight):
            return self._loops.loop, None
        ratios = weight[is_other, :, 0] * (factors[is_other, None] / (first * factor))
        if not ((ratios == 0) | (ratios >= 1 / _MOST_RATIO) & (ratios <= _MOST_RATIO)).all():
            return self._loops.loop, None
        return self._loops.scaled_loop(is_even=False)

    def _most_batches(self, session: Any) -> int:
        """Return the most batches of a call, given one of the sessions."""
        if not self._inputs:
            self._inputs = session.get_inputs()
            self._narrow_shapes = self._find_narrow_shapes()
        if self._size is None:
            batches, step = self.batches, self._step
            dtype, (n_rows, _) = step.inputs[step.target]
            apart = [shape for name, shape in self._narrow_shapes.items() if batches.with_ones(name) is None]
            n_bytes = batches.nbytes + dtype.itemsize * (n_rows * step.n_outputs + sum(map(math.prod, apart)))
            by_weights = min(_BATCHES, int(_SHARE_OF_WEIGHTS * self._buffers.nbytes) // n_bytes)
            self._size = max(1, by_weights, min(_MOST_BATCHES, _BLOCK_BYTES // n_bytes))
        return self._size

    def _find_narrow_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of features that have a column of ones in the loop, without it."""
        shapes = {value.name: value.shape for value in self._inputs}
        given = ((name, self._step.inputs[name][1]) for name in self._step.features)
        wide = {name: shapes.get(f"all/{_PREFIX}{name}", [])[1:] for name in self._step.features}
        return {name: shape for name, shape in given if wide[name] not in ([], [*shape])}

    def _block(self, n_batches: int) -> _Block:
        """Return the block of so many batches; those of a smaller one are the first of the largest one."""
        if n_batches not in self._blocks:
            if n_batches > max(self._blocks, default=0) or len(self._blocks) == _MOST_SIZES:
                self._blocks.clear()
                self._arrays = {
                    value.name: np.zeros([n_batches, *value.shape[1:]], dtype_of(value))
                    for value in self._inputs
                    if value.name.startswith("all/")
                }
                self._narrow.clear()
                self.nbytes = sum(array.nbytes for array in self._arrays.values())
            arrays = {name: array[:n_batches] for name, array in self._arrays.items()}
            self._blocks[n_batches] = _Block(
                self._step, arrays,
                {name: partial(self._narrow_rows, name, n_batches) for name in self._narrow_shapes},
            )  # fmt: skip
        return self._blocks[n_batches]

    def _narrow_rows(self, name: str, n_batches: int) -> np.ndarray:
        """Return an array for the rows of some batches without the ones, which only large data need."""
        if name not in self._narrow:
            wide = self._arrays[f"all/{_PREFIX}{name}"]
            wide[..., -1] = 1
            self._narrow[name] = np.zeros([len(wide), *self._narrow_shapes[name]], wide.dtype)
            self.nbytes += self._narrow[name].nbytes
        return self._narrow[name][:n_batches]


class _Block:
    """The inputs of a call, in arrays that are bound once: all of them for as many batches."""

    def __init__(
        self,
        step: CompiledStep,
        arrays: Mapping[str, np.ndarray],
        narrow: Mapping[str, Callable[[], np.ndarray]],
    ) -> None:
        self._step, self._arrays = step, arrays
        names = {name: f"all/{_PREFIX}{name}" for name in step.features}
        features = {name: self._arrays[given] for name, given in names.items() if given in self._arrays}
        #: The features that have a column of ones in the loop, and functions that return arrays without it.
        self._wide = {name: features.pop(name) for name in narrow}
        self._features, self._narrow = features, narrow
        self._target = self._arrays[f"all/{_PREFIX}{step.target}"]
        self._sample_weight = self._arrays[f"all/{_PREFIX}{step.sample_weight}"]
        self._gradient_weight = self._arrays[f"all/{_PREFIX}{step.gradient_weight}"]
        self._scalars = [self._arrays.get(f"all/{_PREFIX}{name}") for name in step.scalars.values()]
        self.losses = np.zeros(len(self._target), self._target.dtype)
        #: The bindings of each form of the loop, to read either set of the buffers and write the other.
        self._bindings: dict[ScaledForm | None, tuple[Any, Any]] = {}
        #: The batches whose ones have been multiplied.
        self._scaled = np.zeros(0, np.intp)

    def binding(self, session: Any, form: ScaledForm | None, buffers: Buffers) -> Any:
        """Return the binding of a session on the present weights."""
        if form not in self._bindings:
            first, second = buffers.sets
            self._bindings[form] = self._bind(session, first, second), self._bind(session, second, first)
        return self._bindings[form][buffers.current]

    def scale_rows(self, plan: EpochPlan) -> None:
        """Multiply the rows of batches whose samples have other rates than the first one of `plan`."""
        rates = self._gradient_weight.reshape(self._gradient_weight.shape[:2])
        weight, factors = plan.sample_weight[:1, 0, 0], plan.factors[:1]
        first = (weight * factors.astype(weight.dtype))[0]
        if rates.min() == rates.max() == first:
            return
        found = np.flatnonzero(np.logical_or.reduce(rates != first, axis=1))
        ratios = rates[found] / first
        roots = np.sqrt(ratios)
        for array in (*self._features.values(), *self._wide.values(), self._target):
            array[found] *= roots.reshape(*roots.shape, *[1] * (array.ndim - 2))
        # the loop reads the first rate alone
        rates[0, 0] = first
        weights = self._sample_weight.reshape(rates.shape)
        # rows without weight have a loss of zero
        weights[found] /= np.where(ratios > 0, ratios, 1)
        self._scaled = found

    def restore_ones(self) -> None:
        """Make the ones of these batches again: blocks share them, and large data lie beside them."""
        if len(self._scaled):
            for wide in self._wide.values():
                wide[self._scaled, ..., -1] = 1
            self._scaled = self._scaled[:0]

    def fill(self, batches: Batches, plan: EpochPlan, scalars: np.ndarray) -> None:
        """Gather the batches of `plan`, and copy their scalars, [n_batches, n_scalars]."""
        # converted once, not for each array
        rows = np.asarray(plan.rows, np.intp)
        apart: dict[str, np.ndarray] = {}
        for name, wide in self._wide.items():
            if (table := batches.with_ones(name)) is None:
                apart[name] = self._narrow[name]()
            else:
                take_into(table, rows, wide)
        batches.fill(rows, {**self._features, **apart}, self._target)
        for name, narrow in apart.items():
            copy_rows(narrow, self._wide[name])
        plan.weigh(slice(None), self._sample_weight, self._gradient_weight)
        for array, column in zip(self._scalars, scalars.T, strict=True):
            if array is not None:
                array[...] = column

    def _bind(self, session: Any, sources: Tensors, targets: Tensors) -> Any:
        step, binding = self._step, session.io_binding()
        for name, array in self._arrays.items():
            bind(binding.bind_input, name, array, array.shape)
        shapes = {value.name: tuple(value.shape) for value in session.get_inputs()}
        for key, (old, _) in step.tensors.items():
            shape = shapes[f"first/{_PREFIX}{old}"]
            bind(binding.bind_input, f"first/{_PREFIX}{old}", sources[key], shape)
            bind(binding.bind_output, f"last/{_PREFIX}{old}", targets[key], shape)
        bind(binding.bind_output, "losses", self.losses, self.losses.shape)
        return binding
