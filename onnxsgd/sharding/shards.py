"""The shards of a fit as its client knows them, and numbers that tasks compute over all of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from onnxsgd._records import record
from onnxsgd.data.extremes import are_few, bulk_limits
from onnxsgd.data.features import Features
from onnxsgd.data.moments import Moments
from onnxsgd.data.row_tables import evenly
from onnxsgd.data.samples import Samples
from onnxsgd.engine.step.batches import Batches
from onnxsgd.sharding.executor import Executor, Handle
from onnxsgd.sharding.shard_tasks import (
    Summary,
    bulk_of,
    loss_of,
    score_of,
    some_rows_of,
    target_sum_of,
    weights_of,
)
from onnxsgd.training.layer_balance import RectifiedLayers
from onnxsgd.training.program import Program
from onnxsgd.training.start import NoiseFinder, best_constant
from onnxsgd.training.state import TARGET

__all__ = ["ClientBatches", "ShardedProgram", "Shards", "merged_moments"]

#: The rows that the client gets for the choice of the first weights.
_SOME_ROWS = 2048


@dataclass(frozen=True)
class Shards:
    """The shards of a fit.

    Attributes
    ----------
    executor : Executor
        The engine.
    fit : Handle
        The :class:`~.shard_tasks.ShardFit` of all tasks.
    handles : tuple of Handle
        The shards, those without rows left out.
    summaries : tuple of Summary
        Their sizes and moments.
    has_extremes : bool
        Whether rows far from the others have less weight than in the summaries.
    """

    executor: Executor
    fit: Handle
    handles: tuple[Handle, ...]
    summaries: tuple[Summary, ...]
    has_extremes: bool = False

    @property
    def n_rows(self) -> tuple[int, ...]:
        """The rows of each shard."""
        return tuple(summary.n_rows for summary in self.summaries)

    @property
    def weight(self) -> float:
        """The sum of the weights of all rows."""
        return sum(summary.weight for summary in self.summaries)

    def release(self) -> None:
        """Let the engine forget the shards."""
        self.executor.release([*self.handles, self.fit])

    def of_each(self, function: Callable[..., Any], *arguments: object) -> list[Any]:
        """Return the result of a function of the fit and of each shard."""
        executor = self.executor
        sources = [executor.source(argument) for argument in arguments]
        tasks = [executor.submit(function, self.fit, shard, *sources) for shard in self.handles]
        found = executor.results(tasks)
        executor.release([*tasks, *sources])
        return found

    def sample_weight(self) -> np.ndarray:
        """Return the weights of all rows, shard after shard."""
        first = self.summaries[0].even
        if (
            not self.has_extremes
            and first is not None
            and all(summary.even == first for summary in self.summaries)
        ):
            return evenly(first, sum(self.n_rows))
        tasks = [self.executor.submit(weights_of, shard) for shard in self.handles]
        found = np.concatenate(self.executor.results(tasks))
        self.executor.release(tasks)
        return found

    def some_rows(self) -> Batches:
        """Return some rows of each shard."""
        executor, total = self.executor, sum(self.n_rows)
        counts = [max(1, _SOME_ROWS * n // total) for n in self.n_rows]
        tasks = [executor.submit(some_rows_of, *pair) for pair in zip(self.handles, counts, strict=True)]
        parts = executor.results(tasks)
        executor.release(tasks)
        some = Samples.joined(
            [Samples(dict(part.features), part.target, part.sample_weight) for part in parts]
        )
        return replace(parts[0], features=some.features, target=some.target, sample_weight=some.weight)

    def mean_of_target(self) -> np.ndarray:
        """Return the mean of the target over all rows, by their present weights."""
        if not self.has_extremes:
            return self.moments(TARGET).mean
        sums, weights = zip(*self.of_each(target_sum_of), strict=True)
        return np.asarray(sum(sums) / sum(weights))

    def moments(self, name: str) -> Moments:
        """Return the moments of a feature, or of the target, over all rows."""
        return reduce(Moments.merged, (summary.moments[name] for summary in self.summaries))

    def moments_of_bulk(self, name: str, some: np.ndarray, least_width: float = 0.0) -> tuple[Moments, bool]:
        """Return the moments of a table without extreme entries, and whether there are some.

        Parameters
        ----------
        name : str
            The feature, or TARGET.
        some : ndarray
            Some of its rows.
        least_width : float
            The distance of the deciles below which a column has no bulk.
        """
        moments = self.moments(name)
        limits = bulk_limits(some, moments.deviation(), least_width)
        if not limits:
            return moments, False
        parts, kept = self.of_each(bulk_of, name, limits), {}
        for column in limits:
            n_extreme = sum(self.n_rows) - sum(part[column][0] for part in parts)
            if n_extreme and are_few(n_extreme, sum(self.n_rows)):
                kept[column] = reduce(Moments.merged, (part[column][1] for part in parts if part[column][0]))
        return moments.with_columns(kept), bool(kept)

    def score_parts(self, weights: Mapping[str, np.ndarray]) -> list[Any]:
        """Return the parts of the shards in the score of weights."""
        return self.of_each(score_of, dict(weights))


def merged_moments(known: Moments | None, part: Moments, *, may_change: bool) -> Moments:
    """Return the moments of earlier rows and of a part; those of the part alone where the scale changed."""
    if known is None or (may_change and part.differs_from(known)):
        return part
    return known.merged(part)


@record
class ClientBatches(Batches):
    """The batches of all shards without their data: targets are placeholders.

    Attributes
    ----------
    few : Batches or None
        Some rows of the data.
    """

    few: Batches | None = field(default=None)

    def some(self) -> Batches:
        """Return some rows of the data."""
        if self.few is None:
            raise ValueError("These batches have no rows of the data.")
        return self.few


@dataclass(frozen=True)
class ShardedProgram:
    """The trained graph, whose sums over all rows tasks compute.

    Attributes
    ----------
    program : Program
        The graph.
    shards : Shards
        The shards.
    """

    program: Program
    shards: Shards

    @property
    def is_linear(self) -> bool:
        """True if the last layer is also a first one."""
        return self.program.is_linear

    @property
    def rectified_layers(self) -> RectifiedLayers:
        """The layers with rectified values between them."""
        return self.program.rectified_layers

    def raw_predictions(self, features: Features, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return raw predictions of rows that the client has."""
        return self.program.raw_predictions(features, weights)

    def sample_losses(self, target: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the loss of each row that the client has."""
        return self.program.sample_losses(target, raw)

    def surprise(self, batches: Batches) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the loss of each row that the client has, less the one that a right model has."""
        return self.program.surprise(batches)

    def mean_loss(self, batches: Batches, weights: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss of all rows."""
        parts = self.shards.of_each(loss_of, dict(weights))
        return sum(loss for loss, _ in parts) / sum(weight for _, weight in parts)

    def mean_loss_without_knowledge(self, batches: Batches, weights: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss, without knowledge of the features, of rows that the client has."""
        return self.program.mean_loss_without_knowledge(batches, weights)

    def noise(self, batches: Batches, some: Batches) -> NoiseFinder | None:
        """Return the noise that the model could fit, where the client has all rows."""
        return self.program.noise(batches, some)

    def best_constant(self, batches: Batches, unit: np.ndarray | None = None) -> np.ndarray:
        """Return the raw predictions of the best constant, zeros if unknown."""
        if not self.program.knows_constant:
            return np.zeros(1)
        some, shards = batches.some(), self.shards
        return best_constant(
            self.program.plan.loss,
            some.target,
            some.sample_weight,
            shards.mean_of_target(),
            sum(shards.n_rows),
            unit,
        )
