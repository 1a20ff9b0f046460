"""Convolutions of sequences in forms that are faster than that of the runtime, which takes sample by sample.

Where windows move by several places, the gradient of the weight is made from a table of the windows of all
samples: the product of that table with the weight is the result.

Channels in groups make small matrices, and short sequences make small products. A batch of them is one long
sequence, place by place, in each place the samples one behind the other, and windows take every n-th place.

For graphs that hold their gradients: these forms are not differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, first, required, shape_of
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["SEQUENCE_FORMS"]

#: The most places of the result with few taps, for a batch of sequences in groups; from `_MANY` taps on any
#: number. ``benchmarks/constants.py``, 8 groups of 8 channels, batch 8: with 16 taps 0.55 of the time at 8
#: places, 0.67 at 24, 0.77 at 100, 0.75 at 400, with onnxruntime 1.19.2 0.60, 0.71, 0.81 and 0.80; with 3
#: taps 0.82 at 24, 0.96 at 48, 1.03 at 100; with 7 taps 0.98 at 100, with onnxruntime 1.19.2 1.06 at 200.
_SHORT, _MANY = 48, 16


@dataclass(frozen=True)
class _Sequences:
    """A convolution of sequences of known sizes.

    Attributes
    ----------
    n, c, length : int
        Samples, channels, places.
    m, out : int
        Channels and places of the result.
    kernel, stride, dilation, group : int
        The moves of the windows.
    pads : tuple of int
        The padding before and after a sequence.
    """

    n: int
    c: int
    length: int
    m: int
    out: int
    kernel: int
    stride: int
    dilation: int
    group: int
    pads: tuple[int, int]


def _convolution(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Conv(x, weight, bias)`` of sequences of known sizes."""
    s = _read(node)
    if s is None:
        return None
    if s.stride > 1 and s.group == s.dilation == 1:
        return _as_product(w, node, s)
    is_batch = s.n > 1 and s.stride == 1 and 1 < s.group < s.c and min(s.pads) >= 0
    return _as_one_sequence(w, node, s) if is_batch and (s.out <= _SHORT or s.kernel >= _MANY) else None


def _read(node: ir.Node) -> _Sequences | None:
    x, weight, y = first(node), required(node, 1), node.outputs[0]
    if any(value.shape is None or not value.shape.is_static() for value in (x, weight, y)):
        return None
    sizes = shape_of(y).numpy()
    if len(sizes) != 3 or 0 in sizes or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    (n, c, length), (m, _, kernel) = shape_of(x).numpy(), shape_of(weight).numpy()
    (stride,), (dilation,) = (attribute(node, name, [1]) for name in ("strides", "dilations"))
    before, after = attribute(node, "pads", [0, 0])
    group = attribute(node, "group", 1)
    return _Sequences(n, c, length, m, sizes[2], kernel, stride, dilation, group, (before, after))


def _as_product(w: Writer, node: ir.Node, s: _Sequences) -> ir.Value | None:
    """Multiply the table of windows that the gradient of the weight is made from, if there is one."""
    windows = _table(first(node), s)
    if windows is None:
        return None
    kernel = w.reshaped(w.transposed(required(node, 1), [0, 2, 1]), [s.m, s.kernel * s.c])
    bias = [value for value in node.inputs[2:] if value is not None]
    product = w.known("Gemm", [windows, kernel, *bias], [s.n * s.out, s.m], transB=1)
    return w.transposed(w.reshaped(product, [s.n, s.out, s.m]), [0, 2, 1])


def _table(x: ir.Value, s: _Sequences) -> ir.Value | None:
    """Return the windows [n out, kernel c] of x, or None."""
    places = np.arange(s.out)[:, None] * s.stride - s.pads[0] + np.arange(s.kernel)
    for rows in _readers(x, "Transpose"):
        if list(attribute(rows, "perm", ())) != [0, 2, 1]:
            continue
        for windows in _picked(rows.outputs[0], places.reshape(-1), s.length):
            for table in _readers(windows, "Reshape"):
                if table.outputs[0].shape == (s.n * s.out, s.kernel * s.c):
                    return table.outputs[0]
    return None


def _picked(rows: ir.Value, places: np.ndarray, length: int) -> Iterator[ir.Value]:
    """Yield the tensors made of `rows`, [n, length, c], that have these places one behind the other."""
    if len(places) <= length and np.array_equal(places, np.arange(len(places))):
        if len(places) == length:
            yield rows
        for cut in _readers(rows, "Slice"):
            if [constant(value) for value in cut.inputs[1:]] == [[0], [len(places)], [1]]:
                yield cut.outputs[0]
        return
    is_outside = (places < 0) | (places >= length)
    sources = [node.outputs[0] for node in _readers(rows, "Concat")] if is_outside.any() else [rows]
    for source in sources:
        for gather in _readers(source, "Gather"):
            picked = constant(gather.inputs[1])
            if picked is not None and np.array_equal(picked, np.where(is_outside, length, places)):
                yield gather.outputs[0]


def _as_one_sequence(w: Writer, node: ir.Node, s: _Sequences) -> ir.Value:
    """Convolve all samples as one."""
    turned = w.transposed(w.reshaped(first(node), [s.n, s.c * s.length]), [1, 0])
    long, pads = w.reshaped(turned, [1, s.c, s.length * s.n]), [pad * s.n for pad in s.pads]
    weights = [value for value in node.inputs[1:] if value is not None]
    product = w.known(
        "Conv",
        [long, *weights],
        [1, s.m, s.out * s.n],
        group=s.group,
        dilations=[s.dilation * s.n],
        pads=pads,
    )
    if not _is_turned(node.outputs[0]):
        return w.reshaped(w.transposed(w.reshaped(product, [s.m * s.out, s.n]), [1, 0]), [s.n, s.m, s.out])
    # The runtime would join two Transposes to one that reverses three axes, which takes nine times as long.
    places = w.transposed(w.reshaped(product, [s.m, s.out * s.n]), [1, 0])
    order = np.arange(s.out * s.n).reshape(s.out, s.n).T.reshape(-1)
    rows = w.known("Gather", [places, w.tensor("order", order)], [s.n * s.out, s.m], axis=0)
    return w.transposed(w.reshaped(rows, [s.n, s.out, s.m]), [0, 2, 1])


def _is_turned(y: ir.Value) -> bool:
    """Tell whether only a Transpose that moves the channels to the end reads a result."""
    readers = [] if y.is_graph_output() else _readers(y, "Transpose")
    return len(readers) == len(y.uses()) == 1 and list(attribute(readers[0], "perm", ())) == [0, 2, 1]


def _readers(value: ir.Value, op_type: str) -> list[ir.Node]:
    return [node for node, index in value.uses() if node.op_type == op_type and index == 0]


#: The forms of convolutions of sequences.
SEQUENCE_FORMS: Table = {("", "Conv"): _convolution}
