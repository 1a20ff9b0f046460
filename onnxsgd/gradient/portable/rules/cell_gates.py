"""Gates of recurrent cells: their activations, and the derivatives of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnxsgd.gradient.portable.writing.broadcasting import number
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["SLOPES", "Gate", "open_gate"]

Factor = Callable[[], "Tensor | float"]

#: Derivatives of activations times a factor: of the factor, the result of the activation, and the product of
#: both. A cell has computed most such products; a factor or a product is written where a formula reads it.
SLOPES: dict[str, Callable[[Factor, Tensor, Factor], Tensor]] = {
    "Relu": lambda factor, y, _: (y > 0).cast(y.dtype) * factor(),
    "Sigmoid": lambda _, y, product: product() * (1 - y),
    "Tanh": lambda factor, y, product: factor() - product() * y,
}


@dataclass
class Gate:
    """Results of an activation."""

    activation: str
    y: Tensor
    within: Tensor | None = None  # 1 where the argument is within the bounds of the operator, else 0

    @property
    def slope(self) -> Tensor:
        """The derivative."""
        return self.sloped(lambda: 1.0, lambda: self.y)

    def sloped(self, factor: Factor, product: Factor) -> Tensor:
        """Return the derivative times `factor`, of which `product` is the product with the results."""
        slope = SLOPES[self.activation](factor, self.y, product)
        return slope if self.within is None else slope * self.within


def _clipped(n: Call, t: Tensor) -> Tensor:
    """Return the argument of a gate's activation within the bounds of the operator, if it has any."""
    bound = n.attribute("clip", 0)
    if not bound:
        return t
    within: Tensor = op.Clip(t, number(t, -bound), number(t, bound))
    return within.known_as(t.dims)


def open_gate(n: Call, activation: str, t: Tensor) -> Gate:
    """Return the gate of an argument; its slope is 0 outside of the bounds of the operator."""
    within = _clipped(n, t)
    y = getattr(op, activation)(within)
    return Gate(activation, y, None if within is t else op.Equal(t, within).cast(t.dtype))
