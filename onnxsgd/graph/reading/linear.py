"""Linear graphs: a whole model, or a new layer on top of another graph."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx.checker import MAXIMUM_PROTOBUF

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import REAL_TYPES, graph_names, unique_name
from onnxsgd.graph.nodes import attribute, maker, standard_operator
from onnxsgd.graph.reading.frozen_split import BATCH
from onnxsgd.graph.sizes import fix_sizes
from onnxsgd.graph.writing import add_initializer, computed

__all__ = ["IR_VERSION", "OPSET", "add_linear_layer", "linear_graph", "linear_parameters"]

#: The versions of graphs written by this package: the newest that every supported runtime reads.
OPSET, IR_VERSION = 18, 9


def linear_graph(
    n_features: int, n_outputs: int, dtype: ir.DataType = ir.DataType.FLOAT
) -> tuple[ir.Model, tuple[str, str]]:
    """Return a linear model of zeros: the graph, and (coefficients, intercepts).

    The input is ``X``, of type `dtype` and shape [n_samples, n_features]; the score has shape
    [n_samples, n_outputs].
    """
    features = ir.Value(name="X", type=ir.TensorType(dtype), shape=ir.Shape([BATCH, n_features]))
    graph = ir.Graph([features], [features], nodes=[], opset_imports={"": OPSET}, name="linear")
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name="onnxsgd")
    return add_linear_layer(model, n_outputs)


def add_linear_layer(
    model: ir.Model, n_outputs: int, row_shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[ir.Model, tuple[str, str]]:
    """Return `model` with a linear layer of zeros on top of its only output.

    Parameters
    ----------
    model : ir.Model
        Its output has shape [n_samples, n_features]; one of more dimensions is flattened first. It is not
        changed.
    n_outputs : int
        The width of the layer.
    row_shapes : mapping of str to tuple of int, or None
        The shape of a row of each input. If the graph leaves the number of features open, these fix it, and
        the result takes rows of no other shape.

    Returns
    -------
    tuple
        The graph, whose only output is the layer's, and (coefficients, intercepts).

    Raises
    ------
    GraphError
        If the number of features is unknown.
    """
    width = _row_size(model)
    copy = model.clone() if width is not None else fix_sizes(model, BATCH, row_shapes)
    if width is None and (width := _row_size(_with_one_row(model, row_shapes))) is None:
        output = model.graph.outputs[0]
        raise GraphError(
            f"{output.name!r} has shape {output.shape}, with unknown sizes: name another tensor for the "
            "linear layer with output=."
        )
    graph, names = copy.graph, graph_names(copy.graph)
    source = graph.outputs[0]
    coef = _zeros(graph, unique_name("coef", names), source.dtype, (width, n_outputs))
    intercept = _zeros(graph, unique_name("intercept", names), source.dtype, (n_outputs,))
    if source.shape is None or len(source.shape) != 2:
        source = computed("Flatten", [source], {"axis": 1}, name=unique_name("flat", names))
        graph.append(maker(source))
    score = computed("Gemm", [source, coef, intercept], name=unique_name("score", names))
    score.type, score.shape = coef.type, ir.Shape([BATCH, n_outputs])
    graph.append(maker(score))
    graph.outputs[:] = [score]
    return copy, (str(coef.name), str(intercept.name))


def _with_one_row(model: ir.Model, row_shapes: Mapping[str, tuple[int, ...]] | None) -> ir.Model:
    """Return `model` for one sample, with the resulting sizes; computed sizes become constants."""
    # lazy: a slow import that few graphs need
    from onnxscript.optimizer import fold_constants

    fixed = fix_sizes(model, 1, row_shapes)
    if _row_size(fixed) is None:
        fold_constants(fixed)
        fixed = fix_sizes(fixed, 1, row_shapes)
    return fixed


def _row_size(model: ir.Model) -> int | None:
    """Return the number of elements of the only output for each sample; None if it is open."""
    shape = model.graph.outputs[0].shape
    if shape is None:
        return None
    sizes = [size for size in shape[1:] if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) - 1 else None


def _zeros(graph: ir.Graph, name: str, dtype: ir.DataType | None, shape: tuple[int, ...]) -> ir.Value:
    kind = (dtype or ir.DataType.FLOAT).numpy()
    nbytes = math.prod(shape) * kind.itemsize
    if nbytes > MAXIMUM_PROTOBUF:
        raise GraphError(
            f"A linear layer of {shape[0]} columns has coefficients of {nbytes / 1e9:.3g} GB, and a file of "
            "ONNX holds 2 GB: select columns of X, or hash them into fewer, see sklearn.feature_extraction."
        )
    return add_initializer(graph, name, np.zeros(shape, kind))


#: Operators that change only the type or the shape of a linear function.
_NEUTRAL = frozenset({"Identity", "Cast", "Reshape", "Flatten"})


def linear_parameters(model: ir.Model) -> tuple[str, str | None] | None:
    """Return the names of (coefficients, intercepts) if the only output is linear in the only input.

    Cases: ``Gemm(X, coef, intercept)``, or ``MatMul(X, coef)`` with or without an ``Add``. Coefficients
    have shape [n_features, n_outputs] or [n_features], the input is a table of real numbers. Casts between
    real types, and a new shape of the result, are ignored. None: any other graph.
    """
    if len(model.graph.inputs) != 1 or not _is_real_table(model.graph.inputs[0]):
        return None
    if any(node.outputs[0].dtype not in REAL_TYPES for node in model.graph):
        return None
    nodes = [node for node in model.graph if standard_operator(node) not in _NEUTRAL]
    operators = [standard_operator(node) for node in nodes]
    if operators not in (["Gemm"], ["MatMul"], ["MatMul", "Add"]):
        return None
    product = nodes[0]
    plain = all(attribute(product, name, 0) == 0 for name in ("transA", "transB"))
    scaled = any(attribute(product, name, 1.0) != 1.0 for name in ("alpha", "beta"))
    if not plain or scaled or not _is_the_input(product.inputs[0]):
        return None
    coef = _initializer(product, 1)
    intercept = _initializer(product, 2)
    if intercept is None and len(product.inputs) > 2:
        return None
    if operators == ["MatMul", "Add"]:
        intercept = _initializer(nodes[1], 0) or _initializer(nodes[1], 1)
        if intercept is None:
            return None
    return None if coef is None else (coef, intercept)


def _is_real_table(value: ir.Value) -> bool:
    return value.dtype in REAL_TYPES and value.shape is not None and len(value.shape) == 2


def _is_the_input(value: ir.Value | None) -> bool:
    """Return whether `value` is the input of the graph, possibly in another real type."""
    while value is not None and (maker := value.producer()) is not None:
        if standard_operator(maker) not in ("Identity", "Cast"):
            return False
        value = maker.inputs[0]
    return value is not None and value.is_graph_input()


def _initializer(node: ir.Node, index: int) -> str | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return str(value.name) if value is not None and value.is_initializer() else None
