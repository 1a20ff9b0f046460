"""Quadratic forms of functions of a large symmetric matrix, by Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["measure"]

#: The share of the largest number of the tridiagonal matrix at which the space of a start is exhausted.
_ROUNDING = 1e-10


def measure(
    multiply: Callable[[np.ndarray], np.ndarray], start: np.ndarray, n_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the nodes and the weights of the Lanczos quadrature of a start.

    The sum of ``weight * f(node)`` is an estimate of :math:`v^T f(A) v / v^T v`, exact for polynomials of a
    degree below twice the number of steps. For a start of random signs, that is one of the mean of the
    diagonal of :math:`f(A)`.

    Parameters
    ----------
    multiply : callable
        Returns the product of A, symmetric and without negative eigenvalues, and a vector.
    start : ndarray of shape [n]
        The start v; one of zeros has the node 0.
    n_steps : int
        The most products, and nodes.

    References
    ----------
    G. H. Golub, G. Meurant, "Matrices, Moments and Quadrature", 1994. S. Ubaru, J. Chen, Y. Saad, "Fast
    Estimation of tr(f(A)) via Stochastic Lanczos Quadrature", SIAM J. Matrix Anal. Appl. 38, 2017.
    """
    size_of_start = math.sqrt(start.dot(start))
    if not size_of_start:
        return np.zeros(1), np.ones(1)
    vector, before, off_diagonal = start / size_of_start, np.zeros_like(start), 0.0
    diagonals: list[float] = []
    off_diagonals: list[float] = []
    for _ in range(min(n_steps, len(start))):
        product = multiply(vector) - off_diagonal * before
        diagonal = float(product.dot(vector))
        product -= diagonal * vector
        off_diagonal = math.sqrt(product.dot(product))
        diagonals.append(diagonal)
        if not off_diagonal > _ROUNDING * max(map(abs, diagonals)):
            break
        off_diagonals.append(off_diagonal)
        before, vector = vector, product / off_diagonal
    size = len(diagonals)
    matrix = np.diag(np.array(diagonals))
    matrix[np.arange(1, size), np.arange(size - 1)] = off_diagonals[: size - 1]
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, 0.0), vectors[0] ** 2
