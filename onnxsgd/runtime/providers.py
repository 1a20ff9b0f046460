"""Execution providers and devices of the runtime, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = ["CPU", "CUDA", "Placement", "resolve_placement"]

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

#: Short names of providers.
_ALIASES = {"cpu": CPU, "cuda": CUDA, "gpu": CUDA}


@dataclass(frozen=True)
class Placement:
    """The execution providers and the device of sessions.

    Attributes
    ----------
    providers : list of str
        Execution providers, the preferred one first.
    options : list of dict
        The options of each.
    device : {"cpu", "cuda"}
        The kind of the device of inputs and outputs.
    index : int
        Its number among several of that kind.
    """

    providers: list[str]
    options: list[dict[str, Any]]
    device: str
    index: int


def resolve_placement(
    providers: str | Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None,
    device_index: int,
    available: Sequence[str],
) -> Placement:
    """Resolve the parameters that select providers and a device.

    Parameters
    ----------
    providers : str, sequence of str or of (str, dict), or None
        Names of providers, or "cpu", "cuda", "gpu", "cuda:1"; None means "cpu". Repeated names count once.
    provider_options : sequence of dict or None
        The options of each of `providers`.
    device_index : int
        The number of the GPU, >= 0.
    available : sequence of str
        The providers that the installed runtime has.

    Raises
    ------
    ParameterError
        If a provider is unknown or not available, or the number of options is not that of providers.
    """
    if isinstance(device_index, bool) or not isinstance(device_index, int) or device_index < 0:
        raise ParameterError(f"device_index={device_index!r} is not accepted: it must be an int >= 0.")
    given = (
        [providers] if isinstance(providers, str) else list(providers if providers is not None else ["cpu"])
    )
    if not given:
        raise ParameterError("providers is empty: name at least one, or pass None for the CPU.")
    if provider_options is not None and len(provider_options) != len(given):
        raise ParameterError(
            f"provider_options has {len(provider_options)} elements and providers {len(given)}: give one for "
            f"each."
        )
    chosen: dict[str, dict[str, Any]] = {}
    for position, provider in enumerate(given):
        name, options = provider if isinstance(provider, tuple) else (provider, {})
        name, index = _read_name(name, device_index, available)
        defaults = {"device_id": str(index)} if name == CUDA else {}
        extra = {} if provider_options is None else provider_options[position]
        chosen.setdefault(name, {**defaults, **options, **extra})
        device_index = index
    first = next(iter(chosen))
    device = "cuda" if first == CUDA else "cpu"
    index = int(chosen[first].get("device_id", device_index)) if device == "cuda" else 0
    return Placement(list(chosen), list(chosen.values()), device, index)


def _read_name(name: object, index: int, available: Sequence[str]) -> tuple[str, int]:
    if not isinstance(name, str):
        raise ParameterTypeError(f"providers must hold names of execution providers, not {name!r}.")
    numbered = re.fullmatch(r"(cuda|gpu):(\d+)", name)
    if numbered:
        name, index = numbered[1], int(numbered[2])
    name = _ALIASES.get(name, name)
    if name not in available:
        raise ParameterError(
            f"providers: {name!r} is not available: the installed onnxruntime has {list(available)}."
        )
    return name, index
