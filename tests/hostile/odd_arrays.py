"""Odd forms of an array: types, containers, orders, sparse forms, numbers, shapes.

Each table holds functions of an array and a context, a dictionary with a generator and a folder.
"""

import decimal
import math
from collections import OrderedDict, deque

import numpy as np
import pandas as pd
import polars as pl
from scipy import sparse


def _typed(dtype):
    return lambda a, c: a.astype(dtype) if a.dtype.kind != "U" else a


def _filled(number, dtype=np.float64):
    return lambda a, c: np.full(a.shape, number, dtype)


def _holding(number, dtype=np.float64):
    def make(array, context):
        array = np.array(array, dtype) if array.dtype.kind != "U" else np.array(array, object)
        array.flat[int(context["rng"].integers(array.size))] = number
        return array

    return make


def _mapped(array, context):
    path = context["folder"] / "mapped.npy"
    np.save(path, array, allow_pickle=False)
    return np.load(path, mmap_mode="r")


def _read_only(array, context):
    array.flags.writeable = False
    return array


def _structured(array, context):
    return np.zeros(len(array), "f4, i4")


def _table(array):
    return array.reshape(len(array), -1)


def _numbers(array):
    return array if array.dtype.kind != "U" else np.unique(array, return_inverse=True)[1]


def _sparse(kind):
    return lambda a, c: kind(_table(_numbers(a)).astype(np.float64))


def _damaged_sparse(change):
    def make(array, context):
        table = sparse.csr_matrix(_table(_numbers(array)).astype(np.float64))
        change(table)
        return table

    return make


def _far_index(table):
    table.indices[-1] = 10_000_000


def _negative_index(table):
    table.indices[0] = -5


def _unsorted(table):
    table.indices[: table.indptr[1]] = table.indices[: table.indptr[1]][::-1].copy()
    table.has_sorted_indices = False


def _twice(table):
    table.indices[: table.indptr[1]] = 0
    table.has_canonical_format = False


def _long_pointers(table):
    table.indptr[-1] = 10_000_000


def _wide_indices(table):
    table.indices, table.indptr = table.indices.astype(np.int64), table.indptr.astype(np.int64)


def _nan_in_sparse(table):
    table.data[0] = math.nan


