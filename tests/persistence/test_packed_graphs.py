"""Serialized graphs in few bytes."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence import packed_graphs
from onnxsgd.persistence.compression import decompressed
from onnxsgd.persistence.known_values import KnownValues
from onnxsgd.persistence.packed_graphs import needs_values, packed, unpacked

NONE = KnownValues()
ARRAY = np.random.default_rng(0).normal(size=(40, 30))
KNOWN = KnownValues([ARRAY])


def content_of(*arrays, n_nodes=100):
    graph = onnx.GraphProto(name="g")
    for k in range(n_nodes):
        graph.node.add(op_type="Add", input=[f"v{k}", f"b{k}"], output=[f"v{k + 1}"], name=f"v{k + 1}/Add")
    graph.initializer.extend(numpy_helper.from_array(array, f"a{k}") for k, array in enumerate(arrays))
    return onnx.ModelProto(ir_version=8, graph=graph).SerializeToString()


SMALL, LARGE = content_of(n_nodes=10), content_of(ARRAY.astype(np.float32))


def test_small_ones_are_compressed_alone():
    assert len(SMALL) < packed_graphs._LEAST <= len(LARGE)
    assert decompressed(packed(SMALL, KNOWN)) == SMALL
    assert not needs_values(packed(SMALL, KNOWN))


@pytest.mark.parametrize(
    ("known", "expected"), [(NONE, (4500, 5200)), (KNOWN, (0, 400))], ids=["alone", "with values"]
)
def test_larger_ones_are_written_by_columns(known, expected):
    saved = packed(LARGE, known)
    assert expected[0] <= len(saved) <= expected[1]
    assert unpacked(saved, known) == LARGE
    assert needs_values(saved) is (known is KNOWN)


def test_one_without_known_values_is_read_beside_any():
    assert unpacked(packed(LARGE, NONE), KNOWN) == LARGE


@pytest.mark.parametrize(
    "other", [NONE, KnownValues([ARRAY[:3]]), KnownValues([ARRAY + 1])], ids=["none", "fewer", "changed"]
)
def test_one_with_known_values_is_not_read_beside_others(other):
    with pytest.raises(
        ParameterError, match="model has other arrays than it had when the estimator was saved"
    ):
        unpacked(packed(LARGE, KNOWN), other)


def test_numbers_of_a_large_model_may_be_many():
    """A converted estimator has its arrays several times."""
    array = np.random.default_rng(0).normal(size=300_000)
    content = content_of(*[array.astype(np.float32)] * 4, n_nodes=1)
    assert len(content) > packed_graphs._MOST
    known = KnownValues([array])
    assert len(packed(content, known)) < 400
    assert unpacked(packed(content, known), known) == content
    # too large for columns
    assert packed(content, NONE) is content


def test_a_graph_that_columns_cannot_hold_is_compressed():
    content = onnx.ModelProto(producer_name="a\0b" + "x" * 5000).SerializeToString()
    assert decompressed(packed(content, NONE)) == content


def test_known_numbers_allow_a_graph_of_20_mb_at_most():
    """A file of a megabyte has zeros for a hundred, and a graph names them over and over."""
    many = KnownValues([np.zeros(1 << 24)])
    assert packed_graphs._most(many) < 21e6


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: saved[:-9],
        lambda saved: saved[:1] + bytes(4) + saved[5:],
        lambda saved: saved[:40] + bytes(4) + saved[44:],
        lambda saved: saved[:1],
    ],
    ids=["cut", "another checksum", "changed", "empty"],
)
def test_damaged_ones_are_refused(damage):
    with pytest.raises(ValueError, match="damaged|more than|fewer"):
        unpacked(damage(packed(LARGE, NONE)), NONE)


def test_a_bomb_is_refused(monkeypatch):
    saved = packed(content_of(np.zeros(200_000, np.float32)), NONE)
    monkeypatch.setattr(packed_graphs, "_MOST", 400_000)
    with pytest.raises(ValueError, match="damaged"):
        unpacked(saved, NONE)
