"""Predictions of a graph with changing weights: sessions that take the weights as inputs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd._library_errors import run_error
from onnxsgd.engine.sparse_products import is_sparse, is_sparse_table, multiply
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.nodes import shape_of
from onnxsgd.graph.reading.first_layers import first_layers
from onnxsgd.graph.reading.product_inputs import with_product_inputs
from onnxsgd.runtime.cache import cached
from onnxsgd.runtime.device import HOST, Device, hold
from onnxsgd.runtime.sessions import make_session, resolve_threads

__all__ = ["InferenceGraph", "weights_as_inputs"]

#: Samples of one call. ``benchmarks/constants.py``, 8 features: 1.55 of the time with 1,024, 1.07 with 4,096,
#: 1.60 with 65,536.
_BLOCK = 16_384
#: Elements of a sparse matrix that become dense at once, and elements of the largest intermediate tensor.
_DENSE_BLOCK, _TENSOR_BLOCK = 4_000_000, 4_000_000
#: The rows that the runtime multiplies together by a matrix of one column that is an input: the rest of
#: fewer rows is rounded in another way. The rows up to which a call has copies of its last one for it.
_TOGETHER, _COPIED = 4, 256
#: Assumed size of intermediate tensors of unknown shape, in multiples of a sample: no measurement.
_GROWTH = 8


def weights_as_inputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of `model` in which the initializers called `names` are inputs, if they are not yet."""
    changed = model.clone()
    for name in names:
        if name not in changed.graph.initializers:
            continue
        value = changed.graph.initializers.pop(name)
        value.const_value = None
        changed.graph.inputs.append(value)
    return changed


