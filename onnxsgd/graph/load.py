"""ONNX in: from a file, bytes or a message to a checked model that the runtime reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from onnxsgd.exceptions import GraphError, ParameterTypeError, UnsupportedError
from onnxsgd.graph.versions import IR_RANGE, bring_into_range

__all__ = ["load_model"]


def load_model(source: Any) -> onnx.ModelProto:
    """Return a model that is valid ONNX, of versions that the runtime reads, with functions inlined.

    Weights outside of the file are read from files in its folder, or below, and from nowhere else.

    Parameters
    ----------
    source : ModelProto, bytes, str or path-like
        A model, which is not changed; what one is serialized to; or the name of a file.

    Returns
    -------
    ModelProto
        A new model. Its initializers are no inputs.

    Raises
    ------
    GraphError
        The file cannot be read, is no ONNX model, or is not valid.
    UnsupportedError
        The model holds something that nothing here takes: sparse initializers, training information, or
        versions that cannot be converted.
    ParameterTypeError
        `source` is of another type.
    """
    model = _read(source)
    _refuse(model)
    # Older files have to list weights as inputs too. Some do not, and every runtime reads them.
    model.ir_version = max(model.ir_version, IR_RANGE[0])
    _check(model)
    model = bring_into_range(model)
    _drop_default_inputs(model.graph)
    return model


def _read(source: Any) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        return _without_external_data(model, "a ModelProto")
    if isinstance(source, bytes | bytearray | memoryview):
        return _without_external_data(_parse(bytes(source), "the bytes"), "bytes")
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source))
    raise ParameterTypeError(
        f"A model is an onnx.ModelProto, bytes, or the path of a file, not {type(source).__name__}."
    )


def _read_file(path: Path) -> onnx.ModelProto:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GraphError(f"The model {str(path)!r} cannot be read: {error.strerror or error}.") from error
    model = _parse(content, repr(str(path)))
    folder = path.resolve().parent
    for tensor in _external_tensors(model):
        _check_location(tensor, folder)
    try:
        load_external_data_for_model(model, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise GraphError(f"The weights beside {str(path)!r} cannot be read: {error}") from error
    return model


def _parse(content: bytes, what: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise GraphError(f"An ONNX model was expected, {what} cannot be parsed as one.") from error
    return model


def _external_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the tensors of `model`, in attributes and subgraphs as well, that are stored in other files."""
    nodes = [node for function in model.functions for node in function.node]
    tensors = [*_tensors_of_graph(model.graph), *_tensors_of_nodes(nodes)]
    return [tensor for tensor in tensors if uses_external_data(tensor)]


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors_of_graph(graph)


def _check_location(tensor: onnx.TensorProto, folder: Path) -> None:
    """Refuse a file that lies anywhere else than in the folder of the model, links followed."""
    location = ExternalDataInfo(tensor).location
    file = Path(os.path.realpath(folder / location)) if location else folder
    if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
        raise GraphError(
            f"Initializer {tensor.name!r} is stored in {location!r}: weights are read only from files in the "
            "folder of the model, or below it."
        )


def _without_external_data(model: onnx.ModelProto, what: str) -> onnx.ModelProto:
    for tensor in _external_tensors(model):
        raise GraphError(
            f"Initializer {tensor.name!r} is stored in another file, and {what} does not tell where: give "
            "the path of the model, or load it with onnx.load first."
        )
    return model


def _refuse(model: onnx.ModelProto) -> None:
    if not model.graph.node:
        raise GraphError("The model has no nodes: it is empty, or no ONNX model.")
    if model.training_info:
        raise UnsupportedError("The model holds training_info: give the graph for inference alone.")
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise UnsupportedError(f"The model holds a sparse initializer, {name!r}: store it as a dense one.")


def _check(model: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise GraphError(f"The model is not valid ONNX: {error}") from error
    except ValueError as error:
        # more than 2 GiB: neither the checker nor a session takes it
        raise GraphError(f"The model cannot be checked: {error}") from error


def _drop_default_inputs(graph: onnx.GraphProto) -> None:
    """Let initializers be no inputs, as they had to be in old files: nobody feeds weights."""
    names = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(kept)
