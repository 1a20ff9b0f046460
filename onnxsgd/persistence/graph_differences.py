"""Graphs without what another graph has too, which the reader knows: differences.

A training graph has nearly all nodes of the graph that it was made of, and its constants as initializers. An
entry that the other graph has is replaced by a reference to it: its position there, or nothing for the one
after the last::

    node              a node without an operator: the position is its name; constants are not counted as next
    input, output, value_info
                      one without a name: the position is its documentation
    metadata_props    one without a key: the position is its value
    initializer       one without a type: its name is the position among initializers and constants; its only
                      size, if any, is the type whose bytes its numbers become

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

from onnxsgd._cached_property import cached_property
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.model import REAL_TYPES, subgraphs

__all__ = ["give_known", "numbers_in", "set_numbers", "take_known"]

#: Of each list of a graph the field that all entries have but references, empty or not, and that of the
#: position.
_LISTS = {
    "node": ("op_type", "name"),
    "input": ("name", "doc_string"),
    "output": ("name", "doc_string"),
    "value_info": ("name", "doc_string"),
    "metadata_props": ("key", "value"),
}

#: Texts of a node that are the same if they are missing.
_EMPTY = ("domain", "doc_string", "overload")


def take_known(graph: onnx.GraphProto, other: onnx.GraphProto, trained: Collection[str] = ()) -> None:
    """Replace the entries that `other` has too by references, in place.

    Parameters
    ----------
    graph, other : GraphProto
        Two graphs.
    trained : collection of str
        The initializers that are saved without their numbers.
    """
    for name, (_, place) in _LISTS.items():
        known = _Known(getattr(other, name))
        places = {_written(_plain(entry)): at for at, entry in enumerate(known.entries)}
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
        text = tensor.doc_string or None
        for kind in ([], [tensor.data_type]):
            if _tensor_of(tensors.entries[at], kind, text, trained) == tensor:
                tensor.CopyFrom(TensorProto(name=tensors.reference(at), dims=kind, doc_string=text))
                break


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
            if not entry.HasField(needed):
                entry.CopyFrom(_plain(known.find(getattr(entry, place))))
            elif name == "node":
                for body, its in _bodies(entry, known):
                    give_known(body, its)
    tensors = _Known(_tensors(other))
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.UNDEFINED:
            its = tensors.find(tensor.name)
            found = _tensor_of(its, tensor.dims, tensor.doc_string or None, trained)
            if found is None:
                raise _another(f"numbers in {its.name!r:.60}")
            tensor.CopyFrom(found)


class _Known:
    """The entries of a list of a graph, each of which is used once at most, most of them in their order."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries
        self.unused = set(range(len(entries)))
        #: For each position the first one from there on that is no constant.
        self._following = list(range(len(entries) + 1))
        for at in reversed(range(len(entries))):
            if _constant(entries[at]) is not None:
                self._following[at] = self._following[at + 1]
        self._next = self._following[0]

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
        self.unused.remove(at)
        self._next = self._following[at + 1]

    def find_like(self, node: NodeProto) -> list[NodeProto]:
        """Return the first unused node with the same first output, and use it; none if there is none."""
        places = self._by_output.get(tuple(node.output[:1]), [])
        while places:
            at = places.pop()
            if at in self.unused:
                self.use(at)
                return [self.entries[at]]
        return []

    @cached_property
    def _by_output(self) -> dict[tuple[str, ...], list[int]]:
        """The positions of nodes by their first output, the last one first."""
        places: dict[tuple[str, ...], list[int]] = {}
        for at in reversed(range(len(self.entries))):
            places.setdefault(tuple(self.entries[at].output[:1]), []).append(at)
        return places


def _another(lacking: str) -> ParameterError:
    return ParameterError(
        f"model has no {lacking}, which the saved estimator refers to: give the model that it was saved with."
    )


def _plain(entry: Message) -> Message:
    """Return an entry without the empty texts of a node that onnx_ir leaves out, as parsers write them."""
    empty = [name for name in _EMPTY if isinstance(entry, NodeProto) and not getattr(entry, name)]
    if not any(entry.HasField(name) for name in empty):
        return entry
    plain = NodeProto()
    plain.CopyFrom(entry)
    for name in empty:
        plain.ClearField(name)
    return plain


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
        its = list(subgraphs(nodes.find_like(node)))
        yield from zip_longest(mine, its[: len(mine)], fillvalue=onnx.GraphProto())


def _tensor_of(
    known: TensorProto, kind: Sequence[int], text: str | None, trained: Collection[str]
) -> TensorProto | None:
    """Return a tensor as it is, or with the bytes of its numbers in a type; without trained numbers.

    None: its numbers are not known.
    """
    if known.data_location == TensorProto.EXTERNAL:
        return None
    element = kind[0] if kind else known.data_type
    found = TensorProto(name=known.name, dims=known.dims, data_type=element, doc_string=text)
    if known.name in trained:
        return found
    if not kind:
        found.CopyFrom(known)
        found.ClearField("data_location")
        found.ClearField("doc_string")
        found.MergeFrom(TensorProto(doc_string=text))
    elif element == known.data_type:
        set_numbers(found, numbers_in(known))
    elif {ir.DataType(element), ir.DataType(known.data_type)} <= REAL_TYPES:
        with np.errstate(all="ignore"):
            numbers = numpy_helper.to_array(known).astype(ir.DataType(element).numpy())
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
