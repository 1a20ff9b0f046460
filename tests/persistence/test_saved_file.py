"""Files of JSON and tensors: written whole or not at all, damage found."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from onnxsgd import _files
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.persistence import saved_file
from onnxsgd.persistence.saved_file import read_file, write_file


def whole(content, tensors):
    return content["a"], tensors["x"]


def test_contents_come_back(tmp_path):
    write_file(tmp_path / "f", {"a": [1, None, "ü"]}, {"x": np.arange(6.0).reshape(2, 3).T})
    a, x = read_file(tmp_path / "f", whole)
    assert a == [1, None, "ü"]
    np.testing.assert_array_equal(x, np.arange(6.0).reshape(2, 3).T)
    assert os.listdir(tmp_path) == ["f"]


def test_libraries_of_the_format_read_it(tmp_path):
    write_file(tmp_path / "f", {}, {"x": np.ones(3)})
    np.testing.assert_array_equal(safetensors.numpy.load_file(tmp_path / "f")["x"], np.ones(3))


def test_a_changed_number_is_found(tmp_path):
    write_file(tmp_path / "f", {"a": 1}, {"x": np.ones(3)})
    written = bytearray((tmp_path / "f").read_bytes())
    written[-1] ^= 1
    (tmp_path / "f").write_bytes(written)
    with pytest.raises(ParameterError, match="do not have the digest"):
        read_file(tmp_path / "f", whole)


@pytest.mark.parametrize("failing", ["save_file", "_sync", "replace"])
def test_the_last_file_stays_where_writing_fails(tmp_path, monkeypatch, failing):
    write_file(tmp_path / "f", {"a": 1}, {"x": np.ones(3)})

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    owner = {"save_file": safetensors.numpy, "_sync": _files, "replace": os}[failing]
    monkeypatch.setattr(owner, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "f", {"a": 2}, {"x": np.zeros(3)})
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["f"]
    assert read_file(tmp_path / "f", whole)[0] == 1


def test_a_full_disk_leaves_no_part(tmp_path):
    """The limit on the size of files stands for a full disk."""
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from onnxsgd.persistence.saved_file import write_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    write_file(sys.argv[1], {}, {'x': np.ones(100_000)})\n"
        "except OSError as error:\n"
        "    print('refused', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], capture_output=True, text=True)
    assert done.stdout.startswith("refused"), done.stderr
    assert os.listdir(tmp_path) == []


def test_paths_of_no_file_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"^'.*none/model.onnxsgd' cannot be written: its folder does not"
    ):
        write_file(tmp_path / "none" / "model.onnxsgd", {}, {})
    for path in (tmp_path, f"{tmp_path}/", str(tmp_path)):
        with pytest.raises(IsADirectoryError, match=r"^'.*' is a folder: give the name of a file\.$"):
            write_file(path, {}, {})
    assert list(tmp_path.parent.glob(".*.part")) == list(tmp_path.iterdir()) == []


def test_a_newer_format_names_its_version(tmp_path):
    header = {"format": saved_file.FORMAT + 1, "version": "9.9"}
    safetensors.numpy.save_file({}, tmp_path / "f", metadata={"onnxsgd": json.dumps(header)})
    with pytest.raises(ParameterError, match=r"has format 2, of onnxsgd 9\.9.*install that version"):
        read_file(tmp_path / "f", whole)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"\xff" * 100,
        b"\x02\0\0\0\0\0\0\0{}",
        safetensors.numpy.save({"x": np.ones(2)}),
        safetensors.numpy.save({}, metadata={"onnxsgd": "[" * 100_000}),
        safetensors.numpy.save({}, metadata={"onnxsgd": "{}"}),
        safetensors.numpy.save({}, metadata={"onnxsgd": '{"format": true, "version": ""}'}),
        safetensors.numpy.save({}, metadata={"onnxsgd": '{"format": 1, "version": "", "a": 1}'}),
    ],
    ids=range(9),
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ParameterError, match="is no file of est.save, or a damaged one"):
        read_file(tmp_path / "f", whole)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: None], ids=["folder", "pipe", "nothing"])
def test_what_is_no_file_is_refused_at_once(tmp_path, make):
    make(tmp_path / "f")
    with pytest.raises(FileNotFoundError, match="no regular file|does not exist"):
        read_file(tmp_path / "f", whole)


def test_a_file_that_may_not_be_read_is_no_missing_one():
    # folders of pytest are those of its user alone
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f")
        write_file(path, {"a": 1}, {"x": np.zeros(2)})
        path.chmod(0)
        Path(folder).chmod(0o755)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(PermissionError, match="Permission denied"):
                read_file(path, whole)
        finally:
            os.seteuid(user)


@pytest.mark.parametrize("path", [None, 0, b"f", [], "", "a\0b"], ids=repr)
def test_names_of_no_file_are_refused(path):
    with pytest.raises((ParameterError, ParameterTypeError), match="path"):
        write_file(path, {}, {})


#: A child that reads a file, which is made shorter, or replaced in its place, once its header is read.
CUT = """
import json, os, sys
from onnxsgd.persistence import saved_file
class Json:
    dumps = json.dumps
    @staticmethod
    def loads(text):
        os.truncate(sys.argv[1], int(sys.argv[2]))
        return json.loads(text)
saved_file.json = Json
try:
    saved_file.read_file(sys.argv[1], lambda content, tensors: None)
except saved_file.DamagedFileError as error:
    print(error)
"""


@pytest.mark.parametrize("size", [0, 5000])
def test_a_file_that_is_made_shorter_while_it_is_read_is_refused(tmp_path, size):
    """Its map ended the process, as `cp` over the file of a server that loads it again would."""
    write_file(tmp_path / "f", {}, {"a": np.ones(100_000)})
    done = subprocess.run(
        [sys.executable, "-c", CUT, tmp_path / "f", str(size)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "is no file of est.save, or a damaged one: " in done.stdout
