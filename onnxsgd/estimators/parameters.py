"""Parameters of both estimators: constraints, and the choice of optimizer and learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from operator import attrgetter, itemgetter
from os import PathLike
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_parameter_constraints,
)

from onnxsgd._settable import RefusedChange, did_you_mean
from onnxsgd.adapters import LoRA
from onnxsgd.engine.step.gradient_limits import MAX_NORM, MAX_VALUE
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES
from onnxsgd.optimizers import OPTIMIZERS, BlockAdam, Optimizer, make_optimizer
from onnxsgd.penalties import PENALTIES, Penalty, make_penalties
from onnxsgd.runtime.sessions import MOST_THREADS
from onnxsgd.schedules import SCHEDULES, Auto, Schedule, make_schedule
from onnxsgd.schedules._around import ScheduleAround
from onnxsgd.training.checkpoints import Every
from onnxsgd.training.fit_plan import Recipe

__all__ = [
    "CONSTRAINTS", "are_fixed", "check_parameters", "choose_limits", "choose_updates", "make_recipe",
    "parameter_values", "read_average", "read_every", "reader", "refuse_blocks", "refuse_without_parameters",
    "values_of_updates",
]  # fmt: skip

_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
#: The largest rate, limit of a gradient and strength of a penalty, in the range of float32.
_LARGEST_FACTOR = 1e30
#: The largest threshold of a loss: its square is a number of float32.
_LARGEST_EPSILON = 1e18
_FACTOR = Interval(Real, 0, _LARGEST_FACTOR, closed="right")
_COUNT = Interval(Integral, 1, None, closed="left")

#: Constraints in scikit-learn's classes; each estimator adds its losses.
CONSTRAINTS: dict[str, Any] = {
    "epsilon": [Interval(Real, 0, _LARGEST_EPSILON, closed="both")],
    "penalty": [StrOptions({name for name in PENALTIES if name}), Penalty, dict, None],
    "alpha": [Interval(Real, 0, _LARGEST_FACTOR, closed="both")],
    "l1_ratio": [Interval(Real, 0, 1, closed="both")],
    "optimizer": [StrOptions(set(OPTIMIZERS)), Optimizer, None],
    "momentum": [Interval(Real, 0, 1, closed="left")],
    "nesterov": ["boolean"],
    "learning_rate": [StrOptions(set(SCHEDULES)), Schedule, callable],
    "eta0": [_FACTOR, None],
    "power_t": [Interval(Real, None, None, closed="neither")],
    "learning_rate_multipliers": [Mapping, callable, None],
    "max_grad_norm": [_FACTOR, None],
    "max_grad_value": [_FACTOR, None],
    "max_iter": [_COUNT],
    "tol": [_NOT_NEGATIVE, None],
    "n_iter_no_change": [_COUNT],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "batch_size": [_COUNT, None],
    "gradient_accumulation_steps": [_COUNT],
    "steps_per_epoch": [_COUNT, None],
    "shuffle": ["boolean", StrOptions({"blocks"})],
    "random_state": ["random_state"],
    "average": [
        "boolean",
        Interval(Integral, 0, None, closed="left"),
        Interval(Real, 0, 1, closed="neither"),
    ],
    "warm_start": ["boolean"],
    "trainable": ["array-like", str, callable, None],
    "adapter": [LoRA, None],
    "output": [str, Integral, None],
    "head": [StrOptions({"linear"}), None],
    "engine": [StrOptions({"auto", "onnxruntime-training", "portable"})],
    "device": [str],
    "dtype": [StrOptions({"float32", "float64"}), None],
    "dropout": [Interval(Real, 0, 1, closed="left"), None],
    "batch_norm": [StrOptions({"frozen", "train"}), None],
    "n_threads": [Interval(Integral, 1, MOST_THREADS, closed="both"), None],
    "n_jobs": [_COUNT, Interval(Integral, None, -1, closed="right"), None],
    "verbose": ["verbose"],
    "record_update_norms": ["boolean"],
    "checkpoint": [str, PathLike, None],
    "checkpoint_every": [_COUNT, dict],
}

#: The largest whole number: counts beyond 64 bits, and rates that float64 does not hold, are mistakes.
_LARGEST = 2**63 - 1

#: The first rate of a named schedule, and the exponent of "invscaling", if none is given.
_ETA0, _POWER_T = 0.01, 0.25


#: Immutable types whose values are validated once in a process: scikit-learn's validation of all parameters
#: takes as long as a small ``partial_fit``.
_PLAIN = frozenset({bool, int, float, str, type(None)})
#: The place of a value that is left out.
_OTHER = object()
#: Parameters that updates do not depend on.
_OF_GRAPH_OR_DATA = frozenset({"model", "trainable", "classes", "random_state", "n_jobs"})


#: The names of the parameters of a class.
_names: Callable[[Any], tuple[str, ...]] = lru_cache(lambda kind: tuple(kind._get_param_names()))


def reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads several attributes of an estimator.

    It reads its dictionary, in a third of the time, if that has all.
    """
    from_dictionary, from_object = itemgetter(*names), attrgetter(*names)

    def read(estimator: Any) -> tuple[Any, ...]:
        try:
            found: tuple[Any, ...] = from_dictionary(vars(estimator))
        except KeyError:
            # a subclass may compute some
            found = from_object(estimator)
        return found

    return read


