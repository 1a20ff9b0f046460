"""Targets and sample weights: validation, and encoding for the loss."""

from __future__ import annotations

import reprlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from scipy import sparse
from sklearn.utils import assert_all_finite
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_array, column_or_1d

from onnxsgd.data.features import is_plain_array
from onnxsgd.data.masks import are_all, is_any
from onnxsgd.data.refusals import check_indices, naming, refuse_mask
from onnxsgd.data.row_tables import (
    MANY_ROWS,
    EncodedLabels,
    are_many,
    as_array,
    encoded_rows,
    evenly,
    row_blocks,
)
from onnxsgd.exceptions import ParameterError
from onnxsgd.losses import CLASSIFICATION_LOSSES, Loss

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "are_plain_labels",
    "are_same_classes",
    "balanced_indicators",
    "balanced_soft_weights",
    "balanced_weights",
    "check_classes",
    "check_known_labels",
    "check_label_loss",
    "check_labels",
    "check_real_target",
    "check_sample_weight",
    "check_scorable_by_r2",
    "check_soft_labels",
    "check_target_range",
    "class_weights",
    "counted_labels",
    "encode_indicators",
    "encode_labels",
    "label_columns",
    "present_labels",
    "soft_class_weights",
]


@naming("y")
def check_real_target(y: ArrayLike) -> np.ndarray:
    """Return a regression target as a float64 array, with an axis of samples; a large one as it is."""
    refuse_mask(y, "y")
    if isinstance(y, np.ndarray) and y.ndim and are_many(y):
        given = np.asarray(y)
        if given.dtype.kind in "iu" or is_plain_array(given, _RANKS):
            return given
    elif type(y) is np.ndarray and y.ndim:
        # the column of a table takes the common case too
        y = np.ascontiguousarray(y)
    if is_plain_array(y, _RANKS):
        return y.astype(np.float64, copy=False)
    try:
        target: np.ndarray = check_array(y, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name="y")
    except ValueError as error:
        _refuse_text(np.asarray(y), error)
        raise
    return target


#: Numbers of axes that the common case has.
_RANKS = range(1, 6)


def _refuse_text(y: np.ndarray, error: ValueError) -> None:
    """Refuse the first string that is no number, in place of an error that does not say whose it is."""
    for value in y.ravel().tolist() if y.dtype.kind in _TEXT else ():
        try:
            float(value)
        except (TypeError, ValueError):
            if isinstance(value, str | bytes):
                raise ParameterError(
                    f"y holds {value!r}, which is no number: a regressor learns numbers. Convert y, or take "
                    "OnnxSGDClassifier for labels."
                ) from error


def encode_labels(
    y: np.ndarray, classes: np.ndarray, n_outputs: int, loss: Loss, ignored: object = None
) -> np.ndarray:
    """Return labels as a float32 table [n_samples, n_outputs], with the two values that `loss` takes.

    Both are whole numbers, the same in any type. One output encodes two classes, of which the second is
    positive. The label `ignored` is in no column.
    """
    low = 0.0 if loss.targets == "indicator" else -1.0
    columns = label_columns(y, classes, ignored)
    if are_many(y) or len(y) * n_outputs > _MANY_NUMBERS:
        table: Any = EncodedLabels(columns, n_outputs, low, np.float32)
        return table
    return encoded_rows(columns, n_outputs, low, np.float32)


#: The numbers of an encoded target from which on its rows are made when they are taken: a bound of memory.
_MANY_NUMBERS = 16 * MANY_ROWS


def label_columns(y: np.ndarray, classes: np.ndarray, ignored: object = None) -> np.ndarray:
    """Return the position of each label among the classes; -1 for the label `ignored`."""
    if not are_many(y):
        return _columns_of(y, classes, "y") if ignored is None else _columns_of_counted(y, classes, ignored)
    # the smallest type that holds -1 and the number of the last class
    columns = np.empty(y.shape, np.min_scalar_type(-len(classes)))
    for rows in row_blocks(len(y)):
        columns[rows] = _columns_of_counted(y[rows], classes, ignored)
    return columns


