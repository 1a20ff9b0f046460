"""Merging of adapters in graphs that hold some of the weights; the rest is in ``test_branches.py``."""

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd.graph.adapting.branches import add_branches
from onnxsgd.graph.adapting.merge_adapters import merge_adapters, merged_weight
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N, 2] X) => (float[N, 2] Y)
<float[2, 2] V = {1, 2, 3, 4}, float[2, 2] W = {4, 3, 2, 1}> { Z = MatMul(X, V) Y = MatMul(Z, W) }"""


def test_a_part_of_the_graph_is_merged_without_the_others(run):
    adapted, adapters = add_branches(
        lower_for_training(to_ir(onnx.parser.parse_model(TEXT))), ["V", "W"], 1, 1.0
    )
    part = merge_adapters(cut_at(adapted, "Z"), adapters)
    assert list(part.graph.initializers) == ["V"]
    assert [node.op_type for node in part.graph] == ["MatMul"]
    np.testing.assert_array_equal(run(part, [[1, 1]])["Z"], [[4, 6]])


def test_the_sum_is_rounded_once():
    """In float32 the product would lose digits before the sum."""
    _, (adapter, _) = add_branches(
        lower_for_training(to_ir(onnx.parser.parse_model(TEXT))), ["V", "W"], 1, 0.5
    )
    rng = np.random.default_rng(0)
    weight, down, up = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 2), (2, 1), (1, 2)))
    exact = weight.astype(np.float64) + 0.5 * down.astype(np.float64) @ up.astype(np.float64)
    merged = merged_weight(adapter, weight, down, up)
    assert merged.dtype == np.float32
    np.testing.assert_array_equal(merged, exact.astype(np.float32))


def test_a_second_adapter_is_merged_without_the_first(run):
    """As beside the branches of a base that was exported with adapters as inputs."""
    model = lower_for_training(to_ir(onnx.parser.parse_model(TEXT)))
    once, (first,) = add_branches(model, ["V"], 1, 1.0)
    twice, (second,) = add_branches(once, ["V"], 1, 2.0)
    assert first.names == ("V.lora_A", "V.lora_B")
    assert second.names == ("V.lora_A_1", "V.lora_B_1")
    for name, numbers in zip((*first.names, *second.names), ([3, 1], [1, 1], [1, 0], [0, 5]), strict=True):
        value = twice.graph.initializers[name]
        value.const_value = ir.tensor(np.float32(numbers).reshape(value.shape.numpy()))
    merged = merge_adapters(twice, [second])
    assert "V.lora_A" in merged.graph.initializers
    assert "V.lora_A_1" not in merged.graph.initializers
    np.testing.assert_array_equal(merged.graph.initializers["V"].const_value.numpy(), [[1, 12], [3, 4]])
    X = [[1, 2], [-1, 0.5]]
    np.testing.assert_allclose(run(merged, X)["Y"], run(twice, X)["Y"], rtol=1e-6)