#: The function of a class that reads all of its parameters.
_reader_of_all: Callable[[Any], Callable[[Any], tuple[Any, ...]]] = lru_cache(
    lambda kind: reader(_names(kind))
)


def parameter_values(estimator: Any) -> tuple[Any, ...]:
    """Return the values of all parameters, in the order of their names."""
    return _reader_of_all(type(estimator))(estimator)


#: The names of those that updates depend on.
_names_of_updates: Callable[[Any], tuple[str, ...]] = lru_cache(
    lambda kind: tuple(name for name in _names(kind) if name not in _OF_GRAPH_OR_DATA)
)


#: The function that reads them.
_reader_of_updates: Callable[[Any], Callable[[Any], tuple[Any, ...]]] = lru_cache(
    lambda kind: reader(_names_of_updates(kind))
)


def values_of_updates(estimator: Any) -> tuple[Any, ...]:
    """Return the values of the parameters that updates depend on, in the order of their names."""
    return _reader_of_updates(type(estimator))(estimator)


def are_fixed(estimator: Any) -> bool:
    """Tell whether no parameter that updates depend on can be changed in place."""
    return _PLAIN.issuperset(map(type, values_of_updates(estimator)))


def make_recipe(estimator: Any) -> Recipe:
    """Return the settings of the updates that the checked parameters of an estimator denote.

    Estimators with the same plain values, as clones have them, share one.

    Raises
    ------
    ParameterError
        If a parameter would have no effect.
    """
    values = values_of_updates(estimator)
    if not _PLAIN.issuperset(map(type, values)):
        return _new_recipe(estimator)
    return _recipe_of(_names_of_updates(type(estimator)), *values)


def _new_recipe(parameters: Any) -> Recipe:
    """Return the settings that attributes with the names of parameters denote."""
    optimizer, schedule = choose_updates(parameters)
    average_from, average_decay = read_average(parameters.average)
    return Recipe(
        optimizer=optimizer,
        schedule=schedule,
        penalties=make_penalties(parameters.penalty, parameters.alpha, parameters.l1_ratio),
        average_from=average_from,
        average_decay=average_decay,
        shuffle=bool(parameters.shuffle),
        in_blocks=isinstance(parameters.shuffle, str),
        limits=choose_limits(parameters),
    )


@lru_cache(maxsize=256, typed=True)
def _recipe_of(names: tuple[str, ...], *values: object) -> Recipe:
    """Return the settings of plain values, whose types tell True from 1."""
    return _new_recipe(SimpleNamespace(**dict(zip(names, values, strict=True))))


def check_parameters(estimator: Any) -> None:
    """Validate the parameters of an estimator by the constraints of its class.

    Raises
    ------
    ParameterError
        If a value is not allowed; with scikit-learn's message, and the nearest legal name.
    """
    kind: Any = type(estimator)
    values = parameter_values(estimator)
    plain = [value if type(value) in _PLAIN else _OTHER for value in values]
    _check_plain(kind, *plain)
    if _OTHER in plain:
        _check_all(kind, *[_OTHER if type(value) in _PLAIN else value for value in values])


