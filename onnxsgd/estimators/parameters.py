"""Constraints on the parameters of both estimators."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from sklearn.utils._param_validation import Interval, StrOptions

from onnxsgd.optimizers import OPTIMIZERS, Optimizer
from onnxsgd.penalties import PENALTIES
from onnxsgd.schedules import SCHEDULES, Schedule

__all__ = ["CONSTRAINTS"]

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")

#: Constraints in scikit-learn's classes; each estimator adds its losses.
CONSTRAINTS: dict[str, Any] = {
    "epsilon": [_NOT_NEGATIVE],
    "penalty": [StrOptions({name for name in PENALTIES if name}), None],
    "alpha": [_NOT_NEGATIVE],
    "l1_ratio": [Interval(Real, 0, 1, closed="both")],
    "optimizer": [StrOptions(set(OPTIMIZERS)), Optimizer],
    "momentum": [Interval(Real, 0, 1, closed="left")],
    "nesterov": ["boolean"],
    "learning_rate": [StrOptions(set(SCHEDULES)), Schedule, callable],
    "eta0": [_POSITIVE],
    "power_t": [Interval(Real, None, None, closed="neither")],
    "max_iter": [_COUNT],
    "tol": [_NOT_NEGATIVE, None],
    "n_iter_no_change": [_COUNT],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "batch_size": [_COUNT],
    "shuffle": ["boolean"],
    "random_state": ["random_state"],
    "average": ["boolean", Interval(Integral, 0, None, closed="left")],
    "warm_start": ["boolean"],
    "trainable": ["array-like", callable, None],
    "output": [str, Integral, None],
    "head": [StrOptions({"linear"}), None],
    "engine": [StrOptions({"auto", "onnxruntime-training", "portable"})],
    "device": [str],
    "dtype": [StrOptions({"float32", "float64"}), None],
    "n_threads": [_COUNT, None],
    "verbose": ["verbose"],
}
