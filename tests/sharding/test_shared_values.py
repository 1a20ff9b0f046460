"""Values in files that processes share: copies, reuse, room, and the removal of folders."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from onnxsgd.sharding import shared_values
from onnxsgd.sharding.changes import Change
from onnxsgd.sharding.shared_values import SharedFolder, SharedValues


@pytest.fixture
def both(tmp_path):
    return SharedValues(str(tmp_path), "a"), SharedValues(str(tmp_path), "b")


def test_large_arrays_are_the_memory_of_a_file_and_small_values_are_sent(both, tmp_path):
    writer, reader = both
    large, small = np.arange(5000.0).reshape(50, 100), np.arange(3)
    stored = writer.store({"large": large, "order": np.asfortranarray(large), "small": small, "name": "x"})
    assert len(stored.spans) == 2
    assert len(stored.pickled) < 2000
    found = reader.load(stored)
    for key, expected in {"large": large, "order": large, "small": small}.items():
        np.testing.assert_array_equal(found[key], expected)
    assert found["order"].flags.f_contiguous
    with pytest.raises(ValueError, match="read-only"):
        found["large"][0] = 1
    assert writer.store([small, "x"]).file is None
    assert [path.name for path in tmp_path.iterdir()] == [stored.file]


def test_only_weights_and_changes_are_written_again(both):
    """Data and other values, parts of which a task may keep, would change under it."""
    writer, reader = both
    weights = {"w": np.ones(5000)}
    assert writer.store(weights).is_of_round
    assert writer.store(Change({("w", "gradient"): np.ones(5000)}, 1.0, 1.0)).is_of_round
    assert not writer.store([np.ones(5000)]).is_of_round
    first = writer.store(weights)
    assert reader.load(first)["w"][0] == 1
    writer.free(first.file)
    other_size = writer.store({"w": np.ones(6000)})
    again = writer.store({"w": np.full(5000, 2.0)})
    assert (again.file == first.file, other_size.file == first.file) == (True, False)
    assert reader.load(again)["w"].tolist() == [2.0] * 5000


def test_arrays_in_use_outlive_their_file(both, tmp_path):
    writer, reader = both
    stored = writer.store([np.arange(5000)])
    (found,) = reader.load(stored)
    writer.remove(stored.file)
    reader.forget([stored.file])
    assert not list(tmp_path.iterdir())
    assert found.sum() == 5000 * 4999 // 2
    with pytest.raises(FileNotFoundError):
        reader.load(stored)


def test_the_folder_is_one_with_room(tmp_path, monkeypatch):
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path))
    folder = SharedFolder(10)
    assert Path(folder.path).parent == tmp_path
    folder.remove()
    assert not list(tmp_path.iterdir())
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shared_values.shutil, "disk_usage", lambda place: free)
    with pytest.raises(OSError, match=r"need 1 MB .* 0 MB free in"):
        SharedFolder(1_000_000)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system reserves no memory")
def test_a_full_folder_is_an_error_and_no_end_of_the_process(both, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        both[0].store([np.zeros(5000)])


@pytest.mark.slow
def test_the_folder_of_a_killed_process_is_removed(tmp_path):
    script = (
        "import sys, time\nfrom onnxsgd.sharding.shared_values import SharedFolder\n"
        "folder = SharedFolder(10)\nprint(folder.path, flush=True)\ntime.sleep(60)"
    )
    environment = {**os.environ, "JOBLIB_TEMP_FOLDER": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        path = Path(process.stdout.readline().decode().strip())
        assert path.exists()
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not path.exists()
