"""Factors of a Gelu that is written out, moved into the layers before and after it.

``y = factor x (1 + erf(slope x))`` is ``(factor / slope) u (1 + erf(u))`` with ``u = slope x``. A layer that
makes x makes u as fast, by a factor of its weights, and one that reads y takes the other factor in the same
way: two passes over x in each update are left out, and a third one in the gradient.

``benchmarks/networks.py``: 0.97 of the time of an update of wav2vec2, of vit and of swin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import (
    attribute,
    element_type,
    first,
    is_fixed_float32,
    is_read_once,
    operands,
    shape_of,
    standard_operator,
)
from onnxsgd.graph.rewriting import Table, Writer
from onnxsgd.graph.written_gelus import WrittenGelu, gelus_around, only_number, scaled_by_number

__all__ = ["factor_forms"]

#: Operators that move numbers, in one to one correspondence of a part of them.
_MOVES = frozenset({"Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})

#: The least ratio of the numbers of a tensor to those of the weights that take its factor: these are passed
#: over in each update too, and so are their gradients.
_RATIO = 2

_Number = Callable[[ir.Value | None], float | None]


def factor_forms(trained: Collection[str]) -> Table:
    """Return the forms, for a graph whose initializers of these names are trained: they are no constants."""

    def number(value: ir.Value | None) -> float | None:
        return None if value is None or value.name in trained else only_number(value)

    return {
        ("", "Mul"): partial(_gelu, number),
        ("", "Div"): partial(_gelu, number),
        ("", "Gemm"): partial(_product, number),
        ("", "Conv"): partial(_convolution, number),
    }


def _gelu(number: _Number, w: Writer, node: ir.Node) -> ir.Value | None:
    """``factor x (shift + erf(slope x))``, where a layer makes x."""
    gelu = _find(number, node)
    if gelu is None or len(gelu.x.uses()) > 2 or not is_read_once(gelu.u):
        return None
    if gelu.slope == 1 or not _can_scale(gelu.x):
        return None
    sizes = list(shape_of(gelu.x).numpy())
    added = gelu.b.producer()
    shift = next(value for value in operands(added) if number(value) is not None) if added else None
    if shift is None:
        return None
    u = _scaled_layer(w, gelu.x, gelu.slope)
    b = w.known("Add", [w.known("Erf", [u], sizes), shift], sizes)
    return _scaled(w, w.known("Mul", [u, b], sizes), gelu.factor / gelu.slope)


def _find(number: _Number, node: ir.Node) -> WrittenGelu | None:
    """Return the Gelu whose result a node computes."""
    y = node.outputs[0]
    near = [value.producer() for value in operands(node)]
    further = [value.producer() for other in near if other is not None for value in operands(other)]
    for added in (*near, *further):
        if added is None or standard_operator(added) != "Add":
            continue
        for curve in operands(added):
            erf = curve.producer()
            if erf is not None and standard_operator(erf) == "Erf":
                found = [gelu for gelu in gelus_around(erf, number) if gelu.y is y]
                if found:
                    return found[0]
    return None


def _product(number: _Number, w: Writer, node: ir.Node) -> ir.Value | None:
    """``Gemm(factor x, weight)`` becomes a Gemm of x with a factor."""
    found = _unscaled(number, w, first(node))
    if found is None:
        return None
    attributes = _attributes(node)
    attributes["alpha"] = attributes.get("alpha", 1.0) * found[1]
    return _again(w, node, [found[0], *node.inputs[1:]], attributes)


def _convolution(number: _Number, w: Writer, node: ir.Node) -> ir.Value | None:
    """``Conv(factor x, weight)`` becomes ``Conv(x, factor weight)``."""
    weight = node.inputs[1]
    if weight is None or not _is_smaller(weight, first(node)):
        return None
    found = _unscaled(number, w, first(node))
    return (
        None if found is None else _again(w, node, [found[0], _scaled(w, weight, found[1]), *node.inputs[2:]])
    )


def _unscaled(number: _Number, w: Writer, value: ir.Value) -> tuple[ir.Value, float] | None:
    """Return a tensor without its factor, moved as the value is, and the factor; None if it has none."""
    moves: list[ir.Node] = []
    while (node := value.producer()) is not None and standard_operator(node) in _MOVES:
        if not is_read_once(value):
            return None
        moves.append(node)
        value = first(node)
    found = scaled_by_number(value, number) if is_read_once(value) else None
    if found is None or found[1] == 0 or not all(is_fixed_float32(v) for v in (found[0], value)):
        return None
    x, factor = found
    if x.shape != value.shape:
        return None
    for node in reversed(moves):
        x = _again(w, node, [x, *node.inputs[1:]])
    return x, factor


def _can_scale(value: ir.Value) -> bool:
    """Tell whether a layer computes a value, so that its weights can take a factor."""
    node = value.producer()
    if node is None or value.is_graph_output() or not is_fixed_float32(value):
        return False
    kind, inputs = standard_operator(node), operands(node)
    if kind in _MOVES:
        return is_read_once(inputs[0]) and _can_scale(inputs[0])
    if kind == "Gemm":
        return all(_is_smaller(c, value) for c in inputs[2:])
    if kind == "Conv":
        return all(_is_smaller(weight, value) for weight in inputs[1:])
    if kind == "Mul":
        return any(_is_weight(factor, value) for factor in inputs)
    if kind == "Add":
        pairs = (inputs, inputs[::-1])
        return any(_is_weight(a, value) and is_read_once(b) and _can_scale(b) for a, b in pairs)
    return False


def _scaled_layer(w: Writer, value: ir.Value, factor: float) -> ir.Value:
    """Write the layer that computes a value again, with a factor."""
    node = value.producer()
    if node is None:
        raise LookupError(f"no layer computes {value.name!r}")
    kind, inputs = standard_operator(node), operands(node)
    if kind in _MOVES:
        return _again(w, node, [_scaled_layer(w, inputs[0], factor), *node.inputs[1:]])
    if kind == "Gemm":
        attributes = _attributes(node)
        attributes["alpha"] = attributes.get("alpha", 1.0) * factor
        return _again(w, node, [*inputs[:2], *(_scaled(w, c, factor) for c in inputs[2:])], attributes)
    if kind == "Conv":
        return _again(w, node, [inputs[0], *(_scaled(w, weight, factor) for weight in inputs[1:])])
    weight, rest = inputs if _is_weight(inputs[0], value) else inputs[::-1]
    rest = rest if kind == "Mul" else _scaled_layer(w, rest, factor)
    return _again(w, node, [rest, _scaled(w, weight, factor)])


def _scaled(w: Writer, value: ir.Value, factor: float) -> ir.Value:
    """Write the product of a tensor with a number."""
    number = w.tensor("factor", np.array(factor, element_type(value).numpy()), frozen="factor of a Gelu")
    return w.known("Mul", [value, number], shape_of(value).numpy())


def _again(
    w: Writer, node: ir.Node, inputs: list[ir.Value | None], attributes: dict[str, Any] | None = None
) -> ir.Value:
    """Write a node with other inputs."""
    given = [value for value in inputs if value is not None]
    attributes = _attributes(node) if attributes is None else attributes
    return w.known(node.op_type, given, shape_of(node.outputs[0]).numpy(), **attributes)


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute(node, name) for name in node.attributes}


def _is_weight(value: ir.Value, like: ir.Value) -> bool:
    return value.is_initializer() and _is_smaller(value, like)


def _is_smaller(value: ir.Value, like: ir.Value) -> bool:
    """Tell whether a tensor has far fewer numbers than another one."""
    if not (is_fixed_float32(value) and is_fixed_float32(like)):
        return False
    return _RATIO * math.prod(shape_of(value).numpy()) <= math.prod(shape_of(like).numpy())
