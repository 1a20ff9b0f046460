"""Direct reads of a disk that are begun together."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from onnxsgd.data import disk_reads
from onnxsgd.data.disk_reads import SECTOR, DiskReads, address, in_sectors

DATA = np.random.default_rng(0).integers(0, 256, 1_000_003, np.uint8)


@pytest.fixture
def reads():
    found = DiskReads.opened(64)
    if found is None:
        pytest.skip("the system has no asynchronous reads")
    yield found
    found.close()


@pytest.fixture
def file(tmp_path):
    (tmp_path / "data").write_bytes(DATA.tobytes())
    try:
        descriptor = os.open(tmp_path / "data", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("the file system has no direct reads")
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("count", [0, 1, 5, 64])
def test_bytes_of_any_places_are_read(count, reads, file):
    draw = np.random.default_rng(count)
    for _ in range(3):
        places = draw.integers(0, len(DATA) - 1, count).tolist()
        sizes = [int(draw.integers(1, min(200_000, len(DATA) - place) + 1)) for place in places]
        reads.begin([(file, place, size) for place, size in zip(places, sizes, strict=True)])
        found = reads.finish()
        assert len(found) == count
        for data, place, size in zip(found, places, sizes, strict=True):
            np.testing.assert_array_equal(data, DATA[place : place + size], strict=True)


def test_two_objects_read_at_the_same_time(reads, file):
    other = DiskReads.opened(64)
    reads.begin([(file, 5000, 100)])
    other.begin([(file, 70_000, 5000)])
    (first,), (second,) = reads.finish(), other.finish()
    np.testing.assert_array_equal(first, DATA[5000:5100])
    np.testing.assert_array_equal(second, DATA[70_000:75_000])
    other.close()


def test_reads_begin_after_those_that_nobody_waited_for(reads, file):
    for first in range(0, 200_000, 20_000):
        reads.begin([(file, first + 4000 * number, 4000) for number in range(5)])
    np.testing.assert_array_equal(np.concatenate(reads.finish()), DATA[180_000:200_000])
    assert reads._n_begun == 0


def test_the_end_of_a_file_is_read_and_no_more(reads, file):
    reads.begin([(file, len(DATA) - 10, 10), (file, len(DATA) - 10, 11), (file, 2 * len(DATA), 5)])
    last, beyond, after = reads.finish()
    np.testing.assert_array_equal(last, DATA[-10:])
    assert beyond is None
    assert after is None


def test_reads_that_fail_have_no_bytes(reads, file):
    closed = os.dup(file)
    os.close(closed)
    reads.begin([(file, 0, 10), (closed, 0, 10), (file, 4096, 10)])
    first, *others = reads.finish()
    np.testing.assert_array_equal(first, DATA[:10])
    assert others == [None, None]
    # what follows is read
    reads.begin([(file, 4096, 10)])
    np.testing.assert_array_equal(reads.finish()[0], DATA[4096:4106])


def test_reads_under_way_end_when_it_is_closed(file):
    reads = DiskReads.opened(64)
    if reads is None:
        pytest.skip("the system has no asynchronous reads")
    reads.begin([(file, 0, 900_000)])
    reads.close()
    memory = reads._memory.copy()
    np.testing.assert_array_equal(reads._memory, memory)


@pytest.fixture
def destroyed(monkeypatch):
    """Record the contexts that are given back."""
    found, call = [], disk_reads._system_call

    def recorded(name, *arguments):
        if name == "destroy":
            found.append((*arguments, call(name, *arguments)))
            return found[-1][1]
        return call(name, *arguments)

    monkeypatch.setattr(disk_reads, "_system_call", recorded)
    return found


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_context_is_given_back_once(is_closed, destroyed):
    """Its number may soon be that of another one."""
    reads = DiskReads.opened(64)
    if reads is None:
        pytest.skip("the system has no asynchronous reads")
    context = reads._context.value
    if is_closed:
        reads.close()
        reads.close()
    del reads
    assert destroyed == [(context, 0)]


def test_a_fork_gives_no_context_back(destroyed, monkeypatch):
    """Its number may be that of one that the fork made itself."""
    reads = DiskReads.opened(64)
    if reads is None:
        pytest.skip("the system has no asynchronous reads")
    context = reads._context.value
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        reads.close()
    assert destroyed == []
    assert disk_reads._system_call("destroy", context) == 0


def test_a_fork_reads_nothing(reads, file):
    child = os.fork()
    if not child:
        reads.begin([(file, 0, 10)])
        os._exit(reads.finish() != [None])
    assert os.waitpid(child, 0)[1] == 0


def test_systems_without_such_reads_have_none(monkeypatch):
    monkeypatch.setattr(disk_reads, "_system", lambda: (None, {}))
    assert DiskReads.opened(64) is None


def test_memory_begins_at_a_sector():
    for size in (1, 4096, 100_000):
        memory = in_sectors(size)
        assert (len(memory), address(memory) % SECTOR) == (size, 0)


def test_the_memory_of_reads_is_empty_in_a_fork():
    """A direct read may else end in the copy of a fork."""
    memory = in_sectors(10)
    memory[:] = 5
    child = os.fork()
    if not child:
        os._exit(int(memory.any()))
    assert os.waitpid(child, 0)[1] == 0
    assert memory.tolist() == 10 * [5]


def test_a_fork_does_not_wait_for_the_reads_of_its_process(reads, file, monkeypatch):
    reads.begin([(file, 0, 10)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        assert reads.finish() == [None]
    np.testing.assert_array_equal(reads.finish()[0], DATA[:10])


def test_too_little_memory_is_an_error_of_memory(monkeypatch):
    def refuse(*arguments, **named):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(disk_reads.mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="no memory of 5000 bytes for rows of a file"):
        in_sectors(5000)


def test_memory_has_huge_pages():
    """A disk writes into them twice as fast."""
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("the system has no huge pages")
    memory = in_sectors(5_000_000)
    parts = Path("/proc/self/smaps").read_text().split("VmFlags:")
    (flags,) = (
        after.split("\n", 1)[0].split()
        for before, after in pairwise(parts)
        if _is_of(before, address(memory))
    )
    assert "hg" in flags


def _is_of(part, place):
    """Tell whether a part of the table of the memory of a process has an address."""
    lines = [line for line in part.splitlines() if "-" in line.split(" ", 1)[0]]
    start, stop = (int(number, 16) for number in lines[-1].split(" ", 1)[0].split("-"))
    return start <= place < stop


def test_more_reads_than_can_be_under_way_are_read(file, monkeypatch):
    """The system takes some of them at a time."""
    reads, call, counts = DiskReads.opened(64), disk_reads._system_call, []
    if reads is None:
        pytest.skip("the system has no asynchronous reads")

    def some_at_a_time(name, *arguments):
        if name == "submit":
            context, count, pointers = arguments
            if reads._n_begun:
                return -1
            counts.append(count)
            return call(name, context, min(count, 7), pointers)
        return call(name, *arguments)

    monkeypatch.setattr(disk_reads, "_system_call", some_at_a_time)
    reads.begin([(file, 1000 * number, 900) for number in range(20)])
    for number, data in enumerate(reads.finish()):
        np.testing.assert_array_equal(data, DATA[1000 * number :][:900])
    assert counts == [20, 13, 6]
    reads.close()
