"""Products of first layers become inputs, and the rest of the graph computes the same numbers."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.reading.first_layers import first_layers
from onnxsgd.graph.reading.product_inputs import with_product_inputs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3)).astype(np.float32)
V, W, B = (RNG.normal(size=shape).astype(np.float32) for shape in [(3, 2), (2, 3), (2,)])

CASES = {
    "matmul, then bias": "p = MatMul (x, v)  s = Add (p, b)  y = Relu (s)",
    "gemm": "s = Gemm (x, v, b)  y = Relu (s)",
    "transposed": "s = Gemm <transB = 1> (x, w, b)  y = Relu (s)",
    "the output": "y = MatMul (x, v)",
    "two layers": "p = MatMul (x, v)  q = Gemm <transB = 1> (x, w, b)  y = Mul (p, q)",
}


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_the_rest_computes_the_same(body):
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x) => (float[N, 2] y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name)
        for name, array in {"v": V, "w": W, "b": B}.items()
        if f"{name})" in body or f"{name}," in body
    )
    model = to_ir(proto)
    layers = first_layers(model, ["v", "w", "b"])
    rest, products = with_product_inputs(model, layers)
    feeds = {name: X @ {"v": V, "w": W.T}[layer.weight] for name, layer in zip(products, layers, strict=True)}
    assert [value.name for value in rest.graph.inputs] == list(products)
    assert not {layer.weight for layer in layers} & set(rest.graph.initializers)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": X})
    changed = to_proto(rest)
    onnx.checker.check_model(changed)
    (have,) = ReferenceEvaluator(changed).run(None, feeds)
    np.testing.assert_allclose(have, want, rtol=1e-6)
