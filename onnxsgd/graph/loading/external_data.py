"""External tensors of a model: found in all its parts, read only from files in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError

__all__ = ["all_tensors", "load_beside", "refuse_external"]


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a model: of initializers and attributes, also in subgraphs and functions."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_attributes(function.attribute_proto)
        yield from _tensors_of_nodes(function.node)
    for info in model.training_info:
        for graph in (info.initialization, info.algorithm):
            yield from _tensors_of_graph(graph)


def load_beside(model: onnx.ModelProto, path: Path) -> None:
    """Read the external tensors of the model at `path` from its folder, or below, in place.

    Raises
    ------
    GraphError
        If one is stored elsewhere, links followed, or cannot be read.
    """
    folder = path.resolve().parent
    for tensor in all_tensors(model):
        if uses_external_data(tensor):
            _check_location(tensor, folder)
    try:
        load_external_data_for_model(model, str(folder))
    except (OSError, RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        # a RuntimeError: the file system of C++ refuses the name
        raise GraphError(f"The weights beside {str(path)!r} cannot be read: {reason(error)}.") from error
    # external tensors that the helper of onnx does not find
    refuse_external(model, "the model")


def refuse_external(model: onnx.ModelProto, form: str) -> None:
    """Refuse external tensors of a model without a folder; `form` names its form, such as "bytes".

    Raises
    ------
    GraphError
        If there is such a tensor.
    """
    for tensor in all_tensors(model):
        if uses_external_data(tensor):
            raise GraphError(
                f"Tensor {tensor.name!r} is stored in another file, whose folder is unknown for {form}: "
                "give the path of the model, or load it with onnx.load first."
            )


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        if node.attribute:
            yield from _tensors_of_attributes(node.attribute)


def _tensors_of_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for tensor in (*sparse, *attribute.sparse_tensors):
            yield from (tensor.values, tensor.indices)
        if attribute.HasField("g"):
            yield from _tensors_of_graph(attribute.g)
        for graph in attribute.graphs:
            yield from _tensors_of_graph(graph)


def _check_location(tensor: onnx.TensorProto, folder: Path) -> None:
    """Refuse a file outside the folder of the model, links followed."""
    location = "".join([entry.value for entry in tensor.external_data if entry.key == "location"][-1:])
    try:
        file = Path(os.path.realpath(folder / location)) if location else folder
        is_inside = not Path(location).is_absolute() and file.is_relative_to(folder)
    except ValueError:
        # a name with a zero byte
        is_inside = False
    # not the methods of Path, which raise an error for names that are too long
    if is_inside and location and os.path.exists(file) and not os.path.isfile(file):
        # pipes and devices may never end
        raise GraphError(f"Tensor {tensor.name!r} is stored in {location!r:.300}, which is no regular file.")
    if not location or not is_inside:
        raise GraphError(
            f"Tensor {tensor.name!r} is stored in {location!r:.300}: weights are read only from files in the "
            "folder of the model, or below it."
        )
