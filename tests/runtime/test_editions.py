"""Installed editions of onnxruntime, and the messages about editions that overwrite each other."""

import importlib
import platform
import sys
import tomllib
import warnings
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from sklearn.linear_model import LinearRegression

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import MissingRuntimeError
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.runtime import editions as _runtime
from onnxsgd.runtime.editions import EDITIONS, default_edition, install_command, load_runtime

PROJECT = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]

#: The files of two editions: some are the same, some differ in size, some are their own.
SHARED = {"LICENSE": "MIT", "__init__.py": "class InferenceSession: pass\n"}
TRAINING = {**SHARED, "capi/native.so": "native code that trains", "training/api.py": "pass"}
PLAIN = {**SHARED, "capi/native.so": "native code"}


class Site:
    """A folder of installed distributions that replaces all of ``sys.path``."""

    def __init__(self, folder):
        self.folder = folder

    def install(self, name, version, files):
        """Install as an installer does: overwrite existing files, and record names and sizes."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        record = [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]
        for relative, content in files.items():
            path = self.folder / "onnxruntime" / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            record.append(f"onnxruntime/{relative},sha256=x,{len(content)}")
        info.joinpath("RECORD").write_text("\n".join(record))
        importlib.invalidate_caches()

    def remove(self, relative):
        self.folder.joinpath("onnxruntime", relative).unlink()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty environment: Python 3.11 on Linux, where the default edition is the one that trains."""

    def forget():
        names = [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]
        return {name: sys.modules.pop(name) for name in names}

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "version_info", (3, 11, 9, "final", 0))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    modules = forget()
    load_runtime.cache_clear()
    yield Site(tmp_path)
    forget()
    sys.modules.update(modules)
    load_runtime.cache_clear()


@pytest.mark.parametrize(
    ("name", "version", "files"),
    [("onnxruntime-training-cpu", "1.19.2", TRAINING), ("onnxruntime-gpu", "1.31.1", PLAIN)],
)
def test_one_edition_is_used_without_a_warning(site, name, version, files):
    site.install(name, version, files)
    assert load_runtime().__file__ == str(site.folder / "onnxruntime" / "__init__.py")


def test_no_runtime_names_the_commands_for_this_python(site, monkeypatch):
    with pytest.raises(MissingRuntimeError) as caught:
        load_runtime()
    message = str(caught.value)
    assert message.startswith("No onnxruntime is installed. For Python 3.11 on Linux x86_64")
    for extra in EDITIONS:
        assert EDITIONS[extra].install_command() in message
    assert 'pip install "onnxruntime-gpu[cuda,cudnn]", or ' in message
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(MissingRuntimeError, match=r"of its editions: pip install onnxruntime\.$"):
        load_runtime()


