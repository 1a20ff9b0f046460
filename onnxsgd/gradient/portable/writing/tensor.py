"""Expressions that write ONNX: ``dy * (1 - y * y)`` adds the nodes that compute it to a graph.

A :class:`Tensor` is a value of a graph under construction. Arithmetic on it, and the functions of
:data:`op`, append standard ONNX nodes to the emitter it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.writing.known_shapes import Dim, Dims, is_static, to_shape

if TYPE_CHECKING:
    from onnxsgd.gradient.portable.writing.emitter import Emitter

__all__ = ["Operand", "Tensor", "op"]

#: An operand: a tensor, a number of its element type, a constant, a list of int64, None for an absent one.
Operand: TypeAlias = "Tensor | float | np.ndarray | Sequence[int] | None"


class Tensor:
    """A value of a graph under construction; arithmetic on it appends nodes.

    A boolean tensor that meets a real one in arithmetic is cast to it, so that ``dy * (x > 0)`` is a
    product with a mask: much faster than a ``Where``, which branches on every element.
    """

    __slots__ = ("dims", "dtype", "emitter", "value")

    def __init__(self, emitter: Emitter, value: ir.Value, dtype: ir.DataType | None, dims: Dims) -> None:
        self.emitter = emitter
        self.value = value
        self.dtype = dtype
        self.dims = dims

    @property
    def rank(self) -> int | None:
        """The number of dimensions; None if it is not known."""
        return None if self.dims is None else len(self.dims)

    @property
    def is_static(self) -> bool:
        """True if every dimension is a known number."""
        return is_static(self.dims)

    @property
    def is_floating(self) -> bool:
        """True if the elements are floating-point numbers."""
        return self.dtype is not None and self.dtype.is_floating_point()

    @property
    def known_dims(self) -> tuple[Dim, ...]:
        """The dimensions, of which the rank is known."""
        if self.dims is None:
            raise LookupError(f"the shape of {self.value.name!r} is not known")
        return self.dims

    @property
    def known_dtype(self) -> ir.DataType:
        """The element type, which is known."""
        if self.dtype is None:
            raise LookupError(f"the element type of {self.value.name!r} is not known")
        return self.dtype

    def known_as(self, dims: Dims) -> Tensor:
        """Return this tensor, which the caller knows to have shape `dims`."""
        if self.dims is None and dims is not None:
            self.dims, self.value.shape = dims, to_shape(dims)
        return self

    def cast(self, dtype: ir.DataType | None) -> Tensor:
        """Return this tensor with elements of type `dtype`."""
        if dtype is None or dtype == self.dtype:
            return self
        return op.Cast(self, to=int(dtype))

    def __add__(self, other: Operand) -> Tensor:
        return _arithmetic("Add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return _arithmetic("Add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return _arithmetic("Sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return _arithmetic("Sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self if _is_one(other) else _arithmetic("Mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self if _is_one(other) else _arithmetic("Mul", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self if _is_one(other) else _arithmetic("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _arithmetic("Div", other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return self if _is_one(other) else _arithmetic("Pow", self, other)

    def __neg__(self) -> Tensor:
        return op.Neg(self)

    def __gt__(self, other: Operand) -> Tensor:
        return op.Greater(self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return op.Less(self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return op.GreaterOrEqual(self, other)

    def __le__(self, other: Operand) -> Tensor:
        return op.LessOrEqual(self, other)


class _Operators:
    """``op.Exp(x)`` applies the standard operator ``Exp``; ``outputs=2`` asks for two results."""

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        def apply(*arguments: Any, outputs: int = 1, **attributes: Any) -> Any:
            emitter = next(a.emitter for a in arguments if isinstance(a, Tensor))
            found = emitter.emit(op_type, arguments, attributes, outputs)
            return found[0] if outputs == 1 else found

        return apply


#: Every standard operator, as a function of tensors: operands first, attributes by name.
op = _Operators()


def _arithmetic(op_type: str, a: Operand, b: Operand) -> Tensor:
    dtype = next((t.dtype for t in (a, b) if isinstance(t, Tensor) and t.is_floating), None)
    a, b = (t.cast(dtype) if isinstance(t, Tensor) and t.dtype == ir.DataType.BOOL else t for t in (a, b))
    result: Tensor = getattr(op, op_type)(a, b)
    return result


def _is_one(number: object) -> bool:
    return isinstance(number, (int, float)) and number == 1
