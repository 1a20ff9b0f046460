"""Inference of types and shapes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from onnxsgd.graph.operators import Fact, having

__all__ = ["ShapeInferencePass"]

_SEQUENCES = having(Fact.SEQUENCE)


class ShapeInferencePass(common.ShapeInferencePass):
    """Inference by onnx that distinguishes sequences of tensors from tensors, and knows packed products.

    The pass of onnx_ir, up to 1.1 at least, gives an untyped sequence the type of its elements. onnx knows no
    operators of onnxruntime.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Infer in place."""
        result = super().call(model)
        while _complete_packed_products(model.graph):
            result = super().call(model)
        _mark_sequences(model.graph)
        return result


def _complete_packed_products(graph: ir.Graph) -> bool:
    """Set the type and the shape of products with packed weights; return whether one was unknown."""
    found = False
    for node in graph:
        if (node.domain, node.op_type) != ("com.microsoft", "MatMulNBits"):
            continue
        source, result = node.inputs[0], node.outputs[0]
        if result.shape is None and source is not None and source.shape is not None:
            result.type = source.type
            result.shape = ir.Shape([*source.shape[:-1], node.attributes["N"].as_int()])
            found = True
    return found


def _mark_sequences(graph: ir.Graph) -> None:
    """Correct the types of values that are sequences, in place."""
    for node in graph:
        if node.domain != "":
            continue
        if node.op_type in _SEQUENCES or (node.op_type == "Identity" and _is_sequence(node.inputs[0])):
            _mark(node.outputs[0])
        elif node.op_type == "If":
            _mark_branches(node)
        elif node.op_type == "Loop":
            _mark_states(node)
        elif node.op_type == "Scan":
            _mark_sequences(node.attributes["body"].as_graph())


def _mark_branches(node: ir.Node) -> None:
    for name in ("then_branch", "else_branch"):
        branch = node.attributes[name].as_graph()
        _mark_sequences(branch)
        for inner, outer in zip(branch.outputs, node.outputs, strict=False):
            if _is_sequence(inner):
                _mark(outer)


def _mark_states(node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    for given, state in zip(node.inputs[2:], body.inputs[2:], strict=False):
        if _is_sequence(given):
            _mark(state)
    _mark_sequences(body)
    for inner, outer in zip(body.outputs[1:], node.outputs, strict=False):
        if _is_sequence(inner):
            _mark(outer)


def _is_sequence(value: ir.Value | None) -> bool:
    return value is not None and isinstance(value.type, ir.SequenceType)


def _mark(value: ir.Value) -> None:
    if isinstance(value.type, ir.TensorType):
        value.type, value.shape = ir.SequenceType(value.type), None