def _columns_of_counted(y: np.ndarray, classes: np.ndarray, ignored: object) -> np.ndarray:
    """Return the same for few labels."""
    if ignored is None:
        return _columns_of(y, classes, "y")
    counts = counted_labels(y, ignored)
    index = np.full(y.shape, -1)
    index[counts] = _columns_of(y[counts], classes, "y")
    return index


def counted_labels(y: np.ndarray, ignored: object) -> np.ndarray:
    """Tell of each label whether it counts: all but the label `ignored`, if that is not None."""
    if ignored is None or ((y.dtype.kind in "US") != isinstance(ignored, str) and y.dtype.kind != "O"):
        return np.ones(y.shape, bool)
    return np.asarray(as_array(y) != ignored, bool)


def present_labels(y: np.ndarray, ignored: object = None) -> np.ndarray:
    """Return the labels that occur, sorted, without the one that counts nothing."""
    if not are_many(y):
        return _distinct(y if ignored is None else y[counted_labels(y, ignored)])
    found = [_distinct(y[rows][counted_labels(y[rows], ignored)]) for rows in row_blocks(len(y))]
    return np.unique(np.concatenate(found))


def _distinct(y: np.ndarray) -> np.ndarray:
    """Return the values of an array, sorted; those of few labels are kept, as several checks ask for them."""
    if y.dtype.kind in "iu" and 0 < y.nbytes <= _FEW_BYTES:
        return _distinct_of_few(y.tobytes(), y.dtype).copy()
    return _found(y)


