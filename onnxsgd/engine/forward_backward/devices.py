"""Devices of the runtime: their names, and a check that tensors are on the right one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxsgd.exceptions import EngineError, UnsupportedError
from onnxsgd.runtime.bindings import Device, OrtValueVector, runtime_bindings

__all__ = ["check_devices", "device_name", "make_device"]


def make_device(device: str, index: int) -> Any:
    """Return the runtime's object for a device.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        Its kind.
    index : int
        Its number among the devices of that kind.
    """
    kind = runtime_bindings().OrtDevice
    return kind(getattr(kind, device)(), kind.default_memory(), index)


def device_name(device: Device) -> str:
    """Return "Cpu" or "Gpu", the kind of an ``OrtDevice``.

    Raises
    ------
    UnsupportedError
        If it is neither.
    """
    kind = runtime_bindings().OrtDevice
    names = {kind.cpu(): "Cpu", kind.cuda(): "Gpu"}
    if device.device_type() not in names:
        raise UnsupportedError(f"A device of type {device.device_type()} is neither a CPU nor a GPU.")
    return names[device.device_type()]


def check_devices(vector: OrtValueVector, devices: Sequence[Device]) -> None:
    """Refuse tensors on the wrong device.

    Raises
    ------
    EngineError
        If one is not.
    """
    found = ["Cpu" if tensor.device_name().lower() == "cpu" else "Gpu" for tensor in vector]
    wanted = [device_name(device) for device in devices]
    if found != wanted:
        raise EngineError(f"The tensors are on {found}: they must be on {wanted}.")
