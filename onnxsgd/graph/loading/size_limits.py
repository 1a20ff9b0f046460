"""Size limits of untrusted models, checked before any allocation or inference.

A file of some bytes can declare tensors of 2^62 elements, constants that expand to such tensors, or deeply
nested subgraphs. The libraries called later allocate such tensors, loop over them, or recurse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import TensorProto

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.loading.external_data import all_tensors
from onnxsgd.graph.model import subgraphs
from onnxsgd.graph.opsets.model_functions import short_domain

__all__ = ["LARGEST_TENSOR", "all_nodes", "check_shapes", "check_size_of", "check_sizes"]

#: The most elements of a tensor, stored, declared or inferred: 8 GiB of float32. A training step keeps
#: several of that size, and kernels count elements in 32 bits.
LARGEST_TENSOR = 2**31

#: The most nodes, those of subgraphs and functions included. Passes take about a millisecond for each.
_MOST_NODES = 200_000

#: The most entries of the lists of a model, of all its graphs together.
_MOST_ENTRIES = {
    "input": 10_000,
    "output": 10_000,
    "initializer": 200_000,
    "sparse_initializer": 200_000,
    "value_info": 200_000,
    "quantization_annotation": 200_000,
    "metadata_props": 10_000,
    "opset_import": 10_000,
    "functions": 10_000,
    "training_info": 10_000,
}

#: The most operands, results and attributes of one node, each.
_MOST_OPERANDS = 10_000

#: Domain, name and overload of an operator or a function.
_Call = tuple[str, str, str]

#: The depth of nested subgraphs. A gradient computes branches of an If again: each level doubles its size.
_DEEPEST = 8

#: The most axes of a tensor, as in numpy.
_MOST_AXES = 64

#: Bits of an element in `raw_data`, and the field that holds elements one by one.
_STORAGE: dict[int, tuple[int, str]] = {
    TensorProto.FLOAT: (32, "float_data"),
    TensorProto.UINT8: (8, "int32_data"),
    TensorProto.INT8: (8, "int32_data"),
    TensorProto.UINT16: (16, "int32_data"),
    TensorProto.INT16: (16, "int32_data"),
    TensorProto.INT32: (32, "int32_data"),
    TensorProto.INT64: (64, "int64_data"),
    TensorProto.BOOL: (8, "int32_data"),
    TensorProto.FLOAT16: (16, "int32_data"),
    TensorProto.BFLOAT16: (16, "int32_data"),
    TensorProto.DOUBLE: (64, "double_data"),
    TensorProto.UINT32: (32, "uint64_data"),
    TensorProto.UINT64: (64, "uint64_data"),
    TensorProto.STRING: (0, "string_data"),
}


def check_sizes(model: onnx.ModelProto) -> None:
    """Refuse a model whose declared sizes are invalid, too large, or differ from those of its data.

    Nothing is parsed, copied or allocated.

    Raises
    ------
    GraphError
        Subgraphs are too deep, or nodes too many, those that calls of functions stand for included; a
        function calls itself; a tensor or a declared shape has a negative size, or more than
        :data:`LARGEST_TENSOR` elements; a tensor holds more or less data than its shape needs.
    """
    n_nodes = 0
    n_entries = _entries(model)
    for graph, depth in _graphs(model):
        n_nodes += len(graph.node)
        if depth > _DEEPEST:
            raise GraphError(f"Subgraphs are nested {depth} deep: up to {_DEEPEST} levels are accepted.")
        if n_nodes > _MOST_NODES:
            raise GraphError(f"The model has more than {_MOST_NODES} nodes: too many to train.")
        # the names of operands of a function are none of the graph's inputs
        found = _entries(graph)
        n_entries = n_entries + found if isinstance(graph, onnx.GraphProto) else n_entries
        _check_entries(n_entries | found)
        _check_operands(graph.node)
    _check_text(model)
    _check_functions(model)
    for tensor in all_tensors(model):
        _check_tensor(tensor)
    for graph, _ in _graphs(model):
        check_shapes(_declared(graph))


def _entries(part: Message) -> Counter[str]:
    """Return the lengths of the lists of a model, a graph or a function."""
    return Counter(
        {name: len(getattr(part, name)) for name in _MOST_ENTRIES if name in part.DESCRIPTOR.fields_by_name}
    )


def _check_entries(counts: Counter[str]) -> None:
    for name, count in counts.items():
        if count > _MOST_ENTRIES[name]:
            raise GraphError(
                f"The model has {count:,} entries of {name}: up to {_MOST_ENTRIES[name]:,} are accepted."
            )


def _check_operands(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        most = max(len(node.input), len(node.output), len(node.attribute))
        if most > _MOST_OPERANDS:
            raise GraphError(
                f"A node has {most:,} operands, results or attributes: up to {_MOST_OPERANDS:,} are accepted."
            )


def check_shapes(values: Iterable[onnx.ValueInfoProto]) -> None:
    """Refuse declared or inferred shapes that are invalid or too large.

    Exporters write -1 for an unknown size, and inference leaves it if it cannot compute one.

    Raises
    ------
    GraphError
        A size is negative, or all of them together too large.
    """
    for value in values:
        kind = _tensor_type(value.type)
        if kind.elem_type:
            _check_type(value.name, kind.elem_type)
        dims = kind.shape.dim
        sizes = [dim.dim_value for dim in dims if dim.HasField("dim_value")]
        check_size_of(value.name, [size for size in sizes if size != -1])


def check_size_of(name: str, sizes: Iterable[int]) -> None:
    """Refuse invalid or too large known sizes of the tensor `name`.

    Raises
    ------
    GraphError
        A size is negative, or all of them together too large, or there are too many.
    """
    known = list(sizes)
    if len(known) > _MOST_AXES:
        raise GraphError(f"Tensor {name!r} has {len(known)} axes: up to {_MOST_AXES} are accepted.")
    # an empty tensor of large sizes may be allocated without its empty axis
    n_elements = math.prod(size for size in known if size)
    if any(size < 0 for size in known) or n_elements > LARGEST_TENSOR:
        raise GraphError(
            f"Tensor {name!r} has the shape {_short(known)}: sizes must be >= 0, and up to "
            f"{LARGEST_TENSOR:,} elements are accepted."
        )


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, those of subgraphs and functions included."""
    for graph, _ in _graphs(model):
        yield from graph.node


