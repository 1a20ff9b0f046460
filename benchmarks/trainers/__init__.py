"""The trainers of the contestants: one module for each library.

Every module has functions that take a :class:`~workloads.Task` and return a :data:`Train`.
"""

from __future__ import annotations

from collections.abc import Callable

from workloads import Layers

__all__ = ["TimedTrain", "Train"]

#: Train for a number of epochs from the initial weights, shuffled or not, and return the final weights.
Train = Callable[[int, bool], Layers]

#: The same, which returns the seconds that each epoch took as well.
TimedTrain = Callable[[int, bool], tuple[Layers, list[float]]]
