"""Tensors that follow from constants are counted before they are computed."""

import resource
import time

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxsgd
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.loading import constant_sizes
from onnxsgd.graph.loading.load import load_model

HEADER = '<ir_version: 8, opset_import: ["": 18, "own": 1]>'


def model_of(nodes, functions="", **constants):
    """Return a model that adds the sum of `h`, which `nodes` compute, to a product."""
    text = f"""{HEADER} g (float[N, 4] x) => (float[N, 2] y) {{
        m = MatMul(x, w)
        {nodes}
        f = Cast<to = 1>(h)
        s = ReduceSum<keepdims = 0>(f)
        y = Add(m, s)
    }} {functions}"""
    model = onnx.parser.parse_model(text)
    constants = {"w": np.ones((4, 2), np.float32), **constants}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a), k) for k, a in constants.items()
    )
    return model


INTEGERS = {
    "a": np.int64(1000),
    "zero": np.int64(0),
    "one": np.int64(1),
    "axis": np.array([1]),
    "v": np.ones(1, np.float32),
}
#: 10^9 of four constants, and as a shape.
SIZE = "b = Mul(a, a) c = Mul(b, a) shape = Reshape(c, axis)"

BOMBS = {
    "Range": f"{SIZE} h = Range(zero, c, one)",
    "ConstantOfShape": f"{SIZE} h = ConstantOfShape(shape)",
    "Expand": f"{SIZE} h = Expand(v, shape)",
    "Tile": f"{SIZE} h = Tile(v, shape)",
    "in steps": f"{SIZE} q = Sqrt(fc) t = Cast<to = 7>(q) u = Mul(t, t) r = Reshape(u, axis) h = Expand(v, r)"
    .replace("q = Sqrt", "fc = Cast<to = 1>(c) q = Sqrt"),
    "of a shape": "z = Shape(w) p = ReduceProd<keepdims = 0>(z) b = Mul(p, a) c = Mul(b, a) d = Mul(c, a) "
    "r = Reshape(d, axis) h = Expand(v, r)",
    "of a size of the input": "z = Shape<start = 1, end = 2>(x) b = Mul(z, a) c = Mul(b, a) d = Mul(c, a) "
    "h = Expand(v, d)",
    "of the shape of a computed one": "b = Mul(a, a) r = Reshape(b, axis) k = Expand(v, r) z = Size(k) "
    "c = Mul(z, a) shape = Reshape(c, axis) h = Expand(v, shape)",
    "of a branch": f"{SIZE} k = If(true) <then_branch = t () => (int64 r) {{ r = Mul(c, a) }}, "
    "else_branch = e () => (int64 q) { q = Identity(a) }> r = Reshape(k, axis) h = Expand(v, r)",
    "a sum of two": f"{SIZE} k = Reshape(b, axis) r = Expand(v, k) l = Reshape(r, column) h = Add(l, r)",
    "many": " ".join(f"h{i} = ConstantOfShape(large)" for i in range(9)) + " h = Sum(h0, h1)",
}  # fmt: skip


