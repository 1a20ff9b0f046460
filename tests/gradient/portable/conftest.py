"""Central differences in float64: the independent source that every gradient rule is compared with."""

import zlib
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxsgd.gradient.portable import differentiate

STEP = 1e-3


@dataclass(frozen=True)
class Case:
    """A few nodes in ONNX text that compute ``Y``, and what they read.

    A shape stands for random numbers, an array of reals for itself: both are differentiated. Integers,
    booleans and what `constants` holds are initializers that stay.
    """

    text: str
    operands: dict
    constants: dict = field(default_factory=dict)
    opset: int = 18
    outputs: tuple = ("Y",)

    def __str__(self):
        shapes = "x".join(
            str(np.shape(v) if isinstance(v, np.ndarray) else v) for v in self.operands.values()
        )
        return f"{self.text}-{shapes}-{self.opset}".replace(" ", "")


def _arrays(case):
    seed = np.random.default_rng(zlib.crc32(str(case).encode()))
    arrays = {
        name: given if isinstance(given, np.ndarray) else seed.normal(size=given)
        for name, given in case.operands.items()
    }
    return arrays, seed


def build(case, dims="known"):
    """Return the model of a case: with known, or with unnamed sizes of its inputs."""
    arrays, _ = _arrays(case)
    nodes = onnx.parser.parse_graph("g () => () {" + case.text + "}").node
    real = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    held = {**{name: array for name, array in arrays.items() if array.dtype.kind != "f"}, **case.constants}
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.DOUBLE, a.shape if dims == "known" else [None] * a.ndim
        )
        for name, a in real.items()
    ]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in case.outputs]
    graph = helper.make_graph(nodes, "case", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)
    for output, result in zip(model.graph.output, ReferenceEvaluator(model).run(None, real), strict=True):
        output.CopyFrom(
            helper.make_tensor_value_info(output.name, TensorProto.DOUBLE, [None] * np.ndim(result))
        )
    onnx.checker.check_model(model)
    return model, real


def only_standard(model):
    assert {node.domain for node in model.graph.node} <= {""}
    assert not model.functions


def numeric(run, feeds, name, direction, seeds):
    """Return the derivative of sum(seeds * outputs) along a direction, by a difference of order h^4."""

    def value(step):
        results = run({**feeds, name: feeds[name] + step * STEP * direction})
        return sum((seed * y).sum() for seed, y in zip(seeds, results, strict=True))

    return (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * STEP)


def _check(case, dims="known", rtol=1e-7):
    model, feeds = build(case, dims)
    _, rng = _arrays(case)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), case.outputs, list(feeds)))
    onnx.checker.check_model(gradient, full_check=True)
    only_standard(gradient)
    forward = ReferenceEvaluator(model)
    results = forward.run(None, feeds)
    seeds = [rng.normal(size=y.shape) for y in results]
    named = {f"{name}_grad": seed for name, seed in zip(case.outputs, seeds, strict=True)}
    found = ReferenceEvaluator(gradient).run(None, {**feeds, **named})
    for y, again in zip(results, found, strict=False):
        np.testing.assert_allclose(again, y, rtol=1e-12)
    for (name, x), dx in zip(feeds.items(), found[len(results) :], strict=True):
        assert dx.shape == x.shape
        assert dx.dtype == x.dtype
        for _ in range(2):
            direction = rng.normal(size=x.shape)
            expected = numeric(lambda f: forward.run(None, f), feeds, name, direction, seeds)
            np.testing.assert_allclose((dx * direction).sum(), expected, rtol=rtol, atol=1e-8)
    return gradient


@pytest.fixture
def check():
    """Return the function that compares the gradients of a case with central differences."""
    return _check


@pytest.fixture
def case():
    return Case
