"""Arrays and frames of Dask as the pieces of a fit, and as predictions that are computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed
from distributed import Client, Future

from onnxsgd.dask.dask_executor import DaskExecutor
from onnxsgd.estimators.base import BaseOnnxSGD
from onnxsgd.estimators.sharded_fit import ShardedData
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.sharding.pieces import piece_of

#: An array, a data frame or a column of Dask, which have no class in common.
Collection = Any
#: One of its partitions: an array, a sparse matrix, a data frame or a column.
Block = Any
#: A function of an estimator and a partition.
BlockFunction = Callable[[BaseOnnxSGD, Block], np.ndarray]

__all__ = ["Block", "Collection", "check_collection", "lazily", "sharded_data"]


def check_collection(value: object, name: str) -> Collection:
    """Return an array, a frame or a column of Dask; refuse others.

    Raises
    ------
    ParameterTypeError
        If it is none.
    """
    # a delayed object has every attribute
    is_other = not is_dask_collection(value) or isinstance(value, Delayed)
    if not is_other and hasattr(value, "to_delayed") and hasattr(value, "ndim"):
        return value
    raise ParameterTypeError(
        f"{name} is of type {type(value).__name__}: it must be an array or a data frame of Dask. For data in "
        "memory take the estimator without Dask, or dask.array.from_array(data, chunks=(n_rows, -1))."
    )


def sharded_data(
    client: Client,
    X: object,
    y: object,
    sample_weight: object = None,
    *,
    names: tuple[str, str] = ("X", "y"),
) -> ShardedData:
    """Return collections as pieces, each of which is one partition of all.

    Raises
    ------
    ParameterError
        If their partitions do not match.
    ParameterTypeError
        If one is no collection of Dask.
    """
    given = {name: check_collection(part, name) for name, part in zip(names, (X, y), strict=True)}
    if sample_weight is not None:
        given["sample_weight"] = check_collection(sample_weight, "sample_weight")
    given = _aligned({name: _whole_rows(part) for name, part in given.items()})
    blocks = {name: _blocks(part) for name, part in given.items()}
    counts = {name: len(of_part) for name, of_part in blocks.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise ParameterError(
            f"The numbers of partitions differ, {shown}: repartition the collections alike, or give arrays "
            "of known chunks, which are."
        )
    flat = [block for of_part in blocks.values() for block in of_part]
    futures = client.compute(flat)
    n_parts = counts[names[0]]
    columns = [futures[i : i + n_parts] for i in range(0, len(futures), n_parts)]
    columns += [[None] * n_parts] * (3 - len(columns))
    executor = DaskExecutor(client)
    pieces: list[Future] = [
        executor.submit(piece_of, number, *parts) for number, parts in enumerate(zip(*columns, strict=True))
    ]
    return ShardedData(executor, tuple(pieces))


def _whole_rows(part: Collection) -> Collection:
    """Return an array whose chunks have whole rows; frames have."""
    if isinstance(part, da.Array):
        if part.ndim == 0:
            raise ParameterError("A number was given in the place of an array with a row for each sample.")
        if any(len(chunks) > 1 for chunks in part.chunks[1:]):
            return part.rechunk(dict.fromkeys(range(1, part.ndim), -1))
    return part


def _aligned(given: dict[str, Collection]) -> dict[str, Collection]:
    """Return the collections, arrays of known chunks with those of `X`."""
    label, first = next(iter(given.items()))
    if not isinstance(first, da.Array) or np.isnan(first.shape[0]):
        return given
    aligned = dict(given)
    for name, part in given.items():
        if part is first or not isinstance(part, da.Array) or np.isnan(part.shape[0]):
            continue
        if part.shape[0] != first.shape[0]:
            raise ParameterError(f"{label} has {first.shape[0]} rows and {name} has {part.shape[0]}.")
        if part.chunks[0] != first.chunks[0]:
            aligned[name] = part.rechunk({0: first.chunks[0]})
    return aligned


def _blocks(part: Collection) -> Sequence[Any]:
    """Return the partitions, each as a delayed object."""
    return list(np.ravel(np.array(part.to_delayed(), dtype=object)))


def lazily(estimator: BaseOnnxSGD, function: BlockFunction, X: object) -> da.Array:
    """Return the results of a function of a fitted estimator and data, as an array computed on demand.

    Parameters
    ----------
    estimator : OnnxSGDRegressor or OnnxSGDClassifier
        The estimator.
    function : callable
        The function, which can be pickled.
    X : dask array or data frame
        The data.
    """
    given = _whole_rows(check_collection(X, "X"))
    is_array = isinstance(given, da.Array)
    types = [given.dtype] if is_array else list(np.ravel(given.dtypes))
    like = _result_of_zeros(estimator, function, types)
    embedded, tail = dask.delayed(estimator, pure=False), like.shape[1:]
    rows = given.chunks[0] if is_array else [np.nan] * given.npartitions
    parts = [
        da.from_delayed(
            dask.delayed(_predicted)(embedded, function, block, like[:0]), (n_rows, *tail), meta=like[:0]
        )
        for block, n_rows in zip(_blocks(given), rows, strict=True)
    ]
    return da.concatenate(parts, axis=0, allow_unknown_chunksizes=True)


def _result_of_zeros(
    estimator: BaseOnnxSGD, function: BlockFunction, types: Sequence[np.dtype]
) -> np.ndarray:
    """Return the result of a function for one sample whose raw predictions are zeros.

    It has the type and the shape of others. A sample of zeros itself may be refused, as by an encoder of
    categories.
    """
    probe = copy(estimator._trained())
    shape = (1, *(probe._score_shape or ())) if probe._is_dense else (1, probe._n_outputs)
    dtype = np.float32 if all(part == np.float32 for part in types) else np.float64
    probe.__dict__["_raw_predictions"] = lambda X: np.zeros(shape, dtype)
    return np.asarray(function(probe, None))


def _predicted(estimator: BaseOnnxSGD, function: BlockFunction, block: Block, like: np.ndarray) -> np.ndarray:
    """Return the results of one partition, which may be empty."""
    return np.asarray(function(estimator, block)) if block.shape[0] else like