@lru_cache(maxsize=16)
def _distinct_of_few(labels: bytes, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the same for the bytes of labels."""
    return _found(np.frombuffer(labels, dtype))


def _found(y: np.ndarray) -> np.ndarray:
    """Return the values of an array, sorted; whole numbers of a small range are counted, not sorted."""
    if y.size and _is_of_counts(y.dtype):
        least = int(y.min())
        if int(y.max()) - least <= y.size:
            counts = np.bincount(y.reshape(-1).astype(np.intp, copy=False) - least)
            return (np.flatnonzero(counts) + least).astype(y.dtype)
    return np.unique(y)


@naming("classes")
def check_classes(classes: ArrayLike) -> np.ndarray:
    """Return the labels that a user lists, in their order."""
    labels = np.asarray(classes)
    if labels.ndim != 1:
        raise ParameterError(
            f"classes={reprlib.repr(classes)} is not accepted: give the labels in a list, or in an array of "
            "one dimension."
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ParameterError(f"classes={reprlib.repr(classes)} is not accepted: y holds finite labels alone.")
    # labels of several types have no order
    np.unique(labels)
    return labels


def are_same_classes(classes: ArrayLike, known: np.ndarray) -> bool:
    """Tell whether a list has the labels of some classes, in any order."""
    given = np.asarray(classes)
    if given.dtype == known.dtype and given.shape == known.shape and are_all(np.asarray(given == known)):
        # the common case, in a tenth of the time
        return True
    return bool(np.array_equal(np.unique(given), np.unique(known)))


def check_known_labels(y: np.ndarray, classes: np.ndarray, name: str) -> None:
    """Refuse labels that are not among the classes; `name` is the argument that holds them."""
    for rows in row_blocks(len(y)) if are_many(y) else [slice(None)]:
        _columns_of(y[rows], classes, name)


def _columns_of(y: np.ndarray, classes: np.ndarray, name: str) -> np.ndarray:
    """Return the position of each label among the classes."""
    # numpy compares strings with numbers as strings, or not at all
    if not _are_of_one_sort(y.dtype, classes.dtype):
        unknown = np.ones(y.shape, bool)
    else:
        index = _nearest(y, classes)
        unknown = classes.take(index) != y
    if is_any(unknown):
        raise ParameterError(
            f"{name} contains the labels {np.unique(y[unknown]).tolist()}, which are not among the classes "
            f"{classes.tolist()}."
        )
    return index


def _nearest(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the position among the classes of each label that is one of them, and any of other labels."""
    if y.dtype.kind in "iu" and classes.dtype.kind in "iu" and 0 < len(classes) <= _TABLE:
        least, table = _places_of(y.dtype, classes.dtype, classes.tobytes())
        if len(table):
            # a quarter of the time of a search
            places = y.astype(np.intp, copy=False)
            return table.take(places - least if least else places, mode="clip")
    order = np.argsort(classes, kind="stable")
    position = np.searchsorted(classes, y, sorter=order)
    return order[np.minimum(position, len(classes) - 1)]


#: The most places of a table of classes: a bound of memory.
_TABLE = 1 << 14


@lru_cache(maxsize=16)
def _places_of(of_labels: np.dtype[Any], dtype: np.dtype[Any], content: bytes) -> tuple[int, np.ndarray]:
    """Return the least of some classes, and the position of each whole number from there on among them.

    The table is empty if the numbers are far apart, or those of one of the types can be no positions. It is
    kept: to make it takes longer than to read it.
    """
    if not (_is_of_counts(of_labels) and _is_of_counts(dtype)):
        return 0, np.zeros(0, np.intp)
    classes = np.frombuffer(content, dtype).astype(np.intp)
    least, largest = int(classes.min()), int(classes.max())
    table = np.zeros(largest - least + 1 if largest - least < _TABLE else 0, np.intp)
    if len(table):
        table[classes - least] = np.arange(len(classes))
    return least, table


@lru_cache(maxsize=64)
def _is_of_counts(dtype: np.dtype[Any]) -> bool:
    """Tell whether labels of a type are whole numbers that can be positions in an array.

    It is kept, as numpy takes a part of the time of a short call.
    """
    return dtype.kind in "iu" and np.can_cast(dtype, np.intp)


#: Kinds of arrays of strings, after numpy's letters.
_TEXT = frozenset("OUS")


@lru_cache(maxsize=64)
def _are_of_one_sort(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Tell whether labels of two types can be compared: text, numbers, or those of one kind."""
    return _sort_of(first.kind) == _sort_of(second.kind)


def _sort_of(kind: str) -> str:
    """Return a letter for the labels that can be compared with those of a kind."""
    return "U" if kind in _TEXT else "f" if kind in "biuf" else kind


def check_scorable_by_r2(y: np.ndarray, name: str) -> None:
    """Refuse a regression target for which R^2 is not defined; `name` is its source."""
    if len(y) < 2:
        raise ParameterError(f"{name} has {len(y)} sample, which R^2 cannot score: it needs at least two.")


def check_target_range(y: np.ndarray, loss: Loss) -> None:
    """Refuse targets of a regression outside the range of its loss."""
    if loss.targets in ("sign", "indicator"):
        raise ParameterError(
            f"The loss {loss!r} has targets={loss.targets!r}, two values of labels: a regression takes "
            "'real', 'non-negative' or 'positive'."
        )
    if loss.targets == "real" or not y.size:
        return
    least = y.min()
    if least < 0 or (least == 0 and loss.targets == "positive"):
        legal = "> 0" if loss.targets == "positive" else ">= 0"
        raise ParameterError(f"y holds {least:g}: the loss {loss!r} takes targets {legal}.")


def check_label_loss(loss: Loss) -> None:
    """Refuse a loss of real targets for labels, but for those that a classifier takes by name."""
    if loss.targets not in ("sign", "indicator") and type(loss) not in CLASSIFICATION_LOSSES.values():
        raise ParameterError(
            f"The loss {loss!r} has targets={loss.targets!r}, real numbers: a classification takes a loss "
            "with targets='sign' or 'indicator', or one that OnnxSGDClassifier takes by name."
        )


def encode_indicators(y: np.ndarray, loss: Loss) -> np.ndarray:
    """Return a table of zeros and ones as float64, with the two values that `loss` takes."""
    return y.astype(np.float64) if loss.targets == "indicator" else 2.0 * y - 1.0


@naming("sample_weight")
def check_sample_weight(sample_weight: ArrayLike | None, y: np.ndarray) -> np.ndarray:
    """Return weights of the samples as a float64 vector; None means 1 for each."""
    if sample_weight is None:
        return evenly(1.0, len(y))
    refuse_mask(sample_weight, "sample_weight")
    # of many samples the memory of weights counts, not their last digits
    dtype = np.float32 if are_many(y) else np.float64
    weight: np.ndarray = np.array(_check_sample_weight(sample_weight, y, dtype=np.float64), dtype)
    if (weight < 0).any():
        raise ParameterError(f"sample_weight contains {weight.min():g}: weights must be >= 0.")
    with np.errstate(over="ignore"):
        total = weight.sum()
    if not np.isfinite(total):
        raise ParameterError("sample_weight has a sum that is not finite: scale the weights down.")
    if not weight.any():
        raise ParameterError("sample_weight is 0 for all samples: at least one must be > 0.")
    return weight


def class_weights(class_weight: object, classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weight of each sample by its class."""
    if class_weight is None:
        return evenly(1.0, len(y))
    if y.ndim == 2:
        return _indicator_weights(class_weight, as_array(y))
    if are_many(y):
        columns = label_columns(y, classes)
        counts = sum(np.bincount(columns[rows], minlength=len(classes)) for rows in row_blocks(len(y)))
        return _weights_of_classes(class_weight, classes, np.asarray(counts)).astype(np.float32)[columns]
    present = np.isin(classes, y)
    weight = np.ones(len(classes))
    if class_weight == "balanced":
        weight[present] = compute_class_weight(class_weight, classes=classes[present], y=y)
    else:
        weight = compute_class_weight(class_weight, classes=classes, y=y)
    order = np.argsort(classes, kind="stable")
    return weight[order][np.searchsorted(classes, y, sorter=order)]


def balanced_weights(y: np.ndarray) -> dict[Any, float]:
    """Return the weight of each label of a vector, n_labels / (n_classes * count)."""
    present = np.unique(y)
    found = compute_class_weight("balanced", classes=present, y=y)
    return dict(zip(present.tolist(), found.tolist(), strict=True))


def balanced_indicators(y: np.ndarray) -> list[dict[Any, float]]:
    """Return the same for each column of a table of 0 and 1."""
    return [
        {label: float(weight) for label, weight in enumerate(of_column) if weight}
        for of_column in _balanced_columns(y).T
    ]


def _balanced_columns(y: np.ndarray) -> np.ndarray:
    """Return the weights of 0 and of 1 in each column of a table; those that are missing have 0.

    scikit-learn's function takes 0.4 ms a column.
    """
    counts = np.stack([len(y) - y.sum(axis=0), y.sum(axis=0)]).astype(np.float64)
    found: np.ndarray = np.count_nonzero(counts, axis=0) * counts
    return np.divide(len(y), found, out=np.zeros_like(found), where=counts > 0)


def _weights_of_classes(class_weight: object, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the weight of each class, given the numbers of its labels."""
    if class_weight != "balanced":
        weight: np.ndarray = compute_class_weight(class_weight, classes=classes, y=classes)
        return weight
    present = counts > 0
    return np.divide(counts.sum(), present.sum() * counts, out=np.ones(len(classes)), where=present)


def _indicator_weights(class_weight: object, y: np.ndarray) -> np.ndarray:
    """Return the product of each sample's weights over the labels."""
    if not isinstance(class_weight, list) and class_weight != "balanced":
        raise ParameterError(
            f"class_weight={class_weight!r} gives weights to classes, and here a sample has several labels: "
            "it must be 'balanced' or None."
        )
    if class_weight != "balanced":
        return compute_sample_weight(class_weight, y)
    of_labels = _balanced_columns(y)
    weight = np.empty(len(y))
    for rows in row_blocks(len(y)):
        weight[rows] = np.where(y[rows] > 0, of_labels[1], of_labels[0]).prod(axis=1)
    return weight


@naming("y")
def check_soft_labels(y: Any) -> np.ndarray:
    """Return rows of probabilities over the classes as a float64 table whose rows sum to 1."""
    table = check_array(y, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name="y")
    if table.ndim != 2 or table.shape[1] < 2:
        raise ParameterError(
            f"y has shape {table.shape}: with soft=True it must hold a row of probabilities for each sample, "
            "[n_samples, n_classes]. Labels need soft=False."
        )
    totals = table.sum(axis=1)
    wrong = (table < 0).any(axis=1) | (np.abs(totals - 1) > _SUM_TOLERANCE)
    if wrong.any():
        row = int(wrong.argmax())
        raise ParameterError(
            f"Row {row} of y, {table[row][:20].tolist()}, is no distribution over the classes: with "
            f"soft=True probabilities are >= 0 and sum to 1 in each row; these sum to {totals[row]:g}. "
            "Several labels for a sample, as a table of 0 and 1, need loss='log_loss'."
        )
    return table / totals[:, None]


#: The bytes of labels up to which the values among them are kept: a bound of memory.
_FEW_BYTES = 1 << 14
#: The largest difference of a sum of probabilities from 1: those of float16 are rounded by 5e-4 each.
_SUM_TOLERANCE = 1e-3


def balanced_soft_weights(classes: np.ndarray, y: np.ndarray) -> dict[Any, float]:
    """Return the weight of each class by rows of probabilities, whose sums are the counts."""
    totals = y.sum(axis=0)
    present = totals > 0
    weight = np.divide(len(y), present.sum() * totals, out=np.zeros(len(classes)), where=present)
    return dict(zip(classes.tolist(), weight.tolist(), strict=True))


def soft_class_weights(class_weight: object, classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weight of each row of probabilities: the mean weight of its classes."""
    known = balanced_soft_weights(classes, y) if class_weight == "balanced" else class_weight
    weight = class_weights(known, classes, classes)
    mean: np.ndarray = y @ weight
    return mean


@naming("y")
def check_labels(y: Any, n_classes: int | None = None) -> np.ndarray:
    """Return classification labels as a vector; several labels for each sample as a table of 0 and 1.

    With `n_classes`, labels of so many known classes: the caller refuses others.
    """
    refuse_mask(y, "y")
    if are_plain_labels(y, n_classes):
        return np.asarray(y)
    if sparse.issparse(y):
        check_indices(y, "y")
    else:
        assert_all_finite(np.asarray(y), input_name="y")
    if np.asarray(y).ndim > 2:
        raise ParameterError(
            f"y has shape {np.shape(y)}: labels of the elements of samples need a graph as model=, whose "
            "scores have their axes and one of the classes."
        )
    if type_of_target(y, input_name="y") == "multilabel-indicator":
        table = y.toarray() if sparse.issparse(y) else np.asarray(y)
        if not np.isin(table, (0, 1)).all():
            raise ParameterError(f"y has the values {np.unique(table).tolist()} in its columns, not 0 and 1.")
        return table.astype(np.int64)
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    return y


def are_plain_labels(y: Any, n_classes: int | None) -> TypeGuard[np.ndarray]:
    """Tell whether scikit-learn's validation would return `y` itself, without a warning: a common case.

    It warns where more than half of the labels are different.
    """
    if isinstance(y, np.ndarray) and y.ndim == 1 and are_many(y) and _are_labels(y):
        return 0 < 2 * len(present_labels(np.asarray(y))) < len(y)
    if type(y) is not np.ndarray or y.ndim != 1 or y.dtype.kind not in "iu" or not y.flags.c_contiguous:
        return False
    # to find the labels that occur takes longer than all other checks of a short call
    return (n_classes is not None and 0 < 2 * n_classes < len(y)) or 0 < 2 * len(_distinct(y)) < len(y)


def _are_labels(y: np.ndarray) -> bool:
    """Tell whether all entries are whole numbers, or all are strings."""
    if y.dtype.kind in "biuUS":
        return True
    return y.dtype.kind == "O" and all(isinstance(label, str) for label in y)
