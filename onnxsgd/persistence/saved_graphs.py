"""The graphs of a learner in its saved form: what `model` and the weights hold already is left out."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from onnxsgd._cached_property import cached_property
from onnxsgd.graph.loading.external_data import refuse_external
from onnxsgd.graph.loading.size_limits import check_sizes
from onnxsgd.graph.model import subgraphs, to_ir, to_proto
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.model_source import LARGEST_CACHED
from onnxsgd.persistence.graph_differences import give_known, numbers_in, set_numbers, take_known
from onnxsgd.persistence.known_values import KnownValues
from onnxsgd.persistence.packed_graphs import needs_values, packed, unpacked
from onnxsgd.persistence.shared_tensors import (
    LEAST,
    Held,
    held_tensors,
    restore_shared,
    take_shared,
    with_numbers,
)
from onnxsgd.runtime.cache import cached

__all__ = ["Base", "Graphs"]


@dataclass(frozen=True)
class Base:
    """The parts of the parameter `model` that are saved with it.

    Attributes
    ----------
    graph : GraphProto
        The graph; an empty one if it is none. That of a path is none: its file may change.
    model : object
        The parameter; bytes are read.
    """

    graph: onnx.GraphProto
    model: object

    @classmethod
    def of(cls, model: object) -> Base:
        """Return those of a parameter; none if that was set to bytes that are no graph."""
        if isinstance(model, bytes):
            with suppress(DecodeError):
                model = onnx.load_from_string(model)
        graph = model.graph if isinstance(model, onnx.ModelProto) else onnx.GraphProto()
        return cls(graph, model)

    @cached_property
    def held(self) -> Held:
        """The initializers of the graph by name, or the arrays of an estimator by path."""
        return held_tensors(self.model)

    @cached_property
    def known(self) -> KnownValues:
        """The texts and numbers of an estimator."""
        return KnownValues.of(self.model)


@dataclass(frozen=True)
class Graphs:
    """The two graphs of a learner, without the numbers of trained weights, and without inferred shapes.

    Attributes
    ----------
    whole, score : ModelProto
        The whole graph, and that of raw scores; the same object if they are the same.
    trained : collection of str
        The initializers without numbers.
    """

    whole: onnx.ModelProto
    score: onnx.ModelProto
    trained: Collection[str]

    @classmethod
    def of(cls, learner: Learner, trained: Collection[str]) -> Graphs:
        """Return those of a learner."""
        whole = score = _written(learner.with_weights({}), trained)
        if learner.model is not learner.score_model:
            score = _written(learner.with_weights({}, score_only=True), trained)
        return cls(whole, score, trained)

    @classmethod
    def read(
        cls, saved: Mapping[str, Any], base: Base, trained: Collection[str], half: Graphs | None = None
    ) -> Graphs:
        """Return those that :meth:`saved` has written, with equal `base` and `half`, also in older formats.

        Raises
        ------
        ParameterError
            If the parameter `model` is another one.
        """
        of_model, of_score = saved.get("shared", ((), ()))
        whole = score = _read(saved["model"], base)
        give_known(whole.graph, base.graph if half is None else half.whole.graph, trained)
        # most saved forms refer to none
        restore_shared(whole, of_model, base.held if of_model else {})
        if saved["score_model"] is not None:
            score = _read(saved["score_model"], base)
            give_known(score.graph, whole.graph, trained)
            restore_shared(score, of_score, {**base.held, **held_tensors(whole)} if of_score else {})
        return cls(whole, score, trained)

    @staticmethod
    def key(saved: Mapping[str, Any], base: Base, trained: Collection[str]) -> Hashable | None:
        """Return what :meth:`read` makes the graphs of, in short; None: of another graph too."""
        if base.graph.ByteSize():
            return None
        contents, shared = [saved["model"], saved["score_model"] or b""], saved.get("shared", ())
        digests = [hashlib.sha256(content).digest() for content in contents]
        if any(map(needs_values, contents)):
            digests.append(base.known.digest())
        paths = [entry[1] for part in shared for entry in part]
        arrays = [base.held[path] for path in paths if path in base.held] if paths else ()
        return *digests, KnownValues(arrays).digest(), repr(shared), tuple(trained)

    @property
    def nbytes(self) -> int:
        """The bytes of both."""
        return int(self.whole.ByteSize() + self.score.ByteSize())

    def digest(self) -> str | None:
        """Return a digest of both; None: they are too large for the cache."""
        if self.nbytes > LARGEST_CACHED:
            return None
        digest = hashlib.sha256(self.whole.SerializeToString(deterministic=True))
        if self.score is not self.whole:
            digest.update(self.score.SerializeToString(deterministic=True))
        return digest.hexdigest()

    def saved(self, base: Base, half: Graphs | None = None) -> dict[str, Any]:
        """Return the entries of the saved form; the graphs are used up.

        Parameters
        ----------
        base : Base
            What is saved with the parameter `model`.
        half : Graphs, optional
            The same graphs with tensors of 16 bits, which are saved too.
        """
        content = None
        if self.score is not self.whole:
            take_known(self.score.graph, self.whole.graph, self.trained)
            content = _bytes_of(self.score, base)
        take_known(self.whole.graph, base.graph if half is None else half.whole.graph, self.trained)
        shared = take_shared(self.whole, base.held)
        return {"model": _bytes_of(self.whole, base), "score_model": content, "shared": [shared, []]}

    def models(self, weights: Mapping[str, np.ndarray], *, check: bool) -> tuple[ir.Model, ir.Model]:
        """Return the whole graph and that of raw scores, with these weights; the graphs are used up.

        `check` : whether they are checked as a user's model is.

        Raises
        ------
        ValueError
            If an array has another shape.
        GraphError
            If a graph is too large; with `check`, if it is not valid.
        """
        whole = _model(self.whole, weights, check)
        return whole, whole if self.score is self.whole else _model(self.score, weights, check)


def _written(model: ir.Model, trained: Collection[str]) -> onnx.ModelProto:
    """Return a graph without the numbers of trained weights, and without shapes that inference gives."""
    proto = to_proto(model)
    for tensor in proto.graph.initializer:
        if tensor.name in trained:
            set_numbers(tensor, b"")
        elif not tensor.raw_data and not tensor.string_data and tensor.ByteSize() >= LEAST:
            # as restore_shared writes them
            set_numbers(tensor, numbers_in(tensor))
        if tensor.data_location == TensorProto.DEFAULT:
            tensor.ClearField("data_location")
    if proto.ByteSize() > LARGEST_CACHED:
        return proto
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).digest()
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    _drop_shapes(bare.graph)
    if cached(("inferred shapes", digest), lambda: to_proto(_inferred(bare)) == proto, 0):
        return bare
    _drop_known_shapes(proto.graph)
    return proto


def _drop_shapes(graph: onnx.GraphProto) -> None:
    """Remove the types and shapes that inference may give."""
    _drop_known_shapes(graph)
    own = {tensor.name for tensor in graph.initializer}
    kept = [entry for entry in graph.value_info if entry.name in own]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for body in subgraphs(graph.node):
        _drop_shapes(body)


def _drop_known_shapes(graph: onnx.GraphProto) -> None:
    """Remove the types and shapes that initializers have themselves; marks of them stay."""
    own = {t.name: make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer}
    kept = [entry for entry in graph.value_info if own.get(entry.name) != entry]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _inferred(proto: onnx.ModelProto) -> ir.Model:
    """Return a graph with the types and shapes of computed values, if it has none of them."""
    model = to_ir(proto)
    own = {tensor.name for tensor in proto.graph.initializer}
    if own.issuperset(entry.name for entry in proto.graph.value_info):
        ShapeInferencePass(strict_mode=False)(model)
    return model


def _bytes_of(proto: onnx.ModelProto, base: Base) -> bytes:
    return packed(proto.SerializeToString(), base.known)


def _read(saved: bytes, base: Base) -> onnx.ModelProto:
    return onnx.load_from_string(unpacked(saved, base.known))


def _model(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], check: bool) -> ir.Model:
    """Return a graph of a file, whose sizes are checked before memory is taken for them."""
    with_numbers(proto, weights)
    check_sizes(proto)
    refuse_external(proto, "a saved estimator")
    if check:
        from onnxsgd.graph.loading.load import check_model

        # inference ends the process on some graphs that are not valid
        check_model(proto)
    return _inferred(proto)
