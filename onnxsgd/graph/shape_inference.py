"""Inference of types and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir
from onnx import helper

from onnxsgd.graph.model import subgraphs
from onnxsgd.graph.nodes import bodies
from onnxsgd.graph.open_shapes import fill_open_shapes
from onnxsgd.graph.operators import Fact, having

__all__ = ["ShapeInferencePass"]

_SEQUENCES = having(Fact.SEQUENCE)

#: Inference reads the content of tensors of up to so many bytes: sizes and axes.
_SMALL = 1000


class ShapeInferencePass(ir.passes.InPlacePass):
    """Inference by onnx that distinguishes sequences of tensors from tensors, and leaves fewer shapes open.

    A model on which inference fails keeps its shapes. The pass of onnx_ir, up to 1.1 at least, gives an
    untyped sequence the type of its elements, and reads the whole inferred model to take over its shapes, at
    twice the time for 70 convolutions. onnx knows no operators of onnxruntime, and few of ai.onnx.ml.
    """

    def __init__(self, *, check_type: bool = True, strict_mode: bool = True, data_prop: bool = True) -> None:
        super().__init__()
        self._options = {"check_type": check_type, "strict_mode": strict_mode, "data_prop": data_prop}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Infer in place."""
        self._infer(model)
        # each round reaches the operators behind those of the last one, and at least one of them
        for _ in range(len(model.graph)):
            if not fill_open_shapes(model.graph):
                break
            self._infer(model)
        _mark_sequences(model.graph)
        return ir.passes.PassResult(model, modified=True)

    def _infer(self, model: ir.Model) -> None:
        try:
            inferred = self._inferred(model)
        except Exception:
            # of onnx, onnx_ir or protobuf: what they cannot infer or write stays unknown
            return
        _take_over(model.graph, inferred.graph)

    def _inferred(self, model: ir.Model) -> onnx.ModelProto:
        """Return a light file of the model with inferred types and shapes."""
        with _light(model.graph):
            proto = ir.serde.serialize_model(model)
        _unpack_products(proto.graph)
        return onnx.shape_inference.infer_shapes(proto, **self._options)


@contextmanager
def _light(graph: ir.Graph) -> Iterator[None]:
    """Hold initializers as inputs, the large ones without content, while `graph` is written for inference."""
    inputs, held = list(graph.inputs), {value: value.const_value for value in graph.initializers.values()}
    large = [value for value, tensor in held.items() if tensor is None or tensor.nbytes > _SMALL]
    try:
        for value, tensor in held.items():
            if tensor is not None:
                value.shape = ir.Shape(tensor.shape.numpy()) if value.shape is None else value.shape
                value.dtype = tensor.dtype if value.dtype is None else value.dtype
            if not value.is_graph_input():
                graph.inputs.append(value)
        for value in large:
            value.const_value = None
            del graph.initializers[str(value.name)]
        yield
    finally:
        graph.initializers.clear()
        for value, tensor in held.items():
            # in their order
            value.const_value = tensor
            graph.initializers[str(value.name)] = value
        graph.inputs.clear()
        graph.inputs.extend(inputs)


def _take_over(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Give the types and shapes of `inferred` to those values of `graph` for which one is not known."""
    types = {info.name: info.type for info in (*inferred.input, *inferred.output, *inferred.value_info)}
    for value in _values(graph):
        is_known = value.dtype is not None and value.shape is not None and value.shape.is_static()
        if not is_known and value.name in types:
            _set(value, types[value.name])
    for node, written in zip(graph, inferred.node, strict=True):
        for body, inferred_body in zip(bodies(node), subgraphs([written]), strict=True):
            _take_over(body, inferred_body)


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _set(value: ir.Value, type_: onnx.TypeProto) -> None:
    shape, kind = (
        ir.serde.deserialize_type_proto_for_shape(type_),
        ir.serde.deserialize_type_proto_for_type(type_),
    )
    if shape is not None:
        value.shape = shape
    if kind is not None:
        value.dtype = kind.dtype


def _unpack_products(graph: onnx.GraphProto) -> None:
    """Replace products with packed weights, which onnx does not know, by those of matrices."""
    inputs = {value.name: value for value in graph.input}
    for node in graph.node:
        if (node.domain, node.op_type) != ("com.microsoft", "MatMulNBits") or node.input[2] not in inputs:
            continue
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        scales, unpacked = inputs[node.input[2]], f"{node.output[0]} unpacked"
        kind = scales.type.tensor_type.elem_type
        graph.input.append(helper.make_tensor_value_info(unpacked, kind, [sizes["K"], sizes["N"]]))
        node.CopyFrom(helper.make_node("MatMul", [node.input[0], unpacked], [node.output[0]]))


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
