"""The compiled program of a fit: the frozen part, the tail and the training step of a learner."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

import numpy as np
import onnx_ir as ir
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from onnxsgd._cached_property import cached_property
from onnxsgd.data.block_reader import BlockTable
from onnxsgd.data.evidence import (
    EvidenceRidge,
    NormalRidge,
    QuadratureRidge,
    noisy_ridges,
    normal_ridges,
    tells_rare_classes,
)
from onnxsgd.data.extremes import USUAL, bulk, clipped
from onnxsgd.data.features import Features, n_rows, take_rows
from onnxsgd.data.moments import Moments, add_moments, quiet_squares
from onnxsgd.data.random_order import Blocks
from onnxsgd.data.row_tables import (
    Converted,
    EncodedLabels,
    RowTable,
    are_many,
    as_array,
    is_mapped,
    row_blocks,
)
from onnxsgd.engine.predict import InferenceGraph
from onnxsgd.engine.sparse_products import is_sparse
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.deferred_losses import is_standard
from onnxsgd.engine.step.given_gradient import CallableRunner, GivenGradient
from onnxsgd.engine.step.idle_runners import CompiledOnUse, IdleRunners
from onnxsgd.engine.step.open_lengths import agrees, may_be_open, open_row_shapes
from onnxsgd.engine.step.sample_losses import mean_loss, mean_loss_of_graph, sample_losses
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.exceptions import EngineError, ParameterError, UnsupportedError
from onnxsgd.graph.batch_normalization import batch_normalizations
from onnxsgd.graph.multiplications import Multiplications, count_multiplications
from onnxsgd.graph.nodes import rank, required
from onnxsgd.graph.reading.first_layers import FirstLayer, columns_of
from onnxsgd.graph.reading.rectified_layers import RectifiedLayer
from onnxsgd.learner.learner import Parts
from onnxsgd.losses import (
    FromCallable,
    SquaredEpsilonInsensitive,
    SquaredError,
)
from onnxsgd.optimizers import BlockAdam
from onnxsgd.runtime.cache import cached
from onnxsgd.runtime.events import decided
from onnxsgd.runtime.sessions import has_several_threads, make_session, resolve_threads
from onnxsgd.runtime.stages import stage
from onnxsgd.training.coordinates import Coordinates, StandardisedBuffers, make_standards
from onnxsgd.training.epochs import Runners
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.frozen_features import FrozenFeature
from onnxsgd.training.linear_runner import LinearLoop, choose_linear_loop, is_one_layer
from onnxsgd.training.repeated_part import RepeatedPart, is_dense, parts_ahead, repeats_parts
from onnxsgd.training.sparse_runners import (
    centres_products,
    intercept_factors,
    make_sparse_runners,
    trains_sparse,
)
from onnxsgd.training.start import ENOUGH_ROWS, NoiseFinder, best_constant
from onnxsgd.training.state import TARGET, FitState, rate_scales, slows_intercept
from onnxsgd.training.surprise import find_surprise
from onnxsgd.training.used_columns import UsedColumns, used_columns

__all__ = ["Program", "make_program"]

#: Memory maps from this number of bytes on are shuffled by blocks also with ``shuffle=True``: where a file
#: does not fit into memory, a row that is taken from it alone costs a read of a page or many.
_LARGE_MAP = 1 << 31
#: The number of steps of a fit from which on compiling the loop inside the runtime pays.
#: ``benchmarks/constants.py``, a linear model in five epochs: single steps take 0.86 of the time at 250
#: steps, 0.93 at 500, 1.09 at 1,000, 1.60 at 4,000. In 4,000 epochs of one batch each they take 0.85.
_MANY_STEPS = 500
#: The number of steps of an epoch from which on the general loop takes the place of the single step, in all
#: calls on such data. ``benchmarks/constants.py``, one epoch of a network: single steps take 0.80 of the time
#: of a first fit of 32 steps, 0.91 of 128, 1.00 of 512; 1.09, 1.17 of a later one, which compiles nothing.
_MANY_BATCHES = 32
#: The same for linear models in streams that find their rate, whose parts of 32 rows have four batches. With
#: the short loop, calls of 32, 200 and 1,000 rows take 0.87, 0.76 and 0.71 of the time of single steps, and
#: the first one of a process takes less. Networks gain less, and the loop of one with three layers takes
#: 0.2 s more to compile.
_MANY_BATCHES_OF_STREAM = 2
#: The most specifications that a plan keeps: sequences have many lengths.
_MOST_SPECS = 64
#: The most bytes of data whose program is kept: such data are not compared with other bounds of memory.
_SMALL_BYTES = 1_000_000
#: The rows of many samples whose losses are computed together: a bound of memory.
_SCORED_ROWS = 1 << 16
#: The largest stored output of the frozen part for all samples, unless the data are larger still: a bound of
#: memory, not a measured one.
_KEPT_BYTES = 256_000_000
#: The same where the frozen part only converts integers, such as pixels: data of 8 bits stay as they are.
_KEPT_CONVERTED = 16_000_000
#: The means of two labels of unequal shares.
_UNEVEN = np.array([0.75, 0.25])
#: Columns that the penalty shrinks so many times as much as the one that it shrinks least have another scale.
_FAR_MORE = 100.0
#: The losses of squares of residuals.
_OF_SQUARES = (SquaredError, SquaredEpsilonInsensitive)
#: The least deviation of targets without outliers, as a share of that with them.
_LEAST_OF_UNIT = 1 / 16
#: The number of elements of an array.
_size = attrgetter("size")


@dataclass(frozen=True)
class Path:
    """The way in which dense batches are trained on.

    Attributes
    ----------
    is_loop : bool
        Whether many updates are one call of the runtime; otherwise one is.
    reason : tuple of str
        The event that tells it.
    linear : LinearLoop or None
        The short loop of a linear model, if that makes them.
    """

    is_loop: bool
    reason: tuple[str, str]
    linear: LinearLoop | None = None


@dataclass(frozen=True)
class KnownStep:
    """The step of earlier calls on data of one shape, which later ones take again.

    Attributes
    ----------
    spec : StepSpec
        Its specification.
    paths : dict of Path
        The ways of its updates, by the number of batches and of epochs.
    """

    spec: StepSpec
    paths: dict[tuple[int, int], Path] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The cache key of the compiled step."""
        return self.spec.key

    def keep(self, n_batches: int, epochs: int, path: Path) -> None:
        """Keep the way of the updates of so many batches and epochs."""
        if len(self.paths) < _MOST_SPECS:
            self.paths[n_batches, epochs] = path


