"""Pieces of data, as an engine holds them: their sizes, their labels, and rows taken from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing

from onnxsgd.data.moments import Moments
from onnxsgd.data.row_tables import row_blocks
from onnxsgd.data.targets import check_labels
from onnxsgd.exceptions import ParameterError
from onnxsgd.sharding.executor import Executor, Handle

__all__ = [
    "Piece", "PieceSummary", "are_alike", "balanced_counts", "complete_piece", "cut_evenly", "dealt_evenly",
    "first_rows", "joined_counts", "piece_of", "summary_of_pieces",
]  # fmt: skip

#: An array, a sparse matrix or a data frame; an array, a column or a data frame.
Table = Any
Column = Any
#: Samples, targets and weights or None.
Piece = tuple[Table, Column, Column | None]
#: The difference of the shares of classes of a shard from those of all, and of the means of targets in units
#: of their deviation, up to which shards are alike; beside that of random shards.
_FAR_SHARES, _FAR_MEANS = 0.1, 0.25
#: The deviations of the random difference that are allowed.
_CHANCE = 3.0


def piece_of(number: int, X: Table, y: Column, sample_weight: Column | None) -> Piece:
    """Return a piece; refuse one whose parts differ in length.

    Raises
    ------
    ParameterError
        If they do; it has the number of the partition.
    """
    lengths = {"X": X.shape[0], "y": len(y)}
    if sample_weight is not None:
        lengths["sample_weight"] = len(sample_weight)
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{count} rows of {name}" for name, count in lengths.items())
        raise ParameterError(f"Partition {number} has {shown}: partitions of all must have the same rows.")
    return X, y, sample_weight


def complete_piece(number: int, given: object) -> Piece:
    """Return a piece of which weights may be missing; lists become arrays.

    Raises
    ------
    ParameterError
        If it is no tuple of two or three, has no targets, or its parts differ in length.
    """
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        found = f"a tuple of {len(given)}" if isinstance(given, tuple) else f"of type {type(given).__name__}"
        raise ParameterError(
            f"Piece {number} is {found}: the result of its task must be a tuple (X, y) or "
            "(X, y, sample_weight)."
        )
    X, y, sample_weight = (_with_rows(part) for part in (*given, None)[:3])
    if y is None or (sample_weight is not None and np.ndim(sample_weight) == 0):
        name = "y" if y is None else "sample_weight"
        raise ParameterError(
            f"Piece {number} has no {name} for each row: got {given[1 if y is None else 2]!r}."
        )
    return piece_of(number, X, y, sample_weight)


def _with_rows(part: Any) -> Any:
    """Return a table or column whose rows can be taken."""
    if sparse.issparse(part):
        return part if part.format in ("csr", "csc") else part.tocsr()
    return part if part is None or hasattr(part, "shape") else np.asarray(part)


@dataclass(frozen=True)
class PieceSummary:
    """The target of a piece.

    Attributes
    ----------
    n_rows : int
        The number of rows.
    labels, counts : ndarray or None
        The labels that occur, and how often with a weight above 0; None for targets of other kinds, counts
        also where a sample has several.
    table : ndarray of shape [n_labels, n_columns] or None
        How often they occur where a sample has several: in each column if the labels are 0 and 1, otherwise
        in all together, one column.
    moments : Moments or None
        The moments of real targets.
    """

    n_rows: int
    labels: np.ndarray | None = None
    counts: np.ndarray | None = None
    table: np.ndarray | None = None
    moments: Moments | None = None


def summary_of_pieces(has_labels: bool, *pieces: Piece) -> PieceSummary:
    """Return the summary of some pieces together, of a classification or of a regression."""
    filled = [piece for piece in pieces if len(piece[1])]
    if not filled:
        return PieceSummary(0)
    targets = [np.asarray(piece[1]) for piece in filled]
    y = targets[0] if len(targets) == 1 else np.concatenate(targets)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if has_labels:
        counted = np.concatenate([_counted(piece) for piece in filled])
        if y.ndim == 1:
            return PieceSummary(len(y), *_counts(check_labels(y), counted))
        if y.dtype.kind == "f" and np.isin(y, (0, 1)).all():
            y = y.astype(np.int64)
        if y.dtype.kind not in "biuUS":
            return PieceSummary(len(y))
        labels, table = _table_of_counts(y.reshape(len(y), -1), counted)
        return PieceSummary(len(y), labels, table=table)
    try:
        table = np.asarray(y, np.float64).reshape(len(y), -1)
    except (TypeError, ValueError):
        # refused with the other checks of the data
        return PieceSummary(len(y))
    return PieceSummary(len(y), moments=Moments.of(table, np.ones(len(y))))


def _counts(y: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels that occur, and how often in the rows that are counted, without a copy of all."""
    labels = np.unique(np.concatenate([np.unique(y[rows]) for rows in row_blocks(len(y))]))
    counts = np.zeros(len(labels), np.int64)
    for rows in row_blocks(len(y)):
        counts += np.bincount(np.searchsorted(labels, y[rows][counted[rows]]), minlength=len(labels))
    return labels, counts


