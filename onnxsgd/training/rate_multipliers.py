"""Multipliers of the learning rate by tensor: patterns of names, and the epochs of frozen tensors."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any, TypeAlias

from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = ["Multipliers", "RateMultiplier", "read_multipliers", "refuse_freezing"]

#: The parameter `learning_rate_multipliers`: a number, or a mapping, by name or pattern.
Multipliers: TypeAlias = Mapping[str, Any] | Callable[[str], Any] | None

_PARAMETER = "learning_rate_multipliers"
_LEGAL = 'a number >= 0, or {"multiplier": 0.1, "from_epoch": 3} with a number and an epoch from 1 on'


@dataclass(frozen=True)
class RateMultiplier:
    """The factor of the rate of a tensor.

    Attributes
    ----------
    factor : float
        The factor, >= 0; 0: the tensor is frozen.
    from_epoch : int
        The first epoch, counted from 1, in which the tensor learns; it is frozen before.
    """

    factor: float = 1.0
    from_epoch: int = 1

    @property
    def freezes(self) -> bool:
        """True if there are epochs in which the tensor is frozen."""
        return self.factor == 0 or self.from_epoch > 1


def read_multipliers(given: Multipliers, trained: Sequence[str]) -> dict[str, RateMultiplier]:
    """Return the multiplier of each trained tensor; none at all if none is given.

    Names of tensors come before patterns, and earlier patterns before later ones.

    Parameters
    ----------
    given : mapping, callable or None
        The value of the parameter.
    trained : sequence of str
        The names of the trained tensors.

    Raises
    ------
    ParameterError
        If a name or pattern decides nothing, or a multiplier is not accepted.
    ParameterTypeError
        If a multiplier, or an epoch, is no number.
    """
    if given is None:
        return {}
    if callable(given):
        return {name: _read_one(name, given(name)) for name in trained}
    multipliers = {str(key): _read_one(key, value) for key, value in given.items()}
    deciding = {name: _deciding_key(name, given) for name in trained}
    for key in given:
        if key not in deciding.values():
            raise _idle(key, trained)
    return {name: RateMultiplier() if key is None else multipliers[key] for name, key in deciding.items()}


def refuse_freezing(multipliers: Mapping[str, RateMultiplier]) -> None:
    """Refuse multipliers that freeze a tensor, for training that finds the rate.

    Raises
    ------
    ParameterError
        If one does.
    """
    for name, multiplier in multipliers.items():
        if multiplier.freezes:
            raise ParameterError(
                f"{_PARAMETER} freezes {name!r} with {multiplier}, which learning_rate='auto' refuses: it "
                "compares losses of epochs that train the same tensors. Leave tensors that never learn out "
                "of trainable=, or name a learning_rate, such as 'constant'."
            )


def _deciding_key(name: str, given: Mapping[str, Any]) -> str | None:
    """Return the key that decides on a tensor; None: no key matches its name."""
    if name in given:
        return name
    return next((key for key in given if fnmatchcase(name, str(key))), None)


def _idle(key: object, trained: Sequence[str]) -> ParameterError:
    """Return the error of a name or pattern that decides nothing."""
    shown = ", ".join(map(repr, trained[:20])) + (", ..." if len(trained) > 20 else "")
    matched = [name for name in trained if isinstance(key, str) and fnmatchcase(name, key)]
    if matched:
        return ParameterError(
            f"{key!r} in {_PARAMETER} has no effect: earlier entries decide on {matched}. Put it before "
            "them, or remove it."
        )
    close = difflib.get_close_matches(str(key), trained, n=1)
    nearest = f" The nearest is {close[0]!r}." if close else ""
    return ParameterError(f"{key!r} in {_PARAMETER} matches no trained tensor; these are [{shown}].{nearest}")


def _read_one(key: object, value: object) -> RateMultiplier:
    """Return a multiplier as an object."""
    entry = value if isinstance(value, Mapping) else {"multiplier": value}
    unknown = [name for name in entry if name not in ("multiplier", "from_epoch")]
    if unknown:
        raise _refused(key, value, ParameterError)
    factor, from_epoch = entry.get("multiplier", 1.0), entry.get("from_epoch", 1)
    if not isinstance(factor, Real) or not isinstance(from_epoch, Integral):
        raise _refused(key, value, ParameterTypeError)
    multiplier = RateMultiplier(float(factor), int(from_epoch))
    if not 0 <= multiplier.factor < math.inf or multiplier.from_epoch < 1:
        raise _refused(key, value, ParameterError)
    return multiplier


def _refused(key: object, value: object, error: type[ParameterError | ParameterTypeError]) -> Exception:
    return error(f"{_PARAMETER} gives {key!r} {value!r}, which is not accepted: it must be {_LEGAL}.")
