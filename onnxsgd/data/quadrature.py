"""Quadratic forms of functions of a large symmetric matrix, by Lanczos quadrature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["measures"]

#: The share of the largest number of the tridiagonal matrix at which the space of a start is exhausted.
_ROUNDING = 1e-10


def measures(
    multiply: Callable[[np.ndarray], np.ndarray], starts: np.ndarray, n_steps: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    r"""Return the nodes and weights of the quadrature of each start, at most `n_steps` of them.

    The sum of ``weight * f(node)`` is an estimate of :math:`v^T f(A) v / v^T v`, exact for polynomials of a
    degree below twice the number of steps. Of starts of random signs, its mean is one of the mean of the
    diagonal of :math:`f(A)`. Nodes are never negative.

    Parameters
    ----------
    multiply : callable
        Returns the product of A, symmetric and without negative eigenvalues, and vectors of shape [n, m].
    starts : ndarray of shape [n, m]
        The starts v, none of which is zero.
    n_steps : int
        Products with A.

    References
    ----------
    G. H. Golub, G. Meurant, "Matrices, Moments and Quadrature", 1994. S. Ubaru, J. Chen, Y. Saad, "Fast
    Estimation of tr(f(A)) via Stochastic Lanczos Quadrature", SIAM J. Matrix Anal. Appl. 38, 2017.
    """
    vectors = starts / np.sqrt(np.add.reduce(starts * starts))
    before, off_diagonal = np.zeros_like(vectors), np.zeros(starts.shape[1])
    diagonals, off_diagonals = [], []
    for _ in range(min(n_steps, len(starts))):
        products = multiply(vectors)
        products -= off_diagonal * before
        diagonal = np.add.reduce(products * vectors)
        products -= diagonal * vectors
        off_diagonal = np.sqrt(np.add.reduce(products * products))
        diagonals.append(diagonal)
        off_diagonals.append(off_diagonal)
        before, vectors = vectors, products / np.where(off_diagonal > 0, off_diagonal, 1.0)
    pairs = zip(np.transpose(diagonals), np.transpose(off_diagonals), strict=True)
    return [_of_tridiagonal(*pair) for pair in pairs]


def _of_tridiagonal(diagonal: np.ndarray, off_diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of a tridiagonal matrix, and the squares of the first numbers of its vectors."""
    least = _ROUNDING * max(np.abs(diagonal).max(), off_diagonal.max())
    ends = np.flatnonzero(off_diagonal <= least)
    size = ends[0] + 1 if len(ends) else len(diagonal)
    matrix = np.diag(diagonal[:size])
    matrix[np.arange(1, size), np.arange(size - 1)] = off_diagonal[: size - 1]
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, 0.0), vectors[0] ** 2
