"""What objects of users are known by in the tables of compiled things."""

from __future__ import annotations

import pickle
from collections.abc import Hashable

__all__ = ["known_by"]


def known_by(thing: object) -> Hashable:
    """Return the class of an object and its attributes as they are now.

    Equal ones compute the same; an object that is changed is another. Attributes that cannot be compared in
    this way are equal to none.
    """
    try:
        return type(thing), pickle.dumps(vars(thing))
    except Exception:
        # Attributes of classes of the user's, which raise as they like.
        return object()
