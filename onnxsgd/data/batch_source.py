"""Batches that an iterable yields: their parts, epochs, and the number of batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = ["Batch", "BatchSource", "as_numpy", "is_batch_source"]

#: Names of the target in a batch that is a dictionary, and of its weights; all others are features.
_TARGETS, _WEIGHT = ("y", "label", "labels", "target", "targets"), "sample_weight"
#: Rows of a batch of a data set that cuts its batches itself.
_ROWS = 32


@dataclass(frozen=True)
class Batch:
    """Some samples, as the user gave them.

    Attributes
    ----------
    X : object
        The features: one array, or a dictionary of arrays.
    y : object
        The targets.
    sample_weight : object
        The weights of the samples; None: 1 for each.
    """

    X: Any
    y: Any
    sample_weight: Any = None

    @property
    def is_weightless(self) -> bool:
        """True if it has samples, and all of their weights are 0."""
        return self.sample_weight is not None and len(self.y) > 0 and not np.any(self.sample_weight)

    @classmethod
    def of(cls, item: object) -> Batch:
        """Return what an iterable yielded as a batch.

        Parameters
        ----------
        item : tuple or list of (X, y) or (X, y, sample_weight), or dict
            A dictionary has the targets under "y", "label", "labels", "target" or "targets", perhaps
            weights under "sample_weight", and features: `X` is the only other entry, or a dictionary of
            the others.

        Raises
        ------
        ParameterError
            If it has other parts, or is a single sample.
        ParameterTypeError
            If it is of another type.
        """
        if isinstance(item, Mapping):
            batch = cls._of_mapping({name: as_numpy(value) for name, value in item.items()})
        elif not isinstance(item, tuple | list):
            raise ParameterTypeError(
                f"The batches are of type {type(item).__name__}: each must be (X, y), (X, y, sample_weight), "
                "or a dictionary of arrays with the targets under 'y' or 'label'."
            )
        elif len(item) not in (2, 3):
            raise ParameterError(
                f"A batch has {len(item)} parts: it must be (X, y) or (X, y, sample_weight)."
            )
        else:
            batch = cls(*map(_part, item))
        # numpy makes no array of lists of different lengths
        if not isinstance(batch.y, list | tuple) and np.ndim(batch.y) == 0:
            raise ParameterError(
                f"The target of a batch is {batch.y!r}, which is no array: iterate over batches of samples, "
                "not over single samples."
            )
        return batch

    @classmethod
    def _of_mapping(cls, item: dict[str, Any]) -> Batch:
        targets = [name for name in _TARGETS if name in item]
        features = {name: value for name, value in item.items() if name not in (*targets, _WEIGHT)}
        if len(targets) != 1 or not features:
            raise ParameterError(
                f"A batch has the entries {sorted(map(str, item))}: it must have features, and one of "
                f"{list(_TARGETS)}."
            )
        X = features if len(features) > 1 else next(iter(features.values()))
        return cls(X, item[targets[0]], item.get(_WEIGHT))


def _part(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: as_numpy(entry) for name, entry in value.items()}
    return as_numpy(value)


def as_numpy(value: Any) -> Any:
    """Return a tensor of torch as an array of numpy, and other values as they are."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    # numpy has no bfloat16
    return (tensor.float() if str(getattr(tensor, "dtype", "")) == "torch.bfloat16" else tensor).numpy()


def is_batch_source(X: object) -> bool:
    """Tell whether `X` yields batches: an iterator, a loader, a list of tuples or of dictionaries."""
    if callable(getattr(X, "iter", None)):
        return True
    if isinstance(X, str | bytes | Mapping) or any(hasattr(X, name) for name in _OF_ARRAYS):
        return False
    if isinstance(X, list | tuple):
        return bool(X) and (isinstance(X[0], tuple | Mapping) or _is_pair(X[0]))
    return isinstance(X, Iterable)


def _is_pair(item: object) -> bool:
    """Tell whether a list holds arrays, as loaders yield them, and no numbers of one row."""
    return isinstance(item, list) and len(item) in (2, 3) and all(getattr(part, "ndim", 0) for part in item)


#: Attributes of arrays, frames and sparse matrices.
_OF_ARRAYS = ("__array__", "__array_interface__", "__dataframe__", "shape", "dtype")


