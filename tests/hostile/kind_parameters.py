"""Every constructor parameter of both estimators, with odd values: alone, in pairs and in threes."""

import datetime
import decimal
import fractions
import math
import pathlib
from collections.abc import Mapping
from numbers import Integral, Real

import numpy as np
import pandas as pd
from rules import Trial, faults

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses, optimizers, penalties, schedules
from onnxsgd.adapters import LoRA

#: Values that are odd for most parameters, by name.
ODD = {
    "None": None, "True": True, "False": False, "0": 0, "-1": -1, "1": 1, "2": 2, "1.5": 1.5, "-0.0": -0.0, "0.5": 0.5,
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "10**30": 10**30, "2**63": 2**63, "1e308": 1e308,
    "1e-320": 1e-320, "''": "", "'x'": "x", "'0'": "0", "'auto'": "auto", "b'x'": b"x", "[]": [], "{}": {}, "()": (),
    "set()": set(), "[None]": [None], "[[]]": [[]], "{None: None}": {None: None}, "{'coef': nan}": {"coef": math.nan},
    "object": object(), "a class": dict, "a lambda": lambda *given: None, "a lambda of str": lambda *given: "x",
    "a lambda of 0.5": lambda *given: 0.5, "a generator": (i for i in range(3)), "range": range(3), "Ellipsis": ...,
    "np.float32(0.5)": np.float32(0.5), "np.int8(1)": np.int8(1), "np.int64(-1)": np.int64(-1),
    "np.float64(nan)": np.float64(math.nan), "np.bool_(True)": np.bool_(True), "np.str_('x')": np.str_("x"),
    "np.array(1)": np.array(1), "np.array([0.5])": np.array([0.5]), "np.array([1, 2])": np.array([1, 2]),
    "np.array([])": np.array([]), "np.zeros((2, 2))": np.zeros((2, 2)), "1j": 1j, "pd.NA": pd.NA, "pd.NaT": pd.NaT,
    "Decimal": decimal.Decimal("0.5"), "Fraction": fractions.Fraction(1, 2), "a date": datetime.date(2020, 1, 1),
    "a frame": pd.DataFrame({"a": [1]}), "nested": {"a": [{"b": (1, {2})}]}, "a long text": "x" * 100_000,
    "Path('')": pathlib.Path("no/such/place"), "'a\\0b'": "a\0b", "LoRA": LoRA(2), "Huber": losses.Huber(), "LogLoss": losses.LogLoss(),
    "Adam": optimizers.Adam(), "Constant": schedules.Constant(0.1), "Penalty": penalties.Penalty(l1=0.1), "Huber class": losses.Huber,
    "a random state": np.random.RandomState(0), "a generator of numpy": np.random.default_rng(0),
}  # fmt: skip


def _count(value):
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_) and value >= 1


def _is_number(value):
    return isinstance(value, int | float | np.number) and isinstance(value, Real)


def _real(least, most=math.inf, least_too=True, most_too=False):
    def check(value):
        if not _is_number(value) or isinstance(value, bool) or math.isnan(value):
            return False
        return (least <= value if least_too else least < value) and (
            value <= most if most_too else value < most
        )

    return check


def _or_none(check):
    return lambda value: value is None or check(value)


def _flag(value):
    return isinstance(value, bool | np.bool_)


