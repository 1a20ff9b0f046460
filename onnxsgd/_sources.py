"""What the user calls a model, read once, and a memory for what follows from it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator

from onnxsgd.engine.cache import CompiledCache
from onnxsgd.exceptions import ParameterTypeError

__all__ = ["REMEMBERED_BYTES", "GraphSource", "read_source", "remember"]

T = TypeVar("T")

#: Graphs of up to so many bytes are remembered, so that a grid search prepares its model once.
REMEMBERED_BYTES = 4_000_000
_remembered = CompiledCache(max_size=16)


@dataclass(frozen=True)
class GraphSource:
    """A graph of the user's, ready to be differentiated.

    Attributes
    ----------
    model : ir.Model
        The graph; not to be changed, as equal graphs share it.
    digest : str or None
        What the graph is known by; None: it is too large to be remembered.
    """

    model: ir.Model
    digest: str | None


def read_source(model: Any) -> BaseEstimator | GraphSource | None:
    """Return `model` as one of three: an estimator, a graph, or None for a linear model.

    Raises
    ------
    ParameterTypeError
        If it is none of the types that are accepted.
    GraphError
        If it is no valid ONNX.
    """
    if model is None or hasattr(model, "fit"):
        return model
    if isinstance(model, str | os.PathLike):
        from onnxsgd.graph.load import load_model

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
    return GraphSource(remember(digest, lambda: _lowered(model)), digest)


def _lowered(model: onnx.ModelProto | bytes) -> ir.Model:
    from onnxsgd.graph.load import load_model
    from onnxsgd.graph.lower import lower_for_training
    from onnxsgd.graph.model import to_ir

    return lower_for_training(to_ir(load_model(model)))


def remember(key: Hashable | None, make: Callable[[], T]) -> T:
    """Return what `make` makes; if there is a key, at the first call with it only."""
    return make() if key is None else _remembered.get(key, make)
