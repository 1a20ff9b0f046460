"""Reading of the `model` parameter, and a cache for derived objects."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator

from onnxsgd.exceptions import ParameterTypeError
from onnxsgd.runtime.session_cache import CompiledCache

__all__ = ["REMEMBERED_BYTES", "GraphSource", "read_source", "remember"]

T = TypeVar("T")

#: Graphs of up to this many bytes are cached, so that a grid search prepares its model once.
REMEMBERED_BYTES = 4_000_000
_remembered = CompiledCache(max_size=16)


@dataclass(frozen=True)
class GraphSource:
    """A user's graph, ready for differentiation.

    Attributes
    ----------
    model : ir.Model
        The graph; not to be changed, as equal graphs share it.
    digest : str or None
        The cache key of the graph; None: it is too large for the cache.
    switched : tuple of str
        Operators in training mode that were replaced by their inference form.
    """

    model: ir.Model
    digest: str | None
    switched: tuple[str, ...] = ()


def read_source(model: object) -> BaseEstimator | GraphSource | None:
    """Return `model` as an estimator, a graph, or None for a linear model.

    Raises
    ------
    ParameterTypeError
        If its type is not accepted.
    GraphError
        If it is not valid ONNX.
    """
    if model is None or hasattr(model, "fit"):
        return model
    if isinstance(model, str | os.PathLike):
        from onnxsgd.graph.loading.load import load_model

        # weights may lie beside the file
        model = load_model(model)
    if isinstance(model, onnx.ModelProto):
        is_small = model.ByteSize() <= REMEMBERED_BYTES
        content = model.SerializeToString(deterministic=True) if is_small else None
    elif isinstance(model, bytes):
        content = model if len(model) <= REMEMBERED_BYTES else None
    else:
        raise ParameterTypeError(
            f"model={model!r} is not accepted: it must be None, a scikit-learn estimator, an "
            "onnx.ModelProto, bytes, or the path of an ONNX file."
        )
    digest = None if content is None else hashlib.sha256(content).hexdigest()
    source = remember(digest, lambda: _read_graph(model, digest))
    if source.switched:
        warnings.warn(
            f"The graph was exported for training: its {', '.join(source.switched)} nodes are used in their "
            "inference form (running statistics, no dropout, the mean of random numbers), in training too.",
            stacklevel=2,
        )
    return source


def _read_graph(model: onnx.ModelProto | bytes, digest: str | None) -> GraphSource:
    from onnxsgd.graph.loading.load import load_model
    from onnxsgd.graph.lowering.inference_mode import inference_form
    from onnxsgd.graph.lowering.lower import lower_for_training
    from onnxsgd.graph.model import to_ir

    graph, switched = inference_form(to_ir(load_model(model)))
    return GraphSource(lower_for_training(graph), digest, switched)


def remember(key: Hashable | None, make: Callable[[], T]) -> T:
    """Return the result of `make`, cached under `key` unless that is None."""
    return make() if key is None else _remembered.get(key, make)
