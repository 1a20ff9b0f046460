"""Products with a matrix, written with their bias as one Gemm."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.graph.lowering.forms import AFFINE_FORMS, write_out
from onnxsgd.graph.model import to_ir, to_proto

#: The nodes, the shapes of X, W and B.
WRITTEN = {
    "a table": ("P = MatMul(X, W) Y = Add(P, B)", (3, 4), (4, 5), (5,)),
    "a table, and a row": ("P = MatMul(X, W) Y = Add(B, P)", (3, 4), (4, 5), (1, 5)),
    "a table of one row": ("P = MatMul(X, W) Y = Add(P, B)", (1, 4), (4, 5), (1, 5)),
    "three axes": ("P = MatMul(X, W) Y = Add(P, B)", (2, 3, 4), (4, 5), (5,)),
    "four axes": ("P = MatMul(X, W) Y = Add(B, P)", (2, 3, 2, 4), (4, 5), (5,)),
    "one column": ("P = MatMul(X, W) Y = Add(P, B)", (2, 3, 4), (4, 1), (1,)),
}
KEPT = {
    "a table for each element": ("P = MatMul(X, W) Y = Add(P, B)", (3, 4), (4, 5), (3, 5)),
    "a column": ("P = MatMul(X, W) Y = Add(P, B)", (3, 4), (4, 5), (3, 1)),
    "a table and a number": ("P = MatMul(X, W) Y = Add(P, B)", (3, 4), (4, 5), (1, 1)),
    "a row beside three axes": ("P = MatMul(X, W) Y = Add(P, B)", (2, 3, 4), (4, 5), (1, 5)),
    "a number": ("P = MatMul(X, W) Y = Add(P, B)", (2, 3, 4), (4, 5), (1,)),
    "a row of each sample": ("P = MatMul(X, W) Y = Add(P, B)", (2, 3, 4), (4, 5), (2, 1, 5)),
    "a matrix for each sample": ("P = MatMul(X, W) Y = Add(P, B)", (2, 3, 4), (2, 4, 5), (5,)),
    "a vector": ("P = MatMul(X, W) Y = Add(P, B)", (2, 3, 4), (4,), (3,)),
    "a product read twice": ("P = MatMul(X, W) S = Add(P, B) Y = Mul(S, P)", (2, 3, 4), (4, 5), (5,)),
    "no rows": ("P = MatMul(X, W) Y = Add(P, B)", (2, 0, 4), (4, 5), (5,)),
}


def models(case, kind="float", batch=None):
    """Return the model of a case, and the same written out."""
    nodes, x, weight, bias = case
    sizes = ", ".join(map(str, (batch or x[0], *x[1:])))
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g ({kind}[{sizes}] X, {kind}{list(weight)} W, {kind}{list(bias)} B) => ({kind}[A] Y) {{ {nodes} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model)
    written = to_ir(model)
    write_out(written, AFFINE_FORMS)
    return model, to_proto(written)


def operators(model):
    return [node.op_type for node in model.graph.node]


def test_every_form_of_affine_layers_is_tested():
    assert set(AFFINE_FORMS) == {("", "Add")}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_numbers(name):
    case, rng = WRITTEN[name], np.random.default_rng(0)
    model, written = models(case)
    assert "Gemm" in operators(written)
    feeds = dict(zip("XWB", (rng.normal(size=shape).astype(np.float32) for shape in case[1:]), strict=True))
    expected, found = (ReferenceEvaluator(each).run(None, feeds)[0] for each in (model, written))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", KEPT)
def test_other_sums_stay(name):
    model, written = models(KEPT[name])
    assert operators(written) == operators(model)


@pytest.mark.parametrize("form", [{"kind": "double"}, {"batch": "N"}], ids=["double precision", "open size"])
def test_other_tensors_stay(form):
    assert "Gemm" not in operators(models(WRITTEN["three axes"], **form)[1])
