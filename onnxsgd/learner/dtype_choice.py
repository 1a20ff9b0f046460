"""The learner of a model, tried on the first data, and the choice between float32 and float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.sparsefuncs import min_max_axis

from onnxsgd.data.columns import NUMBERS, column_kinds, column_names, is_mapping
from onnxsgd.data.features import Features, n_rows, take_rows
from onnxsgd.data.generators import seeded
from onnxsgd.data.masks import is_any
from onnxsgd.exceptions import EngineError, GraphError, ParameterError, UnsupportedError
from onnxsgd.graph.sklearn.categories import has_large_categories
from onnxsgd.learner.build import ModelOptions, TrainingData, make_learner
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.model_source import GraphSource
from onnxsgd.learner.score_check import check_inputs, shape_of_scores
from onnxsgd.runtime.events import decided

__all__ = ["Prepared", "loses_columns", "prepare_learner"]

#: The largest accepted change of a column, or of raw scores, by float32, relative to their spread.
_TOLERANCE = 1e-3
#: The change of raw scores, for inputs moved by a unit in the last place, above which float64 is tried.
_SUSPICION = 1e-4
#: Samples whose raw scores are compared: a bound of the first call's time, not measured.
_ROWS = 256
#: Elements of a block that fits into the processor's cache. ``benchmarks/constants.py``, 8 columns: 1.99 of
#: the time with 2^13, 1.09 with 2^19, 1.41 with 2^22.
_BLOCK = 1 << 16
#: Length of a row from which on numpy's vector instructions pay. ``benchmarks/constants.py``, 8 columns: rows
#: by themselves take 6.2 times as long, rows joined to 64 numbers 2.3 times, to 4,096 0.97.
_LONG = 512
#: Up to this many rows they are not joined, which takes as long for 10 columns: 0.7 of the time for 4.
_FEW_ROWS = 200
#: Rows of a sparse table in which few columns have an entry each, of texts none as a rule.
_FIRST_ROWS = 64
#: The numbers whose squares float32 keeps: sums of some thousand squares, and a thousandth of one.
_LEAST_SQUARED, _LARGEST_SQUARED = 1e-16, 1e17
#: Those whose fourth powers it keeps: gradients of hidden layers are products of residuals and weights of the
#: last layer, and the optimizer squares them. Networks on targets of 1e10 have R2 of 0.2 in float32, and of
#: 1e-11 0.4 to 0.9, in place of 1.0.
_LEAST_OF_NETWORKS, _LARGEST_OF_NETWORKS = 1e-8, 1e9
#: The largest relative and absolute rounding errors of float32.
_RELATIVE, _ABSOLUTE = 2.0**-24, 2.0**-150


@dataclass(frozen=True)
class Prepared:
    """A learner, tried on the first data.

    Attributes
    ----------
    learner : Learner
        The graph.
    features : dict
        The data in the types of its inputs.
    score_shape : tuple of int
        The shape of the raw scores of a sample.
    n_threads : int or None
        Threads of its runs.
    """

    learner: Learner
    features: Features
    score_shape: tuple[int, ...]
    n_threads: int | None

    @property
    def n_outputs(self) -> int:
        """The number of raw scores of a sample."""
        return math.prod(self.score_shape)

    def scores(self, features: Features) -> np.ndarray:
        """Return raw scores before training, as a float64 table."""
        raw = self.learner.scores(features, self.learner.initial_weights(), self.n_threads)
        return raw.reshape(len(raw), -1).astype(np.float64)


def prepare_learner(
    source: BaseEstimator | GraphSource | None,
    X: object,
    checked: object,
    n_outputs: int,
    options: ModelOptions,
    n_threads: int | None,
    target: np.ndarray | None = None,
) -> Prepared:
    """Return the learner of `source` in a type precise enough for the data, tried on them.

    A graph keeps its own type. Other models are float32, unless float32 changes a column, or the target of a
    regression, by more than 1e-3 of its spread, or raw scores by more than 1e-3 of theirs, or squares of the
    target, or of the gradients of a network, exceed it; then they are float64.

    Parameters
    ----------
    source : estimator, GraphSource or None
        The model; an estimator is fitted.
    X : object
        The user's data.
    checked : object
        `X` from :func:`onnxsgd.data.features.check_X`.
    n_outputs : int
        The width of a linear model, or of a new layer.
    options : ModelOptions
        The parameters of the estimator; a `dtype` other than None is used as it is.
    n_threads : int or None
        Threads of the trial.
    target : ndarray or None
        The target of a regression.

    Raises
    ------
    GraphError
        If the graph does not fit the data.
    ParameterError
        If the `dtype` is "float32", and an encoder has categories that it does not hold.
    UnsupportedError
        If the `dtype` is "float64", and the runtime cannot run the model in it.

    Warns
    -----
    UserWarning
        If float64 is needed, and the runtime cannot run the model in it.
    """

    def prepare(dtype: str | None) -> Prepared:
        learner = make_learner(source, TrainingData(checked), n_outputs, replace(options, dtype=dtype))
        if source is None:
            # the graph of a linear model is ours, and fits the data
            return Prepared(learner, learner.read(X, checked), (n_outputs,), n_threads)
        check_inputs(learner)
        features = learner.read(X, checked)
        return Prepared(learner, features, shape_of_scores(learner, features, n_threads), n_threads)

    if options.dtype == "float32" and has_large_categories(source):
        raise ParameterError(
            "dtype='float32' is not accepted for this model: its OneHotEncoder has integers above 2**24 as "
            "categories, which float32 merges. Leave it None."
        )
    if options.dtype == "float64":
        decided("precision", "float64: named")
        return _as_named(prepare)
    if options.dtype is not None or isinstance(source, GraphSource):
        prepared = prepare(options.dtype)
        half = prepared.learner.half_type
        reason = f"weights in training, {half} in files" if half else "that of the graph"
        # the name of a type is made where it is printed
        decided("precision", "%s: %s", prepared.learner.dtype, "named" if options.dtype else reason)
        return prepared
    reason = ""
    if loses_columns(checked):
        reason = "casting X to float32 changes a column by more than 1e-3 of its spread"
    elif has_large_categories(source):
        reason = "categories of an encoder are integers that float32 does not hold"
    elif target is not None:
        reason = _reason_of_target(target)
    if reason:
        return _reported(_in_float64(prepare, reason), reason)
    narrow = prepare(None)
    if target is not None and narrow.learner.linear is None:
        bounds = _bounds(target.reshape(len(target), -1))
        if _are_beyond(bounds, _LEAST_OF_NETWORKS, _LARGEST_OF_NETWORKS):
            reason = "gradients of a network for these y, squared, are too large or too small for float32"
            return _reported(_in_float64(prepare, reason), reason)
    if source is None or not _is_suspicious(narrow):
        return _reported(narrow)
    reason = "the raw scores are off by more than 1e-3 of their spread in float32"
    wide = _in_float64(prepare, reason)
    exact, rounded = wide.scores(_some_rows(wide.features)), narrow.scores(_some_rows(narrow.features))
    return _reported(wide, reason) if _differ(exact, rounded, _TOLERANCE) else _reported(narrow)


def _reported(prepared: Prepared, reason: str = "") -> Prepared:
    """Report the choice; `reason`: of float64, which is float32 yet where the runtime cannot run it."""
    dtype = prepared.learner.dtype
    if reason and dtype == np.float32:
        reason = "float64 cannot be run"
    decided("precision", "%s: %s", dtype, reason or "keeps data and raw scores to 1e-3 of their spread")
    return prepared


def _as_named(prepare: Callable[[str | None], Prepared]) -> Prepared:
    try:
        return prepare("float64")
    except GraphError as error:
        if not isinstance(error.__cause__, UnsupportedError):
            raise
        raise UnsupportedError(
            f"dtype='float64' is not accepted for this model; take None or 'float32'. {error.__cause__}"
        ) from error


def _in_float64(prepare: Callable[[str | None], Prepared], reason: str) -> Prepared:
    try:
        return prepare("float64")
    except GraphError as error:
        warnings.warn(
            f"The model needs float64, as {reason}, and cannot be run in it: {error} It is trained in "
            "float32; scale the data before.",
            stacklevel=6,
        )
        return prepare(None)


def loses_columns(checked: object) -> bool:
    """Tell whether casting to float32 changes a column by more than 1e-3 of its spread.

    A column of equal numbers has no spread and is skipped; that of a single row counts as 1, as others may
    follow.
    """
    return any(_loses(array) for array in _arrays(checked))


def _reason_of_target(target: np.ndarray) -> str:
    """Return the reason for which the target of a regression needs float64; empty: it needs none."""
    table = target.reshape(len(target), -1)
    bounds = _bounds(table)
    if not np.can_cast(target.dtype, np.float32) and _changes(table, bounds):
        return "casting y to float32 changes it by more than 1e-3 of its spread"
    # a loss that is zero would end a fit at once
    is_extreme = _are_beyond(bounds, _LEAST_SQUARED, _LARGEST_SQUARED)
    return "squares of y are too large or too small for float32" if is_extreme else ""


def _are_beyond(bounds: tuple[np.ndarray, np.ndarray], least: float, most: float) -> bool:
    """Tell whether the bounds of a column, or their distance, are not in this range; zeros are."""
    low, high = bounds
    sizes = np.concatenate([np.abs(low), np.abs(high), high - low])
    return is_any(sizes > most) or is_any((sizes > 0) & (sizes < least))


def _arrays(checked: Any) -> Iterator[Any]:
    """Yield the arrays of numbers in `checked`, and the columns of numbers of a frame."""
    if is_mapping(checked):
        yield from (array for array in checked.values() if array.dtype.kind in NUMBERS)
    elif column_names(checked) is not None:
        kinds = column_kinds(checked)
        yield from (np.asarray(checked[name]) for name in checked.columns if kinds[str(name)] in NUMBERS)
    elif getattr(checked, "dtype", None) is not None and checked.dtype.kind in NUMBERS:
        yield checked


def _loses(array: Any) -> bool:
    is_exact = np.can_cast(array.dtype, np.float32)
    if is_exact or not array.shape[0]:
        return False
    array = _in_doubt(array.tocsr()) if sparse.issparse(array) else array.reshape(len(array), -1)
    return bool(array.shape[1]) and _changes(array, _bounds(array))


def _changes(table: Any, bounds: tuple[np.ndarray, np.ndarray]) -> bool:
    """Tell whether the cast changes a column, of these bounds, by more than 1e-3 of its spread."""
    low, high = bounds
    is_lone = table.shape[0] == 1 and not sparse.issparse(table)
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.ones_like(low) if is_lone else high - low
        largest = np.maximum(np.abs(low), np.abs(high))
        # as a rule none is: all the rest is for these
        suspects = (largest * _RELATIVE + _ABSOLUTE > _TOLERANCE * spread) | (largest > _LARGEST)
        if not is_any(suspects):
            return False
    (columns,) = (suspects & (spread > 0)).nonzero()
    return any(_change(table[:, [column]]) > _TOLERANCE * spread[column] for column in columns)


def _in_doubt(table: Any) -> Any:
    """Return the columns of a sparse table that a cast may change by more than a share of their spread.

    A column with a zero has the spread of its largest number or more, and keeps it, unless its numbers are
    next to the bounds of float32.
    """
    sizes = np.abs(table.data)
    # as a rule the extremes tell
    if table.nnz and sizes.max() <= _LARGEST and sizes.min() * (_TOLERANCE - _RELATIVE) > _ABSOLUTE:
        return _without_zeros(table)
    is_in_doubt = (sizes > 0) & (sizes * (_TOLERANCE - _RELATIVE) <= _ABSOLUTE)
    is_in_doubt |= sizes > _LARGEST
    if not is_any(is_in_doubt):
        return _without_zeros(table)
    others = _taken(table, np.unique(table.indices[is_in_doubt]))
    return sparse.hstack([_without_zeros(table), others], "csr")


def _without_zeros(table: Any) -> Any:
    """Return the columns with an entry in each row: of those with one in each of the first rows.

    Each look at 16 times as many rows leaves fewer of them, as a rule none.
    """
    n_rows = table.shape[0]
    n_read = min(_FIRST_ROWS, n_rows)
    columns, counts = np.unique(table.indices[: table.indptr[n_read]], return_counts=True)
    columns = columns[counts >= n_read]
    while len(columns) and n_read < n_rows:
        n_read = min(16 * n_read, n_rows)
        entries = table.indices[: table.indptr[n_read]]
        columns, counts = np.unique(entries[np.isin(entries, columns)], return_counts=True)
        columns = columns[counts >= n_read]
    some = _taken(table, columns)
    return some[:, np.bincount(some.indices, minlength=some.shape[1]) == n_rows]


def _taken(table: Any, columns: np.ndarray) -> Any:
    """Return some columns of a sparse table: an index of scipy takes memory for each column that there is."""
    if not len(columns):
        return sparse.csr_matrix((table.shape[0], 0))
    is_taken = np.isin(table.indices, columns)
    rows = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))[is_taken]
    places = np.searchsorted(columns, table.indices[is_taken])
    return sparse.csr_matrix((table.data[is_taken], (rows, places)), shape=(table.shape[0], len(columns)))


_LARGEST = float(np.finfo(np.float32).max)


def _bounds(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest number of each column as float64, NaN ignored."""
    if sparse.issparse(array):
        low, high = min_max_axis(array.astype(np.float64), axis=0, ignore_nan=True)
        return low, high
    size = max(1, _BLOCK // max(1, array.shape[1]))
    blocks = [array[start : start + size] for start in range(0, len(array), size)]
    low, high = (
        _extremes(extreme, blocks).astype(np.float64, copy=False) for extreme in (np.minimum, np.maximum)
    )
    lacks = np.isnan(low)
    for column in lacks.nonzero()[0] if is_any(lacks) else ():
        present = array[~np.isnan(array[:, column]), column]
        low[column], high[column] = (present.min(), present.max()) if len(present) else (0.0, 0.0)
    return low, high


def _extremes(extreme: np.ufunc, blocks: list[np.ndarray]) -> np.ndarray:
    """Return the extreme of each column of a table in blocks."""
    if len(blocks) == 1:
        return _reduced(extreme, blocks[0])
    return extreme.reduce([_reduced(extreme, block) for block in blocks], axis=0)


def _reduced(extreme: np.ufunc, block: np.ndarray) -> np.ndarray:
    """Return the extreme of each column; several short rows are joined, for numpy's vector instructions."""
    n_rows, width = block.shape
    joined = min(n_rows, max(1, _LONG // max(1, width)))
    if n_rows <= _FEW_ROWS or joined < 2 or not block.flags.c_contiguous:
        return extreme.reduce(block, axis=0)
    whole = n_rows - n_rows % joined
    long_row = extreme.reduce(block[:whole].reshape(-1, joined * width), axis=0)
    return extreme.reduce(np.concatenate([long_row.reshape(joined, width), block[whole:]]), axis=0)


def _change(column: Any) -> float:
    """Return the largest change of one column by the cast to float32."""
    values = np.asarray(column.data if sparse.issparse(column) else column, dtype=np.float64)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return float(np.abs(values - values.astype(np.float32)).max(initial=0.0))


def _is_suspicious(narrow: Prepared) -> bool:
    """Tell whether raw scores depend on digits beyond float32.

    They do if they change when every number moves by a unit in the last place, up or down. The test costs two
    runs of the graph, and no second graph. It does not show the differences of powers and one of a
    PowerTransformer, whose digits are lost inside the graph.
    """
    if any(node.op_type == "Pow" for node in narrow.learner.score_model.graph):
        return True
    rows = _some_rows(narrow.features)
    moved = {name: _move(array) for name, array in rows.items()}
    expected = narrow.scores(rows)
    try:
        found = narrow.scores(moved)
    except EngineError:
        # a number next to a category may be none
        return True
    return _differ(expected, found, _SUSPICION)


def _some_rows(features: Features) -> Features:
    return take_rows(features, np.unique(np.linspace(0, n_rows(features) - 1, _ROWS).astype(int)))


def _move(array: Any) -> Any:
    """Return real numbers moved by a unit in the last place, in directions independent of them."""
    if array.dtype.kind != "f":
        return array
    if sparse.issparse(array):
        return sparse.csr_matrix((_move(array.data), array.indices, array.indptr), shape=array.shape)
    return np.nextafter(array, np.where(_moves_down(array.shape), -np.inf, np.inf).astype(array.dtype))


@lru_cache(maxsize=4)
def _moves_down(shape: tuple[int, ...]) -> np.ndarray:
    """Return random truth values, which are the same for every array of a shape."""
    return seeded(0).rand(*shape) < 0.5


def _differ(expected: np.ndarray, found: np.ndarray, tolerance: float) -> bool:
    """Tell whether a column of `found` is off by more than `tolerance` of the spread of `expected`."""
    if not np.isfinite(expected).all():
        return False
    if not np.isfinite(found).all():
        return True
    spread = expected.max(axis=0) - expected.min(axis=0)
    change = np.abs(found - expected).max(axis=0)
    return bool(((spread > 0) & (change > tolerance * spread)).any())
