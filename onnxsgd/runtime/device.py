"""Devices of sessions."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from onnxsgd.exceptions import ParameterError

__all__ = ["HOST", "Device", "check_device", "hold"]


@dataclass(frozen=True)
class Device:
    """The device of a session.

    Attributes
    ----------
    kind : {"cpu", "cuda"}
        Its kind.
    index : int
        Its number among several of that kind.
    """

    kind: str
    index: int = 0

    @property
    def is_cuda(self) -> bool:
        """True for a GPU."""
        return self.kind == "cuda"

    @property
    def keeps_data(self) -> bool:
        """True if the data of a fit are resident on it, so that no step waits for them."""
        return self.is_cuda

    @property
    def has_half_kernels(self) -> bool:
        """True if it computes in float16 and bfloat16: graphs of these types then train in them."""
        return self.is_cuda

    def __str__(self) -> str:
        return f"cuda:{self.index}" if self.is_cuda else self.kind


HOST = Device("cpu")


def check_device(device: str) -> Device:
    """Return the device of that name, if the runtime can use it.

    Parameters
    ----------
    device : str
        "cpu", "cuda" or "cuda:1"; "cuda" is "cuda:0".

    Raises
    ------
    ParameterError
        If the name is none of these.
    MissingRuntimeError
        If it names a GPU, and the installed runtime does not support GPUs or cannot use that one.
    """
    if device == HOST.kind:
        return HOST
    named = re.fullmatch(r"cuda(?::(\d{1,9}))?", device) if isinstance(device, str) else None
    if named is None:
        raise ParameterError(
            f"device={device!r} is not accepted: it must be 'cpu', 'cuda', or 'cuda:1' for the second GPU."
        )
    from onnxsgd.runtime.cuda import check_cuda

    index = int(named[1] or 0)
    check_cuda(index)
    return Device("cuda", index)


def hold(device: Device) -> AbstractContextManager[Any]:
    """Return the context manager for work on a device: on a GPU, a lock for one thread at a time.

    While the runtime records the work of one thread there, it cannot work for another one.
    """
    if not device.is_cuda:
        return nullcontext()
    from onnxsgd.runtime.cuda import LOCK

    return LOCK
