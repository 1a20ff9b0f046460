"""Expansion of operators that the standard defines as functions of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["expand_functions", "is_function"]

#: The temporary domain of the functions that replace expanded nodes until they are inlined.
_DOMAIN = "onnxsgd.expanded"


def is_function(op_type: str, opset: int | None = None) -> bool:
    """Return whether the standard defines an operator as a function of other operators."""
    schema = _schema(op_type, opset)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def expand_functions(model: ir.Model, chosen: Callable[[ir.Node], bool]) -> ir.Model:
    """Replace nodes by their definitions, in place.

    Parameters
    ----------
    model : ir.Model
        The graph.
    chosen : callable
        Predicate of the nodes to replace; called only for nodes that have a definition, and again for the
        nodes of a definition.
    """
    opset = model.graph.opset_imports[""]
    while nodes := [
        node for node in nodes_within(model.graph) if is_function(node.op_type, opset) and chosen(node)
    ]:
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
        for count, node in enumerate(nodes):
            _complete(node, opset)
            function = _definition(node, opset)
            function.domain, function.name = _DOMAIN, f"{node.op_type}_{count}"
            body = ir.serde.deserialize_function(function)
            model.functions[body.identifier()] = body
            node.domain, node.op_type, node.overload = _DOMAIN, function.name, ""
        model.graph.opset_imports[_DOMAIN] = 1
        model = InlinePass()(model).model
        model.graph.opset_imports.pop(_DOMAIN, None)
    return model


def _schema(op_type: str, opset: int | None) -> Any:
    if not onnx.defs.has(op_type):
        return None
    try:
        return onnx.defs.get_schema(op_type) if opset is None else onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None


def _complete(node: ir.Node, opset: int) -> None:
    """Write out the attribute defaults of a node, which a definition may use, and name its outputs."""
    for name, parameter in _schema(node.op_type, opset).attributes.items():
        if name not in node.attributes and parameter.default_value.name:
            node.attributes[name] = ir.from_proto(parameter.default_value)
    for count, value in enumerate(node.outputs):
        value.name = value.name or f"{node.outputs[0].name}_unused_{count}"


def _definition(node: ir.Node, opset: int) -> onnx.FunctionProto:
    """Return the function that defines a node, given its attributes and the types of its inputs."""
    schema = _schema(node.op_type, opset)
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        version = max(v for v in schema.context_dependent_function_opset_versions if v <= opset)
        types = [_type(value).SerializeToString() for value in node.inputs]
        proto = ir.to_proto(node).SerializeToString()
        body = schema.get_context_dependent_function_with_opset_version(version, proto, types)
    else:
        version = max(v for v in schema.function_opset_versions if v <= opset)
        body = schema.get_function_with_opset_version(version)
    function.ParseFromString(body)
    del function.opset_import[:]
    function.opset_import.append(onnx.helper.make_opsetid("", opset))
    # Some definitions name no inputs and outputs, or outputs that they do not compute.
    del function.input[:], function.output[:]
    function.input.extend(parameter.name for parameter in schema.inputs)
    function.output.extend(result.name for result in schema.outputs[: len(node.outputs)])
    computed = {name for entry in function.node for name in entry.output}
    for name in (name for name in function.output if name not in computed):
        # an omitted output, which nothing reads, before a present one
        function.node.append(onnx.helper.make_node("Identity", [function.input[0]], [name]))
    return function


def _type(value: ir.Value | None) -> onnx.TypeProto:
    if value is None or value.dtype is None:
        return onnx.TypeProto()
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return onnx.helper.make_tensor_type_proto(int(value.dtype), shape)
