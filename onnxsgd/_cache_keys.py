"""Cache keys for user-defined losses and optimizers."""

from __future__ import annotations

import pickle
from collections.abc import Hashable

__all__ = ["cache_key"]


def cache_key(thing: object) -> Hashable:
    """Return the class of an object and its present attributes.

    Objects with equal keys compute the same; a changed object has a new key. Attributes that cannot be
    pickled give a key that equals no other.
    """
    try:
        return type(thing), pickle.dumps(vars(thing))
    except Exception:
        # Attributes of user-defined classes, which may raise any exception.
        return object()
