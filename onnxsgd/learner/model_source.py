"""Reading of the `model` parameter."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator

from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.graph.dropout import acting_dropouts, mark_dropouts
from onnxsgd.learner.large_tensors import blanks, bytes_of_large, filled, holds, without_large
from onnxsgd.runtime.cache import cached

__all__ = ["LARGEST_CACHED", "GraphSource", "example", "read_source", "refuse_circle"]

#: The most bytes of a graph that the cache keeps whole, under a digest of them. Of a larger one it keeps the
#: structure, as far as that has no more: see :mod:`onnxsgd.learner.large_tensors`.
LARGEST_CACHED = 4_000_000


@dataclass(frozen=True)
class GraphSource:
    """A user's graph, for inference.

    Attributes
    ----------
    model : ir.Model
        The graph; not to be changed, as equal graphs share it.
    digest : str or None
        The cache key of the graph, the numbers of large tensors apart; None: it is too large for the cache.
    nbytes : int
        Its size, if it has a digest.
    switched : dict of tuple of str
        Operators in training mode that were replaced by their inference form, with the first output of each
        of their nodes.
    numbers : dict of ndarray
        Large initializers, which have NaN in `model`; not to be changed.
    """

    model: ir.Model
    digest: str | None
    nbytes: int = 0
    switched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)

    def with_numbers(self, arrays: Iterable[np.ndarray]) -> GraphSource:
        """Return the whole graph with these arrays in the place of :attr:`numbers`, for no cache."""
        numbers = dict(zip(self.numbers, arrays, strict=True))
        return replace(self, model=filled(self.model, numbers), digest=None, numbers={})


#: Types of parameters that hold no others.
_PLAIN = frozenset({bool, int, float, str, type(None)})


def refuse_circle(model: object) -> None:
    """Refuse an estimator that is a parameter of itself, at any depth: it has no end.

    Raises
    ------
    ParameterError
        It names the class of the estimator.
    """
    _walk(model, set(), set())


def _walk(model: object, above: set[int], done: set[int]) -> None:
    """Visit the estimators in parameters, and in lists and tuples; `above`: those on the way to `model`."""
    if not isinstance(model, BaseEstimator | list | tuple) or id(model) in done:
        return
    if id(model) in above:
        raise ParameterError(
            f"model holds an object of {type(model).__name__} that is a parameter of itself: give another "
            "one, such as a copy.copy of it."
        )
    above.add(id(model))
    if isinstance(model, BaseEstimator):
        # parameters only, without fitted attributes; get_params would take ten times as long
        inside = [value for name, value in vars(model).items() if name[-1] != "_"]
    else:
        inside = list(model)
    for value in inside:
        # most are plain: each call of ``partial_fit`` walks through the model
        if type(value) not in _PLAIN:
            _walk(value, above, done)
    above.remove(id(model))
    done.add(id(model))


def read_source(model: object) -> BaseEstimator | GraphSource | None:
    """Return `model` as an estimator, a graph, or None for a linear model.

    Raises
    ------
    ParameterTypeError
        If its type is not accepted.
    ParameterError
        If an estimator is inside itself.
    GraphError
        If it is not valid ONNX.
    """
    if model is None or hasattr(model, "fit"):
        refuse_circle(model)
        return model
    if isinstance(model, str | os.PathLike) or (isinstance(model, bytes) and len(model) > LARGEST_CACHED):
        from onnxsgd.graph.loading.load import read_model

        # weights may lie beside a file
        model = read_model(model)
    if isinstance(model, onnx.ModelProto):
        source = _read_message(model)
    elif isinstance(model, bytes):
        source = _read_small(model, model)
    else:
        raise ParameterTypeError(
            f"model={model!r} is not accepted: it must be None, a scikit-learn estimator, an "
            "onnx.ModelProto, bytes, or the path of an ONNX file."
        )
    if source.switched:
        _warn_of_switched(source)
    return source


def _warn_of_switched(source: GraphSource) -> None:
    """Warn of operators that act otherwise in training, and are used in their inference form."""
    # the parameters batch_norm and dropout decide about the others
    acting = {node.outputs[0].name for node in acting_dropouts(source.model.graph)}
    switched = [
        operator
        for operator, names in source.switched.items()
        if operator != "BatchNormalization" and not acting.issuperset(names)
    ]
    if switched:
        warnings.warn(
            f"The graph was exported for training: its {', '.join(switched)} nodes are used in their "
            "inference form (no dropout, the mean of random numbers), in training too.",
            stacklevel=3,
        )


def example(source: BaseEstimator | GraphSource) -> Any:
    """Return a row of zeros, or of empty strings, for a fitted estimator or a graph; open sizes are 1.

    Raises
    ------
    ParameterError
        If the number of features of an estimator is unknown.
    """
    if not isinstance(source, GraphSource):
        width = getattr(source, "n_features_in_", None)
        if width is None:
            raise ParameterError(f"{type(source).__name__} has no n_features_in_.")
        return np.zeros((1, width))
    rows = {str(value.name): _row(value) for value in source.model.graph.inputs}
    return rows if len(rows) > 1 else next(iter(rows.values()))


def _row(value: ir.Value) -> np.ndarray:
    sizes = [] if value.shape is None else value.shape[1:]
    shape = (1, *(size if isinstance(size, int) else 1 for size in sizes))
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        return np.full(shape, "", dtype=object)
    return np.zeros(shape, value.dtype.numpy())


#: The most bytes of a graph whose digest is kept for the next call: a bound of memory.
_MOST_COMPARED = 1_000_000
#: The last such graph, and its digest, which threads replace together.
_last = [(b"", hashlib.sha256(b"").hexdigest())]


def _read_message(model: onnx.ModelProto) -> GraphSource:
    in_large = bytes_of_large(model)
    # to find the size of a message takes as long as to write it
    if in_large <= LARGEST_CACHED and model.ByteSize() <= LARGEST_CACHED:
        return _read_small(model, model.SerializeToString(deterministic=True))
    return (_read_large(model) if in_large else None) or _read_graph(model, None, 0)


def _read_small(model: onnx.ModelProto | bytes, content: bytes) -> GraphSource:
    last, digest = _last[0]
    # fits of one model follow each other, and to compare takes a hundredth of the time
    if last != content:
        digest = hashlib.sha256(content).hexdigest()
        if len(content) <= _MOST_COMPARED:
            _last[0] = content, digest
    return cached(("source", digest), lambda: _read_graph(model, digest, len(content)), len(content))


def _read_large(model: onnx.ModelProto) -> GraphSource | None:
    """Return a graph whose large tensors are apart; None if it is large without them, or lacks one once read.

    A structure is checked once: it declares the types and the sizes of these tensors.
    """
    bare, numbers = without_large(model)
    if bare.ByteSize() > LARGEST_CACHED:
        return None
    content = bare.SerializeToString(deterministic=True)
    digest = hashlib.sha256(content).hexdigest()

    def read() -> GraphSource | None:
        source = _read_graph(model, digest, len(content))
        if not holds(source.model, numbers):
            return None
        return replace(source, model=filled(source.model, blanks(numbers)))

    source = cached(("source without large tensors", digest), read, len(content))
    return None if source is None else replace(source, numbers=numbers)


def _read_graph(model: onnx.ModelProto | bytes, digest: str | None, nbytes: int) -> GraphSource:
    from onnxsgd.graph.loading.load import load_model
    from onnxsgd.graph.lowering.inference_mode import inference_form
    from onnxsgd.graph.model import to_ir

    graph, switched = inference_form(to_ir(load_model(model)))
    mark_dropouts(graph.graph)
    return GraphSource(graph, digest, nbytes, switched)
