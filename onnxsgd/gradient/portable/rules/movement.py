"""Gradients of operators that move elements without changing them: the inverse moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxsgd.gradient.portable.rules.padding import pad_value, unpad
from onnxsgd.gradient.portable.rules.products import transposed_product
from onnxsgd.gradient.portable.rules.slicing import unslice
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, reshape_to, sum_to, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["MOVEMENT"]


def _transposed(n: Call) -> Tensor:
    perm = n.attribute("perm")
    if n.x.rank == 2 if perm is None else _exchanges_last(perm):
        exchanged = transposed_product(n.dy)
        if exchanged is not None:
            return exchanged
    back: Tensor = (
        op.Transpose(n.dy, perm=np.argsort(perm).tolist()) if perm is not None else op.Transpose(n.dy)
    )
    return back


def _exchanges_last(perm: Sequence[int]) -> bool:
    axes = list(range(len(perm)))
    return len(axes) > 1 and list(perm) == [*axes[:-2], axes[-1], axes[-2]]


def _squeezed(n: Call) -> Tensor:
    return op.Unsqueeze(n.dy, n.b) if n.optional(1) is not None else reshape_to(n.dy, n.x)


def _concatenated(n: Call, index: int) -> Tensor:
    if len(n.inputs) == 1:
        return n.g
    axis = n.attribute("axis")
    sizes = [dim_of(n.input(k), axis) for k in range(index + 1)]
    start = _total(sizes[:-1])
    part: Tensor = op.Slice(n.dy, _vector(start), _vector(_total([start, sizes[-1]])), [axis])
    return part


def _total(sizes: Sequence[Tensor | int]) -> Tensor | int:
    known = sum(size for size in sizes if isinstance(size, int))
    total: Tensor | int = known
    for size in sizes:
        if isinstance(size, Tensor):
            total = size if isinstance(total, int) and total == 0 else op.Add(size, total)
    return total


def _vector(size: Tensor | int) -> Tensor | list[int]:
    return [size] if isinstance(size, int) else size


def _split(n: Call) -> Tensor:
    parts = [n.gradient(index) for index in range(len(n.node.outputs))]
    wholes = [
        part if part is not None else zeros_like(n.emitter.tensor(output))
        for part, output in zip(parts, n.node.outputs, strict=True)
    ]
    joined: Tensor = op.Concat(*wholes, axis=n.attribute("axis", 0))
    return joined


def _tiled(n: Call) -> Tensor:
    """Sum over the repeats: axis i of the gradient is split into (repeats_i, size_i)."""
    repeats = n.constant(1)
    axes = list(range(0, 2 * n.rank, 2))
    if repeats is not None and n.x.dims is not None and n.x.is_static:
        split = [int(size) for pair in zip(repeats.tolist(), n.x.dims, strict=True) for size in pair]
        return op.ReduceSum(op.Reshape(n.dy, split), axes, keepdims=0)
    pairs = op.Concat(op.Unsqueeze(n.b, [1]), op.Unsqueeze(op.Shape(n.x), [1]), axis=1)
    return op.ReduceSum(op.Reshape(n.dy, op.Reshape(pairs, [-1])), axes, keepdims=0)


def _reshaped(n: Call) -> Tensor:
    if n.attribute("allowzero", 0) and not n.x.is_static:
        return op.Reshape(n.dy, op.Shape(n.x), allowzero=1).known_as(n.x.dims)
    return reshape_to(n.dy, n.x)


def _depth_to_space(n: Call) -> Tensor:
    block = n.attribute("blocksize")
    back: Tensor = op.SpaceToDepth(n.dy, blocksize=block)
    if n.attribute("mode", "DCR") == "DCR":
        return back
    channels = n.x.dims[1] if n.x.dims is not None else None
    if not isinstance(channels, int):
        raise n.refuse("in mode 'CRD' needs a known number of channels")
    order = np.arange(channels).reshape(block * block, -1).T.ravel()
    return op.Gather(back, n.emitter.constant(order), axis=1)


def _reversed(n: Call) -> Tensor:
    back: Tensor = op.ReverseSequence(n.dy, n.b, **n.attributes("batch_axis", "time_axis"))
    return back


MOVEMENT: Rules = {
    "Concat": _concatenated,
    "DepthToSpace": (_depth_to_space,),
    "Expand": (lambda n: sum_to(n.g, n.y, n.x), None),
    "Flatten": (lambda n: reshape_to(n.dy, n.x),),
    "Pad": (unpad, None, pad_value, None),
    "Reshape": (_reshaped, None),
    "ReverseSequence": (_reversed, None),
    "Slice": (unslice, None, None, None, None),
    "SpaceToDepth": (lambda n: op.DepthToSpace(n.dy, blocksize=n.attribute("blocksize")),),
    "Split": (_split, None),
    "Squeeze": (_squeezed, None),
    "Tile": (_tiled, None),
    "Transpose": (_transposed,),
    "Trilu": (lambda n: op.Trilu(n.dy, *n.inputs[1:], **n.attributes("upper")), None),
    "Unsqueeze": (lambda n: op.Squeeze(n.dy, n.b), None),
}
