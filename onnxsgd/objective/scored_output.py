"""Choice of the output of a graph that a loss scores."""

from __future__ import annotations

from operator import index

import onnx_ir as ir

from onnxsgd.exceptions import GraphError, ParameterError, ParameterTypeError
from onnxsgd.graph.model import REAL_TYPES

__all__ = ["check_scored", "dtype_and_shape", "find_output"]


def find_output(graph: ir.Graph, output_index: int | str | None) -> ir.Value:
    """Return the output of `graph` that `output_index` chooses.

    Parameters
    ----------
    graph : ir.Graph
        The graph.
    output_index : int, str or None
        A position, negative ones counting from the end, or a name. None: the only output.

    Raises
    ------
    ParameterError
        If there is no such output, or there are several and none is chosen.
    ParameterTypeError
        If `output_index` is neither an integer, nor a string, nor None.
    """
    return graph.outputs[_position(output_index, [str(value.name) for value in graph.outputs])]


def check_scored(output: ir.Value) -> None:
    """Check that `output` is a real tensor with an axis of samples.

    Raises
    ------
    GraphError
        If it is not, or its rank is unknown.
    """
    if not isinstance(output.type, ir.TensorType) or output.dtype not in REAL_TYPES:
        raise GraphError(
            f"Output {output.name!r} has type {output.type}: a loss needs a tensor of float16, float or "
            "double. Of a classifier, score the probabilities or the raw predictions."
        )
    if output.shape is None:
        raise GraphError(
            f"The rank of output {output.name!r} is neither declared nor inferred: give the output a shape."
        )
    if len(output.shape) == 0:
        raise GraphError(f"Output {output.name!r} is a scalar: its first axis must be that of the samples.")


def dtype_and_shape(value: ir.Value) -> tuple[ir.DataType, ir.Shape]:
    """Return the type and the shape of `value`, which must have both."""
    if value.dtype in (None, ir.DataType.UNDEFINED) or value.shape is None:
        raise GraphError(f"Tensor {value.name!r} has no type or no shape.")
    return value.dtype, value.shape


def _position(output_index: int | str | None, names: list[str]) -> int:
    if isinstance(output_index, str):
        if output_index not in names:
            raise ParameterError(f"output_index={output_index!r} is no output of the model: it has {names}.")
        return names.index(output_index)
    if output_index is None:
        if len(names) != 1:
            raise ParameterError(
                f"The model has {len(names)} outputs, {names}: output_index must choose one, by position or "
                "by name."
            )
        return 0
    try:
        position = index(output_index)
    except TypeError:
        position = None
    if position is None or isinstance(output_index, bool):
        raise ParameterTypeError(
            f"output_index={output_index!r} is not accepted: it must be an int, a name or None."
        )
    if not -len(names) <= position < len(names):
        raise ParameterError(f"output_index={position} is out of range: the model has outputs {names}.")
    return position
