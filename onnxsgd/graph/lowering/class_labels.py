"""Class labels in graphs: their storage and their selection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, first, operands, standard_operator
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.rewriting import Writer

__all__ = ["Lookup", "class_labels", "find_lookup", "label_tensor", "pick_binary_label"]


def class_labels(node: ir.Node) -> np.ndarray | None:
    """Return the labels in the attributes of an ``ai.onnx.ml`` classifier, None if it holds none."""
    for name in ("classlabels_ints", "classlabels_int64s"):
        if attribute(node, name):
            return np.array(attribute(node, name), dtype=np.int64)
    if attribute(node, "classlabels_strings"):
        return np.array(attribute(node, "classlabels_strings"), dtype=object)
    return None


def label_tensor(w: Writer, labels: np.ndarray) -> ir.Value:
    """Return class labels, integers or strings, as an initializer."""
    if labels.dtype.kind == "i":
        return w.tensor("classes", labels)
    encoded = [str(label).encode() for label in labels]
    return w.tensor("classes", ir.StringTensor(encoded, shape=ir.Shape([len(encoded)])))


def pick_binary_label(w: Writer, score: ir.Value, labels: np.ndarray) -> ir.Value:
    """Return the second of two labels if the score, of shape [N, 1], is positive, else the first."""
    positive = w.op.Cast(w.op.Greater(score, 0.0), to=ir.DataType.INT64)
    return w.op.Gather(label_tensor(w, labels), w.op.Reshape(positive, [-1]))


@dataclass(frozen=True)
class Lookup:
    """Source of an output of labels.

    Attributes
    ----------
    output : ir.Value
        The output.
    table : ir.Value or None
        The tensor that the labels are gathered from; None: a LabelEncoder holds them.
    labels : ndarray
        The labels, in the order of the columns of the scores.
    largest_of : ir.Value or None
        The scores or probabilities of which the largest decides; None for another rule.
    """

    output: ir.Value
    table: ir.Value | None
    labels: np.ndarray
    largest_of: ir.Value | None


def find_lookup(label: ir.Value) -> Lookup | None:
    """Return the source of the labels in the output `label`; None if it is no table of labels."""
    node = _behind_copies(label)
    if node is None:
        return None
    if node.op_type == "LabelEncoder":
        labels = _encoded_labels(node)
        return None if labels is None else Lookup(label, None, labels, None)
    table = constant(node.inputs[0]) if node.op_type in ("Gather", "ArrayFeatureExtractor") else None
    if table is None or table.size == 0:
        return None
    winner = _behind_copies(operands(node)[1])
    largest_of = first(winner) if winner is not None and standard_operator(winner) == "ArgMax" else None
    return Lookup(label, first(node), _as_labels(table.reshape(-1).tolist()), largest_of)


def _behind_copies(value: ir.Value) -> ir.Node | None:
    node = value.producer()
    while node is not None and standard_operator(node) in _COPYING:
        node = first(node).producer()
    return node


_COPYING = having(Fact.IN_ORDER)


def _encoded_labels(node: ir.Node) -> np.ndarray | None:
    """Return the labels of a LabelEncoder that maps 0, 1, ..., in any order, to them."""
    keys = attribute(node, "keys_int64s")
    values = attribute(node, "values_strings") or attribute(node, "values_int64s")
    if not keys or not values or len(keys) != len(values) or sorted(keys) != list(range(len(keys))):
        return None
    return _as_labels([values[keys.index(column)] for column in range(len(keys))])


def _as_labels(entries: list) -> np.ndarray:
    if isinstance(entries[0], int):
        is_large = max(entries) > np.iinfo(np.int64).max
        return np.array(entries, dtype=np.uint64 if is_large else np.int64)
    return np.array([str(e.decode() if isinstance(e, bytes) else e) for e in entries], dtype=object)