def refused(model):
    """Return the error of loading `model`, which takes neither memory nor time."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(GraphError, match="constants|numbers") as caught:
        load_model(model)
    assert time.process_time() - begin < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    return str(caught.value)


@pytest.mark.parametrize("name", BOMBS)
def test_a_size_that_follows_from_constants_is_limited(name):
    constants = {**INTEGERS, "column": np.array([-1, 1]), "large": np.array([4096, 4096])}
    constants["true"] = np.array(True)
    assert "accepted" in refused(model_of(BOMBS[name], **constants))


def test_constants_of_subgraphs_and_functions_are_counted():
    branches = "h = If(true) <then_branch = t () => (float r) { %s r = ReduceSum<keepdims = 0>(k) }, "
    branches += "else_branch = e () => (float r) { r = ReduceSum<keepdims = 0>(v) }>"
    inside = branches % f"{SIZE} k = Expand(v, shape)"
    refused(model_of(inside, true=np.array(True), **INTEGERS))
    body = f'<opset_import: ["": 18], domain: "own"> F (a, axis, v) => (k) {{ {SIZE} k = Expand(v, shape) }}'
    refused(model_of("h = own.F(a, axis, v)", body, **INTEGERS))


def test_a_size_that_cannot_be_told_is_refused():
    """Random numbers decide it; the message names the node."""
    nodes = "n = RandomNormal<shape = [1]>() i = Cast<to = 7>(n) h = Expand(v, i)"
    assert "cannot be told" in refused(model_of(nodes, v=np.ones(1, np.float32)))


def test_sizes_that_many_nodes_compute_take_seconds():
    nodes = [
        "n0 = Identity(one)",
        *(f"n{i + 1} = Add(n{i}, zero)" for i in range(2_500)),
        "h = Range(zero, n2500, one)",
    ]
    begin = time.process_time()
    with pytest.raises(GraphError, match="cannot be told"):
        load_model(model_of(" ".join(nodes), **INTEGERS))
    assert time.process_time() - begin < 20


ACCEPTED = {
    "a mask": ("h0 = ConstantOfShape(large) h = Trilu<upper = 1>(h0)", {"large": np.array([2048, 2048])}),
    "a computed mask": ("b = Mul(a, one) r = Reshape(b, axis) k = Concat<axis = 0>(r, r) "
                        "h0 = ConstantOfShape(k) h1 = Trilu(h0) h2 = Add(h0, h1) "
                        "h = Where(no, h2, h1)", {"no": np.array(False)}),
    "places of numbers": ("i = NonZero(v) h = Transpose(i)", {}),
    "a branch": ("k = If(no) <then_branch = t () => (int64 r) { r = Mul(a, a) }, "
                 "else_branch = e () => (int64 q) { z = Shape(x) q = Gather(z, one) }> "
                 "h = Range(zero, k, one)", {"no": np.array(True)}),
    "casts of weights": ("h1 = Cast<to = 11>(w) h2 = Transpose(h1) h = Mul(h2, h2)", {}),
    "a short Range": ("n = Mul(a, a) h = Range(zero, n, one)", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_constants_of_ordinary_graphs_are_accepted(name):
    nodes, constants = ACCEPTED[name]
    model = model_of(nodes, **{**INTEGERS, **constants})
    load_model(model)


def test_computed_weights_are_accepted_in_proportion_to_them(monkeypatch):
    """Quantized weights are unpacked by some nodes for each."""
    monkeypatch.setattr(constant_sizes, "MOST_CONSTANT", 100)
    nodes = "q = Cast<to = 1>(i) z = Sub(q, v) e = Mul(z, v) h = Transpose(e)"
    constants = {"i": np.ones((300, 300), np.int8), "v": np.ones(1, np.float32)}
    load_model(model_of(nodes, **constants))
    many = " ".join(f"h{k} = Mul(e, v)" for k in range(20))
    with pytest.raises(GraphError, match="of constants alone"):
        load_model(model_of(f"{nodes} {many}", **constants))


@pytest.mark.slow
def test_a_large_network_is_read():
    """20,000 nodes with a weight each."""
    nodes = " ".join(f"n{i + 1} = Add(n{i}, w{i})" for i in range(20_000))
    text = f"{HEADER} g (float[N, 4] n0) => (float[N, 4] n20000) {{ {nodes} }}"
    model = onnx.parser.parse_model(text)
    weight = np.ones(4, np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(weight, f"w{i}") for i in range(20_000))
    assert len(load_model(model).graph.node) == 20_000
    assert len(onnxsgd.get_train_initializer(model)) == 20_000


@pytest.mark.slow
def test_a_network_of_many_parameters_is_read():
    """1.2 10^8 parameters in 30 matrices, each transposed by a node, as exporters write them."""
    nodes = " ".join(f"t{i} = Transpose(w{i}) n{i + 1} = MatMul(n{i}, t{i})" for i in range(30))
    model = onnx.parser.parse_model(f"{HEADER} g (float[N, 2000] n0) => (float[N, 2000] n30) {{ {nodes} }}")
    weight = np.full((2000, 2000), 1e-3, np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(weight, f"w{i}") for i in range(30))
    found = onnxsgd.get_train_initializer(model)
    assert sum(array.size for array, _ in found.values()) == 120_000_000
