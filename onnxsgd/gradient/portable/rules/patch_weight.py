"""Gradients of weights whose windows lie side by side: of embeddings of patches.

Each element of the image is met by one tap, so that the image in another order is the matrix to multiply.
"""

from __future__ import annotations

import math

from onnxsgd.gradient.portable.rules.windows import Window, sizes_of
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["correlate_tiles", "has_tiles"]

#: From so many taps on, moving the image once is faster than cutting out the part of each tap: 8 x 8 patches
#: of ``benchmarks/networks.py``, vit: one Transpose of 34 us for 64 Slice and their Concat of 323.
#: ``benchmarks/constants.py``: 1.38 of the time at 2 x 2 taps, 0.94 at 4 x 4, 0.66 at 8 x 8.
_TAPS = 16


def has_tiles(image: Tensor, g: Tensor, window: Window, group: int) -> bool:
    """Return whether the sizes are known, and many taps meet every element of the image once."""
    if group > 1 or not (image.is_static and g.is_static) or window.kernel != window.strides:
        return False
    is_plain = max(window.dilations) == 1 and not any((*window.before, *window.after))
    covered = zip(sizes_of(image)[2:], sizes_of(g)[2:], window.kernel, strict=True)
    fits = all(size == count * k for size, count, k in covered)
    return is_plain and fits and math.prod(window.kernel) >= _TAPS


def correlate_tiles(image: Tensor, g: Tensor, window: Window, _: int) -> Tensor:
    """Return the gradient of the weight by one product over all windows of all images."""
    (n, c), (_, m, *out) = sizes_of(image)[:2], sizes_of(g)
    rank = len(out)
    split = op.Reshape(
        image, [n, c, *(size for pair in zip(out, window.kernel, strict=True) for size in pair)]
    )
    order = [0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)]
    windows = op.Reshape(op.Transpose(split, perm=order), [n * math.prod(out), c * math.prod(window.kernel)])
    rows = op.Transpose(op.Reshape(g, [n, m, math.prod(out)]), perm=[0, 2, 1])
    product = op.Gemm(op.Reshape(rows, [n * math.prod(out), m]), windows, transA=1)
    weight: Tensor = op.Reshape(product, [m, c, *window.kernel])
    return weight
