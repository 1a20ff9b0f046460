"""The first linear layers of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import standard_operator

__all__ = ["FirstLayer", "columns_of", "first_layers", "layer_of"]


@dataclass(frozen=True)
class FirstLayer:
    """A trained linear layer, as a rule one whose input is data: a product, or a convolution.

    Attributes
    ----------
    feature, weight : str
        The input; the coefficients, of shape [n_features, n_outputs], or those of a convolution,
        [n_outputs, n_channels / groups, ...].
    intercept : str or None
        The trained intercepts of a product, of shape [n_outputs] or [1, n_outputs], if it has some.
    is_transposed : bool
        Whether the coefficients of a product have shape [n_outputs, n_features].
    groups : int or None
        The groups of a convolution; None for a product.
    """

    feature: str
    weight: str
    intercept: str | None
    is_transposed: bool
    groups: int | None = None

    @property
    def column_axis(self) -> int:
        """The axis of the data that the coefficients belong to: the features, or the channels."""
        return -1 if self.groups is None else 1

    def spread(self, columns: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return a number for each feature, or channel, in a shape that multiplies the coefficients."""
        if self.groups is None:
            return columns[None, :] if self.is_transposed else columns[:, None]
        n_outputs = 1 if self.groups == 1 else shape[0]
        table = np.repeat(columns.reshape(self.groups, -1), n_outputs // self.groups, axis=0)
        return table.reshape(*table.shape, *(1 for _ in shape[2:]))


@lru_cache(maxsize=256)
def columns_of(layers: tuple[FirstLayer, ...]) -> tuple[tuple[str, int, bool], ...]:
    """Return the data inputs of layers, with the axis of their columns; tell whether these can be centred.

    They can where each layer that reads them has an intercept, which takes the difference.
    """
    pairs = dict.fromkeys((layer.feature, layer.column_axis) for layer in layers)
    without = {layer.feature for layer in layers if layer.intercept is None}
    return tuple((name, axis, name not in without) for name, axis in pairs)


def first_layers(model: ir.Model, weights: Collection[str]) -> tuple[FirstLayer, ...]:
    """Return the layers of the data inputs that trained linear layers alone read.

    Cases: ``Gemm(x, w)``, ``Gemm(x, w, b)``, ``MatMul(x, w)`` and ``Add(MatMul(x, w), b)`` of real data x, of
    two axes or more, and ``Conv(x, w)`` with or without an intercept, with weights that no other node reads;
    further sums may come before the intercept is added. An input with any other reader, or both with products
    and convolutions, has no layer here.
    """
    layers: list[FirstLayer] = []
    for value in model.graph.inputs:
        read = [layer_of(value, node, index, weights) for node, index in value.uses()]
        found = [layer for layer in read if layer is not None]
        if _is_real(value) and len(found) == len(read) and len({layer.column_axis for layer in found}) == 1:
            layers.extend(found)
    return tuple(layers)


def layer_of(value: ir.Value, node: ir.Node, index: int, weights: Collection[str]) -> FirstLayer | None:
    """Return the trained linear layer that a node is, whose input `index` is `value`; None: it is none."""
    operator = standard_operator(node)
    weight = node.inputs[1] if index == 0 and operator in ("Conv", "Gemm", "MatMul") else None
    if weight is None or not _is_trained(weight, weights) or weight.shape is None:
        return None
    if operator == "Conv":
        groups = node.attributes.get_int("group", 1)
        return FirstLayer(str(value.name), str(weight.name), None, False, groups)
    if len(weight.shape) != 2:
        return None
    is_plain = node.attributes.get_int("transA", 0) == 0 and all(
        node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")
    )
    if not is_plain:
        return None
    intercept = next(
        (value.name for value in _added(node) if _is_intercept(value, weight, node, weights)), None
    )
    return FirstLayer(
        str(value.name), str(weight.name), intercept, bool(node.attributes.get_int("transB", 0))
    )


def _added(product: ir.Node) -> Iterator[ir.Value]:
    """Yield the tensors that are added to a product: by Gemm itself, and by its only readers after it."""
    if product.op_type == "Gemm" and len(product.inputs) > 2 and product.inputs[2] is not None:
        yield product.inputs[2]
    uses = list(product.outputs[0].uses())
    while len(uses) == 1 and uses[0].node.op_type == "Add":
        node, index = uses[0]
        yield from (value for value in node.inputs[1 - index : 2 - index] if value is not None)
        uses = list(node.outputs[0].uses())


def _is_intercept(value: ir.Value, weight: ir.Value, product: ir.Node, weights: Collection[str]) -> bool:
    """Tell whether a tensor is a trained number for each output of a product."""
    if not _is_trained(value, weights) or value.shape is None or weight.shape is None:
        return False
    width = weight.shape[0 if product.attributes.get_int("transB", 0) else 1]
    return value.shape in ((width,), (1, width))


def _is_trained(value: ir.Value, weights: Collection[str]) -> bool:
    return value.name in weights and len(value.uses()) == 1


def _is_real(value: ir.Value) -> bool:
    return value.dtype in REAL_TYPES and value.shape is not None and len(value.shape) >= 2
