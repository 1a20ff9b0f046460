"""Formulas read from functions of numbers give the same numbers as text."""

import math

import numpy as np
import pytest

from onnxsgd.engine.export.formulas import _FUNCTIONS, _OPERATORS, Formula, read_formula, to_text
from onnxsgd.optimizers import SGD, Adagrad, Adam, AdamW, Lion, RMSProp
from onnxsgd.schedules import SCHEDULES, ByEpoch, WarmUp, make_schedule

#: Functions of `x` and `y`, with the ufunc that each of them shows.
CASES = {
    np.add: lambda x, y: x + y,
    np.subtract: lambda x, y: 2.0 - (x - y),
    np.multiply: lambda x, y: x * (y * 3),
    np.divide: lambda x, y: 1 / (x / y),
    np.power: lambda x, y: (x**y) ** 0.5,
    np.minimum: lambda x, y: np.minimum(x, y) + np.minimum(0.5, x),
    np.maximum: lambda x, y: np.maximum(x, y * 2),
    np.sqrt: lambda x, y: np.sqrt(x + y),
    np.exp: lambda x, y: np.exp(x * y),
    np.log: lambda x, y: np.log(x / y),
    np.cos: lambda x, y: np.cos(x) * y,
    np.floor: lambda x, y: np.floor(x * 3) + y,
}
#: The functions of the text in Python; JavaScript has them in Math.
WORDS = {
    "min": min, "max": max, "floor": math.floor, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "cos": math.cos,
}  # fmt: skip


def test_every_function_has_a_case():
    assert set(_OPERATORS) | set(_FUNCTIONS) == set(CASES)


@pytest.mark.parametrize("ufunc", CASES, ids=lambda ufunc: ufunc.__name__)
def test_the_text_gives_the_numbers_of_the_function(ufunc):
    """The names of functions are those that Python and JavaScript share."""
    text = read_formula(CASES[ufunc], "x", "y")
    for x, y in [(0.3, 1.7), (2.5, 0.4)]:
        assert eval(text, {**WORDS, "x": x, "y": y}) == pytest.approx(CASES[ufunc](x, y), rel=1e-14)


def test_whole_quotients_are_floors():
    assert read_formula(lambda t: 2 * (t // 3), "t") == "2.0 * floor(t / 3.0)"


@pytest.mark.parametrize("function", [lambda t: np.sin(t), lambda t: np.add.reduce(t), lambda t: "text"])
def test_other_functions_have_no_formula(function):
    assert read_formula(function, "t") is None


@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.9), SGD(0.9, convention="torch"), Adam(), AdamW(), RMSProp(), Adagrad(), Lion()],
    ids=repr,
)
def test_formulas_give_the_numbers_of_an_optimizer(optimizer):
    """Formulas read from its code give the same numbers."""
    t, eta = np.arange(1.0, 9.0), np.linspace(0.5, 0.1, 8)
    for name, expected in optimizer.scalars(t, eta, 3.0).items():
        text = to_text(optimizer.scalars(Formula("t"), Formula("eta"), 3.0)[name])
        words = {"min": np.minimum, "sqrt": np.sqrt, "t": t, "eta": eta}
        np.testing.assert_allclose(eval(text, words) + 0 * t, expected + 0 * t, rtol=1e-15)


@pytest.mark.parametrize("name", sorted({*SCHEDULES} - {"auto", "reduce_on_plateau"}))
def test_formulas_give_the_rates_of_a_schedule(name):
    schedule = make_schedule(name, 0.1, 0.25, 1e-4).for_updates(50)
    text = read_formula(schedule.rate, "t", "eta")
    for t in (1, 2, 8, 17, 18, 49, 50, 51, 60):
        expected = schedule.rate(t, 0.3)
        assert eval(text, {**WORDS, "t": t, "eta": 0.3}) == pytest.approx(expected, rel=1e-14, abs=1e-17)


@pytest.mark.parametrize("eta0", [0.3, 0.1])
def test_formulas_of_schedules_around_others(eta0):
    for inner in ("cosine", "adaptive", "invscaling"):
        schedule = make_schedule(WarmUp(ByEpoch(inner), 12), eta0, 0.25, 1e-4).for_epochs(7).for_updates(50)
        text, eta = read_formula(schedule.rate, "t", "eta"), schedule.initial
        for t, expected in enumerate(schedule.rates(1, eta, 60), start=1):
            eta = eval(text, {**WORDS, "t": t, "eta": eta})
            assert eta == pytest.approx(expected, rel=1e-13, abs=1e-17)


@pytest.mark.parametrize(
    "function", [lambda t: 1 if t else 2, lambda t: float(t), lambda t: 1 if t < 3 else 2]
)
def test_a_branch_is_no_formula(function):
    """A condition would be exported as one of its cases."""
    assert read_formula(function, "t") is None
