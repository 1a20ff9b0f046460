"""The tasks of a fit on shards: functions whose results follow from their arguments alone.

An engine may run them on any worker, and again where a worker is lost. Sessions that a worker keeps between
tasks change no result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from onnxsgd._cached_property import cached_property
from onnxsgd.data.extremes import within
from onnxsgd.data.held_out import hold_out_rows
from onnxsgd.data.moments import Moments, add_moments, quiet_squares
from onnxsgd.data.random_order import shuffled
from onnxsgd.data.row_tables import as_array, column_of
from onnxsgd.data.samples import Samples
from onnxsgd.engine.step.batches import Batches, EpochPlan, Standard
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.divided_step import GRADIENT, of_rows
from onnxsgd.engine.step.dropout_masks import KEYS, draw_keys
from onnxsgd.engine.step.mixed_precision import SKIPPED
from onnxsgd.engine.step.update import CONSTANT_STATES, GRADIENT_SUM, START, WEIGHT
from onnxsgd.learner.learner import Learner
from onnxsgd.losses import Loss
from onnxsgd.runtime.sessions import resolve_threads
from onnxsgd.sharding.changes import Change, GradientWork
from onnxsgd.sharding.pieces import Column, Piece
from onnxsgd.training.coordinates import held_buffers
from onnxsgd.training.fit_plan import FitPlan, Recipe
from onnxsgd.training.program import KnownStep, Program
from onnxsgd.training.state import TARGET, FitState

__all__ = [
    "LocalWork", "Shard", "ShardFit", "Summary", "bulk_of", "gradient_of_rows", "local_updates", "loss_of",
    "read_shard", "score_of", "some_rows_of", "standardised_shard", "summary_of", "target_sum_of",
    "weights_of",
]  # fmt: skip

#: The tensors of a step that no update of a shard changes, or that are none of the state.
_NO_CHANGE = frozenset({*CONSTANT_STATES, START, GRADIENT_SUM, SKIPPED})


class ShardEstimator(Protocol):
    """An estimator, as the tasks know it."""

    _learner: Learner

    def _check_parameters(self) -> Recipe: ...

    def _make_plan(self, recipe: Recipe) -> FitPlan: ...

    def _read_samples(
        self, X: object, y: Column, sample_weight: Column | None, *, resuming: bool, in_parts: bool
    ) -> Samples: ...

    def _counted(self, target: np.ndarray) -> np.ndarray | None: ...

    def _extra_weight(self, target: np.ndarray) -> np.ndarray | None: ...

    def _encode(self, y: np.ndarray, loss: Loss) -> np.ndarray: ...

    def _table(self, raw: np.ndarray) -> np.ndarray: ...

    def _score_part(self, raw: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Any: ...


@dataclass(frozen=True)
class ShardFit:
    """The estimator and the settings that all tasks of a fit share.

    Attributes
    ----------
    estimator : OnnxSGDRegressor or OnnxSGDClassifier
        The estimator with its graph, before the fit.
    in_parts : bool
        Whether the updates are those of ``partial_fit``.
    is_sparse : bool
        Whether features are sparse.
    batch_size : int
        Rows of a batch.
    standards : dict of Standard
        The standardisation of features.
    moments : dict of Moments
        The moments that it follows from.
    weight_unit : float or None
        See :class:`~onnxsgd.engine.step.batches.Batches`.
    has_extremes : bool
        Whether rows far from the others get less weight.
    """

    estimator: ShardEstimator
    in_parts: bool = False
    is_sparse: bool = False
    batch_size: int = 1
    standards: Mapping[str, Standard] = field(default_factory=dict)
    moments: Mapping[str, Moments] = field(default_factory=dict)
    weight_unit: float | None = None
    has_extremes: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields; what follows from them is not pickled."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def program(self) -> Program:
        """The program of the updates, which takes single threads: their number may decide the last bits."""
        recipe = self.estimator._check_parameters()
        plan = self.estimator._make_plan(recipe.for_parts() if self.in_parts else recipe)
        learner = plan.learner
        plan = replace(
            plan, batch_size=self.batch_size, n_accumulated=1, is_exact=True, n_threads=plan.n_threads or 1
        )
        return Program(plan, learner.sparse_parts() if self.is_sparse else learner.divided)


@dataclass(frozen=True)
class Shard:
    """Some rows of the data.

    Attributes
    ----------
    batches : Batches or None
        Features of the trained part of the graph, encoded targets and weights; None: no row counts.
    target : ndarray or None
        The targets as they were read, for scores.
    """

    batches: Batches | None
    target: np.ndarray | None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without copies of the data that the batches keep."""
        batches = None if self.batches is None else replace(self.batches)
        return {"batches": batches, "target": self.target}

    def __sizeof__(self) -> int:
        """Return the bytes of the data: an engine that sees none copies shards between workers freely."""
        tables = [] if self.batches is None else [*self.batches.features.values(), self.target]
        return object.__sizeof__(self) + sum(map(_nbytes, tables))

    @cached_property
    def _last_order(self) -> dict[tuple[int, ...], np.ndarray]:
        """The order of the rows in one epoch, by its seed."""
        return {}

    def order(self, seed: tuple[int, ...] | None) -> np.ndarray | None:
        """Return the order of the rows in an epoch, None if it is that of the data.

        The object keeps that of the last epoch for its rounds.
        """
        if seed is None:
            return None
        order = self._last_order.get(seed)
        if order is None:
            self._last_order.clear()
            order = shuffled((1, len(self.rows.target)), np.random.RandomState(list(seed)))[0]
            self._last_order[seed] = order
        return order

    @property
    def rows(self) -> Batches:
        """The batches of a shard with rows."""
        if self.batches is None:
            raise ValueError("The shard has no rows.")
        return self.batches


