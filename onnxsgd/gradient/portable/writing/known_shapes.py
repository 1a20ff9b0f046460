"""Shapes known while a graph is built.

A dimension is an ``int``, or a ``str`` that names an unknown size: equal names mean equal sizes. A shape
is a tuple of dimensions, or None where even the rank is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnxsgd.graph.operators import Fact, having

__all__ = [
    "ELEMENTWISE",
    "UNNAMED",
    "Dim",
    "Dims",
    "broadcast",
    "is_static",
    "read_shape",
    "result_dims",
    "to_shape",
]

Dim = int | str
Dims = tuple[Dim, ...] | None

#: A name that starts like this was made here, for a dimension that the graph leaves unnamed.
UNNAMED = "?"


def read_shape(shape: ir.Shape | None, owner: str) -> Dims:
    """Return `shape` as a tuple in which each unnamed dimension has a unique name, made from `owner`."""
    if shape is None:
        return None
    return tuple(
        dim if isinstance(dim, int) else dim.value or f"{UNNAMED}{owner}:{axis}"
        for axis, dim in enumerate(shape)
    )


def to_shape(dims: Dims) -> ir.Shape | None:
    """Return `dims` as an ``ir.Shape``, without the names that were made here."""
    if dims is None:
        return None
    return ir.Shape([None if isinstance(dim, str) and dim.startswith(UNNAMED) else dim for dim in dims])


def is_static(dims: Dims) -> bool:
    """Return whether every dimension is a known number."""
    return dims is not None and all(isinstance(dim, int) for dim in dims)


def broadcast(*shapes: Dims) -> Dims:
    """Return the shape that operands of these shapes are broadcast to; None if that is not known.

    >>> broadcast(("N", 3), (3,))
    ('N', 3)
    >>> broadcast(("N", 3), ("M", 1)) is None
    True
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(len(shape) for shape in known)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in known]
    dims = [_common(set(column)) for column in zip(*aligned, strict=True)]
    return None if None in dims else tuple(dim for dim in dims if dim is not None)


def _common(sizes: set[Dim]) -> Dim | None:
    """Return the size that `sizes` broadcast to: a number above 1, for all others must equal it or be 1."""
    sizes = sizes - {1} or {1}
    numbers = [size for size in sizes if isinstance(size, int)]
    if numbers:
        return numbers[0]
    return sizes.pop() if len(sizes) == 1 else None


def _transposed(shape: Dims, attributes: dict[str, Any], _: Sequence[object]) -> Dims:
    if shape is None:
        return None
    return tuple(shape[axis] for axis in attributes.get("perm", range(len(shape))[::-1]))


def _reduced(shape: Dims, attributes: dict[str, Any], arguments: Sequence[object]) -> Dims:
    axes = arguments[1] if len(arguments) > 1 else attributes.get("axes")
    if shape is None or not (axes is None or isinstance(axes, (list, tuple))):
        return None
    gone = range(len(shape)) if axes is None else {axis % len(shape) for axis in axes}
    if attributes.get("keepdims", 1):
        return tuple(1 if axis in gone else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in gone)


def _squeezed(shape: Dims, _: dict[str, Any], arguments: Sequence[object]) -> Dims:
    return _reduced(shape, {"keepdims": 0}, arguments)


def _unsqueezed(shape: Dims, _: dict[str, Any], arguments: Sequence[object]) -> Dims:
    axes = arguments[1]
    if shape is None or not isinstance(axes, (list, tuple)):
        return None
    rank = len(shape) + len(axes)
    new, old = {axis % rank for axis in axes}, iter(shape)
    if len(new) < len(axes):
        return None
    return tuple(1 if axis in new else next(old) for axis in range(rank))


def _reshaped(shape: Dims, _: dict[str, Any], arguments: Sequence[object]) -> Dims:
    target = arguments[1]
    if not isinstance(target, (list, tuple)) or 0 in target:
        return None
    if -1 not in target:
        return tuple(target)
    if shape is None or not is_static(shape) or 0 in shape:
        return None
    rest = math.prod(int(dim) for dim in shape) // -math.prod(target)
    return tuple(rest if dim == -1 else dim for dim in target)


def _multiplied(a: Dims, _: dict[str, Any], arguments: Sequence[object]) -> Dims:
    b = getattr(arguments[1], "dims", None)
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = broadcast(a[:-2], b[:-2])
    return None if batch is None else (*batch, a[-2], b[-1])


def _gemm(a: Dims, attributes: dict[str, Any], arguments: Sequence[object]) -> Dims:
    b = getattr(arguments[1], "dims", None)
    if a is None or b is None:
        return None
    return a[1 if attributes.get("transA") else 0], b[0 if attributes.get("transB") else 1]


def _scalar(_: Dims, __: dict[str, Any], ___: Sequence[object]) -> Dims:
    return ()


def _same(shape: Dims, _: dict[str, Any], __: Sequence[object]) -> Dims:
    return shape


#: Functions from the shape of the first operand, the attributes and the operands to the shape of a result.
_RULES: dict[str, Callable[[Dims, dict[str, Any], Sequence[Any]], Dims]] = {
    "CumSum": _same,
    "Expand": _reshaped,
    "Gemm": _gemm,
    "MatMul": _multiplied,
    "ReduceMax": _reduced,
    "ReduceMean": _reduced,
    "ReduceProd": _reduced,
    "ReduceSum": _reduced,
    "Reshape": _reshaped,
    "ScatterElements": _same,
    "ScatterND": _same,
    "Size": _scalar,
    "Softmax": _same,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}


#: Operators whose result has the broadcast shape of all operands.
ELEMENTWISE = having(Fact.ELEMENTWISE) | {"Trilu"}


def result_dims(op_type: str, attributes: dict[str, Any], arguments: Sequence[object]) -> Dims:
    """Return the shape of an operator's result; None for an operator without a rule here.

    Parameters
    ----------
    op_type : str
        A standard operator.
    attributes : dict
        Its attributes.
    arguments : sequence
        Its operands: objects with an attribute ``dims``, lists of ints, numbers.
    """
    shapes = [argument.dims for argument in arguments if hasattr(argument, "dims")]
    if op_type in ELEMENTWISE:
        return broadcast(*shapes)
    rule = _RULES.get(op_type)
    return rule(shapes[0], attributes, arguments) if rule and shapes else None
