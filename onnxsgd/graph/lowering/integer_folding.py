"""Integers that follow from constants: exporters compute axes, pads and shapes that could be written down."""

from __future__ import annotations

import math
from typing import Any

import onnx
import onnx_ir as ir

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.lowering.inference_mode import RANDOM
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import content

__all__ = ["fold_integers"]

#: Larger tensors stay computed: a mask, say, would only fill the file.
_MAX_SIZE = 4096

#: As many tensors are named in an error.
_NAMED = 5

#: Operators that look at shapes only.
_OF_SHAPES = frozenset({"Shape", "Size"})


def fold_integers(model: ir.Model) -> None:
    """Replace what no data can change, and is not real, by its value; done in place.

    Precondition: constants are initializers, types and shapes are inferred as far as they can be. A node of
    the main graph whose inputs are constants, and whose outputs are a few integers or truth values, becomes
    initializers under the names of its outputs. Real numbers are left alone, and so is what is compared or
    rounded of them: what is computed of a weight has to follow it. Of their shapes it does not.
    """
    graph = model.graph
    constants = {value for value in graph.initializers.values() if not value.is_graph_input()}
    real = {value for value in constants if value.dtype in REAL_TYPES}
    nodes = []
    for node in graph:
        known = constants if node.op_type in _OF_SHAPES else constants - real
        if _is_foldable(node) and all(value is None or value in known for value in node.inputs):
            nodes.append(node)
            constants.update(node.outputs)
    if not nodes:
        return
    folded = [value for node in nodes for value in node.outputs if value.name]
    for value, array in zip(folded, _evaluate(nodes, folded, graph.opset_imports), strict=True):
        _replace(graph, value, ir.tensor(array, name=value.name))
    graph.remove([node for node in nodes if not any(v.is_graph_output() for v in node.outputs)], safe=True)


def _is_foldable(node: ir.Node) -> bool:
    simple = node.domain == "" and node.op_type not in RANDOM and node.inputs
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
    """Return the arrays of `values`, which `nodes` make of constants."""
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
        # operators in Python, which raise all kinds of errors
        names = [repr(value.name) for value in values[:_NAMED]]
        shown = ", ".join(names if len(values) <= _NAMED else [*names, "..."])
        raise GraphError(
            f"One of the constants {shown} of the graph cannot be computed: {reason(error)}."
        ) from error


def _serialize(value: ir.Value) -> onnx.TensorProto:
    tensor = ir.serde.serialize_tensor(content(value))
    tensor.name = str(value.name)
    return tensor


def _replace(graph: ir.Graph, old: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Let an initializer take the place, and the name, of `old`; an output of a graph stays computed."""
    if old.is_graph_output():
        return
    new = ir.Value(name=old.name, type=old.type, shape=old.shape, const_value=tensor)
    old.name = None
    ir.convenience.replace_all_uses_with(old, new)
    graph.register_initializer(new)
