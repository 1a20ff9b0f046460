"""Cache keys of objects that users write: equal keys promise equal computations."""

import threading
from dataclasses import dataclass

from onnxsgd._cache_keys import cache_key


@dataclass
class Scale:
    by: float = 1.0


class Other(Scale):
    pass


def test_equal_objects_share_a_key():
    """A loss made anew for each fit of a grid search reuses the compiled step."""
    assert cache_key(Scale(2.0)) == cache_key(Scale(2.0))
    assert hash(cache_key(Scale(2.0))) == hash(cache_key(Scale(2.0)))


def test_a_changed_object_has_a_new_key():
    """A loss whose attribute is set between two fits is compiled anew."""
    scale = Scale(2.0)
    before = cache_key(scale)
    scale.by = 3.0
    assert cache_key(scale) != before


def test_classes_differ():
    assert cache_key(Scale(2.0)) != cache_key(Other(2.0))


def test_attributes_that_cannot_be_pickled_share_no_key():
    """Nothing is known about a lock or a lambda: compiling again is safe, sharing is not."""
    scale = Scale(threading.Lock())
    assert cache_key(scale) != cache_key(scale)


def test_any_error_while_pickling_gives_a_key():
    class Broken:
        def __reduce__(self):
            raise ZeroDivisionError

    scale = Scale(Broken())
    assert cache_key(scale) != cache_key(scale)
