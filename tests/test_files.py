"""Files that are written whole or not at all, and the paths that parameters name."""

import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDRegressor, plot_graph
from onnxsgd._files import path_of, write_whole
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import ParameterError, ParameterTypeError

_X = np.random.default_rng(0).normal(size=(20, 30))
_Y = _X[:, 0]
_has_adapters = hasattr(onnxruntime, "AdapterFormat")


def _put(text, name):
    Path(name).write_text(text)


def _write(folder, **texts):
    write_whole({folder / name: partial(_put, text) for name, text in texts.items()})


def _read(folder):
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture(scope="module")
def learner():
    network = MLPRegressor(hidden_layer_sizes=(40,), max_iter=300).fit(_X, _Y)
    return OnnxSGDRegressor(
        network, adapter=LoRA(2), learning_rate="constant", max_iter=1, tol=None, random_state=0
    ).fit(_X, _Y)


#: Everything that writes files, with the names that it takes.
WRITERS = {
    "save": (lambda learner, path: learner.save(path), "file"),
    "export_training_step": (lambda learner, path: learner.export_training_step(path), "file.onnx"),
    "plot": (lambda learner, path: plot_graph(learner).save(path), "file.txt"),
}
if _has_adapters:
    WRITERS["export_adapter"] = (lambda learner, path: learner.export_adapter(path), "file")


@pytest.mark.parametrize("path", [None, 0, b"f", [], "", "a\0b", "\ud800"], ids=repr)
def test_names_of_no_file_are_refused(path):
    with pytest.raises((ParameterError, ParameterTypeError), match=r"path.* (must be|is not accepted)"):
        path_of(path)
    with pytest.raises((ParameterError, ParameterTypeError), match="^checkpoint"):
        path_of(path, "checkpoint")


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("path", [None, 3, b"f.onnx", "", "a\0.onnx"], ids=repr)
def test_all_writers_refuse_them(learner, name, path):
    with pytest.raises((ParameterError, ParameterTypeError), match="^path"):
        WRITERS[name][0](learner, path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("name", WRITERS)
def test_folders_pipes_and_missing_folders_are_refused(learner, name, tmp_path):
    """A pipe without a reader would wait for ever."""
    write, file = WRITERS[name]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / file).mkdir()
    os.mkfifo(tmp_path / file)
    with pytest.raises(IsADirectoryError, match=r"^'.*' is a folder: give the name of a file\.$"):
        write(learner, tmp_path / "folder" / file)
    with pytest.raises(OSError, match=r"^'.*' is no regular file: it would be replaced by one\.$"):
        write(learner, tmp_path / file)
    with pytest.raises(FileNotFoundError, match=r"^'.*' cannot be written: its folder does not exist\.$"):
        write(learner, tmp_path / "none" / file)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["folder", file, file])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no limit on the size of files")
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_earlier_files(learner, name, tmp_path):
    """The limit on the size of files stands for a full disk; children take it, as it cannot be raised."""
    write, file = WRITERS[name]
    write(learner, tmp_path / file)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    largest = max(len(content) for content in before.values())
    pid = os.fork()
    if not pid:
        import resource
        import signal

        done = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, largest - 1))
            try:
                write(learner, tmp_path / file)
            except OSError as error:
                done = 0 if f"{file.partition('.')[0]}" in str(error) and "cannot be wr" in str(error) else 2
        finally:
            os._exit(done)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", WRITERS)
def test_all_writers_keep_rights(learner, name, tmp_path):
    """Libraries that write a file may give it rights of their own."""
    write, file = WRITERS[name]
    (tmp_path / "new").touch()
    write(learner, tmp_path / file)
    rights = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert rights == {stat.S_IMODE((tmp_path / "new").stat().st_mode)}
    (tmp_path / file).chmod(0o604)
    write(learner, tmp_path / file)
    assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o604


