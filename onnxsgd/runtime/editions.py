"""Installed editions of onnxruntime, and a check of their files.

Every edition is a separate distribution that installs the same import package, ``onnxruntime``. An installer
cannot require "one of these": it silently overwrites one by the other, and the import finds the last one, or
a mixture that fails in strange places. This module tells these cases apart, once, when the runtime is first
needed. With one edition installed it only reads the names of the installed distributions.
"""

from __future__ import annotations

import csv
import importlib
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import ModuleType

from onnxsgd.exceptions import MissingRuntimeError
from onnxsgd.runtime.hidden_modules import hidden_modules

__all__ = ["EDITIONS", "Edition", "default_edition", "install_command", "load_runtime", "runtime_version"]


@dataclass(frozen=True)
class Edition:
    """One distribution that installs ``onnxruntime``.

    Attributes
    ----------
    distribution : str
        Its name.
    requirement : str
        The requirement to give to an installer.
    python_below : tuple of int or None
        The first Python without a wheel; None if all have one.
    platforms : frozenset of str or None
        The platforms that have wheels, as "<system>-<machine>" in lower case; None for all.
    """

    distribution: str
    requirement: str
    python_below: tuple[int, int] | None = None
    platforms: frozenset[str] | None = None

    def is_offered(self, python: tuple[int, int], system: str, machine: str) -> bool:
        """Return whether there is a wheel for a Python on a platform."""
        if self.python_below is not None and python >= self.python_below:
            return False
        return self.platforms is None or f"{system}-{machine}".lower() in self.platforms

    def install_command(self) -> str:
        """Return the command that installs it, for any shell."""
        quote = '"' if "[" in self.requirement else ""
        return f"pip install {quote}{self.requirement}{quote}"


_INTEL = frozenset({"linux-x86_64", "windows-amd64"})

#: The editions by the extra that installs them, in order of preference.
EDITIONS: dict[str, Edition] = {
    "training": Edition(
        "onnxruntime-training-cpu",
        "onnxruntime-training-cpu==1.19.2",
        (3, 13),
        _INTEL | {"darwin-x86_64", "darwin-arm64"},
    ),
    "cpu": Edition("onnxruntime", "onnxruntime"),
    "gpu": Edition("onnxruntime-gpu", "onnxruntime-gpu[cuda,cudnn]", None, _INTEL),
    "training-gpu": Edition(
        "onnxruntime-training", "onnxruntime-training==1.19.2", (3, 12), frozenset({"linux-x86_64"})
    ),
}

#: Other distributions that install ``onnxruntime`` too.
_COUSINS = ("onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-qnn", "ort-nightly")


def default_edition() -> str:
    """Return the extra of the edition that the package requires on this Python and platform."""
    return "training" if "training" in _offered() else "cpu"


def install_command(extra: str) -> str:
    """Return the command that makes an edition of the runtime the imported one.

    Parameters
    ----------
    extra : str
        A key of :data:`EDITIONS`.

    Returns
    -------
    str
        It keeps the edition that the package requires, as the files installed last win, and removes any
        other.
    """
    return _use_command(EDITIONS[extra], _find_all())


@cache
def load_runtime() -> ModuleType:
    """Return the module ``onnxruntime``.

    Warns
    -----
    UserWarning
        If an edition was chosen, and the default one has overwritten it.

    Raises
    ------
    MissingRuntimeError
        If no onnxruntime is installed, or only parts of several. The message holds the commands that help.
    """
    installed = _find_all()
    if len(installed) > 1:
        _check_mixture(installed)
    try:
        with hidden_modules("torch"):
            runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingRuntimeError(_explain_failure(installed, str(error))) from error
    # An uninstallation leaves a folder without modules, which is imported without an error.
    if not hasattr(runtime, "InferenceSession"):
        raise MissingRuntimeError(_explain_failure(installed, "files of it are missing"))
    return runtime


def runtime_version() -> tuple[int, int]:
    """Return the version of the installed onnxruntime, such as (1, 22)."""
    major, minor = load_runtime().__version__.split(".")[:2]
    return int(major), int(minor)


def _find_all() -> list[metadata.Distribution]:
    """Return the installed distributions of the family."""
    found = []
    for name in (*(edition.distribution for edition in EDITIONS.values()), *_COUSINS):
        try:
            found.append(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            continue
    return found


def _check_mixture(installed: Sequence[metadata.Distribution]) -> None:
    """Refuse editions that overwrote each other; warn of one that was chosen and is not imported."""
    whole = [distribution for distribution in installed if _is_whole(distribution)]
    if not whole:
        raise MissingRuntimeError(
            f"{_names(installed)} are installed together and have overwritten each other's files, as all of "
            f"them own the import package 'onnxruntime'. Keep one: {_use_commands(installed, installed)}."
        )
    default = EDITIONS[default_edition()].distribution
    lost = [other for other in installed if other not in whole and _name(other) != default]
    if lost:
        warnings.warn(
            f"{_names(lost)} cannot be used: {_names(whole)} was installed over it, as both own the import "
            f"package 'onnxruntime'. To use it: {_use_commands(lost, installed)}. To do without it: "
            f"{_use_commands(whole, installed)}.",
            stacklevel=3,
        )


def _is_whole(distribution: metadata.Distribution) -> bool:
    """Return whether every file of the import package has its recorded size."""
    # importlib.metadata leaves out files that do not exist
    for path, _, size in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if not size or not path.startswith("onnxruntime/"):
            continue
        try:
            if os.stat(str(distribution.locate_file(path))).st_size != int(size):
                return False
        except OSError:
            return False
    return True


def _explain_failure(installed: Sequence[metadata.Distribution], reason: str) -> str:
    if installed:
        commands = _use_commands(installed, installed)
        return f"{_names(installed)} is installed and cannot be used ({reason}); repair it: {commands}."
    commands = ", or ".join(EDITIONS[extra].install_command() for extra in _offered())
    python = ".".join(map(str, sys.version_info[:2]))
    return (
        f"No onnxruntime is installed. For Python {python} on {platform.system()} {platform.machine()}, "
        f"install one of its editions: {commands}."
    )


def _offered() -> list[str]:
    """Return the extras whose editions have wheels for this Python and platform."""
    here = sys.version_info[:2], platform.system(), platform.machine()
    return [extra for extra, edition in EDITIONS.items() if edition.is_offered(*here)]


def _use_commands(chosen: Sequence[metadata.Distribution], installed: Sequence[metadata.Distribution]) -> str:
    editions = [Edition(_name(found), f"{_name(found)}=={found.version}") for found in chosen]
    return ", or ".join(_use_command(edition, installed) for edition in editions)


def _use_command(edition: Edition, installed: Sequence[metadata.Distribution]) -> str:
    """Return the command that makes an edition the imported one, and removes other chosen ones."""
    versions = {_name(found): found.version for found in installed}
    kept = {edition.distribution, EDITIONS[default_edition()].distribution}
    others = [name for name in versions if name not in kept]
    remove = f"pip uninstall -y {' '.join(others)} && " if others else ""
    if edition.distribution not in versions:
        return remove + edition.install_command()
    version = versions[edition.distribution]
    return f"{remove}pip install --force-reinstall --no-deps {edition.distribution}=={version}"


def _name(distribution: metadata.Distribution) -> str:
    return distribution.metadata["Name"].lower().replace("_", "-")


def _names(distributions: Sequence[metadata.Distribution]) -> str:
    return " and ".join(f"{_name(found)} {found.version}" for found in distributions)
