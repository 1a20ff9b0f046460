"""The rows of many samples that are held out for validation, drawn block by block."""

from __future__ import annotations

import math

import numpy as np

from onnxsgd.data.row_tables import row_blocks

__all__ = ["hold_out_rows"]


def hold_out_rows(
    n_rows: int, fraction: float, random_state: np.random.RandomState, columns: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and those to validate on, both in ascending order.

    Each set of so many rows is as probable as any other, in each class: of each block a class loses as many
    rows as a random set has there, a number of a hypergeometric distribution.

    Parameters
    ----------
    n_rows : int
        The number of rows.
    fraction : float
        The share of those to validate on, rounded up.
    random_state : RandomState
        The generator.
    columns : ndarray of shape [n_rows] or None
        The number of the class of each row: each class has the same share; None: there is one class.

    Raises
    ------
    ValueError
        If nothing is left to train on, or a class has less than two rows, or there are more classes than
        rows to validate on.
    """
    n_held = math.ceil(fraction * n_rows)
    if not 0 < n_held < n_rows:
        raise ValueError(f"{n_rows - n_held} rows would be left to train on.")
    counts = np.array([n_rows])
    if columns is not None:
        counts = np.zeros(1 + int(columns.max()), np.int64)
        for rows in row_blocks(n_rows):
            counts += np.bincount(columns[rows], minlength=len(counts))
    present = counts > 0
    if columns is not None and counts[present].min() < 2:
        raise ValueError("The least populated class in y has only 1 member, which is too few: it needs two.")
    if n_held < np.count_nonzero(present):
        raise ValueError(f"The {n_held} rows are fewer than the {np.count_nonzero(present)} classes.")
    missing, left = _shares(counts, n_held), counts.copy()
    held_out, kept = np.empty(n_held, np.uint32), np.empty(n_rows - n_held, np.uint32)
    n_done = 0
    for rows in row_blocks(n_rows):
        is_held = np.zeros(rows.stop - rows.start, bool)
        of_rows = np.zeros(len(is_held), np.intp) if columns is None else columns[rows]
        for number in np.unique(of_rows):
            places = np.flatnonzero(of_rows == number)
            count = random_state.hypergeometric(missing[number], left[number] - missing[number], len(places))
            is_held[random_state.permutation(places)[:count]] = True
            missing[number] -= count
            left[number] -= len(places)
        taken, others = np.flatnonzero(is_held), np.flatnonzero(~is_held)
        held_out[n_done : n_done + len(taken)] = taken + rows.start
        kept[rows.start - n_done : rows.start - n_done + len(others)] = others + rows.start
        n_done += len(taken)
    return kept, held_out


def _shares(counts: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers of this total, in the ratio of the counts; large remainders are rounded up."""
    exact = counts * (total / counts.sum())
    shares = np.floor(exact).astype(np.int64)
    order = np.argsort(shares - exact, kind="stable")
    shares[order[: total - int(shares.sum())]] += 1
    return shares
