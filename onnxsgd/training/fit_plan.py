"""The plan of a fit: the settings that are fixed once its model is known."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from onnxsgd import losses
from onnxsgd._cached_property import cached_property
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.input_axes import input_axis
from onnxsgd.graph.nodes import shape_of
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.reading.output_layer import NO_LAYER, OutputLayer
from onnxsgd.learner.learner import Learner
from onnxsgd.optimizers import LEAST_FACTOR, REST, BlockAdam, Optimizer
from onnxsgd.penalties import Penalty, PenaltyTable
from onnxsgd.runtime.device import Device
from onnxsgd.schedules import Auto, Schedule
from onnxsgd.training.rate_multipliers import RateMultiplier
from onnxsgd.training.update_groups import UpdateGroup, make_groups

if TYPE_CHECKING:
    from onnxsgd.training.program import KnownStep, Program

__all__ = ["DENSE_ROWS", "FitPlan", "Recipe"]

#: The rows of a batch unless they are named.
DENSE_ROWS = 32
#: Those of a fit on sparse data that finds its rate: the first number, or as many, up to the second, as leave
#: an epoch the third number of updates. An update takes some 20 calls of numpy. Of 14 generated data sets of
#: few rows, batches of 32 rows score no better than 128, and those of 256 rows one worse by 0.05; 10,000 rows
#: of ``benchmarks/sparse.py`` end at the same scores with 128, 256 and 512. 3,300 and 6,500 rows of texts,
#: codes and binary features, 24 fits with four seeds: 0.5 to 1.0 of the time with 12 updates in place of 16,
#: and no accuracy is worse by more than 0.003, but for one hinge (0.929, 0.935 before); with 8 updates 4,200
#: codes lose 0.01.
_SPARSE_ROWS, _MOST_SPARSE_ROWS, _SPARSE_UPDATES = 128, 512, 12
#: The same for a linear model on dense data. 100,000 rows end at the same scores with 128 as with 32, after a
#: fifth of the updates; 150 to 600 rows take as long.
_MOST_LINEAR_ROWS, _LINEAR_UPDATES = 128, 64
#: An epoch, and a call of ``partial_fit``, have this many updates at least, unless batches had fewer rows
#: than the last number.
_FEWEST_UPDATES, _FEWEST_UPDATES_OF_PART, _FEWEST_ROWS = 2, 8, 8
#: Losses that grow no faster than the raw prediction.
_BOUNDED = frozenset(
    {
        losses.AbsoluteError, losses.CrossEntropy, losses.EpsilonInsensitive, losses.Focal, losses.Hinge,
        losses.Huber, losses.LogCosh, losses.LogLoss, losses.ModifiedHuber, losses.MulticlassHinge,
        losses.MultinomialFocal, losses.Perceptron, losses.Quantile,
    }
)  # fmt: skip
#: The largest share of the first rate for networks: units of random ones die at large rates, whose steps
#: replace the weights of a wide layer in a few updates. ``benchmarks/random_networks.py``: with 1.0, 30 of 69
#: fits end below Adam's accuracy by more than 0.04, down to chance; with 0.25, one of chance; with 0.1, none,
#: also where the rate grows up to 1.0 while large gains last.
_SHARE_OF_NETWORK = 0.1
#: The share of the first rate in streams of means and variances: residuals of a variance that is too small
#: have large gradients. Twenty kinds of streams of 300 and 3,000 rows in calls of 8, 33 and 100: the mean
#: negative log-likelihood is 0.31 above that with it; with 0.2 it is the same, and in single rows 0.18 above.
_SHARE_OF_VARIANCES = 0.3
#: The losses of the sizes of residuals.
_OF_SIZES = (losses.Huber, losses.AbsoluteError, losses.LogCosh, losses.EpsilonInsensitive)
#: The steering of the rate in a stream.
_STEERING = 0.1
#: The rows of an update, for each column and in all, from either of which on cosines of a linear classifier
#: on sparse data are compared with REST; those of fewer rows are compared with as much less. Texts of 2 and
#: 6 topics in 2,500 single rows have an accuracy of 0.95 and 0.80 in place of 0.63 and 0.43, of 6 topics in
#: calls of 8 rows 0.92 in place of 0.88, of 2 topics 0.98 in place of 0.99; counts of five factors lose up
#: to 0.04 in single rows. Dense columns are often correlated, and few directions then have all of the
#: noise: with this rule, the weights of 400 columns of 20 factors, and of good networks, are lost within
#: 4,000 single rows.
_ROWS_OF_REST = 1 / 23, 16
#: The share of the moment in steps of linear regressions. ``benchmarks/streams.py``, single rows, eight
#: draws, with 0.3, 0.4 and 0.5: an hourly table has an R2 of 0.90, 0.64 and 0.50. Without a moment, narrow
#: columns follow the noise of single batches: on raw columns R2 is 0.71 in place of 0.73, in calls of 50.
_INERTIA_OF_LINEAR = 0.25
#: The rest of others in multiples of the square of the cosine and the rows of an update, where these are at
#: most the second number. ``benchmarks/streams.py``, single rows: 1,200 of 300 columns have an R2 of 0.75 in
#: place of 0.56, of 100 columns an accuracy of 0.81 in place of 0.77, five classes 0.82 and 0.80, a network
#: that knows little an R2 of 0.59 and 0.52.
_SQUARE_REST, _ROWS_OF_SQUARE_REST = 3.0, 4


@dataclass(frozen=True)
class Recipe:
    """The settings of the updates, which do not depend on the model.

    Attributes
    ----------
    optimizer, schedule : objects
        The update rule, the learning rate.
    penalties : PenaltyTable
        The penalties of the weights.
    average_from : int
        The update at which averaging starts; 0: never.
    shuffle : bool
        Whether each epoch has a new random order.
    in_blocks : bool
        Whether that order keeps blocks of neighbours near each other.
    in_parts : bool
        Whether the updates are those of ``partial_fit``.
    average_decay : float or None
        The decay of exponential averages; None: all updates count the same.
    limits : tuple of (str, float)
        The limits of the gradient by name, see :mod:`onnxsgd.engine.step.gradient_limits`.
    """

    optimizer: Optimizer
    schedule: Schedule
    penalties: PenaltyTable
    average_from: int
    shuffle: bool
    in_blocks: bool = False
    in_parts: bool = False
    average_decay: float | None = None
    limits: tuple[tuple[str, float], ...] = ()

    @cached_property
    def is_auto(self) -> bool:
        """True if training finds the rate, and standardises first layers."""
        return isinstance(self.schedule, Auto)

    @cached_property
    def slots_owner(self) -> str:
        """The name of all that gives the slots of the optimizer their meaning."""
        optimizer = self.optimizer
        coordinates = "standardised" if self.is_auto else "raw"
        return f"{_class_name(optimizer)} {'/'.join(optimizer.slots)} {coordinates}"

    @cached_property
    def rate_owner(self) -> str:
        """The name of the schedule, with its parameters, that gives the present rate its meaning."""
        return _with_parameters(self.schedule)

    def for_parts(self) -> Recipe:
        """Return the recipe of ``partial_fit``, which steers the rate if training finds it."""
        optimizer = self.optimizer
        if self.is_auto and isinstance(optimizer, BlockAdam) and not optimizer.steering:
            optimizer = _changed(optimizer, steering=_STEERING)
        return replace(self, optimizer=optimizer, in_parts=True)

    def for_updates(self, n_updates: int | None, epoch_updates: int | None) -> Recipe:
        """Return the recipe of `n_updates` updates in epochs of `epoch_updates`; None: they are unknown."""
        schedule = self.schedule.for_epochs(epoch_updates).for_updates(n_updates)
        return self if schedule is self.schedule else replace(self, schedule=schedule)

    @cached_property
    def is_endless(self) -> bool:
        """True if the schedule is one for any number of updates, without an end."""
        kind = type(self.schedule)
        names = ("for_epochs", "for_updates", "last_update")
        return all(getattr(kind, name) is getattr(Schedule, name) for name in names)

    def check_rate(self, t: int, eta: float) -> None:
        """Refuse further updates, of a rate of 0, after the end of the schedule.

        Raises
        ------
        ParameterError
            If the schedule ended before update `t`, at rate 0.
        """
        last = self.schedule.last_update
        if last is not None and t > last and not self.schedule.rates(t, eta, 1)[0]:
            raise ParameterError(
                f"learning_rate={self.schedule!r} ended at rate 0 with update {last}: more updates would "
                f"change nothing. Give eta_min, a number > 0, or n_updates, a number above {t}, or another "
                "learning_rate."
            )


def _changed(optimizer: BlockAdam, **values: float | None) -> BlockAdam:
    """Return a copy with other values of some fields; a subclass need not take them when it is made."""
    made = copy(optimizer)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _class_name(thing: object) -> str:
    # the public module: saved states keep this name
    return f"{type(thing).__module__.partition('._')[0]}.{type(thing).__qualname__}"


def _rest(n_columns: int, n_rows: int) -> float:
    """Return the cosine of gradients of sparse rows that leaves a steered rate as it is.

    A gradient of n samples with d independent columns has the signal s, and noise of variance ``d / n`` in
    units of that of the target: where noise dominates, its cosine with a mean of others grows with
    ``n s^2 / d``. With a bound that does not, rates fall before much is learned.
    """
    of_columns, least = _ROWS_OF_REST
    return REST * min(1.0, n_rows / min(max(1.0, of_columns * n_columns), least))


def _with_parameters(schedule: Schedule) -> str:
    """Return the name of a schedule with its parameters, those of one inside it too."""
    named = [
        (name, _with_parameters(value) if isinstance(value, Schedule) else value)
        for name, value in sorted(vars(schedule).items())
    ]
    return f"{_class_name(schedule)} {named}"


def _power_of_two(number: int) -> int:
    """Return the largest one that is not above a number; 0 for 0."""
    return 1 << number.bit_length() >> 1


@dataclass(frozen=True)
class FitPlan:
    """The settings of a fit.

    Attributes
    ----------
    learner : Learner
        The trainable graph.
    loss : Loss
        The loss.
    recipe : Recipe
        The settings of the updates.
    engine : str
        The gradient engine in use.
    device : Device
        The device of the updates.
    n_outputs : int
        Raw predictions of a sample.
    batch_size : int
        Samples of a batch.
    is_batch_named : bool
        Whether the user named that number; otherwise fits on sparse data that find the rate have larger ones.
    n_threads : int or None
        Threads on the CPU; None: chosen by the size of the graph.
    output_layer : OutputLayer
        The last layer, if known.
    is_regression : bool
        Whether the target is one of real numbers.
    multipliers : mapping of str to RateMultiplier
        The multipliers of the rates of weights.
    missed : mapping of str to int
        The updates in which weights were frozen before this fit.
    n_accumulated : int
        Batches of an update.
    is_exact : bool
        Whether batches have that number of rows also where training finds the rate and samples are few.
    has_lengths : bool
        Whether batches differ in sizes that the graph leaves open: one step is then compiled for all, where
        that is possible.
    """

    learner: Learner
    loss: losses.Loss
    recipe: Recipe
    engine: str
    device: Device
    n_outputs: int
    batch_size: int
    is_batch_named: bool
    n_threads: int | None
    output_layer: OutputLayer = NO_LAYER
    is_regression: bool = False
    multipliers: Mapping[str, RateMultiplier] = field(default_factory=dict)
    missed: Mapping[str, int] = field(default_factory=dict)
    n_accumulated: int = 1
    is_exact: bool = False
    has_lengths: bool = False

    @cached_property
    def has_target_units(self) -> bool:
        """True if raw predictions have the units of the target."""
        return self.is_regression and self.loss.link != "log"

    def is_linear(self, layers: Iterable[FirstLayer]) -> bool:
        """Tell whether the last layer, as far as it is known, is one of these first layers."""
        last = {part.name for part in self.output_layer.weights}
        return not last.isdisjoint(layer.weight for layer in layers)

    def first_share(self, is_linear: bool) -> float:
        """Return the largest share of the first rate to begin with.

        Adapters have units of their own, and change a network that knows something.
        """
        return 1.0 if is_linear or self.learner.adapters else _SHARE_OF_NETWORK

    def optimizer_of(self, n_rows: int, *, is_linear: bool, n_sparse_columns: int | None = None) -> Optimizer:
        """Return the optimizer of a model: that of a stream steers its rate.

        Parameters
        ----------
        n_rows : int
            The rows of an update.
        is_linear : bool
            Whether the model is linear.
        n_sparse_columns : int or None
            The columns of sparse data; None: the data are dense.

        Notes
        -----
        The penalties of linear models count there. 30 kinds of streams of 3,000 rows in calls of 10, 50 and
        250, 5 draws each: with the penalties in the angle, R2 on raw columns of 1e-4 to 1e4 is 0.62 to 0.63
        in place of 0.38 to 0.54, the accuracy 0.67 to 0.69 in place of 0.64 to 0.67; where these drift R2 is
        0.55 to 0.64 in place of 0.42 to 0.50, and the accuracy between 0.007 more and 0.009 less. Others are
        the same to 0.005, with alpha=1e-4; digits with alpha=0.1 have 0.875 in place of 0.849 in calls of 10
        rows. Networks would gain nothing by it.

        The sizes of gradients of classifiers count. Networks with a class of 2 % have a balanced accuracy of
        0.72 to 0.74 in place of 0.55 to 0.62, and others the same accuracy to 0.006. Regressions lose by it:
        large gradients are those of extreme targets, or of small variances.
        """
        optimizer = self.recipe.optimizer
        if not (self.recipe.is_auto and self.recipe.in_parts and isinstance(optimizer, BlockAdam)):
            return optimizer
        rest, square_rest, inertia = optimizer.rest, optimizer.square_rest, optimizer.inertia
        if inertia is None and is_linear and self.is_regression:
            inertia = _INERTIA_OF_LINEAR
        if n_sparse_columns is not None and is_linear and not self.is_regression:
            rest = _rest(n_sparse_columns, n_rows) if rest is None else rest
        elif square_rest is None and n_rows <= _ROWS_OF_SQUARE_REST:
            square_rest = _SQUARE_REST * n_rows
        return _changed(
            optimizer,
            with_penalties=optimizer.with_penalties or is_linear,
            with_sizes=optimizer.with_sizes or not self.is_regression,
            rest=rest,
            square_rest=square_rest,
            inertia=inertia,
        )

    def rate_of_stream(self, is_linear: bool, columns: float) -> float:
        """Return the rate of a stream; factors of at least 0.03 multiply it.

        Parameters
        ----------
        is_linear : bool
            Whether the model is linear.
        columns : float
            The largest share of the first rate that the number of columns allows.
        """
        share = _SHARE_OF_VARIANCES if isinstance(self.loss, losses.GaussianNLL) else 1.0
        return self.recipe.schedule.initial * min(share, self.first_share(is_linear), columns / LEAST_FACTOR)

    @property
    def is_of_sizes(self) -> bool:
        """True if the loss is one of the sizes of residuals, at least of large ones, of both signs alike."""
        return type(self.loss) in _OF_SIZES

    @property
    def quantile(self) -> float | None:
        """The quantile of a target near which a constant has the least loss; None: that is the mean."""
        if isinstance(self.loss, losses.Quantile) and len(self.loss.score_factors) == 1:
            return float(self.loss.quantile)  # type: ignore[arg-type]
        return 0.5 if self.is_of_sizes else None

    @property
    def loss_has_scale(self) -> bool:
        """True if the size of scores counts; False: the loss is in proportion to them."""
        return not isinstance(self.loss, losses.Perceptron)

    @property
    def is_likelihood(self) -> bool:
        """True if the loss is that of probabilities of classes; False: of margins, or a regression's."""
        return self.loss.probabilities in ("sigmoid", "softmax")

    @property
    def n_hinges(self) -> int:
        """The hinge losses of a sample; 0: the loss is another one, or a perceptron's of several classes."""
        is_hinge = isinstance(self.loss, losses.Hinge) and (self.loss_has_scale or self.n_outputs == 1)
        return self.n_outputs if is_hinge else 0

    @cached_property
    def loss_unit(self) -> float | None:
        """The difference of losses that counts as large, if the loss has no least value."""
        unit = self.loss.unit
        return None if unit is None else unit * self.n_outputs / len(self.loss.score_factors)

    @cached_property
    def scaled_layer(self) -> OutputLayer:
        """The last layer, if each of its outputs has its own unit of rates; without weights otherwise."""
        return self.output_layer if self.is_regression else NO_LAYER

    @cached_property
    def penalties(self) -> dict[str, Penalty]:
        """The penalty of each weight that has one."""
        return {name: self.recipe.penalties.penalties[row] for name, row in self._penalty_rows.items()}

    @cached_property
    def strengths(self) -> tuple[tuple[Penalty, tuple[str, ...]], ...]:
        """The different penalties, each with its weights; there is one at least."""
        rows = self._penalty_rows
        return tuple(
            (self.recipe.penalties.penalties[row], tuple(name for name in rows if rows[name] == row))
            for row in sorted(set(rows.values())) or [0]
        )

    @cached_property
    def groups(self) -> tuple[UpdateGroup, ...]:
        """The weights that share the numbers of their updates; the first group has the common ones."""
        weights, (first, _) = self.learner.weights, self.strengths[0]
        return make_groups(weights, self.penalties, first, self.multipliers, self.missed)

    def penalised(self, group: UpdateGroup) -> tuple[str, ...]:
        """Return the weights of a group that have its penalty."""
        return tuple([name for name in group.weights if name in self.penalties])

    def check_penalties(self) -> None:
        """Refuse names that match no weight, and penalties of groups of weights that have none."""
        _ = self.input_axes

    @cached_property
    def input_axes(self) -> dict[str, int]:
        """The axis of the inputs of each weight whose penalty is of groups: the coefficients of one input.

        Raises
        ------
        UnsupportedError
            If a weight has no such axis.
        """
        initializers = self.learner.score_model.graph.initializers
        return {name: input_axis(initializers[name]) for name, p in self.penalties.items() if p.groups}

    @property
    def _norm_axes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The axes within a group of each of these weights."""
        initializers, axes = self.learner.score_model.graph.initializers, {}
        for name, axis in self.input_axes.items():
            axes[name] = tuple(i for i in range(len(shape_of(initializers[name]))) if i != axis)
        # a vector has groups of one element: the usual l1 penalty
        return tuple((name, spanned) for name, spanned in axes.items() if spanned)

    @cached_property
    def _penalty_rows(self) -> dict[str, int]:
        return self.recipe.penalties.assign(self.learner.weights, self.learner.intercepts)

    @cached_property
    def is_bounded(self) -> bool:
        """True if the derivative of the loss is bounded, so that weights bound the effect of extreme rows.

        The minimum of a squared loss is decided by such rows.
        """
        loss = self.loss.of_element if isinstance(self.loss, losses.DenseLoss) else self.loss
        return type(loss) in _BOUNDED

    def rows_of_update(
        self, n_samples: int, *, is_sparse_fit: bool = False, is_linear_fit: bool = False
    ) -> int:
        """Return the rows of an update of so many samples.

        Of each batch at most the next power of two, so that calls with few samples, of any number, share some
        compiled steps. Where training finds the rate, few samples make several updates.
        """
        if self.recipe.is_auto and not self.is_exact:
            size = self.batch_size * self.n_accumulated
            if is_sparse_fit and not self.is_batch_named:
                many = _power_of_two(n_samples // _SPARSE_UPDATES)
                size = min(max(_SPARSE_ROWS, many), _MOST_SPARSE_ROWS)
            elif is_linear_fit and not self.is_batch_named:
                size = min(max(size, _power_of_two(n_samples // _LINEAR_UPDATES)), _MOST_LINEAR_ROWS)
            n_updates = _FEWEST_UPDATES_OF_PART if self.recipe.in_parts else _FEWEST_UPDATES
            most = max(_FEWEST_ROWS, n_samples // n_updates)
            return min(size, _power_of_two(most), 1 << (n_samples - 1).bit_length())
        return self.n_accumulated * min(self.batch_size, 1 << (n_samples - 1).bit_length())

    def batches_of_update(self, n_rows: int) -> int:
        """Return the number of batches of an update of so many rows: each has a row at least."""
        return min(self.n_accumulated, n_rows)

    def for_updates(self, n_updates: int | None, epoch_updates: int | None) -> FitPlan:
        """Return the plan of `n_updates` updates in epochs of `epoch_updates`; None: they are unknown."""
        recipe = self.recipe.for_updates(n_updates, epoch_updates)
        return self if recipe is self.recipe else replace(self, recipe=recipe)

    @property
    def half(self) -> str | None:
        """The type of 16 bits that the updates compute in: that of the graph, on a device with kernels."""
        return self.learner.half_type if self.device.has_half_kernels else None

    @cached_property
    def programs(self) -> dict[Hashable, Program]:
        """The programs for data of each kind, so far."""
        return {}

    @cached_property
    def steps(self) -> dict[Hashable, KnownStep]:
        """The steps for batches of each size, and data of each shape, so far."""
        return {}

    @cached_property
    def step_spec(self) -> StepSpec:
        """The specification of the training step."""
        recipe, layer, penalties = self.recipe, self.scaled_layer, self.penalties.values()
        names = frozenset(part.name for part in layer.weights) if layer.is_even else frozenset()
        return StepSpec(
            weights=self.learner.weights, penalised=frozenset(self.penalties), loss=self.loss,
            optimizer=recipe.optimizer,
            l1=any(p.l1 is not None for p in penalties), l2=any(p.l2 is not None for p in penalties),
            average=recipe.average_from > 0, batch_size=self.batch_size, n_outputs=self.n_outputs,
            engine=self.engine, output_weights=names, statistics=self.learner.statistics,
            draws=bool(self.learner.dropouts),
            limits=tuple(name for name, _ in recipe.limits),
            from_start=frozenset(name for name, p in self.penalties.items() if p.from_start),
            groups=tuple(group.spec for group in self.groups[1:]), norm_axes=self._norm_axes,
            accumulates=self.n_accumulated > 1, half=self.half,
        )  # fmt: skip
