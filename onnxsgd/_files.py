"""Paths that parameters name, and files written whole or not at all."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = ["path_of", "write_whole"]

#: The characters of a name that the name of its part has: both have at most 255 bytes.
_KEPT = 50
#: The names of the folders of parts, and of the part in one.
_NAME_OF_PART, _PART = re.compile(r"\..*\.[0-9a-f]{32}\.part", re.DOTALL), "part"


def path_of(path: object, parameter: str = "path") -> Path:
    """Return the path that a parameter names; refuse other objects, and names that no file has.

    Raises
    ------
    ParameterTypeError
        If it is no str or path-like.
    ParameterError
        If it is empty, holds a zero byte, or a character that the system has no bytes for.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise ParameterTypeError(
            f"{parameter} must be a str or a path-like of str, not {type(path).__name__}."
        )
    if not name or "\0" in name or not _has_bytes(name):
        raise ParameterError(
            f"{parameter}={name!r:.60} is not accepted: files and folders have names without zero bytes, of "
            "characters that the system can write."
        )
    return Path(name)


def _has_bytes(name: str) -> bool:
    """Tell whether the system can write a name: half of a pair of surrogates is no character."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def write_whole(fills: Mapping[Path, Callable[[str], object]]) -> None:
    """Write files under their names once all are whole and on the disk; until then files of these names stay.

    Parameters
    ----------
    fills : dict of callables
        For each path a function that writes a file of the name that it gets. Of several files the last one
        describes the others: it is away while they are replaced, so that it never describes other ones.

    Raises
    ------
    OSError
        If one cannot be written. No part of it is left.

    Notes
    -----
    What a process that was killed left is removed by the next one that writes into the folder, where folders
    can be locked: not on Windows, nor on some network file systems.
    """
    targets = [_target(path) for path in fills]
    with ExitStack() as held:
        parts: list[Path] = []
        for path, target, fill in zip(fills, targets, fills.values(), strict=True):
            with _naming(path):
                parts.append(_new_part(target, held))
                mode = parts[-1].stat().st_mode & 0o777
                fill(os.fspath(parts[-1]))
                # libraries, such as safetensors, may put a file of other rights in its place
                parts[-1].chmod(mode)
                _sync(parts[-1])
        if len(targets) > 1:
            targets[-1].unlink(missing_ok=True)
        for part, target in zip(parts, targets, strict=True):
            os.replace(part, target)
    # the new names have to survive a loss of power too
    for folder in {target.parent for target in targets}:
        with suppress(OSError):
            _sync(folder)


def _target(path: Path) -> Path:
    """Return the file to replace, links followed; refuse what must not be replaced."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{os.fspath(path)!r} is a folder: give the name of a file.")
    if target.exists() and not target.is_file():
        raise OSError(f"{os.fspath(path)!r} is no regular file: it would be replaced by one.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{os.fspath(path)!r} cannot be written: its folder does not exist.")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{os.fspath(path)!r} cannot be written: it is protected against writing.")
    return target


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors name the path of the user, not that of a part."""
    try:
        yield
    except OSError as error:
        text = f"{os.fspath(path)!r} cannot be written: {error.strerror or error}"
        raise (OSError(text) if error.errno is None else type(error)(error.errno, text)) from error


def _new_part(target: Path, held: ExitStack) -> Path:
    """Return a new, empty file with the access rights of another one, or of new files, in a folder beside it.

    `held` removes the folder at its end. It is locked until then, and the system frees the lock of a process
    that ends: folders without one are those of processes that were killed, and are removed first. The lock is
    not one of the file, as libraries may put another file in its place.
    """
    _remove_stale(target.parent)
    is_new = not target.exists()
    mode = 0o666 if is_new else target.stat().st_mode & 0o777
    folder = target.parent / f".{target.name[:_KEPT]}.{uuid4().hex}.part"
    # before it is there, and twice: Ctrl-C may come at any moment, the first removal included
    held.callback(_remove, folder)
    held.callback(_remove, folder)
    while not folder.exists():
        # again if another process locked and removed it before it was locked here
        folder.mkdir(0o700)
        lock = _lock(folder, waits=True)
        if lock is not None:
            held.callback(os.close, lock)
    part = folder / _PART
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    if not is_new:
        # the rights of a new file are less those that umask takes away
        part.chmod(mode)
    return part


def _lock(folder: Path, *, waits: bool = False) -> int | None:
    """Lock a folder; None where another process has and `waits` is False, or no folders can be locked."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove_stale(folder: Path) -> None:
    """Remove the parts of a folder that processes left which were killed."""
    with suppress(OSError):
        for name in filter(_NAME_OF_PART.fullmatch, os.listdir(folder)):
            lock = _lock(folder / name)
            if lock is not None:
                _remove(folder / name)
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder of a part, and its files."""
    with suppress(OSError):
        for name in os.listdir(folder):
            (folder / name).unlink()
        folder.rmdir()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
