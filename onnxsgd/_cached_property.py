"""Attributes that are computed once, without a lock."""

from __future__ import annotations

import functools
from typing import Self, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(functools.cached_property[T]):
    """functools.cached_property, without the lock that Python 3.11 has.

    All instances share that lock: a fork while another thread computes the attribute of any of them leaves it
    held for ever in the child process. Threads that compute an attribute at once get one value. The class can
    go with Python 3.11.
    """

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        value: T = vars(instance).setdefault(str(self.attrname), self.func(instance))
        return value
