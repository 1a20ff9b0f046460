"""Penalties: the strengths of the norms by name, and their values, against numpy."""

import numpy as np
import pytest
from numpy_training import PENALTIES as PLAIN

from onnxsgd import OnnxSGDRegressor, penalties
from onnxsgd.exceptions import ParameterError


def test_every_penalty_has_a_case():
    assert set(penalties.PENALTIES) == set(PLAIN)


@pytest.mark.parametrize("name", PLAIN)
def test_value_agrees_with_numpy(name):
    weights = [np.array([[1.5, -2.0], [0.0, 0.25]]), np.array([-3.0])]
    l1, l2 = PLAIN[name](0.3, 0.2)
    flat = np.array([1.5, -2.0, 0.0, 0.25, -3.0])
    expected = l1 * np.linalg.norm(flat, 1) + l2 / 2 * np.linalg.norm(flat) ** 2
    penalty = penalties.make_penalty(name, 0.3, 0.2)
    assert penalty.value(weights) == pytest.approx(expected, rel=1e-14)
    assert (penalty.l1 or 0, penalty.l2 or 0) == pytest.approx((l1, l2), rel=1e-14)


@pytest.mark.parametrize("name", PLAIN)
def test_the_objective_holds_the_penalty_of_the_coefficients(name):
    """Half the squared error of one row at rate 0.1 from zero: its residual is its target."""
    estimator = OnnxSGDRegressor(
        penalty=name, alpha=0.3, l1_ratio=0.2, learning_rate="constant", eta0=0.1, dtype="float64"
    ).partial_fit([[2.0, -1.0]], [3.0])
    l1, l2 = PLAIN[name](0.3, 0.2)
    coef = estimator.coef_
    expected = 3.0**2 / 2 + l1 * np.abs(coef).sum() + l2 / 2 * (coef**2).sum()
    assert estimator.loss_curve_ == pytest.approx([expected], rel=1e-12)


def test_unknown_penalties_are_refused():
    with pytest.raises(ParameterError, match="'l3'.*'l2', 'l1', 'elasticnet', None"):
        penalties.make_penalty("l3", 0.1, 0.5)
