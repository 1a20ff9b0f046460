"""Penalties on the weights: multiples of norms, added to the mean loss.

::

    penalty = l1 ||w||_1 + l2 / 2 ||w||_2^2

summed over the trained weights; intercepts are never penalised. The names and the strengths are those of
scikit-learn's ``SGDRegressor`` and ``SGDClassifier``; "group_lasso" has norms of all coefficients of an
input, "l2_sp" the distance from the weights that training starts from. A dictionary gives tensors penalties
of their own.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import lru_cache
from numbers import Real

import numpy as np

from onnxsgd._settable import Settable, check_flag, check_number, did_you_mean
from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = ["PENALTIES", "Penalty", "PenaltyTable", "make_penalties", "make_penalty"]

#: Weights of a block. Products of more than 10,000 numbers would start the threads of BLAS.
_BLOCK = 8192


@dataclass(frozen=True)
class Penalty(Settable):
    """A penalty on a tensor.

    ::

        penalty = l1 sum_g sqrt(size_g) ||d_g||_2 + l2 / 2 sum d^2,   d = w, or d = w - w_start

    Groups g are the single elements, so that the first term is ``l1 sum |d|``. With `groups`, the group
    lasso, they are the coefficients of one input of a layer for all its outputs: of a column of the data, a
    unit, a channel of a convolution, a row of a table. All of them become zero at once. For one output it
    is the usual l1 penalty.

    The subgradient of a norm at 0 is 0. The updates do not use it: they shrink weights, or groups, to exactly
    zero, by the cumulative penalty of scikit-learn, or by a proximal step of block Adam.

    With `from_start` the penalty is that of the distance from the weights that training starts from, which
    keeps a model near them: `l2` alone is L2-SP. They are the weights of `model`, or with ``warm_start=True``
    the present ones; a series of calls to ``partial_fit`` has those before the first call with such a
    penalty, which are saved with the estimator. Starts of zeros give the usual penalty.

    Parameters
    ----------
    l1, l2 : float or None, default=None
        Coefficients of the absolute norm and of half the squared norm, >= 0; None: no such term.
    groups : bool, default=False
        Whether `l1` is the strength of the norms of groups.
    from_start : bool, default=False
        Whether the norms are those of the distance from the first weights.

    References
    ----------
    H. Zou, T. Hastie, "Regularization and variable selection via the elastic net", JRSS B 67, 2005. M.
    Yuan, Y. Lin, "Model selection and estimation in regression with grouped variables", JRSS B 68, 2006,
    has the groups and the root of their size. Y. Tsuruoka, J. Tsujii, S. Ananiadou, "Stochastic Gradient
    Descent Training for L1-regularized Log-linear Models with Cumulative Penalty", ACL 2009. X. Li, Y.
    Grandvalet, F. Davoine, "Explicit Inductive Bias for Transfer Learning with Convolutional Networks",
    ICML 2018, has the distance (L2-SP, L1-SP).

    Examples
    --------
    >>> from onnxsgd.penalties import Penalty
    >>> Penalty(l1=0.5, l2=0.1).value([[1.0, -2.0]])
    1.75
    >>> Penalty(l2=2.0, from_start=True).value([[1.0, -2.0]], [[1.0, 1.0]])
    9.0
    >>> Penalty(l1=1.0, groups=True).value([[[3.0, 0.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0]]])
    10.0
    """

    l1: float | None = None
    l2: float | None = None
    groups: bool = False
    from_start: bool = False

    def __post_init__(self) -> None:
        for name in ("l1", "l2"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, least=0)
        check_flag("groups", self.groups)
        check_flag("from_start", self.from_start)
        if self.groups and self.l1 is None:
            raise ParameterError("groups=True has no effect without l1: the groups are those of its norms.")
        if self.from_start and self.is_none:
            raise ParameterError("from_start=True has no effect without l1 or l2.")

    def value(
        self,
        weights: Iterable[np.ndarray],
        starts: Iterable[np.ndarray] | None = None,
        input_axes: Iterable[int] | None = None,
    ) -> float:
        """Return the penalty on some arrays together, summed in float64.

        Parameters
        ----------
        weights : iterable of array-like
            The weights.
        starts : iterable of array-like, optional
            The first weights, of the same shapes; needed with `from_start` alone.
        input_axes : iterable of int, optional
            With `groups`: the axis of the inputs of each array, the first one by default. Each slice is a
            group.

        Returns
        -------
        float
        """
        if not (self.l1 or self.l2):
            # each epoch asks for the penalty of all weights
            return 0.0
        arrays = [np.asarray(weight) for weight in weights]
        if not (self.groups or self.from_start):
            return sum(map(self._of_elements, arrays))
        if self.from_start and starts is None:
            raise ParameterError("starts is missing: a penalty with from_start=True needs the first weights.")
        firsts = [np.asarray(start) for start in starts or ()] if self.from_start else [None] * len(arrays)
        axes = [0] * len(arrays) if input_axes is None else input_axes
        pairs = zip(arrays, firsts, axes, strict=True)
        return sum(self._of_elements(a, first) + self._of_groups(a, first, axis) for a, first, axis in pairs)

    def _of_elements(self, array: np.ndarray, first: np.ndarray | None = None) -> float:
        """Return the terms that are sums over the elements of an array."""
        l1, l2, total = 0.0 if self.groups else self.l1, self.l2, 0.0
        if not (l1 or l2):
            return 0.0
        if l2 and not l1 and first is None and array.size <= _BLOCK:
            # the common case, as below
            wide = array.astype(np.float64)
            return l2 * 0.5 * float(np.vdot(wide, wide))
        for rows in range(0, array.size, _BLOCK):
            wide = _block(array, rows)
            if first is not None:
                wide -= _block(first, rows)
            if l1:
                total += l1 * float(np.abs(wide).sum())
            if l2:
                # which, unlike dot, does not warn of an overflow: training tells it
                total += l2 * 0.5 * float(np.vdot(wide, wide))
        return total

    def _of_groups(self, array: np.ndarray, first: np.ndarray | None, axis: int) -> float:
        """Return the norms of the slices of an array, if they are groups."""
        if not (self.groups and self.l1 and array.size):
            return 0.0
        wide = array.astype(np.float64) - (0.0 if first is None else first)
        norms = np.sqrt(np.square(wide).sum(axis=tuple(i for i in range(array.ndim) if i != axis)))
        return self.l1 * math.sqrt(array.size / array.shape[axis]) * float(norms.sum())

    @property
    def is_none(self) -> bool:
        """True if there is no term."""
        return self.l1 is None and self.l2 is None

    def __repr__(self) -> str:
        given = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        shown = [f"{name}={value!r}" for name, value, default in given if value is not default]
        return f"{type(self).__name__}({', '.join(shown)})"


def _block(array: np.ndarray, start: int) -> np.ndarray:
    """Return elements of an array from a place on as float64: a block stays in the cache."""
    flat = array.reshape(-1)
    return (flat if array.size <= _BLOCK else flat[start : start + _BLOCK]).astype(np.float64)


#: The constructor of each named penalty, from the strength `alpha` and the share `l1_ratio`.
PENALTIES: dict[str | None, Callable[[float, float], Penalty]] = {
    "l2": lambda alpha, l1_ratio: Penalty(l2=alpha),
    "l1": lambda alpha, l1_ratio: Penalty(l1=alpha),
    "elasticnet": lambda alpha, l1_ratio: Penalty(l1=alpha * l1_ratio, l2=alpha * (1.0 - l1_ratio)),
    "group_lasso": lambda alpha, l1_ratio: Penalty(l1=alpha, groups=True),
    "l2_sp": lambda alpha, l1_ratio: Penalty(l2=alpha, from_start=True),
    None: lambda alpha, l1_ratio: Penalty(),
}


def make_penalty(name: str | Penalty | None, alpha: float, l1_ratio: float) -> Penalty:
    """Return the penalty `name`.

    Parameters
    ----------
    name : {"l2", "l1", "elasticnet", "group_lasso", "l2_sp", None} or Penalty
        The norms, or an object, which is returned.
    alpha : float
        The strength, >= 0.
    l1_ratio : float
        The share of the absolute norm in "elasticnet", from 0 to 1.

    Raises
    ------
    ParameterError
        If `name` is none of these.
    """
    if isinstance(name, Penalty):
        return name
    if not isinstance(name, str | None) or name not in PENALTIES:
        raise ParameterError(
            f"penalty={name!r} is not accepted: it must be one of {list(PENALTIES)}, or a Penalty."
            f"{did_you_mean(name, PENALTIES)}"
        )
    return PENALTIES[name](alpha, l1_ratio)


@dataclass(frozen=True)
class PenaltyTable:
    """The penalties of tensors by name.

    Attributes
    ----------
    rows : tuple of (str, Penalty)
        Names, or patterns of :mod:`fnmatch`, with a penalty each. A tensor has the penalty of its name, or
        else that of the first pattern that matches it, or none.
    """

    rows: tuple[tuple[str, Penalty], ...]

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        """The penalty of each row."""
        return tuple(penalty for _, penalty in self.rows)

    def assign(self, weights: Sequence[str], intercepts: Collection[str]) -> dict[str, int]:
        """Return the number of the row of each of `weights` that has a penalty; intercepts have none.

        Raises
        ------
        ParameterError
            If a row matches no weight.
        """
        legal = [name for name in weights if name not in intercepts]
        if self.rows[0][0] == "*" and len(self.rows) == 1:
            return {} if self.rows[0][1].is_none else dict.fromkeys(legal, 0)
        for pattern, _ in self.rows:
            if pattern != "*":
                _check_match(pattern, legal, [name for name in weights if name in intercepts])
        rows = {name: self._row(name) for name in legal}
        return {
            name: row for name, row in rows.items() if row is not None and not self.penalties[row].is_none
        }

    def _row(self, name: str) -> int | None:
        patterns = [pattern for pattern, _ in self.rows]
        if name in patterns:
            return patterns.index(name)
        return next((row for row, pattern in enumerate(patterns) if fnmatchcase(name, pattern)), None)


def _check_match(pattern: str, legal: Sequence[str], intercepts: Sequence[str]) -> None:
    """Refuse a pattern that matches no tensor with a penalty."""
    if any(name == pattern or fnmatchcase(name, pattern) for name in legal):
        return
    if any(name == pattern or fnmatchcase(name, pattern) for name in intercepts):
        reason = "matches intercepts alone, which are never penalised"
    else:
        reason = "matches no trained weight"
    close = difflib.get_close_matches(pattern, legal, n=8) or legal[:8]
    raise ParameterError(
        f"penalty names {pattern!r}, which {reason}: name one of {close}, or a pattern such as '*'."
    )


def make_penalties(
    penalty: str | Penalty | Mapping[str, object] | None, alpha: float, l1_ratio: float
) -> PenaltyTable:
    """Return the penalties that the parameter `penalty` of an estimator denotes.

    Parameters
    ----------
    penalty : str, Penalty, mapping or None
        The penalty of all weights, or one for each name or pattern: a name out of :data:`PENALTIES`, a
        penalty, or a number, the strength `l2`.
    alpha, l1_ratio : float
        The strength of named penalties; see :func:`make_penalty`.

    Raises
    ------
    ParameterError
        If the mapping is empty, or a name or a number is not accepted.
    ParameterTypeError
        If a key is no string.
    """
    if isinstance(penalty, str | None):
        return _named_table(penalty, alpha, l1_ratio)
    if not isinstance(penalty, Mapping):
        return PenaltyTable((("*", make_penalty(penalty, alpha, l1_ratio)),))
    if not penalty:
        raise ParameterError("penalty={} is not accepted: it must name a tensor, or be None.")
    return PenaltyTable(
        tuple((_pattern(key), _entry(key, value, alpha, l1_ratio)) for key, value in penalty.items())
    )


@lru_cache(maxsize=256)
def _named_table(name: str | None, alpha: float, l1_ratio: float) -> PenaltyTable:
    """Return the table of a named penalty of all weights; each ``partial_fit`` asks for it."""
    return PenaltyTable((("*", make_penalty(name, alpha, l1_ratio)),))


def _pattern(key: object) -> str:
    if not isinstance(key, str):
        raise ParameterTypeError(
            f"penalty has the key {key!r}: it must be the name of a tensor, or a pattern."
        )
    return key


def _entry(key: str, value: object, alpha: float, l1_ratio: float) -> Penalty:
    """Return the penalty of an entry of a dictionary."""
    if isinstance(value, Real) and not isinstance(value, bool | np.bool_):
        check_number(f"penalty[{key!r}]", value, least=0)
        return Penalty(l2=float(value))
    if isinstance(value, Penalty) or value is None or (isinstance(value, str) and value in PENALTIES):
        return make_penalty(value, alpha, l1_ratio)
    raise ParameterError(
        f"penalty[{key!r}]={value!r} is not accepted: it must be one of {list(PENALTIES)}, a number, the "
        f"strength l2, or a penalty such as Penalty(l1=0.1, l2=0.01).{did_you_mean(value, PENALTIES)}"
    )
