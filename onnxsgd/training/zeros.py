"""Coefficients of a linear model that an l1 penalty sets to zero, at the end of a fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxsgd._records import record
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.training.coordinates import StandardisedBuffers
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.state import FitState

__all__ = ["ZeroFinder"]

#: The ratio of the parts of a golden section.
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
#: The most objectives that are computed. Each divides the numbers that are left by 1.6.
_MOST_OBJECTIVES = 24


@record
class ZeroFinder:
    """Sets the smallest coefficients of a linear model to zero, as many as lower its objective most.

    Updates by batches leave zero again wherever the gradient of a batch exceeds the penalty, although that of
    all samples does not. The number is that of the least objective, found by golden section.
    ``python benchmarks/zeros.py``: of 50 columns of which 5 count, 5 have coefficients in place of 32, as
    `Lasso` has 6, and the objective exceeds the least one by 0.0010 in place of 0.0024.

    Parameters
    ----------
    names : sequence of str
        The weights with an l1 penalty.
    objective : callable
        Returns the exact objective of the weights of a state.
    standardised : callable
        Returns the weights on standardised data, whose sizes are compared.

    References
    ----------
    J. Kiefer, "Sequential minimax search for a maximum", Proceedings of the American Mathematical Society,
    1953, has the golden section.
    """

    names: Sequence[str]
    objective: Callable[[], float]
    standardised: Callable[[Any], Any]

    @classmethod
    def of(
        cls, buffers: Any, plan: FitPlan, objective: Callable[[], float], *, is_linear: bool
    ) -> ZeroFinder | None:
        """Return that of a fit; None: the model is not linear, has no l1 penalty, or returns averages."""
        names = [name for penalty, weights in plan.strengths if penalty.l1 for name in weights]
        if not (is_linear and names) or plan.recipe.average_from:
            return None
        standardised = buffers.standardised if isinstance(buffers, StandardisedBuffers) else dict
        return cls(names, objective, standardised)

    def find(self, state: FitState) -> float:
        """Set coefficients to zero where that lowers the objective; return that of the state then."""
        given, found = state.tensors, {0: (self.objective(), state.tensors)}
        standardised = self.standardised(given)
        sizes = np.concatenate([np.abs(standardised[name, WEIGHT]).ravel() for name in self.names])
        least = np.sort(sizes[sizes > 0])

        def objective_of(count: int) -> float:
            if count not in found:
                limit = least[count - 1]
                tensors = dict(given)
                for name in self.names:
                    weight = given[name, WEIGHT]
                    is_small = np.abs(standardised[name, WEIGHT]) <= limit
                    tensors[name, WEIGHT] = np.where(is_small, weight.dtype.type(0), weight)
                state.tensors = tensors
                found[count] = self.objective(), tensors
            value = found[count][0]
            return value if math.isfinite(value) else math.inf

        low, high = 0, len(least)
        while high - low > 2 and len(found) < _MOST_OBJECTIVES:
            first = low + round((1.0 - _GOLDEN) * (high - low))
            second = max(first + 1, low + round(_GOLDEN * (high - low)))
            if objective_of(first) <= objective_of(second):
                high = second
            else:
                low = first
        for count in range(low, high + 1):
            if len(found) < _MOST_OBJECTIVES:
                objective_of(count)
        best = min(found, key=objective_of)
        objective, state.tensors = found[best]
        return objective
