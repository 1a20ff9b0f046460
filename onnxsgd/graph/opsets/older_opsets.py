"""Conversion of older opsets by onnx, with repairs of wrong conversions."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import version_converter

from onnxsgd.graph.model import subgraphs

__all__ = ["convert"]

#: The first opset with Hardmax along one axis, and with modes of Resize and inputs of Pad.
_HARDMAX_BY_AXIS, _RESIZE_WITH_MODES = 13, 11


def convert(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return `model` in a newer opset by ``onnx.version_converter``, with its errors repaired.

    Cases (onnx 1.23, the operators of opsets 9 to 12 compared with the runtime; a repair can go when the
    converter is right):

    - Hardmax flattened its input before opset 13: the Flatten is written out;
    - Upsample, and Resize before opset 11, interpolated from coordinates divided by the scale, while the
      converter takes half-pixel coordinates;
    - Pad before opset 11 may have a value in a mode that takes none: it is dropped.

    Raises
    ------
    Exception
        Any exception of the converter, for an operator without an adapter.
    """
    present = next(entry.version for entry in model.opset_import if entry.domain == "")
    source = onnx.ModelProto()
    source.CopyFrom(model)
    if present < _HARDMAX_BY_AXIS <= version:
        for graph in _graphs(source.graph):
            _flatten_hardmax(graph)
    if present < _RESIZE_WITH_MODES:
        for graph in _graphs(source.graph):
            _drop_values_of_pads(graph)
    linear = set(_linear_resizes(source.graph)) if present < _RESIZE_WITH_MODES <= version else set()
    result = version_converter.convert_version(source, version)
    for node in (node for graph in _graphs(result.graph) for node in graph.node):
        if node.op_type == "Resize" and node.output[0] in linear:
            kept = [a for a in node.attribute if a.name != "coordinate_transformation_mode"]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    return result


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the graphs in its nodes."""
    yield graph
    for inner in subgraphs(graph.node):
        yield from _graphs(inner)


def _linear_resizes(graph: onnx.GraphProto) -> Iterator[str]:
    for node in (node for inner in _graphs(graph) for node in inner.node):
        modes = {attribute.s for attribute in node.attribute if attribute.name == "mode"}
        if node.op_type in ("Resize", "Upsample") and modes & {b"linear", b"bilinear"}:
            yield node.output[0]


def _drop_values_of_pads(graph: onnx.GraphProto) -> None:
    """Drop the value of every Pad in mode edge or reflect."""
    for node in (node for node in graph.node if node.op_type == "Pad"):
        modes = {attribute.s for attribute in node.attribute if attribute.name == "mode"}
        if modes & {b"edge", b"reflect"}:
            kept = [attribute for attribute in node.attribute if attribute.name != "value"]
            del node.attribute[:]
            node.attribute.extend(kept)


def _flatten_hardmax(graph: onnx.GraphProto) -> None:
    """Apply every Hardmax to a matrix, on which the versions agree."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _on_matrix(node) if node.op_type == "Hardmax" and not node.domain else [node]
    del graph.node[:]
    graph.node.extend(nodes)


def _on_matrix(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    result = node.output[0]
    shape, rows, largest = (f"{result}_{part}" for part in ("shape", "rows", "hardmax"))
    return [
        onnx.helper.make_node("Shape", [node.input[0]], [shape]),
        onnx.helper.make_node("Flatten", [node.input[0]], [rows], axis=axis),
        onnx.helper.make_node("Hardmax", [rows], [largest], axis=1),
        onnx.helper.make_node("Reshape", [largest, shape], [result], name=node.name),
    ]
