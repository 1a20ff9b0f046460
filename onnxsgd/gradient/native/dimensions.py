"""Comparison of shapes in which some sizes are known by name only.

A name denotes one size wherever it occurs; a dimension without a name may have any size.
"""

from __future__ import annotations

from collections import Counter
from math import prod

import onnx_ir as ir

__all__ = ["broadcast_axes", "dims_of", "expand_target", "ratio", "reshape_target", "same_shape"]

#: A number, a name, or None for an unknown size.
Dim = int | str | None


def dims_of(shape: ir.Shape | None) -> list[Dim] | None:
    """Return the dimensions of `shape`; None if not even the rank is known."""
    return None if shape is None else [dim if isinstance(dim, int) else dim.value for dim in shape]


def same_shape(a: ir.Shape | None, b: ir.Shape | None) -> bool:
    """Return whether `a` and `b` are certainly equal."""
    left, right = dims_of(a), dims_of(b)
    return left is not None and left == right and None not in left


def broadcast_axes(part: ir.Shape | None, other: ir.Shape | None) -> list[int] | None:
    """Return the axes along which `part` is broadcast against `other`; None if they are not known.

    Parameters
    ----------
    part : ir.Shape or None
        The shape of an operand.
    other : ir.Shape or None
        The shape of another operand, or of the result.

    Returns
    -------
    list of int or None
        Axes of the result, counted from 0.

    Examples
    --------
    >>> broadcast_axes(ir.Shape([1, 3]), ir.Shape([2, "N", 3]))
    [0, 1]
    >>> broadcast_axes(ir.Shape(["M", 3]), ir.Shape(["N", 3])) is None
    True
    """
    small, large = dims_of(part), dims_of(other)
    if small is None or large is None:
        return None
    rank = max(len(small), len(large))
    axes = []
    for axis in range(rank):
        mine, theirs = _aligned(small, rank, axis), _aligned(large, rank, axis)
        if axis < rank - len(small) or (mine == 1 and theirs != 1):
            axes.append(axis)
        elif not isinstance(mine, int) and theirs != 1 and (mine is None or mine != theirs):
            return None
    return axes


def ratio(whole: ir.Shape | None, part: ir.Shape | None) -> int | None:
    """Return the number of elements of `whole` divided by that of `part`; None if it is not known.

    >>> ratio(ir.Shape(["N", 4]), ir.Shape(["N", 1]))
    4
    """
    large, small = dims_of(whole), dims_of(part)
    if large is None or small is None or None in large or None in small:
        return None
    if Counter(d for d in large if isinstance(d, str)) != Counter(d for d in small if isinstance(d, str)):
        return None
    numbers = [prod(dim for dim in dims if isinstance(dim, int)) for dims in (large, small)]
    return numbers[0] // numbers[1] if numbers[1] else None


def reshape_target(source: ir.Shape | None, target: ir.Shape | None) -> list[int] | None:
    """Return the constants that make Reshape turn `source` into `target`; None if there are none.

    >>> reshape_target(ir.Shape(["N", 4]), ir.Shape(["N", 2, 2]))
    [-1, 2, 2]
    """
    wanted = dims_of(target)
    if wanted is None or 0 in wanted:
        return None
    if sum(not isinstance(dim, int) for dim in wanted) > 1:
        given = dims_of(source) or []
        kept = [isinstance(dim, str) and given[axis : axis + 1] == [dim] for axis, dim in enumerate(wanted)]
        wanted = [0 if keep else dim for keep, dim in zip(kept, wanted, strict=True)]
    if sum(not isinstance(dim, int) for dim in wanted) > 1:
        return None
    return [dim if isinstance(dim, int) else -1 for dim in wanted]


def expand_target(source: ir.Shape | None, target: ir.Shape | None) -> list[int] | None:
    """Return the constants that make Expand turn `source` into `target`; None if there are none.

    >>> expand_target(ir.Shape(["N", 1]), ir.Shape(["N", 4]))
    [1, 4]
    """
    given, wanted = dims_of(source), dims_of(target)
    if wanted is None or (given is not None and len(given) > len(wanted)):
        return None
    sizes = []
    for axis, dim in enumerate(wanted):
        if isinstance(dim, int):
            sizes.append(dim)
        elif given is not None and dim is not None and _aligned(given, len(wanted), axis) == dim:
            sizes.append(1)
        else:
            return None
    return sizes


def _aligned(dims: list[Dim], rank: int, axis: int) -> Dim:
    """Return the dimension that broadcasting puts at `axis` of a result of that rank."""
    index = axis - (rank - len(dims))
    return dims[index] if index >= 0 else 1
