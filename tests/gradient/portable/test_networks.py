"""Whole networks: in float64 against differences, in float32 on onnxruntime against the same gradients."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxsgd.gradient.portable import differentiate

CNN = """
    C1 = Conv<pads = [1, 1, 1, 1]>(X, K1, k1)
    B1 = BatchNormalization(C1, S, B, M, V)
    R1 = Relu(B1)
    P1 = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(R1)
    C2 = Conv<group = 2, pads = [1, 1, 1, 1]>(P1, K2)
    A2 = Add(C2, P1)
    H2 = HardSwish(A2)
    G = GlobalAveragePool(H2)
    F = Flatten(G)
    Y = Gemm<transB = 1>(F, W, b)
"""
CNN_SHAPES = {
    "X": ("N", 2, 8, 8),
    "K1": (4, 2, 3, 3),
    "k1": (4,),
    "S": (4,),
    "B": (4,),
    "M": (4,),
    "K2": (4, 2, 3, 3),
    "W": (3, 4),
    "b": (3,),
}

TRANSFORMER = """
    E = Gather(T, I)
    L = LayerNormalization(E, g1, b1)
    q = MatMul(L, Wq) k = MatMul(L, Wk) v = MatMul(L, Wv)
    q4 = Reshape(q, heads) k4 = Reshape(k, heads) v4 = Reshape(v, heads)
    Q = Transpose<perm = [0, 2, 1, 3]>(q4)
    K = Transpose<perm = [0, 2, 3, 1]>(k4)
    U = Transpose<perm = [0, 2, 1, 3]>(v4)
    A = MatMul(Q, K) A1 = Mul(A, scale) A2 = Add(A1, mask) P = Softmax(A2)
    O = MatMul(P, U) O1 = Transpose<perm = [0, 2, 1, 3]>(O) O2 = Reshape(O1, joined)
    O3 = MatMul(O2, Wo) R = Add(O3, E)
    L2 = LayerNormalization(R, g2, b2)
    F1 = MatMul(L2, W1) D = Div(F1, root) Er = Erf(D) E1 = Add(Er, one) G1 = Mul(F1, E1)
    F2 = MatMul(G1, W2) R2 = Add(F2, R)
    Z = ReduceMean<keepdims = 0>(R2, middle)
    Y = Gemm(Z, Wy, by)
"""
TRANSFORMER_SHAPES = {
    "T": (7, 8),
    **dict.fromkeys(("g1", "b1", "g2", "b2"), (8,)),
    **dict.fromkeys(("Wq", "Wk", "Wv", "Wo"), (8, 8)),
    "W1": (8, 16),
    "W2": (16, 8),
    "Wy": (8, 3),
    "by": (3,),
}

RECURRENT = """
    H, last, c = LSTM<hidden_size = 4, direction = "bidirectional">(X, W, R, B)
    J = Transpose<perm = [1, 0, 2]>(last)
    F = Flatten(J)
    Y = Gemm(F, V, b)
"""
RECURRENT_SHAPES = {
    "X": (5, "N", 3),
    "W": (2, 16, 3),
    "R": (2, 16, 4),
    "B": (2, 32),
    "V": (8, 2),
    "b": (2,),
}

DECODER = """
    U = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]>(X, K1, k1)
    S1 = Softplus(U)
    Z = Resize<mode = "linear">(S1, , scales)
    C = Conv(Z, K2)
    Y = Sigmoid(C)
"""
DECODER_SHAPES = {"X": ("N", 2, 3, 3), "K1": (2, 3, 3, 3), "k1": (3,), "K2": (1, 3, 2, 2)}

CAUSAL = np.triu(np.full((5, 5), -1e4), 1)
NETWORKS = {
    "cnn": (CNN, CNN_SHAPES, {"V": np.array([0.5, 1.0, 1.5, 2.0])}),
    "transformer": (
        TRANSFORMER,
        TRANSFORMER_SHAPES,
        {
            "I": np.array([[1, 2, 0, 6, 1], [3, 3, 5, 4, 0]]),
            "heads": np.array([0, 0, 2, 4]),
            "joined": np.array([0, 0, 8]),
            "middle": np.array([1]),
            "scale": np.array(0.5),
            "mask": CAUSAL,
            "root": np.array(np.sqrt(2)),
            "one": np.array(1.0),
        },
    ),
    "recurrent": (RECURRENT, RECURRENT_SHAPES, {}),
    "decoder": (DECODER, DECODER_SHAPES, {"scales": np.array([1, 1, 2, 1.5], dtype=np.float32)}),
}


def build(name, kind):
    """Return a network in one precision, and values of its differentiated tensors."""
    body, shapes, constants = NETWORKS[name]
    rng = np.random.default_rng(0)
    feeds = {
        key: 0.5 * rng.normal(size=[2 if n == "N" else n for n in shape]) for key, shape in shapes.items()
    }
    inputs = ", ".join(f"{kind}[{', '.join(map(str, shape))}] {key}" for key, shape in shapes.items())
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({kind}[N, k] Y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.shape.Clear()
    for _ in range(4 if name == "decoder" else 2):
        model.graph.output[0].type.tensor_type.shape.dim.add()
    for key, array in constants.items():
        array = array.astype(np.float32) if kind == "float" and array.dtype == np.float64 else array
        model.graph.initializer.append(numpy_helper.from_array(array, key))
    return model, feeds


@pytest.mark.parametrize("name", NETWORKS)
def test_every_weight_of_a_network(compare, name):
    model, feeds = build(name, "double")
    # Bilinear weights and the error function are in single precision in onnx's evaluator.
    compare(model, feeds, ["Y"], list(feeds), rtol=1e-5 if name == "decoder" else 1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_agrees(compare, evaluate, name):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    single, feeds = build(name, "float")
    double, _ = build(name, "double")
    gradients = [ir.to_proto(differentiate(ir.from_proto(m), ["Y"], list(feeds))) for m in (single, double)]
    seed = np.random.default_rng(1).normal(size=evaluate(double, feeds)[0].shape)
    feeds["Y_grad"] = seed
    session = runtime.InferenceSession(
        gradients[0].SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found = session.run(None, {key: array.astype(np.float32) for key, array in feeds.items()})
    for mine, exact in zip(found, evaluate(gradients[1], feeds), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-3, atol=2e-5 * np.abs(exact).max())


def test_a_transformer_of_known_length_needs_no_shapes_at_run_time():
    model, feeds = build("transformer", "float")
    gradient = differentiate(ir.from_proto(model), ["Y"], list(feeds))
    assert not {"Shape", "Range", "NonZero"} & {node.op_type for node in gradient.graph}
