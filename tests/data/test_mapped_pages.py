"""Requests for pages of memory maps."""

import mmap
import sys

import numpy as np
import pytest

from onnxsgd.data.mapped_pages import ask_for_rows, count_reads

pytestmark = pytest.mark.skipif(not hasattr(mmap.mmap, "madvise"), reason="the system takes no advice")
N_ROWS, N_COLUMNS, OFFSET = 5000, 100, 128


class Recorded(mmap.mmap):
    """A map that records the bytes that it is asked for."""

    def madvise(self, option, start, length):
        assert option == mmap.MADV_WILLNEED
        assert start % mmap.PAGESIZE == 0
        super().madvise(option, start, length)
        asked.update(range(start, start + length))


asked = set()


@pytest.fixture
def rows(tmp_path):
    """Rows of 400 bytes in a map, after a header."""
    asked.clear()
    path = tmp_path / "X"
    path.write_bytes(bytes(OFFSET + 400 * N_ROWS))
    with path.open("rb") as file:
        mapped = Recorded(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.ndarray((N_ROWS, N_COLUMNS), np.float32, mapped, OFFSET)


@pytest.mark.parametrize("part", [slice(0, 1), slice(0, 5000), slice(40, 3000), slice(4990, 6000)])
def test_all_bytes_of_the_rows_are_asked_for(part, rows):
    ask_for_rows(rows, part)
    first, end = OFFSET + 400 * part.start, OFFSET + 400 * min(part.stop, N_ROWS)
    assert asked >= set(range(first, end))
    assert min(asked) > first - mmap.PAGESIZE
    # a request may reach into the next rows
    assert max(asked) < end + (1 << 17)


def test_views_are_known(rows):
    ask_for_rows(rows[1000:, :50].view(np.ndarray), slice(10, 20))
    assert asked >= set(range(OFFSET + 400 * 1010, OFFSET + 400 * 1019 + 200))
    assert min(asked) > OFFSET + 400 * 1010 - mmap.PAGESIZE


@pytest.mark.parametrize("part", [slice(5, 5), slice(6000, 7000)])
def test_no_rows_need_no_pages(part, rows):
    ask_for_rows(rows, part)
    assert not asked


def test_columns_and_arrays_in_memory_are_left_alone(rows):
    for array in (rows.T, rows[::-1], np.ones((10, 2)), np.asfortranarray(np.ones((10, 2)))):
        ask_for_rows(array, slice(0, 10))
    assert not asked


def test_the_map_can_be_closed(rows):
    ask_for_rows(rows, slice(0, 10))
    mapped = rows.base
    del rows
    # pytest keeps the fixture; a view of the request would be one more
    assert sys.getrefcount(mapped) <= 4


def test_reads_are_counted_upwards():
    before = count_reads()
    assert isinstance(before, int)
    assert count_reads() >= before
