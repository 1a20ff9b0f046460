"""Groups of weights that share the numbers of their updates, and these numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from onnxsgd._cached_property import cached_property
from onnxsgd._records import record
from onnxsgd.engine.step.step_spec import WeightGroup
from onnxsgd.engine.step.update import ACTIVE, MULTIPLIER
from onnxsgd.penalties import Penalty
from onnxsgd.training.rate_multipliers import RateMultiplier

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from onnxsgd.training.fit_plan import Recipe
    from onnxsgd.training.state import FitState

__all__ = ["GroupNumbers", "UpdateGroup", "make_groups"]

#: The multiplier of weights that have the common rate.
_ONE = RateMultiplier()


@dataclass(frozen=True)
class UpdateGroup:
    """Weights with one penalty, one multiplier of the rate, and one history.

    Attributes
    ----------
    weights : tuple of str
        Their names.
    penalty : Penalty
        The penalty, of those that are penalised.
    multiplier : RateMultiplier
        The multiplier.
    missed : int
        The updates, since the slots of the optimizer began, in which the weights were frozen.
    """

    weights: tuple[str, ...]
    penalty: Penalty
    multiplier: RateMultiplier = _ONE
    missed: int = 0

    @property
    def spec(self) -> WeightGroup:
        """The part of the specification of the step."""
        return WeightGroup(self.weights, self.has_rate, self.multiplier.freezes)

    @cached_property
    def has_rate(self) -> bool:
        """True if the rate, or the number of updates, is not that of all others."""
        return self.missed > 0 or self.multiplier != _ONE

    def is_active(self, epochs: np.ndarray) -> np.ndarray:
        """Tell whether the weights learn in epochs with these numbers, from 1 on."""
        return (epochs >= self.multiplier.from_epoch) & (self.multiplier.factor > 0)

    def numbers(
        self, recipe: Recipe, state: FitState, t: np.ndarray, used: np.ndarray, n_updates: int
    ) -> GroupNumbers:
        """Return the numbers of the next updates.

        Parameters
        ----------
        recipe, state : Recipe, FitState
            The settings, and the state before these updates.
        t, used : ndarray of shape [n_updates]
            The numbers of these updates, since the slots of the optimizer began, and their common rates.
        n_updates : int
            Updates of an epoch.
        """
        missed = None
        if self.has_rate:
            active = self.is_active(1 + len(state.loss_curve) + np.arange(len(used)) // n_updates)
            used = used * self.multiplier.factor * active
            missed = state.missed.get(self.weights[0], 0) + np.cumsum(~active)
            # at least 1: results that a frozen weight does not take may be any finite numbers
            t = np.maximum(1.0, t - missed)
        # the bias corrections count the updates of the slots
        numbers: dict[str, ArrayLike] = dict(recipe.optimizer.scalars(t, used, self.penalty.l2 or 0.0))
        if missed is not None:
            numbers |= {MULTIPLIER: self.multiplier.factor * active, ACTIVE: active}
        return GroupNumbers(self, numbers, used, missed)


@record
class GroupNumbers:
    """The numbers of the next updates of a group.

    Attributes
    ----------
    group : UpdateGroup
        The group.
    numbers : dict of ndarray
        Those that depend on the rate, by name.
    rates : ndarray of shape [n_updates]
        The rates.
    missed : ndarray of shape [n_updates] or None
        Updates in which the weights were frozen, up to each update; None: they never are.
    """

    group: UpdateGroup
    numbers: dict[str, ArrayLike]
    rates: np.ndarray
    missed: np.ndarray | None


def make_groups(
    weights: Sequence[str],
    penalties: Mapping[str, Penalty],
    first: Penalty,
    multipliers: Mapping[str, RateMultiplier],
    missed: Mapping[str, int],
) -> tuple[UpdateGroup, ...]:
    """Return the groups of the weights; the first one has the common numbers, and may be empty.

    Weights of one group stay together during a call: they have the same settings and the same history.

    Parameters
    ----------
    weights : sequence of str
        The trained weights.
    penalties : mapping of str to Penalty
        The penalties of those that have one.
    first : Penalty
        The penalty of the first group.
    multipliers : mapping of str to RateMultiplier
        The multipliers of those that have another one than 1.
    missed : mapping of str to int
        The updates in which weights were frozen so far.
    """
    if not multipliers and not missed and all(penalty is first for penalty in penalties.values()):
        # as a rule: a small call of ``partial_fit`` takes as long as many updates
        return (UpdateGroup(tuple(weights), first),)
    common = (first, _ONE, 0)
    groups: dict[tuple[Penalty, RateMultiplier, int], list[str]] = {common: []}
    for name in weights:
        key = (penalties.get(name, first), multipliers.get(name, _ONE), missed.get(name, 0))
        groups.setdefault(key, []).append(name)
    return tuple(UpdateGroup(tuple(names), *key) for key, names in groups.items())
