"""Graphs exported for a fixed number of samples take any number of them."""

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxsgd.graph.batch_size import fixed_batch_size, free_batch_size
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir, to_proto

#: An export for one picture: flatten, split into heads, merge, add an expanded constant.
_ONE = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[1, 2, 6] x) => (float[1, 12] y)
<int64[2] flat = {1, 12}, int64[4] heads = {1, 2, 3, 2}, int64[3] merged = {1, 6, 2},
 int64[3] all = {1, -1, 2}, int64[3] shape = {1, 1, 2}, float[2] c = {1, 2}>
{
    a = Reshape (x, heads)
    t = Transpose <perm = [0, 2, 1, 3]> (a)
    m = Reshape (t, merged)
    k = Reshape (m, all)
    e = Expand (c, shape)
    s = Add (k, e)
    y = Reshape (s, flat)
}
"""


def _lowered(text):
    model = onnx.parser.parse_model(text)
    return model, lower_for_training(to_ir(model))


def _run(model, **feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_several_samples_give_the_results_of_each_alone():
    model, lowered = _lowered(_ONE)
    x = np.random.default_rng(0).normal(size=(5, 2, 6)).astype(np.float32)
    freed = to_proto(free_batch_size(lowered))
    alone = np.concatenate([_run(model, x=row[None]) for row in x])
    np.testing.assert_array_equal(_run(freed, x=x), alone)
    np.testing.assert_array_equal(_run(freed, x=x[:1]), alone[:1])


def test_the_declared_batch_size_is_open():
    """A user of the trained file reads its shapes."""
    freed = free_batch_size(_lowered(_ONE)[1])
    shapes = [str(value.shape) for value in (*freed.graph.inputs, *freed.graph.outputs)]
    assert shapes == ["[n_samples,2,6]", "[n_samples,12]"]
    assert fixed_batch_size(freed) is None


def test_more_than_one_sample_is_freed_as_well():
    """An export for batches of 4, with 4 in its Reshape."""
    _, lowered = _lowered(
        """<ir_version: 8, opset_import: ["" : 18]>
        agraph (float[4, 6] x) => (float[4, 2, 3] y)
        <int64[3] shape = {4, 2, 3}> { y = Reshape (x, shape) }"""
    )
    assert fixed_batch_size(lowered) == 4
    x = np.arange(42, dtype=np.float32).reshape(7, 6)
    np.testing.assert_array_equal(_run(to_proto(free_batch_size(lowered)), x=x), x.reshape(7, 2, 3))


@pytest.mark.parametrize("shapes", [("N, 2", "2, 2"), ("1, 2", "2, 2"), ("1, 2", "N, 2")])
def test_others_are_left_alone(shapes):
    """A graph that takes any number, or whose inputs do not agree on one."""
    x, z = shapes
    _, lowered = _lowered(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        agraph (float[{x}] x, float[{z}] z) => (float[A, 2] y) {{ y = MatMul (x, z) }}"""
    )
    assert fixed_batch_size(lowered) is None
    assert free_batch_size(lowered) is lowered