def test_files_that_belong_together_are_replaced_together(tmp_path):
    _write(tmp_path, a="1", b="1")

    def fail(name):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"'.*b' cannot be written: No space left on device"):
        write_whole({tmp_path / "a": partial(_put, "2"), tmp_path / "b": fail})
    assert _read(tmp_path) == {"a": "1", "b": "1"}
    _write(tmp_path, a="2", b="2")
    assert _read(tmp_path) == {"a": "2", "b": "2"}


def test_the_description_is_away_while_the_others_are_replaced(tmp_path, monkeypatch):
    """A process that is killed between two files leaves none that describes another one."""
    _write(tmp_path, a="1", b="1", last="1")
    replace, seen = os.replace, []

    def watch(part, target):
        replace(part, target)
        seen.append(_read(tmp_path))

    monkeypatch.setattr(os, "replace", watch)
    _write(tmp_path, a="2", b="2", last="2")
    assert seen == [{"a": "2", "b": "1"}, {"a": "2", "b": "2"}, {"a": "2", "b": "2", "last": "2"}]


def test_names_may_be_as_long_as_the_file_system_takes(tmp_path):
    for name in ("f" * 255, "\u6f22" * 85):
        _write(tmp_path, **{name: "1"})
        assert (tmp_path / name).read_text() == "1"


def test_links_stay_links_and_rights_stay(tmp_path):
    _write(tmp_path, f="1")
    (tmp_path / "f").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "f")
    _write(tmp_path, link="2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f").read_text() == "2"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_new_files_have_the_rights_of_the_process(tmp_path):
    """The umask itself is never changed: threads that save at once would leave it at 0."""
    code = (
        "import os, sys, threading\n"
        "from pathlib import Path\n"
        "from onnxsgd import _files\n"
        "os.umask(0o027)\n"
        "os.umask = None\n"
        "_files.write_whole({Path(sys.argv[1]): lambda name: Path(name).write_text('1')})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], check=True)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_a_file_that_is_protected_is_not_replaced(tmp_path, monkeypatch):
    """The superuser may write everything, and has no rights to try."""
    _write(tmp_path, f="1")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(
        PermissionError, match=r"^'.*f' cannot be written: it is protected against writing\.$"
    ):
        _write(tmp_path, f="2")
    assert _read(tmp_path) == {"f": "1"}


#: A child that begins to write a file, tells so, and waits for a line before it ends the file.
SLOW = """
import sys
from pathlib import Path
from onnxsgd._files import write_whole
def fill(name):
    Path(name).write_text("half")
    print("begun", flush=True)
    sys.stdin.readline()
    Path(name).write_text("whole")
write_whole({Path(sys.argv[1]): fill})
"""


def _begin_to_write(path):
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "begun\n"
    return child


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked")
@pytest.mark.parametrize("name", WRITERS)
def test_parts_of_killed_processes_are_removed_and_those_of_others_stay(learner, name, tmp_path):
    """A part that stayed took the room of a file, for each process that was killed."""
    write, file = WRITERS[name]
    living, killed = _begin_to_write(tmp_path / file), _begin_to_write(tmp_path / file)
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.glob(".*.part"))) == 2
    write(learner, tmp_path / file)
    assert len(list(tmp_path.glob(".*.part"))) == 1
    living.communicate("\n")
    assert living.returncode == 0
    assert (tmp_path / file).read_text() == "whole"
    assert not list(tmp_path.glob(".*"))


def test_parts_of_other_threads_stay(tmp_path):
    """Locks of one process exclude each other too."""

    def fill(name):
        _write(tmp_path, b="2")
        Path(name).write_text("1")

    write_whole({tmp_path / "a": fill})
    assert _read(tmp_path) == {"a": "1", "b": "2"}


def test_files_of_similar_names_stay(tmp_path):
    """Only folders of the whole name are removed, and no link is followed."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "part").touch()
    link = tmp_path / f".a.{'0' * 32}.part"
    link.symlink_to(tmp_path / "kept")
    (tmp_path / ".a.part").mkdir()
    (tmp_path / f".a.{'1' * 32}.part").touch()
    _write(tmp_path, a="1")
    assert (tmp_path / "kept" / "part").exists()
    assert len(list(tmp_path.iterdir())) == 5
