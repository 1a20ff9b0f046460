"""Questions about arrays of truth values: numpy's functions run code of Python, which few values need not."""

from __future__ import annotations

import numpy as np

__all__ = ["are_all", "how_many", "is_any"]

#: The values up to which their bytes are copied: a bound of memory.
_FEW = 1 << 16


def are_all(mask: np.ndarray) -> bool:
    """Tell whether all of some truth values are true."""
    return b"\0" not in mask.tobytes() if mask.size <= _FEW else bool(mask.all())


def is_any(mask: np.ndarray) -> bool:
    """Tell whether any of some truth values is true."""
    return b"\1" in mask.tobytes() if mask.size <= _FEW else bool(mask.any())


def how_many(mask: np.ndarray) -> int:
    """Return the number of truth values that are true."""
    return mask.tobytes().count(1) if mask.size <= _FEW else int(np.count_nonzero(mask))
