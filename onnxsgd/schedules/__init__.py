"""Learning-rate schedules: the rate of each update, as a function of the update's number.

A schedule is a small frozen object. ``rate(t, eta)`` gives the rate of update `t` (1, 2, ...), where `eta`
is the current rate; ``after_epoch`` and ``after_plateau`` give the rate that follows from losses.
A plain callable ``t -> rate`` is accepted as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from onnxsgd._settable import did_you_mean
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.schedules._around import ByEpoch, ScheduleAround, WarmUp
from onnxsgd.schedules._auto import Auto
from onnxsgd.schedules._cosine import Cosine, CosineRestarts, OneCycle
from onnxsgd.schedules._decay import Exponential, Polynomial, Step
from onnxsgd.schedules._function import FunctionSchedule
from onnxsgd.schedules._plateau import Adaptive, ReduceOnPlateau
from onnxsgd.schedules._scaling import Constant, InvScaling, Optimal
from onnxsgd.schedules._schedule import Schedule

__all__ = [
    "SCHEDULES",
    "Adaptive",
    "Auto",
    "ByEpoch",
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Exponential",
    "InvScaling",
    "OneCycle",
    "Optimal",
    "Polynomial",
    "ReduceOnPlateau",
    "Schedule",
    "Step",
    "WarmUp",
    "make_schedule",
]

#: The constructor of each named schedule, from the parameters `eta0`, `power_t` and `alpha`.
SCHEDULES: dict[str, Callable[[float, float, float], Schedule]] = {
    "constant": lambda eta0, power_t, alpha: Constant(eta0),
    "optimal": lambda eta0, power_t, alpha: Optimal(alpha),
    "invscaling": lambda eta0, power_t, alpha: InvScaling(eta0, power_t),
    "adaptive": lambda eta0, power_t, alpha: Adaptive(eta0),
    "step": lambda eta0, power_t, alpha: Step(eta0),
    "exponential": lambda eta0, power_t, alpha: Exponential(eta0),
    "polynomial": lambda eta0, power_t, alpha: Polynomial(eta0),
    "cosine": lambda eta0, power_t, alpha: Cosine(eta0),
    "cosine_restarts": lambda eta0, power_t, alpha: CosineRestarts(eta0),
    "one_cycle": lambda eta0, power_t, alpha: OneCycle(eta0),
    "reduce_on_plateau": lambda eta0, power_t, alpha: ReduceOnPlateau(eta0),
    "auto": lambda eta0, power_t, alpha: Auto(),
}


def make_schedule(
    schedule: str | Schedule | Callable[[int], float], eta0: float, power_t: float, alpha: float
) -> Schedule:
    """Return `schedule` as an object.

    Parameters
    ----------
    schedule : {"constant", "optimal", "invscaling", "adaptive", "step", "exponential", "polynomial", \
            "cosine", "cosine_restarts", "one_cycle", "reduce_on_plateau", "auto"}, Schedule or callable
        A name, an object, or a function of the update's number.
    eta0, power_t, alpha : float
        Parameters of a named schedule; an object has its own.

    Raises
    ------
    ParameterError
        If the name is unknown.
    ParameterTypeError
        If `schedule` is neither a name, nor a schedule, nor callable.
    """
    if isinstance(schedule, ScheduleAround):
        inner = make_schedule(schedule.schedule, eta0, power_t, alpha)
        if isinstance(inner, Auto):
            raise ParameterError(
                f"learning_rate={schedule!r} is not accepted: 'auto' finds its rates itself. Name another "
                "schedule."
            )
        return schedule.around(inner)
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, str) and schedule in SCHEDULES:
        return SCHEDULES[schedule](eta0, power_t, alpha)
    given: object = schedule
    if isinstance(given, type) and issubclass(given, Schedule):
        raise ParameterTypeError(
            f"learning_rate={given!r} is not accepted: it is a class. Give an object, {given.__name__}(...)."
        )
    legal = f"it must be one of {sorted(SCHEDULES)}, a Schedule or a callable."
    if isinstance(schedule, str):
        nearest = did_you_mean(schedule, SCHEDULES)
        raise ParameterError(f"learning_rate={schedule!r} is not accepted: {legal}{nearest}")
    if callable(schedule):
        _check_arguments(schedule)
        return FunctionSchedule(schedule)
    raise ParameterTypeError(f"learning_rate={schedule!r} is not accepted: {legal}")


def _check_arguments(function: Callable[..., object]) -> None:
    """Refuse a function that does not take the number of an update as its only argument."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # a function in C, whose arguments are not known
        return
    try:
        signature.bind(1)
    except TypeError as error:
        raise ParameterTypeError(
            f"learning_rate={function!r} is not accepted ({error}): a function takes one argument, the "
            "number of the update, the first being 1, and returns its rate."
        ) from None
