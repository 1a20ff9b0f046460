"""Numbers of several weights are computed as one column, to the last digit."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import make_spec
from onnx import parser

from onnxsgd.engine.step import training_step
from onnxsgd.engine.step.joined_numbers import join_numbers
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.optimizers import BlockAdam
from onnxsgd.runtime.sessions import make_session

HEADER = '<ir_version: 9, opset_import: ["" : 18]> '


def joined(text):
    """Return a graph, and the same with its numbers joined."""
    proto = onnx.shape_inference.infer_shapes(parser.parse_model(HEADER + text))
    model = to_ir(proto)
    join_numbers(model.graph)
    return proto, to_proto(model)


def results(model, feeds):
    return make_session(model.SerializeToString(), 1).run(None, feeds)


@pytest.mark.parametrize("steering", [0.0, 0.1])
def test_a_step_has_the_same_numbers_with_fewer_nodes(model, monkeypatch, steering):
    spec = make_spec(optimizer=BlockAdam(steering=steering))
    together = onnx.load_from_string(build_step(model, spec).model)
    monkeypatch.setattr(training_step, "join_numbers", lambda graph: None)
    apart = onnx.load_from_string(build_step(model, spec).model)
    assert len(together.graph.node) < len(apart.graph.node)
    onnx.checker.check_model(together, full_check=True)
    rng = np.random.default_rng(0)
    for _ in range(20):
        feeds = {}
        for value in apart.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            size = 10.0 ** rng.integers(-3, 2)
            feeds[value.name] = np.array(size * np.abs(rng.normal(size=shape)), np.float32)
        for first, second in zip(results(together, feeds), results(apart, feeds), strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_exponentials_of_float64_stay_apart(dtype):
    """The runtime computes several numbers of that type by other code than a single one."""
    names = [f"{name}{i}" for i in range(5) for name in "xy"]
    inputs = ", ".join(f"{dtype}[1,1] {name}" for name in names)
    body = " ".join(
        f"a{i} = Mul(x{i}, y{i}) c{i} = Add(a{i}, y{i}) d{i} = Sub(c{i}, x{i}) b{i} = Exp(d{i}) "
        f"z{i} = Sqrt(b{i})"
        for i in range(5)
    )
    outputs = ", ".join(f"{dtype}[1,1] z{i}" for i in range(5))
    proto, found = joined(f"g ({inputs}) => ({outputs}) {{ {body} }}")
    counts = [node.op_type for node in found.graph.node].count
    assert (counts("Exp"), counts("Mul"), counts("Sqrt")) == (2 if dtype == "float" else 5, 2, 2)
    type_ = np.float32 if dtype == "float" else np.float64
    feeds = {name: np.random.default_rng(i).normal(size=(1, 1)).astype(type_) for i, name in enumerate(names)}
    for first, second in zip(results(found, feeds), results(proto, feeds), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,1] x) => (float[1,1] c) { i = Neg(x) j = Abs(i) a = Sqrt(j) p = Mul(a, a) k = Neg(p) "
        "l = Abs(k) b = Sqrt(l) q = Mul(b, b) m = Neg(q) n = Abs(m) d = Sqrt(n) c = Mul(d, d) }",
        "g (float[1,1] x, float[1,1] y, float[1,1] z) => (float[1,1] a, float[1,1] b, float[1,1] c) "
        "{ a = Sqrt(x) b = Sqrt(y) c = Sqrt(z) }",
        "g (float[1,2] x, float[1,2] y, float[1,2] z) => (float[1,2] c) "
        "{ a = Exp(x) b = Exp(y) d = Exp(z) e = Sqrt(a) f = Sqrt(b) h = Sqrt(d) i = Sub(e, f) "
        "c = Sub(i, h) }",
    ],
    ids=["one after another", "nothing to gain", "no numbers"],
)
def test_other_graphs_stay_as_they_are(text):
    proto, found = joined(text)
    assert [node.op_type for node in found.graph.node] == [node.op_type for node in proto.graph.node]