#: The documented range of each parameter; None for a value that only training can judge.
LEGAL = {
    "epsilon": _real(0),
    "alpha": _real(0),
    "l1_ratio": _real(0, 1, most_too=True),
    "momentum": _real(0, 1),
    "nesterov": _flag,
    "eta0": _or_none(_real(0, least_too=False)),
    "power_t": _real(-math.inf, least_too=False),
    "max_grad_norm": _or_none(_real(0, least_too=False)),
    "max_grad_value": _or_none(_real(0, least_too=False)),
    "max_iter": _count,
    "tol": _or_none(_real(0)),
    "n_iter_no_change": _count,
    "early_stopping": _flag,
    "validation_fraction": _real(0, 1, least_too=False),
    "batch_size": _or_none(_count),
    "gradient_accumulation_steps": _count,
    "steps_per_epoch": _or_none(_count),
    "shuffle": lambda value: _flag(value) or (isinstance(value, str) and value == "blocks"),
    "warm_start": _flag,
    "n_threads": _or_none(_count),
    "n_jobs": lambda value: value is None or _count(value) or (isinstance(value, Integral) and value < 0),
    "record_update_norms": _flag,
    "dropout": _or_none(_real(0, 1)),
    "engine": lambda value: isinstance(value, str) and value in ("auto", "portable", "onnxruntime-training"),
    "head": _or_none(lambda value: isinstance(value, str) and value == "linear"),
    "dtype": _or_none(lambda value: isinstance(value, str) and value in ("float32", "float64")),
    "batch_norm": _or_none(lambda value: isinstance(value, str) and value in ("frozen", "train")),
    "device": lambda value: isinstance(value, str) and value == "cpu",
    "penalty": lambda value: value is None or isinstance(value, penalties.Penalty | Mapping) or (isinstance(value, str) and value in penalties.PENALTIES),
    "optimizer": lambda value: value is None or isinstance(value, optimizers.Optimizer),
    "adapter": lambda value: value is None or isinstance(value, LoRA),
    "loss": lambda value: isinstance(value, losses.Loss),
    "learning_rate": lambda value: value == "auto" if isinstance(value, str) else isinstance(value, schedules.Schedule) or callable(value),
    "class_weight": lambda value: value is None or isinstance(value, dict) or (isinstance(value, str) and value == "balanced"),
    "model": lambda value: value is None or hasattr(value, "fit"),
    "checkpoint": lambda value: value is None or isinstance(value, str | pathlib.Path),
    "checkpoint_every": lambda value: _count(value) or isinstance(value, dict),
    "average": lambda value: _is_number(value) or _flag(value),
    "trainable": lambda value: value is None or callable(value) or hasattr(value, "__len__"),
    "output": lambda value: value is None or isinstance(value, str | Integral),
    "verbose": lambda value: isinstance(value, Integral | np.bool_),
    "random_state": lambda value: value is None or isinstance(value, Integral | np.random.RandomState),
    "classes": lambda value: value is None or hasattr(value, "__len__"),
    "learning_rate_multipliers": lambda value: value is None or isinstance(value, Mapping) or callable(value),
}  # fmt: skip
#: Settings beside which some of them act.
BESIDE = {
    "eta0": {"learning_rate": "constant"},
    "power_t": {"learning_rate": "invscaling"},
    "momentum": {"learning_rate": "constant"},
    "nesterov": {"learning_rate": "constant", "momentum": 0.5},
    "max_grad_norm": {"learning_rate": "constant"},
    "max_grad_value": {"learning_rate": "constant"},
    "optimizer": {"learning_rate": "constant"},
    "epsilon": {"loss": "huber"},
    "l1_ratio": {"penalty": "elasticnet"},
    "validation_fraction": {"early_stopping": True},
}
#: Parameters whose large values train for ever, one beside another.
_ENDLESS = ("max_iter", "n_iter_no_change", "tol")


def prepare():
    """Return the data and the names of the parameters."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    y = X @ np.array([1.0, -2.0, 0.5])
    return X, {OnnxSGDRegressor: y, OnnxSGDClassifier: (y > 0).astype(int)}


def run(number, rng, prepared):
    """Yield the faults of one case."""
    X, targets = prepared
    kind = (OnnxSGDRegressor, OnnxSGDClassifier)[number % 2]
    names = [str(n) for n in rng.permutation(kind._get_param_names())]
    names = names[: int(rng.choice([1, 1, 1, 2, 2, 3]))]
    if len(set(names) & set(_ENDLESS)) > 1:
        names = names[:1]
    odd = {name: str(rng.choice(list(ODD))) for name in names}
    settings = {"max_iter": 3, "tol": None, "random_state": 0, "n_threads": 1}
    if set(names) & set(_ENDLESS):
        settings.pop("max_iter")
        settings.pop("tol")
    if len(names) == 1:
        settings |= BESIDE.get(names[0], {}) if kind is OnnxSGDRegressor or names[0] != "epsilon" else {}
    values = {name: ODD[text] for name, text in odd.items()}
    if not isinstance(values.get("checkpoint"), bytes | float | int | None):
        # files belong to another kind of cases
        values.pop("checkpoint")
    title = f"{kind.__name__}({', '.join(f'{name}={text}' for name, text in odd.items())})"
    estimator = kind(**settings | values)
    is_legal = all(LEGAL[name](value) for name, value in values.items())
    fit = Trial(
        f"{title}.fit", lambda: estimator.fit(X, targets[kind]), given=(X, targets[kind]), names=tuple(values),
        is_legal=None if is_legal else False, is_finite=True,
    )  # fmt: skip
    yield from faults(fit)
    # a refused parameter of a fitted estimator
    fitted = kind(max_iter=2, random_state=0).fit(X, targets[kind])
    fitted.set_params(**values)
    calls = {"fit": fitted.fit, "partial_fit": lambda *given: fitted.partial_fit(*given)}
    name = str(rng.choice(list(calls)))
    again = Trial(
        f"fitted {title}.{name}", lambda: calls[name](X, targets[kind]), estimator=fitted, names=(*values, "partial_fit"), is_finite=True,
    )  # fmt: skip
    if not set(names) & set(_ENDLESS):
        yield from faults(again)
    if not fit.was_refused:
        for method in ("predict", "score", "to_onnx", "get_weights"):
            given = {"predict": (X,), "score": (X, targets[kind])}.get(method, ())
            call = getattr(estimator, method)
            yield from faults(
                Trial(f"{title}.{method}", lambda call=call, given=given: call(*given), is_finite=True)
            )
