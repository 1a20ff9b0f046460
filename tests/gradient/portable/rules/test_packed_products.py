"""Products with packed weights, against the matrix in numpy."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable import differentiate

RNG = np.random.default_rng(0)
BLOCK = 16


def packed(levels, bits):
    """Return levels along the last axis as bytes; of four bits, the first one in the lower half."""
    return levels if bits == 8 else (levels[..., ::2] | levels[..., 1::2] << 4).astype(np.uint8)


def product(rows, columns, points, bits=4, dims=("batch",), **attributes):
    """Return a model of one product, and its matrix of shape [rows, columns]."""
    count = -(-columns // BLOCK)
    levels = RNG.integers(0, 1 << bits, (rows, count, BLOCK)).astype(np.uint8)
    scale = RNG.uniform(0.01, 0.1, (rows, count)).astype(np.float32)
    zero = RNG.integers(0, 1 << bits, (rows, count + count % 2)).astype(np.uint8)
    held = {"B": packed(levels, bits), "S": scale if points != "flat" else scale.ravel()}
    if points == "real":
        held["Z"] = zero[:, :count].astype(np.float32)
    elif points == "none":
        zero[:] = 1 << (bits - 1)
    else:
        table = packed(zero, bits) if bits == 4 else zero[:, :count]
        held["Z"] = table if points == "bytes" else table.ravel()
    matrix = (levels.astype(np.float64) - zero[:, :count, None]) * scale[..., None]
    node = helper.make_node(
        "MatMulNBits", ["X", *held], ["Y"], domain="com.microsoft", K=columns, N=rows, bits=bits,
        block_size=BLOCK, **attributes,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [*dims, columns])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [*dims, rows])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, matrix.reshape(rows, -1)[:, :columns]


def run(proto, feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("points", ["none", "bytes", "flat", "real"])
@pytest.mark.parametrize("columns", [16, 40, 48])
@pytest.mark.parametrize("dims", [("batch",), ("batch", 3)])
def test_the_gradient_is_the_product_with_the_matrix(points, columns, dims):
    model, matrix = product(5, columns, points, dims=dims)
    shape = (2, *dims[1:])
    x, seed = (RNG.normal(size=(*shape, size)).astype(np.float32) for size in (columns, 5))
    np.testing.assert_allclose(run(model, {"X": x})[0], x @ matrix.T, rtol=1e-3, atol=1e-4)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], ["X"]))
    y, dx = run(gradient, {"X": x, "Y_grad": seed})
    np.testing.assert_allclose(dx, seed @ matrix, rtol=1e-4, atol=1e-5)
    assert y.shape == seed.shape


def test_other_forms_are_refused():
    model, _ = product(5, 16, "none")
    model.graph.node[0].attribute[[a.name for a in model.graph.node[0].attribute].index("bits")].i = 2
    with pytest.raises(NotTrainableError, match="MatMulNBits .*has no gradient rule for bits=2; accepted: 4"):
        differentiate(ir.from_proto(model), ["Y"], ["X"])
    model, _ = product(5, 16, "bytes")
    model.graph.node[0].input.append("g")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(16, np.int32), "g"))
    with pytest.raises(NotTrainableError, match="no gradient rule for an order of groups"):
        differentiate(ir.from_proto(model), ["Y"], ["X"])


@pytest.mark.parametrize("points", ["none", "bytes"])
def test_eight_bits(points):
    """Not every runtime has a kernel for them: the gradient alone is run."""
    model, matrix = product(5, 40, points, bits=8)
    gradient = differentiate(ir.from_proto(model), ["Y"], ["X"])
    proto = ir.to_proto(gradient)
    del proto.graph.output[0]
    kept = [node for node in proto.graph.node if node.op_type != "MatMulNBits"]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    seed = RNG.normal(size=(2, 5)).astype(np.float32)
    found = run(proto, {"X": np.zeros((2, 40), np.float32), "Y_grad": seed})[0]
    np.testing.assert_allclose(found, seed @ matrix, rtol=1e-4, atol=1e-4)
