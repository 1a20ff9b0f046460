"""Types of the operator builder that formulas of losses and optimizers, and lowering rules, receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, overload

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnxscript import GraphBuilder

__all__ = ["Attribute", "Builder", "Operand", "Operator"]

#: An input of an operator: a tensor, a number or a list that becomes a constant, None for an absent one.
Operand: TypeAlias = "ir.Value | ir.TensorProtocol | float | Sequence[float] | None"
#: An attribute of an operator.
Attribute: TypeAlias = (
    "float | str | bytes | Sequence[float] | Sequence[str] | ir.Graph | ir.TensorProtocol | None"
)


class Operator(Protocol):
    """An operator of the standard domain, as a function that adds a node."""

    # GraphBuilder counts outputs in `_outputs`; None denotes an absent argument.
    @overload
    def __call__(self, *inputs: Operand, _outputs: None = None, **attributes: Attribute) -> ir.Value: ...

    @overload
    def __call__(self, *inputs: Operand, _outputs: int, **attributes: Attribute) -> Sequence[ir.Value]: ...


class Builder(Protocol):
    """A builder of nodes: ``op.Add(x, 1.0)`` adds an Add to a graph and returns its output.

    onnxscript's ``GraphBuilder.op`` is one. Python numbers become constants of the element type that the
    operator expects.
    """

    @property
    def builder(self) -> GraphBuilder:
        """The owner of the graph."""

    def initializer(self, tensor: ir.TensorProtocol, name: str | None = None) -> ir.Value:
        """Add an initializer."""

    def __getattr__(self, op_type: str) -> Operator:
        """Return the operator with that name."""
