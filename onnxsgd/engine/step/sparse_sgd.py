"""Stochastic gradient descent on the columns of sparse batches; its results are those of dense batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxsgd.engine.sparse_products import SparseRows
from onnxsgd.engine.step.update import AVERAGE, AVERAGE_RATE, MULTIPLIER, WEIGHT

__all__ = ["SparseSGD"]

#: A factor below this is multiplied into the weights, or the average, before V, or U, overflows.
_LEAST_SCALE = 1e-9


class SparseSGD:
    """The weight w of a first layer, and its running average a, in a form that decays by factors alone.

    ::

        w = scale V,   a = share V + rest U

    A step changes V and U in the columns of its batch, and the three factors.

    Parameters
    ----------
    shape : tuple of int
        Columns of the data, and outputs of the layer.
    dtype : dtype
        The type of the weights.
    decays : bool
        Whether the l2 penalty applies.
    average : bool
        Whether the average is kept.
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype, *, decays: bool, average: bool) -> None:
        self._decays = decays
        self._weight = np.zeros(shape, dtype)
        self._averages = average
        self._average = np.zeros(shape if average else (0, 0), dtype)
        self._scale, self._share, self._rest = 1.0, 0.0, 1.0
        #: True if U is zero
        self._is_blank = False

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The weight and its state by kind, at present values between two runs."""
        tensors = {WEIGHT: self._weight}
        return tensors | {AVERAGE: self._average} if self._averages else tensors

    def reset(self) -> None:
        """Handle new values of the tensors: between two runs the factors are 1."""

    def begin(self, numbers: Mapping[str, np.ndarray]) -> None:
        """Take the numbers of the next updates, [n_updates] each."""
        n_updates = len(next(iter(numbers.values())))
        # lists: numbers of Python, which change no type
        self._keeps = (1.0 - numbers["decay"]).tolist() if self._decays else [1.0] * n_updates
        self._rates = numbers[AVERAGE_RATE].tolist() if self._averages else []
        self._multipliers = numbers[MULTIPLIER].tolist() if MULTIPLIER in numbers else None

    def multiply(self, rows: SparseRows, out: np.ndarray) -> None:
        """Write the product of a batch and the weight to `out`."""
        out.fill(0)
        rows.add_product(self._weight, out)
        if self._scale != 1.0:
            out *= self._scale

    def update(self, number: int, rows: SparseRows, gradient: np.ndarray) -> None:
        """Make one update; `gradient`, that of the product, includes minus the rate and is overwritten."""
        self._scale *= self._keeps[number]
        if self._scale < _LEAST_SCALE:
            self._fold_scale()
        factor = 1.0 if self._multipliers is None else self._multipliers[number]
        if self._scale != 1.0 or factor != 1.0:
            gradient *= factor / self._scale
        rows.add_transposed_product(gradient, self._weight)
        if self._averages:
            self._move_average(self._rates[number], rows, gradient)

    def end(self) -> None:
        """Let the arrays hold the weight and the average themselves."""
        if self._averages:
            self._fold_average()
        if self._scale != 1.0:
            self._fold_scale()

    def _move_average(self, rate: float, rows: SparseRows, step: np.ndarray) -> None:
        """Move the average towards the weight; V has received the transposed product of `rows` and `step`."""
        if rate == 1.0:
            self._forget_average()
            return
        if self._share != 0.0:
            rows.add_transposed_product(step * (-self._share / self._rest), self._average)
            self._is_blank = False
        self._share = (1.0 - rate) * self._share + rate * self._scale
        self._rest *= 1.0 - rate
        if self._rest < _LEAST_SCALE:
            self._fold_average()

    def _forget_average(self) -> None:
        """Let the average be the weight, as it is before averaging starts."""
        if not self._is_blank:
            self._average[...] = 0
            self._is_blank = True
        self._share, self._rest = self._scale, 1.0

    def _fold_average(self) -> None:
        """Let U hold the average itself."""
        self._average *= self._rest
        if self._share != 0.0:
            self._average += self._share * self._weight
        self._share, self._rest, self._is_blank = 0.0, 1.0, False

    def _fold_scale(self) -> None:
        """Let V hold the weight itself."""
        if self._averages and self._share != 0.0:
            self._fold_average()
        self._weight *= self._scale
        self._scale = 1.0
