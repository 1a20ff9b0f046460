"""Callbacks on imports: skl2onnx learns our estimators when a user imports it, in either order."""

import sys

import pytest

from onnxsgd.estimators.import_hook import when_imported


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that is not imported yet; the finders of other tests stay."""
    (tmp_path / "hooked_package.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "hooked_package"
    sys.modules.pop("hooked_package", None)


def test_the_callback_runs_after_the_import(package):
    seen = []
    when_imported(package, lambda: seen.append(sys.modules[package].loaded))
    assert seen == []
    assert __import__(package).loaded
    assert seen == [True]


def test_it_runs_once(package):
    seen = []
    when_imported(package, lambda: seen.append(1))
    __import__(package)
    del sys.modules[package]
    __import__(package)
    assert seen == [1]


def test_it_runs_at_once_for_an_imported_package(package):
    __import__(package)
    seen = []
    when_imported(package, lambda: seen.append(1))
    assert seen == [1]


def test_other_imports_do_not_call_it(package, tmp_path):
    (tmp_path / "hooked_other.py").write_text("")
    seen = []
    when_imported(package, lambda: seen.append(1))
    __import__("hooked_other")
    assert seen == []
    sys.modules.pop("hooked_other")


def test_a_package_that_fails_to_import_raises_its_own_error(package, tmp_path):
    (tmp_path / "hooked_package.py").write_text("raise RuntimeError('broken')\n")
    seen = []
    when_imported(package, lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="broken"):
        __import__(package)
    assert seen == []


def test_two_callbacks_for_one_package(package):
    """Both estimators wait for skl2onnx."""
    seen = []
    for number in (1, 2):
        when_imported(package, lambda number=number: seen.append(number))
    __import__(package)
    assert sorted(seen) == [1, 2]
