"""Adam with one second moment for each tensor, the default of training that finds its rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd._settable import check_flag, check_number
from onnxsgd.exceptions import ParameterError
from onnxsgd.optimizers._group_steps import TINY, shrink_groups
from onnxsgd.optimizers._optimizer import DECAY, L1_STRENGTH, RATE, Optimizer, check_shares

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = [
    "LEAST_FACTOR",
    "LOG_FACTOR",
    "MOST_SIZE",
    "MOST_STRENGTH",
    "REST",
    "TINY",
    "BlockAdam",
    "bound_of_pull",
    "least_divisor",
    "most_factor",
    "sized",
    "steered",
]

#: The slot of the logarithm of the factor of a steered rate, and the bounds of the factor.
LOG_FACTOR = "log_factor"
LEAST_FACTOR, _MOST_FACTOR, _MOST_OF_SIZES = 0.03, 4.0, 10.0
#: The most updates of a call whose corrections are kept: a bound of memory.
_FEW_UPDATES = 512
#: The cosine that leaves the factor as it is, unless another is given.
REST = 0.02
#: The share of the moment in the steps of a steered rate, unless another is given. ``benchmarks/streams.py``,
#: calls of 8, with 0.5, 1.0 and 0.0, and a decay rate of 0.9: rows with 0.98 of the one before have an R2 of
#: 0.84, -23 and 0.84, networks on rows that are alike 0.60, 0.15 and 0.59, a class of 3 % a balanced accuracy
#: of 0.70, 0.70 and 0.66 (1.0 and 0.0 with a largest factor of 10 in regressions too).
_INERTIA = 0.5
#: The decay rate of the first moment with a constant rate, unless another is given.
_BETA_1 = 0.9
#: The same with a steered rate: the gradients of the moment beside the last one, in parts whose numbers
#: approach these at a decay. Where successive rows are alike, gradients keep their direction for as long,
#: and a moment of 10 of them lets the rate grow until the model follows the last rows.
#: ``benchmarks/streams.py``, steps along the gradient: with decay rates of 0.9, 0.95 and 0.98 an hourly table
#: in single rows has an R2 of 0.88, 0.90 and 0.94, series of lags 0.51, 0.92 and 0.93. With 0.98 from the
#: start the large gradients of the first descent keep the rate small for hundreds of updates: of four normal
#: columns, coefficients are wrong by 0.08 after 960 rows in calls of 48, 0.01 as it is.
_GRADIENTS = (8.0, 0.9), (40.0, 0.995)
#: The largest mean square of a gradient, over the second moment, that counts. Streams of 6,000 rows in calls
#: of 8, six seeds: with a class of 2 % the log loss is 0.037 and the balanced accuracy 0.64, and 0.059 and
#: 0.50 where all gradients count the same; with 5 % 0.056 and 0.83, and 0.073 and 0.70. 30 other kinds of
#: streams of classes have the same accuracy to 0.01; thirty classes in calls of 5 rows have a balanced
#: accuracy of 0.62 in place of 0.65, and texts of 12 unequal topics in calls of 20 an accuracy of 0.66 in
#: place of 0.68 (log_loss), 0.74 in place of 0.755 (hinge). With 1.0 in place of 2.0 all are as good, to
#: 0.01.
MOST_SIZE = 2.0
#: The largest part of an l2 penalty in a moment that steers, as a power of the largest number: its squares
#: stay finite; and the largest strength of a penalty, whose products with weights do.
_MOST_PULL, MOST_STRENGTH = 0.4, 0.75
#: Keeps quotients of zeros finite in float64, whose least number is 2e-308. Gradients of the first layers for
#: targets of 1e-11 have squares of 1e-44.
_TINY_OF_DOUBLE = 1e-300


@dataclass(frozen=True)
class BlockAdam(Optimizer):
    """Adam with one second moment for each tensor, or output; penalties are proximal steps.

    ::

        m = beta_1 m + (1 - beta_1) gradient
        v = beta_2 v + (1 - beta_2) mean(gradient^2)
        k = eta / sqrt(v / (1 - beta_2^t)), and 0 for v = 0
        w = w - k / (1 - beta_1^t) m
        w = sign(w) max(|w| - k l1, 0) / (1 + k l2)

    All elements of a tensor have the same rate, as in SGD: directions are kept, and columns that outnumber
    the rows do no harm. In the last layer of a model of several targets the mean is over the elements of one
    of them, and k has a factor for each. The default of ``learning_rate="auto"``.

    With `steering`, steps are along a mean of the gradient and m, and each tensor multiplies the rate by a
    factor f of its own, at first 1, which follows the angle between the gradient and the moment before it::

        c = cos(gradient, m)
        f = f exp(steering (c - min(rest, square_rest c^2))), at least 0.03, at most 4 or 10
        k = f eta / sqrt(v / (1 - beta_2^t))
        w = w - k ((1 - inertia) gradient + inertia m / (1 - beta_1^t))

    Unless beta_1 is given, m is then the mean of as many gradients as have been, and at last of 49::

        n = 1 + 8 (1 - 0.9^(t - 1)) + 40 (1 - 0.995^(t - 1))
        m = m + (gradient - m) / n,   with 1 for 1 - beta_1^t

    Gradients that keep their direction make the steps longer, and gradients that turn, or of which noise is
    left, make them shorter: a stream that drifts is followed, and good weights are kept. Of noise in d equal
    directions the mean of c^2 is 1 / d, and c itself is small long before noise alone is left. With a
    `square_rest` in proportion to the samples of a gradient, small cosines are compared with less. Steps
    along m alone would go on in directions that samples, where successive ones are alike, have left, and
    steps along the gradient alone turn where the objective is steep. At the minimum of the objective the
    gradient of the loss keeps its direction too, as the penalty balances it there. The angle `with_penalties`
    is that between the gradient and m + p, the moment of gradients of the objective::

        p = (1 - beta_1^t) (l2 w + l1 sign(w))

    Where a weight is zero, the l1 part instead moves m towards zero. The products of this angle have the
    factor ``1 / (1 + k l2)``, with the f before: a step along the gradient is shorter by it where penalties
    are large. `with_sizes`, the change of log(f) is multiplied by the size of the gradient, at most twice
    that of others::

        s = min(mean(gradient^2) / v, 2)

    so that batches without a sample of a rare class, whose gradients are small, count little. As v begins
    with zero, the first gradients all count twice. The factor is at most 10 then, and 4 otherwise.

    Parameters
    ----------
    beta_1 : float or None, default=None
        The decay rate of the first moment, in [0, 1); None: 0.9, and one that grows to 0.98 with a steering.
    beta_2 : float, default=0.999
        The decay rate of the second moment, in [0, 1).
    steering : float, default=0.0
        The largest change of the logarithm of the factor in one update, >= 0; 0: no factor, but 0.1 in
        streams under ``learning_rate="auto"``.
    rest : float or None, default=None
        The cosine that leaves the factor as it is, in [0, 1), which needs a steering; None: 0.02, and less in
        streams of linear classifiers on sparse data under ``learning_rate="auto"``, where batches have fewer
        than 16 samples.
    square_rest : float or None, default=None
        The largest rest in multiples of the square of the cosine, > 0 and <= 1e30, which needs a steering;
        None: the rest is the same for all cosines. Streams under ``learning_rate="auto"``, but for linear
        classifiers on sparse data, have 3 for each sample of a batch of up to 4.
    with_penalties : bool, default=False
        Whether the penalties count in the angle, which needs a steering. Streams of linear models under
        ``learning_rate="auto"`` have it.
    with_sizes : bool, default=False
        Whether the size of the gradient counts, which needs a steering, and may double the change. Streams of
        classifiers under ``learning_rate="auto"`` have it.
    inertia : float or None, default=None
        The share of the moment in steps, in [0, 1], which needs a steering; None: 0.5, but 0.25 in streams of
        linear regressions under ``learning_rate="auto"``.

    References
    ----------
    Y. Zhang et al., "Adam-mini: Use Fewer Learning Rates To Gain More", ICLR 2025, has one second moment for
    each block too. N. Parikh, S. Boyd, "Proximal Algorithms", 2014, section 6.5.2, has the penalties. A. G.
    Baydin et al., "Online Learning Rate Adaptation with Hypergradient Descent", ICLR 2018, has the angle.
    """

    beta_1: float | None = None
    beta_2: float = 0.999
    steering: float = 0.0
    with_penalties: bool = False
    with_sizes: bool = False
    rest: float | None = None
    square_rest: float | None = None
    inertia: float | None = None

    def __post_init__(self) -> None:
        check_shares(self, *(["beta_2"] if self.beta_1 is None else ["beta_1", "beta_2"]))
        check_number("steering", self.steering, least=0)
        for name in ("with_penalties", "with_sizes"):
            check_flag(name, getattr(self, name))
            if getattr(self, name) and not self.steering:
                raise ParameterError(f"{name}=True has no effect with steering=0: give a steering > 0.")
        if self.rest is not None:
            check_number("rest", self.rest, least=0, below=1)
        if self.square_rest is not None:
            check_number("square_rest", self.square_rest, above=0, most=1e30)
        if self.inertia is not None:
            check_number("inertia", self.inertia, least=0, most=1)
        for name in ("rest", "square_rest", "inertia"):
            if (value := getattr(self, name)) is not None and not self.steering:
                raise ParameterError(f"{name}={value!r} has no effect with steering=0: give a steering > 0.")

    @property
    def averaged_updates(self) -> float:
        if self.first_decay is None:
            return 1.0 + sum(count for count, _ in _GRADIENTS)
        return 1.0 / (1.0 - self.first_decay)

    @property
    def first_decay(self) -> float | None:
        """The decay rate of the first moment; None: it grows."""
        if self.beta_1 is None:
            return None if self.steering else _BETA_1
        return float(self.beta_1)

    @property
    def share_of_moment(self) -> float:
        """The share of the moment in steps."""
        if not self.steering:
            return 1.0
        return _INERTIA if self.inertia is None else float(self.inertia)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first_moment", "second_moment", *((LOG_FACTOR,) if self.steering else ()))

    def slot_shape(self, slot: str, shape: tuple[int, ...], rates: tuple[int, ...]) -> tuple[int, ...]:
        return shape if slot == "first_moment" else rates

    @property
    def is_proximal(self) -> bool:
        return True

    @property
    def structure(self) -> tuple[Any, ...]:
        if type(self) is not BlockAdam:
            return super().structure
        return (
            BlockAdam, self.steering > 0, self.with_penalties, self.with_sizes, self.rests,
            self.share_of_moment,
        )  # fmt: skip

    @property
    def rests(self) -> tuple[float, float | None]:
        """The cosine that leaves the factor as it is, and its bound in multiples of the square."""
        return (
            REST if self.rest is None else float(self.rest),
            None if self.square_rest is None else float(self.square_rest),
        )

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        # the slots hold sums without the factors 1 - beta: these, and the corrections of both, are here
        root, momentum_rate, beta_1 = _known_corrections(t, self.first_decay, self.beta_2)
        numbers: dict[str, ArrayLike] = {
            RATE: eta * root,
            "momentum_rate": momentum_rate,
            "beta_1": beta_1,
            "beta_2": self.beta_2,
            DECAY: l2,
        }
        if self.steering:
            numbers["steering"] = self.steering
        return numbers

    def update(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        weight, rate, new_slots = self._moved(op, weight, gradient, slots, scalars, penalised)
        if L1_STRENGTH in scalars:
            most = op.Mul(rate, scalars[L1_STRENGTH])
            weight = op.Sub(weight, op.Max(op.Min(weight, most), op.Neg(most)))
        if penalised:
            weight = op.Div(weight, op.Add(op.Mul(rate, scalars[DECAY]), 1.0))
        return weight, new_slots

    def update_groups(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
        axes: tuple[int, ...],
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        blocks = slots[1].shape
        is_even = blocks is not None and all(blocks[axis] == 1 for axis in axes)
        weight, rate, new_slots = self._moved(op, weight, gradient, slots, scalars, penalised, axes)
        if penalised:
            # the square first: with the rate of the rest the norm then gives the minimum of both
            shrinkage = op.Add(op.Mul(rate, scalars[DECAY]), 1.0)
            weight, rate = op.Div(weight, shrinkage), op.Div(rate, shrinkage)
        most = op.Mul(rate, scalars[L1_STRENGTH])
        return shrink_groups(op, weight, most, axes, is_even=is_even), new_slots

    def update_along(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        direction: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Build an update along the product of a preconditioner and the gradient, with its penalty.

        The first moment is that of the direction P g, and the second one that of ``g P g``: the update is
        that of other coordinates, in which the gradient is ``P^(1/2) g``. The rate is not steered.
        """
        weight, _, new_slots = self._moved(op, weight, gradient, slots, scalars, direction=direction)
        return weight, new_slots

    def _moved(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool = False,
        groups: tuple[int, ...] | None = None,
        direction: ir.Value | None = None,
    ) -> tuple[ir.Value, ir.Value, tuple[ir.Value, ...]]:
        """Return the weight after the step of the gradient, the rates of the penalties, and the new slots.

        `groups`: the axes within the groups whose norms the l1 penalty is of; None: it is of single weights.
        """
        sizes, blocks = (value.shape.numpy() for value in (weight, slots[1]))  # type: ignore[union-attr]
        axes = [axis for axis, size in enumerate(blocks) if size == 1]
        decayed = op.Mul(slots[0], scalars["beta_1"])
        if direction is None:
            first = op.Add(decayed, gradient)
            square = op.ReduceSumSquare(gradient, axes, keepdims=1) if axes else op.Mul(gradient, gradient)
        else:
            first, product = op.Add(decayed, direction), op.Mul(gradient, direction)
            square = op.ReduceSum(product, axes, keepdims=1) if axes else product
        mean = op.Mul(square, math.prod(blocks) / math.prod(sizes))
        second = op.Add(op.Mul(slots[1], scalars["beta_2"]), mean)
        # 1 / sqrt(v), and 0 for v = 0: without a gradient the penalties move nothing either
        inverse = op.Div(op.Sqrt(second), _divisor(op, second, _dtype_of(weight)))
        rate = op.Mul(scalars[RATE], inverse)
        if self.steering:
            steering = scalars["steering"]
            if self.with_sizes:
                steering = sized(op, steering, mean, op.Mul(second, op.Sub(1.0, scalars["beta_2"])))
            sums = self._sums_of_angle(op, weight, gradient, square, slots, scalars, rate, penalised, groups)
            factor = steered(op, slots[2], *sums, steering, self.rests, most_factor(self.with_sizes))
            rate = op.Mul(rate, op.Exp(factor))
            step = op.Mul(self._step(op, gradient, op.Mul(first, scalars["momentum_rate"])), rate)
            return op.Sub(weight, step), rate, (first, second, factor)
        weight = op.Sub(weight, op.Mul(first, op.Mul(rate, scalars["momentum_rate"])))
        return weight, rate, (first, second)

    def _step(self, op: Builder, gradient: ir.Value, moment: ir.Value) -> ir.Value:
        """Return the direction of a steered step, given the gradient and the mean of those before it."""
        share = self.share_of_moment
        if share in (0.0, 1.0):
            return moment if share else gradient
        return op.Add(op.Mul(gradient, 1.0 - share), op.Mul(moment, share))

    def _sums_of_angle(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        square: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        rate: ir.Value,
        penalised: bool,
        groups: tuple[int, ...] | None,
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the sums over a block of the products of moment and gradient, and of the squares of either.

        `square` is the sum of squares of the gradient, `rate` that of the update without its factor.
        """
        moment, second, factor = slots
        axes = [axis for axis, size in enumerate(second.shape.numpy()) if size == 1]  # type: ignore[union-attr]
        if self.with_penalties and (penalised or L1_STRENGTH in scalars):
            moment = self._of_objective(op, weight, moment, scalars, penalised, groups)
        product = op.Mul(moment, gradient)
        if self.with_penalties and penalised:
            shrinkage = op.Mul(op.Mul(rate, op.Exp(factor)), _strength(op, weight, scalars))
            shares = op.Div(1.0, op.Add(shrinkage, 1.0))
            squares = op.Mul(moment, moment), op.Mul(gradient, gradient)
            product, moment_square, square = (op.Mul(value, shares) for value in (product, *squares))
            if axes:
                product, moment_square, square = (
                    op.ReduceSum(value, axes, keepdims=1) for value in (product, moment_square, square)
                )
            return product, moment_square, square
        if not axes:
            return product, op.Mul(moment, moment), square
        moment_square = op.ReduceSumSquare(moment, axes, keepdims=1)
        return op.ReduceSum(product, axes, keepdims=1), moment_square, square

    def _of_objective(
        self,
        op: Builder,
        weight: ir.Value,
        moment: ir.Value,
        scalars: Mapping[str, ir.Value],
        penalised: bool,
        groups: tuple[int, ...] | None,
    ) -> ir.Value:
        """Return the first moment of gradients of the objective, given that of gradients of the loss.

        It is a sum of gradients times powers of beta_1, whose own sum is 1 / momentum_rate.
        """
        if penalised:
            most = bound_of_pull(weight)
            pull = op.Mul(weight, op.Div(_strength(op, weight, scalars), scalars["momentum_rate"]))
            moment = op.Add(moment, op.Clip(pull, -most, most))
        if L1_STRENGTH in scalars:
            strength = op.Div(scalars[L1_STRENGTH], scalars["momentum_rate"])
            moment = _with_l1(op, moment, weight, strength, groups)
        return moment


def _strength(op: Builder, weight: ir.Value, scalars: Mapping[str, ir.Value]) -> ir.Value:
    """Return the strength of the l2 penalty, bounded: of nearly constant columns it may be infinite."""
    return op.Min(scalars[DECAY], bound_of_pull(weight, MOST_STRENGTH))


def _with_l1(
    op: Builder, gradient: ir.Value, weight: ir.Value, strength: ir.Value, groups: tuple[int, ...] | None
) -> ir.Value:
    """Return the subgradient of least norm of a function and an l1 penalty, of norms of `groups` if given."""
    if groups is None:
        held = op.Max(op.Min(gradient, strength), op.Neg(strength))
        moved = op.Add(gradient, op.Mul(op.Sign(weight), strength))
        return op.Where(op.Equal(weight, 0.0), op.Sub(gradient, held), moved)
    norm, of_gradient = (op.Sqrt(op.ReduceSumSquare(a, groups, keepdims=1)) for a in (weight, gradient))
    left = op.Max(op.Sub(1.0, op.Div(strength, op.Add(of_gradient, TINY))), 0.0)
    moved = op.Add(gradient, op.Mul(weight, op.Div(strength, op.Add(norm, TINY))))
    return op.Where(op.Equal(norm, 0.0), op.Mul(gradient, left), moved)


def least_divisor(dtype: np.dtype) -> float:
    """Return the number that is added to a divisor, a mean of squares, which may be zero."""
    return _TINY_OF_DOUBLE if dtype == np.float64 else TINY


def _divisor(op: Builder, value: ir.Value, dtype: np.dtype) -> ir.Value:
    """Return numbers of zero and more as divisors of zeros."""
    least = least_divisor(dtype)
    # the runtime leaves out an Add of a number that is zero in float32
    return op.Max(value, least) if dtype == np.float64 else op.Add(value, least)


def _dtype_of(value: ir.Value) -> np.dtype:
    return np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()


def bound_of_pull(weight: ir.Value, power: float = _MOST_PULL) -> float:
    """Return the largest part of an l2 penalty in a steered gradient, a power of the largest number."""
    return float(np.finfo(_dtype_of(weight)).max) ** power


#: The factors of the rate and of the first moment, and the decay rate of the latter.
_Corrections = tuple[np.ndarray, np.ndarray, np.ndarray]


def _corrections(t: np.ndarray, beta_1: float | None, beta_2: float) -> _Corrections:
    """Return the corrections of updates with these numbers."""
    root = np.sqrt((1.0 - beta_2**t) / (1.0 - beta_2))
    if beta_1 is not None:
        return root, (1.0 - beta_1) / (1.0 - beta_1**t), 0.0 * t + beta_1
    n_gradients = _n_gradients(t)
    return root, 1.0 / n_gradients, (n_gradients - 1.0) / _n_gradients(t - 1.0)


def _n_gradients(t: np.ndarray) -> np.ndarray:
    """Return the gradients that count in the first moment: the sum of the factors of all so far."""
    counts = (count * (1.0 - decay ** (t - 1.0)) for count, decay in _GRADIENTS)
    return sum(counts, start=1.0 + 0.0 * t)


def _known_corrections(t: np.ndarray, beta_1: float | None, beta_2: float) -> _Corrections:
    """Return the same; those of few updates in a row are kept, which nobody may change.

    In small calls they take longer than all else.
    """
    # the export of a step reads formulas of other things than arrays
    if type(t) is not np.ndarray or t.ndim != 1 or not 0 < len(t) <= _FEW_UPDATES:
        return _corrections(t, beta_1, beta_2)
    count = len(t)
    # the numbers grow by one at most
    first, last = t.item(0), t.item(-1)
    block, place = divmod(int(first), _FEW_UPDATES)
    if last - first != count - 1 or first != block * _FEW_UPDATES + place:
        return _corrections(t, beta_1, beta_2)
    root, momentum_rate, decay = _corrections_from(block * _FEW_UPDATES, beta_1, beta_2)
    part = slice(place, place + count)
    return root[part], momentum_rate[part], decay[part]


@lru_cache(maxsize=64)
def _corrections_from(first: int, beta_1: float | None, beta_2: float) -> _Corrections:
    """Return the corrections of updates from this number on, twice as many as a call has."""
    factors = _corrections(np.maximum(1.0, first + np.arange(2.0 * _FEW_UPDATES)), beta_1, beta_2)
    for array in factors:
        array.flags.writeable = False
    return factors


def sized(op: Builder, steering: ir.Value | float, mean: ir.Value, second: ir.Value) -> ir.Value:
    """Return the change of a factor for each unit of the cosine, in proportion to the size of the gradient.

    Parameters
    ----------
    op : Builder
        The builder.
    steering : ir.Value or float
        That of a gradient of the usual size.
    mean, second : ir.Value
        The mean of the squares of the gradient, and the second moment.
    """
    size = op.Div(mean, _divisor(op, second, _dtype_of(second)))
    return op.Mul(op.Min(size, MOST_SIZE), steering)


def most_factor(with_sizes: bool) -> float:
    """Return the largest factor of a steered rate, given whether the sizes of gradients count.

    Large rates learn rare classes; in regressions on rows that are alike they replace all that is known.
    """
    return _MOST_OF_SIZES if with_sizes else _MOST_FACTOR


def steered(
    op: Builder,
    factor: ir.Value,
    product: ir.Value,
    moment_square: ir.Value,
    square: ir.Value,
    steering: ir.Value | float,
    rests: tuple[float, float | None],
    most: float,
) -> ir.Value:
    """Return the new logarithm of the factor of a steered rate.

    Parameters
    ----------
    op : Builder
        The builder.
    factor : ir.Value
        Its logarithm before.
    product, moment_square, square : ir.Value
        The sums over a block of the products of moment and gradient, and of the squares of either, or three
        equal parts of these.
    steering : ir.Value or float
        The change for each unit of the cosine.
    rests : (float, float or None)
        The cosine that changes nothing, and its bound in multiples of the square of the cosine.
    most : float
        The largest factor.
    """
    # the roots apart: the product of the sums of squares may overflow
    sizes = op.Mul(op.Sqrt(moment_square), op.Sqrt(square))
    cosine = op.Div(product, _divisor(op, sizes, _dtype_of(factor)))
    rest, of_square = rests
    level = rest if of_square is None else op.Min(op.Mul(op.Mul(cosine, cosine), of_square), rest)
    moved = op.Add(factor, op.Mul(op.Sub(cosine, level), steering))
    return op.Min(op.Max(moved, math.log(LEAST_FACTOR)), math.log(most))
