"""Lowering of ``ai.onnx.ml``: coefficients in attributes become initializers of standard operators.

The domain has no gradients, and its attributes hold the parameters to train. Scores are written so that
:mod:`onnxsgd.graph.reading.head` finds them: a binary classifier gets one column of scores.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.lowering.class_labels import class_labels, label_tensor, pick_binary_label
from onnxsgd.graph.lowering.forms.sums_and_extrema import divide_by_norm
from onnxsgd.graph.lowering.svm import SVM_RULES
from onnxsgd.graph.nodes import attribute, constant, first, matrix, operands, rank, standard_operator
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["ML_RULES"]


def _linear_regressor(w: Writer, node: ir.Node) -> ir.Value | None:
    """``y = X @ coef + intercept``, without a post-transform."""
    if attribute(node, "post_transform", "NONE") != "NONE":
        return None
    targets, coefficients = attribute(node, "targets", 1), attribute(node, "coefficients", ())
    if not 1 <= targets <= len(coefficients):
        return None
    coef = np.array(coefficients, np.float32).reshape(targets, -1)
    intercept = np.array(attribute(node, "intercepts", [0.0] * targets), np.float32)
    return _gemm(w, node, coef, intercept)


def _linear_classifier(w: Writer, node: ir.Node) -> list[ir.Value] | None:
    """Labels, and scores or probabilities, with one row of coefficients for each label.

    Cases:

    - two rows of opposite sign, as converters write binary models: one column of scores z, and
      probabilities [1 - p, p] or scores [-z, z]; a softmax over (-z, z) is a sigmoid of 2 z;
    - otherwise: a column of scores for each label.
    """
    labels, link = class_labels(node), attribute(node, "post_transform", "NONE")
    coef = np.array(attribute(node, "coefficients"), np.float32)
    if labels is None or link not in _LINKS or len(coef) % len(labels):
        return None
    coef = coef.reshape(len(labels), -1)
    intercept = np.array(attribute(node, "intercepts", [0.0] * len(labels)), np.float32)
    if len(intercept) != len(labels):
        return None
    if len(labels) == 2 and np.array_equal(coef[0], -coef[1]) and intercept[0] == -intercept[1]:
        factor = np.float32(2 if link == "SOFTMAX" else 1)
        score = _gemm(w, node, factor * coef[1:], factor * intercept[1:])
        return [pick_binary_label(w, score, labels), _mirror(w, score, link)]
    score = _gemm(w, node, coef, intercept)
    label = w.op.Gather(label_tensor(w, labels), w.op.ArgMax(score, axis=1, keepdims=0))
    return [label, _LINKS[link](w, score)]


_LINKS = {
    "NONE": lambda w, score: score,
    "LOGISTIC": lambda w, score: w.op.Sigmoid(score),
    "SOFTMAX": lambda w, score: w.op.Softmax(score, axis=1),
}


def _mirror(w: Writer, score: ir.Value, link: str) -> ir.Value:
    if link == "NONE":
        return w.op.Concat(w.op.Neg(score), score, axis=1)
    probability = w.op.Sigmoid(score)
    return w.op.Concat(w.op.Sub(1.0, probability), probability, axis=1)


def _gemm(w: Writer, node: ir.Node, coef: np.ndarray, intercept: np.ndarray) -> ir.Value:
    return w.op.Gemm(
        w.as_float(matrix(node)), w.tensor("coef", coef.T.copy()), w.tensor("intercept", intercept)
    )


def _scaler(w: Writer, node: ir.Node) -> ir.Value:
    """``(X - offset) * scale``; both were fitted without the target, so they are no parameters."""
    x = w.as_float(first(node))
    for name, op_type in [("offset", w.op.Sub), ("scale", w.op.Mul)]:
        if attribute(node, name):
            array = np.array(attribute(node, name), np.float32)
            x = op_type(x, w.tensor(name, array, frozen="constant of a scaler"))
    return x


def _normalizer(w: Writer, node: ir.Node) -> ir.Value:
    """Divide each row by its norm; a row of norm zero is unchanged."""
    x = w.as_float(first(node))
    norm = attribute(node, "norm", "MAX")
    if norm != "MAX":
        return divide_by_norm(w, x, axis=1, p=1 if norm == "L1" else 2)
    largest = w.reduce("ReduceMax", x, [1])
    return w.op.Div(x, w.op.Where(w.op.Equal(largest, 0.0), 1.0, largest))


def _feature_extractor(w: Writer, node: ir.Node) -> ir.Value | None:
    """Gather columns, if these are constant and the data has rows."""
    data, columns = first(node), constant(node.inputs[1])
    if columns is None or (rank(data) or 0) < 2:
        return None
    columns = columns.reshape(-1).astype(np.int64)
    if len(columns) == 1 and (part := _single_column(data, int(columns[0]))) is not None:
        return w.op.Identity(part)
    return w.op.Gather(data, w.tensor("columns", columns), axis=-1)


def _single_column(table: ir.Value, column: int) -> ir.Value | None:
    """Return the value that is a column of a concatenation of single ones; None: it is no such table.

    Converters take the score of the second class from both scores of a binary classifier.
    """
    maker = table.producer()
    if maker is None or standard_operator(maker) != "Concat" or attribute(maker, "axis", 1) not in (1, -1):
        return None
    parts = operands(maker)
    if not -len(parts) <= column < len(parts):
        return None
    are_single = all(part.shape is not None and tuple(part.shape)[1:] == (1,) for part in parts)
    return parts[column] if are_single else None


def _feature_vectorizer(w: Writer, node: ir.Node) -> ir.Value | None:
    """Concatenate columns, if each input is as wide as the attribute says (else it is padded)."""
    widths = [None if value.shape is None else value.shape[-1] for value in operands(node)]
    if widths != list(attribute(node, "inputdimensions", ())):
        return None
    return w.op.Concat(*(w.as_float(value) for value in operands(node)), axis=1)


#: The rules of ``ai.onnx.ml``.
ML_RULES: Table = {
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _feature_extractor,
    ("ai.onnx.ml", "FeatureVectorizer"): _feature_vectorizer,
    ("ai.onnx.ml", "LinearClassifier"): _linear_classifier,
    ("ai.onnx.ml", "LinearRegressor"): _linear_regressor,
    ("ai.onnx.ml", "Normalizer"): _normalizer,
    ("ai.onnx.ml", "Scaler"): _scaler,
    **SVM_RULES,
}
