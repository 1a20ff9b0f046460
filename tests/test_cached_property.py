"""Attributes that are computed once, without a lock."""

import threading
from dataclasses import dataclass

from onnxsgd._cached_property import cached_property


@dataclass(frozen=True)
class Square:
    side: float

    @cached_property
    def area(self) -> list[float]:
        """The area."""
        return [self.side**2]


class Slow:
    def __init__(self) -> None:
        self.started, self.go = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> object:
        self.started.set()
        assert self.go.wait(10)
        return object()


def test_it_is_computed_once():
    square = Square(3.0)
    assert square.area is square.area == [9.0]
    assert isinstance(Square.area, cached_property)


def test_no_instance_waits_for_another():
    """Python 3.11 has one lock for all, which a fork would leave held for ever in the child process."""
    slow, other = Slow(), Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.started.wait(10)
    other.go.set()
    found = []
    second = threading.Thread(target=lambda: found.append(other.value))
    second.start()
    second.join(5)
    assert found == [other.value]
    slow.go.set()
    thread.join(10)


def test_threads_get_one_value():
    slow, found = Slow(), []
    threads = [threading.Thread(target=lambda: found.append(slow.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    slow.go.set()
    for thread in threads:
        thread.join(10)
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