class BatchSource:
    """The epochs of an iterable of batches.

    An iterator, such as a generator, is read once: its epochs have `n_steps` batches each, and it may end in
    one of them. Any other iterable is iterated anew for each epoch, or where `n_steps` batches need it.

    Parameters
    ----------
    batches : iterable
        It yields what :meth:`Batch.of` takes. A data set with a method ``iter``, as those of Hugging Face
        have, is cut into batches by it.
    n_steps : int or None
        The number of batches of an epoch; None: all.
    n_rows : int or None
        The rows of a batch of such a data set; None: 32.
    n_joined : int
        The batches of an update.
    is_cut : bool
        Whether each batch is cut to the size of an update; others may have any number of rows.
    """

    def __init__(
        self,
        batches: Iterable[object],
        n_steps: int | None,
        n_rows: int | None,
        n_joined: int = 1,
        is_cut: bool = False,
    ) -> None:
        self.n_joined, self.is_cut = n_joined, is_cut
        self._batches = batches
        self._n_steps = n_steps
        self._n_rows = n_rows or _ROWS
        self.is_repeatable = not isinstance(batches, Iterator)
        self._present: Iterator[object] | None = None

    @property
    def n_batches(self) -> int | None:
        """The number of batches of an epoch; None: unknown."""
        if self._n_steps is not None or not isinstance(self._batches, Sized):
            return self._n_steps
        try:
            n_items = len(self._batches)
        except TypeError:
            # a loader has a length, and its data may have none
            return None
        return -(-n_items // self._n_rows) if hasattr(self._batches, "iter") else n_items

    @property
    def has_next(self) -> bool:
        """True if there is a further batch; of an iterator, one is read for the answer."""
        return self.is_repeatable or self._peek() is not None

    def first(self) -> Batch:
        """Return the first batch, which remains part of the first epoch.

        Raises
        ------
        ParameterError
            If there is none.
        """
        item = self._peek()
        if item is None:
            raise _no_batches()
        return Batch.of(item)

    def advise(self, error: Exception) -> None:
        """Add a note to the error of a data set whose rows may be batches: all entries have one length."""
        row = next(iter(self._batches), None) if hasattr(self._batches, "iter") else None
        lengths = {_length(entry) for entry in row.values()} if isinstance(row, Mapping) else {None}
        n_rows = lengths.pop()
        if n_rows is not None and not lengths:
            error.add_note(
                f"All entries of the first row of this data set have {n_rows} values. If its rows are "
                "batches already, give the data set before its method batch(): batches of batch_size rows "
                "are made of it."
            )

    def aside(self) -> Iterator[Batch]:
        """Yield as many batches of a repeatable source as an epoch has, beside its epochs."""
        return map(Batch.of, islice(self._iterate(), self._n_steps))

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch.

        Raises
        ------
        ParameterError
            If there are none, or one is not accepted.
        """
        is_empty = True
        for item in self._items():
            is_empty = False
            yield Batch.of(item)
        if is_empty:
            raise _no_batches()

    def _items(self) -> Iterator[object]:
        n_left = self._n_steps
        while True:
            is_new, n_read = self._present is None, 0
            if self._present is None:
                self._present = self._iterate()
            for item in islice(self._present, n_left):
                n_read += 1
                yield item
            n_left = None if n_left is None else n_left - n_read
            if n_left == 0:
                return
            if not self.is_repeatable:
                return
            self._present = None
            # of an empty iterable there are no steps
            if n_left is None or (is_new and n_read == 0):
                return

    def _peek(self) -> object | None:
        """Return the next item, which remains to be read; None at the end."""
        present = self._iterate() if self._present is None else self._present
        item = next(present, None)
        self._present = present if item is None else chain([item], present)
        return item

    def _iterate(self) -> Iterator[object]:
        cut = getattr(self._batches, "iter", None)
        return iter(cut(self._n_rows) if callable(cut) else self._batches)


def _length(entry: Any) -> int | None:
    """Return the number of values of an entry of a row; None if it is one value."""
    is_one = isinstance(entry, str) or getattr(entry, "ndim", 1) == 0
    return len(entry) if isinstance(entry, Sized) and not is_one else None


def _no_batches() -> ParameterError:
    return ParameterError("X yields no batches: the iterable is empty, or has been read already.")
