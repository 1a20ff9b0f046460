"""Predictions of a graph whose trained weights change: sessions that take the weights as inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.cache import compiled
from onnxsgd.engine.sessions import make_session, resolve_threads
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import to_proto

__all__ = ["InferenceGraph", "weights_as_inputs"]


def weights_as_inputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of `model` in which the initializers called `names` are inputs."""
    copy = model.clone()
    for name in names:
        value = copy.graph.initializers.pop(name)
        value.const_value = None
        copy.graph.inputs.append(value)
    return copy


class InferenceGraph:
    """One tensor of a graph, as a function of the data and of the trained weights.

    Equal graphs share one session, whatever their weights. Nothing is compiled before the first call, and
    only bytes are pickled.

    Parameters
    ----------
    model : ir.Model
        The graph.
    output : str
        The tensor to compute.
    weights : sequence of str
        The initializers that are given at each call; those which `output` does not need are left out.
    n_threads : int or None
        Threads of the session; None: chosen by the size of the graph.
    """

    def __init__(self, model: ir.Model, output: str, weights: Sequence[str], n_threads: int | None) -> None:
        cut = cut_at(model, output)
        self.weights = tuple(name for name in weights if name in cut.graph.initializers)
        size = sum(value.const_value.size for value in cut.graph.initializers.values() if value.const_value)
        self._n_threads = resolve_threads(n_threads, 256 * size)
        self._bytes = to_proto(weights_as_inputs(cut, self.weights)).SerializeToString()
        self.key = hashlib.sha256(self._bytes).hexdigest()

    def run(self, features: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the tensor for `features`, one array for each data input of the graph."""
        feeds = {name: features[name] for name in features if name in self._inputs()}
        feeds.update((name, weights[name]) for name in self.weights)
        return self._session().run(None, feeds)[0]

    def _inputs(self) -> set[str]:
        return {value.name for value in self._session().get_inputs()}

    def _session(self) -> Any:
        key = (self.key, self._n_threads)
        return compiled.get(key, lambda: make_session(self._bytes, self._n_threads))
