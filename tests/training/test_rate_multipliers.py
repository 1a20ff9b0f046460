"""Multipliers of the rate by name, by pattern and by a function; those without effect are refused."""

import pytest

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.training.rate_multipliers import RateMultiplier, read_multipliers, refuse_freezing

NAMES = ("layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias", "head[0]")
ONE = RateMultiplier()


def read(given):
    found = read_multipliers(given, NAMES)
    return [found.get(name, ONE) for name in NAMES]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [1, 1, 1, 1, 1]),
        ({}, [1, 1, 1, 1, 1]),
        ({"layer1.*": 0.1}, [0.1, 0.1, 1, 1, 1]),
        ({"*.weight": 0.1, "layer1.*": 2}, [0.1, 2, 0.1, 1, 1]),
        ({"*": 0.1, "layer2.bias": 0}, [0.1, 0.1, 0.1, 0, 0.1]),
        # a name that is also a pattern
        ({"head[0]": 3}, [1, 1, 1, 1, 3]),
        (lambda name: 0.5 if name.endswith("bias") else 1, [1, 0.5, 1, 0.5, 1]),
    ],
)
def test_names_come_before_patterns_and_earlier_patterns_before_later_ones(given, expected):
    assert read(given) == [RateMultiplier(float(factor)) for factor in expected]


def test_epochs_of_frozen_tensors():
    given = {"layer1.*": {"multiplier": 0.1, "from_epoch": 3}, "head*": {"from_epoch": 2}, "layer2.bias": 0}
    first, second, third, fourth, last = read(given)
    assert first == second == RateMultiplier(0.1, 3)
    assert (third, fourth, last) == (ONE, RateMultiplier(0.0), RateMultiplier(1.0, 2))
    assert [m.freezes for m in (first, third, fourth, last)] == [True, False, True, True]
    assert read(lambda name: {"multiplier": 2, "from_epoch": 5}) == [RateMultiplier(2.0, 5)] * 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"layer1.wieght": 0.1},
            r"'layer1.wieght' .* matches no trained tensor.*'head\[0\]'\].*'layer1.weight'",
        ),
        ({"Layer*": 0.1}, "'Layer.*' in learning_rate_multipliers matches no trained tensor"),
        ({1: 0.1}, "1 in learning_rate_multipliers matches no trained tensor"),
        ({"layer*": 0.1, "layer1.*": 1}, r"'layer1.\*' .* no effect.*\['layer1.weight', 'layer1.bias'\]"),
        ({"layer1.*": -0.1}, "'layer1.*' -0.1, which is not accepted: it must be a number >= 0"),
        ({"layer1.*": float("nan")}, "nan, which is not accepted"),
        ({"layer1.*": float("inf")}, "inf, which is not accepted"),
        ({"layer1.*": {"multiplier": 1, "from_epoch": 0}}, "'from_epoch': 0}, which is not accepted"),
        ({"layer1.*": {"factor": 1}}, "{'factor': 1}, which is not accepted.*from_epoch"),
        (lambda name: -1, "'layer1.weight' -1, which is not accepted"),
    ],
)
def test_entries_without_effect_and_values_that_are_no_factors(given, message):
    with pytest.raises(ParameterError, match=message):
        read(given)


@pytest.mark.parametrize(
    "value", ["0.1", None, [0.1], {"multiplier": "1"}, {"multiplier": 1, "from_epoch": 1.5}], ids=str
)
def test_values_of_other_types(value):
    with pytest.raises(ParameterTypeError, match="'head.*which is not accepted: it must be a number >= 0"):
        read({"head[0]": value})
    with pytest.raises(ParameterTypeError, match="which is not accepted"):
        read(lambda name: value)


@pytest.mark.parametrize("value", [0, {"from_epoch": 2}])
def test_a_rate_that_is_found_takes_factors_alone(value):
    refuse_freezing(read_multipliers({"head*": 0.1}, NAMES))
    with pytest.raises(ParameterError, match=r"freezes 'head\[0\]' .*'auto'.*trainable=.*'constant'"):
        refuse_freezing(read_multipliers({"head*": value}, NAMES))


def test_a_refusal_leaves_the_estimator_as_it_was():
    X, y = [[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]
    new = OnnxSGDRegressor(learning_rate="constant", learning_rate_multipliers={"weights": 0.1})
    with pytest.raises(ParameterError, match=r"matches no trained tensor; these are \['coef', 'intercept'\]"):
        new.fit(X, y)
    assert not hasattr(new, "coef_")
    model = OnnxSGDRegressor(learning_rate="constant").fit(X, y)
    before = model.coef_, model.t_, model.loss_curve_
    for train in (model.fit, model.partial_fit):
        with pytest.raises(ParameterError, match="matches no trained tensor"):
            model.set_params(learning_rate_multipliers={"weights": 0.1}) and train(X, y)
        assert (model.coef_, model.t_, model.loss_curve_) == before
    with pytest.raises(ParameterError, match="learning_rate_multipliers"):
        model.set_params(learning_rate_multipliers=0.1).fit(X, y)
