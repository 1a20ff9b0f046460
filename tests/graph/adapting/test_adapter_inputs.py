"""Graphs with adapters as optional inputs: any rank, the base as the default."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxsgd.graph.adapting.adapter_inputs import adapter_values, with_adapter_inputs
from onnxsgd.graph.adapting.branches import add_branches
from onnxsgd.graph.adapting.merge_adapters import merge_adapters
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir, to_proto

RNG = np.random.default_rng(0)
TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (int64[N, 3] I, float[N, 2, 5] X, float[N, rank] Z) => (float[N, 2] Y) <float[2] c = {0.5, -0.5}>
{ E = Gather(T, I)  M = ReduceMean<axes = [1], keepdims = 0>(E)  V = Conv<pads = [1, 1]>(X, K)
  F = GlobalMaxPool(V)  S = Flatten(F)  P = Add(S, M)  Q = Gemm<alpha = 0.5, transB = 1>(P, W, c)
  R = ReduceSum<keepdims = 1>(Z)  Y = Add(Q, R) }"""
SHAPES = {"T": (7, 4), "K": (4, 2, 3), "W": (2, 4)}
FEEDS = {
    "I": RNG.integers(0, 7, (6, 3)),
    "X": RNG.normal(size=(6, 2, 5)).astype(np.float32),
    "Z": np.zeros((6, 2), np.float32),
}


@pytest.fixture(name="base", scope="module")
def _base():
    proto = onnx.parser.parse_model(TEXT.replace("18]", "17]"))
    for name, shape in SHAPES.items():
        array = RNG.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return lower_for_training(to_ir(proto))


def trained(base, rank, scale):
    """The base with an adapter of random numbers beside each weight, and the adapters."""
    adapted, adapters = add_branches(base, list(SHAPES), rank, scale)
    for name in [*(name for adapter in adapters for name in adapter.names), "c"]:
        value = adapted.graph.initializers[name]
        value.const_value = ir.tensor(RNG.normal(size=value.shape.numpy()).astype(np.float32))
    return adapted, adapters


def run(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


def test_one_base_computes_all_adapters_and_itself(base):
    given = {"c": np.array([0.5, -0.5])}
    made = {rank: trained(base, rank, scale) for rank, scale in ((2, 3.0), (5, 0.25))}
    open_graphs = [with_adapter_inputs(adapted, adapters, given) for adapted, adapters in made.values()]
    protos = [to_proto(graph) for graph in open_graphs]
    assert protos[0].SerializeToString(deterministic=True) == protos[1].SerializeToString(deterministic=True)
    onnx.checker.check_model(protos[0], full_check=True)
    np.testing.assert_allclose(run(open_graphs[0], FEEDS), run(base, FEEDS), rtol=1e-6)
    for adapted, adapters in made.values():
        values = adapter_values(adapted, adapters, ["c"])
        feeds = FEEDS | {name: tensor.numpy() for name, tensor in values.items()}
        expected = run(merge_adapters(adapted, adapters), FEEDS)
        np.testing.assert_allclose(run(open_graphs[0], feeds), expected, rtol=1e-4, atol=1e-5)


def test_ranks_have_a_symbol_of_their_own(base):
    adapted, adapters = trained(base, 2, 1.0)
    graph = with_adapter_inputs(adapted, adapters, {}).graph
    sizes = {str(value.name): tuple(map(str, value.shape)) for value in graph.inputs}
    # the graph has a size "rank" of another meaning
    assert sizes["T.lora_A"] == ("7", "rank_1")
    assert sizes["T.lora_B"] == ("rank_1", "4")
    assert sizes["K.lora_A"] == ("rank_1", "2", "3")
    assert sizes["K.lora_B"] == ("4", "rank_1", "1")
    assert "c" not in sizes


def test_the_model_is_unchanged(base):
    adapted, adapters = trained(base, 2, 3.0)
    before = to_proto(adapted).SerializeToString()
    with_adapter_inputs(adapted, adapters, {"c": np.zeros(2)})
    adapter_values(adapted, adapters, ["c"])
    assert to_proto(adapted).SerializeToString() == before
