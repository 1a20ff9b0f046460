"""Gelu as exporters write it out, differentiated as a whole.

The rules of its nodes take two operators more, one of them a division: the whole updates of
``benchmarks/networks.py`` take 0.93 to 0.95 of the time for wav2vec2, which has seven of them, 0.98 for swin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxsgd.gradient.portable.writing.broadcasting import expand_to
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.nodes import standard_operator
from onnxsgd.graph.written_gelus import WrittenGelu, gelus_around

__all__ = ["find_gelus", "gelu_gradient"]


def gelu_gradient(gelu: WrittenGelu, emitter: Emitter, gradients: Mapping[ir.Value, Tensor]) -> Tensor:
    """Return the gradient of the input, given that of the result."""
    x, u, b, y = (emitter.tensor(value) for value in (gelu.x, gelu.u, gelu.b, gelu.y))
    # the factor of the bell curve is in the exponent, where it takes no further operator
    bell = op.Exp(math.log(2 * gelu.slope / math.sqrt(math.pi)) - u * u)
    return expand_to(gradients[gelu.y], y) * gelu.factor * (b + x * bell)


def find_gelus(nodes: Sequence[ir.Node], emitter: Emitter) -> dict[ir.Node, WrittenGelu]:
    """Return each Gelu that is written out, under the node that computes its result.

    Other nodes may read the tensors between: their gradients are added to that of the whole.
    """
    known = set(nodes)
    found: dict[ir.Node, WrittenGelu] = {}
    for node in nodes:
        if standard_operator(node) == "Erf":
            for gelu in gelus_around(node):
                last = gelu.y.producer()
                if last is not None and last in known and _is_plain(gelu, emitter):
                    found[last] = gelu
    return found


def _is_plain(gelu: WrittenGelu, emitter: Emitter) -> bool:
    """Tell whether the constants add no axes, as far as the shapes are known."""
    dims = [emitter.tensor(value).dims for value in (gelu.x, gelu.u, gelu.b, gelu.y)]
    return None not in dims and len(set(dims)) == 1
