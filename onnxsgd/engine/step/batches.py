"""Batches: their order, their sample weights, and copies into buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from onnxsgd._cached_property import cached_property
from onnxsgd._records import record
from onnxsgd.data.block_reader import BlockReader
from onnxsgd.data.extremes import row_shares
from onnxsgd.data.masks import is_any
from onnxsgd.data.random_order import BlockOrder, Blocks
from onnxsgd.data.row_tables import RowTable, are_many, as_array, row_blocks, some_rows, take_into
from onnxsgd.engine.sparse_products import is_sparse
from onnxsgd.engine.step.cuts import Cuts

__all__ = ["Batches", "DrawnRows", "EpochPlan", "Standard", "copy_rows"]

#: Normalised weights of samples, and factors and weights of batches.
_Weights = tuple[np.ndarray, np.ndarray, np.ndarray]
#: Samples up to which the places of batches are kept between fits, and the weights of epochs if all samples
#: count the same: to make them takes as long as some updates.
_FEW = 16_384
#: The samples of all epochs up to which they are kept: a bound of memory.
_KEPT = 1 << 18

#: The most bytes of a standardised copy of a feature, memory maps too: a bound of memory, not measured.
_SMALL_TABLE = 4_000_000
#: The rows of many samples whose batches are planned together: a bound of memory.
_WINDOW_ROWS = 1 << 16


class DrawnRows:
    """Rows of the batches of several epochs, whose orders are drawn when they are taken.

    Parameters
    ----------
    draw : callable
        Returns the rows of the next epoch, [n_batches, batch_size].
    n_batches : int
        The number of batches of an epoch.
    """

    def __init__(self, draw: Callable[[], np.ndarray], n_batches: int) -> None:
        self._draw, self._n_batches = draw, n_batches
        self._drawn: list[np.ndarray] = []

    def __getitem__(self, batches: slice) -> np.ndarray:
        """Return the rows of some batches of one epoch."""
        epoch, first = divmod(batches.start, self._n_batches)
        while len(self._drawn) <= epoch:
            self._drawn.append(self._draw())
        return self._drawn[epoch][first : first + batches.stop - batches.start]


@record
class EpochPlan:
    """The rows of one epoch, or of several.

    Attributes
    ----------
    rows : ndarray of shape [n_batches, batch_size], or DrawnRows
        Indices of samples. Short batches are filled up with further rows, whose weight is zero.
    sample_weight : ndarray of shape [n_batches, batch_size, 1]
        Weights of the type of the target, normalised to sum 1 in each batch; with ``batch_size=1`` not
        normalised, as there is no mean to take.
    factors : ndarray of shape [n_batches]
        The ratio of gradient weights to these weights: 1, minus the learning rate, or the share of a batch
        in the gradient of an update or of an epoch.
    totals : ndarray of shape [n_batches]
        The weight of each batch's loss in the mean over all of them.
    total : float
        The weight of all samples, in units of that of other plans of the same epoch.
    """

    rows: Any
    sample_weight: np.ndarray
    factors: np.ndarray
    totals: np.ndarray
    total: float = 1.0

    def part(self, batches: slice) -> EpochPlan:
        """Return the plan of some of the batches."""
        return EpochPlan(
            self.rows[batches],
            self.sample_weight[batches],
            self.factors[batches],
            self.totals[batches],
            self.total,
        )

    def descending(self, rates: np.ndarray) -> EpochPlan:
        """Return the same plan with each batch's gradients multiplied by minus its rate."""
        return replace(self, factors=-rates * self.factors)

    def weigh(self, batches: int | slice, sample_weight: np.ndarray, gradient_weight: np.ndarray) -> None:
        """Copy both weights of the samples of a batch, or of several, into buffers of as many elements."""
        weight = self.sample_weight[batches]
        factors = self.factors[batches].astype(weight.dtype)
        sample_weight[...] = weight.reshape(sample_weight.shape)
        np.multiply(weight, factors[..., None, None], out=gradient_weight)

    def mean_losses(self, losses: np.ndarray, n_epochs: int) -> np.ndarray:
        """Return the weighted mean loss of each epoch, given the losses of all batches."""
        if n_epochs == 1:
            return np.array([self.mean_loss(losses)])
        means: np.ndarray = n_epochs * np.add.reduce((losses * self.totals).reshape(n_epochs, -1), axis=1)
        return means

    def mean_loss(self, losses: np.ndarray) -> float:
        """Return the weighted mean loss of the only epoch, given the losses of its batches."""
        # no dot product, which would start the threads of BLAS for many batches
        return float(np.add.reduce(losses * self.totals))