class InferenceGraph:
    """One tensor of a graph, as a function of the data and of the trained weights.

    Equal graphs share one session, independent of their weights. Nothing is compiled before the first call,
    and only bytes are pickled.

    Parameters
    ----------
    model : ir.Model
        The graph.
    output : str
        The tensor to compute.
    weights : sequence of str
        The initializers, or inputs, given at each call; those that `output` does not need are left out.
    constants : mapping of str to ndarray or None
        Further initializers, which equal graphs need not share, with their values.
    """

    def __init__(
        self,
        model: ir.Model,
        output: str,
        weights: Sequence[str],
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        cut = cut_at(model, output)
        inputs = {str(value.name): value for value in cut.graph.inputs}
        tensors = inputs | dict(cut.graph.initializers)
        self.weights = tuple(name for name in weights if name in tensors)
        self.features = tuple(name for name in inputs if name not in self.weights)
        others = [value for name, value in tensors.items() if name not in self.features]
        self._work = 256 * sum(math.prod(shape_of(value).numpy()) for value in others)
        self._constants = {n: array for n, array in (constants or {}).items() if n in cut.graph.initializers}
        self._largest = max((_row_size(value) for node in cut.graph for value in node.outputs), default=1)
        shapes = [inputs[name].shape for name in self.features]
        self._n_together = _TOGETHER if any(map(_has_one_column, cut.graph)) else 1
        self._takes_any_number = all(shape and not isinstance(shape[0], int) for shape in shapes)
        given = (*self.weights, *self._constants)
        self._bytes = to_proto(weights_as_inputs(cut, given)).SerializeToString()
        self._output = output
        self._first_layers = first_layers(cut, self.weights)
        self.nbytes = len(self._bytes)
        self.key = hashlib.sha256(self._bytes).hexdigest()

    def with_constants(self, constants: Mapping[str, np.ndarray]) -> InferenceGraph:
        """Return the same graph with other values of its constants."""
        duplicate = copy(self)
        duplicate._constants = {name: constants[name] for name in self._constants}
        return duplicate

    def run(
        self,
        features: Mapping[str, Any],
        weights: Mapping[str, np.ndarray],
        n_threads: int | None = None,
        device: Device = HOST,
    ) -> np.ndarray:
        """Return the tensor for `features`.

        Samples are computed in blocks, so that intermediate tensors stay small.

        Parameters
        ----------
        features : mapping of str to array or sparse matrix
            One for each data input of the graph.
        weights : mapping of str to ndarray
            The present weights.
        n_threads : int or None
            Threads of the session; None: chosen by the size of the graph.
        device : Device
            The device of the computation; arguments and results are on the CPU.
        """
        if self._multiplies(features):
            return self._run_on_products(features, weights, n_threads, device)
        session = self._session(n_threads, device)
        feeds = {**self._constants, **{name: weights[name] for name in self.weights}}
        size = self._block_size(features)
        n_samples = max((features[name].shape[0] for name in self.features), default=0)
        starts = range(0, max(n_samples, 1), size)
        rows = ({name: features[name][start : start + size] for name in self.features} for start in starts)
        with hold(device):
            blocks = [self._run_block(session, feeds, block) for block in rows]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _multiplies(self, features: Mapping[str, Any]) -> bool:
        """Tell whether all data are sparse and read by first layers, whose products need no runtime."""
        if self._constants or not all(is_sparse_table(features[name]) for name in self.features):
            return False
        return {layer.feature for layer in self._first_layers} == set(self.features)

    def _run_on_products(
        self,
        features: Mapping[str, Any],
        weights: Mapping[str, np.ndarray],
        n_threads: int | None,
        device: Device,
    ) -> np.ndarray:
        """Return the tensor for sparse data, which stay sparse."""
        rest, products = cached(("product graph", self.key), self._graph_of_products, self.nbytes)
        layers = dict(zip(products, self._first_layers, strict=True))
        n_samples = features[self.features[0]].shape[0]
        blocks = []
        for start in range(0, max(n_samples, 1), _BLOCK):
            rows = slice(start, start + _BLOCK)
            made = {
                name: multiply(
                    features[layer.feature] if n_samples <= _BLOCK else features[layer.feature][rows],
                    weights[layer.weight],
                    layer.is_transposed,
                )
                for name, layer in layers.items()
            }
            blocks.append(rest.run(made, weights, n_threads, device))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _graph_of_products(self) -> tuple[InferenceGraph, tuple[str, ...]]:
        """Return the graph after the products of the first layers, and the names of these products."""
        model, products = with_product_inputs(to_ir(onnx.load_from_string(self._bytes)), self._first_layers)
        return InferenceGraph(model, self._output, self.weights), products

    def _block_size(self, features: Mapping[str, Any]) -> int:
        """Return the samples of one call: fewer where they are large, or become dense."""
        sparse_sizes = [array.shape[1] for array in features.values() if is_sparse(array)]
        sizes = [math.prod(array.shape[1:]) for array in features.values()]
        largest = max(self._largest, _GROWTH * max(sizes, default=1))
        size = max(2, min(_BLOCK, _TENSOR_BLOCK // largest, _DENSE_BLOCK // max([1, *sparse_sizes])))
        return size - size % self._n_together if size > self._n_together else size

    def _run_block(
        self, session: Any, feeds: Mapping[str, np.ndarray], rows: Mapping[str, Any]
    ) -> np.ndarray:
        """Return the tensor for some samples.

        A single sample is computed several times, and so is the last one of some. The runtime rounds products
        of one row differently from those of more rows, and the prediction for a sample should not depend on
        the others in the call.
        """
        dense = {name: a.toarray() if is_sparse(a) else a for name, a in rows.items()}
        lengths = {len(array) for array in dense.values()} if self._takes_any_number else set()
        n_samples = lengths.pop() if len(lengths) == 1 else 0
        n_missing = 1 if n_samples == 1 and self._n_together == 1 else -n_samples % self._n_together
        if n_missing and n_samples > _COPIED:
            whole = n_samples - n_samples % self._n_together
            parts = (
                {name: a[part] for name, a in dense.items()} for part in (slice(whole), slice(whole, None))
            )
            return np.concatenate([self._run_block(session, feeds, part) for part in parts])
        if n_missing:
            dense = {
                name: np.concatenate([array, np.repeat(array[-1:], n_missing, axis=0)])
                for name, array in dense.items()
            }
        try:
            result = session.run(None, {**feeds, **dense})[0]
        except Exception as error:
            raise run_error(error) from error
        return result[:n_samples] if n_missing else result

    def takes_at_once(self, features: Mapping[str, Any]) -> bool:
        """Tell whether one call takes these data as they are, and computes each row as among others."""
        if not self._takes_any_number or self._constants:
            return False
        arrays = [features[name] for name in self.features]
        if not arrays or any(type(array) is not np.ndarray for array in arrays):
            return False
        return 1 < len(arrays[0]) <= self._block_size(features)

    def threads(self, n_threads: int | None) -> int:
        """Return the number of threads of a session."""
        # resolved at each call: a worker process uses fewer threads
        return resolve_threads(n_threads, self._work)

    def _session(self, n_threads: int | None, device: Device) -> Any:
        n_threads = self.threads(n_threads)
        return cached(
            ("predictions", self.key, n_threads, device),
            lambda: make_session(self._bytes, n_threads, device),
            self.nbytes,
            device,
            n_threads=n_threads,
        )


def _has_one_column(node: ir.Node) -> bool:
    """Tell whether a node is a product whose result has one column."""
    shape = node.outputs[0].shape
    return node.op_type in ("Gemm", "MatMul") and shape is not None and len(shape) > 0 and shape[-1] == 1


def _row_size(value: ir.Value) -> int:
    """Return the number of elements of a tensor for each sample, as far as its shape is known."""
    sizes = [] if value.shape is None else [size for size in value.shape[1:] if isinstance(size, int)]
    return math.prod(sizes)
