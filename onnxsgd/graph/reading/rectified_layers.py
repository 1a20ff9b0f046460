"""Layers of a network that follow one another with rectified values between them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.nodes import standard_operator
from onnxsgd.graph.reading.first_layers import FirstLayer, layer_of

__all__ = ["RectifiedLayer", "rectified_layers"]

#: The slope of negative values that LeakyRelu has by default.
_LEAKY = 0.01


@dataclass(frozen=True)
class RectifiedLayer:
    """A product whose sums are rectified, and then read by the next one alone.

    Attributes
    ----------
    layer : FirstLayer
        The product; its feature is its input.
    slope : float
        The slope of negative sums: 0 after Relu, 1 where nothing rectifies them.
    """

    layer: FirstLayer
    slope: float


def rectified_layers(model: ir.Model, weights: Collection[str]) -> tuple[RectifiedLayer, ...]:
    """Return the trained products from the only data input on, as far as they follow one another.

    The last one is followed by something else, or by the output; it has a slope of 1. Products are those of
    :func:`~.first_layers.first_layers`; Relu, LeakyRelu, Identity and Dropout may stand between them, and
    sums with a trained intercept. Fewer than two are none.
    """
    found: list[RectifiedLayer] = []
    inputs = list(model.graph.inputs)
    value: ir.Value | None = inputs[0] if len(inputs) == 1 else None
    while value is not None:
        use = _only_use(value)
        layer = None if use is None else layer_of(value, *use, weights)
        if use is None or layer is None or layer.groups is not None:
            break
        value, slope = _rectified(use[0], layer)
        found.append(RectifiedLayer(layer, slope))
    if found:
        found[-1] = RectifiedLayer(found[-1].layer, 1.0)
    return tuple(found) if len(found) > 1 else ()


def _only_use(value: ir.Value) -> tuple[ir.Node, int] | None:
    """Return the only reader of a tensor and the place of the tensor in it; None: there are others."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    node, index = uses[0]
    return node, index


def _rectified(product: ir.Node, layer: FirstLayer) -> tuple[ir.Value | None, float]:
    """Return the rectified sums of a product, and the slope of negative ones; None: something else follows.

    Sums with numbers that are not trained would not follow a factor of the layer.
    """
    value, slope = product.outputs[0], 1.0
    added = product.inputs[2] if len(product.inputs) > 2 else None
    is_trained = added is None or added.name == layer.intercept
    while is_trained and (use := _only_use(value)) is not None:
        node, operator = use[0], standard_operator(use[0])
        if operator == "Add" and _adds(node, layer.intercept):
            value = node.outputs[0]
        elif operator in ("Relu", "LeakyRelu", "Identity", "Dropout"):
            if operator == "Relu":
                slope = 0.0
            elif operator == "LeakyRelu":
                slope *= node.attributes.get_float("alpha", _LEAKY)
            value = node.outputs[0]
        else:
            return value, slope
    return None, 1.0


def _adds(node: ir.Node, intercept: str | None) -> bool:
    return intercept is not None and any(
        value is not None and value.name == intercept for value in node.inputs
    )
