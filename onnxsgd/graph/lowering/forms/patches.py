"""Convolutions of an input by windows that lie side by side, as one product: embeddings of patches.

The gradient of the weight takes the patches in the rows of a table. The result is a product with that table
too, and its rows are those that a transformer reads: neither it nor its gradient is transposed any more.
"""

from __future__ import annotations

import math
from itertools import chain

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, first, holds_input, is_fixed_float32, operands, required, shape_of
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["PATCH_FORMS"]

#: The least taps of a window, those from which the gradient of the weight is made from the same table.
#: ``benchmarks/constants.py``, an update with the order of a transformer, batch 8: 0.82 of the time for
#: images of 32 x 32 in patches of 4 x 4, 0.78 of 8 x 8, 0.82 for 224 x 224 in 16 x 16; with onnxruntime
#: 1.19.2 0.94, 0.89 and 0.94.
_TAPS = 16
#: The most windows of a sample. The same for 224 x 224 in 4 x 4, 3,136 windows: 0.75, with 1.19.2 1.11.
_MOST_WINDOWS = 1024


def _patches(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Conv(x, weight, bias)`` of an input of the graph, with all of it in exactly one window."""
    x, weight, y = first(node), required(node, 1), node.outputs[0]
    if not all(is_fixed_float32(value) for value in (*operands(node), y)) or not holds_input(x):
        return None
    (n, c, *sizes), (m, _, *kernel) = shape_of(x).numpy(), shape_of(weight).numpy()
    out, taps = shape_of(y).numpy()[2:], math.prod(kernel)
    if not _is_plain(node, kernel) or math.prod(sizes) != math.prod(out) * taps or 0 in (n, taps, *out):
        return None
    if taps < _TAPS or math.prod(out) > _MOST_WINDOWS:
        return None
    order = [0, *range(2, 2 + 2 * len(out), 2), 1, *range(3, 3 + 2 * len(out), 2)]
    split = w.reshaped(x, [n, c, *chain.from_iterable(zip(out, kernel, strict=True))])
    places = math.prod(out)
    table = w.reshaped(w.transposed(split, order), [n * places, c * taps])
    flat = w.reshaped(weight, [m, c * taps])
    rows = w.known("Gemm", [table, flat, *operands(node)[2:]], [n * places, m], transB=1)
    return w.reshaped(w.transposed(w.reshaped(rows, [n, places, m]), [0, 2, 1]), [n, m, *out])


def _is_plain(node: ir.Node, kernel: list[int]) -> bool:
    """Tell whether windows are as far from each other as they are long, without padding and groups."""
    has_pads = attribute(node, "auto_pad", "NOTSET") != "NOTSET" or any(attribute(node, "pads", [0]))
    is_dense = attribute(node, "group", 1) == max(attribute(node, "dilations", [1])) == 1
    return is_dense and not has_pads and list(attribute(node, "strides", [1] * len(kernel))) == list(kernel)


#: The form of embeddings of patches.
PATCH_FORMS: Table = {("", "Conv"): _patches}
