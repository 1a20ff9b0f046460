"""Sequences of different lengths: lists of arrays, their padding, and the mask that tells padding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import onnx_ir as ir
from scipy import sparse

from onnxsgd._cached_property import cached_property
from onnxsgd.data.batch_source import as_numpy
from onnxsgd.data.columns import NUMBERS, column_kinds, column_names, is_mapping
from onnxsgd.exceptions import GraphError, ParameterError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "Ragged",
    "Sequences",
    "check_targets",
    "find_mask",
    "for_each",
    "gather",
    "holds_sequences",
    "is_one_array",
    "read_sequences",
]

#: The most parts of a batch, and advice for a list of them, which is taken for samples.
_PARTS = 3
_ADVICE = " Targets are the second argument, and batches are tuples: (X, y) or (X, y, sample_weight)."


@dataclass(frozen=True, eq=False)
class Ragged:
    """Arrays of different lengths, one for each sample, which agree in all axes but the first.

    Attributes
    ----------
    arrays : tuple of ndarray
        The arrays.
    """

    arrays: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.arrays)

    def take(self, rows: np.ndarray, axis: int = 0) -> Ragged:
        """Return the given samples."""
        return Ragged(tuple(self.arrays[row] for row in rows))

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of each array."""
        return np.array([len(array) for array in self.arrays])

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type that holds the numbers of all."""
        return np.result_type(*{array.dtype for array in self.arrays})

    def padded(self, length: int, fill: float | str = 0) -> np.ndarray:
        """Return one array, with `fill` behind the end of each sequence."""
        # labels may have no room for that of padding
        dtype = np.result_type(self.dtype, np.min_scalar_type(fill)) if fill else self.dtype
        table = np.full((len(self), length, *self.arrays[0].shape[1:]), fill, dtype)
        for row, array in zip(table, self.arrays, strict=True):
            row[: len(array)] = array
        return table


def gather(X: object, name: str = "X", kinds: Collection[str] = NUMBERS) -> Any:
    """Return `X`, or a dictionary, with each list of arrays as one array, or as :class:`Ragged`.

    A frame is a dictionary of its columns where one of them holds arrays; the only column is the list itself.
    `kinds` are numpy's letters of the types that sequences may have. Lists of numbers, and lists of such
    lists of one length, are returned as they are; lists of different lengths are sequences.

    Raises
    ------
    ParameterError
        If arrays of a list differ in more than their first axis, or are empty, or data are read once.
    """
    X = _as_columns(X)
    if is_mapping(X):
        return {key: gather(value, f"{name}[{key!r}]") for key, value in X.items()}
    if isinstance(X, Iterator):
        raise ParameterError(f"{name} is of type {type(X).__name__}, which is read once: give list({name}).")
    X = _as_list(X)
    if not _holds_arrays(X):
        return X
    arrays = tuple(_as_array(item, f"{name}[{row}]") for row, item in enumerate(X))
    first = arrays[0]
    if not all(array.dtype.kind in kinds or not len(array) for array in arrays if array.ndim):
        # tokens of texts
        return X
    if all(array.shape == first.shape for array in arrays) and len(first):
        return np.stack(arrays)
    for row, array in enumerate(arrays):
        if array.ndim == 0 or array.shape[1:] != first.shape[1:]:
            is_pair = len(arrays) <= _PARTS and array.shape[:1] == first.shape[:1]
            raise ParameterError(
                f"{name}[{row}] has shape {array.shape} and {name}[0] {first.shape}: samples may differ in "
                f"the length of their first axis alone.{_ADVICE if is_pair else ''}"
            )
        if not len(array):
            raise ParameterError(f"{name}[{row}] is empty: each sequence has one element at least.")
    return Ragged(arrays)


def _as_columns(X: Any) -> Any:
    """Return the columns of a frame with arrays in one of them, the only one alone; and other data."""
    if is_mapping(X) or column_names(X) is None or NUMBERS.issuperset(column_kinds(X).values()):
        return X
    # the first row tells: columns of strings are long to convert
    if not any(isinstance(_as_list(X[name][:1]), list) for name in X.columns):
        return X
    columns = {name: _as_list(X[name]) for name in X.columns}
    return columns if len(columns) > 1 else next(iter(columns.values()))


def holds_sequences(X: object) -> bool:
    """Tell whether gathered data have sequences of different lengths."""
    if is_one_array(X):
        # the common case: one look
        return False
    return isinstance(X, Ragged) or (is_mapping(X) and any(isinstance(v, Ragged) for v in X.values()))


def _as_list(X: Any) -> Any:
    """Return the list of samples that are the entries of an array of objects, or of a column of a frame."""
    is_column = hasattr(X, "to_list") and hasattr(X, "dtype")
    if not is_column and not isinstance(X, np.ndarray):
        return X
    entries = np.asarray(X)
    if entries.dtype.kind != "O" or entries.ndim != 1 or not len(entries):
        return X
    if is_column and isinstance(entries[0], np.ndarray) and entries[0].dtype.kind == "O":
        # polars: lists of lists
        return X.to_list()
    return list(entries) if isinstance(entries[0], list | tuple) or np.ndim(entries[0]) else X


def _as_array(item: object, name: str) -> np.ndarray:
    """Return the sequence of one sample."""
    try:
        return np.asarray(as_numpy(item))
    except ValueError:
        raise ParameterError(f"{name} holds lists of different lengths: a sample is one array.") from None


def _holds_arrays(X: object) -> TypeGuard[Sequence[Any]]:
    """Tell whether `X` is a list of arrays, or of lists of different lengths."""
    items = list(X) if isinstance(X, list | tuple) else []
    if not items:
        return False
    if isinstance(items[0], list | tuple):
        lengths = {len(item) for item in items if hasattr(item, "__len__") and not isinstance(item, str)}
        return len(lengths) > 1
    return bool(getattr(items[0], "ndim", 0)) and not sparse.issparse(items[0])


def is_one_array(X: object) -> TypeGuard[np.ndarray]:
    """Tell whether `X` is an array of numpy that holds no other arrays."""
    return isinstance(X, np.ndarray) and X.dtype.kind != "O"


def for_each(function: Callable[[np.ndarray], np.ndarray], raw: np.ndarray | list[np.ndarray]) -> Any:
    """Return a function of arrays with a row for each sample; a list for a list of samples."""
    return [function(row[None])[0] for row in raw] if isinstance(raw, list) else function(raw)


def find_mask(inputs: Sequence[ir.Value]) -> ir.Value | None:
    """Return the input for a mask of sequences, if a graph has one.

    It is called ``mask``, or by a name that ends in ``_mask`` without ``pad`` in it, and has the axes
    [n_samples, length] beside another input. A graph with several such inputs has none.
    """
    found = [value for value in inputs if _is_mask(value)]
    return found[0] if len(found) == 1 and len(inputs) > 1 else None


def _is_mask(value: ir.Value) -> bool:
    name = str(value.name).lower()
    is_named = name == "mask" or (name.endswith("_mask") and "pad" not in name)
    if not is_named or value.shape is None or len(value.shape) != 2 or value.shape[1] == 1:
        return False
    return value.dtype is not None and value.dtype != ir.DataType.STRING


@dataclass(frozen=True)
class Sequences:
    """Samples with sequences of different lengths, for a graph.

    Attributes
    ----------
    inputs : dict of Ragged or ndarray
        One for each input of the graph that is given.
    mask : str or None
        The input that is made: 1 for the elements of a sequence, 0 for padding; None: none is.
    is_padded : bool
        Whether the graph is told which elements are padding: sequences of different lengths may share a
        batch.
    fixed : dict of int
        The lengths of inputs that the graph fixes.
    """

    inputs: Mapping[str, Ragged | np.ndarray]
    mask: str | None
    is_padded: bool
    fixed: Mapping[str, int]

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def _ragged(self) -> dict[str, Ragged]:
        return {name: value for name, value in self.inputs.items() if isinstance(value, Ragged)}

    @cached_property
    def lengths(self) -> np.ndarray:
        """The lengths of each sample, [n_samples, n_inputs with sequences]."""
        return np.stack([value.lengths for value in self._ragged.values()], axis=1)

    def take(self, rows: np.ndarray) -> Sequences:
        """Return the given samples."""
        return replace(self, inputs={name: value.take(rows, axis=0) for name, value in self.inputs.items()})

    def arrays(self, rows: np.ndarray, size: int | None = None) -> dict[str, np.ndarray]:
        """Return an array for each input, padded with 0 to the longest of the given samples, or to `size`."""
        taken = {name: value.take(rows, axis=0) for name, value in self.inputs.items()}
        made = dict[str, np.ndarray]()
        for name, value in taken.items():
            if isinstance(value, Ragged):
                length = size or int(value.lengths.max())
                made[name] = value.padded(self.fixed.get(name, length) if self.is_padded else length)
            else:
                made[name] = value
        if self.mask is not None:
            lengths = self.lengths[rows, :1]
            length = self.fixed.get(self.mask, size or int(lengths.max()))
            made[self.mask] = (np.arange(length) < lengths).astype(np.int8)
        return made

    def ungrouped(self) -> Sequences:
        """Return the same samples, none of which may be padded."""
        return replace(self, is_padded=False)

    def groups(self) -> list[np.ndarray]:
        """Return the samples of each length, in the order of their first ones."""
        _, first, group = np.unique(self.lengths, axis=0, return_index=True, return_inverse=True)
        order, group = np.argsort(group.reshape(-1), kind="stable"), group.reshape(-1)
        parts = np.split(order, np.cumsum(np.bincount(group))[:-1])
        return [parts[number] for number in np.argsort(first)]


def read_sequences(X: object, inputs: Sequence[ir.Value] | None) -> Any:
    """Return `X` with each list of arrays as one array, or as :class:`Sequences`; add a mask that it lacks.

    Parameters
    ----------
    X : object
        The user's data.
    inputs : sequence of ir.Value or None
        The inputs of the graph; None: the model is no graph.

    Raises
    ------
    GraphError
        If the graph does not take sequences of different lengths.
    ParameterError
        If lists of arrays do not go together.
    """
    if is_one_array(X) and (inputs is None or len(inputs) == 1):
        # the common case: one look
        return X
    X = gather(X)
    given = X if is_mapping(X) else None
    if inputs is not None:
        lists = {"X": X} if given is None else {f"X[{key!r}]": value for key, value in given.items()}
        for name, value in lists.items():
            _check_elements(value, name)
    is_ragged = holds_sequences(X)
    mask = None if inputs is None else find_mask(inputs)
    makes_mask = mask is not None and (given is None or str(mask.name) not in given)
    may_pad = mask is not None and given is not None and _fixed_length(mask) is not None
    if not (is_ragged or makes_mask or may_pad):
        return X
    if inputs is None:
        raise GraphError(
            "X holds sequences of different lengths, which only a graph takes as model=; other models take "
            "a table."
        )
    if given is None:
        names = [str(value.name) for value in inputs if value is not mask]
        if len(names) != 1 and is_ragged:
            raise GraphError(f"X is one list and the graph has the inputs {names}: give a dict of lists.")
        if mask is not None and len(names) == 1 and sparse.issparse(X):
            raise GraphError(
                f"X is sparse, and a graph with the mask {mask.name!r} takes arrays: take its toarray()."
            )
        if len(names) != 1 or (not is_ragged and not _is_array(cast("ArrayLike", X))):
            # an error names the inputs, or columns have their names
            return X
        given = {names[0]: X}
    given = {str(name): v if isinstance(v, Ragged) else np.asarray(as_numpy(v)) for name, v in given.items()}
    _check_counts(given)
    if not is_ragged:
        return _with_mask(given, inputs, mask)
    fixed = {str(value.name): length for value in inputs if (length := _fixed_length(value)) is not None}
    is_told = mask is not None and (makes_mask or isinstance(given[str(mask.name)], Ragged))
    sequences = Sequences(given, str(mask.name) if mask is not None and makes_mask else None, is_told, fixed)
    _check_lengths(sequences, None if mask is None else str(mask.name))
    return sequences


def check_targets(sequences: Sequences, target: np.ndarray | Ragged, X_name: str, y_name: str) -> None:
    """Refuse another number of targets than of samples, and sequences of them of other lengths.

    Raises
    ------
    ParameterError
        If they differ; the names are those of the arguments.
    """
    n_targets = len(target) if isinstance(target, Ragged) or target.ndim else 0
    if n_targets != len(sequences):
        raise ParameterError(f"{X_name} has {len(sequences)} samples and {y_name} has {n_targets}.")
    if not isinstance(target, Ragged):
        return
    differs = (sequences.lengths != target.lengths[:, None]).all(axis=1)
    if differs.any():
        row = int(differs.argmax())
        raise ParameterError(
            f"{y_name}[{row}] has {target.lengths[row]} elements and {X_name}[{row}] "
            f"{int(sequences.lengths[row, 0])}: a list of arrays as {y_name} has a target for each element."
        )


def _check_elements(X: object, name: str) -> None:
    """Refuse a list of arrays of different shapes whose elements are no numbers, and one of sparse tables."""
    if isinstance(X, list | tuple) and len(X) and sparse.issparse(X[0]):
        raise ParameterError(
            f"{name}[0] is a sparse table, and samples of a list are arrays: take its toarray()."
        )
    if not _holds_arrays(X):
        return
    arrays = [_as_array(item, f"{name}[{row}]") for row, item in enumerate(X)]
    if len({array.shape for array in arrays}) == 1:
        return
    row = next(row for row, array in enumerate(arrays) if array.dtype.kind not in NUMBERS)
    raise ParameterError(
        f"{name}[{row}] has elements of type {arrays[row].dtype}: sequences of different lengths hold "
        "numbers."
    )


def _is_array(X: ArrayLike) -> bool:
    """Tell whether this is an array, or lists of numbers, and no table with named columns."""
    return column_names(X) is None and not sparse.issparse(X) and np.ndim(X) > 1


def _fixed_length(value: ir.Value) -> int | None:
    """Return the size of the second axis of an input; None if it is open."""
    length = value.shape[1] if value.shape is not None and len(value.shape) > 1 else None
    return length if isinstance(length, int) else None


def _check_counts(given: Mapping[str, Ragged | np.ndarray]) -> None:
    counts = {
        name: len(value) if isinstance(value, Ragged) or value.ndim else 0 for name, value in given.items()
    }
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ParameterError(f"X has arrays of these lengths: {counts}; they must be equal and above 0.")


def _with_mask(
    given: dict[str, Any], inputs: Sequence[ir.Value], mask: ir.Value | None
) -> dict[str, np.ndarray]:
    """Return arrays of one length with a mask, of ones if it is not given, if that length is known.

    Where the graph fixes a larger length, they are padded to it with 0, as sequences of several lengths are.
    """
    if mask is None or mask.shape is None:
        return given
    shapes = {str(value.name): value.shape for value in inputs if value is not mask and value.shape}
    names = [
        name
        for name, shape in shapes.items()
        if name in given and given[name].ndim > 1 and len(shape) > 1 and shape[1] == mask.shape[1]
    ]
    lengths = {given[name].shape[1] for name in names}
    if len(lengths) != 1:
        # the graph does not say of what the mask is, and the usual error names it
        return given
    length = lengths.pop()
    size = (len(next(iter(given.values()))), length)
    made = {str(mask.name): np.ones(size, np.int8), **given}
    missing = (_fixed_length(mask) or 0) - length
    if missing > 0 and made[str(mask.name)].shape == size:
        for name in (*names, str(mask.name)):
            array = made[name]
            made[name] = np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])
    return made


def _check_lengths(sequences: Sequences, mask: str | None) -> None:
    """Refuse lists of different lengths where one mask is for all, and sequences that are too long."""
    ragged = {name: value for name, value in sequences.inputs.items() if isinstance(value, Ragged)}
    if mask in sequences.inputs and mask not in ragged:
        raise ParameterError(
            f"X[{mask!r}] is one array beside lists of sequences of different lengths: give a list of masks, "
            "or leave it out, and 1 marks each element."
        )
    differing = np.flatnonzero(np.ptp(sequences.lengths, axis=1))
    if sequences.is_padded and len(differing):
        row = int(differing[0])
        found = dict(zip(ragged, sequences.lengths[row].tolist(), strict=True))
        raise ParameterError(
            f"Sample {row} of X has the lengths {found}, and the graph has one mask, {mask!r}: the lists "
            "of a sample must have one length."
        )
    for name, value in ragged.items():
        most = sequences.fixed.get(name)
        if most is not None and (value.lengths > most).any():
            row = int(value.lengths.argmax())
            raise GraphError(
                f"Sample {row} of X has length {value.lengths[row]}; input {name!r} of the graph takes "
                f"{most}."
            )
