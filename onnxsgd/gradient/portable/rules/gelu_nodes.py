"""Gelu as exporters write it out, x (1 + erf(x / sqrt(2))) / 2 in five nodes, differentiated as a whole.

The rules of its nodes take two operators more, one of them a division: the whole updates of
``benchmarks/networks.py`` take 0.93 to 0.95 of the time for wav2vec2, which has seven of them, 0.98 for swin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.writing.broadcasting import expand_to
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.nodes import constant, standard_operator

__all__ = ["WrittenGelu", "find_gelus"]


@dataclass(frozen=True)
class WrittenGelu:
    """Nodes that compute ``y = factor x b``, with ``b = shift + erf(u)`` and ``u = slope x``.

    Attributes
    ----------
    x, u, b, y : ir.Value
        The tensors.
    slope, factor : float
        The constants; the slope is positive.
    """

    x: ir.Value
    u: ir.Value
    b: ir.Value
    y: ir.Value
    slope: float
    factor: float

    def gradient(self, emitter: Emitter, gradients: Mapping[ir.Value, Tensor]) -> Tensor:
        """Return the gradient of `x`, given that of `y`."""
        x, u, b, y = (emitter.tensor(value) for value in (self.x, self.u, self.b, self.y))
        # the factor of the bell curve is in the exponent, where it takes no further operator
        bell = op.Exp(math.log(2 * self.slope / math.sqrt(math.pi)) - u * u)
        return expand_to(gradients[self.y], y) * self.factor * (b + x * bell)


def find_gelus(nodes: Sequence[ir.Node], emitter: Emitter) -> dict[ir.Node, WrittenGelu]:
    """Return each Gelu that is written out, under the node that computes its result.

    Cases: ``Mul(Mul(x, b), factor)`` and ``Mul(Mul(x, factor), b)`` with ``b = Add(Erf(u), shift)``, operands
    in any order, u a Div or a Mul of x and a constant. All constants are single numbers. Other nodes may read
    the tensors between: their gradients are added to that of the whole.
    """
    known = set(nodes)
    found: dict[ir.Node, WrittenGelu] = {}
    for node in nodes:
        if standard_operator(node) == "Erf":
            for gelu in _around(node):
                last = gelu.y.producer()
                if last is not None and last in known and _is_plain(gelu, emitter):
                    found[last] = gelu
    return found


def _around(erf: ir.Node) -> Iterator[WrittenGelu]:
    u, curve = erf.inputs[0], erf.outputs[0]
    scaled = None if u is None else _scaled(u)
    if u is None or scaled is None or scaled[1] <= 0:
        return
    x, slope = scaled
    for added in curve.consumers():
        if standard_operator(added) != "Add" or _number_beside(added, curve) is None:
            continue
        b = added.outputs[0]
        for product in b.consumers():
            other = _beside(product, b) if standard_operator(product) == "Mul" else None
            if other is x:
                yield from _halved(x, u, b, product.outputs[0], slope)
            elif other is not None and (half := _scaled(other)) is not None and half[0] is x:
                yield WrittenGelu(x, u, b, product.outputs[0], slope, half[1])


def _halved(x: ir.Value, u: ir.Value, b: ir.Value, product: ir.Value, slope: float) -> Iterator[WrittenGelu]:
    for last in product.consumers():
        scaled = _scaled(last.outputs[0])
        if scaled is not None and scaled[0] is product:
            yield WrittenGelu(x, u, b, last.outputs[0], slope, scaled[1])


def _scaled(value: ir.Value) -> tuple[ir.Value, float] | None:
    """Return the tensor and the number that a value is the product of."""
    node = value.producer()
    if node is None or standard_operator(node) not in ("Mul", "Div"):
        return None
    a, b = node.inputs
    if a is not None and (number := _number(b)) is not None:
        if standard_operator(node) == "Mul":
            return a, number
        return None if number == 0 else (a, 1 / number)
    number = _number(a)
    return None if b is None or number is None or standard_operator(node) == "Div" else (b, number)


def _beside(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other operand of a node."""
    a, b = node.inputs
    return b if a is value else a


def _number_beside(node: ir.Node, value: ir.Value) -> float | None:
    return _number(_beside(node, value))


def _number(value: ir.Value | None) -> float | None:
    array = constant(value)
    return float(np.reshape(array, ())) if array is not None and array.size == 1 else None


def _is_plain(gelu: WrittenGelu, emitter: Emitter) -> bool:
    """Tell whether the constants add no axes, as far as the shapes are known."""
    dims = [emitter.tensor(value).dims for value in (gelu.x, gelu.u, gelu.b, gelu.y)]
    return None not in dims and len(set(dims)) == 1
