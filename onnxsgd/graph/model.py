"""The two forms of a model, its names and its metadata keys.

At the public boundary a model is an ``onnx.ModelProto``; inside, passes work on an ``onnx_ir.Model``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import onnx
import onnx_ir as ir

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError

__all__ = [
    "ADAPTER",
    "FROZEN",
    "HALF_TYPES",
    "LINK",
    "PARAMETER",
    "REAL_TYPES",
    "SCORE",
    "find_value",
    "graph_names",
    "nodes_within",
    "real_initializers",
    "subgraphs",
    "to_ir",
    "to_proto",
    "unique_name",
    "value_named",
]

#: The element types of half precision, and all that gradients are defined on.
HALF_TYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
REAL_TYPES = HALF_TYPES | {ir.DataType.FLOAT, ir.DataType.DOUBLE}

#: The metadata key of an initializer that is no parameter unless it is named; its value gives the reason.
#: It is written into files, so that an exported model is read in the same way.
FROZEN = "onnxsgd.frozen"

#: The metadata key of an initializer that is a parameter by an operator since rewritten; its value is
#: "weight" or "intercept".
PARAMETER = "onnxsgd.parameter"

#: The metadata key of the parts of an adapter. Its value is the name of the adapted weight at both matrices,
#: and that of the first matrix at the factor and at the node that adds the branch.
ADAPTER = "onnxsgd.adapter"

#: The metadata keys of a graph written by this package: the name of its score, and the link from the score
#: to probabilities.
SCORE, LINK = "onnxsgd.score", "onnxsgd.link"

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def to_ir(model: onnx.ModelProto) -> ir.Model:
    """Return an ``onnx_ir.Model`` that shares nothing with `model`.

    A ZipMap, which converts a matrix to a list of dictionaries, becomes an Identity, and its output that
    matrix: ``onnx_ir`` has no dictionaries, and no loss applies to them.

    Raises
    ------
    GraphError
        If the graph has sparse initializers, which ``onnx_ir`` would lose, or ``onnx_ir`` cannot read it.
    """
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise GraphError(f"The initializer {name!r} is sparse, which is not supported: make it dense first.")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "ZipMap" and node.domain == "ai.onnx.ml":
            _make_identity(node, copy.graph)
    try:
        read = ir.from_proto(copy)
    except ir.serde.SerdeError as error:
        raise GraphError(f"The model cannot be read: {reason(error)}.") from error
    _drop_tensor_metadata(copy.graph)
    return read


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return `model` as a ``ModelProto``.

    Raises
    ------
    GraphError
        If the model holds text that is not UTF-8.
    """
    try:
        return ir.to_proto(model)
    except ir.serde.SerdeError as error:
        cause = error.__cause__ or error
        raise GraphError(f"The model cannot be written: {reason(cause)}.") from error


def subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that are attributes of `nodes`, not those inside them."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def nodes_within(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of `graph` in their order, each before those of its subgraphs.

    The iterator of onnx_ir, up to 1.1 at least, takes four times as long on 70 convolutions.
    """
    for node in graph:
        yield node
        # `data` is the plain dictionary
        for attribute in node.attributes.data.values():
            if attribute.type == _GRAPH:
                yield from nodes_within(attribute.as_graph())
            elif attribute.type == _GRAPHS:
                for inner in attribute.as_graphs():
                    yield from nodes_within(inner)


def graph_names(graph: ir.Graph) -> set[str]:
    """Return every tensor name that `graph` and its subgraphs use."""
    values: set[ir.Value | None] = set(graph.inputs)
    for node in nodes_within(graph):
        values.update(node.inputs, node.outputs)
    names = {value.name for value in values if value is not None and value.name}
    return names.union(graph.initializers)


def unique_name(base: str, existing: set[str]) -> str:
    """Return `base`, or `base` with the first free number appended, and add it to `existing`."""
    name, count = base, 0
    while name in existing:
        count += 1
        name = f"{base}_{count}"
    existing.add(name)
    return name


def find_value(graph: ir.Graph, name: str) -> ir.Value | None:
    """Return the value `name`: an input, an initializer or a node's output; None if there is none."""
    if name in graph.initializers:
        return graph.initializers[name]
    for value in _named_values(graph):
        if value.name == name:
            return value
    return None


def value_named(graph: ir.Graph, name: str) -> ir.Value:
    """Return the value `name`, which `graph` holds."""
    value = find_value(graph, name)
    if value is None:
        raise LookupError(f"the graph holds no {name!r}")
    return value


def real_initializers(graph: ir.Graph) -> list[ir.Value]:
    """Return the initializers of `graph` whose elements are floating-point numbers, in graph order."""
    return [value for value in graph.initializers.values() if value.dtype in REAL_TYPES]


def _named_values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _drop_tensor_metadata(graph: onnx.GraphProto) -> None:
    """Remove the metadata of tensors that ``onnx_ir`` has read.

    It keeps these tensors, and, up to 1.1 at least, writes their metadata behind what they have themselves.
    """
    attributes = chain.from_iterable(node.attribute for node in graph.node)
    for tensor in chain(graph.initializer, (entry.t for entry in attributes if entry.HasField("t"))):
        tensor.ClearField("metadata_props")
    for body in subgraphs(graph.node):
        _drop_tensor_metadata(body)


def _make_identity(zip_map: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    width = max(len(attribute.ints) + len(attribute.strings) for attribute in zip_map.attribute)
    matrix = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None, width])
    for value in [*graph.output, *graph.value_info]:
        if value.name == zip_map.output[0]:
            value.type.CopyFrom(matrix)
    zip_map.op_type, zip_map.domain = "Identity", ""
    zip_map.ClearField("attribute")