class Arrayed:
    """An object that numpy can convert."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return np.array(self._array, dtype)


class Raising:
    """An object whose conversion fails."""

    shape = (40, 4)

    def __len__(self):
        return 40

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array today")


class Lengthy:
    """A sequence that claims to have very many entries."""

    def __len__(self):
        return 2**62

    def __getitem__(self, index):
        raise IndexError(index)


def _tensor(array, context):
    """A tensor of torch; where torch is not installed another convertible object, so that the cases keep their numbers."""
    try:
        import torch
    except ImportError:
        return Arrayed(_numbers(array))
    return torch.from_numpy(np.array(_numbers(array)))


def _endless():
    while True:
        yield 1.0


def _deep(array, context):
    nested = 1.0
    for _ in range(300):
        nested = [nested]
    return nested


#: Finite numbers in arrays of the same shape, which training accepts or refuses, and whose results are finite.
_PLAIN = {
    "itself": lambda a, c: a,
    "float16": _typed(np.float16),
    "float32": _typed(np.float32),
    "float64": _typed(np.float64),
    "longdouble": _typed(np.longdouble),
    "int8": _typed(np.int8),
    "int64": _typed(np.int64),
    "uint8": lambda a, c: np.abs(_numbers(a)).astype(np.uint8),
    "uint64": lambda a, c: np.abs(_numbers(a)).astype(np.uint64),
    "booleans": lambda a, c: _numbers(a) > 0,
    "big-endian": _typed(">f8"),
    "big-endian integers": _typed(">i4"),
    "Fortran order": lambda a, c: np.asfortranarray(a),
    "every second": lambda a, c: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed strides": lambda a, c: a[::-1],
    "read-only": _read_only,
    "memory-mapped": _mapped,
    "one number repeated": lambda a, c: np.broadcast_to(np.float64(1.0), a.shape),
    "lists": lambda a, c: a.tolist(),
    "tuples": lambda a, c: tuple(map(tuple, a.tolist())) if a.ndim == 2 else tuple(a.tolist()),
    "arrays in a list": lambda a, c: list(a),
    "objects": lambda a, c: a.astype(object),
    "convertible": lambda a, c: Arrayed(a),
    "a tensor of torch": _tensor,
    "zeros": _filled(0.0),
    "constant": _filled(3.0),
    "integers of 0 and 1": lambda a, c: (_numbers(a) > 0).astype(int),
    "denormals": _filled(1e-310),
    "denormals of float32": _filled(1e-40, np.float32),
    "one denormal": _holding(5e-324),
    "minus zero": _filled(-0.0),
    "1e30": _filled(1e30),
    "one 1e30": _holding(1e30),
    "one 3e38": _holding(3e38, np.float32),
    "2**53 + 1": _filled(2**53 + 1, np.int64),
    "2**63 - 1": _filled(2**63 - 1, np.int64),
    "2**64 - 1": _filled(2**64 - 1, np.uint64),
    "one row": lambda a, c: a[:1],
    "two rows": lambda a, c: a[:2],
    "same rows": lambda a, c: np.repeat(a[:1], len(a), axis=0),
}  # fmt: skip

#: Numbers that float32 does not hold, none at all, and other things.
_STRANGE = {
    "1e300": _filled(1e300),
    "one 1e300": _holding(1e300),
    "one 1e39": _holding(1e39),
    "NaN": _filled(math.nan),
    "one NaN": _holding(math.nan),
    "one infinity": _holding(math.inf),
    "one minus infinity": _holding(-math.inf),
    "complex": _typed(complex),
    "strings": lambda a, c: a.astype(str),
    "numbers as strings": lambda a, c: np.full(a.shape, "1.5"),
    "bytes": lambda a, c: np.full(a.shape, b"a"),
    "objects with None": _holding(None, object),
    "objects with a string": _holding("x", object),
    "objects with pd.NA": _holding(pd.NA, object),
    "objects with an object": _holding(object(), object),
    "objects with a list": lambda a, c: np.array([*a.ravel().tolist()[:-1], [1]], object),
    "objects with 10**400": _holding(10**400, object),
    "decimals": _holding(decimal.Decimal("1.5"), object),
    "dates": lambda a, c: np.zeros(a.shape, "datetime64[D]"),
    "durations": lambda a, c: np.zeros(a.shape, "timedelta64[s]"),
    "structured": _structured,
    "void": lambda a, c: np.zeros(a.shape, "V4"),
    "masked": lambda a, c: np.ma.masked_array(a, np.arange(a.size).reshape(a.shape) % 7 == 0),
    "masked, nothing": lambda a, c: np.ma.masked_array(a, np.zeros(a.shape, bool)),
    "a matrix": lambda a, c: np.asmatrix(_table(a)),
    "None": lambda a, c: None,
    "a number": lambda a, c: 1.0,
    "True": lambda a, c: True,
    "a string": lambda a, c: "some text",
    "bytes alone": lambda a, c: b"some",
    "an object": lambda a, c: object(),
    "a function": lambda a, c: len,
    "a class": lambda a, c: np.ndarray,
    "a set": lambda a, c: {1.0, 2.0},
    "a dict": lambda a, c: {"a": a},
    "an empty dict": lambda a, c: {},
    "a dict of X": lambda a, c: {"x": a},
    "a dict of None": lambda a, c: OrderedDict(x=None),
    "a generator": lambda a, c: (row for row in a.tolist()),
    "an endless generator": lambda a, c: _endless(),
    "a deque": lambda a, c: deque(a.tolist()),
    "a range": lambda a, c: range(len(a)),
    "raising": lambda a, c: Raising(),
    "very long": lambda a, c: Lengthy(),
    "nested deep": _deep,
    "ragged": lambda a, c: [[1.0] * (1 + i % 3) for i in range(len(a))],
    "empty": lambda a, c: a[:0],
    "empty list": lambda a, c: [],
    "no columns": lambda a, c: np.empty((len(a), 0)),
    "0 axes": lambda a, c: np.array(1.0),
    "more axes": lambda a, c: a[..., None],
    "1 axis": lambda a, c: a.ravel(),
    "more columns": lambda a, c: np.c_[_table(a), _table(a)],
    "fewer columns": lambda a, c: _table(a)[:, :-1],
    "30 axes": lambda a, c: a.reshape(a.shape + (1,) * (30 - a.ndim)),
    "fewer rows": lambda a, c: a[:-1],
    "more rows": lambda a, c: np.concatenate([a, a]),
    "a row repeated 2^40 times": lambda a, c: np.broadcast_to(a[:1], (1 << 40, *a.shape[1:])),
    "sparse csr": _sparse(sparse.csr_matrix),
    "sparse csc": _sparse(sparse.csc_matrix),
    "sparse coo": _sparse(sparse.coo_matrix),
    "sparse lil": _sparse(sparse.lil_matrix),
    "sparse dok": _sparse(sparse.dok_matrix),
    "sparse dia": _sparse(sparse.dia_matrix),
    "sparse bsr": _sparse(sparse.bsr_matrix),
    "sparse csr array": _sparse(sparse.csr_array),
    "sparse coo array": _sparse(sparse.coo_array),
    "sparse of one axis": lambda a, c: sparse.coo_array(_numbers(a).ravel().astype(float)),
    "sparse, nothing stored": lambda a, c: sparse.csr_matrix(_table(a).shape),
    "sparse of 2^40 columns": lambda a, c: sparse.csr_matrix(([1.0], ([0], [1 << 39])), shape=(len(a), 1 << 40)),
    "sparse of integers": lambda a, c: sparse.csr_matrix((_table(_numbers(a)) > 0).astype(np.int8)),
    "sparse of booleans": lambda a, c: sparse.csr_matrix(_table(_numbers(a)) > 0),
    "sparse of complex numbers": lambda a, c: sparse.csr_matrix(_table(_numbers(a)).astype(complex)),
    "sparse, index too large": _damaged_sparse(_far_index),
    "sparse, index below 0": _damaged_sparse(_negative_index),
    "sparse, not sorted": _damaged_sparse(_unsorted),
    "sparse, entries twice": _damaged_sparse(_twice),
    "sparse, pointers too long": _damaged_sparse(_long_pointers),
    "sparse, indices of 64 bits": _damaged_sparse(_wide_indices),
    "sparse with NaN": _damaged_sparse(_nan_in_sparse),
    "a frame": lambda a, c: pd.DataFrame(_table(a)),
    "a frame of names": lambda a, c: pd.DataFrame(_table(a)).add_prefix("column "),
    "a frame, same names": lambda a, c: pd.DataFrame(_table(a), columns=["a"] * _table(a).shape[1]),
    "a frame, mixed names": lambda a, c: pd.DataFrame(_table(a), columns=[*range(_table(a).shape[1] - 1), "a"]),
    "a frame of two levels": lambda a, c: pd.DataFrame(_table(a), columns=pd.MultiIndex.from_product([["a"], range(_table(a).shape[1])])),
    "a frame of categories": lambda a, c: pd.DataFrame(_table(a)).astype("category"),
    "a frame of objects": lambda a, c: pd.DataFrame(_table(a)).astype(object),
    "a frame of strings": lambda a, c: pd.DataFrame(_table(a)).astype(str),
    "a frame, one column of strings": lambda a, c: pd.DataFrame(_table(a)).assign(text="a"),
    "a frame of nullable numbers": lambda a, c: pd.DataFrame(_table(_numbers(a))).astype("Float64"),
    "a frame with pd.NA": lambda a, c: pd.DataFrame(_table(_numbers(a))).astype("Float64").mask(lambda f: f > 1),
    "a frame of dates": lambda a, c: pd.DataFrame({"a": pd.date_range("2020", periods=len(a))}),
    "a frame, another index": lambda a, c: pd.DataFrame(_table(a), index=range(5, 5 + len(a))),
    "a frame, no rows": lambda a, c: pd.DataFrame(_table(a)).iloc[:0],
    "a series": lambda a, c: pd.Series(a.ravel()),
    "a series of categories": lambda a, c: pd.Series(a.ravel()).astype("category"),
    "a series with pd.NA": lambda a, c: pd.Series(_numbers(a).ravel()).astype("Float64").mask(lambda f: f > 1),
    "an index": lambda a, c: pd.Index(a.ravel()),
    "a frame of polars": lambda a, c: pl.DataFrame(_table(a)),
    "a series of polars": lambda a, c: pl.Series(a.ravel().tolist()),
    "a frame of polars with null": lambda a, c: pl.DataFrame({"a": [None, *range(len(a) - 1)]}),
}  # fmt: skip

#: The samples.
ARRAYS = _PLAIN | _STRANGE
#: The targets: the same, and labels.
TARGETS = ARRAYS | {
    "one class": lambda a, c: np.zeros(len(a), int),
    "a class for each": lambda a, c: np.arange(len(a)),
    "labels": lambda a, c: np.array(["a", "b"])[np.arange(len(a)) % 2],
    "labels of bytes": lambda a, c: np.array([b"a", b"b"])[np.arange(len(a)) % 2],
    "labels of both types": lambda a, c: np.array([0, "a"] * (len(a) // 2), object),
    "labels with None": lambda a, c: np.array([None, "a"] * (len(a) // 2), object),
    "labels with NaN": lambda a, c: np.array([math.nan, "a"] * (len(a) // 2), object),
    "labels of tuples": lambda a, c: [(1, 2)] * len(a),
    "labels of sets": lambda a, c: [{1}, {2}] * (len(a) // 2),
    "labels of several": lambda a, c: (np.arange(2 * len(a)).reshape(-1, 2) % 3 > 0).astype(int),
    "rows of probabilities": lambda a, c: np.full((len(a), 2), 0.5),
    "one column": lambda a, c: a.reshape(len(a), -1)[:, :1],
    "below zero": lambda a, c: np.full(a.shape, -1.0),
    "long labels": lambda a, c: np.array(["a" * 100_000, "b"])[np.arange(len(a)) % 2],
    "labels with a zero byte": lambda a, c: np.array(["a\0b", "b"])[np.arange(len(a)) % 2],
    "labels of surrogates": lambda a, c: np.array(["\ud800", "b"])[np.arange(len(a)) % 2],
    "100,000 columns": lambda a, c: np.zeros((len(a), 100_000)),
}  # fmt: skip
#: The weights of samples.
WEIGHTS = ARRAYS | {
    "None": lambda a, c: None,
    "ones": lambda a, c: np.ones(len(a)),
    "one of them": lambda a, c: (np.arange(len(a)) == 3).astype(float),
    "below zero": lambda a, c: np.full(len(a), -1.0),
    "one below zero": lambda a, c: np.where(np.arange(len(a)) == 3, -1e-9, 1.0),
    "1e30 and 1e-30": lambda a, c: np.where(np.arange(len(a)) % 2, 1e30, 1e-30),
    "one 1e-320": lambda a, c: np.where(np.arange(len(a)) == 3, 1e-320, 0.0),
    "all 1e308": lambda a, c: np.full(len(a), 1e308),
}  # fmt: skip
#: The names of forms that hold finite numbers alone.
NUMBERS = frozenset(_PLAIN) | {"None", "ones", "one of them"}
#: Those of them that are too large for sums of squares.
LARGE = frozenset({"1e30", "one 1e30", "one 3e38", "2**53 + 1", "2**63 - 1", "2**64 - 1"})
