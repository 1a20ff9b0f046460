"""Lowering of support vector machines: a kernel of samples and support vectors, then a linear layer.

The coefficients and the intercept of that layer are the parameters. The support vectors are fixed unless a
user names them: moving them would change the kind of the fitted model.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.lowering.class_labels import class_labels, pick_binary_label
from onnxsgd.graph.nodes import attribute, matrix
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["SVM_RULES"]


def _regressor(w: Writer, node: ir.Node) -> ir.Value | None:
    """``y = K(X, support vectors) @ dual_coef + intercept``, except for one-class detectors."""
    count = attribute(node, "n_supports", 0)
    if not count or attribute(node, "one_class", 0) or attribute(node, "post_transform", "NONE") != "NONE":
        return None
    return _kernel_layer(w, node, count, 1.0)


def _classifier(w: Writer, node: ir.Node) -> list[ir.Value] | None:
    """Labels and scores of two classes; not of several classes, which vote in pairs, nor probabilities.

    The runtime's score s is positive for the FIRST class, and it returns (-s, s). The layer written here
    computes z = -s, which is positive for the second class, as in scikit-learn.
    """
    labels, counts = class_labels(node), attribute(node, "vectors_per_class")
    if labels is None or len(labels) != 2 or not counts or attribute(node, "prob_a"):
        return None
    if attribute(node, "post_transform", "NONE") != "NONE":
        return None
    score = _kernel_layer(w, node, sum(counts), -1.0)
    return [pick_binary_label(w, score, labels), w.op.Concat(score, w.op.Neg(score), axis=1)]


def _kernel_layer(w: Writer, node: ir.Node, count: int, sign: float) -> ir.Value:
    """Write ``sign * (K @ dual_coef + rho)``; for the linear kernel the two products become one."""
    x = w.as_float(matrix(node))
    vectors = np.array(attribute(node, "support_vectors"), np.float32).reshape(count, -1)
    dual = sign * np.array(attribute(node, "coefficients"), np.float64).reshape(count, 1)
    intercept = w.tensor("intercept", (sign * np.array(attribute(node, "rho")[:1])).astype(np.float32))
    kernel = attribute(node, "kernel_type", "LINEAR")
    if kernel == "LINEAR":
        return w.op.Gemm(x, w.tensor("coef", (vectors.T @ dual).astype(np.float32)), intercept)
    gamma, coef0, degree = attribute(node, "kernel_params")
    similarity = _KERNELS[kernel](w, x, vectors, gamma, coef0, degree)
    return w.op.Gemm(similarity, w.tensor("dual_coef", dual.astype(np.float32)), intercept)


def _rbf(w: Writer, x: ir.Value, vectors: np.ndarray, gamma: float, coef0: float, degree: float) -> ir.Value:
    """Write exp(-gamma |x - v|^2), the square expanded around the mean of the vectors to lose no digits."""
    centre = vectors.mean(axis=0)
    x = w.op.Sub(x, w.tensor("support_centre", centre, frozen=_REASON))
    v = w.tensor("support_vectors", (vectors - centre).T.copy(), frozen=_REASON)
    squares = w.op.Add(w.op.ReduceSum(w.op.Mul(x, x), [1], keepdims=1), w.op.ReduceSum(w.op.Mul(v, v), [0]))
    distance = w.op.Sub(squares, w.op.Mul(w.op.MatMul(x, v), 2.0))
    return w.op.Exp(w.op.Mul(distance, -gamma))


def _product(w: Writer, x: ir.Value, vectors: np.ndarray, gamma: float, coef0: float) -> ir.Value:
    product = w.op.MatMul(x, w.tensor("support_vectors", vectors.T.copy(), frozen=_REASON))
    return w.op.Add(w.op.Mul(product, gamma), coef0)


_REASON = "support vectors"
_KERNELS = {
    "RBF": _rbf,
    "POLY": lambda w, x, v, gamma, coef0, degree: w.op.Pow(_product(w, x, v, gamma, coef0), degree),
    "SIGMOID": lambda w, x, v, gamma, coef0, degree: w.op.Tanh(_product(w, x, v, gamma, coef0)),
}

#: The rules of the support vector machines of ``ai.onnx.ml``.
SVM_RULES: Table = {
    ("ai.onnx.ml", "SVMClassifier"): _classifier,
    ("ai.onnx.ml", "SVMRegressor"): _regressor,
}
