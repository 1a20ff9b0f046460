"""Quadratures and regressions by products of a matrix with vectors."""

from itertools import islice

import numpy as np
import pytest

from onnxsgd.data.krylov import measure, ridge_path

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 40)) * np.geomspace(1.0, 0.1, 40)
MATRIX = ROWS @ ROWS.T
START = RNG.normal(size=60)
FUNCTIONS = {
    "inverse": lambda x: 1.0 / (1.0 + x),
    "square of it": lambda x: 1.0 / (1.0 + x) ** 2,
    "logarithm": np.log1p,
}


def form(function, start):
    values, vectors = np.linalg.eigh(MATRIX)
    return (vectors.T @ start) ** 2 @ function(np.maximum(values, 0)) / (start @ start)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("n_steps", "tolerance"), [(15, 2e-3), (60, 1e-9)])
def test_a_quadrature_has_the_form_of_a_function(name, n_steps, tolerance):
    nodes, weights = measure(lambda v: MATRIX @ v, START, n_steps)
    assert len(nodes) <= n_steps
    assert (nodes >= 0).all()
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ FUNCTIONS[name](nodes) == pytest.approx(form(FUNCTIONS[name], START), rel=tolerance)


@pytest.mark.parametrize("power", range(8))
def test_polynomials_are_exact(power):
    """Four steps have a degree of seven."""
    nodes, weights = measure(lambda v: MATRIX @ v, START, 4)
    assert weights @ nodes**power == pytest.approx(form(lambda x: x**power, START))


def test_an_exhausted_space_ends_the_steps():
    values, vectors = np.linalg.eigh(MATRIX)
    calls = []

    def multiply(vector):
        calls.append(vector)
        return MATRIX @ vector

    nodes, weights = measure(multiply, vectors[:, [-1, -3]] @ [3.0, 4.0], 30)
    np.testing.assert_allclose(nodes, values[[-3, -1]])
    np.testing.assert_allclose(weights, [0.64, 0.36])
    assert len(calls) == 2
    zeros = measure(np.zeros_like, START, 30)
    assert (zeros[0].tolist(), zeros[1].tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize("penalty", [0.0, 0.1, 10.0])
def test_the_path_ends_at_the_ridge_regression(penalty):
    path = ridge_path(lambda w: ROWS @ w, lambda u: ROWS.T @ u, START, penalty)
    for coefficients, left in islice(path, 300):  # noqa: B007
        if left < 1e-12:
            break
    expected = np.linalg.solve(ROWS.T @ ROWS + penalty * np.eye(40), ROWS.T @ START)
    np.testing.assert_allclose(coefficients, expected, rtol=1e-7, atol=1e-9)


def test_each_step_lowers_the_objective_and_tells_the_gradient():
    objectives, first = [], ROWS.T @ START
    for coefficients, left in islice(ridge_path(lambda w: ROWS @ w, lambda u: ROWS.T @ u, START, 0.5), 12):
        residual = START - ROWS @ coefficients
        objectives.append(residual @ residual + 0.5 * coefficients @ coefficients)
        gradient = ROWS.T @ residual - 0.5 * coefficients
        assert left == pytest.approx(np.linalg.norm(gradient) / np.linalg.norm(first))
    assert np.all(np.diff([START @ START, *objectives]) < 0)


def test_without_a_gradient_there_is_no_step():
    apart = START - ROWS @ np.linalg.lstsq(ROWS, START, rcond=None)[0]
    assert not list(islice(ridge_path(lambda w: 0 * START, lambda u: np.zeros(40), apart, 0.5), 5))