def _check_all(kind: Any, *values: object) -> None:
    """Validate the values of the parameters of a class, in the order of their names, but those left out."""
    try:
        for name, value in zip(_names(kind), values, strict=True):
            if value is not _OTHER:
                _check(kind, name, value)
    except InvalidParameterError as error:
        raise ParameterError(f"{error}{_nearest(kind._parameter_constraints[name], value)}") from None


def _nearest(constraints: list[Any], value: object) -> str:
    """Return a sentence with the legal name nearest to a string; empty if there is none."""
    legal = [option for known in constraints if isinstance(known, StrOptions) for option in known.options]
    return did_you_mean(value, legal)


def _check(kind: Any, name: str, value: object) -> None:
    constraints = kind._parameter_constraints.get(name, [None])
    if isinstance(value, RefusedChange):
        value.refuse()
    if isinstance(value, bool | np.bool_) and set(map(type, constraints)) - {type(None)} == {Interval}:
        # an Interval takes True for 1
        raise ParameterError(
            f"{name}={value!r} is not accepted: it must be {' or '.join(map(str, constraints))}."
        )
    if name == "model" and isinstance(value, str) and value in {*REGRESSION_LOSSES, *CLASSIFICATION_LOSSES}:
        raise ParameterError(
            f"model={value!r} is the name of a loss: give it as loss={value!r}, and a model in its place."
        )
    if isinstance(value, np.ndarray) and value.ndim == 0 and "array-like" in constraints:
        raise ParameterTypeError(f"{name}={value!r} is not accepted: it has no axis. Give a list, or None.")
    if isinstance(value, type) and _wants_object_of(value, constraints):
        function = ", or a function" if callable in constraints else ""
        raise ParameterTypeError(
            f"{name}={value!r} is not accepted: it is a class. Give an object, {value.__name__}(...)"
            f"{function}."
        )
    if isinstance(value, Real) and not isinstance(value, int | float | np.generic):
        # such as Fraction, which an Interval raises on
        raise ParameterError(f"{name}={value!r} is not accepted: numbers must be int, float, or numpy's.")
    if isinstance(value, int) and name != "random_state" and abs(value) > _LARGEST:
        raise ParameterError(f"{name}={value!r} is not accepted: whole numbers up to 2^63 - 1 are.")
    validate_parameter_constraints(kind._parameter_constraints, {name: value}, caller_name=kind.__name__)


def _wants_object_of(kind: type, constraints: list[Any]) -> bool:
    """Tell whether a parameter takes functions, or objects of a class."""
    return callable in constraints or any(
        isinstance(known, type) and known is not type(None) and issubclass(kind, known)
        for known in constraints
    )


#: The same for values of immutable types, cached; the types tell True from 1.
_check_plain = lru_cache(maxsize=4096, typed=True)(_check_all)


def refuse_blocks(shuffle: bool | str, found: str) -> None:
    """Refuse a shuffle by blocks of data that are no tables of rows; `found` says what `X` is."""
    if isinstance(shuffle, str):
        raise ParameterError(
            f"shuffle={shuffle!r} takes the rows of tables by blocks, and X {found}: give shuffle=True, "
            "which shuffles sequences and leaves batches in their order, or shuffle=False."
        )


def refuse_without_parameters(key: str, name: str, value: object) -> None:
    """Refuse a name `key` of a parameter of `value`, the value of the parameter `name`, if that has none."""
    if hasattr(value, "set_params"):
        return
    remedy = "give an object of the package, which has some"
    if isinstance(value, Mapping):
        remedy = f"a search takes whole dictionaries, {{{name!r}: [{{...}}, {{...}}]}}"
    raise ParameterError(f"{key} is no parameter: {name}={value!r} has none; {remedy}.")


def read_average(average: bool | float) -> tuple[int, float | None]:
    """Return the update that averages begin with, 0 for none, and their decay, None for equal shares."""
    if average is False:
        # the common case: one look
        return 0, None
    if not isinstance(average, Real | np.bool_):
        raise ParameterError(
            f"average={average!r} is not accepted: it must be True, False, the number of the first update "
            "that counts, or a decay between 0 and 1."
        )
    # an int is a Real too, and numpy's booleans are neither
    if isinstance(average, Real) and not isinstance(average, Integral):
        return 1, float(average)
    return int(average), None


