"""Multiples of columns are recognised, and computed on the non-zeros."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from scipy import sparse

from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.column_multiples import column_multiple

X = np.array([[0, 1.5, -2], [0, 0, 0], [3, 0, 0.25]], np.float32)

MULTIPLES = {
    "Identity": "y = Identity (x)",
    "Mul": "y = Mul (x, v)",
    "Mul on the left": "y = Mul (v, x)",
    "Div": "y = Div (x, row)",
    "one factor": "y = Mul (x, c)",
    "zeros added": "a = Sub (x, zeros)  b = Add (zeros, a)  y = Mul (b, v)",
    "Cast": "a = Mul (x, v)  y = Cast <to = 11> (a)",
}
OTHERS = {
    "centred": "y = Sub (x, v)",
    "a constant over x": "y = Div (v, x)",
    "by rows": "y = Mul (x, column)",
    "division by zero": "y = Div (x, zeros)",
    "two data": "y = Mul (x, x)",
    "another function": "y = Exp (x)",
    "an integer": "y = Cast <to = 7> (x)",
    "rounded": "a = Cast <to = 7> (x)  y = Cast <to = 1> (a)",
}


def graph(body, kind="float"):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[3, 3] x) => ({kind}[3, 3] y)
        <float[3] v = {{2, -0.5, 4}}, float[1, 3] row = {{1, 2, 8}}, float c = {{3}},
         float[3] zeros = {{0, 0, 0}}, float[3, 1] column = {{1, 2, 3}}> {{ {body} }}"""
    )


def read(proto):
    return column_multiple(to_ir(onnx.shape_inference.infer_shapes(proto)), "y")


@pytest.mark.parametrize("body", MULTIPLES.values(), ids=MULTIPLES)
def test_multiples(body):
    proto = graph(body, "double" if "= 11" in body else "float")
    multiple = read(proto)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": X})
    have = multiple.of(sparse.csr_matrix(X))
    assert multiple.feature == "x"
    assert have.dtype == want.dtype
    assert have.nnz == 4
    np.testing.assert_array_equal(have.toarray(), want)


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_other_functions(body):
    assert read(graph(body, "int64" if body == OTHERS["an integer"] else "float")) is None