def _nbytes(table: Any) -> int:
    """Return the bytes of a dense or sparse table."""
    arrays = (table.data, table.indices, table.indptr) if sparse.issparse(table) else (table,)
    return sum(int(array.nbytes) for array in arrays)


@dataclass(frozen=True)
class Summary:
    """The sizes and the moments of a shard, for the client.

    Attributes
    ----------
    n_rows : int
        The number of rows that count.
    weight : float
        The sum of their weights.
    even : float or None
        The weight of each row, if all are the same.
    moments : dict of Moments
        The moments of the features that first layers read, and of the target.
    """

    n_rows: int
    weight: float = 0.0
    even: float | None = None
    moments: Mapping[str, Moments] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalWork:
    """The updates of a shard in one round.

    Attributes
    ----------
    batches : slice
        The batches of the epoch.
    numbers : ndarray of shape [n_batches, n_scalars]
        The numbers of their updates.
    rates : ndarray of shape [n_batches]
        Their learning rates.
    seed : tuple of int or None
        Seeds the order of the rows of the epoch; None: that of the data.
    mask_seed : tuple of int
        Seeds the masks of dropout.
    share : float
        The share of the shard in the mean over all.
    """

    batches: slice
    numbers: np.ndarray
    rates: np.ndarray
    seed: tuple[int, ...] | None
    mask_seed: tuple[int, ...]
    share: float


def read_shard(fit: ShardFit, held_out: tuple[float, int] | None, validates: bool, *pieces: Piece) -> Shard:
    """Return the shard of the rows of some pieces ``(X, y, sample_weight)``.

    Parameters
    ----------
    fit : ShardFit
        The fit.
    held_out : (float, int) or None
        The share of the rows that is held out for validation, and the seed that draws them.
    validates : bool
        Whether the rows are those of a validation, not of the training.
    *pieces : tuples
        The data.
    """
    estimator, parts = fit.estimator, list[Samples]()
    for X, y, sample_weight in pieces:
        if len(y) == 0 or (sample_weight is not None and not np.any(np.asarray(sample_weight))):
            continue
        read = estimator._read_samples(X, y, sample_weight, resuming=True, in_parts=True)
        counted = estimator._counted(read.target)
        if counted is None or counted.any():
            parts.append(read)
    samples = Samples.joined(parts) if parts else None
    if samples is not None and held_out is not None:
        samples = _part_of(samples, held_out, validates)
    if samples is not None and not validates:
        extra = estimator._extra_weight(samples.target)
        samples = samples if extra is None else _weighted(samples, extra)
    if samples is None or not len(samples.target):
        return Shard(None, None)
    program = fit.program
    features = program.tail_features(samples.features)
    target = program.typed_target(estimator._encode(samples.target, program.plan.loss), features)
    batches = Batches(
        features, target, samples.weight, fit.batch_size, is_mean=fit.batch_size > 1, in_windows=True
    )
    return Shard(batches, samples.target)


