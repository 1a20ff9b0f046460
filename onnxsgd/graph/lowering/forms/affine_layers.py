"""Products of tensors of more than two axes with a matrix, written with the vector added to them as one Gemm.

The runtime adds the vector in a pass of its own: it joins the two operators for tables alone.
``benchmarks/networks.py``, wav2vec2: 0.99 of the time of an update, 0.98 with onnxruntime 1.19.2.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxsgd.graph.nodes import is_fixed_float32, is_read_once, operands, shape_of, standard_operator
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["AFFINE_FORMS"]


def _affine(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Add(MatMul(x, weight), bias)`` with x of more than two axes, and a bias for each column."""
    for product, bias in (operands(node), operands(node)[::-1]):
        matmul = product.producer()
        if matmul is None or standard_operator(matmul) != "MatMul" or not is_read_once(product):
            continue
        x, weight = operands(matmul)
        if not all(is_fixed_float32(value) for value in (x, weight, bias, product)):
            continue
        (*lead, n_in), sizes = shape_of(x).numpy(), shape_of(product).numpy()
        is_table = len(lead) < 2 or len(shape_of(weight)) != 2
        if is_table or bias.shape != sizes[-1:] or 0 in (*sizes, n_in):
            continue
        rows = math.prod(lead)
        y = w.known("Gemm", [w.reshaped(x, [rows, n_in]), weight, bias], [rows, sizes[-1]])
        return w.reshaped(y, sizes)
    return None


#: The form of layers whose input has more than two axes.
AFFINE_FORMS: Table = {("", "Add"): _affine}
