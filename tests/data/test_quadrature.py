"""Quadratures by products of a matrix with vectors."""

import numpy as np
import pytest

from onnxsgd.data.quadrature import measure

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
    # rounding takes products of matrices that have zeros below them
    assert measure(lambda vector: -1e-18 * vector, START, 30)[0].tolist() == [0.0]
