"""Products with a matrix, written with the vector added to them as one Gemm.

The runtime joins the two operators for tables alone, and adds the vector to other tensors in a pass of its
own. ``benchmarks/networks.py``, wav2vec2: 0.99 of the time of an update, 0.98 with onnxruntime 1.19.2. Loops
over batches carry intercepts that a Gemm adds in other forms. Whole fits of a network 20-100-1, 10,240 rows:
0.87 to 0.92 of the time with squared error, batches of 10, 0.90 to 0.95 with batches of 32; 0.94 to 1.00 with
cross-entropy.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxsgd.graph.nodes import is_fixed_float32, is_read_once, operands, shape_of, standard_operator
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["AFFINE_FORMS"]


def _affine(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Add(MatMul(x, weight), bias)`` with x of two axes or more, and a bias for each column."""
    for product, bias in (operands(node), operands(node)[::-1]):
        matmul = product.producer()
        if matmul is None or standard_operator(matmul) != "MatMul" or not is_read_once(product):
            continue
        x, weight = operands(matmul)
        if not all(is_fixed_float32(value) for value in (x, weight, bias, product)):
            continue
        (*lead, n_in), sizes = shape_of(x).numpy(), shape_of(product).numpy()
        if not lead or len(shape_of(weight)) != 2 or 0 in (*sizes, n_in):
            continue
        is_table, rows = len(lead) == 1, math.prod(lead)
        if bias.shape != sizes[-1:] and not (is_table and bias.shape == (1, sizes[-1])):
            continue
        if is_table:
            return w.known("Gemm", [x, weight, bias], sizes)
        y = w.known("Gemm", [w.reshaped(x, [rows, n_in]), weight, bias], [rows, sizes[-1]])
        return w.reshaped(y, sizes)
    return None


#: The form of layers.
AFFINE_FORMS: Table = {("", "Add"): _affine}