def choose_updates(estimator: Any) -> tuple[Optimizer, Schedule]:
    """Return the optimizer and the schedule of an estimator as objects.

    Raises
    ------
    ParameterError
        If a parameter would have no effect.
    """
    eta0 = _ETA0 if estimator.eta0 is None else estimator.eta0
    schedule = make_schedule(estimator.learning_rate, eta0, estimator.power_t, estimator.alpha)
    if estimator.eta0 is not None and not _is_named(estimator.learning_rate):
        raise ParameterError(
            f"eta0={estimator.eta0!r} has no effect on learning_rate={estimator.learning_rate!r}, which has "
            "rates of its own: set them there, and leave eta0 out."
        )
    if isinstance(schedule, Auto):
        return _auto_optimizer(estimator), schedule
    name = "sgd" if estimator.optimizer is None else estimator.optimizer
    return make_optimizer(name, estimator.momentum, estimator.nesterov), schedule


def _is_named(learning_rate: object) -> bool:
    """Tell whether a schedule, or the one that others are around, is given by its name."""
    while isinstance(learning_rate, ScheduleAround):
        learning_rate = learning_rate.schedule
    return isinstance(learning_rate, str)


def choose_limits(estimator: Any) -> tuple[tuple[str, float], ...]:
    """Return the limits of the gradient that an estimator names, in the order in which they apply.

    Raises
    ------
    ParameterError
        If training finds the rate, in units of its own.
    """
    named = {name: getattr(estimator, name) for name in (MAX_VALUE, MAX_NORM)}
    limits = tuple((name, float(value)) for name, value in named.items() if value is not None)
    if limits and (isinstance(estimator.learning_rate, Auto) or estimator.learning_rate == "auto"):
        name, value = limits[-1]
        raise ParameterError(
            f"{name}={value!r} is not accepted with learning_rate='auto', whose updates have the same size "
            "however large the gradient is: leave it out, or name a learning_rate, such as 'constant', with "
            "optimizer='sgd' or 'adam'."
        )
    return limits


def _auto_optimizer(estimator: Any) -> Optimizer:
    """Return the optimizer of ``learning_rate="auto"``; refuse parameters that it does not use."""
    given = {"eta0": estimator.eta0 is not None, "power_t": estimator.power_t != _POWER_T}
    given |= {"momentum": estimator.momentum != 0, "nesterov": bool(estimator.nesterov)}
    names = [name for name, is_given in given.items() if is_given]
    if names:
        values = ", ".join(f"{name}={getattr(estimator, name)!r}" for name in names)
        raise ParameterError(
            f"{values} has no effect on learning_rate='auto', which finds the rate itself: name a "
            "learning_rate, such as 'constant' or 'invscaling'. A search over both takes a list of grids: "
            f"[{{'learning_rate': ['auto']}}, {{'learning_rate': ['constant'], {names[0]!r}: [...]}}]."
        )
    if estimator.optimizer is None:
        return BlockAdam()
    optimizer = make_optimizer(estimator.optimizer, 0.0, False)
    if not isinstance(optimizer, BlockAdam):
        raise ParameterError(
            f"optimizer={estimator.optimizer!r} needs a named learning_rate, such as 'constant' or "
            "'invscaling': learning_rate='auto' has its own optimizer, 'block_adam'."
        )
    return optimizer


def read_every(value: object) -> Every:
    """Return the parameter `checkpoint_every` as an object.

    Raises
    ------
    ParameterError
        If it is not accepted.
    """
    unit: object = "epochs"
    number: Any = value
    if isinstance(value, Mapping) and len(value) == 1:
        ((unit, number),) = value.items()
    is_whole = isinstance(number, Integral) and not isinstance(number, bool)
    if unit in ("epochs", "updates") and is_whole and number >= 1:
        return Every(**{unit: int(number)})
    is_real = isinstance(number, Real) and not isinstance(number, bool)
    if unit == "seconds" and is_real and 0 < number < math.inf:
        return Every(seconds=float(number))
    raise ParameterError(
        f"checkpoint_every={value!r} is not accepted: it must be a number of epochs, at least 1, or a "
        "dictionary such as {'updates': 500} or {'seconds': 60}, with a number above 0."
    )
