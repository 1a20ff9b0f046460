"""Small valid models of many kinds, the starting points of mutations."""

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

HEADER = '<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3, "own": 1]>'

#: Bodies of graphs, with the shapes of their weights, which are filled with small numbers.
TEXTS = {
    "mlp": (
        "(float[N, 4] x) => (float[N, 2] y) { h = Gemm(x, w1, b1)  a = Relu(h)  y = Gemm(a, w2, b2) }",
        {"w1": (4, 3), "b1": (3,), "w2": (3, 2), "b2": (2,)},
    ),
    "softmax": (
        "(float[N, 4] x) => (float[N, 3] y){ h = MatMul(x, w)  z = Add(h, b)  y = Softmax<axis = -1>(z) }",
        {"w": (4, 3), "b": (3,)},
    ),
    "convolution": (
        "(float[N, 1, 6, 6] x) => (float[N, 2] y) <int64[2] shape = {0, -1}>"
        "{ c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, k, kb)  r = Relu(c)"
        "  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)  q = AveragePool<kernel_shape = [3, 3]>(p)"
        "  f = Reshape(q, shape)  y = MatMul(f, w) }",
        {"k": (2, 1, 3, 3), "kb": (2,), "w": (2, 2)},
    ),
    "normalized": (
        "(float[N, 3, 4] x) => (float[N, 3, 2] y)"
        "{ b = BatchNormalization(x, s, t, m, v)  l = LayerNormalization<axis = -1>(b, g, h)"
        "  i = InstanceNormalization(l, s, t)  y = MatMul(i, w) }",
        {"s": (3,), "t": (3,), "m": (3,), "v": (3,), "g": (4,), "h": (4,), "w": (4, 2)},
    ),
    "shapes": (
        "(float[N, 2, 3] x) => (float[N, 3] y) <int64[1] axis = {1}, int64[3] tiles = {1, 2, 1},"
        " int64[1] start = {0}, int64[1] end = {1}, int64[6] pads = {0, 1, 0, 0, 0, 0}>"
        "{ a = Mul(x, w)  t = Tile(a, tiles)  p = Pad(t, pads)  s = Slice(p, start, end, axis)"
        "  e = Squeeze(s, axis)  u = Unsqueeze(e, axis)  c = Concat<axis = 1>(u, u)"
        "  y = ReduceSum<keepdims = 0>(c, axis) }",
        {"w": (2, 3)},
    ),
    "sizes": (
        "(float[N, 4] x) => (float[N, 2] y) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, float nil = {0}>"
        "{ s = Shape(x)  n = Gather(s, zero)  r = Range(zero, n, one)  f = Cast<to = 1>(r)"
        "  u = Unsqueeze(f, one_axis)  m = MatMul(x, w)  z = Mul(u, tiny)  k = ConstantOfShape(s)"
        "  q = MatMul(k, w)  a = Add(m, q)  y = Add(a, z) }",
        {"w": (4, 2), "tiny": (1,)},
    ),
    "embedding": (
        "(int64[N, 3] x) => (float[N, 2] y) <int64[1] axis = {1}>"
        "{ e = Gather(table, x)  m = ReduceMean<keepdims = 0>(e, axis)  t = Tanh(m)  y = MatMul(t, w) }",
        {"table": (10, 4), "w": (4, 2)},
    ),
    "attention": (
        "(float[N, 3, 4] x) => (float[N, 3, 4] y) <float scale = {0.5}>"
        "{ q = MatMul(x, wq)  k = MatMul(x, wk)  kt = Transpose<perm = [0, 2, 1]>(k)  s = MatMul(q, kt)"
        "  d = Mul(s, scale)  p = Softmax<axis = -1>(d)  v = MatMul(x, wv)  y = MatMul(p, v) }",
        {"wq": (4, 4), "wk": (4, 4), "wv": (4, 4)},
    ),
    "recurrent": (
        "(float[3, N, 2] x) => (float[1, N, 4] y){ all, y, c = LSTM<hidden_size = 4>(x, w, r, b) }",
        {"w": (1, 16, 2), "r": (1, 16, 4), "b": (1, 32)},
    ),
    "branches": (
        "(float[N, 2] x) => (float[N, 2] y) <bool c = {1}>"
        "{ h = MatMul(x, w)  y = If(c)<then_branch = t() => (float[N, 2] a) { a = Mul(h, v) },"
        " else_branch = e() => (float[N, 2] b) { b = Neg(h) }> }",
        {"w": (2, 2), "v": (2,)},
    ),
    "loop": (
        "(float[N, 2] x) => (float[N, 2] y) <int64 trips = {2}, bool c = {1}>"
        "{ y = Loop<body = b(int64 i, bool d, float[N, 2] s) => (bool e, float[N, 2] r)"
        " { e = Identity(d)  m = MatMul(s, w)  r = Tanh(m) }>(trips, c, x) }",
        {"w": (2, 2)},
    ),
    "scan": (
        "(float[3, 2] x) => (float[3, 2] y)"
        "{ first, y = Scan<num_scan_inputs = 1, body = b(float[2] s, float[2] t) => (float[2] r, float[2] o)"
        " { m = Mul(t, w)  r = Add(s, m)  o = Identity(r) }>(w0, x) }",
        {"w": (2,), "w0": (2,)},
    ),
    "pieces": (
        "(float[N, 4] x) => (float[N, 2] y) <int64[2] parts = {2, 2}, int64[1] k = {1}, float lo = {-1}, float hi = {1}>"
        "{ a, b = Split<axis = 1>(x, parts)  m = MatMul(a, w)  c = Clip(m, lo, hi)  v, i = TopK(c, k)"
        '  e = Einsum<equation = "ij,jk->ik">(b, w)  g = Greater(e, c)  h = Where(g, e, c)  y = Mul(h, v) }',
        {"w": (2, 2)},
    ),
    "trees": (
        "(float[N, 4] x) => (float[N, 1] y) <int64[2] cols = {0, 1}>"
        "{ s = ai.onnx.ml.Scaler<offset = [0.0, 0.0, 0.0, 0.0], scale = [1.0, 2.0, 1.0, 1.0]>(x)"
        "  y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 2.0, 3.0, 4.0], intercepts = [0.5], targets = 1>(s) }",
        {"unused": (2,)},
    ),
    "resized": (
        "(float[N, 1, 4, 4] x) => (float[N, 1, 8, 8] y) <float[4] scales = {1, 1, 2, 2}>"
        "{ m = ConvTranspose<kernel_shape = [1, 1]>(x, k)  g = GlobalAveragePool(m)  a = Add(m, g)"
        '  d = DepthToSpace<blocksize = 1>(a)  y = Resize<mode = "linear">(d, , scales) }',
        {"k": (1, 1, 1, 1)},
    ),
    "chosen": (
        "(float[N, 4] x) => (float[N, 4] y) <int64[2] rows = {0, 2}, int64[1] place = {1}, int64[1, 2] at = {0, 1}>"
        "{ g = GatherElements<axis = 1>(w, at)  h = Mul(x, v)  c = CumSum(h, one_axis)  f = Flatten(c)"
        "  s = ReduceMax<keepdims = 1>(f, place)  d = Div(f, s)  e = Exp(d)  l = ReduceL2(g)  y = Mul(e, l) }",
        {"w": (1, 4), "v": (4,)},
    ),
    "function": (
        "(float[N, 3] x) => (float[N, 2] y) { h = own.Dense(x, w)  y = Sigmoid(h) }"
        ' <domain: "own", opset_import: ["": 18]> Dense (a, b) => (c) { m = MatMul(a, b)  c = Elu(m) }',
        {"w": (3, 2)},
    ),
}


def seed_models():
    """Return serialized models by name."""
    models = {name: _model(*text) for name, text in TEXTS.items()}
    models.update(_converted())
    return {name: model.SerializeToString() for name, model in models.items()}


def _model(text, weights):
    model = onnx.parser.parse_model(f"{HEADER} g {text}")
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        array = rng.uniform(0.1, 0.9, size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    if "one_axis" in text:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one_axis"))
    return model


def _converted():
    """Return three estimators converted by skl2onnx."""
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    y = X @ np.arange(4)
    found = {
        "ridge": make_pipeline(StandardScaler(), Ridge()).fit(X, y),
        "logistic": LogisticRegression().fit(X, np.digitize(y, [-1, 1])),
        "perceptron": MLPRegressor(hidden_layer_sizes=(5,), max_iter=5).fit(X, y),
    }
    return {name: to_onnx(model, X, target_opset=18) for name, model in found.items()}
