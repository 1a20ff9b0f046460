"""Weights that an adapter can stand beside, and the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxsgd.graph.model import ADAPTER, REAL_TYPES
from onnxsgd.graph.nodes import (
    QUANTIZERS,
    attribute,
    first,
    qualified_operator,
    rank,
    required,
    standard_operator,
)
from onnxsgd.graph.reading.trainable import describe_node

__all__ = ["CONVOLUTION", "EMBEDDING", "LINEAR", "AdaptedNode", "adapted_nodes", "can_be_adapted"]

#: The uses of a weight: in a product, in a convolution, as a table of rows.
LINEAR, CONVOLUTION, EMBEDDING = "linear", "convolution", "embedding"


#: The product of onnxruntime with weights of few bits, several in a byte.
_PACKED = "com.microsoft.MatMulNBits"
_FORMS = "second operands of MatMul or Gemm, kernels of a Conv of one group, and tables of a Gather have one"

#: Element types of quantized weights.
_QUANTIZED = frozenset(
    {
        ir.DataType.INT2,
        ir.DataType.UINT2,
        ir.DataType.INT4,
        ir.DataType.UINT4,
        ir.DataType.INT8,
        ir.DataType.UINT8,
    }
)


@dataclass(frozen=True)
class AdaptedNode:
    """A node that reads a weight in a form that an adapter can follow.

    Attributes
    ----------
    node : ir.Node
        The node.
    entry : ir.Node
        The node that reads the real numbers that the weight multiplies: `node`, or one that quantizes them.
    result : ir.Value
        The result in real numbers.
    kind : {"linear", "convolution", "embedding"}
        The use of the weight.
    is_transposed : bool
        Whether the weight of a product, or a table, is stored with the outputs of the node along its first
        axis.
    """

    node: ir.Node
    entry: ir.Node
    result: ir.Value
    kind: str
    is_transposed: bool

    @property
    def sizes(self) -> tuple[int, int] | None:
        """The inputs and outputs of a packed weight; None: the weight has them as its axes."""
        is_packed = qualified_operator(self.node) == _PACKED
        return (attribute(self.node, "K"), attribute(self.node, "N")) if is_packed else None

    @property
    def operand(self) -> ir.Value:
        """The real numbers that the weight multiplies, or the indices of its rows."""
        return required(self.entry, 1 if self.kind == EMBEDDING else 0)


def can_be_adapted(value: ir.Value) -> bool:
    """Tell whether an adapter can stand beside an initializer."""
    return not isinstance(adapted_nodes(value), str)


def adapted_nodes(value: ir.Value) -> list[AdaptedNode] | str:
    """Return the nodes that read a weight, or the reason why it has no adapter, as a phrase about "it".

    Cases: the second operand of MatMul or Gemm, stored in either order; the kernels of a Conv of one group;
    the table of a Gather along its first axis; the same behind a Transpose of a matrix, and of a quantized
    weight behind a DequantizeLinear; the second operand of MatMulInteger or ConvInteger between
    DynamicQuantizeLinear and the multiplication by the scales; the packed weight of MatMulNBits.
    """
    if value.dtype not in REAL_TYPES | _QUANTIZED:
        return f"it holds {value.dtype}, no real or quantized numbers"
    if ADAPTER in value.metadata_props:
        return "it belongs to an adapter"
    if value.is_graph_output():
        return "it is an output of the graph"
    found = list(_readers(value, False))
    refused = [node for node in found if isinstance(node, ir.Node)]
    if refused:
        return f"{describe_node(refused[0])} reads it; {_FORMS}"
    return [node for node in found if isinstance(node, AdaptedNode)] or "no node reads it"


def _readers(value: ir.Value, is_transposed: bool) -> Iterator[AdaptedNode | ir.Node]:
    """Yield the nodes that read a weight, those without a form for adapters as they are."""
    for node, index in value.uses():
        operator = standard_operator(node)
        is_swap = operator == "Transpose" and _swaps(node, value)
        if is_swap or operator == "Identity" or (operator == "DequantizeLinear" and index == 0):
            yield from _readers(node.outputs[0], is_transposed != is_swap)
        elif (found := _form(operator, node, index, value)) is not None:
            yield replace(found, is_transposed=is_transposed != found.is_transposed)
        else:
            yield node


def _form(operator: str, node: ir.Node, index: int, weight: ir.Value) -> AdaptedNode | None:
    """Return a node that reads a weight as its operand of this index; None: in another form."""
    if node.graph is not weight.graph:
        return None
    plain = AdaptedNode(node, node, node.outputs[0], LINEAR, False)
    if qualified_operator(node) == _PACKED:
        return plain if index == 1 else None
    if weight.dtype not in REAL_TYPES:
        return _integer_form(operator, node, index, weight)
    if operator == "Conv" and index == 1 and attribute(node, "group", 1) == 1:
        return replace(plain, kind=CONVOLUTION)
    if rank(weight) != 2:
        return None
    if operator == "Gather" and index == 0 and attribute(node, "axis", 0) in (0, -2):
        return replace(plain, kind=EMBEDDING)
    if operator in ("MatMul", "Gemm") and index == 1:
        return replace(plain, is_transposed=attribute(node, "transB", 0) == 1)
    return None


def _integer_form(operator: str, node: ir.Node, index: int, weight: ir.Value) -> AdaptedNode | None:
    """Return a product of quantized numbers as one of real numbers.

    ``Mul(Cast(MatMulInteger(q, weight, z, ..)), scales)`` of ``q, s, z = DynamicQuantizeLinear(x)``.
    """
    fits = operator == "ConvInteger" and attribute(node, "group", 1) == 1
    fits |= operator == "MatMulInteger" and rank(weight) == 2
    quantizer = first(node).producer()
    if not (fits and index == 1 and quantizer is not None) or standard_operator(quantizer) not in QUANTIZERS:
        return None
    result = node.outputs[0]
    for following in ("Cast", "Mul"):
        uses = list(result.uses())
        if len(uses) != 1 or standard_operator(uses[0].node) != following or result.is_graph_output():
            return None
        result = uses[0].node.outputs[0]
    kind = CONVOLUTION if operator == "ConvInteger" else LINEAR
    return AdaptedNode(node, quantizer, result, kind, False)


def _swaps(node: ir.Node, value: ir.Value) -> bool:
    return rank(value) == 2 and tuple(attribute(node, "perm", (1, 0))) == (1, 0)
