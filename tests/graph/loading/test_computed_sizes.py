"""Sizes and trips that a graph computes from its data are counted before they are made."""

import time

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import EngineError, GraphError
from onnxsgd.graph.loading import computed_sizes
from onnxsgd.graph.loading.computed_sizes import with_guards
from onnxsgd.runtime.sessions import make_session

HEADER = '<ir_version: 8, opset_import: ["": 18]>'


def content_of(nodes, inputs, constants=""):
    """Return a graph that ends in `y`, of any type, as bytes."""
    model = onnx.parser.parse_model(f"{HEADER} g ({inputs}) => (float y) {constants} {{ {nodes} }}")
    kind = model.graph.output[0].type.tensor_type
    kind.ClearField("shape")
    last = model.graph.node[-1]
    if last.op_type == "Range":
        kind.elem_type = onnx.TensorProto.INT64
    return model.SerializeToString()


def run(content, **feeds):
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


X = "float[N, M] x, int64[K] s"
ROWS = np.ones((3, 4), np.float32)
#: Nodes, declared inputs, constants, and feeds whose result has the number of elements, for a limit of 1,000.
COUNTED = {
    "Expand": ("y = Expand(x, s)", X, "", {"x": ROWS, "s": [7, 3, 4]}, 84),
    "Tile": ("y = Tile(x, s)", X, "", {"x": ROWS, "s": [10, 8]}, 960),
    "Tile, too much": ("y = Tile(x, s)", X, "", {"x": ROWS, "s": [10, 9]}, 1080),
    "Pad": ("y = Pad(x, s)", X, "", {"x": ROWS, "s": [1, 2, 3, 4]}, 70),
    "Pad, too much": ("y = Pad(x, s)", X, "", {"x": ROWS, "s": [0, 0, 98, 6]}, 1010),
    "Pad of axes": ("y = Pad(x, s, , a)", X, "<int64[1] a = {1}>", {"x": ROWS, "s": [1, 5]}, 30),
    "Pad of axes, too much": (
        "y = Pad(x, s, , a)",
        X,
        "<int64[1] a = {1}>",
        {"x": ROWS[:1], "s": [1, 996]},
        1001,
    ),
    "ConstantOfShape": ("y = ConstantOfShape(s)", "int64[K] s", "", {"s": [10, 100]}, 1000),
    "ConstantOfShape, too much": ("y = ConstantOfShape(s)", "int64[K] s", "", {"s": [7, 11, 13]}, 1001),
    "Range": ("y = Range(s, t, d)", "int64 s, int64 t, int64 d", "", {"s": 5, "t": 2005, "d": 2}, 1000),
    "Range, down": (
        "y = Range(s, t, d)",
        "int64 s, int64 t, int64 d",
        "",
        {"s": 0, "t": -1002, "d": -1},
        1002,
    ),
    "OneHot": (
        "y = OneHot(i, s, v)",
        "int64[N] i, int64 s",
        "<float[2] v = {0, 1}>",
        {"i": [0, 1], "s": 500},
        1000,
    ),
    "OneHot, too much": (
        "y = OneHot(i, s, v)",
        "int64[N] i, int64 s",
        "<float[2] v = {0, 1}>",
        {"i": [0, 1], "s": 501},
        1002,
    ),
    "Resize": (
        "y = Resize(x, , s)",
        "float[N, M] x, float[2] s",
        "",
        {"x": ROWS, "s": np.float32([2, 3])},
        72,
    ),
    "Resize, too much": (
        "y = Resize(x, , s)",
        "float[N, M] x, float[2] s",
        "",
        {"x": ROWS, "s": np.float32([3, 30])},
        1080,
    ),
    "Resize to sizes": (
        "y = Resize(x, , , s)",
        "float[N, M] x, int64[2] s",
        "",
        {"x": ROWS, "s": [30, 34]},
        1020,
    ),
    "HannWindow": ("y = HannWindow(s)", "int64 s", "", {"s": 1001}, 1001),
    "CenterCropPad": ("y = CenterCropPad(x, s)", X, "", {"x": ROWS, "s": [40, 30]}, 1200),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_elements_of_a_result_are_counted(monkeypatch, name):
    """Up to the limit, results are those without the guard; one more, and an error names node and number."""
    nodes, inputs, constants, feeds, n_elements = COUNTED[name]
    content = content_of(nodes, inputs, constants)
    expected = run(content, **feeds)
    assert expected.size == n_elements
    monkeypatch.setattr(computed_sizes, "MOST_COMPUTED", 1000)
    session = make_session(content, 1)
    feeds = {key: np.asarray(value) for key, value in feeds.items()}
    if n_elements <= 1000:
        np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    else:
        with pytest.raises(Exception, match=f"'guard: {name.split()[0].strip(',')} .*idx={n_elements} "):
            session.run(None, feeds)


X_ONLY = "float[N, 4] x"
#: Graphs whose sizes and trips follow from shapes as they are.
UNGUARDED = {
    "expanded to the batch": "z = Shape(x) y = Expand(one, z)",
    "expanded to the batch and a constant": "z = Shape <end = 1>(x) w = Concat <axis = 0>(z, three) "
    "y = Expand(one, w)",
    "a mask of torch": "z = Shape(x) o = ConstantOfShape <value = int64[1] {1}>(two) n = Mul(o, minus) "
    "e = Equal(z, n) "
    "w = Where(e, o, z) y = Expand(one, w)",
    "the positions of a sequence": "z = Shape(x) t = Gather(z, i) y = Range(i, t, i)",
    "resized by a factor": 'y = Resize <mode = "nearest">(x, , scales)',
    "resized like a tensor": 'z = Shape(x) y = Resize <mode = "nearest">(x, , , z)',
    "a gradient of a slice": "z = Shape(x) d = Sub(z, z) p = Concat <axis = 0>(d, d) y = Pad(x, p)",
    "a loop over a sequence": "z = Shape(x) t = Gather(z, i) y = Loop(t, true, one) "
    "<body = b (int64 k, bool c, float[1] v) "
    "=> (bool d, float[1] u) { d = Identity(c) u = Tanh(v) }>",
    "a loop of constant trips": "y = Loop(i, , x) <body = b (int64 k, bool c, float[N, 4] v) "
    "=> (bool d, float[N, 4] u) { s = ReduceSum <keepdims = 0>(v) d = Less(s, limit) u = Add(v, v) }>",
    "no size at all": "y = Relu(x)",
}
CONSTANTS = (
    "<float[1] one = {1}, int64[1] three = {3}, int64[1] two = {2}, int64[1] minus = {-1}, int64 i = {1}, "
    "float[2] scales = {2, 2}, bool true = {1}, float limit = {1000}>"
)


@pytest.mark.parametrize("name", UNGUARDED)
def test_sizes_of_shapes_cost_nothing(name):
    """Gradients and files of torch are full of them: the session gets the same bytes."""
    content = content_of(UNGUARDED[name], X_ONLY, CONSTANTS)
    run(content, x=ROWS)
    assert with_guards(content) is content


#: Graphs whose sizes are computed from values, as real ones do.
ACCEPTED = {
    "a mask of lengths": (
        "m = ReduceMax <keepdims = 0>(n) r = Range(zero, m, one) c = Unsqueeze(n, axis) "
        "b = Less(r, c) y = Cast <to = 1>(b)",
        "int64[N] n",
        {"n": [2, 0, 3]},
        [[1, 1, 0], [0, 0, 0], [1, 1, 1]],
    ),
    "a decoding loop": (
        "y = Loop(, true, x) <body = b (int64 k, bool c, float[N, 4] v) => (bool d, float[N, 4] u) "
        "{ u = Add(v, v) s = ReduceMax <keepdims = 0>(u) d = Less(s, limit) }>",
        X_ONLY,
        {"x": ROWS},
        ROWS * 128,
    ),
    "a loop of the batch": (
        "m = ReduceMax <keepdims = 0>(n) y = Loop(m, true, start) <body = b (int64 k, bool c, float v) "
        "=> (bool d, float u) { d = Identity(c) u = Add(v, v) }>",
        "int64[N] n",
        {"n": [2, 0, 3]},
        8.0,
    ),
    "a loop of the most trips": (
        "y = Loop(n, true, start) <body = b (int64 k, bool c, float v) => (bool d, float u) "
        "{ d = Less(k, most) u = Cast <to = 1>(k) }>",
        "int64 n",
        {"n": 2**62},
        700.0,
    ),
    "a resize by arithmetic": (
        'z = Shape(x) d = Mul(z, two) y = Resize <mode = "nearest">(x, , , d)',
        X_ONLY,
        {"x": ROWS},
        np.ones((6, 8)),
    ),
}
MORE = (
    "<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] axis = {1}, bool true = {1}, "
    "float limit = {100}, float start = {1}, int64 most = {700}>"
)


@pytest.mark.parametrize("name", ACCEPTED)
def test_computed_sizes_of_real_models_are_accepted(name):
    nodes, inputs, feeds, expected = ACCEPTED[name]
    content = content_of(nodes, inputs, MORE)
    assert with_guards(content) is not content
    feeds = {key: np.asarray(value) for key, value in feeds.items()}
    np.testing.assert_array_equal(make_session(content, 1).run(None, feeds)[0], expected)


LOOP = "=> (bool d, float u) {{ {} u = Add(v, v) }}>"
TRIPS = {
    "of the data": (
        "c = Cast <to = 7>(f) r = Loop(c, true, one) <body = b (int64 k, bool e, float v) "
        + LOOP.format("d = Identity(e)"),
        "makes about 1,099,511,627,776 trips, a number computed from data: up to 262,144 are accepted",
    ),
    "that nothing ends": (
        "r = Loop(, true, one) <body = b (int64 k, bool e, float v) " + LOOP.format("d = Less(zero, f)"),
        "has made 262,144 trips: no more are accepted",
    ),
    "in a branch": (
        "c = Cast <to = 7>(f) o = Less(zero, f) r = If(o) <then_branch = t () => (float p) "
        "{ p = Loop(c, true, one) "
        "<body = b (int64 k, bool e, float v) " + LOOP.format("d = Identity(e)") + " }, "
        "else_branch = s () => (float q) { q = Identity(one) }>",
        "makes about 1,099,511,627,776 trips",
    ),
}
HUGE = "Expand 'n' makes about 1,099,511,627,776 elements, a number computed from data: up to 536,870,912 are"
SIZES = {
    "of the data": ("c = Cast <to = 7>(g) h = Expand(one, c)", HUGE),
    "in a loop": (
        "h = Loop(two, true, ones) <body = b (int64 k, bool e, float[L] v) => (bool d, float[H] u) "
        "{ d = Identity(e) c = Cast <to = 7>(g) u = Expand(one, c) }>",
        HUGE,
    ),
    "of a shape by arithmetic": ("z = Shape(x) c = Mul(z, many) h = Tile(x, c)", "Tile 'n' makes about "),
    "of a shape and a constant": (
        "z = Shape <end = 1>(x) c = Concat <axis = 0>(z, huge) h = Expand(one, c)",
        "Expand 'n' makes about [0-9,]* elements",
    ),
    "beyond all integers": (
        "z = Shape(x) v = Mul(z, many) c = Concat <axis = 0>(v, v, v, v) h = Expand(one, c)",
        "Expand 'n' makes",
    ),
}


def model_of(nodes, result):
    """Return a model whose raw prediction is a product, plus nothing of `result`."""
    model = onnx.parser.parse_model(
        f"""{HEADER} g (float[N, 4] x) => (float[N, 1] y)
        <float zero = {{0}}, float one = {{1}}, float[1] ones = {{1}}, int64 two = {{2}}, bool true = {{1}},
         int64[1] axis = {{0}}, int64 many = {{1000000000}}, int64[1] huge = {{1099511627776}},
         float factor = {{1099511627776.0}}>
        {{
            product = MatMul(x, w)
            a = Abs(x) largest = ReduceMax <keepdims = 0>(a) f = Mul(largest, factor) g = Unsqueeze(f, axis)
            {nodes}
            t = ReduceMax <keepdims = 0>({result}) none = Mul(t, zero) y = Add(product, none)
        }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((4, 1), 0.5, np.float32), "w"))
    for node in model.graph.node:
        node.name = "n" if node.op_type in ("Expand", "Tile", "Loop") else ""
        for attribute in node.attribute:
            for inner in attribute.g.node:
                inner.name = "n" if inner.op_type in ("Expand", "Loop") else ""
    return model.SerializeToString()


BOMBS = {
    **{f"trips {key}": (nodes, "r", message) for key, (nodes, message) in TRIPS.items()},
    **{f"sizes {key}": (nodes, "h", message) for key, (nodes, message) in SIZES.items()},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_fit_on_a_bomb_is_refused_at_once(name):
    nodes, result, message = BOMBS[name]
    X = np.ones((20, 4), np.float32)
    begin = time.process_time()
    with pytest.raises((GraphError, EngineError), match=message):
        OnnxSGDRegressor(model_of(nodes, result), max_iter=1, random_state=0).fit(X, X[:, 0])
    # 2^18 trips of a condition take a second
    assert time.process_time() - begin < 20


def test_a_later_batch_is_refused_too():
    """Values of the data decide: a fit on small ones is one thing, a prediction for large ones another."""
    nodes, result, message = BOMBS["sizes of the data"]
    X = np.full((20, 4), 1e-12, np.float32)
    learner = OnnxSGDRegressor(model_of(nodes, result), max_iter=1, tol=None, random_state=0).fit(X, X[:, 0])
    before = learner.predict(X)
    with pytest.raises(EngineError, match=message):
        learner.predict(X * 1e12)
    np.testing.assert_array_equal(learner.predict(X), before)


def test_exports_have_no_guard():
    nodes, result, _ = BOMBS["sizes of the data"]
    X = np.full((20, 4), 1e-12, np.float32)
    learner = OnnxSGDRegressor(model_of(nodes, result), max_iter=1, tol=None, random_state=0).fit(X, X[:, 0])
    assert b"guard" not in learner.to_onnx().SerializeToString()
