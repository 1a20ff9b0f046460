"""Factors of products that take a constant of the product."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import evaluate
from onnx import parser

from onnxsgd.engine.step.widened_factors import widen_factors
from onnxsgd.graph.model import to_ir

_BEFORE = "p = Gemm<transA=1, alpha=0.5>(a, b)\n r = Reshape(p, s)\n "


def _model(lines, opset, more=""):
    """Return a product of a [3, 8] and b [3, 10], reshaped to 40 rows of two, times a constant [2, 5]."""
    return to_ir(
        onnx.shape_inference.infer_shapes(
            parser.parse_model(
                f"""<ir_version: 8, opset_import: ["": {opset}]>
                g (float[3, 8] a, float[3, 10] b, float[2, 5] f) => (float[40, 5] y{more})
                <int64[2] s = {{40, 2}}, float[2, 5] e = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
                float[5, 2] t = {{1, 6, 2, 7, 3, 8, 4, 9, 5, 10}}> {{ {lines} }}"""
            )
        )
    )


def _feeds():
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 8), "b": (3, 10), "f": (2, 5)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize(
    "last", ["y = MatMul(r, e)", "y = Gemm(r, e)", "y = Gemm<transB=1, alpha=2.0>(r, t)"]
)
def test_the_constant_moves_to_the_smaller_factor(last, opset):
    """The larger product comes last, and has the numbers of the former one."""
    model, feeds = _model(_BEFORE + last, opset), _feeds()
    widen_factors(model.graph)
    *_, product, reshape = model.graph
    assert (reshape.op_type, product.op_type, list(product.outputs[0].shape)) == ("Reshape", "Gemm", [8, 25])
    (found,) = evaluate(model, **feeds)
    exact = 0.5 * feeds["a"].astype(np.float64).T @ feeds["b"]
    scale = 2.0 if "alpha" in last else 1.0
    expected = scale * exact.reshape(40, 2) @ np.arange(1.0, 11.0).reshape(2, 5)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("lines", "more"),
    [
        (_BEFORE + "y = MatMul(r, f)", ""),
        (_BEFORE + "y = MatMul(r, e)", ", float[8, 10] p"),
        (_BEFORE + "y = MatMul(r, e)", ", float[40, 2] r"),
    ],
    ids=["another tensor", "product is read", "rows are read"],
)
def test_other_products_stay(lines, more):
    """Nothing is gained where the product is needed itself, and nothing known where the factor varies."""
    model = _model(lines, 18, more)
    before = [node.op_type for node in model.graph]
    widen_factors(model.graph)
    assert [node.op_type for node in model.graph] == before


def test_products_of_many_terms_stay(monkeypatch):
    """With many terms, the wider product takes longer than the constant's."""
    monkeypatch.setattr("onnxsgd.engine.step.widened_factors._TERMS", 2)
    model = _model(_BEFORE + "y = MatMul(r, e)", 18)
    widen_factors(model.graph)
    assert [node.op_type for node in model.graph] == ["Gemm", "Reshape", "MatMul"]