@dataclass(frozen=True)
class Program:
    """The compiled parts of a fit.

    Attributes
    ----------
    plan : FitPlan
        The settings of the fit.
    parts : Parts
        The two parts of the graph.
    stores : bool
        Whether results of the frozen part are computed once for each sample, and stored; otherwise for each
        batch.
    is_plain: bool
        Whether the data are known to be small arrays of numpy's own class: neither sparse, nor memory maps.
    """

    plan: FitPlan
    parts: Parts
    stores: bool = True
    is_plain: bool = False
    #: The numbers and sessions that parts of a stream share, once one of them has been learned.
    _repeated: list[RepeatedPart] = field(default_factory=list, init=False, compare=False, repr=False)

    def repeated(self, state: FitState, batches: Batches) -> None:
        """Know that a part of a stream has been learned: later ones repeat it."""
        if not self._repeated and (part := self._as_repeated(state, batches)) is not None:
            self._repeated.append(part)

    def _as_repeated(self, state: FitState, batches: Batches) -> RepeatedPart | None:
        """Return a later part, given one that the general way has learned; None: that learns it too."""
        plan = self.plan
        if not self.is_plain or plan.device.keeps_data or plan.has_lengths or not repeats_parts(plan):
            return None
        if batches.is_long or batches.n_accumulated > 1 or batches.blocks is not None:
            return None
        if plan.recipe.is_auto and not is_dense(self, state):
            return None
        known, coordinates = self.step(state, batches)
        path = known.paths.get((batches.n_batches, 1))
        work = step_work(known.spec, state.tensors)
        if path is None or (plan.n_threads is None and has_several_threads(work)):
            return None
        constants = coordinates.constants(state.tensors).keys()
        n_threads = resolve_threads(plan.n_threads, work)
        # of dense data they depend on the graph alone
        has_rate_scales = bool(coordinates.rate_scales)
        return RepeatedPart(
            known, path, n_threads, tuple(constants), state.eta, has_rate_scales,
            parts_ahead(plan, batches.n_updates), batches.batch_size, batches.is_mean, batches.in_windows,
            plan.step_spec.takes_scaled_gradient,
        )  # fmt: skip

    def learns_again(
        self, state: FitState, features: Features, target: np.ndarray, weight: np.ndarray
    ) -> bool:
        """Learn a part of a stream that repeats an earlier one; see :meth:`RepeatedPart.learn`."""
        if not self._repeated:
            return False
        part = self._repeated[0]
        if not self.plan.recipe.is_auto:
            return part.learn(self, state, features, target, weight)
        with quiet_squares():
            return part.learn(self, state, features, target, weight)

    def tail_features(self, features: Features) -> Features:
        """Return the inputs of the tail: data, and results of the frozen part."""
        if self.is_plain and self._sources is not None:
            return {name: features.get(source) for name, source in self._sources.items()}
        is_sparse = not self.is_plain and _is_sparse(features)
        if is_sparse and self.plan.learner.multiples:
            return self.plan.learner.sparse_features(features)
        if not self.parts.frozen:
            return {name: features.get(name) for name in self.parts.split.features}
        copies = self.copies_of(is_sparse=is_sparse)
        made = {
            name: features[copies[name]] if name in copies else self._computed(graph, features)
            for name, graph in self.parts.frozen.items()
        }
        return {name: made.get(name, features.get(name)) for name in self.parts.split.features}

    @cached_property
    def _sources(self) -> Mapping[str, str] | None:
        """The data input that each input of the tail is, or copies; None: the frozen part computes some."""
        frozen, copies = self.parts.frozen, self.copies_of(is_sparse=False) if self.parts.frozen else {}
        if not copies.keys() >= frozen.keys():
            return None
        return {name: copies[name] if name in frozen else name for name in self.parts.split.features}

    def copies_of(self, *, is_sparse: bool) -> Mapping[str, str]:
        """Return the data inputs of which results of the frozen part are copies.

        Of sparse data the frozen part computes dense results, which are none.
        """
        return {} if is_sparse else self.plan.learner.copies

    def _is_sparse(self, features: Features) -> bool:
        return not self.is_plain and _is_sparse(features)

    def _computed(self, graph: InferenceGraph, features: Features) -> Any:
        place = (self.plan.n_threads, self.plan.device)
        if not self.stores:
            return FrozenFeature(graph, features, *place)
        with stage("frozen part"):
            return graph.run(features, {}, *place)

    def raw_predictions(self, features: Features, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the raw predictions from inputs of the tail."""
        return self.parts.tail.run(features, weights, self.plan.n_threads, self.plan.device)

    def mean_loss(self, batches: Batches, weights: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss of all samples with given weights."""
        if not are_many(batches.target):
            if self._is_one_layer and self.parts.tail.takes_at_once(batches.features):
                target = as_array(batches.target)
                return mean_loss_of_graph(
                    self.plan.loss, target, batches.features, weights, batches.sample_weight,
                    self.parts.tail, self.parts.split.tail, self.plan.n_threads,
                )  # fmt: skip
            raw = self.raw_predictions(dict(batches.features), weights)
            return self._mean_loss(as_array(batches.target), raw, batches.sample_weight)
        total, loss = 0.0, 0.0
        for rows in row_blocks(len(batches.target), _SCORED_ROWS):
            raw = self.raw_predictions(take_rows(dict(batches.features), rows), weights)
            weight = np.ascontiguousarray(batches.sample_weight[rows], np.float64)
            loss += float(weight.sum()) * self._mean_loss(batches.target[rows], raw, weight)
            total += float(weight.sum())
        return loss / total

    @cached_property
    def has_table(self) -> bool:
        """True if the raw predictions of a sample have one axis."""
        shape = self.parts.split.tail.graph.outputs[0].shape
        return shape is not None and len(shape) == 2

    @cached_property
    def _is_one_layer(self) -> bool:
        """True if one call computes the objective: of a linear layer of tables on the CPU, with a formula."""
        tail = self.parts.split.tail
        if self.plan.device.is_cuda or not self.plan.loss.is_formula or not is_one_layer(tail):
            return False
        return bool(self.first_layers) and self.has_table

    def _mean_loss(self, target: np.ndarray, raw: np.ndarray, weight: np.ndarray) -> float:
        return mean_loss(self.plan.loss, target, raw, weight, self.parts.split.tail)

    def noise(self, batches: Batches, some: Batches) -> NoiseFinder | None:
        """Return the noise that the model could fit, if it is a linear one.

        Cases: classifiers, and regressors whose loss is one of residuals of both signs alike, or of a normal
        distribution; `some` has all rows of `batches`; gradients have no preconditioner, which data of little
        noise have; the intercept is trained, and the loss has scores of the shares of classes.
        """
        layer, loss = self.only_layer, self.plan.loss
        standard = None if layer is None else batches.standards.get(layer.feature)
        if layer is None or standard is None or standard.preconditioner is not None:
            return None
        if layer.intercept is None:
            # the ridge regression has one
            return None
        if not (self.plan.is_regression or loss.scores_of_shares(_UNEVEN, 0.1).any()):
            # the scores that know the shares of classes alone are not those of the loss
            return None
        if not self.plan.loss_has_scale:
            return None
        is_robust, are_labels = self.plan.is_of_sizes, not self.plan.is_regression
        has_variances = loss.link == "normal"
        is_known = has_variances or is_robust or type(loss) in _OF_SQUARES
        if loss.unit is not None if are_labels else not is_known:
            return None
        table, target = some.features[layer.feature], as_array(some.target)
        if target.ndim != 2 or len(target) < len(batches.target):
            return None
        # columns that the penalty shrinks by half, and far more than others, fit no noise, nor much else
        shrinkage = (self.penalty_of_linear or 0.0) * np.square(standard.factor, dtype=np.float64)
        is_free = shrinkage < max(1.0, _FAR_MORE * shrinkage.min())
        weight, given = some.sample_weight, (standard.shift, np.where(is_free, standard.factor, 0.0))

        def loss_of_scores(raw: np.ndarray) -> float:
            return self._mean_loss(target, raw.astype(target.dtype), weight)

        def ridges() -> Sequence[EvidenceRidge | NormalRidge | QuadratureRidge] | None:
            if has_variances:
                return normal_ridges(table, target[:, : target.shape[1] // 2], weight, *given)
            return noisy_ridges(table, target, weight, *given, are_labels=are_labels, is_robust=is_robust)

        def tells_rare() -> bool:
            return loss.probabilities == "sigmoid" and tells_rare_classes(table, target, weight, *given)

        return NoiseFinder(layer, ridges, loss_of_scores, bool(self.plan.step_spec.l1), tells_rare)

    def sample_losses(self, target: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the loss of each sample from its raw predictions."""
        return sample_losses(self.plan.loss, target, raw, self.parts.split.tail)

    def surprise(self, batches: Batches) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the loss of each sample beyond that of a right model: :func:`~.surprise.find_surprise`."""
        target, weight = as_array(batches.target), batches.sample_weight
        return find_surprise(self.plan.loss, self.sample_losses, target, weight)

    def best_constant(self, batches: Batches, unit: np.ndarray | None = None) -> np.ndarray:
        """Return the raw predictions of the best constant; see :func:`~.start.best_constant`."""
        if not self.knows_constant:
            return np.zeros(1)
        return best_constant(self.plan.loss, batches.target, batches.sample_weight, unit=unit)

    def mean_loss_of_constant(self, batches: Batches) -> float:
        """Return the mean loss of the mean of the target as the prediction."""
        target, weight = batches.target, batches.sample_weight
        mean = np.average(target, axis=0, weights=weight)
        constant = np.broadcast_to(mean, target.shape).astype(target.dtype)
        return mean_loss(self.plan.loss, target, constant, weight, self.parts.split.tail)

    def mean_loss_without_knowledge(self, batches: Batches, weights: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss of the mean of the target, or of raw predictions of zero.

        The weights are some with which raw predictions can be computed: their shape counts.
        """
        if self.has_ratios:
            return self.mean_loss_of_constant(batches)
        raw = np.zeros_like(self.raw_predictions(dict(batches.features), weights))
        return self._mean_loss(as_array(batches.target), raw, batches.sample_weight)

    def batches(
        self,
        features: Features,
        target: np.ndarray,
        sample_weight: np.ndarray,
        random_state: np.random.RandomState,
    ) -> Batches:
        """Return the training data, cut into batches, not standardised.

        Parameters
        ----------
        features, target, sample_weight : dict, ndarray, ndarray
            The data.
        random_state : RandomState
            Draws the order of the rows of sparse data in fits that find the rate.
        """
        recipe = self.plan.recipe
        in_blocks = recipe.in_blocks or (recipe.shuffle and not self.is_plain and _are_large_maps(features))
        if in_blocks:
            features = {name: BlockTable.of(table) for name, table in features.items()}
            reason = "named" if recipe.in_blocks else "the memory map has 2 GiB or more"
            decided("shuffle", "by blocks: %s", reason)
        made = self.tail_features(features)
        is_sparse_fit = not recipe.in_parts and self._trains_sparse(self.plan.step_spec, made)
        is_linear_fit = self.is_linear and not recipe.in_parts
        size = self.plan.rows_of_update(len(target), is_sparse_fit=is_sparse_fit, is_linear_fit=is_linear_fit)
        target = self.typed_target(target, made)
        n_accumulated = self.plan.batches_of_update(size)
        if not self.plan.is_exact:
            named = (
                "batch_size" if self.plan.is_batch_named else "the kind of model and the number of samples"
            )
            decided("batches", "%d rows an update: by %s", size, named)
        batches = Batches(
            made, target, sample_weight, size // n_accumulated,
            is_mean=self.plan.batch_size * self.plan.n_accumulated > 1, n_accumulated=n_accumulated,
            in_windows=not self.plan.device.keeps_data,
            blocks=Blocks.of(features.values(), size) if in_blocks else None, is_even=self.divides_evenly,
        )  # fmt: skip
        mixes = is_sparse_fit and recipe.is_auto and recipe.shuffle and not in_blocks
        return batches.mixed(random_state) if mixes else batches

    @property
    def divides_evenly(self) -> bool:
        """True if the samples of an epoch are divided evenly into batches, where training finds the rate.

        In fits of networks on few rows, the noise of a short last batch keeps them from learning that of the
        data: on 33 to 161 rows of six columns a network with an R2 of 0.37 to 0.75 has 0.23 to 0.74 with even
        batches.
        """
        recipe = self.plan.recipe
        return recipe.is_auto and (recipe.in_parts or self.is_linear)

    def typed_target(self, target: np.ndarray | RowTable, features: Features) -> Any:
        """Return the target in the type of the graph; of many samples row by row."""
        dtype = self.parts.split.dtype
        is_array = type(target) is np.ndarray or not isinstance(target, RowTable)
        if (is_array and not are_many(target)) or _is_sparse(features):
            return _cast_target(np.asarray(target), dtype)
        return target.astype(dtype) if isinstance(target, EncodedLabels) else Converted(target, dtype)

    def has_usual_unit(self, *, is_sparse: bool) -> bool:
        """Tell whether outliers of the target count as usual ones in its unit; see :meth:`add_target`."""
        may_differ = self.is_linear and not (is_sparse or self.plan.recipe.in_parts)
        return may_differ and self.plan.is_of_sizes

    def add_target(
        self,
        moments: dict[str, Moments],
        target: np.ndarray | RowTable,
        weight: np.ndarray,
        *,
        is_sparse: bool = False,
    ) -> None:
        """Add the moments of a target to those of earlier parts, where the last layer has its unit.

        Outliers of a fit with a loss of sizes count as usual targets: 48 sets with a tenth and more of errors
        of 30 and 300 deviations have R2 0.964 in place of 0.896 (``benchmarks/support.py --only "large e"``).
        Not those of networks, which may stay at the constant where large targets are the signal, of sparse
        data, whose fits end early with small steps, and of very many samples.
        """
        if not self.plan.scaled_layer.weights:
            return
        if self.has_usual_unit(is_sparse=is_sparse) and isinstance(target, np.ndarray) and target.ndim == 2:
            target = _with_usual_unit(target)
        # under a smaller unit, weights of the larger one would hardly change
        add_moments(moments, TARGET, target, weight, of_bulk=self.plan.is_bounded, may_narrow=False)

    def standardised(self, batches: Batches, moments: dict[str, Moments], weight_unit: float) -> Batches:
        """Return the same batches with standardised inputs of first layers.

        Parameters
        ----------
        batches : Batches
            The data.
        moments : dict of Moments
            The moments of earlier parts of the data, under the names of features: those of this part are
            merged into them.
        weight_unit : float
            The weight of a sample that counts as one; see :class:`Batches`.
        """
        weight, in_parts = batches.sample_weight, self.plan.recipe.in_parts
        has_extremes = False
        for name, axis, _ in self.columns_of_layers:
            has_some = add_moments(
                moments, name, batches.features[name], weight, axis,
                may_change=in_parts and len(weight) >= ENOUGH_ROWS,
                of_bulk=self.plan.is_bounded, least_width=self.least_width, columns=batches.columns,
            )  # fmt: skip
            if not (in_parts or self.plan.is_bounded):
                _warn_of_extremes(batches.features[name], moments[name], self.least_width)
            elif has_some and not in_parts and self.plan.is_regression:
                of_all = Moments.of(batches.features[name], weight, axis)
                _warn_of_extremes(batches.features[name], of_all, self.least_width, is_bounded=True)
            has_extremes |= has_some
        data = None if in_parts else batches
        standards = make_standards(
            self.columns_of_layers, batches.features, moments, data, len(weight), self.penalty_of_linear,
            row_weight=weight_unit if in_parts else None,
            centres_sparse=data is not None and self._centres_sparse(batches),
        )  # fmt: skip
        batches = batches.standardised(standards, weight_unit, is_repeated=not in_parts)
        return batches.with_bounded_rows() if has_extremes else batches

    @cached_property
    def only_layer(self) -> FirstLayer | None:
        """The layer of a model that is one, where `fit` finds the rate, else None."""
        recipe, layers = self.plan.recipe, self.first_layers
        if len(layers) != 1 or recipe.in_parts or not recipe.is_auto:
            return None
        return layers[0] if is_one_layer(self.parts.split.tail) else None

    @cached_property
    def penalty_of_linear(self) -> float | None:
        """The strength of the l2 penalty of a model whose gradient may have a preconditioner, else None.

        Cases: one linear layer, trained by BlockAdam, without a steering or an l1 penalty.
        """
        plan, layer = self.plan, self.only_layer
        optimizer = plan.recipe.optimizer
        if layer is None or plan.step_spec.l1 or type(optimizer) is not BlockAdam or optimizer.steering:
            return None
        penalty = plan.penalties.get(layer.weight)
        return 0.0 if penalty is None else penalty.l2 or 0.0

    @cached_property
    def least_width(self) -> float:
        """The width of columns below which the l2 penalty of a linear model shrinks their coefficients."""
        if not self.is_linear:
            return 0.0
        penalties = [self.plan.penalties.get(layer.weight) for layer in self.first_layers]
        return math.sqrt(min((p.l2 or 0.0 if p else 0.0 for p in penalties), default=0.0))

    def _centres_sparse(self, batches: Batches) -> bool:
        """Tell whether all columns of sparse data are centred, and their rates do not change that."""
        is_sparse = batches.is_sparse and self._trains_sparse(self.plan.step_spec, dict(batches.features))
        return is_sparse and centres_products(self.plan.step_spec, self.first_layers)

    def _trains_sparse(self, spec: StepSpec, features: Features) -> bool:
        if not self._is_sparse(features) or not self.plan.loss.is_formula:
            return False
        return not self.plan.device.keeps_data and trains_sparse(spec, self.first_layers, features)

    @property
    def first_layers(self) -> tuple[FirstLayer, ...]:
        """The linear layers that read the data."""
        return self.parts.first_layers

    @property
    def rectified_layers(self) -> tuple[RectifiedLayer, ...]:
        """The layers from the data on with rectified values between them."""
        return self.parts.rectified_layers

    @cached_property
    def columns_of_layers(self) -> tuple[tuple[str, int, bool], ...]:
        """The features that they read; see :func:`~.first_layers.columns_of`."""
        return columns_of(self.first_layers)

    @cached_property
    def has_ratios(self) -> bool:
        """True if losses have ratios, and a constant's loss has meaning."""
        return self.plan.has_target_units and self.plan.loss_unit is None

    @cached_property
    def knows_constant(self) -> bool:
        """True if training may begin at the best constant: of a classifier in `fit`, if it is linear.

        A part of a stream tells little of the shares of the classes, and a network has other scores.
        """
        return self.plan.is_regression or (self.has_zero_scores and not self.plan.recipe.in_parts)

    @cached_property
    def has_zero_scores(self) -> bool:
        """True if the scores of classes are zero where the weights of a linear layer are."""
        has_zeros = self.is_linear and self.plan.output_layer.offset is not None
        return has_zeros and not self.plan.is_regression and self.has_table

    @cached_property
    def is_linear(self) -> bool:
        """True if the last layer, as far as it is known, is also a first one."""
        return self.plan.is_linear(self.first_layers)

    def multiplications(self, batches: Batches) -> Multiplications:
        """Return those of the forward pass of the trained part of the graph, for a batch."""
        shapes = {name: tuple(array.shape[1:]) for name, array in batches.features.items()}
        return count_multiplications(self.parts.split.tail, batches.batch_size, shapes)

    def used_columns(self, state: FitState, batches: Batches) -> UsedColumns | None:
        """Return data and weights of the columns with an entry alone; None: all columns are kept.

        This is for training on sparse data that finds the rate.
        """
        if self.plan.recipe.is_auto and self._trains_sparse(self.plan.step_spec, dict(batches.features)):
            return used_columns(self.first_layers, batches, state)
        return None

    def runners(self, state: FitState, batches: Batches, epochs: int) -> Runners:
        """Return runners that no other fit uses; equal steps share one session.

        Their buffers hold `state`, but in fits that find the rate, which choose the first weights themselves.

        The loop over batches inside the runtime is compiled where it pays: for dense data and many steps. The
        single step is then built only if it is needed, as to find the last finite weights.
        """
        known, coordinates = self.step(state, batches)
        is_sparse = not self.is_plain and batches.is_sparse
        runners = self._runners(known, state.tensors, batches, epochs, is_sparse=is_sparse)
        if coordinates.constants(state.tensors):
            runners = runners.with_buffers(StandardisedBuffers(runners.buffers, coordinates))
        if not self.plan.recipe.is_auto or self.plan.recipe.in_parts:
            runners.buffers.load(state.tensors)
        return runners

    def step(self, state: FitState, batches: Batches) -> tuple[KnownStep, Coordinates]:
        """Return the step of the updates on such data, and the coordinates that it computes in."""
        plan, is_sparse = self.plan, not self.is_plain and batches.is_sparse
        shapes = tuple([(name, tuple(array.shape[1:])) for name, array in batches.features.items()])
        factors = intercept_factors(plan) if is_sparse else ()
        coordinates = self.coordinates(state, batches)
        constants = coordinates.constants(state.tensors)
        sizes = batches.batch_size, batches.n_accumulated
        key = (*sizes, shapes, factors, tuple([(k, a.shape) for k, a in constants.items()]))
        known = plan.steps.get(key)
        if known is None:
            spec = replace(
                plan.step_spec, batch_size=batches.batch_size, row_shapes=shapes, gradient_factors=factors,
                optimizer=plan.optimizer_of(
                    batches.batch_size * batches.n_accumulated, is_linear=self.is_linear,
                    n_sparse_columns=batches.n_sparse_columns,
                ),
            )  # fmt: skip
            known = KnownStep(coordinates.spec(spec, constants) if constants else spec)
            if len(plan.steps) < _MOST_SPECS:
                plan.steps[key] = known
        return known, coordinates

    def coordinates(self, state: FitState, batches: Batches, *, has_rate_scales: bool = True) -> Coordinates:
        """Return the coordinates in which updates on these data are computed.

        Without `has_rate_scales`, no weight has a factor of its rate.
        """
        layers = self.parts.first_layers if batches.standards else ()
        slows = (
            batches.is_sparse
            and self.is_linear
            and any(
                slows_intercept(self.plan, state.moments[name], batches.target, batches.sample_weight)
                for name, _, _ in self.columns_of_layers
                if name in state.moments
            )
        )
        scales = rate_scales(self.plan, state, layers, slows_intercept=slows) if has_rate_scales else {}
        return Coordinates(layers, batches.standards, scales)

    def _runners(
        self,
        known: KnownStep,
        tensors: Mapping[tuple[str, str], np.ndarray],
        batches: Batches,
        epochs: int,
        *,
        is_sparse: bool,
    ) -> Runners:
        spec = known.spec
        if self.plan.device.keeps_data:
            decided("path", "data on %s, blocks of updates in a call", str(self.plan.device))
            return self._resident_runners(spec, batches, epochs)
        if is_sparse and self._trains_sparse(spec, dict(batches.features)):
            decided("path", "sparse: updates of the columns of each batch")
            return make_sparse_runners(self.plan, self.parts, spec, self.first_layers, tensors, batches)
        # to tell by the class takes ten times as long
        given = None if spec.loss.is_formula else cast("FromCallable", spec.loss)
        if given is not None:
            spec = replace(spec, loss=GivenGradient())
            known = KnownStep(spec)
        n_threads = resolve_threads(self.plan.n_threads, step_work(spec, tensors))
        opened = self._open_step(spec, batches, n_threads)
        idle = opened or self.compiled(known, n_threads)
        if given is not None:
            taken, made = idle.take(batches, tensors), idle.compiled
            decided("path", "dense: one update in a call, with the gradient of a function")
            runner = CallableRunner(made.session, made.forward, made.step, taken.buffers, batches, given)
            return Runners(taken.buffers, runner, lambda: runner, partial(idle.give_back, taken))
        is_kept = opened is None and not is_sparse
        path = known.paths.get((batches.n_batches, epochs)) if is_kept else None
        if path is None:
            path = self._choose_path(spec, idle.compiled, batches, epochs, is_open=opened is not None)
            if is_kept:
                known.keep(batches.n_batches, epochs, path)
        decided("path", path.reason[0], path.reason[1])
        return self.bound(idle, path, known, n_threads, batches, tensors)

    def bound(
        self,
        idle: IdleRunners,
        path: Path,
        known: KnownStep,
        n_threads: int,
        batches: Batches,
        tensors: Mapping[tuple[str, str], np.ndarray],
    ) -> Runners:
        """Return the runners of a compiled step on these data, which make the updates in the given way."""
        taken, linear, squares = idle.take(batches, tensors), path.linear, None
        if linear is None:
            fastest: Any = taken.loop if path.is_loop else taken.single
        else:
            fastest = linear.runner(partial(self._linear_session, linear, known, n_threads), taken, batches)
            squares = None if linear.blocks is None else fastest.squares
        give_back = partial(idle.give_back, taken)
        return Runners(taken.buffers, fastest, lambda: taken.single, give_back, squares=squares)

    def _linear_session(self, linear: LinearLoop, known: KnownStep, n_threads: int) -> Any:
        """Return the session of the short loop of a linear model."""
        tail, build = self.parts.tail, partial(linear.build, self.parts.split.tail)
        key = ("linear", tail.key, known.key, n_threads, *linear.key)
        return cached(key, lambda: make_session(build(), n_threads), tail.nbytes, n_threads=n_threads)

    def _choose_path(
        self, spec: StepSpec, compiled: CompiledOnUse, batches: Batches, epochs: int, *, is_open: bool
    ) -> Path:
        """Choose the way of the updates of a step, which may be one for batches of any length.

        Steps of optimizers of equal structure are compiled once: their numbers are those of `spec` alone.
        """
        recipe = self.plan.recipe
        # a named rate calls the runtime for each epoch: with one batch in it there is nothing to repeat
        repeats = batches.n_batches > 1 or recipe.is_auto
        is_long = epochs * batches.n_batches >= _MANY_STEPS
        is_stream = recipe.is_auto and recipe.in_parts and self.is_linear
        least = _MANY_BATCHES_OF_STREAM if is_stream else _MANY_BATCHES
        is_short = not repeats or not (is_long or batches.n_batches >= least)
        if batches.is_sparse or is_short or is_open:
            reason = "few updates" if is_short else "batches of any length" if is_open else "sparse data"
            return Path(False, ("dense: one update in a call: %s", reason))
        linear = choose_linear_loop(self.parts.split.tail, spec, self.first_layers, batches)
        if linear is None:
            can_repeat = compiled.can_repeat
            many = "the updates of an epoch in a call"
            kind = many if can_repeat else "one update in a call: no standard operators"
            return Path(can_repeat, ("dense: %s", kind))
        if is_long or is_stream:
            return Path(True, ("dense: %s", "the updates of an epoch of a linear model in a call"), linear)
        return Path(False, ("dense: one update in a call: %s", "few updates"))

    def compiled(self, known: KnownStep, n_threads: int) -> IdleRunners:
        """Return the runners of a step, which is compiled when it is needed."""
        tail, graph, spec = self.parts.tail, self.parts.split.tail, known.spec

        def build() -> IdleRunners:
            return IdleRunners(CompiledOnUse(partial(build_step, graph, spec), spec, n_threads))

        return cached(("step", tail.key, known.key, n_threads), build, tail.nbytes, n_threads=n_threads)

    def _open_step(self, spec: StepSpec, batches: Batches, n_threads: int) -> IdleRunners | None:
        """Return the runners of the step for batches of any length, if they have several and it is proven."""
        if not self.plan.has_lengths or batches.is_sparse or not may_be_open(spec):
            return None
        tail, shapes = self.parts.tail, open_row_shapes(self.parts.split.tail, batches.features)
        if shapes == spec.row_shapes:
            return None
        opened = self.compiled(KnownStep(replace(spec, row_shapes=shapes)), n_threads)

        def prove() -> bool:
            closed = self.compiled(KnownStep(spec), n_threads)
            return agrees(opened.compiled, closed.compiled, dict(batches.features))

        is_proven = cached(("open step", tail.key, opened.compiled.spec.key, n_threads), prove)
        return opened if is_proven else None

    def _resident_runners(self, spec: StepSpec, batches: Batches, epochs: int) -> Runners:
        """Return runners on a device with resident data; equal blocks share a session."""
        from onnxsgd.engine.step.cuda_blocks import Block, block_sizes
        from onnxsgd.engine.step.device_loop import ResidentRunner, check_data

        device, parts = self.plan.device, self._parts_of_updates()
        tail = parts.split.tail
        check_data(batches, device)
        key = (parts.tail.key, spec.key, device)
        step = cached(("step", *key), lambda: build_step(tail, spec, with_transposes=False))
        if not is_standard(step):
            raise UnsupportedError(
                f"device={str(device)!r} needs a training step of standard operators, and the step of "
                f"the engine {spec.engine!r} has others: use engine='portable', or device='cpu'."
            )
        try:
            blocks = {
                size: cached(
                    ("block", *key, size), partial(Block, step, spec.loss, size, device), device=device
                )
                for size in block_sizes(step, batches)
            }
        except (EngineError, UnsupportedError) as error:
            if spec.half is None:
                raise
            raise EngineError(
                f"{error} The training step computes in {spec.half} there: dtype='float32' trains the graph "
                "in float32."
            ) from error
        runner = ResidentRunner(blocks, step, batches, device, epochs)
        skipped = (lambda: runner.n_skipped) if spec.scales_loss else None
        return Runners(runner.buffers, runner, lambda: runner, skipped=skipped)

    def _parts_of_updates(self) -> Parts:
        """Return the parts whose tail the updates compute: in 16 bits, those of the graph as it was given."""
        learner, half = self.plan.learner, self.plan.learner.half_precision
        if self.plan.half is None or half is None:
            return self.parts
        parts = half.undivided if self.parts is learner.undivided else half.divided
        ends, known = sorted(parts.split.features), sorted(self.parts.split.features)
        if ends != known:
            raise UnsupportedError(
                f"The frozen part of the graph ends at {ends} in {self.plan.half}, and at {known} in "
                "float32, in which it is computed: train the graph with dtype='float32'."
            )
        return parts


def step_work(spec: StepSpec, tensors: Mapping[tuple[str, str], np.ndarray]) -> int:
    """Return the multiplications of an update, estimated from the sizes of the weights and their states."""
    return 3 * spec.batch_size * sum(map(_size, tensors.values()))


def _with_usual_unit(target: np.ndarray) -> np.ndarray:
    """Return targets of shape [n_samples, n_outputs] without outliers, or with closer ones.

    Targets that are large, not extreme, may be the signal: the deviation is a sixteenth of that with them at
    least, and the rate of a linear model may grow by as much.
    """
    usual, with_large = clipped(target, USUAL), target.std(axis=0)
    for column, is_kept in bulk(target, with_large).items():
        with_large[column] = target[is_kept, column].std()
    middle, deviation = usual.mean(axis=0), usual.std(axis=0)
    factor = np.maximum(1.0, _LEAST_OF_UNIT * with_large / np.where(deviation > 0, deviation, 1.0))
    return np.asarray(middle + factor * (usual - middle))


def make_program(plan: FitPlan, features: Features) -> Program:
    """Return the program of a fit on data like `features`; the training step is not compiled yet.

    The results of the frozen part are stored for all samples if they fit into memory. Otherwise they are
    computed for each batch where training finds the rate, so that they are standardised as stored ones are;
    at a named rate, on a device with resident data and for sparse data whose results would be dense, the
    frozen part is computed in each step, and its results are not standardised.
    """
    kind = _kind(features)
    program = plan.programs.get(kind)
    if program is None:
        program = replace(_new_program(plan, features), is_plain=kind is not None)
        if kind is not None and len(plan.programs) < _MOST_SPECS:
            plan.programs[kind] = program
    _report(program, features)
    return program


def _kind(features: Features) -> Hashable:
    """Return what the program of dense data depends on, beside the plan; None: data are of another kind."""
    kind = []
    for name, array in features.items():
        if type(array) is not np.ndarray or array.nbytes > _SMALL_BYTES:
            return None
        kind.append((name, array.shape, array.dtype))
    return tuple(kind)


def _new_program(plan: FitPlan, features: Features) -> Program:
    """Return a new program; see :func:`make_program`."""
    learner = plan.learner
    is_sparse = _is_sparse(features)
    program = Program(plan, learner.sparse_parts() if is_sparse else learner.divided)
    has_strings = any(value.dtype == ir.DataType.STRING for value in learner.inputs)
    stays_sparse = is_sparse and bool(learner.multiples)
    if program.parts.frozen and not stays_sparse and not has_strings and not _fits(program, features):
        standardises = plan.recipe.is_auto and not plan.device.keeps_data
        program = replace(program, stores=False) if standardises else Program(plan, learner.undivided)
    _refuse_strings(program.parts.split.tail)
    _refuse_single_rows(plan, program.parts.split.tail)
    return program


def _report(program: Program, features: Features) -> None:
    """Report the place where the frozen part is computed, if there is one."""
    learner, frozen = program.plan.learner, program.parts.frozen
    if frozen and program.stores:
        decided("frozen", "computed once: %d tensors for each sample", len(frozen))
    elif frozen or not (program.parts is learner.divided or _is_sparse(features)):
        place = "for each batch" if frozen else "in each update"
        decided("frozen", "computed %s: the results of all samples are too large", place)


def _are_large_maps(features: Features) -> bool:
    """Tell whether memory maps among some tables are large together."""
    mapped = [table.nbytes for table in features.values() if is_mapped(table)]
    return bool(mapped) and sum(mapped) >= _LARGE_MAP


def _is_sparse(features: Features) -> bool:
    return any(map(is_sparse, features.values()))


def _warn_of_extremes(table: Any, moments: Moments, least_width: float, *, is_bounded: bool = False) -> None:
    """Warn if a few extreme entries decide the minimum of a loss, or count little in one that is bounded."""
    is_dense = isinstance(table, np.ndarray | RowTable) and table.ndim == 2
    found = bulk(table, moments.deviation(), least_width) if is_dense else {}
    if found:
        rows = np.flatnonzero(~np.logical_and.reduce(list(found.values())))
        warnings.warn(
            f"{len(rows)} of {len(table)} rows, such as {rows[:3].tolist()}, have extreme entries, in "
            f"{len(found)} of {table.shape[1]} columns. "
            + (
                "They count little, and predictions for such rows may be far off: clip these columns, also "
                "before predict."
                if is_bounded
                else "They decide a squared loss, and the other rows are hardly learned: remove or clip "
                "them, or choose a loss with a bounded derivative, such as loss='huber'."
            ),
            ConvergenceWarning,
            stacklevel=5,
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


def _refuse_single_rows(plan: FitPlan, tail: ir.Model) -> None:
    """Refuse batches of one row, if each layer that normalises by statistics of the batch reads a matrix."""
    statistics = plan.learner.statistics
    layers = [node for node in batch_normalizations(tail.graph) if required(node, 3).name in statistics]
    if plan.batch_size == 1 and layers and all(rank(node.inputs[0]) == 2 for node in layers):
        raise ParameterError(
            "batch_size=1 has no effect on the statistics of BatchNormalization: a batch of one value has no "
            "variance. Raise batch_size, or freeze the statistics with batch_norm='frozen'."
        )


def _fits(program: Program, features: Features) -> bool:
    """Tell whether the frozen part's results for all samples may be stored, estimated from the first one."""
    made = program.tail_features(take_rows(features, slice(0, 1)))
    computed = program.parts.frozen.keys() - program.copies_of(is_sparse=_is_sparse(features)).keys()
    nbytes = n_rows(features) * sum(made[name].nbytes for name in computed)
    given = [array.data if sparse.issparse(array) else array for array in features.values()]
    if program.parts.split.converts and all(array.dtype.kind in "iu" for array in given):
        return bool(nbytes <= _KEPT_CONVERTED)
    in_memory = sum(array.nbytes for array in given if not is_mapped(array))
    return bool(nbytes <= max(_KEPT_BYTES, in_memory))


def _cast_target(target: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return targets in the type of the graph; refuse those that it does not hold."""
    if target.dtype == dtype:
        return np.ascontiguousarray(target)
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(target, dtype)
    except FloatingPointError:
        largest = target.flat[np.abs(target).argmax()]
        raise ParameterError(
            f"y holds {largest:g}, and numbers of {dtype} end at {np.finfo(dtype).max:.2g}: scale y, or give "
            "dtype='float64'."
        ) from None
