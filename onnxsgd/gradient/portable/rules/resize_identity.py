"""The matrix of a Resize along one axis, computed in the graph: the operator resizes an identity matrix.

It is used where scales, sizes or the cropped part are known at run time only.
"""

from __future__ import annotations

import numpy as np

from onnxsgd.gradient.portable.rules.indexing import positions
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, vector
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["resized_identity"]

_ATTRIBUTES = (
    "antialias",
    "axes",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "mode",
    "nearest_mode",
)


def resized_identity(n: Call, axis: int, places: list[int]) -> Tensor:
    """Return the matrix, of shape (out, size), by which a Resize multiplies one axis.

    Parameters
    ----------
    n : Call
        The Resize; its rank is 2 or more.
    axis : int
        The axis.
    places : list of int
        The axes of its scales, sizes and parts.
    """
    size, carrier = dim_of(n.x, axis), 0 if axis else 1
    rows, columns = positions(n.x, size, 1), op.Unsqueeze(positions(n.x, size, 0), [0])
    identity = op.Equal(rows, columns).cast(n.x.dtype)
    others = [k for k in range(n.rank) if k not in (axis, carrier)]
    image = op.Unsqueeze(identity if axis else op.Transpose(identity, perm=[1, 0]), others)
    chosen = n.emitter.constant(np.array([place == axis for place in places]))
    resized = op.Resize(
        image,
        _parts(n, chosen, len(places)),
        None if n.optional(2) is None else op.Where(chosen, n.c, 1.0),
        *([] if n.optional(3) is None else [_sizes(n, axis, carrier, places)]),
        **n.attributes(*_ATTRIBUTES),
    )
    matrix: Tensor = op.Squeeze(resized, others)
    # The axis that carries the rows of the identity comes first, but for the first axis.
    return op.Transpose(matrix, perm=[1, 0]) if axis else matrix


def _parts(n: Call, chosen: Tensor, count: int) -> Tensor | None:
    if n.attribute("coordinate_transformation_mode") != "tf_crop_and_resize":
        return None
    starts, ends = op.Slice(n.b, [0], [count]), op.Slice(n.b, [count], [2 * count])
    parts: Tensor = op.Concat(op.Where(chosen, starts, 0.0), op.Where(chosen, ends, 1.0), axis=0)
    return parts


def _sizes(n: Call, axis: int, carrier: int, places: list[int]) -> Tensor:
    """Return the sizes of the resized matrix for each place: along the axis, that of the result."""
    known = {axis: dim_of(n.y, axis), carrier: dim_of(n.x, axis)}
    sizes: Tensor = op.Concat(*(vector(n.x, known.get(place, 1)) for place in places), axis=0)
    return sizes
