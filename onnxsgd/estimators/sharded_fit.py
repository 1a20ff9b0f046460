"""Training on shards of the data that a distributed engine holds, in place of arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from onnxsgd.data.features import Features
from onnxsgd.data.samples import Samples
from onnxsgd.data.targets import check_sample_weight, present_labels
from onnxsgd.data.text import has_text
from onnxsgd.estimators.base import BaseOnnxSGD
from onnxsgd.estimators.between_calls import SEEN
from onnxsgd.estimators.callbacks import OF_CALLBACKS, with_callbacks
from onnxsgd.estimators.checkpointing import FitCheckpoints, digest_of_data
from onnxsgd.estimators.fit_report import RecordedFit
from onnxsgd.estimators.inner_model import is_fitted
from onnxsgd.estimators.labels import UnknownClassesError
from onnxsgd.estimators.shared import ATTEMPT, in_turn, settled_attributes
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.runtime.events import decided
from onnxsgd.runtime.stages import stage
from onnxsgd.sharding.executor import Executor, Handle
from onnxsgd.sharding.pieces import (
    Piece,
    PieceSummary,
    are_alike,
    balanced_counts,
    cut_evenly,
    dealt_evenly,
    first_rows,
    joined_counts,
    summary_of_pieces,
)
from onnxsgd.sharding.shard_tasks import ShardFit, read_shard, summary_of
from onnxsgd.sharding.sharded_training import check_gradients, make_parts, updates_of_round
from onnxsgd.sharding.shards import ShardedProgram, Shards
from onnxsgd.training.loop import Observer, train
from onnxsgd.training.program import Program
from onnxsgd.training.state import adapt_state

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from onnxsgd.training.checkpoints import Checkpoints
    from onnxsgd.training.fit_plan import FitPlan, Recipe
    from onnxsgd.training.kept_state import KeptState
    from onnxsgd.training.stopping import Stopping

__all__ = ["ShardedData", "ShardedTraining"]

#: The rows from which the graph of the fit is made.
_FIRST_ROWS = 256
#: The seed by which rows are dealt: a fit that is resumed gets the same shards.
_DEAL_SEED = 0
#: The bound of seeds.
_SEEDS = 1 << 31
#: Attributes of an estimator that its copies in tasks lack.
_OF_CLIENT = OF_CALLBACKS | {ATTEMPT, "_record", "_known_plan", SEEN, "_is_clone"}


@dataclass(frozen=True)
class ShardedData:
    """Data that an engine holds.

    Attributes
    ----------
    executor : Executor
        The engine.
    pieces : tuple of Handle
        Its partitions: samples, targets and weights.
    n_shards : int or None
        The number of shards; None: one for each partition with rows.
    sync_every : int or None
        Updates of the largest shard in a round; None: by the size of the fit.
    """

    executor: Executor
    pieces: tuple[Handle, ...]
    n_shards: int | None = None
    sync_every: int | None = None

    def digests(self) -> list[str]:
        """Return what tells the partitions from others: some of their rows."""
        executor = self.executor
        tasks = [executor.submit(_digest_of_piece, piece) for piece in self.pieces]
        found = executor.results(tasks)
        executor.release(tasks)
        return found

    def summaries(self, has_labels: bool) -> list[PieceSummary]:
        """Return the summary of each partition."""
        executor = self.executor
        tasks = [executor.submit(summary_of_pieces, has_labels, piece) for piece in self.pieces]
        found = executor.results(tasks)
        executor.release(tasks)
        return found


@dataclass(frozen=True)
class ShardedSamples:
    """Checked samples in shards.

    Attributes
    ----------
    executor : Executor
        The engine.
    shards : tuple of tuple of Handle
        The pieces of each shard.
    pieces : tuple of Handle
        All pieces that lead to them.
    few : Samples
        Some of the samples.
    sync_every : int or None
        Updates of the largest shard in a round; None: by the size of the fit.
    held_out : (float, int) or None
        The share of rows that is held out, and its seed.
    validates : bool
        Whether these are the samples of a validation.
    """

    executor: Executor
    shards: tuple[tuple[Handle, ...], ...]
    pieces: tuple[Handle, ...]
    few: Samples
    sync_every: int | None = None
    held_out: tuple[float, int] | None = None
    validates: bool = False

    @property
    def target(self) -> np.ndarray:
        """The targets of some samples."""
        return self.few.target

    @property
    def features(self) -> Features:
        """The features of some samples."""
        return self.few.features


@dataclass(frozen=True)
class _ScoreOfShards:
    """The score of weights on the shards of a validation, None if these have no rows."""

    join: Callable[[list[Any]], float]
    shards: Shards | None

    def __call__(self, weights: dict[str, np.ndarray]) -> float:
        with stage("score"):
            return self.join([] if self.shards is None else self.shards.score_parts(weights))

    def release(self) -> None:
        """Let the engine forget the shards."""
        if self.shards is not None:
            self.shards.release()


class ShardedTraining(BaseOnnxSGD):
    """The steps of a fit on shards, before a class of estimators."""

    #: The class of estimators without shards.
    _local_class: ClassVar[type[BaseOnnxSGD]]
    #: The counts of the labels of all samples of a fit.
    _label_counts: tuple[np.ndarray, np.ndarray | None] | None = None

    @in_turn
    @with_callbacks
    def _fit_sharded(self, data: ShardedData, X_val: object, y_val: ArrayLike | None, resume: bool) -> Self:
        """Train on shards."""
        given: Any = data
        try:
            recipe = self._check_parameters()
            return RecordedFit(self).run(self._fit, recipe, data, given, None, X_val, y_val, resume)
        finally:
            self.__dict__.pop("_label_counts", None)

    def to_local(self) -> BaseOnnxSGD:
        """Return the same estimator without shards: the parameters, and all that was learned.

        Returns
        -------
        OnnxSGDRegressor or OnnxSGDClassifier
            An estimator that trains and predicts on data in memory.
        """
        return self._local_copy(settled_attributes(self))

    def _saved(self) -> BaseOnnxSGD:
        return self.to_local()

    def _local_copy(self, attributes: Mapping[str, Any]) -> BaseOnnxSGD:
        """Return an estimator without shards of these attributes."""
        own = set(self._get_param_names()) - set(self._local_class._get_param_names())
        local = self._local_class.__new__(self._local_class)
        local.__dict__.update({k: value for k, value in attributes.items() if k not in _OF_CLIENT | own})
        return local

    def _score_sharded(self, data: ShardedData) -> float:
        """Return the score of data in shards."""
        self._trained()
        if not self._scores_in_blocks:
            raise UnsupportedError(
                "The score of these predictions does not follow from those of parts: compute a sample of "
                "the data, and score it with to_local()."
            )
        executor, estimator = data.executor, data.executor.source(self.to_local())
        tasks = [executor.submit(_score_of_piece, estimator, piece) for piece in data.pieces]
        parts = [part for part in executor.results(tasks) if part is not None]
        if not parts:
            raise ParameterError("X has no rows with a weight above 0: nothing can be scored.")
        return self._joined_score(parts)

    # The steps of a fit.

    def _check_parameters(self) -> Recipe:
        recipe = super()._check_parameters()
        if self.device != "cpu":
            raise ParameterError(
                f"device={self.device!r} is not accepted here: workers train on their CPUs, 'cpu'."
            )
        if self.n_jobs not in (None, 1):
            raise ParameterError(
                f"n_jobs={self.n_jobs!r} counts processes of this machine, and here workers of the engine "
                "train: leave it None."
            )
        if self.steps_per_epoch is not None:
            raise ParameterError(
                f"steps_per_epoch={self.steps_per_epoch!r} counts the batches of an iterable: leave it None."
            )
        if recipe.in_blocks:
            raise ParameterError(
                f"shuffle={self.shuffle!r} reads files in blocks; shards are in the memory of workers: give "
                "True or False."
            )
        if hasattr(self.model, "fit") and not is_fitted(self.model):
            raise ParameterError(
                f"model={type(self.model).__name__}() is not fitted, and here it would be on all of the data "
                "in one place: fit it on some of them before, or name a graph."
            )
        if has_text(self.model):
            raise UnsupportedError(
                "The model begins with a vectorizer of text, which shards do not take: compute its features "
                "with its transform, as sparse chunks, and give the rest of the model."
            )
        return recipe

    def _checkpoints(self, resume: bool, **data: object) -> FitCheckpoints | None:
        if self.checkpoint is None:
            return super()._checkpoints(resume, **dict.fromkeys(data))
        shown = {
            name: np.array(part.digests()) if isinstance(part, ShardedData) else part
            for name, part in data.items()
        }
        if isinstance(given := data.get("X"), ShardedData):
            shown |= {"n_shards": given.n_shards, "sync_every": given.sync_every}
        return super()._checkpoints(resume, **shown)

    def _counts_nothing(self, samples: Samples | ShardedSamples) -> bool:
        # known once the shards are read
        return isinstance(samples, Samples) and super()._counts_nothing(samples)

    def _batch_source(self, X: object, y: object, sample_weight: object, X_val: object) -> None:
        return None

    def _gathered(self, X: object) -> Any:
        return X

    def _read_samples(
        self, X: object, y: ArrayLike | None, sample_weight: ArrayLike | None, **options: Any
    ) -> Any:
        """Cut the data into shards, and make the learner from some of them unless training resumes."""
        if not isinstance(X, ShardedData):
            return super()._read_samples(X, y, sample_weight, **options)
        summaries = X.summaries(self._task == "classification")
        filled = [(piece, s) for piece, s in zip(X.pieces, summaries, strict=True) if s.n_rows]
        if not filled:
            raise ParameterError("X has no rows: training needs a sample at least.")
        data = replace(X, pieces=tuple(piece for piece, _ in filled))
        found = [summary for _, summary in filled]
        classes = options.pop("classes", None)
        few = self._read_few(data, found, classes, options)
        shards = tuple(map(tuple, self._shards_of(data, found)))
        pieces = (*X.pieces, *chain.from_iterable(shards))
        return ShardedSamples(X.executor, shards, pieces, few, X.sync_every)

    def _read_few(
        self,
        data: ShardedData,
        summaries: Sequence[PieceSummary],
        classes: ArrayLike | None,
        options: dict[str, Any],
    ) -> Samples:
        """Check the first rows, and make the learner from them."""
        executor = data.executor
        task = executor.submit(first_rows, data.pieces[0], _FIRST_ROWS)
        ((X, y, _),) = executor.results([task])
        executor.release([task])
        self._label_counts = joined_counts(summaries)
        read = partial(
            super()._read_samples, X, y, None, **{**options, "in_parts": True, "held_out_by": None}
        )
        try:
            return read(classes=classes)
        except UnknownClassesError:
            if self._label_counts is None:
                raise
            return read(classes=present_labels(self._label_counts[0], getattr(self, "_ignored", None)))

    def _shards_of(self, data: ShardedData, summaries: Sequence[PieceSummary]) -> list[list[Handle]]:
        """Return the pieces of each shard; shards that differ are mixed where they train on their own."""
        executor, pieces = data.executor, data.pieces
        n_rows = [summary.n_rows for summary in summaries]
        n_shards = len(pieces) if data.n_shards is None else data.n_shards
        if n_shards > sum(n_rows):
            raise ParameterError(
                f"n_shards={n_shards} is above {sum(n_rows)}, the number of rows: each shard needs one."
            )
        if data.n_shards is None:
            shards, of_shards = [[piece] for piece in pieces], list(summaries)
        else:
            shards = cut_evenly(executor, pieces, n_rows, n_shards)
            has_labels = self._task == "classification"
            tasks = [executor.submit(summary_of_pieces, has_labels, *shard) for shard in shards]
            of_shards = executor.results(tasks)
            executor.release(tasks)
        if data.sync_every == 1 or are_alike(of_shards):
            return shards
        decided("shards", "they differ in their targets: rows are dealt anew among %d", n_shards)
        return dealt_evenly(executor, pieces, n_shards, _DEAL_SEED)

    def _read_validation(self, X_val: object, y_val: ArrayLike | None) -> tuple[Any, ...]:
        if not isinstance(X_val, ShardedData):
            return super()._read_validation(X_val, y_val)
        few = Samples({}, np.empty(0), np.empty(0))
        shards = tuple((piece,) for piece in X_val.pieces)
        return (ShardedSamples(X_val.executor, shards, X_val.pieces, few, validates=True),)

    def _hold_out(self, samples: Samples | ShardedSamples) -> Any:
        if not isinstance(samples, ShardedSamples):
            return super()._hold_out(samples)
        seed = int(self._state.random_state.randint(0, _SEEDS))
        training = replace(samples, held_out=(float(self.validation_fraction), seed))
        return training, (replace(training, validates=True),)

    def _balance(self, y: object) -> None:
        self.__dict__.pop("_balanced", None)
        if getattr(self, "class_weight", None) == "balanced":
            labels, counts = self._label_counts or (None, None)
            if labels is None or counts is None or getattr(self, "_takes_soft_labels", False):
                raise UnsupportedError(
                    "class_weight='balanced' counts labels over all shards, and y has probabilities: give "
                    "the weights of the classes as a dictionary."
                )
            found: Any
            if self._has_several_labels:
                found = [balanced_counts(labels, of_column) for of_column in counts.T]
            else:
                known = np.isin(labels, self.classes_)
                found = balanced_counts(labels[known], counts[known].reshape(known.sum(), -1).sum(axis=1))
            # of classifiers alone
            self.__dict__["_balanced"] = found

    def _scorer(self, program: Program, validation: Sequence[Any]) -> Any:
        if not (validation and isinstance(validation[0], ShardedSamples)):
            return super()._scorer(program, validation)
        shards = self._read_shards(validation[0], in_parts=False, has_moments=False)
        return _ScoreOfShards(self._joined_score, shards)

    def _read_shards(self, samples: ShardedSamples, *, in_parts: bool, has_moments: bool) -> Shards | None:
        """Let tasks read the shards; return those with rows, None for a part of a stream without any."""
        executor = samples.executor
        is_sparse = any(not isinstance(table, np.ndarray) for table in samples.features.values())
        fit = executor.source(ShardFit(self._local_copy(vars(self)), in_parts, is_sparse))
        handles = [
            executor.submit(read_shard, fit, samples.held_out, samples.validates, *shard)
            for shard in samples.shards
        ]
        tasks = [executor.submit(summary_of, fit, shard, has_moments) for shard in handles]
        summaries = executor.results(tasks)
        executor.release(tasks)
        filled = [(h, s) for h, s in zip(handles, summaries, strict=True) if s.n_rows]
        if not filled:
            if samples.validates and samples.held_out is not None:
                raise ParameterError(
                    f"validation_fraction={samples.held_out[0]} of each shard holds out no sample: each has "
                    "one. Give X_val and y_val, or fewer shards by n_shards."
                )
            if in_parts and not samples.validates:
                return None
            what = "validation" if samples.validates else "training"
            raise ParameterError(
                f"No sample of the {what} data has a weight above 0, or a label that counts."
            )
        return Shards(executor, fit, tuple(h for h, _ in filled), tuple(s for _, s in filled))

    def _train(
        self,
        plan: FitPlan,
        stopping: Stopping,
        samples: Samples | ShardedSamples,
        validation: Sequence[Any] = (),
        observers: Sequence[Observer] = (),
        *,
        is_fit: bool = False,
        kept: KeptState,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        if not isinstance(samples, ShardedSamples):
            super()._train(
                plan, stopping, samples, validation, observers, is_fit=is_fit, kept=kept,
                checkpoints=checkpoints,
            )  # fmt: skip
            return
        if samples.sync_every == 1:
            check_gradients(plan)
        self.engine_, state = plan.engine, self._state
        adapt_state(state, plan)
        recipe = plan.recipe
        with stage("read"):
            read = self._read_shards(samples, in_parts=recipe.in_parts, has_moments=recipe.is_auto)
        if read is None:
            self._publish()
            return
        max_iter = stopping.max_iter if is_fit else None
        sync_every = updates_of_round(samples.sync_every, plan, max(read.n_rows), max_iter)
        with stage("compile"):
            parts = make_parts(read, self._local_copy(vars(self)), plan, state, sync_every)
        score = self._scorer(parts.program, validation)
        _release_pieces([part for part in (samples, *validation) if isinstance(part, ShardedSamples)])
        if is_fit:
            state.epoch_updates = parts.batches.n_updates
            state.n_updates = stopping.max_iter * parts.batches.n_updates
        plan = parts.program.plan.for_updates(state.n_updates, state.epoch_updates)
        with stage("train"):
            train(
                parts.runners, parts.batches, plan, stopping, state, observers, score,
                model=ShardedProgram(parts.program, parts.shards), checkpoints=checkpoints, kept=kept,
                kind=parts.epochs,
            )  # fmt: skip
        parts.shards.release()
        if isinstance(score, _ScoreOfShards):
            score.release()
        self._publish()


def _release_pieces(parts: Sequence[ShardedSamples]) -> None:
    """Let the engine forget the pieces, each once, when the shards were read: it can make them again."""
    released = set[int]()
    for part in parts:
        pieces = {id(piece): piece for piece in part.pieces if id(piece) not in released}
        part.executor.release(list(pieces.values()))
        released |= pieces.keys()


def _score_of_piece(estimator: BaseOnnxSGD, piece: Piece) -> Any:
    """Return the part of a partition in the score, None if it is empty."""
    X, y, sample_weight = piece
    if not len(y):
        return None
    raw = estimator._table(np.asarray(estimator._raw_predictions(X)))
    target, _ = estimator._read_target(y, True, None)
    weight = check_sample_weight(sample_weight, target)
    return estimator._score_part(raw, target, weight) if weight.any() else None


def _digest_of_piece(piece: Piece) -> str:
    """Return a digest of some rows of a partition."""
    X, y, sample_weight = piece
    parts = {"X": X, "y": y, "sample_weight": sample_weight}
    return "".join(digest_of_data(part, name) for name, part in parts.items())
