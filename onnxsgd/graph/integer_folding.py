"""Folding of constant integers: exporters compute axes, pads and shapes from constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import attribute, content, standard_operator
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.writing import add_initializer

__all__ = ["fold_integers"]

#: The most elements of a folded tensor: larger ones, such as masks, would only fill the file.
_MAX_SIZE = 4096

#: The most tensors named in an error.
_NAMED = 5

_SIZES, _RANDOM = having(Fact.SIZES), having(Fact.RANDOM)


# fold_constants of onnxscript 0.7, held to the same nodes by should_fold, takes two to four times as long
# (Swin of tests/networks: 3.9 ms, here 1.0), and rewrites other nodes
def fold_integers(model: ir.Model, *, with_samples: bool = False) -> bool:
    """Replace constant integers and booleans by their values, in place; return whether there were any.

    Precondition: constants are initializers, types and shapes are inferred as far as possible. A node of the
    main graph whose inputs are constants, and whose outputs are a few integers or booleans, becomes
    initializers under the names of its outputs. Real numbers, their comparisons and their roundings are left
    alone, because they must follow trained weights; their shapes are folded.

    Parameters
    ----------
    model : ir.Model
        The model.
    with_samples : bool
        Whether all known sizes of other tensors are folded; otherwise that of the last axis alone, as another
        one may be the number of samples.
    """
    graph = model.graph
    has_sizes = _fold_sizes(graph, with_samples)
    constants = {value for value in graph.initializers.values() if not value.is_graph_input()}
    real = {value for value in constants if value.dtype in REAL_TYPES}
    nodes = []
    for node in graph:
        known = constants if standard_operator(node) in _SIZES else constants - real
        if _is_foldable(node) and all(value is None or value in known for value in node.inputs):
            nodes.append(node)
            constants.update(node.outputs)
    if not nodes:
        return has_sizes
    folded = [value for node in nodes for value in node.outputs if value.name]
    for value, array in zip(folded, _evaluate(nodes, folded, graph.opset_imports), strict=True):
        _replace(graph, value, np.asarray(array))
    removed = [node for node in nodes if not any(v.is_graph_output() for v in node.outputs)]
    graph.remove(removed, safe=True)
    return has_sizes or bool(removed)


def _fold_sizes(graph: ir.Graph, with_samples: bool) -> bool:
    """Replace known sizes by constants; return whether there were any."""
    found = [(node, _sizes(node, with_samples)) for node in graph if standard_operator(node) == "Shape"]
    known = [(node, sizes) for node, sizes in found if sizes and not node.outputs[0].is_graph_output()]
    for node, sizes in known:
        _replace(graph, node.outputs[0], np.array(sizes))
    graph.remove([node for node, _ in known], safe=True)
    return bool(known)


def _sizes(node: ir.Node, with_samples: bool) -> list[int]:
    """Return the sizes that a Shape computes, if all are known, and may be folded; none otherwise."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if shape is None:
        return []
    axes = range(len(shape))[slice(attribute(node, "start", 0), attribute(node, "end", len(shape)))]
    if not with_samples and (len(shape) < 2 or list(axes) != [len(shape) - 1]):
        return []
    sizes = [size for axis in axes if isinstance(size := shape[axis], int)]
    return sizes if len(sizes) == len(axes) else []


def _is_foldable(node: ir.Node) -> bool:
    operator = standard_operator(node)
    simple = operator and operator not in _RANDOM and node.inputs
    holds_graph = any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for attribute in node.attributes.values()
    )
    return bool(simple) and not holds_graph and all(map(_is_small_and_not_real, node.outputs))


def _is_small_and_not_real(value: ir.Value) -> bool:
    if value.dtype is None or value.dtype in REAL_TYPES or value.shape is None:
        return False
    sizes = [size for size in value.shape if isinstance(size, int)]
    return len(sizes) == len(value.shape) and math.prod(sizes) <= _MAX_SIZE


def _evaluate(nodes: list[ir.Node], values: list[ir.Value], opsets: dict[str, int]) -> Any:
    """Return the arrays of `values`, which `nodes` compute from constants."""
    from onnx.reference import ReferenceEvaluator

    given = {value for node in nodes for value in node.inputs if value is not None and value.is_initializer()}
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "constants",
        [],
        [ir.serde.serialize_value(value) for value in values],
        [_serialize(value) for value in given],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    try:
        return ReferenceEvaluator(model).run(None, {})
    except Exception as error:
        # operators in Python, which raise any exception
        names = [repr(value.name) for value in values[:_NAMED]]
        shown = ", ".join(names if len(values) <= _NAMED else [*names, "..."])
        raise GraphError(
            f"One of the constants {shown} of the graph cannot be computed: {reason(error)}."
        ) from error


def _serialize(value: ir.Value) -> onnx.TensorProto:
    tensor = ir.serde.serialize_tensor(content(value))
    tensor.name = str(value.name)
    return tensor


def _replace(graph: ir.Graph, old: ir.Value, array: np.ndarray) -> None:
    """Replace `old` by an initializer of the same name; a graph output stays computed."""
    if old.is_graph_output():
        return
    name, old.name = str(old.name), None
    ir.convenience.replace_all_uses_with(old, add_initializer(graph, name, array))
