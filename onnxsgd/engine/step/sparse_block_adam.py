"""Block Adam on sparse batches; its results are those of dense batches.

With one second moment for each output, an update is linear in the gradient up to a factor for each output.
All columns, also those that a batch lacks, then have their updates by factors alone. Where the columns are
few, it is faster to update all of them.

Columns are centred without entries in all rows: a centre c subtracts one number for each output from the
products of rows, and a multiple of itself from the gradient. Tables hold the weight and the moment without
their multiples of c, whose factors are two numbers for each output; the products of c with both are known
without a pass over the columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import blas

from onnxsgd.data.one_thread import MOST_OF_ONE_THREAD, sum_of_multiples
from onnxsgd.engine.sparse_products import SparseRows
from onnxsgd.engine.step.update import PENALTY_SCALE, RATE_SCALE, WEIGHT
from onnxsgd.optimizers import (
    DECAY,
    LEAST_FACTOR,
    LOG_FACTOR,
    MOST_SIZE,
    RATE,
    BlockAdam,
    least_divisor,
    most_factor,
)

__all__ = ["SparseBlockAdam", "WholeBlockAdam"]

#: A sum over the elements of a block: one number, or one for each output.
_Sum = float | np.ndarray

_PLAIN = BlockAdam()
_FIRST, _SECOND = _PLAIN.slots
#: Updates after which the tensors themselves are computed. N grows by 1 / beta_1 with each, by 850 in all: in
#: float32 a thousandth of an update is lost.
_MOST_UPDATES = 64
#: They are also computed where the power of the decay of the moment is below this. The least decay: without
#: any the power would be zero.
_LEAST_POWER, _LEAST_DECAY = 1e-3, 1e-7
#: They are also computed once the penalties have this factor: U and the reach grow by its inverse, and
#: float32 holds 1e38.
_LEAST_SCALE = 1e-12
#: Numbers of the tables that are computed together: a bound of memory, which stays in the cache.
_FOLDED = 16384
#: Numbers of tables with several outputs whose products are summed together: more start threads of BLAS.
_SUMMED = MOST_OF_ONE_THREAD
#: The most columns in which the common penalty is looked for.
_SAMPLE = 1000
#: Columns with a penalty of their own up to which each is shrunk as a number of Python: one takes 0.5 us, and
#: operations of numpy on any few 10 us.
_FEW_OTHERS = 16


class _BlockAdam:
    """The parts that both forms share: the second moments, the rates, the penalty and the centre.

    ::

        w = scale (W - reach N),   m = power N

    N is the table of the moment and W that of the weight, each with a multiple of the centre beside it. Where
    all columns are updated, the reach is zero. An update adds the gradient over the power to N.

    Columns whose factor of the penalty is not the common one are few as a rule, and have updates of their
    own.

    Parameters
    ----------
    shapes : mapping of str to (int, int)
        The shape of the weight, [n_columns, n_outputs], and of each of its states, by kind. Second moments
        have one row.
    weight, moment : ndarray of shape [n_columns, n_outputs]
        The weight and its first moment, or other tables in their place during updates.
    decays : bool
        Whether the l2 penalty applies.
    optimizer : BlockAdam
        Tells whether penalties and sizes count where the rate is steered.
    centre : ndarray of shape [n_columns] or None
        The numbers that are subtracted from each row; None: zeros.
    """

    #: Whether the form has a reach that is not zero.
    _has_reach = False

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        weight: np.ndarray,
        moment: np.ndarray,
        decays: bool,
        optimizer: BlockAdam,
        centre: np.ndarray | None,
    ) -> None:
        self._weight, self._moment, self._decays, self._centre = weight, moment, decays, centre
        #: Whether the penalty counts in the angle.
        self._pulls = decays and optimizer.with_penalties and LOG_FACTOR in shapes
        self._has_sizes, self._rests = optimizer.with_sizes, optimizer.rests
        #: The share of the moment in a step.
        self._inertia = optimizer.share_of_moment
        self._states = {
            kind: np.zeros(shape, weight.dtype)
            for kind, shape in shapes.items()
            if kind not in (WEIGHT, _FIRST)
        }
        blocks = shapes[_SECOND]
        self._share = math.prod(blocks) / weight.size
        self._has_one_block = blocks[1] == 1
        self._others: Any = np.zeros(0, np.intp)
        self._few_others: list[tuple[int, float, float]] = []
        #: All columns with a penalty of their own, and the latter.
        self._apart, self._penalties_apart = self._others, np.zeros((0, 1))
        self._penalty = 1.0
        self._tiny = least_divisor(weight.dtype)
        #: Whether the sums of :meth:`_restart` are those of the tables.
        self._has_sums = False
        #: The last product.
        self._multiplied = np.zeros((0, weight.shape[1]), weight.dtype)
        if centre is not None:
            self._square_of_centre = _dot(centre[:, None], centre[:, None])

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The weight and its states by kind, at present values between two runs."""
        return {WEIGHT: self._weight, _FIRST: self._moment, **self._states}

    def reset(self) -> None:
        """Handle new values of the tensors: find the common factor of the penalty, and the other columns."""
        self._few_others, self._has_sums = [], False
        if not self._decays or PENALTY_SCALE not in self._states:
            return
        factors = self._states[PENALTY_SCALE]
        # the median of a sample: that of all columns takes as long as many updates
        sample = np.sort(factors[:: -(-len(factors) // _SAMPLE), 0])
        self._penalty = float(sample[len(sample) // 2])
        self._others = np.flatnonzero(factors[:, 0] != factors.dtype.type(self._penalty))
        self._apart, self._penalties_apart = self._others, factors[self._others].astype(np.float64)
        if self._centre is not None:
            self._centre_apart = self._centre.take(self._others).astype(np.float64)[:, None]
        if self._weight.shape[1] == 1 and len(self._others) <= _FEW_OTHERS:
            penalties, centre = self._penalties_apart[:, 0], np.zeros(len(self._others))
            if self._centre is not None:
                centre = self._centre_apart[:, 0]
            numbers = self._others.tolist(), penalties.tolist(), centre.tolist()
            self._few_others = list(zip(*numbers, strict=True))
            self._others = self._others[:0]

    def begin(self, numbers: Mapping[str, np.ndarray]) -> None:
        """Take the numbers of the next updates, [n_updates] each."""
        # lists and numbers of Python, which change no type
        self._rates, self._shares, self._decay_rates = (
            numbers[name].tolist() for name in (RATE, "momentum_rate", DECAY)
        )
        self._decays_of_moment, self._beta_2 = numbers["beta_1"].tolist(), float(numbers["beta_2"][0])
        self._steering = float(numbers["steering"][0]) if LOG_FACTOR in self._states else 0.0
        self._second = self._number(_SECOND, 0.0)
        self._rate_scale, self._factor = self._number(RATE_SCALE, 1.0), self._number(LOG_FACTOR, 0.0)
        if not self._has_sums:
            self._restart()

    def end(self) -> None:
        """Let the states have their present values."""
        self._states[_SECOND][...] = self._second
        if LOG_FACTOR in self._states:
            self._states[LOG_FACTOR][...] = self._factor

    def _number(self, kind: str, missing: float) -> Any:
        """Return a state that has one number, or one for each output."""
        if kind not in self._states:
            return missing
        state = self._states[kind].astype(np.float64)
        return state.item() if self._has_one_block else state

    def _restart(self) -> None:
        """Let the tables hold the weight and the moment themselves."""
        self._power, self._n_done = 1.0, 0
        self._scale: Any = 1.0 if self._has_one_block else np.ones((1, 1))
        self._reach: Any = 0.0 if self._has_one_block else np.zeros((1, 1))
        if self._centre is not None:
            # the multiples of the centre, and its products with tables and multiples together
            self._of_weight: Any = 0.0
            self._of_moment: Any = 0.0
            self._mean_of_weight, self._mean_of_moment = self._means(self._centre)
        if LOG_FACTOR in self._states:
            self._moment_square = self._inner(self._moment, self._moment)
        if self._pulls:
            # the products of the weight in common columns with the moment and with itself
            self._with_moment, self._with_itself = self._in_common(self._moment, self._weight)
        self._has_sums = True

    def _means(self, centre: np.ndarray) -> tuple[Any, Any]:
        """Return the products of the centre and the tables of weight and moment."""
        return _along(centre, self._weight), _along(centre, self._moment)

    def update(self, number: int, rows: SparseRows, gradient: np.ndarray) -> None:
        """Make one update by the gradient of the last product of a batch."""
        self._beta_1 = max(self._decays_of_moment[number], _LEAST_DECAY)
        old_power, self._power = self._power, self._power * self._beta_1
        others = []
        if self._pulls and len(self._apart):
            others = [self._scale * self._weight_apart(), self._moment_apart(old_power)]
        square, product = self._add_gradient(rows, gradient)
        of_weight = partial(self._sums_of_weight, gradient, others)
        rate = self._rate(number, _positive(square), product * old_power, of_weight, others)
        of_moment = self._inertia * rate
        if self._pulls:
            steps = rate - of_moment, of_moment * self._shares[number]
            self._move_sums(number, rate, steps, square, product * old_power, others)
        if self._inertia < 1.0:
            self._advance_along(rows, gradient, (rate - of_moment) / self._scale)
        if self._inertia:
            self._advance(of_moment * (self._shares[number] * self._power) / self._scale)
        if self._decays:
            self._shrink(rate * self._decay_rates[number])
        self._n_done += 1
        is_small = self._power < _LEAST_POWER or _least(self._scale) < _LEAST_SCALE
        if self._n_done == _MOST_UPDATES or is_small:
            self._fold()

    def _add_gradient(self, rows: SparseRows, gradient: np.ndarray) -> tuple[_Sum, _Sum]:
        """Add the gradient of the weight, over the new power, to N.

        Returns
        -------
        square : float or ndarray
            The sum of squares of the gradient.
        product : float or ndarray
            The sum of its products with N before; 0.0 if the rate is not steered.
        """
        raise NotImplementedError

    def _advance(self, step: _Sum) -> None:
        """Subtract a multiple of N from the weight over the scale."""
        raise NotImplementedError

    def _advance_along(self, rows: SparseRows, gradient: np.ndarray, step: _Sum) -> None:
        """Subtract a multiple of the last gradient of the weight from it, over the scale."""
        raise NotImplementedError

    def _advance_along_centre(self, rows: SparseRows, gradient: np.ndarray, step: _Sum) -> None:
        """Subtract the multiple of the centre in that gradient."""
        if rows.offsets is not None:
            total, along = _sums_of_rows(rows.offsets, gradient)
            self._of_weight = self._of_weight + step * total
            self._mean_of_weight = self._mean_of_weight - step * (along - total * self._square_of_centre)

    def _fold(self) -> None:
        """Compute the weight and the moment themselves."""
        raise NotImplementedError

    def _moment_apart(self, power: float) -> np.ndarray:
        """Return the moment in columns with a penalty of their own, as float64."""
        moment = power * _taken(self._moment, self._apart)
        if self._centre is not None:
            moment += self._centre_apart * (power * self._of_moment)
        return moment

    def _weight_apart(self) -> np.ndarray:
        """Return the weight over the scale in columns with a penalty of their own, as float64."""
        weight = _taken(self._weight, self._apart)
        if self._has_reach:
            weight -= self._reach * _taken(self._moment, self._apart)
        if self._centre is not None:
            weight += self._centre_apart * (self._of_weight - self._reach * self._of_moment)
        return weight

    def _sums_of_weight(self, gradient: np.ndarray, others: list[np.ndarray]) -> tuple[_Sum, _Sum, _Sum]:
        """Return the sums of the products of the penalised weight and the gradient, the moment, and itself.

        Parameters
        ----------
        gradient : ndarray of shape [n_rows, n_outputs]
            The gradient of the products of the batch.
        others : list of ndarray
            The weight and the moment in columns that have their own penalty, if there are any: completed by
            the gradient there.
        """
        self._with_gradient = self._inner(gradient, self._multiplied)
        if others:
            weight, moment = others
            of_gradient = self._moment_apart(self._power) - self._beta_1 * moment
            self._with_gradient = self._with_gradient - self._total(weight * of_gradient)
            others[:] = weight, of_gradient, moment
        return self._with_penalties(self._with_gradient, self._with_moment, self._with_itself, *others)

    def _move_sums(
        self,
        number: int,
        rate: _Sum,
        steps: tuple[_Sum, _Sum],
        square: _Sum,
        product: _Sum,
        others: list[np.ndarray],
    ) -> None:
        """Update the sums of products of the weight in common columns, after those of the moment.

        `steps`: the multiples of gradient and moment that are subtracted. `square` and `product` are the sums
        of the squares of the gradient, and of its products with the moment before.
        """
        of_moment = self._moment_square
        if others:
            _, gradient, moment = others
            square = square - self._total(gradient * gradient)
            product = product - self._total(gradient * moment)
            of_moment = of_moment - self._total((self._beta_1 * moment + gradient) ** 2)
        first, second = steps
        divisor = 1.0 + rate * self._decay_rates[number] * self._penalty
        along = self._beta_1 * product + square
        with_moment = self._beta_1 * self._with_moment + self._with_gradient
        moved = first * (first * square - 2.0 * self._with_gradient + 2.0 * second * along)
        moved = moved + second * (second * of_moment - 2.0 * with_moment)
        self._with_itself = _positive(self._with_itself + moved) / divisor**2
        self._with_moment = (with_moment - first * along - second * of_moment) / divisor

    def _shrink(self, decay: Any) -> None:
        """Apply the penalty."""
        divisor = 1.0 + decay * self._penalty
        self._scale = self._scale / divisor
        if self._few_others:
            self._shrink_few(decay, divisor)
        if len(self._others):
            self._shrink_others(decay, divisor)

    def _shrink_others(self, decay: Any, divisor: Any) -> None:
        """Apply the penalty to columns that have their own: N stays the same."""
        change = self._weight_apart()
        change *= divisor / (1.0 + self._penalties_apart * decay) - 1.0
        self._weight[self._others] += change
        if self._centre is not None:
            self._mean_of_weight = self._mean_of_weight + _along(self._centre_apart[:, 0], change)

    def _shrink_few(self, decay: float, divisor: float) -> None:
        """Apply the penalty to columns of one number each, as numbers of Python."""
        weight, moment, reach, multiple, moved = self._weight, self._moment, self._reach, 0.0, 0.0
        if self._centre is not None:
            multiple = self._of_weight - reach * self._of_moment
        for column, penalty, centre in self._few_others:
            before = weight.item(column)
            change = before + centre * multiple
            if self._has_reach:
                change -= reach * moment.item(column)
            change *= divisor / (1.0 + decay * penalty) - 1.0
            weight[column, 0] = before + change
            moved += centre * change
        if self._centre is not None:
            self._mean_of_weight += moved

    def _rate(
        self,
        number: int,
        square: _Sum,
        product: _Sum,
        of_weight: Callable[[], tuple[_Sum, _Sum, _Sum]],
        others: list[np.ndarray],
    ) -> Any:
        """Return the rate of an update.

        Parameters
        ----------
        number : int
            The number of the update in the run.
        square : float or ndarray
            The sum of squares of the gradient G.
        product : float or ndarray
            The sum of the products of G and the moment M, if the rate is steered.
        of_weight : callable
            Returns the sums of the products of the penalised weight and G, M, and itself.
        others : list of ndarray
            The weight, G and M in columns that have their own penalty, once `of_weight` was called.
        """
        self._second = self._beta_2 * self._second + square * self._share
        rate = self._rates[number] * self._rate_scale * self._second**0.5 / (self._second + self._tiny)
        if not self._steering:
            return rate
        sums = product, self._moment_square, square
        if self._pulls:
            shrinkage = rate * np.exp(self._factor) * self._decay_rates[number]
            sums = self._sums_of_angle(number, square, product, of_weight(), others, shrinkage)
        moment_square = self._beta_1**2 * self._moment_square + 2.0 * self._beta_1 * product + square
        self._moment_square = _positive(moment_square)
        return rate * np.exp(self._steer(square, *sums))

    def _sums_of_angle(
        self,
        number: int,
        square: _Sum,
        product: _Sum,
        of_weight: tuple[_Sum, _Sum, _Sum],
        others: list[np.ndarray],
        shrinkage: _Sum,
    ) -> tuple[_Sum, _Sum, _Sum]:
        """Return the sums of the products of G and the moment of the objective, and of the squares of either.

        `shrinkage` is that of a weight with a penalty of 1. The common factor of the products is left out.
        """
        with_gradient, with_moment, with_itself = of_weight
        pull = self._decay_rates[number] / self._shares[number]
        along = product + pull * with_gradient
        moment_square = self._moment_square + pull * (2.0 * with_moment + pull * with_itself)
        if others:
            weight, gradient, moment = others
            moment = moment + pull * self._penalties_apart * weight
            more = (1.0 + shrinkage * self._penalty) / (1.0 + shrinkage * self._penalties_apart) - 1.0
            along = along + self._total(more * gradient * moment)
            moment_square = moment_square + self._total(more * moment * moment)
            square = square + self._total(more * gradient * gradient)
        return along, _positive(moment_square), _positive(square)

    def _steer(self, square: _Sum, along: _Sum, of_moment: _Sum, of_gradient: _Sum) -> Any:
        """Return the new logarithm of the factor of the rate; see :class:`onnxsgd.optimizers.BlockAdam`.

        `square` is the sum of squares of G, the others are those of the angle.
        """
        cosine = along / (of_moment**0.5 * of_gradient**0.5 + self._tiny)
        steering = self._steering
        if self._has_sizes:
            size = square * self._share / (self._second * (1.0 - self._beta_2) + self._tiny)
            steering = steering * np.minimum(size, MOST_SIZE)
        rest, of_square = self._rests
        level = rest if of_square is None else np.minimum(cosine * cosine * of_square, rest)
        moved = self._factor + (cosine - level) * steering
        self._factor = np.clip(moved, math.log(LEAST_FACTOR), math.log(most_factor(self._has_sizes)))
        return self._factor

    def _with_penalties(
        self, with_gradient: _Sum, with_moment: _Sum, with_itself: _Sum, *others: np.ndarray
    ) -> tuple[_Sum, _Sum, _Sum]:
        """Return sums of products with the penalised weight, given those with the weight in common columns.

        `others`: the weight, the gradient and the moment in the other columns, if there are any.
        """
        common = self._penalty
        sums = common * with_gradient, common * with_moment, common**2 * with_itself
        if not others:
            return sums
        weight, gradient, moment = others
        pulled = self._penalties_apart * weight
        further = self._total(pulled * gradient), self._total(pulled * moment), self._total(pulled * pulled)
        return sums[0] + further[0], sums[1] + further[1], sums[2] + further[2]

    def _in_common(self, *tables: np.ndarray) -> list[Any]:
        """Return the sums of products of the table of the weight and others, in the common columns.

        Those of the other columns may be much larger: they are left out, not subtracted.
        """
        apart = self._weight[self._apart]
        self._weight[self._apart] = 0
        sums = [self._inner(self._weight, table) for table in tables]
        self._weight[self._apart] = apart
        return sums

    def _total(self, table: np.ndarray) -> _Sum:
        """Return the sum of the rows of a few columns: one number, or one for each output with a block."""
        return float(table.sum()) if self._has_one_block else table.sum(axis=0)[None]

    def _inner(self, first: np.ndarray, second: np.ndarray) -> Any:
        """Return the sum of products, for each output if each has a second moment."""
        return _dot(first, second) if self._has_one_block else _dots(first, second)[None]


class SparseBlockAdam(_BlockAdam):
    """The weight of a first layer and its first moment, in a form that changes by factors alone.

    A step changes W and N in the columns of its batch, and the three factors. The sum of squares of the
    gradient G = X' d, for the second moment, is that of d * (X G); X G is a difference of products with N.

    Parameters
    ----------
    shapes : mapping of str to (int, int)
        The shape of the weight, [n_columns, n_outputs], and of each of its states, by kind. Second moments
        have one row.
    dtype : dtype
        The type of the weight.
    n_rows : int
        Rows of a batch.
    decays : bool
        Whether the l2 penalty applies.
    optimizer : BlockAdam
        Tells whether penalties and sizes count where the rate is steered.
    centre : ndarray of shape [n_columns] or None
        The numbers that are subtracted from each row, whose products the rows have; None: zeros.
    """

    _has_reach = True

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        dtype: np.dtype,
        n_rows: int,
        *,
        decays: bool,
        optimizer: BlockAdam = _PLAIN,
        centre: np.ndarray | None = None,
    ) -> None:
        n_columns, n_outputs = shapes[WEIGHT]
        # beside each other for few cache misses; apart if each is a vector, whose products are faster
        widths = [1, 1] if n_outputs == 1 else [2 * n_outputs]
        self._tables = [np.zeros((n_columns, width), dtype) for width in widths]
        self._products, self._steps, self._later_products = (
            [np.zeros((n_rows, width), dtype) for width in widths] for _ in range(3)
        )
        weight, moment = _halves(self._tables)
        super().__init__(shapes, weight, moment, decays, optimizer, centre)
        self._product_of_weight, self._product = _halves(self._products)
        self._step_of_weight, self._step = _halves(self._steps)
        self._change = _halves(self._later_products)[1]

    def multiply(self, rows: SparseRows, out: np.ndarray) -> None:
        """Write the product of a batch and the weight to `out`, which may not change before the update."""
        for table, product in zip(self._tables, self._products, strict=True):
            product.fill(0)
            rows.add_product(table, product)
        if rows.offsets is not None:
            _centre(self._product_of_weight, rows.offsets, self._of_weight, self._mean_of_weight)
            _centre(self._product, rows.offsets, self._of_moment, self._mean_of_moment)
        np.multiply(self._product, -self._reach, out=out)
        out += self._product_of_weight
        out *= self._scale
        self._multiplied = out

    def _add_gradient(self, rows: SparseRows, gradient: np.ndarray) -> tuple[_Sum, _Sum]:
        power = self._power
        # to N the gradient, and to W as much as leaves w unchanged
        np.multiply(gradient, 1.0 / power, out=self._step)
        np.multiply(self._step, self._reach, out=self._step_of_weight)
        for table, step in zip(self._tables, self._steps, strict=True):
            rows.add_transposed_product(step, table)
        # the last table holds N, and its product grows by that of the gradient
        np.negative(self._products[-1], out=self._later_products[-1])
        rows.add_product(self._tables[-1], self._later_products[-1])
        if rows.offsets is not None:
            total, along = _sums_of_rows(rows.offsets, gradient)
            total, moved = total / power, (along - total * self._square_of_centre) / power
            self._of_moment = self._of_moment - total
            self._of_weight = self._of_weight - total * self._reach
            self._mean_of_moment = self._mean_of_moment + moved
            self._mean_of_weight = self._mean_of_weight + moved * self._reach
            _centre(self._change, rows.offsets, self._of_moment, self._mean_of_moment)
        square = self._inner(gradient, self._change) * power
        return square, self._inner(gradient, self._product) if self._steering else 0.0

    def _advance(self, step: _Sum) -> None:
        self._reach = self._reach + step

    def _advance_along(self, rows: SparseRows, gradient: np.ndarray, step: _Sum) -> None:
        self._step.fill(0)
        np.multiply(gradient, -step, out=self._step_of_weight)
        rows.add_transposed_product(self._steps[0], self._tables[0])
        self._advance_along_centre(rows, gradient, step)

    def end(self) -> None:
        """Let the tensors have their present values."""
        self._fold()
        super().end()

    def _means(self, centre: np.ndarray) -> tuple[Any, Any]:
        if len(self._tables) == 2:
            return super()._means(centre)
        along = _along(centre, self._tables[0])
        n_half = along.shape[1] // 2
        return along[:, :n_half], along[:, n_half:]

    def _fold(self) -> None:
        reach, scale = _like(self._weight, self._reach), _like(self._weight, self._scale)
        if self._centre is not None:
            multiples = [
                np.broadcast_to(_like(self._weight, number), (1, self._weight.shape[1]))
                for number in (self._of_weight, self._of_moment)
            ]
            if len(self._tables) == 1:
                # the halves of its rows beside each other
                multiples = [np.hstack(multiples)]
            for table, multiple in zip(self._tables, multiples, strict=True):
                _add_multiples(table, self._centre, multiple)
        if len(self._tables) == 1:
            _combine_halves(self._tables[0], scale, -reach * scale, self._power)
        else:
            for start in range(0, len(self._weight), _FOLDED):
                rows = slice(start, start + _FOLDED)
                weight, moment = self._weight[rows], self._moment[rows]
                weight -= reach * moment
                weight *= scale
                moment *= self._power
        self._restart()


class WholeBlockAdam(_BlockAdam):
    """The weight of a first layer and its first moment, all columns of which have each update.

    Parameters
    ----------
    shapes, dtype, decays, optimizer, centre : mapping, dtype, bool, BlockAdam, ndarray or None
        As those of :class:`SparseBlockAdam`.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        dtype: np.dtype,
        *,
        decays: bool,
        optimizer: BlockAdam = _PLAIN,
        centre: np.ndarray | None = None,
    ) -> None:
        self._gradient = np.zeros(shapes[WEIGHT], dtype)
        super().__init__(shapes, self._gradient.copy(), self._gradient.copy(), decays, optimizer, centre)

    def multiply(self, rows: SparseRows, out: np.ndarray) -> None:
        """Write the product of a batch and the weight to `out`, which may not change before the update."""
        out.fill(0)
        rows.add_product(self._weight, out)
        if rows.offsets is not None:
            _centre(out, rows.offsets, self._of_weight, self._mean_of_weight)
        out *= _like(out, self._scale)
        self._multiplied = out

    def _add_gradient(self, rows: SparseRows, gradient: np.ndarray) -> tuple[_Sum, _Sum]:
        table = self._gradient
        table.fill(0)
        rows.add_transposed_product(gradient, table)
        square = self._inner(table, table)
        product = self._inner(table, self._moment) if self._steering else 0.0
        _add_scaled(self._moment, 1.0 / self._power, table)
        if rows.offsets is not None:
            total, along = _sums_of_rows(rows.offsets, gradient)
            centre, mean = self._square_of_centre, self._mean_of_moment
            square = square + self._of_blocks(total * (total * centre - 2.0 * along))
            product = product + self._of_blocks(self._of_moment * along - total * mean)
            self._of_moment = self._of_moment - total / self._power
            self._mean_of_moment = mean + (along - total * centre) / self._power
        return square, product

    def _of_blocks(self, sums: Any) -> _Sum:
        """Return the sums of outputs as those of blocks."""
        if not self._has_one_block or isinstance(sums, float):
            return sums
        return float(np.add.reduce(sums, axis=None))

    def _advance(self, step: _Sum) -> None:
        self._subtract(step, self._moment)
        if self._centre is not None:
            self._of_weight = self._of_weight - step * self._of_moment
            self._mean_of_weight = self._mean_of_weight - step * self._mean_of_moment

    def _advance_along(self, rows: SparseRows, gradient: np.ndarray, step: _Sum) -> None:
        self._subtract(step, self._gradient)
        self._advance_along_centre(rows, gradient, step)

    def _subtract(self, step: _Sum, table: np.ndarray) -> None:
        """Subtract a multiple of a table from the weight over the scale."""
        if isinstance(step, float):
            _add_scaled(self._weight, -step, table)
        else:
            _subtract_multiples(self._weight, _like(self._weight, step), table)

    def end(self) -> None:
        """Let the tensors have their present values."""
        self._fold()
        super().end()

    def _fold(self) -> None:
        if self._centre is not None:
            for table, number in ((self._weight, self._of_weight), (self._moment, self._of_moment)):
                _add_multiples(
                    table, self._centre, np.broadcast_to(_like(table, number), (1, table.shape[1]))
                )
        self._weight *= _like(self._weight, self._scale)
        self._moment *= self._power
        self._restart()


def _dot(first: np.ndarray, second: np.ndarray) -> float:
    """Return the sum of products of two tables, on one thread."""
    if not (first.flags.c_contiguous and second.flags.c_contiguous):
        return float(np.einsum("ij,ij->", first, second))
    first, second = first.reshape(-1), second.reshape(-1)
    if len(first) <= MOST_OF_ONE_THREAD:
        return float(first.dot(second))
    starts = range(0, len(first), MOST_OF_ONE_THREAD)
    parts = [slice(start, start + MOST_OF_ONE_THREAD) for start in starts]
    return math.fsum([first[part].dot(second[part]) for part in parts])


def _along(vector: np.ndarray, table: np.ndarray) -> Any:
    """Return the sum of rows times the numbers of a vector: one number, or one for each output."""
    if table.shape[1] == 1:
        return _dot(vector[:, None], table)
    return sum_of_multiples(vector, table)[None]


def _taken(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the rows of a few columns, as float64."""
    # take copies a table that is not contiguous
    taken = table.take(columns, axis=0) if table.flags.c_contiguous else table[columns]
    return taken.astype(np.float64)


def _centre(product: np.ndarray, offsets: np.ndarray, multiple: Any, mean: Any) -> None:
    """Turn a product of rows and a table into that of centred rows.

    Parameters
    ----------
    product : ndarray of shape [n_rows, n_outputs]
        The product, changed in place.
    offsets : ndarray of shape [2, n_rows]
        Those of the rows.
    multiple : float or ndarray
        The factor of the centre that is added to the columns of the table.
    mean : float or ndarray
        The product of the centre and the table, with its multiple.
    """
    if product.shape[1] == 1:
        _add_scaled(product, multiple, offsets[0])
        product -= mean
        return
    numbers = np.empty((2, product.shape[1]), product.dtype)
    numbers[0], numbers[1] = multiple, -mean
    product += offsets.T.dot(numbers)


def _sums_of_rows(offsets: np.ndarray, gradient: np.ndarray) -> tuple[Any, Any]:
    """Return the sum of the gradients of rows, and that of the gradients times the offsets of rows.

    Each is one number, or one for each output. The gradient of the weight is that of rows that are not
    centred, less the former times the centre; its product with the centre is the latter, less the former
    times the square of the centre.
    """
    sums = offsets.dot(gradient)
    if sums.shape[1] == 1:
        return sums.item(1), sums.item(0)
    sums = sums.astype(np.float64)
    return sums[1:], sums[:1]


def _dots(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the sum of products of each column of two tables: einsum takes two to five times as long."""
    n_rows = max(1, _SUMMED // first.shape[1])
    products = np.empty((min(n_rows, len(first)), first.shape[1]), first.dtype)
    ones, sums = np.ones(len(products), first.dtype), np.zeros(first.shape[1])
    for start in range(0, len(first), n_rows):
        part = slice(start, start + n_rows)
        n_part = len(first[part])
        np.multiply(first[part], second[part], out=products[:n_part])
        sums += ones[:n_part].dot(products[:n_part])
    return sums


def _add_scaled(table: np.ndarray, factor: float, other: np.ndarray) -> None:
    """Add a multiple of another table to a table, both contiguous, on one thread."""
    add = blas.saxpy if table.dtype == np.float32 else blas.daxpy
    numbers, of_other = table.reshape(-1), other.reshape(-1)
    for start in range(0, len(numbers), MOST_OF_ONE_THREAD):
        part = slice(start, start + MOST_OF_ONE_THREAD)
        add(of_other[part], numbers[part], a=factor)


def _subtract_multiples(table: np.ndarray, factors: np.ndarray, other: np.ndarray) -> None:
    """Subtract the columns of another table, each times a factor, from a table, both contiguous.

    Rows of few numbers lie behind one another in memory: numpy would begin a loop for each of them.
    """
    n_rows = max(1, _FOLDED // table.shape[1])
    if len(table) <= n_rows:
        table -= other * factors
        return
    repeated = np.tile(factors, (n_rows, 1)).reshape(-1)
    products, numbers, of_other = np.empty_like(repeated), table.reshape(-1), other.reshape(-1)
    for start in range(0, len(numbers), len(products)):
        part = slice(start, start + len(products))
        n_part = len(numbers[part])
        np.multiply(of_other[part], repeated[:n_part], out=products[:n_part])
        numbers[part] -= products[:n_part]


def _add_multiples(table: np.ndarray, vector: np.ndarray, multiples: np.ndarray) -> None:
    """Add a vector to the columns of a contiguous table, to each times one of [1, n_outputs] numbers."""
    if table.shape[1] == 1:
        _add_scaled(table, multiples.item(), vector)
        return
    # numpy makes a loop for each row
    add, of_columns = blas.sger if table.dtype == np.float32 else blas.dger, multiples.reshape(-1)
    n_rows = max(1, MOST_OF_ONE_THREAD // table.shape[1])
    for start in range(0, len(table), n_rows):
        part = slice(start, start + n_rows)
        add(1.0, of_columns, vector[part], a=table[part].T, overwrite_a=1)


def _least(number: Any) -> float:
    """Return a number, or the least of numbers."""
    return number if isinstance(number, float) else float(number.min())


def _positive(number: Any) -> Any:
    """Return a number, or numbers, with those that rounding takes below zero at zero."""
    return max(number, 0.0) if isinstance(number, float) else np.maximum(number, 0.0)


def _halves(tables: list[np.ndarray]) -> list[np.ndarray]:
    """Return the two tables that are apart, or beside each other."""
    if len(tables) == 2:
        return tables
    n_half = tables[0].shape[1] // 2
    # numpy's split takes ten times as long
    return [tables[0][:, :n_half], tables[0][:, n_half:]]


def _combine_halves(table: np.ndarray, of_first: Any, of_second: Any, factor: float) -> None:
    """Replace the halves (a, b) of each row by ``of_first a + of_second b`` and ``factor b``.

    Rows of few numbers lie behind one another in memory: numpy would begin a loop for each of them.
    """
    n_half = table.shape[1] // 2
    rows = np.zeros((2, max(1, _FOLDED // table.shape[1]), 2 * n_half), table.dtype)
    rows[0, :, :n_half], rows[0, :, n_half:], rows[1, :, :n_half] = of_first, factor, of_second
    (own, other), numbers = rows.reshape(2, -1), table.reshape(-1)
    moved = np.zeros_like(own)
    for start in range(0, len(numbers), len(own)):
        part = numbers[start : start + len(own)]
        n_numbers = len(part)
        seconds = moved[:n_numbers]
        seconds[:-n_half] = part[n_half:]
        seconds *= other[:n_numbers]
        part *= own[:n_numbers]
        part += seconds


def _like(table: np.ndarray, number: Any) -> Any:
    """Return a number, or numbers, in the type of a table."""
    return table.dtype.type(number) if isinstance(number, float) else number.astype(table.dtype)
