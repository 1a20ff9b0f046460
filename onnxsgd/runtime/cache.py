"""The cache of a process: models read, learners, compiled sessions."""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import ref

from onnxsgd.runtime.collection import collection_paused
from onnxsgd.runtime.device import HOST, Device, hold
from onnxsgd.runtime.events import decided
from onnxsgd.runtime.forks import call_in_child, new_lock
from onnxsgd.runtime.stages import current

__all__ = ["Cache", "KnownEntry", "Limit", "cache", "cached"]

T = TypeVar("T")


@dataclass(frozen=True)
class Limit:
    """The bound of a cache.

    Attributes
    ----------
    n_entries : int
        The largest number of entries.
    n_bytes : float
        The largest total size of their graphs. The last few entries are kept however large they are: a fit
        needs several at a time.
    n_threads : float
        The largest total number of their threads beside the one that calls, the last few entries apart.
    """

    n_entries: int
    n_bytes: float = math.inf
    n_threads: float = math.inf


#: The number of entries kept in any case: those of one fit.
_FEW = 8


class Cache:
    """A thread-safe cache of the most recently used entries, with a bound for each kind of device.

    A session does not survive a fork, so the cache starts empty in a child process.

    Parameters
    ----------
    limits : mapping of str to Limit
        The bound of each kind of device.

    Attributes
    ----------
    n_built : int
        The number of entries built, that is, of cache misses.
    generation : object
        Another object from each time on that the cache begins anew.
    """

    def __init__(self, limits: Mapping[str, Limit]) -> None:
        self._limits = limits
        self._lock = new_lock()
        self._reset()
        call_in_child(self._leave)

    def find(self, key: Hashable, kind: str = HOST.kind) -> Any:
        """Return the entry of `key`; None if it is missing."""
        with self._lock:
            # the hash of a key takes as long as the rest
            entry = self._entries[kind].get(key)
            return None if entry is None else self._found(kind, key, entry)

    def get(
        self,
        key: Hashable,
        build: Callable[[], T],
        nbytes: int = 0,
        kind: str = HOST.kind,
        n_threads: int = 1,
    ) -> T:
        """Return the entry of `key`; if missing, store the result of `build`, a graph of `nbytes`.

        Its session has `n_threads` threads, the one that calls included. Threads that miss the same key
        build it once; other keys do not wait for it.
        """
        with self._lock:
            if (entry := self._entries[kind].get(key)) is not None:
                return self._found(kind, key, entry)
            building = self._building.setdefault((kind, key), new_lock())
        with building:
            with self._lock:
                if (entry := self._entries[kind].get(key)) is not None:
                    return self._found(kind, key, entry)
            try:
                made = build()
                with self._lock:
                    self._entries[kind][key] = made, nbytes, n_threads - 1
                    self.n_built += 1
                    self._drop_oldest(kind)
            finally:
                self._building.pop((kind, key), None)
        _count(key, is_hit=False)
        return made

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._reset()

    def _leave(self) -> None:
        """Begin anew in a child process, which lacks the threads of sessions.

        Destroying a session, which waits for them, would crash the interpreter.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._entries))
        self._reset()

    def _found(self, kind: str, key: Hashable, entry: tuple[Any, int, int]) -> Any:
        _count(key, is_hit=True)
        self._entries[kind].move_to_end(key)
        return entry[0]

    def _drop_oldest(self, kind: str) -> None:
        entries, limit = self._entries[kind], self._limits[kind]
        total = sum(nbytes for _, nbytes, _ in entries.values())
        while len(entries) > limit.n_entries or (total > limit.n_bytes and len(entries) > _FEW):
            _, (_, nbytes, _) = entries.popitem(last=False)
            total -= nbytes
        with_threads = [(key, entry[2]) for key, entry in entries.items() if entry[2]]
        total = sum(n_threads for _, n_threads in with_threads)
        for key, n_threads in with_threads[:-_FEW]:
            if total <= limit.n_threads:
                break
            del entries[key]
            total -= n_threads

    def _reset(self) -> None:
        self._building: dict[Hashable, Any] = {}
        self._entries: dict[str, OrderedDict[Hashable, tuple[Any, int, int]]]
        self._entries = {kind: OrderedDict() for kind in self._limits}
        self.n_built = 0
        self.generation = object()


def _count(key: Hashable, *, is_hit: bool) -> None:
    """Count an entry in the record of the fit, if this is one, and report its kind."""
    recording = current()
    if recording is not None:
        if is_hit:
            recording.n_hits += 1
        else:
            recording.n_misses += 1
    kind = key[0] if isinstance(key, tuple) and key else key
    decided("cache", "%s: %s", kind, "found" if is_hit else "made")


#: The cache of this process. A key begins with the kind of the entry: "source" and "learner" under a digest
#: of the model and the options, "predictions", "step", "linear" and "block" under a digest of the graph, the
#: specification of the step, the threads and the device. GPUs have few: each takes some of a GPU's memory.
#: A session keeps its threads until it is dropped: on many cores, the bound of their number comes first.
cache = Cache({"cpu": Limit(144, 128_000_000, 256), "cuda": Limit(16)})


def cached(
    key: Hashable | None,
    build: Callable[[], T],
    nbytes: int = 0,
    device: Device = HOST,
    *,
    n_threads: int = 1,
) -> T:
    """Return the entry of :data:`cache` for a device; the result of `build` if `key` is None.

    Parameters
    ----------
    key : hashable or None
        Equal keys denote equal entries; None: the entry is not cached.
    build : callable
        Makes the entry.
    nbytes : int
        The size of its graph.
    device : Device
        The device that it is compiled for.
    n_threads : int
        The threads of its session.
    """
    known: T | None = None if key is None else cache.find(key, device.kind)
    if known is not None:
        return known

    def made() -> T:
        with collection_paused():
            return build()

    # entries dropped from the cache free memory there
    with hold(device):
        if key is None:
            return made()
        return cache.get(key, made, nbytes, device.kind, n_threads)


class KnownEntry(Generic[T]):
    """An entry that one object asks for again and again: it is found without its key while the cache has it.

    The cache does not count that, and may drop the entry: it is then asked for once more.
    """

    def __init__(self) -> None:
        self._known: tuple[object, Callable[[], T | None]] = (None, lambda: None)

    def __reduce__(self) -> tuple[type[KnownEntry[T]], tuple[()]]:
        """Return a copy that knows no entry."""
        return type(self), ()

    def find(self, ask: Callable[[], T]) -> T:
        """Return the entry; `ask` returns that of the cache."""
        generation, entry = self._known
        found = entry() if generation is cache.generation else None
        if found is None:
            found = ask()
            self._known = cache.generation, ref(found)
        return found
