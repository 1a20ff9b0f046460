"""Graphs without what another graph has too, which the reader knows: differences.

A training graph has nearly all nodes of the graph that it was made of, and its constants as initializers. An
entry that the other graph has is replaced by a reference to it: its position there, or nothing for the one
after the last::

    node              a node without an operator: the position is its name; constants are not counted as next
    input, output, value_info
                      one without a name: the position is its documentation
    metadata_props    one without a key: the position is its value
    initializer       one without a type: its name is the position among initializers and constants; its only
                      size, if any, is the type that its numbers are converted to

Bodies of changed nodes are written against those of the node with the same first output. Each entry of the
other graph is used once at most: a small file cannot stand for a huge graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import NodeProto, TensorProto, numpy_helper

from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.model import REAL_TYPES, subgraphs

__all__ = ["give_known", "numbers_in", "set_numbers", "take_known"]

#: Of each list of a graph the field that all entries have but references, and that of the position.
_LISTS = {
    "node": ("op_type", "name"),
    "input": ("name", "doc_string"),
    "output": ("name", "doc_string"),
    "value_info": ("name", "doc_string"),
    "metadata_props": ("key", "value"),
}


def take_known(graph: onnx.GraphProto, other: onnx.GraphProto, trained: Collection[str] = ()) -> None:
    """Replace the entries that `other` has too by references, in place.

    Parameters
    ----------
    graph, other : GraphProto
        Two graphs; the numbers of tensors of the first are in ``raw_data``.
    trained : collection of str
        The initializers that are saved without their numbers.
    """
    for name, (_, place) in _LISTS.items():
        known = _Known(getattr(other, name))
        places = {_written(entry): at for at, entry in enumerate(known.entries)}
        for entry in getattr(graph, name):
            at = places.get(_written(entry))
            if at in known.unused:
                entry.CopyFrom(type(entry)(**{place: known.reference(at)}))
            elif name == "node":
                for body, its in _bodies(entry, known):
                    take_known(body, its)
    tensors = _Known(_tensors(other))
    places = {tensor.name: at for at, tensor in enumerate(tensors.entries)}
    for tensor in graph.initializer:
        at = places.get(tensor.name)
        if at not in tensors.unused or tensors.entries[at].dims != tensor.dims:
            continue
        its, text = tensors.entries[at], tensor.doc_string or None
        if _converted(its, tensor.data_type, text, trained) == tensor:
            kind = [] if tensor.data_type == its.data_type else [tensor.data_type]
            tensor.CopyFrom(TensorProto(name=tensors.reference(at), dims=kind, doc_string=text))


def give_known(graph: onnx.GraphProto, other: onnx.GraphProto, trained: Collection[str] = ()) -> None:
    """Put back the entries that :func:`take_known` replaced, in place.

    Raises
    ------
    ParameterError
        If `other` lacks one of them.
    """
    for name, (needed, place) in _LISTS.items():
        known = _Known(getattr(other, name))
        for entry in getattr(graph, name):
            if not getattr(entry, needed):
                entry.CopyFrom(known.find(getattr(entry, place)))
            elif name == "node":
                for body, its in _bodies(entry, known):
                    give_known(body, its)
    tensors = _Known(_tensors(other))
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.UNDEFINED:
            its = tensors.find(tensor.name)
            kind = tensor.dims[0] if tensor.dims else its.data_type
            found = _converted(its, kind, tensor.doc_string or None, trained)
            if found is None:
                raise _another(f"numbers in {its.name!r:.60}")
            tensor.CopyFrom(found)


class _Known:
    """The entries of a list of a graph, each of which is used once at most, most of them in their order."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries
        #: Positions, in their order.
        self.unused = dict.fromkeys(range(len(entries)))
        self._advance(0)

    def reference(self, at: int) -> str | None:
        """Return the reference to an entry, None for the next one, and use it."""
        reference = None if at == self._next else str(at)
        self.use(at)
        return reference

    def find(self, reference: str) -> Any:
        """Return the entry of a reference, and use it."""
        at = int(reference) if reference else self._next
        if at not in self.unused:
            raise _another(f"unused entry {at}")
        self.use(at)
        return self.entries[at]

    def use(self, at: int) -> None:
        """Use an entry."""
        del self.unused[at]
        self._advance(at + 1)

    def _advance(self, at: int) -> None:
        while at < len(self.entries) and _constant(self.entries[at]) is not None:
            at += 1
        self._next = at


def _another(lacking: str) -> ParameterError:
    return ParameterError(
        f"model has no {lacking}, which the saved estimator refers to: give the model that it was saved with."
    )


def _written(entry: Message) -> bytes:
    return bytes(entry.SerializeToString(deterministic=True))


def _tensors(graph: onnx.GraphProto) -> list[TensorProto]:
    """Return initializers, then constants under the names of their values."""
    found = list(graph.initializer)
    for node in graph.node:
        value = _constant(node)
        if value is not None:
            named = TensorProto()
            named.CopyFrom(value)
            named.name = node.output[0]
            found.append(named)
    return found


def _constant(entry: Message) -> TensorProto | None:
    """Return the tensor of a node that is a constant."""
    if not isinstance(entry, NodeProto) or entry.op_type != "Constant" or len(entry.attribute) != 1:
        return None
    return entry.attribute[0].t if entry.attribute[0].HasField("t") else None


def _bodies(node: NodeProto, nodes: _Known) -> Iterator[tuple[onnx.GraphProto, onnx.GraphProto]]:
    """Yield the bodies of a node, each with that of the known node with the same first output, if any."""
    mine = list(subgraphs([node]))
    if mine:
        same = [at for at in nodes.unused if nodes.entries[at].output[:1] == node.output[:1]][:1]
        for at in same:
            nodes.use(at)
        its = list(subgraphs(nodes.entries[at] for at in same))
        yield from zip_longest(mine, its[: len(mine)], fillvalue=onnx.GraphProto())


def _converted(
    known: TensorProto, kind: int, text: str | None, trained: Collection[str]
) -> TensorProto | None:
    """Return a tensor with its numbers in a type, without trained ones; None: they are not known."""
    if known.data_location == TensorProto.EXTERNAL:
        return None
    found = TensorProto(
        name=known.name, dims=known.dims, data_type=kind, string_data=known.string_data, doc_string=text
    )
    if known.name in trained:
        return found
    if kind == known.data_type:
        set_numbers(found, numbers_in(known))
    elif {ir.DataType(kind), ir.DataType(known.data_type)} <= REAL_TYPES:
        with np.errstate(all="ignore"):
            numbers = numpy_helper.to_array(known).astype(ir.DataType(kind).numpy())
        set_numbers(found, numbers.tobytes())
    else:
        return None
    return found


def numbers_in(tensor: TensorProto) -> bytes:
    """Return the bytes of the numbers of a tensor."""
    if not tensor.raw_data:
        tensor = numpy_helper.from_array(numpy_helper.to_array(tensor))
    return bytes(tensor.raw_data)


def set_numbers(tensor: TensorProto, raw: bytes) -> None:
    """Give a tensor the bytes of its numbers; none: remove them."""
    for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "raw_data"):
        tensor.ClearField(field)
    if raw:
        tensor.raw_data = raw
