"""Values that processes of one machine share: small parts are bytes, arrays lie in files that all map.

The files are in memory where the system has a folder there. An array that is read is the memory of the file.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxsgd.sharding.changes import Change

__all__ = ["SharedFolder", "SharedValues", "StoredValue"]

#: Arrays of fewer bytes are sent: a pipe holds 64 KiB.
_SENT = 8_192
#: The alignment of arrays in a file: a line of the cache of a processor.
_LINE = 64
#: The folder of Linux whose files are memory, and the variable with which joblib's users name another one.
_MEMORY, _NAMED = "/dev/shm", "JOBLIB_TEMP_FOLDER"
#: The kinds of values that each round has: weights, with their states, and changes.
_OF_ROUNDS = (dict, Change)
#: The share of a folder that may be filled: others need some of it.
_SHARE = 0.9


@dataclass(frozen=True)
class StoredValue:
    """A value, as it is sent to another process.

    Attributes
    ----------
    pickled : bytes
        The value without its large arrays.
    file : str or None
        The name of the file that holds these; None: there are none.
    spans : tuple of (int, int)
        The first byte of each of them in the file, and the one behind the last.
    is_of_round : bool
        Whether it is one of many of its kind, of which no task keeps a part: its file is then written again.
    """

    pickled: bytes
    file: str | None = None
    spans: tuple[tuple[int, int], ...] = ()
    is_of_round: bool = False


class SharedFolder:
    """A folder for the files of a fit, which is removed with them, also where the process is killed.

    Parameters
    ----------
    n_bytes : int
        The bytes that the files will need.

    Raises
    ------
    OSError
        If no folder has room for them.
    """

    def __init__(self, n_bytes: int) -> None:
        # loaded with the first processes, as all of joblib's loky
        from joblib.externals.loky.backend import resource_tracker

        self._tracker = resource_tracker
        place = _place_for(n_bytes)
        self.path = tempfile.mkdtemp(prefix="onnxsgd-", dir=place)
        self._tracker.register(self.path, "folder")

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        # Windows keeps files that are mapped: the tracker removes them at the end of the process
        if not os.path.exists(self.path):
            self._tracker.unregister(self.path, "folder")


def _place_for(n_bytes: int) -> str:
    """Return the first folder for temporary files with room for so many bytes."""
    found = []
    for place in (os.environ.get(_NAMED), _MEMORY, tempfile.gettempdir()):
        if place is None or not (os.path.isdir(place) and os.access(place, os.W_OK)):
            continue
        free = shutil.disk_usage(place).free
        if n_bytes <= _SHARE * free:
            return place
        found.append(f"{free / 1e6:.0f} MB free in {place}")
    raise OSError(
        errno.ENOSPC,
        f"processes need {n_bytes / 1e6:.0f} MB for the data that they share, and there are "
        f"{', '.join(found) or 'no folder for temporary files'}",
    )


class SharedValues:
    """The values that a process stores in a folder, or reads from it.

    Parameters
    ----------
    folder : str
        The folder.
    owner : str
        A name that no other process has there.
    """

    def __init__(self, folder: str, owner: str) -> None:
        self._folder, self._owner, self._count = Path(folder), owner, 0
        self._own: dict[str, mmap.mmap] = {}
        self._read: dict[str, memoryview] = {}
        #: The own files that may be written again, by their size.
        self._free: defaultdict[int, list[str]] = defaultdict(list)

    def store(self, value: object) -> StoredValue:
        """Return a value as it is sent; its large arrays are copied to a file.

        A freed file of the right size is written again: to get new memory takes longer than to fill it.

        Raises
        ------
        OSError
            If the folder is full.
        """
        arrays = list[memoryview]()

        def is_sent(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _SENT:
                return True
            arrays.append(raw)
            return False

        pickled = pickle.dumps(value, protocol=5, buffer_callback=is_sent)
        if not arrays:
            return StoredValue(pickled)
        spans, end = list[tuple[int, int]](), 0
        for array in arrays:
            start = -(-end // _LINE) * _LINE
            end = start + array.nbytes
            spans.append((start, end))
        name = self._file_of(end)
        with memoryview(self._own[name]) as memory:
            for array, (start, stop) in zip(arrays, spans, strict=True):
                memory[start:stop] = array
        return StoredValue(pickled, name, tuple(spans), isinstance(value, _OF_ROUNDS))

    def _file_of(self, size: int) -> str:
        """Return the name of a file of so many bytes that is mapped here."""
        if self._free[size]:
            return self._free[size].pop()
        name = f"{self._owner}-{self._count}"
        self._count += 1
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                # a file without memory behind it would end the process that writes it
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.truncate(descriptor, size)
            self._own[name] = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        return name

    def load(self, stored: StoredValue) -> Any:
        """Return a value; its large arrays are the memory of the file, and cannot be written."""
        if stored.file is None:
            return pickle.loads(stored.pickled)
        memory = self._read.get(stored.file)
        if memory is None:
            with (self._folder / stored.file).open("rb") as file:
                memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._read[stored.file] = memory
        return pickle.loads(stored.pickled, buffers=[memory[start:stop] for start, stop in stored.spans])

    def free(self, name: str) -> None:
        """Let an own file be written again: no process reads its value any more."""
        self._free[len(self._own[name])].append(name)

    def forget(self, names: Iterable[str]) -> None:
        """Unmap files that were removed; arrays that are in use keep their memory."""
        for name in names:
            self._read.pop(name, None)
            self._own.pop(name, None)

    def remove(self, name: str) -> None:
        """Remove a file of this or of another process."""
        self.forget([name])
        # Windows keeps files that are mapped
        with suppress(OSError):
            (self._folder / name).unlink()