@pytest.mark.parametrize("chosen", ["onnxruntime", "onnxruntime-gpu"])
def test_a_chosen_edition_over_the_default_one_is_fine(site, chosen):
    """The result of ``pip install onnxsgd``, then ``pip install onnxsgd[gpu]``."""
    site.install("onnxruntime-training-cpu", "1.19.2", TRAINING)
    site.install(chosen, "1.31.1", PLAIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_runtime()


def test_a_chosen_edition_under_the_default_one_is_reported(site):
    """The result of one ``pip install onnxsgd[gpu]`` in an empty environment: the GPU would never be used."""
    site.install("onnxruntime-gpu", "1.31.1", PLAIN)
    site.install("onnxruntime-training-cpu", "1.19.2", TRAINING)
    with pytest.warns(UserWarning, match="cannot be used") as caught:
        load_runtime()
    message = str(caught[0].message)
    assert message.startswith(
        "onnxruntime-gpu 1.31.1 cannot be used: onnxruntime-training-cpu 1.19.2 was installed over it"
    )
    assert "To use it: pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1. To do" in message
    assert (
        "without it: pip uninstall -y onnxruntime-gpu && "
        "pip install --force-reinstall --no-deps onnxruntime-training-cpu==1.19.2." in message
    )
    load_runtime()  # once is enough


@pytest.mark.parametrize("how", ["overwritten", "removed"])
def test_a_broken_mixture_is_an_error(site, how):
    """The result of an installer that writes in parallel, or of an update of one and removal of a third."""
    site.install("onnxruntime-training-cpu", "1.19.2", TRAINING)
    site.install("onnxruntime", "1.31.1", PLAIN)
    if how == "removed":
        site.remove("capi/native.so")
    else:
        site.folder.joinpath("onnxruntime/__init__.py").write_text("class InferenceSession: ...")
    with pytest.raises(MissingRuntimeError) as caught:
        load_runtime()
    message = str(caught.value)
    assert "onnxruntime-training-cpu 1.19.2 and onnxruntime 1.31.1 are installed together" in message
    assert (
        "Keep one: pip uninstall -y onnxruntime && "
        "pip install --force-reinstall --no-deps onnxruntime-training-cpu==1.19.2, or "
        "pip install --force-reinstall --no-deps onnxruntime==1.31.1." in message
    )


def test_the_command_for_an_edition_depends_on_the_installed_ones(site):
    assert install_command("gpu") == 'pip install "onnxruntime-gpu[cuda,cudnn]"'
    site.install("onnxruntime-training-cpu", "1.19.2", TRAINING)
    assert install_command("cpu") == "pip install onnxruntime"
    site.install("onnxruntime", "1.31.1", PLAIN)
    again = "pip install --force-reinstall --no-deps"
    assert install_command("cpu") == f"{again} onnxruntime==1.31.1"
    assert install_command("training") == (
        f"pip uninstall -y onnxruntime && {again} onnxruntime-training-cpu==1.19.2"
    )
    assert install_command("gpu") == (
        'pip uninstall -y onnxruntime && pip install "onnxruntime-gpu[cuda,cudnn]"'
    )


def test_identical_files_are_no_conflict(site):
    """A custom build under another name, or two editions in separate folders."""
    site.install("onnxruntime", "1.31.1", PLAIN)
    site.install("ort-nightly", "1.31.1", PLAIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_runtime()


def test_the_remains_of_an_uninstallation_are_explained(site):
    """Uninstalling one of two takes the files of both, and the folder still imports."""
    site.install("onnxruntime-training-cpu", "1.19.2", TRAINING)
    site.remove("__init__.py")
    site.remove("capi/native.so")
    with pytest.raises(
        MissingRuntimeError,
        match=r"onnxruntime-training-cpu 1\.19\.2 is installed and cannot be used \(files of it are missing\)"
        r".*pip install --force-reinstall --no-deps onnxruntime-training-cpu==1\.19\.2",
    ):
        load_runtime()


def test_a_library_that_does_not_load_is_quoted(site):
    site.install("onnxruntime-gpu", "1.31.1", {"__init__.py": "raise ImportError('libcudart.so.13')"})
    with pytest.raises(MissingRuntimeError, match=r"\(libcudart\.so\.13\)"):
        load_runtime()


def test_the_explanation_reaches_the_user_of_an_estimator(monkeypatch):
    """In a fit of a user's graph, its trial run is the first use of the runtime."""
    X = np.arange(22.0).reshape(2, 11)  # a width that no other test has left a session for
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for cached in (load_runtime, orttraining.bindings):
        cached.cache_clear()
    with pytest.raises(MissingRuntimeError, match=r"is installed and cannot be used .*; repair it: pip"):
        OnnxSGDRegressor(LinearRegression()).fit(X, [0.0, 1.0])
    orttraining.bindings.cache_clear()


def test_a_build_without_metadata_is_accepted(site):
    site.install("onnxruntime", "1.31.1", PLAIN)
    for file in site.folder.glob("*.dist-info/*"):
        file.unlink()
    site.folder.joinpath("onnxruntime-1.31.1.dist-info").rmdir()
    importlib.invalidate_caches()
    assert load_runtime().InferenceSession


#: Python, the system and the machine as markers call them, and the edition that comes with the package.
PLACES = [
    ("3.11", "linux", "x86_64", "Linux", "training"),
    ("3.12", "linux", "x86_64", "Linux", "training"),
    ("3.13", "linux", "x86_64", "Linux", "cpu"),
    ("3.14", "linux", "x86_64", "Linux", "cpu"),
    ("3.11", "linux", "aarch64", "Linux", "cpu"),
    ("3.12", "darwin", "arm64", "Darwin", "training"),
    ("3.12", "darwin", "x86_64", "Darwin", "training"),
    ("3.13", "darwin", "arm64", "Darwin", "cpu"),
    ("3.11", "win32", "AMD64", "Windows", "training"),
    ("3.13", "win32", "AMD64", "Windows", "cpu"),
    ("3.12", "win32", "ARM64", "Windows", "cpu"),
]


@pytest.mark.parametrize(("python", "platform_name", "machine", "system", "extra"), PLACES)
def test_the_package_alone_brings_one_runtime_everywhere(
    python, platform_name, machine, system, extra, monkeypatch
):
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform_name,
        "platform_system": system,
        "platform_machine": machine,
    }
    required = [Requirement(line) for line in PROJECT["dependencies"]]
    runtimes = [
        found.name
        for found in required
        if found.name.startswith("onnxruntime")
        and (found.marker is None or found.marker.evaluate(environment))
    ]
    assert runtimes == [EDITIONS[extra].distribution]
    monkeypatch.setattr(sys, "version_info", (*map(int, python.split(".")), 0, "final", 0))
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert default_edition() == extra


def test_each_edition_is_an_extra():
    for extra, edition in EDITIONS.items():
        (requirement,) = (Requirement(line) for line in PROJECT["optional-dependencies"][extra])
        expected = Requirement(edition.requirement)
        assert requirement.name == expected.name == edition.distribution
        assert requirement.extras == expected.extras
        assert expected.specifier in (requirement.specifier, "")
    assert metadata.version("onnxsgd") == importlib.import_module("onnxsgd").__version__


@pytest.mark.parametrize(
    ("text", "version"), [("1.19.2", (1, 19)), ("1.32.0", (1, 32)), ("2.0.0rc1", (2, 0))]
)
def test_versions_are_pairs_of_numbers(monkeypatch, text, version):
    monkeypatch.setattr(_runtime, "load_runtime", lambda: SimpleNamespace(__version__=text))
    assert _runtime.runtime_version() == version
