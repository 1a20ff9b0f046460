"""The specification of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from onnxsgd._cache_keys import cache_key
from onnxsgd._cached_property import cached_property
from onnxsgd.engine.step.dropout_masks import KEYS
from onnxsgd.engine.step.gradient_limits import DESCENT
from onnxsgd.engine.step.update import (
    ACTIVE,
    AVERAGE,
    AVERAGE_RATE,
    IS_LAST,
    L1_TOTAL,
    MULTIPLIER,
    PENALTY_SCALE,
    PRECONDITIONER,
    RATE_SCALE,
    WEIGHT,
    state_names,
)
from onnxsgd.losses import DenseLoss, Loss
from onnxsgd.optimizers import L1_STRENGTH, RATE, SGD, Optimizer

__all__ = ["OUTPUT_RATE", "StepSpec", "WeightGroup", "is_plain_sgd", "numbered"]

T = TypeVar("T")

#: The rate of the last layer, which its update takes in place of the others' rate.
OUTPUT_RATE = "output_rate"


@dataclass(frozen=True)
class WeightGroup:
    """Weights whose updates have numbers of their own: strengths of the penalty, or a factor of the rate.

    Attributes
    ----------
    weights : tuple of str
        Their names.
    has_rate : bool
        Whether all numbers of the optimizer are their own; otherwise those that depend on the strengths.
    can_freeze : bool
        Whether there are updates that leave the weights, and their states, as they are.
    """

    weights: tuple[str, ...]
    has_rate: bool = False
    can_freeze: bool = False


@dataclass(frozen=True)
class StepSpec:
    """The parameters of a step, beside the graph. Equal specifications compile to the same step.

    Attributes
    ----------
    weights : tuple of str
        The initializers that are trained.
    penalised : frozenset of str
        Those of them that penalties apply to.
    loss : Loss
        The loss.
    optimizer : Optimizer
        The update rule; its numbers are inputs of the step.
    l1, l2 : bool
        Whether there is a penalty of that kind; its strength is an input of the step.
    average : bool
        Whether running averages of the weights are kept.
    batch_size : int
        Rows of a batch.
    n_outputs : int
        Columns of the raw prediction, flattened.
    engine : str
        The gradient engine.
    row_shapes : tuple of (str, tuple of int or str)
        The shape of a row of each feature; needed only for those whose shape the graph leaves open. A symbol
        stands for a size that differs between batches.
    output_weights : frozenset of str
        The weights that have the number "output_rate" in place of "rate".
    statistics : tuple of str
        The running statistics of BatchNormalization that the step updates; its layers normalise by the
        statistics of the batch.
    draws : bool
        Whether Dropout nodes act: their masks depend on two numbers of the update.
    rate_scales : tuple of (str, tuple of int)
        The weights whose rate has a constant factor, or one for each output, with the shape of these factors.
    penalty_scales : tuple of (str, tuple of int)
        The weights whose penalty has a factor for each column of the data, with the shape of these factors.
    preconditioned : tuple of (str, int)
        The weights whose gradient has a preconditioner, with the axis of the columns of the data.
    products : tuple of str
        The inputs that are products of sparse data and weights; their gradients are outputs of the step.
    gradient_factors : tuple of (str, float)
        The weights whose gradient is multiplied by a constant, with this constant.
    limits : tuple of str
        The numbers that limit the gradient, see :mod:`onnxsgd.engine.step.gradient_limits`.
    groups : tuple of WeightGroup
        Weights whose updates have numbers of their own, inputs of the step too.
    from_start : frozenset of str
        The weights whose penalty is that of the distance from the first weights.
    norm_axes : tuple of (str, tuple of int)
        The weights whose l1 penalty is of the norms of groups, with the axes that these span.
    accumulates : bool
        Whether an update follows the gradient of several batches.
    half : str or None
        The type of 16 bits that both passes compute in, "float16" or "bfloat16", see
        :mod:`onnxsgd.engine.step.mixed_precision`; None: that of the weights.
    """

    weights: tuple[str, ...]
    penalised: frozenset[str]
    loss: Loss
    optimizer: Optimizer
    l1: bool
    l2: bool
    average: bool
    batch_size: int
    n_outputs: int
    engine: str
    row_shapes: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    output_weights: frozenset[str] = frozenset()
    statistics: tuple[str, ...] = ()
    draws: bool = False
    rate_scales: tuple[tuple[str, tuple[int, ...]], ...] = ()
    penalty_scales: tuple[tuple[str, tuple[int, ...]], ...] = ()
    preconditioned: tuple[tuple[str, int], ...] = ()
    products: tuple[str, ...] = ()
    gradient_factors: tuple[tuple[str, float], ...] = ()
    limits: tuple[str, ...] = ()
    groups: tuple[WeightGroup, ...] = ()
    from_start: frozenset[str] = frozenset()
    norm_axes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    accumulates: bool = False
    half: str | None = None

    @property
    def n_targets(self) -> int:
        """Columns of the target: those of the raw prediction, unless elements of a sample have labels."""
        return self.loss.n_targets if isinstance(self.loss, DenseLoss) else self.n_outputs

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key of the compiled step: the present specification, less the optimizer's numbers."""
        return (
            self.weights, self.statistics, self.draws, self.penalised,
            cache_key(self.loss), self.optimizer.structure, self.l1, self.l2,
            self.average, self.batch_size, self.n_outputs, self.engine, self.row_shapes, self.output_weights,
            self.rate_scales, self.penalty_scales, self.preconditioned, self.products,
            self.gradient_factors, self.limits, self.groups, self.from_start, self.norm_axes,
            self.accumulates, self.half,
        )  # fmt: skip

    @property
    def takes_scaled_gradient(self) -> bool:
        """True if the gradient is multiplied by minus the learning rate outside the step.

        A gradient with limits is multiplied inside, behind them, and one of 16 bits in float32.
        """
        return self.optimizer.takes_scaled_gradient and not (self.limits or self.half)

    @property
    def scales_loss(self) -> bool:
        """True if the gradient is that of a scaled loss: bfloat16 has the range of float32."""
        return self.half == "float16"

    @property
    def needs_general_step(self) -> bool:
        """True if the updates need the general step.

        The special steps, of linear models and of sparse data, never hold the gradients of all weights, each
        as a whole, and know no penalty of the distance from the first weights, statistics of the batch, or
        masks.
        """
        return bool(self.limits or self.from_start or self.statistics or self.draws or self.accumulates)

    def states(self, weight: str) -> tuple[str, ...]:
        """Return the names of the tensors kept for `weight`."""
        return state_names(
            self.optimizer, l1=self.l1 and weight in self.penalised, average=self.average,
            penalty_scale=weight in dict(self.penalty_scales), rate_scale=weight in dict(self.rate_scales),
            preconditioner=weight in dict(self.preconditioned),
            start=weight in self.from_start, accumulates=self.accumulates,
        )  # fmt: skip

    @property
    def kinds_of_statistics(self) -> tuple[str, ...]:
        """The tensors kept for a running statistic: itself, and its average beside averages of weights."""
        return (WEIGHT, AVERAGE) if self.average else (WEIGHT,)

    def state_shape(self, weight: str, kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a tensor kept for `weight`, which has the given shape."""
        if kind == PENALTY_SCALE:
            return dict(self.penalty_scales)[weight]
        if kind == PRECONDITIONER:
            n_columns = shape[dict(self.preconditioned)[weight]]
            return n_columns, n_columns
        rates = dict(self.rate_scales).get(weight, (1,) * len(shape))
        if kind == RATE_SCALE:
            return rates
        return self.optimizer.slot_shape(kind, shape, rates) if kind in self.optimizer.slots else shape

    def numbers_of(self, weight: str, numbers: Mapping[str, T]) -> dict[str, T]:
        """Return the numbers of a step that the update of `weight` takes."""
        of_all = {*self.limits, DESCENT, IS_LAST, *KEYS}
        taken = {name: numbers[name] for name in self._common_scalars if name not in of_all}
        for number, group in enumerate(self.groups, start=1):
            if weight in group.weights:
                taken |= {name: numbers[numbered(name, number)] for name in self.scalars_of_group(group)}
        output_rate = taken.pop(OUTPUT_RATE, None)
        if output_rate is not None and weight in self.output_weights:
            taken[RATE] = output_rate
        if weight not in self.penalised:
            taken.pop(L1_STRENGTH, None)
        return taken

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalar inputs of a step."""
        of_groups = (
            numbered(name, number)
            for number, group in enumerate(self.groups, start=1)
            for name in self.scalars_of_group(group)
        )
        return (*self._common_scalars, *of_groups)

    @cached_property
    def scalars_of_batches(self) -> tuple[int, ...]:
        """The indices of those that each batch of an update has of its own."""
        return tuple(number for number, name in enumerate(self.scalars) if name in (IS_LAST, *KEYS))

    @cached_property
    def _common_scalars(self) -> tuple[str, ...]:
        """Those of one rate and one penalty of all weights."""
        names = (*self._rate_scalars, *self._l1_scalars, *((AVERAGE_RATE,) if self.average else ()))
        descends = self.optimizer.takes_scaled_gradient and not self.takes_scaled_gradient
        descent = (DESCENT,) if descends else ()
        last = (IS_LAST,) if self.accumulates else ()
        return (*names, *self.limits, *descent, *last, *(KEYS if self.draws else ()))

    @property
    def _l1_scalars(self) -> tuple[str, ...]:
        return ((L1_STRENGTH if self.optimizer.is_proximal else L1_TOTAL),) if self.l1 else ()

    @cached_property
    def _rate_scalars(self) -> tuple[str, ...]:
        """The names of the numbers that depend on the rate."""
        names = tuple(self.optimizer.scalars(np.ones(1), np.ones(1), 0.0))
        return (*names, *((OUTPUT_RATE,) if self.output_weights else ()))

    def scalars_of_group(self, group: WeightGroup) -> tuple[str, ...]:
        """Return the names of the numbers that the updates of a group have of their own."""
        if not group.has_rate:
            return self._strength_scalars
        of_rate = {MULTIPLIER: self.optimizer.takes_scaled_gradient, ACTIVE: group.can_freeze}
        further = (name for name, is_used in of_rate.items() if is_used)
        return (*self._rate_scalars, *self._l1_scalars, *further)

    @property
    def _strength_scalars(self) -> tuple[str, ...]:
        """The names of the numbers that depend on the strengths of the penalty."""
        without, with_decay = (self.optimizer.scalars(np.ones(1), np.ones(1), l2) for l2 in (0.0, 0.5))
        decays = (name for name in without if np.any(np.not_equal(without[name], with_decay[name])))
        return (*decays, *self._l1_scalars)


def numbered(name: str, number: int) -> str:
    """Return the name of a number of the group `number`, counted from 1; 0: of the other weights."""
    return f"{name}_{number + 1}" if number else name


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """Return True for stochastic gradient descent without momentum; a subclass may have another formula."""
    return type(optimizer) is SGD and not optimizer.slots
