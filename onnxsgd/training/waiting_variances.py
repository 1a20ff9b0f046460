"""Variances of a normal distribution, which wait until a network has learned the means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxsgd._records import record
from onnxsgd.engine.step.update import AVERAGE, WEIGHT
from onnxsgd.losses import Loss
from onnxsgd.training.coordinates import StandardisedBuffers
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.start import StartFinder
from onnxsgd.training.state import FitState, rate_scales

__all__ = ["WaitingVariances"]

#: The least share of the variance of the target that is left where a mean is not known. With 1, networks of
#: 100 units with two random outputs learned both at once, as their means correlate a little with any target.
_UNKNOWN = 0.9


@record
class WaitingVariances:
    """The logarithms of variances that a network predicts beside means, which are to be learned first.

    A network that learns both at once explains by the variance where a mean is far from the target, and has
    small gradients of the mean there from then on. With constant variances the loss is a squared error.

    ``python benchmarks/means_first.py``, means of three networks: of 3,000 rows of ``sin(3 x)`` with noise of
    0.05, R2 is 0.95 in place of -0.05.

    Parameters
    ----------
    finder : StartFinder
        The last layer, the target, and the raw predictions of some samples.
    loss : Loss
        The loss.
    set_waiting : callable
        Sets whether the weights of logarithms have rates of 0, from the next load of the buffers on.
    losses : callable
        Returns the loss of each sample from its target and its raw predictions.
    average_from : int
        The number of updates after which averages of the weights are returned; 0: they are not.
    """

    finder: StartFinder
    loss: Loss
    set_waiting: Callable[[bool], None]
    losses: Callable[[np.ndarray, np.ndarray], np.ndarray]
    average_from: int = 0

    @classmethod
    def of(
        cls,
        buffers: Any,
        plan: FitPlan,
        state: FitState,
        finder: StartFinder,
        losses: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> WaitingVariances | None:
        """Return those of a fit; None: the model is linear, or predicts no variances that can wait."""
        if plan.loss.link != "normal" or finder.is_linear or finder.target is None:
            return None
        if not (plan.scaled_layer.weights and isinstance(buffers, StandardisedBuffers)):
            return None

        def set_waiting(waits: bool) -> None:
            scales = rate_scales(plan, state, buffers.layers, variances_wait=waits)
            buffers.set_rate_scales(scales)

        return cls(finder, plan.loss, set_waiting, losses, plan.recipe.average_from)

    def are_unknown(self, state: FitState) -> bool:
        """Tell whether the variances are constant, as those added to a network are, or no mean is known."""
        means, logarithms, target = self._numbers(state)
        if _are_constant(logarithms):
            return True
        variance = self._mean((target - self._mean(target)) ** 2)
        return bool((self._mean((target - means) ** 2) >= _UNKNOWN * variance).all())

    def least_loss(self, state: FitState) -> float:
        """Return the mean loss of the target as the means."""
        _, logarithms, target = self._numbers(state)
        encoded = np.asarray(self.finder.target)
        perfect = np.concatenate([target, logarithms], axis=1).astype(encoded.dtype)
        return float(self._mean(self.losses(encoded, perfect)))

    def begin(self, state: FitState) -> bool:
        """Let the variances wait if they are unknown, and can be constants; return whether they do."""
        return self.are_unknown(state) and self._hold(state)

    def _hold(self, state: FitState) -> bool:
        """Let the variances wait at those of the residuals; return whether they can be constants.

        Layers before the last one would learn for others. Frozen coefficients of logarithms make others, and
        without a trained intercept they are always 0.
        """
        means, _, target = self._numbers(state)
        best = self.loss.score_offsets(target - means, self.finder.sample_weight)
        given, keeps = state.tensors, np.repeat([1.0, 0.0], means.shape[1])
        state.tensors = self.finder.with_raw_predictions(given, keeps, best)
        _, logarithms, _ = self._numbers(state)
        if not np.allclose(logarithms, best[means.shape[1] :], rtol=1e-3, atol=1e-3):
            state.tensors = given
            return False
        self.set_waiting(True)
        return True

    def settle(self, state: FitState) -> None:
        """Shift the constants to the variances of the present residuals."""
        means, logarithms, target = self._numbers(state)
        shift = self.loss.score_offsets(target - means, self.finder.sample_weight)
        shift[means.shape[1] :] -= logarithms[0]
        given, keeps = state.tensors, np.ones(len(shift))
        state.tensors = self.finder.with_raw_predictions(given, keeps, shift)
        for (name, kind), array in given.items():
            if kind == AVERAGE:
                state.tensors[name, kind] = array + (state.tensors[name, WEIGHT] - given[name, WEIGHT])

    def release(self, state: FitState) -> None:
        """Let the variances learn, from those of the present residuals.

        Gradients have other sizes then: their moments begin anew.
        """
        state.forget_gradients()
        self.settle(state)
        self.set_waiting(False)

    def _numbers(self, state: FitState) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the means, the logarithms of the variances, and the target of some samples."""
        weights = state.weights(self.average_from)
        raw = np.asarray(self.finder.raw_predictions(weights), np.float64)
        means, logarithms = np.split(raw.reshape(len(self.finder.sample_weight), -1), 2, axis=1)
        target = np.asarray(self.finder.target, np.float64)[:, : means.shape[1]]
        return means, logarithms, target

    def _mean(self, table: np.ndarray) -> Any:
        return np.average(table, axis=0, weights=self.finder.sample_weight)


def _are_constant(logarithms: np.ndarray) -> bool:
    return bool((logarithms == logarithms[0]).all())
