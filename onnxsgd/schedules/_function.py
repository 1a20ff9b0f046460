"""A function of users as a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.schedules._schedule import Schedule

__all__ = ["FunctionSchedule"]


@dataclass(frozen=True)
class FunctionSchedule(Schedule):
    """A plain callable ``t -> rate`` as a schedule."""

    has_formula: ClassVar[bool] = False

    function: Callable[[int], float]

    @property
    def initial(self) -> float:
        return self.rate(1, math.nan)

    def rate(self, t: int, eta: float) -> float:
        found = self.function(t)
        try:
            rate = float(found)
        except (TypeError, ValueError) as error:
            raise ParameterTypeError(
                f"learning_rate({t}) returned no number ({error}): a schedule must return finite "
                "numbers >= 0."
            ) from error
        if not 0 <= rate < math.inf:
            raise ParameterError(
                f"learning_rate({t}) returned {rate!r}: a schedule must return finite numbers >= 0."
            )
        return rate
