"""Lists of arrays: stacked, or padded with a mask."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sequence_graphs import value_inputs as inputs

from onnxsgd.data.sequences import Ragged, Sequences, find_mask, gather, holds_sequences, read_sequences
from onnxsgd.exceptions import GraphError, ParameterError

SHORT = [np.ones((2, 3)), np.ones((4, 3)), np.ones((2, 3))]
PLAIN, MASKED = inputs(X=["t", 3]), inputs(X=["t", 3], mask=["t"])


def test_equal_shapes_are_stacked():
    images = [np.full((4, 4), i) for i in range(3)]
    for given in (images, tuple(images), np.array([*images, None], object)[:3]):
        np.testing.assert_array_equal(gather(given), np.stack(images))
    found = gather({"a": images, "b": np.zeros(3)})
    assert found["a"].shape == (3, 4, 4)
    assert found["b"].shape == (3,)


@pytest.mark.parametrize(
    "table",
    [
        [["a"], [], ["b", "c"]],
        [np.array(["a"])],
        [[1, 2], [3, 4]],
        ["a", "bc"],
        [1.0, 2.0],
        [],
        np.zeros((2, 2)),
    ],
)
def test_tables_stay_as_they_are(table):
    assert gather(table) is table


def test_an_array_of_arrays_is_read_as_a_list():
    listed = np.array([*SHORT, None], object)[:3]
    assert isinstance(read_sequences(listed, PLAIN), Sequences)
    assert isinstance(read_sequences(listed[[0, 2]], PLAIN), np.ndarray)


def test_lists_of_different_lengths_are_sequences():
    found = gather([[1, 2, 3], [4], (5, 6)])
    assert isinstance(found, Ragged)
    assert holds_sequences(found)
    assert found.lengths.tolist() == [3, 1, 2]
    np.testing.assert_array_equal(found.padded(3), [[1, 2, 3], [4, 0, 0], [5, 6, 0]])
    np.testing.assert_array_equal(found.take([1, 2]).padded(4, 9), [[4, 9, 9, 9], [5, 6, 9, 9]])
    mixed = gather([np.ones(2, np.int64), np.ones(1, np.float32)])
    assert mixed.dtype == np.float64


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([np.ones((2, 3)), np.ones((2, 4))], r"X\[1\] has shape \(2, 4\) and X\[0\] \(2, 3\)"),
        ([np.ones((2, 3)), 1.0], r"X\[1\] has shape \(\) "),
        ([np.ones(2), np.ones(0)], r"X\[1\] is empty"),
        ({"ids": [[1], []]}, r"X\['ids'\]\[1\] is empty"),
        (iter(SHORT), r"^X is of type list_iterator, which is read once: give list\(X\)\.$"),
        ({"a": (item for item in SHORT)}, r"^X\['a'\] is of type generator, which is read once"),
        ([np.ones((0, 3)), np.ones((0, 3))], r"X\[0\] is empty"),
        ([[[1, 2], [1]], [[1, 2]]], r"X\[0\] holds lists of different lengths: a sample is one array"),
    ],
)
def test_other_lists_are_refused(X, message):
    with pytest.raises(ParameterError, match=message):
        gather(X)


def test_columns_and_arrays_of_samples_are_lists():
    for samples in (SHORT, [item.tolist() for item in SHORT]):
        entries = np.empty(len(samples), object)
        entries[:] = samples
        for given in (entries, pd.Series(entries, index=[4, 2, 9])):
            assert gather(given).lengths.tolist() == [2, 4, 2]
            np.testing.assert_array_equal(gather({"a": given})["a"].padded(4)[0, :2], np.ones((2, 3)))
    np.testing.assert_array_equal(gather(pd.Series([[1, 2], [3, 4]])), [[1, 2], [3, 4]])
    for column in (pd.Series([1.0, 2.0]), pd.Series(["a", "bc"]), pd.Series([], dtype=object)):
        assert gather(column) is column


@pytest.mark.parametrize("graph", [PLAIN, MASKED])
@pytest.mark.parametrize("dtype", ["O", "U3", "c8", "M8[s]"])
def test_sequences_of_a_graph_hold_numbers(graph, dtype):
    found = [item.astype(dtype) for item in SHORT]
    for given, name in ((found, "X"), ({"X": found}, r"X\['X'\]")):
        with pytest.raises(
            ParameterError, match=rf"^{name}\[0\] has elements of type .*: sequences .* numbers"
        ):
            read_sequences(given, graph)


@pytest.mark.parametrize("graph", [PLAIN, MASKED])
def test_sparse_samples_of_a_list_are_refused(graph):
    with pytest.raises(ParameterError, match=r"^X\[0\] is a sparse table, and samples of a list are arrays"):
        read_sequences([sparse.csr_array(item) for item in SHORT], graph)


@pytest.mark.parametrize("name", ["mask", "attention_mask", "Mask", "src_mask"])
def test_the_mask_is_found_by_its_name(name):
    assert find_mask(inputs(X=["t", 3], **{name: ["t"]})).name == name


@pytest.mark.parametrize(
    "given",
    [
        {"mask": ["t"]},
        {"X": ["t"], "padding_mask": ["t"]},
        {"X": ["t"], "weights": ["t"]},
        {"X": ["t"], "mask": [1]},
        {"X": ["t"], "mask": ["t", "t"]},
        {"X": ["t"], "a_mask": ["t"], "b_mask": ["t"]},
    ],
    ids=["alone", "padding", "name", "column", "square", "two"],
)
def test_other_inputs_are_no_mask(given):
    assert find_mask(inputs(**given)) is None


def test_padding_and_mask():
    found = read_sequences(SHORT, MASKED)
    assert isinstance(found, Sequences)
    assert found.is_padded
    assert found.mask == "mask"
    arrays = found.arrays(np.array([1, 2]))
    assert arrays["X"].shape == (2, 4, 3)
    assert not arrays["X"][1, 2:].any()
    np.testing.assert_array_equal(arrays["mask"], [[1, 1, 1, 1], [1, 1, 0, 0]])
    assert found.arrays(np.array([0, 2]))["X"].shape == (2, 2, 3)
    assert [group.tolist() for group in found.groups()] == [[0, 2], [1]]


def test_a_graph_of_fixed_length_is_padded_to_it():
    found = read_sequences(SHORT, inputs(X=[6, 3], mask=[6]))
    arrays = found.arrays(np.array([0]))
    assert arrays["X"].shape == (1, 6, 3)
    assert arrays["mask"].tolist() == [[1, 1, 0, 0, 0, 0]]
    with pytest.raises(GraphError, match="Sample 1 of X has length 4; input 'X' of the graph takes 3"):
        read_sequences(SHORT, inputs(X=[3, 3], mask=[3]))


def test_sequences_of_one_length_are_padded_to_a_fixed_one():
    """As the same sequences are beside others."""
    fixed = inputs(X=[6, 3], mask=[6])
    for X in ([np.ones((2, 3))], np.ones((1, 2, 3)), {"X": [np.ones((2, 3))]}):
        found = read_sequences(X, fixed)
        assert found["X"].shape == (1, 6, 3)
        assert found["X"].sum() == 6
        assert found["mask"].tolist() == [[1, 1, 0, 0, 0, 0]]
    found = read_sequences({"X": np.ones((1, 2, 3)), "mask": [np.array([0, 1])]}, fixed)
    assert found["X"].shape == (1, 6, 3)
    assert found["mask"].tolist() == [[0, 1, 0, 0, 0, 0]]
    assert read_sequences(np.ones((1, 7, 3)), fixed)["X"].shape == (1, 7, 3)  # refused later


def test_no_mask_no_padding():
    found = read_sequences(SHORT, PLAIN)
    assert not found.is_padded
    assert found.mask is None
    two = read_sequences({"a": [[1, 2], [1], [1, 2]], "b": [[1], [1], [1, 2]]}, inputs(a=["t"], b=["s"]))
    assert [group.tolist() for group in two.groups()] == [[0], [1], [2]]


def test_arrays_get_a_mask_of_ones():
    found = read_sequences(np.zeros((2, 5, 3)), MASKED)
    assert found["X"].shape == (2, 5, 3)
    assert found["mask"].tolist() == [[1] * 5] * 2
    with_table = inputs(ids=["t"], table=["columns"], mask=["t"])
    found = read_sequences({"ids": np.zeros((2, 4)), "table": np.zeros((2, 7))}, with_table)
    assert found["mask"].shape == (2, 4)


def test_a_given_mask_is_kept():
    mask = [np.array([1, 0]), np.array([1, 1, 0, 1]), np.array([1, 1])]
    found = read_sequences({"X": SHORT, "mask": mask}, MASKED)
    assert found.is_padded
    assert found.mask is None
    np.testing.assert_array_equal(found.arrays(np.array([0, 1]))["mask"], [[1, 0, 0, 0], [1, 1, 0, 1]])
    arrays = {"X": np.zeros((2, 5, 3)), "mask": np.zeros((2, 5))}
    assert read_sequences(arrays, MASKED)["mask"] is arrays["mask"]


@pytest.mark.parametrize(
    ("X", "graph", "error", "message"),
    [
        (SHORT, None, GraphError, "sequences of different lengths, which only a graph takes"),
        (SHORT, inputs(a=["t"], b=["t"]), GraphError, r"one list and the graph has the inputs \['a', 'b'\]"),
        ({"X": SHORT, "mask": np.ones((3, 4))}, MASKED, ParameterError, r"X\['mask'\] is one array beside"),
        ({"X": SHORT, "b": np.ones(2)}, PLAIN, ParameterError, r"lengths: \{'X': 3, 'b': 2\}"),
        (
            {"a": [[1], [1, 2]], "b": [[1], [1, 2, 3]]},
            inputs(a=["t"], b=["t"], mask=["t"]),
            ParameterError,
            r"Sample 1 of X has the lengths \{'a': 2, 'b': 3\}, and the graph has one mask, 'mask'",
        ),
    ],
    ids=["model", "inputs", "mask", "counts", "lengths"],
)
def test_data_that_do_not_fit_are_refused(X, graph, error, message):
    with pytest.raises(error, match=message):
        read_sequences(X, graph)


def test_a_list_of_data_and_targets_is_refused_with_advice():
    X, y = np.zeros((6, 2)), np.zeros(6)
    for parts in ([X, y], [X, y, np.ones(6)]):
        with pytest.raises(ParameterError, match=r"first axis alone\. Targets are the second argument"):
            gather(parts, "X")
    with pytest.raises(ParameterError, match=r"first axis alone\.$"):
        gather([np.zeros((3, 2)), np.zeros((4, 3))], "X")
