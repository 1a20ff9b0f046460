"""Class labels in graphs: where they are kept, and how a label is picked."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.rewriting import Writer, attribute

__all__ = ["class_labels", "label_tensor", "pick_binary_label"]


def class_labels(node: ir.Node) -> np.ndarray | None:
    """Return the labels in the attributes of an ``ai.onnx.ml`` classifier or ZipMap, None if it holds none."""
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
    """Return the second of two labels where the score, of shape [N, 1], is positive, else the first."""
    positive = w.op.Cast(w.op.Greater(score, 0.0), to=ir.DataType.INT64)
    return w.op.Gather(label_tensor(w, labels), w.op.Reshape(positive, [-1]))