def _graphs(model: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto | onnx.FunctionProto, int]]:
    """Yield graphs, subgraphs and functions with their depth, without recursion."""
    left: list[tuple[onnx.GraphProto | onnx.FunctionProto, int]] = [(model.graph, 0)]
    left += [(function, 0) for function in model.functions]
    while left:
        graph, depth = left.pop()
        yield graph, depth
        left += [(inner, depth + 1) for inner in subgraphs(graph.node)]


def _check_functions(model: onnx.ModelProto) -> None:
    """Refuse functions that call themselves, or stand for too many nodes: each level may double them."""
    if not model.functions:
        return
    calls = {_called(function, function.name): _operators(function) for function in model.functions}
    try:
        order = list(
            TopologicalSorter({name: calls.keys() & found for name, found in calls.items()}).static_order()
        )
    except CycleError as error:
        names = " -> ".join(name for _, name, _ in error.args[1][:8])
        raise GraphError(f"The functions of the model call themselves: {names}.") from None
    sizes: dict[_Call, int] = {}
    for name in order:
        sizes[name] = sum(count * sizes.get(called, 1) for called, count in calls[name].items())
    n_nodes = sum(count * sizes.get(called, 1) for called, count in _operators(model.graph).items())
    if n_nodes > _MOST_NODES:
        raise GraphError(
            f"The functions of the model stand for more than {_MOST_NODES} nodes: too many to train."
        )


def _called(thing: onnx.NodeProto | onnx.FunctionProto, name: str) -> _Call:
    return short_domain(thing.domain), name, getattr(thing, "overload", "")


def _operators(body: onnx.GraphProto | onnx.FunctionProto) -> Counter[_Call]:
    """Return the number of nodes of each operator, those of subgraphs included."""
    found: Counter[_Call] = Counter()
    left = [body]
    while left:
        nodes = left.pop().node
        found.update(_called(node, node.op_type) for node in nodes)
        left += subgraphs(nodes)
    return found


def _check_text(model: onnx.ModelProto) -> None:
    """Refuse text that is not UTF-8: protobuf raises on reading it, or returns bytes."""
    left: list[Message] = [model]
    try:
        while left:
            texts, inside = _contents(left.pop())
            left += inside
            if any(isinstance(text, bytes) for text in texts):
                raise GraphError("A name in the model is not UTF-8 text.")
    except UnicodeDecodeError as error:
        raise GraphError("A name in the model is not UTF-8 text.") from error


def _contents(message: Message) -> tuple[list[str | bytes], list[Message]]:
    """Return the texts and the messages that are fields of a message."""
    if isinstance(message, TensorProto):
        # without its data, which reading would copy
        return [message.name, message.doc_string], list(message.external_data)
    texts: list[str | bytes] = []
    inside: list[Message] = []
    for field, value in message.ListFields():
        values = [value] if isinstance(value, str | bytes | Message) else value
        if field.type == field.TYPE_STRING:
            texts += values
        elif field.type == field.TYPE_MESSAGE:
            inside += values
    return texts, inside


def _declared(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.value_info
    if isinstance(graph, onnx.GraphProto):
        yield from graph.input
        yield from graph.output


def _tensor_type(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor:
    """Return the type of a tensor, or of those in a sequence or an optional; empty for others."""
    while (field := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, field).elem_type
    return kind.tensor_type


def _check_tensor(tensor: TensorProto) -> None:
    check_size_of(tensor.name, tensor.dims)
    _check_type(tensor.name, tensor.data_type)
    if tensor.data_type not in _STORAGE or tensor.data_location == TensorProto.EXTERNAL:
        # types of half a byte, which onnx's checker covers; external data, read later
        return
    bits, field = _STORAGE[tensor.data_type]
    n_elements = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        present, expected, unit = len(tensor.raw_data), n_elements * bits // 8, "bytes"
    else:
        present, expected, unit = len(getattr(tensor, field)), n_elements, "elements"
    if present != expected:
        raise GraphError(
            f"Tensor {tensor.name!r} holds {present} {unit} of data: its shape {_short(tensor.dims)} needs "
            f"{expected}."
        )


def _check_type(name: str, number: int) -> None:
    if number == TensorProto.UNDEFINED or number not in TensorProto.DataType.values():
        raise GraphError(f"Tensor {name!r} has elements of type {number}, which is no ONNX type.")


def _short(sizes: Iterable[int]) -> str:
    sizes = list(sizes)
    text = ", ".join(map(str, sizes[:8]))
    return f"[{text}, ...]" if len(sizes) > 8 else f"[{text}]"
