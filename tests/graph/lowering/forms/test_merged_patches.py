"""Neighbours merged into channels by one transposition: the same numbers and gradients."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import MERGED_PATCH_FORMS, write_out
from onnxsgd.graph.model import to_ir, to_proto

RNG = np.random.default_rng(0)


def _both(starts, axis, ends=("end", "end"), axes=("one", "two")):
    """Return Slices of both spatial axes for these starts, and the Concat of their parts."""
    lines = [
        f"r{k} = Slice(X, {row}, {ends[0]}, {axes[0]}, two) "
        f"p{k} = Slice(r{k}, {column}, {ends[1]}, {axes[1]}, two)"
        for k, (row, column) in enumerate(starts)
    ]
    parts = ", ".join(f"p{k}" for k in range(len(starts)))
    return " ".join([*lines, f"Y = Concat<axis = {axis}>({parts})"])


_COLUMNS_FIRST = [("zero", "zero"), ("one", "zero"), ("zero", "one"), ("one", "one")]
_ROWS_FIRST = [("zero", "zero"), ("zero", "one"), ("one", "zero"), ("one", "one")]

WRITTEN = {
    "swin": _both(_COLUMNS_FIRST, -1),
    "rows first": _both(_ROWS_FIRST, 3),
    "images in front": _both(_ROWS_FIRST, 0),
    "axes from the end": _both(_COLUMNS_FIRST, -1, axes=("third_last", "second_last")),
    "one Slice each": """a = Slice(X, both_zero, both_end, both, both_two)
        b = Slice(X, both_one, both_end, both, both_two) c = Slice(X, zero_one, both_end, both, both_two)
        d = Slice(X, one_zero, both_end, both, both_two) Y = Concat<axis = 3>(a, d, c, b)""",
    "rows in columns": """a = Slice(X, zero, end, two, two) b = Slice(X, one, end, two, two)
        Y = Concat<axis = 1>(a, b)""",
    "three columns": """a = Slice(X, zero, end, two, three) b = Slice(X, one, end, two, three)
        c = Slice(X, two, end, two, three) Y = Concat<axis = 3>(a, b, c)""",
}
KEPT = {
    "another order": _both([_ROWS_FIRST[k] for k in (0, 3, 1, 2)], 3),
    "a part missing": _both(_ROWS_FIRST[:3], 3),
    "a part twice": _both([*_ROWS_FIRST[:3], _ROWS_FIRST[0]], 3),
    "along an axis of the places": _both(_ROWS_FIRST, 1),
    "a part of the image": _both(_ROWS_FIRST, 3, ends=("end", "four")),
    "other tensors": "t = Tanh(X) a = Slice(X, zero, end, two, two) b = Slice(t, one, end, two, two)"
    " Y = Concat<axis = 3>(a, b)",
    "numbers apart": """a = Slice(X, zero, end, three, three) b = Slice(X, one, end, three, three)
        c = Slice(X, two, end, three, three) Y = Concat<axis = 1>(a, b, c)""",
    "neighbours": "a = Slice(X, zero, three, two) b = Slice(X, three, end, two) Y = Concat<axis = 3>(a, b)",
}


def parsed(nodes, batch="2"):
    numbers = "zero = {0}, one = {1}, two = {2}, three = {3}, four = {4}, end = {9223372036854775807}"
    numbers = (
        numbers.replace(", ", ", int64[1] ") + ", int64[1] third_last = {-3}, int64[1] second_last = {-2}"
    )
    pairs = "both = {1, 2}, both_two = {2, 2}, both_end = {100, 100}, both_zero = {0, 0}, both_one = {1, 1}"
    pairs += ", zero_one = {0, 1}, one_zero = {1, 0}"
    pairs = pairs.replace("}, ", "}, int64[2] ")
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[{batch}, 4, 6, 3] X) => (float[A] Y)
        <int64[1] {numbers}, int64[2] {pairs}> {{ {nodes} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def written_out(model):
    written = to_ir(model)
    write_out(written, MERGED_PATCH_FORMS)
    RemoveUnusedNodesPass()(written)
    return written


def operators(model):
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_numbers_and_gradients(name):
    model = parsed(WRITTEN[name])
    written = written_out(model)
    assert operators(written) == ["Reshape", "Transpose", "Reshape"]
    both = [to_proto(forward_backward_model(each, [], ["X"], "portable")) for each in (to_ir(model), written)]
    feeds = {
        value.name: RNG.normal(size=[size.dim_value for size in value.type.tensor_type.shape.dim])
        for value in both[0].graph.input
    }
    feeds = {key: array.astype(np.float32) for key, array in feeds.items()}
    results = [ReferenceEvaluator(each).run(None, feeds) for each in both]
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    model = parsed(KEPT[name])
    assert operators(written_out(model)) == operators(to_ir(model))


def test_open_sizes_stay():
    assert "Concat" in operators(written_out(parsed(WRITTEN["swin"], "N")))


def test_every_form_of_merged_patches_is_tested():
    assert set(MERGED_PATCH_FORMS) == {("", "Concat")}
