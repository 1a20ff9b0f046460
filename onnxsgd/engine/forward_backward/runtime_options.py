"""Options of the runtime's own classes as plain data, which can be pickled."""

from __future__ import annotations

from typing import Any

__all__ = ["copy_options", "read_options"]


def read_options(options: Any) -> dict[str, Any] | None:
    """Return the properties of an object of the runtime, such as a ``SessionOptions``; None for None.

    Entries that are set by a method, such as ``add_session_config_entry``, cannot be read back.
    """
    if options is None:
        return None
    names = [name for name in dir(type(options)) if isinstance(getattr(type(options), name), property)]
    return {name: getattr(options, name) for name in names}


def copy_options(kind: type, values: dict[str, Any] | None) -> Any:
    """Return an object of `kind` in which `values` are set, None for None.

    Options that the installed runtime lacks, because they come from another edition or version, are left out.
    """
    if values is None:
        return None
    options = kind()
    for name, value in values.items():
        if hasattr(options, name):
            setattr(options, name, value)
    return options
