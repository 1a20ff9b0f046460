"""Gelu as exporters write it out: x (1 + erf(x / sqrt(2))) / 2 in four or five nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import constant, standard_operator

__all__ = ["WrittenGelu", "gelus_around", "only_number", "scaled_by_number"]

#: Returns the only number of a constant, None for any other tensor.
Number = Callable[[ir.Value | None], float | None]


@dataclass(frozen=True)
class WrittenGelu:
    """Nodes that compute ``y = factor x b``, with ``b = shift + erf(u)`` and ``u = slope x``.

    Attributes
    ----------
    x, u, b, y : ir.Value
        The tensors; u may be x, with the slope 1.
    slope, factor : float
        The constants; the slope is positive.
    """

    x: ir.Value
    u: ir.Value
    b: ir.Value
    y: ir.Value
    slope: float
    factor: float


def only_number(value: ir.Value | None) -> float | None:
    """Return the only number of a constant, None for any other tensor."""
    array = constant(value)
    return float(np.reshape(array, ())) if array is not None and array.size == 1 else None


def gelus_around(erf: ir.Node, number: Number = only_number) -> Iterator[WrittenGelu]:
    """Yield the Gelus that are written out with an Erf.

    Cases: ``Mul(Mul(x, b), factor)``, ``Mul(Mul(x, factor), b)`` and ``Mul(x, b)`` with ``b = Add(Erf(u),
    shift)``, operands in any order, u a Div or a Mul of x and a constant, or x. All constants are single
    numbers. Other nodes may read the tensors between.
    """
    u, curve = erf.inputs[0], erf.outputs[0]
    if u is None:
        return
    scaled = scaled_by_number(u, number)
    x, slope = (u, 1.0) if scaled is None or scaled[1] <= 0 else scaled
    for added in curve.consumers():
        if standard_operator(added) != "Add" or number(_beside(added, curve)) is None:
            continue
        b = added.outputs[0]
        for product in b.consumers():
            other, y = (
                _beside(product, b) if standard_operator(product) == "Mul" else None,
                product.outputs[0],
            )
            if other is x:
                halved = list(_halved(x, u, b, y, slope, number))
                yield from halved or [WrittenGelu(x, u, b, y, slope, 1.0)]
            elif other is not None and (half := scaled_by_number(other, number)) is not None and half[0] is x:
                yield WrittenGelu(x, u, b, y, slope, half[1])


def _halved(
    x: ir.Value, u: ir.Value, b: ir.Value, product: ir.Value, slope: float, number: Number
) -> Iterator[WrittenGelu]:
    for last in product.consumers():
        scaled = scaled_by_number(last.outputs[0], number)
        if scaled is not None and scaled[0] is product:
            yield WrittenGelu(x, u, b, last.outputs[0], slope, scaled[1])


def scaled_by_number(value: ir.Value, number: Number = only_number) -> tuple[ir.Value, float] | None:
    """Return the tensor and the number that a value is the product of, or None."""
    node = value.producer()
    if node is None or standard_operator(node) not in ("Mul", "Div"):
        return None
    a, b = node.inputs
    if a is not None and (found := number(b)) is not None:
        if standard_operator(node) == "Mul":
            return a, found
        return None if found == 0 else (a, 1 / found)
    found = number(a)
    return None if b is None or found is None or standard_operator(node) == "Div" else (b, found)


def _beside(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other operand of a node."""
    a, b = node.inputs
    return b if a is value else a