@record
class Standard:
    """The standardisation of columns: ``(x - shift) * factor``.

    Attributes
    ----------
    shift, factor : ndarray of shape [n_features] or [n_channels, 1, ...]
        Numbers of the type of the data.
    preconditioner : ndarray of shape [n_features, n_features] or None
        The matrix that multiplies gradients of coefficients of the standardised columns, see
        :func:`onnxsgd.data.preconditioner.preconditioner`; None: the identity.
    """

    shift: np.ndarray
    factor: np.ndarray
    preconditioner: np.ndarray | None = None

    def apply(self, rows: np.ndarray) -> None:
        """Standardise rows in place; numbers beyond the range of their type become infinite."""
        self.copy(rows, rows)

    def copy(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the same to an array of their shape."""
        with np.errstate(over="ignore"):
            np.subtract(rows, self.shift, out=out)
            np.multiply(out, self.factor, out=out)


class _Scale(NamedTuple):
    """The weights of samples in the updates of an epoch; see :class:`Batches`."""

    n_samples: int
    batch_size: int
    is_mean: bool
    unit: float | None
    n_accumulated: int
    is_even: bool
    dtype: np.dtype[Any]

    @property
    def cuts(self) -> Cuts:
        """The places where the samples of an epoch are cut into batches."""
        return Cuts.of(self.n_samples, self.batch_size, self.n_accumulated, is_even=self.is_even)

    def weights(self, weight: np.ndarray, cuts: Cuts) -> _Weights:
        """Return the normalised weights of samples, and factors and weights of batches; padding has none."""
        n_batches = len(cuts.n_rows)
        weight = weight.reshape(n_batches, self.batch_size, 1)
        is_short = cuts.n_rows < self.batch_size
        if is_any(is_short):
            # the numbers of short batches differ little
            n_rows = cuts.n_rows[is_short]
            least = int(n_rows.min())
            weight[is_short, least:] *= np.arange(least, self.batch_size)[:, None] < n_rows[:, None, None]
        # ten times as fast as a sum along the axes of small batches
        totals = np.einsum("ijk->i", weight)
        unit = self.unit or 1.0
        if not self.is_mean:
            even = np.full((2, n_batches), [[1.0 / unit], [1.0 / totals.sum()]])
            return weight.astype(self.dtype), *even
        weight = weight / totals[:, None, None]
        if cuts.updates is not None:
            parts = totals if self.unit is None else unit * cuts.n_rows
            factors = totals / np.bincount(cuts.updates, parts)[cuts.updates]
        else:
            factors = np.ones(n_batches) if self.unit is None else totals / (unit * cuts.n_rows)
        return weight.astype(self.dtype), factors, totals / totals.sum()


def _joined(epochs: list[_Weights]) -> _Weights:
    """Return the weights of several epochs."""
    if len(epochs) == 1:
        return epochs[0]
    weight, factors, totals = map(np.concatenate, zip(*epochs, strict=True))
    return weight, factors, totals / len(epochs)


def _even_weights(scale: _Scale, weight: float, n_epochs: int) -> _Weights:
    """Return the weights of some epochs of samples that count the same; the arrays are shared."""
    cuts = scale.cuts
    weight_of_places = np.full(len(cuts.n_rows) * scale.batch_size, weight)
    weights = _joined([scale.weights(weight_of_places, cuts)] * n_epochs)
    for array in weights:
        array.flags.writeable = False
    return weights


def _places_of(scale: _Scale) -> np.ndarray:
    """Return the places of the samples of all batches in the order of an epoch; the array is shared."""
    places = scale.cuts.filled(scale.batch_size).reshape(-1)
    places.flags.writeable = False
    return places


_even_weights_of_few, _places_of_few = lru_cache(maxsize=16)(_even_weights), lru_cache(maxsize=64)(_places_of)


@record
class Batches:
    """The training data, cut into batches.

    Parameters
    ----------
    features : dict of ndarray or sparse matrix
        Data inputs of the graph, each of shape [n_samples, ...], or tables that compute the rows taken.
    target : ndarray of shape [n_samples, n_outputs]
        The target, encoded for the loss.
    sample_weight : ndarray of shape [n_samples]
        Weights of the samples, all > 0.
    batch_size : int
        The most rows of a batch.
    is_mean : bool
        Whether the loss of a batch is the mean over its samples; otherwise batches are single samples, whose
        loss is multiplied by their weight.
    standards : dict of Standard
        The standardisation of features, which their copies into buffers receive.
    weight_unit : float or None
        The weight of a sample whose gradient has the factor 1 / n, for the n samples of an update: batches of
        heavy samples make longer steps, and the steps of an epoch follow the weighted mean over all samples.
        None: each batch follows the weighted mean over its own samples.
    is_repeated : bool
        Whether the samples are taken more than once: small tables are then standardised once, not in each
        epoch.
    columns : (ndarray, int) or None
        The columns that the only feature has of a sparse table, in ascending order, and the number of all
        columns; None: it has all.
    is_mixed : bool
        Whether the rows have a random order, so that batches of an epoch may be neighbours, the first row
        that of the last one.
    n_accumulated : int
        The most batches of an update, which follows the gradient of all their samples.
    in_windows : bool
        Whether the batches of an epoch over many samples are planned in windows.
    blocks : Blocks or None
        The sizes of a shuffle by blocks; None: the order is one of single rows.
    is_even : bool
        Whether the numbers of samples of updates differ by at most one: a last update of few samples is as
        long as the others, and follows noise. Otherwise, and with blocks, the last one has the rest.
    """

    features: Mapping[str, Any]
    target: np.ndarray
    sample_weight: np.ndarray
    batch_size: int
    is_mean: bool
    standards: Mapping[str, Standard] = field(default_factory=dict)
    weight_unit: float | None = None
    is_repeated: bool = False
    columns: tuple[np.ndarray, int] | None = None
    is_mixed: bool = False
    n_accumulated: int = 1
    in_windows: bool = False
    blocks: Blocks | None = None
    is_even: bool = False
    #: The weights of so many epochs; None if they depend on the order.
    _even_weights: dict[int, _Weights | None] = field(default_factory=dict, init=False, repr=False)
    #: Features with a column of ones.
    _wide: dict[str, np.ndarray | None] = field(default_factory=dict, init=False, repr=False)

    @property
    def n_batches(self) -> int:
        """The number of batches of an epoch, short ones included."""
        if self.n_accumulated > 1 and self._cuts_evenly:
            return len(self.cuts.n_rows)
        return -(-len(self.target) // self.batch_size)

    @property
    def n_updates(self) -> int:
        """The number of updates of an epoch."""
        return -(-len(self.target) // (self.batch_size * self.n_accumulated))

    @cached_property
    def cuts(self) -> Cuts:
        """The places where the samples of an epoch are cut into batches."""
        return self._scale.cuts

    @cached_property
    def _starts(self) -> np.ndarray:
        """The place of the first sample of each batch in the order of an epoch."""
        return self.cuts.starts

    @cached_property
    def _places(self) -> np.ndarray:
        """The places of the samples of all batches in the order of an epoch."""
        find = _places_of_few if len(self.target) <= _FEW else _places_of
        return find(self._scale)

    @property
    def _updates(self) -> np.ndarray | None:
        """The index of the update of each batch of an epoch; None: each batch has its own."""
        # without the cuts, which single updates do not need
        return self.cuts.updates if self.n_accumulated > 1 else None

    @property
    def _cuts_evenly(self) -> bool:
        """True if the numbers of samples of updates differ by at most one."""
        return self.is_even and self.blocks is None and self.batch_size * self.n_accumulated > 1

    def updates_of_batches(self, n_epochs: int, window: slice | None = None) -> np.ndarray | None:
        """Return the index of the update of each batch of some epochs; None: each batch has its own.

        With `window`, of its batches, counted from its first update.
        """
        of_epoch = self._updates
        if of_epoch is None:
            return None
        if window is not None:
            of_epoch = of_epoch[window] - of_epoch[window.start]
        updates: np.ndarray = (np.arange(n_epochs)[:, None] * self.n_updates + of_epoch).reshape(-1)
        return updates

    def updates_of_window(self, window: slice) -> slice:
        """Return the updates of the batches of a window."""
        of_epoch = self._updates
        if of_epoch is None:
            return window
        return slice(int(of_epoch[window.start]), int(of_epoch[window.stop - 1]) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the features and of the target of one batch."""
        arrays = (*self.features.values(), self.target)
        rows = (array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in arrays)
        return self.batch_size * sum(rows)

    @property
    def is_sparse(self) -> bool:
        """True if any of the features is a sparse matrix."""
        return any(map(is_sparse, self.features.values()))

    @property
    def n_sparse_columns(self) -> int | None:
        """The columns of sparse features, of those without an entry too; None: all features are dense."""
        if not self.is_sparse:
            return None
        if self.columns is not None:
            return self.columns[1]
        return sum(int(np.prod(array.shape[1:])) for array in self.features.values())

    def mixed(self, random_state: np.random.RandomState) -> Batches:
        """Return the same data with their rows in a random order."""
        rows = random_state.permutation(len(self.target))
        features = {name: table[rows] for name, table in self.features.items()}
        return replace(
            self, features=features, target=self.target[rows], sample_weight=self.sample_weight[rows],
            is_mixed=True,
        )  # fmt: skip

    def standardised(
        self, standards: Mapping[str, Standard], weight_unit: float, *, is_repeated: bool
    ) -> Batches:
        """Return the same data with the standardisation of features, and the other two attributes."""
        # replace takes four times as long
        return Batches(
            self.features, self.target, self.sample_weight, self.batch_size, self.is_mean, standards,
            weight_unit, is_repeated, self.columns, self.is_mixed, self.n_accumulated, self.in_windows,
            self.blocks, self.is_even,
        )  # fmt: skip

    def some(self) -> Batches:
        """Return the same data, or a part of many rows in even steps, in arrays."""
        rows = some_rows([*self.features.values(), self.target])
        if rows == slice(None):
            return replace(self, target=as_array(self.target))
        features = {name: table[rows] for name, table in self.features.items()}
        return replace(
            self, features=features, target=self.target[rows], sample_weight=self.sample_weight[rows]
        )

    def with_bounded_rows(self) -> Batches:
        """Return the same data with less weight of rows of dense tables that are far from the others."""
        dense = [name for name in self.standards if isinstance(self.features[name], np.ndarray | RowTable)]
        if not are_many(self.target):
            return replace(
                self, sample_weight=self.sample_weight * row_shares(self.table(name) for name in dense)
            )
        weight = np.array(self.sample_weight, np.float32)
        for rows in row_blocks(len(weight)):
            weight[rows] *= row_shares(self._standardised(name, rows) for name in dense)
        return replace(self, sample_weight=weight)

    @property
    def is_long(self) -> bool:
        """True if the samples are so many that batches are planned in windows."""
        is_large = self.blocks is not None and len(self.target) > self.blocks.n_window
        return self.in_windows and (is_large or are_many(self.target)) and not self.is_sparse

    def block_order(
        self, random_state: np.random.RandomState, reader: BlockReader | None = None
    ) -> BlockOrder:
        """Return the order of an epoch that is shuffled by blocks."""
        if self.blocks is None:
            raise ValueError("The order of these batches is not one of blocks.")
        return BlockOrder(len(self.target), self.blocks, random_state, reader)

    @property
    def windows(self) -> list[slice]:
        """The batches of an epoch that are planned together."""
        if not self.is_long:
            return [slice(0, self.n_batches)]
        # a window has whole updates
        n_rows, n_together = _WINDOW_ROWS, self.n_accumulated
        if self.blocks is None:
            size = max(1, n_rows // (self.batch_size * n_together))
            updates = self.updates_of_batches(1)
            if updates is None:
                return list(row_blocks(self.n_batches, size))
            firsts = np.searchsorted(updates, np.arange(0, self.n_updates, size)).tolist()
            return [slice(*cut) for cut in pairwise([*firsts, self.n_batches])]
        # each ends with the last update whose rows are in one window of blocks, or in those before it
        n_rows = min(n_rows, self.blocks.n_window)
        ends = np.arange(n_rows, len(self.target), n_rows) // (self.batch_size * n_together) * n_together
        cuts = np.unique([0, *ends, self.n_batches]).tolist()
        return [slice(*cut) for cut in pairwise(cuts)]

    def window(self, order: np.ndarray | BlockOrder | None, batches: slice) -> EpochPlan:
        """Return the plan of some batches of an epoch over many samples.

        Parameters
        ----------
        order : ndarray of shape [n_samples], BlockOrder or None
            The order of the samples; None: that of the data.
        batches : slice
            One of :attr:`windows`.
        """
        size = self.batch_size
        if self._cuts_evenly:
            whole, updates = self.cuts, self.updates_of_batches(1, batches)
            cuts, first = Cuts(whole.n_rows[batches], updates), int(self._starts[batches.start])
        else:
            first = batches.start * size
            n_rows = min(batches.stop * size, len(self.target)) - first
            cuts = Cuts.of(n_rows, size, self.n_accumulated)
        end = first + int(cuts.n_rows.sum())
        rows = np.arange(first, end) if order is None else order[first:end]
        total = float(self.sample_weight[rows].sum(dtype=np.float64))
        rows = rows[cuts.filled(size)]
        weight = self.sample_weight[rows].astype(np.float64)
        return EpochPlan(rows, *self._scale.weights(weight, cuts), total)

    def plan(self, orders: np.ndarray) -> EpochPlan:
        """Return the batches of epochs that take the samples in the given orders, each of them once.

        Parameters
        ----------
        orders : ndarray of shape [n_epochs, n_samples], or [n_samples] for one epoch
            The indices of the samples.
        """
        rows = self.filled(orders.reshape(-1, orders.shape[-1]))
        weights = self._weights_of(rows)
        return EpochPlan(rows.reshape(-1, self.batch_size), *weights)

    def plan_of_drawn(self, draw: Callable[[], np.ndarray], n_epochs: int) -> EpochPlan | None:
        """Return the batches of epochs whose orders are drawn when their rows are taken.

        None if the weights of the samples depend on the order.

        Parameters
        ----------
        draw : callable
            Returns the indices of the samples in the order of the next epoch, [1, n_samples].
        n_epochs : int
            The number of epochs.
        """
        even = self._even_weights_of(n_epochs)
        if even is None:
            return None
        rows = DrawnRows(lambda: self.filled(draw()).reshape(-1, self.batch_size), self.n_batches)
        return EpochPlan(rows, *even)

    def filled(self, orders: np.ndarray) -> np.ndarray:
        """Return orders [n_epochs, n_samples] with the indices that fill short batches up."""
        n_samples, size = orders.shape[1], self.batch_size
        if n_samples % size == 0 and self.n_accumulated == 1:
            return orders
        if not self.is_mixed:
            return orders.take(self._places, axis=1)
        # neighbours, which need no copy
        firsts = orders[:, self._starts]
        rows: np.ndarray = (firsts[:, :, None] + np.arange(size)) % n_samples
        return rows.reshape(len(orders), -1)

    def _weights_of(self, rows: np.ndarray) -> _Weights:
        """Return the normalised weights of the samples of each epoch, and factors and weights of batches."""
        even = self._even_weights_of(len(rows))
        if even is None:
            scale, cuts = self._scale, self.cuts
            return _joined([scale.weights(self.sample_weight[order], cuts) for order in rows])
        return even

    def _even_weights_of(self, n_epochs: int) -> _Weights | None:
        """Return the weights of so many epochs; None if they depend on the order."""
        known = self._even_weights
        if n_epochs not in known:
            first, n_samples = self.sample_weight[:1].reshape(()), len(self.target)
            if is_any(self.sample_weight != first):
                known[n_epochs] = None
            else:
                are_kept = n_samples <= _FEW and n_epochs * n_samples <= _KEPT
                even = _even_weights_of_few if are_kept else _even_weights
                # one object in every epoch: a device need not receive it again
                known[n_epochs] = even(self._scale, float(first), n_epochs)
        return known[n_epochs]

    @property
    def has_even_weights(self) -> bool:
        """True if all samples count the same."""
        return self._even_weights_of(1) is not None

    @property
    def _scale(self) -> _Scale:
        return _Scale(
            len(self.target), self.batch_size, self.is_mean, self.weight_unit, self.n_accumulated,
            self._cuts_evenly, self.target.dtype,
        )  # fmt: skip

    def table(self, name: str) -> np.ndarray:
        """Return a dense feature of all samples, standardised: a contiguous array, not to be changed."""
        if name not in self.standards:
            return np.ascontiguousarray(self.features[name])
        return self._standardised(name, slice(None))

    def _standardised(self, name: str, part: slice) -> np.ndarray:
        """Return rows of a dense feature, standardised."""
        rows = np.array(self.features[name][part], order="C")
        self.standards[name].apply(rows)
        return rows

    def copy_table(self, name: str, out: np.ndarray) -> None:
        """Copy a dense feature of all samples, standardised, to an array."""
        rows, standard = self.features[name][:], self.standards.get(name)
        if standard is None:
            out[...] = rows
        else:
            standard.copy(rows, out)

    @cached_property
    def _small_tables(self) -> dict[str, np.ndarray]:
        """The standardised features that are kept where the samples are taken more than once."""
        given = {name: self.features[name] for name in self.standards}
        return {
            name: self.table(name)
            for name, array in given.items()
            if isinstance(array, np.ndarray) and array.nbytes <= _SMALL_TABLE
        }

    def with_ones(self, name: str) -> np.ndarray | None:
        """Return a small dense feature with a column of ones, which is kept; None: it is another one.

        To take its rows costs less than to take those of the feature, and to copy them beside ones.
        """
        if name not in self._wide:
            table = self.features[name]
            if name in self.standards:
                table = self._small_tables.get(name) if self.is_repeated else None
            is_small = isinstance(table, np.ndarray) and table.nbytes <= _SMALL_TABLE
            self._wide[name] = _beside_ones(np.asarray(table)) if is_small else None
        return self._wide[name]

    def sparse_table(self, name: str, centre: np.ndarray | None = None) -> Any:
        """Return a sparse feature of all samples, standardised: a CSR matrix, not to be changed.

        Columns that are centred get an entry in each row, except those whose mean, over their scale, is in
        `centre`: no shift is applied.
        """
        table = sparse.csr_array(self.features[name])
        if name not in self.standards:
            return table
        standard = self.standards[name]
        # a conversion beforehand: places of 32 bits take three times as long
        places = table.indices.astype(np.intp)
        data = standard.factor.take(places)
        data *= table.data
        is_centred = standard.shift != 0
        if centre is not None:
            is_centred &= centre == 0
        centred = np.flatnonzero(is_centred)
        if not len(centred):
            return sparse.csr_array((data, table.indices, table.indptr), shape=table.shape)
        entries = np.flatnonzero(is_centred.take(places))
        of_entries = places[entries]
        rows = np.arange(table.shape[0], dtype=np.int32).repeat(np.diff(table.indptr))[entries]
        data[entries] = (table.data[entries] - standard.shift[of_entries]) * standard.factor[of_entries]
        lacks = np.ones((table.shape[0], len(centred)), bool)
        lacks[rows, np.searchsorted(centred, of_entries)] = False
        rows, numbers = np.nonzero(lacks)
        missing, ends = centred[numbers], table.indptr[rows + 1]
        data = np.insert(data, ends, -standard.shift[missing] * standard.factor[missing])
        indices = np.insert(table.indices, ends, missing)
        n_missing = np.concatenate([[0], np.count_nonzero(lacks, axis=1).cumsum()])
        starts = table.indptr + n_missing.astype(table.indptr.dtype)
        return sparse.csr_array((data, indices, starts), shape=table.shape)

    def fill(self, rows: np.ndarray, features: Mapping[str, np.ndarray], target: np.ndarray) -> None:
        """Copy the given samples into buffers, for a batch or for several: `rows` has their shape."""
        # converted once, not for each array
        rows = np.asarray(rows, np.intp)
        tables = self._small_tables if self.is_repeated else {}
        for name, buffer in features.items():
            if name in tables:
                _take(tables[name], rows, buffer)
                continue
            _take(self.features[name], rows, buffer)
            if name in self.standards:
                self.standards[name].apply(buffer)
        _take(self.target, rows, target)


def _beside_ones(table: np.ndarray) -> np.ndarray:
    """Return a table with a further column of ones."""
    wide = np.empty((len(table), table.shape[1] + 1), table.dtype)
    wide[:, -1] = 1
    if table.flags.c_contiguous:
        copy_rows(table, wide)
    else:
        wide[:, :-1] = table
    return wide


def copy_rows(narrow: np.ndarray, wide: np.ndarray) -> None:
    """Copy rows to the first columns of a wider table; both are contiguous.

    Each is one item for numpy, which copies such in half the time.
    """
    n_columns = narrow.shape[-1]
    _as_items(wide, n_columns)[...] = _as_items(narrow, n_columns)


def _as_items(table: np.ndarray, n_columns: int) -> np.ndarray:
    """Return the first columns of each row as one item."""
    size = table.itemsize
    row = np.dtype(
        {"names": ["row"], "formats": [f"V{n_columns * size}"], "itemsize": table.shape[-1] * size}
    )
    return table.reshape(-1).view(row)["row"]


def _take(source: Any, rows: np.ndarray, buffer: np.ndarray) -> None:
    if type(source) is np.ndarray or isinstance(source, np.ndarray | RowTable):
        take_into(source, rows, buffer)
    elif sparse.issparse(source):
        source[rows].toarray(out=buffer)
    else:
        buffer[...] = source[rows.reshape(-1)].reshape(buffer.shape)