def _part_of(samples: Samples, held_out: tuple[float, int], validates: bool) -> Samples | None:
    """Return the rows to train on, or those that are held out."""
    if len(samples.target) < 2:
        return None if validates else samples
    share, seed = held_out
    rows = hold_out_rows(len(samples.target), share, np.random.RandomState(seed))
    return samples.take(rows[int(validates)])


def _weighted(samples: Samples, factors: np.ndarray) -> Samples:
    """Return samples with their weights multiplied; none of weight zero."""
    return Samples(samples.features, samples.target, samples.weight * factors).without_zeros()


def summary_of(fit: ShardFit, shard: Shard, with_moments: bool) -> Summary:
    """Return the summary of a shard."""
    if shard.batches is None:
        return Summary(0)
    batches = shard.batches
    weight, moments = batches.sample_weight, dict[str, Moments]()
    with quiet_squares():
        add_moments(moments, TARGET, as_array(batches.target), weight)
        for name, axis, _ in fit.program.columns_of_layers if with_moments else ():
            add_moments(moments, name, batches.features[name], weight, axis)
    first = float(weight[0])
    return Summary(
        len(weight), float(weight.sum(dtype=np.float64)),
        None if np.count_nonzero(weight != first) else first,
        moments,
    )  # fmt: skip


def bulk_of(
    fit: ShardFit, shard: Shard, name: str, limits: Mapping[int, tuple[float, float]]
) -> dict[int, tuple[int, Moments]]:
    """Return the number and the moments of the entries of a feature, or of the target, within limits.

    They are those of some columns.
    """
    rows = shard.rows
    table, weight = as_array(rows.target) if name == TARGET else rows.features[name], rows.sample_weight
    found = {}
    for column, of_column in limits.items():
        kept = within(table, column, of_column)
        part = Moments.of(column_of(table, column)[kept, None], weight[kept])
        found[column] = int(np.count_nonzero(kept)), part
    return found


def standardised_shard(fit: ShardFit, shard: Shard) -> Shard:
    """Return the same shard with the batches of the fit, standardised."""
    if shard.batches is None:
        return shard
    batches = replace(
        shard.batches, batch_size=fit.batch_size, is_mean=fit.batch_size > 1, standards=fit.standards,
        weight_unit=fit.weight_unit, is_repeated=not fit.in_parts, is_even=fit.program.divides_evenly,
    )  # fmt: skip
    return replace(shard, batches=batches.with_bounded_rows() if fit.has_extremes else batches)


def weights_of(shard: Shard) -> np.ndarray:
    """Return the weights of the rows of a shard."""
    return np.asarray(shard.rows.sample_weight, np.float64)


def some_rows_of(shard: Shard, n_rows: int) -> Batches:
    """Return at most so many rows of a shard, in even steps."""
    batches = shard.rows
    n_all = len(batches.target)
    rows = np.unique(np.linspace(0, n_all - 1, min(n_all, n_rows)).astype(np.intp))
    return Batches(
        {name: table[rows] for name, table in batches.features.items()},
        as_array(batches.target[rows]), np.array(batches.sample_weight[rows]), 1, is_mean=True,
    )  # fmt: skip


