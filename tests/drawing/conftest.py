"""Graphs to draw."""

import onnx.parser
import pytest

from onnxsgd.graph.model import to_ir


@pytest.fixture
def graph():
    """Return a function that reads the text of a graph."""

    def read(text):
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
        return to_ir(model).graph

    return read
