"""Loading of ONNX: from a file, bytes or a message to a checked model.

Every public function that takes a model first reads it here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError, ParameterTypeError, UnsupportedError
from onnxsgd.graph.loading.consistency import check_consistency
from onnxsgd.graph.loading.external_data import load_beside, refuse_external
from onnxsgd.graph.loading.size_limits import all_nodes, check_sizes
from onnxsgd.graph.opsets.transformer.contrib import give_domain, lacks_domain
from onnxsgd.graph.opsets.versions import IR_RANGE, bring_into_range

__all__ = ["check_model", "check_proto", "load_model", "read_model"]

#: The domains of operators that the package knows.
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})

#: The most bytes of a file, those of a message of protobuf.
_LARGEST_FILE = onnx.checker.MAXIMUM_PROTOBUF


def load_model(source: object) -> onnx.ModelProto:
    """Return a checked model in versions that the runtime reads, with functions inlined.

    External weights are read only from files in the folder of the model, or below.

    Parameters
    ----------
    source : ModelProto, bytes, str or path-like
        A model, which is not changed; a serialized model; or the name of a file.

    Returns
    -------
    ModelProto
        A new model. Its initializers are no inputs.

    Raises
    ------
    GraphError
        The file cannot be read, is no ONNX model, or is not valid, see :func:`check_model`.
    UnsupportedError
        The model has sparse initializers, training information, or versions that cannot be converted.
    ParameterTypeError
        `source` is of another type.
    """
    model = read_model(source)
    check_model(model)
    has_functions = bool(model.functions)
    model = bring_into_range(model)
    if has_functions:
        # the constants in their bodies, among those of the graph
        check_consistency(model)
    _drop_default_inputs(model.graph)
    return model


def check_proto(model: object, parameter: str) -> None:
    """Refuse an object that is no ``ModelProto``, or that :func:`check_model` refuses; change nothing.

    Parameters
    ----------
    model : object
        The argument of a public function.
    parameter : str
        The name of its parameter.

    Raises
    ------
    ParameterTypeError
        If `model` is of another type.
    GraphError, UnsupportedError
        As :func:`check_model`.
    """
    if not isinstance(model, onnx.ModelProto):
        raise ParameterTypeError(f"{parameter} must be an onnx.ModelProto, not {type(model).__name__}.")
    check_model(model)


def check_model(model: onnx.ModelProto) -> None:
    """Refuse a model that is too large, incomplete, invalid or inconsistent; change nothing.

    Cases, each protecting the next one:

    - sizes: declared against present data, before any allocation or inference;
    - external tensors: a message has no folder to read from;
    - sparse initializers and training information, which are unsupported, and operators of unknown domains
      that bear the name of a standard one: passes tell operators by their names;
    - the rules of the standard, by ``onnx.checker``;
    - types and shapes: of the operands of each node, and those inferred from them.

    Raises
    ------
    GraphError
        The model is not valid.
    UnsupportedError
        It has sparse initializers or training information, or an operator of an unknown domain under the
        name of a standard one.
    """
    check_sizes(model)
    refuse_external(model, "a ModelProto")
    _refuse(model)
    _refuse_namesakes(model)
    _check(model)
    check_consistency(model)


def read_model(source: object) -> onnx.ModelProto:
    """Return a model of sane sizes, which :func:`check_model` has not seen; a message is returned as it is.

    Parameters
    ----------
    source : ModelProto, bytes, str or path-like
        As of :func:`load_model`.

    Raises
    ------
    GraphError
        The file cannot be read, is no ONNX model, or its sizes are no sane ones.
    ParameterTypeError
        `source` is of another type.
    """
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        model = _parse(bytes(source), "the bytes")
        check_sizes(model)
        refuse_external(model, "bytes")
        return model
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source))
    raise ParameterTypeError(
        f"A model is an onnx.ModelProto, bytes, or the path of a file, not {type(source).__name__}."
    )


def _read_file(path: Path) -> onnx.ModelProto:
    _check_file(path)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        # a ValueError: a name with a zero byte
        cause = getattr(error, "strerror", None) or error
        raise GraphError(f"The model {str(path)!r} cannot be read: {cause}.") from error
    model = _parse(content, repr(str(path)))
    check_sizes(model)
    load_beside(model, path)
    return model


def _check_file(path: Path) -> None:
    """Refuse pipes and devices, which may never end, and files that are too large for one message."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        # the attempt to read it says why
        return
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise GraphError(f"The model {str(path)!r} cannot be read: it is no regular file.")
    if status.st_size > _LARGEST_FILE:
        raise GraphError(
            f"The model {str(path)!r} has {status.st_size:,} bytes, and a file has up to {_LARGEST_FILE:,}: "
            "larger weights are stored beside it, by onnx.save(..., save_as_external_data=True)."
        )


def _parse(content: bytes, origin: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise GraphError(f"An ONNX model was expected, {origin} cannot be parsed as one.") from error
    return model


def _refuse(model: onnx.ModelProto) -> None:
    if not model.graph.node:
        raise GraphError("The model has no nodes: it is empty, or no ONNX model.")
    if model.training_info:
        raise UnsupportedError("The model holds training_info: give the graph for inference alone.")
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise UnsupportedError(f"The model holds a sparse initializer, {name!r}: store it as a dense one.")


def _refuse_namesakes(model: onnx.ModelProto) -> None:
    functions = {(function.domain, function.name) for function in model.functions}
    for node in all_nodes(model):
        key = node.domain, node.op_type
        if node.domain not in _DOMAINS and key not in functions and onnx.defs.has(node.op_type):
            raise UnsupportedError(
                f"The operator {node.op_type} of the domain {node.domain!r} bears the name of a standard "
                "one, and the model defines no function for it: give it another name."
            )


def _check(model: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(_forgiven(model))
    except onnx.checker.ValidationError as error:
        raise GraphError(f"The model is not valid ONNX: {reason(error)}.") from error
    except (ValueError, EncodeError) as error:
        # more than 2 GiB, which neither the checker nor a session takes
        raise GraphError(f"The model cannot be checked: {reason(error)}.") from error


def _forgiven(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model`, or a copy without three faults that every runtime forgives.

    Files of IR version 3 must list weights as inputs too, and some do not. Inputs and outputs must have a
    shape, and the rank of some is unknown. Graph optimizers write operators of the runtime as standard ones.
    """
    kinds = [value.type.tensor_type for value in (*model.graph.input, *model.graph.output)]
    unshaped = [kind.elem_type and not kind.HasField("shape") for kind in kinds]
    if model.ir_version >= IR_RANGE[0] and not any(unshaped) and not lacks_domain(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, IR_RANGE[0])
    give_domain(copy)
    for value, is_unshaped in zip((*copy.graph.input, *copy.graph.output), unshaped, strict=True):
        if is_unshaped:
            value.type.tensor_type.shape.SetInParent()
    return copy


def _drop_default_inputs(graph: onnx.GraphProto) -> None:
    """Remove initializers from the inputs, which listed them in old files: nobody feeds weights."""
    names = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(kept)
