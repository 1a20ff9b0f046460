"""Helpers of the tests of lowering: graphs from text, and their operators."""

import onnx
import onnx.parser

from onnxsgd.graph.model import to_ir


def parse(body, opset=18, x="float[N, 3, 4] x", y="float[] y", weights=""):
    imports = f'["": {opset}, "ai.onnx.ml": 3]'
    text = f"<ir_version: 8, opset_import: {imports}> g ({x}) => ({y}) {weights} {{ {body} }}"
    proto = onnx.parser.parse_model(text)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    inferred = onnx.shape_inference.infer_shapes(proto)
    return to_ir(inferred)


def operators(model):
    return {(node.domain, node.op_type) for node in model.graph}
