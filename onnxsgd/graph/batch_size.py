"""Fixed batch sizes, often 1, of exported graphs, and their removal."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import standard_operator
from onnxsgd.graph.sizes import fix_sizes
from onnxsgd.graph.writing import add_initializer

__all__ = ["fixed_batch_size", "free_batch_size"]


def fixed_batch_size(model: ir.Model) -> int | None:
    """Return the batch size that `model` was exported for; None if it takes any number of samples.

    It is the first size of every input, if that is a number and the same for all.
    """
    shapes = [value.shape for value in model.graph.inputs]
    sizes = {shape[0] if shape is not None and len(shape) else None for shape in shapes}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def free_batch_size(model: ir.Model, symbol: str = "n_samples") -> ir.Model:
    """Return a model like `model` that takes any number of samples.

    Precondition: it is lowered. Cases:

    - it takes any number of samples: it is returned unchanged;
    - a Reshape to a constant shape leaves its first size open and keeps the others;
    - an Expand to a constant shape whose first size is the number of samples keeps that of its operand.

    Independence of the samples is not checked: the caller must compare the results for several samples
    with those for each sample alone.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    symbol : str
        The name of the number of samples in shapes.
    """
    number = fixed_batch_size(model)
    if number is None:
        return model
    sized = {value.name: value.shape for node in fix_sizes(model, number).graph for value in node.outputs}
    freed = model.clone()
    graph = freed.graph
    names = graph_names(graph)
    for value in graph.inputs:
        value.shape = ir.Shape([symbol, *value.shape[1:]])  # type: ignore[index]
    for node in graph:
        for value in node.outputs:
            value.shape = None
        target = _constant_target(node)
        shape = sized.get(node.outputs[0].name)
        if target is None or shape is None or not len(shape):
            continue
        open_target = _open(node.op_type, target, list(shape), number)
        if open_target is not None:
            name = unique_name(f"{node.outputs[0].name}_shape", names)
            node.replace_input_with(1, add_initializer(graph, name, open_target))
    result = fix_sizes(freed, symbol)
    for value in result.graph.outputs:
        shape = sized.get(value.name)
        if shape is not None and len(shape) and shape[0] == number:
            value.shape = ir.Shape([symbol, *shape[1:]])
    return result


def _constant_target(node: ir.Node) -> np.ndarray | None:
    """Return the constant target shape of a Reshape or an Expand of a computed value, or None."""
    if standard_operator(node) not in ("Reshape", "Expand"):
        return None
    source, target = node.inputs[:2]
    if source is None or source.is_initializer() or target is None or target.const_value is None:
        return None
    return target.const_value.numpy()


def _open(
    op_type: str, target: np.ndarray, shape: list[int | ir.SymbolicDim], number: int
) -> np.ndarray | None:
    """Return the constant shape for any number of samples; None if the present one serves."""
    if op_type == "Expand":
        return (
            np.array([1, *target[1:]], np.int64)
            if len(target) == len(shape) and target[0] == number
            else None
        )
    rest = shape[1:]
    if target[0] == -1 or not all(isinstance(size, int) for size in rest):
        return None
    return np.array([-1, *rest], np.int64)
