"""The input of a gradient rule: one call of an operator, and the gradients of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable.writing.broadcasting import expand_to
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.known_shapes import Dims
from onnxsgd.gradient.portable.writing.tensor import Tensor
from onnxsgd.graph.nodes import constant, qualified_operator

__all__ = ["Call", "Rule", "Rules", "place"]


class Call:
    """One node of the forward graph, and the gradients of its outputs.

    ``n.a``, ``n.b``, ``n.c`` are the first inputs and ``n.x`` is another name of the first one, ``n.y`` is
    the first output. ``n.g`` is the gradient with respect to ``n.y``, possibly still to be broadcast to its
    shape: the form for elementwise rules. ``n.dy`` has the shape of ``n.y``.

    Parameters
    ----------
    emitter : Emitter
        Receives new nodes.
    node : ir.Node
        The node of the forward graph.
    gradients : sequence of (Tensor or None)
        For each output, the sum of the gradients that reached it.
    """

    def __init__(self, emitter: Emitter, node: ir.Node, gradients: Sequence[Tensor | None]) -> None:
        self.emitter = emitter
        self.node = node
        self._gradients = gradients
        self._read: set[int] = set()
        self._results: dict[str, Any] = {}

    @property
    def inputs(self) -> list[Tensor | None]:
        """Every input; None for an omitted one."""
        return [None if value is None else self.emitter.tensor(value) for value in self.node.inputs]

    def input(self, index: int) -> Tensor:
        """Return the input at `index`, which must exist."""
        tensor = self.optional(index)
        if tensor is None:
            raise self.refuse(f"lacks its input {index}")
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """Return the input at `index`, or None if the node omits it."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None else self.emitter.tensor(value)

    @property
    def a(self) -> Tensor:
        """The first input."""
        return self.input(0)

    x = a

    @property
    def b(self) -> Tensor:
        """The second input."""
        return self.input(1)

    @property
    def c(self) -> Tensor:
        """The third input."""
        return self.input(2)

    @property
    def y(self) -> Tensor:
        """The first output."""
        return self.emitter.tensor(self.node.outputs[0])

    @property
    def g(self) -> Tensor:
        """The gradient with respect to the first output, possibly still to be broadcast to its shape."""
        self._read.add(0)
        gradient = self._gradients[0]
        if gradient is None:
            raise self.refuse("is needed through an output other than its first")
        return gradient

    @property
    def dy(self) -> Tensor:
        """The gradient with respect to the first output, in its shape."""
        return expand_to(self.g, self.y)

    def gradient(self, index: int) -> Tensor | None:
        """Return the gradient with respect to the output at `index`, in its shape; None if there is none."""
        self._read.add(index)
        found = self._gradients[index] if index < len(self._gradients) else None
        return None if found is None else expand_to(found, self.emitter.tensor(self.node.outputs[index]))

    def once(self, name: str, compute: Callable[[Call], Any]) -> Any:
        """Return the result of `compute` for this call, computed once for all inputs that share it."""
        if name not in self._results:
            self._results[name] = compute(self)
        return self._results[name]

    def check_all_read(self) -> None:
        """Refuse a gradient of an output that the rule did not read."""
        for index, gradient in enumerate(self._gradients):
            if gradient is not None and index not in self._read:
                raise self.refuse(f"has no gradient rule for its output {self.node.outputs[index].name!r}")

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.emitter.opset

    @property
    def rank(self) -> int:
        """The rank of the first input, which must be known."""
        if self.x.rank is None:
            raise self.refuse(f"needs an input {self.x.value.name!r} of known rank")
        return self.x.rank

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or `default` if the node does not have it."""
        found = self.node.attributes.get(name)
        if found is None:
            return default
        return found.value.decode() if isinstance(found.value, bytes) else found.value

    def attributes(self, *names: str) -> dict[str, Any]:
        """Return the attributes among `names` that the node has, for a new node."""
        return {name: self.attribute(name) for name in names if name in self.node.attributes}

    def constant(self, index: int) -> np.ndarray | None:
        """Return the value of the input at `index` if it is a constant, else None."""
        return constant(self.node.inputs[index] if index < len(self.node.inputs) else None)

    def extra_output(self, index: int, dims: Dims, dtype: ir.DataType | None) -> Tensor:
        """Return an optional output of the node, of shape `dims`, declared if it is not yet."""
        if index >= len(self.node.outputs):
            self.node.resize_outputs(index + 1)
        value = self.node.outputs[index]
        if not value.name:
            value.name = self.emitter.new_name()
        tensor = self.emitter.tensor(value)
        if tensor.dtype is None and dtype is not None:
            tensor.dtype, value.type = dtype, ir.TensorType(dtype)
        return tensor.known_as(dims)

    def refuse(self, reason: str) -> NotTrainableError:
        """Return the error with the reason why this node has no gradient."""
        return NotTrainableError(f"{place(self.node)} {reason}")


#: The gradient with respect to one input; for a variadic operator, with respect to the input at an index.
Rule = Callable[[Call], Tensor]
VariadicRule = Callable[[Call, int], Tensor]
Rules = dict[str, tuple[Rule | None, ...] | VariadicRule]


def place(node: ir.Node) -> str:
    """Return the name of a node in an error."""
    name = f" {node.name!r}" if node.name else ""
    outputs = ", ".join(repr(value.name) for value in node.outputs if value.name)
    return f"operator {qualified_operator(node)} (node{name} computing {outputs})"