def _table_of_counts(y: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels that occur, and their ``PieceSummary.table`` in the rows that are counted."""
    labels = np.unique(y)
    columns = y.T if np.isin(labels, (0, 1)).all() else y.reshape(1, -1)
    counted = counted if len(columns) == y.shape[1] else counted.repeat(y.shape[1])
    of_columns = [
        np.bincount(np.searchsorted(labels, column[counted]), minlength=len(labels)) for column in columns
    ]
    return labels, np.stack(of_columns, axis=1)


def joined_counts(summaries: Sequence[PieceSummary]) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the labels in all pieces, and how often they occur; None for targets without labels.

    Counts are a vector, or a table as in :class:`PieceSummary`; None where they are not known.
    """
    found = [summary for summary in summaries if summary.labels is not None]
    if not found:
        return None
    labels = np.unique(np.concatenate([np.asarray(summary.labels) for summary in found]))
    parts = [summary.table if summary.counts is None else summary.counts for summary in found]
    known = [part for part in parts if part is not None]
    if len(known) < len(summaries):
        return labels, None
    if known[0].ndim == 2 and not np.isin(labels, (0, 1)).all():
        known = [part.sum(axis=1, keepdims=True) for part in known]
    counts = np.zeros((len(labels), *known[0].shape[1:]), np.int64)
    for summary, part in zip(found, known, strict=True):
        counts[np.searchsorted(labels, np.asarray(summary.labels))] += part
    return labels, counts


def balanced_counts(labels: np.ndarray, counts: np.ndarray) -> dict[Any, float]:
    """Return the weight of each label that occurs, n_labels / (n_classes * count)."""
    labels, counts = labels[counts > 0], counts[counts > 0]
    weights = counts.sum() / (len(counts) * counts)
    return dict(zip(labels.tolist(), weights.tolist(), strict=True))


def _counted(piece: Piece) -> np.ndarray:
    """Tell of each row whether its weight is above 0, as far as weights are numbers."""
    _, y, sample_weight = piece
    if sample_weight is None:
        return np.ones(len(y), bool)
    weight = np.asarray(sample_weight).reshape(-1)
    return weight != 0 if len(weight) == len(y) else np.ones(len(y), bool)


def rows_of(piece: Piece, rows: slice) -> Piece:
    """Return neighbouring rows of a piece."""
    return _taken(piece, np.arange(len(piece[1]))[rows])


def first_rows(piece: Piece, n_rows: int) -> Piece:
    """Return the first rows of a piece."""
    return rows_of(piece, slice(0, n_rows))


def dealt_rows(piece: Piece, seed: int, number: int, n_hands: int) -> Piece:
    """Return the rows that one of several hands gets of a shuffled piece, in their order."""
    order = np.random.RandomState(seed).permutation(len(piece[1]))
    return _taken(piece, np.sort(order[number::n_hands]))


def _taken(piece: Piece, rows: np.ndarray) -> Piece:
    X, y, sample_weight = (None if part is None else _safe_indexing(part, rows) for part in piece)
    return X, y, sample_weight


def cut_evenly(
    executor: Executor, pieces: Sequence[Handle], n_rows: Sequence[int], n_shards: int
) -> list[list[Handle]]:
    """Return the pieces of so many shards of neighbouring rows, of the same size but for one row."""
    starts = np.concatenate([[0], np.cumsum(n_rows)])
    cuts = [int(starts[-1]) * number // n_shards for number in range(n_shards + 1)]
    shards = []
    for first, end in pairwise(cuts):
        shard = []
        for piece, start, stop in zip(pieces, starts[:-1], starts[1:], strict=True):
            rows = slice(max(first, int(start)) - int(start), min(end, int(stop)) - int(start))
            if rows.start < rows.stop:
                is_whole = rows == slice(0, int(stop - start))
                shard.append(piece if is_whole else executor.submit(rows_of, piece, rows))
        shards.append(shard)
    return shards


def dealt_evenly(
    executor: Executor, pieces: Sequence[Handle], n_shards: int, seed: int
) -> list[list[Handle]]:
    """Return the pieces of so many shards of random rows of each piece."""
    return [
        [
            executor.submit(dealt_rows, piece, seed + number, shard, n_shards)
            for number, piece in enumerate(pieces)
        ]
        for shard in range(n_shards)
    ]


def are_alike(summaries: Sequence[PieceSummary]) -> bool:
    """Tell whether shards have the same share of each class, or targets of the same mean, but for chance."""
    if any(summary.counts is not None for summary in summaries):
        return _have_same_shares(summaries)
    moments = [summary.moments for summary in summaries if summary.moments is not None]
    if not moments:
        return True
    whole = moments[0]
    for part in moments[1:]:
        whole = whole.merged(part)
    deviation = whole.deviation()
    return all(
        bool((abs(part.mean - whole.mean) <= _far(part.count[0]) * deviation).all()) for part in moments
    )


def _far(n_rows: float) -> float:
    """Return the difference of a mean of so many rows, in deviations, that is more than chance."""
    return _FAR_MEANS + _CHANCE / float(np.sqrt(n_rows))


def _have_same_shares(summaries: Sequence[PieceSummary]) -> bool:
    labels = np.unique(np.concatenate([s.labels for s in summaries if s.labels is not None]))
    table = np.zeros((len(summaries), len(labels)))
    for row, summary in zip(table, summaries, strict=True):
        if summary.labels is not None and summary.counts is not None:
            row[np.searchsorted(labels, summary.labels)] = summary.counts
    table = table[table.sum(axis=1) > 0]
    if not len(table):
        # no row counts, which is refused with the other checks
        return True
    shares = table / table.sum(axis=1, keepdims=True)
    of_all = table.sum(axis=0) / table.sum()
    distance = abs(shares - of_all).sum(axis=1) / 2
    chance = np.sqrt(of_all * (1 - of_all)).sum() / 2 / np.sqrt(table.sum(axis=1))
    return bool((distance <= _FAR_SHARES + _CHANCE * chance).all())