def loss_of(fit: ShardFit, shard: Shard, weights: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the sum of the losses of the rows of a shard, by their weights, and the sum of these."""
    total = float(shard.rows.sample_weight.sum(dtype=np.float64))
    return total * fit.program.mean_loss(shard.rows, weights), total


def target_sum_of(fit: ShardFit, shard: Shard) -> tuple[np.ndarray, float]:
    """Return the sum of the targets of the rows of a shard, by their weights, and the sum of these."""
    weight = np.ascontiguousarray(shard.rows.sample_weight, np.float64)
    return weight @ as_array(shard.rows.target).astype(np.float64), float(weight.sum())


def score_of(fit: ShardFit, shard: Shard, weights: Mapping[str, np.ndarray]) -> Any:
    """Return the part of a shard in the score of weights; see ``_score_part`` of the estimator."""
    batches, estimator = shard.rows, fit.estimator
    raw = estimator._table(fit.program.raw_predictions(dict(batches.features), weights))
    weight = np.ascontiguousarray(batches.sample_weight, np.float64)
    return estimator._score_part(raw, np.asarray(shard.target), weight)


def gradient_of_rows(
    fit: ShardFit, shard: Shard, weights: Mapping[str, np.ndarray], work: GradientWork
) -> Change:
    """Return the part of the rows of a shard in the gradient of a batch."""
    program, batches, size = fit.program, shard.rows, work.most_rows
    shapes = tuple((name, tuple(array.shape[1:])) for name, array in batches.features.items())
    spec = replace(of_rows(program.plan.step_spec, size), row_shapes=shapes)
    idle = program.compiled(KnownStep(spec), resolve_threads(program.plan.n_threads, 0))
    tensors = {(name, WEIGHT): array for name, array in weights.items()}
    runners = idle.take(batches, tensors)
    runners.buffers.load(tensors)
    n_calls = -(-len(work.rows) // size)
    rows, weight = np.zeros(n_calls * size, np.intp), np.zeros(n_calls * size, batches.target.dtype)
    rows[: len(work.rows)], weight[: len(work.rows)] = work.rows, work.weight
    factors = np.full(n_calls, work.factor)
    plan = EpochPlan(rows.reshape(-1, size), weight.reshape(-1, size, 1), factors, np.ones(n_calls))
    numbers = np.zeros((n_calls, len(spec.scalars)))
    _put_keys(numbers, spec.scalars, work.seed)
    losses = np.full(n_calls, np.nan)
    runners.single.run(plan, numbers, losses)
    tensors = {key: array for key, array in runners.buffers.snapshot().items() if key[1] == GRADIENT}
    idle.give_back(runners)
    return Change(tensors, float(losses.sum()), 1.0)


def local_updates(fit: ShardFit, shard: Shard, tensors: Tensors, work: LocalWork) -> Change:
    """Make updates on batches of a shard; return the change of weights and states."""
    program, batches = fit.program, shard.rows
    before = {key: array for key, array in tensors.items() if key[1] not in _NO_CHANGE}
    if work.batches.start == work.batches.stop:
        return Change({key: np.zeros_like(array) for key, array in before.items()}, 0.0, 0.0)
    state = FitState(dict(tensors), 0.0, np.random.RandomState(0), moments=dict(fit.moments))
    runners = program.runners(state, batches, 1)
    buffers = held_buffers(runners.buffers)
    buffers.load(tensors)
    plan = batches.window(shard.order(work.seed), work.batches)
    spec = program.plan.step_spec
    if spec.takes_scaled_gradient:
        plan = plan.descending(work.rates)
    numbers = work.numbers.copy()
    _put_keys(numbers, spec.scalars, work.mask_seed)
    losses = np.full(len(numbers), np.nan)
    runners.fastest.run(plan, numbers, losses)
    after = buffers.snapshot()
    with np.errstate(invalid="ignore", over="ignore"):
        change = {key: work.share * (after[key] - array) for key, array in before.items()}
    if runners.give_back is not None:
        runners.give_back()
    change = {key: array.astype(before[key].dtype) for key, array in change.items()}
    return Change(change, plan.total * float(np.add.reduce(losses * plan.totals)), plan.total)


def _put_keys(numbers: np.ndarray, scalars: Sequence[str], seed: tuple[int, ...]) -> None:
    """Put the keys of the masks of dropout into the numbers of updates, if they have any."""
    if KEYS[0] in scalars:
        for name, drawn in draw_keys(np.random.RandomState(list(seed)), len(numbers)).items():
            numbers[:, list(scalars).index(name)] = drawn
