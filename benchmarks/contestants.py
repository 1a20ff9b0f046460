"""The table of contestants."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainers import Train
from workloads import Task

__all__ = ["BASELINE", "CONTESTANTS", "Contestant"]


@dataclass(frozen=True)
class Contestant:
    """One way to train.

    Attributes
    ----------
    name : str
        Its name in the tables.
    module, function : str
        The function of :mod:`trainers` that makes its :data:`~trainers.Train`; the module is imported only if
        the contestant takes part.
    options : dict
        Further arguments of the function.
    takes : callable
        Whether it supports a task.
    same_updates : callable
        Whether it makes the same updates of a task as the others, so that the results must agree.
    slow_start : bool
        Whether its start takes seconds: left out of quick runs.
    """

    name: str
    module: str
    function: str
    options: tuple[tuple[str, Any], ...] = ()
    takes: Callable[[Task], bool] = lambda task: True
    same_updates: Callable[[Task], bool] = lambda task: True
    slow_start: bool = False

    def make(self, task: Task) -> Train:
        """Return the trainer; raises ImportError if a library is missing."""
        function = getattr(importlib.import_module(f"trainers.{self.module}"), self.function)
        return function(task, **dict(self.options))


#: Ratios are times of the others over the time of this one.
BASELINE = "onnxsgd"

CONTESTANTS: tuple[Contestant, ...] = (
    Contestant(BASELINE, "ours", "train_with", (("engine", "auto"),)),
    Contestant("onnxsgd portable", "ours", "train_with", (("engine", "portable"),)),
    Contestant(
        "scikit-learn SGD", "scikit_learn", "train_linear",
        takes=lambda task: task.workload.is_linear, same_updates=lambda task: task.batch_size == 1,
    ),
    Contestant("scikit-learn MLP", "scikit_learn", "train_mlp"),
    Contestant("torch eager", "pytorch", "train_eager"),
    Contestant("torch.compile", "pytorch", "train_compiled", slow_start=True),
    Contestant("JAX jit step", "jax_numpy", "train_by_step"),
    Contestant("JAX jit + scan", "jax_numpy", "train_by_epoch"),
    Contestant("forward/backward agent", "agent", "train_by_agent"),
)  # fmt: skip
