"""Advice on the pages of memory maps."""

import mmap

import numpy as np
import pytest

from onnxsgd.data import mapped_pages
from onnxsgd.data.mapped_pages import MappedRows

pytestmark = pytest.mark.skipif(not hasattr(mmap.mmap, "madvise"), reason="the system takes no advice")
N_ROWS, N_COLUMNS, OFFSET = 5000, 100, 128


@pytest.fixture
def advice(monkeypatch):
    """Record the advice, and give it."""
    given, call = [], mapped_pages._madvise()

    def advise(place, size, option):
        assert place % mmap.PAGESIZE == 0
        assert call(place, size, option) == 0
        given.append((option, place, size))

    monkeypatch.setattr(mapped_pages, "_madvise", lambda: advise)
    return given


@pytest.fixture
def mapped(tmp_path):
    path = tmp_path / "X"
    path.write_bytes(bytes(OFFSET + 400 * N_ROWS))
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def as_array(mapped, order="C"):
    """Return rows, or columns, in a map after a header."""
    return np.ndarray((N_ROWS, N_COLUMNS), np.float32, mapped, OFFSET, order=order)


def asked_bytes(advice):
    """Return the addresses of the bytes that were asked for."""
    parts = [np.arange(place, place + size) for option, place, size in advice if option == mmap.MADV_WILLNEED]
    return set(np.concatenate(parts).tolist())


def addresses(array):
    """Return the addresses of the bytes of an array."""
    first = array.__array_interface__["data"][0]
    rows = first + np.arange(array.shape[0]) * array.strides[0]
    return set(
        np.add.outer(np.add.outer(rows, np.arange(array.shape[1]) * array.strides[1]), range(4)).ravel()
    )


@pytest.mark.parametrize("part", [slice(0, 1), slice(0, 5000), slice(40, 3000), slice(4990, 6000)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_all_bytes_of_the_rows_are_asked_for(order, part, mapped, advice):
    array = as_array(mapped, order)
    rows = MappedRows.of(array, 1024)
    rows.ask(part)
    asked, wanted = asked_bytes(advice), addresses(array[part])
    assert asked >= wanted
    # no more than the pages that they begin in
    assert len(asked - wanted) <= len({place // mmap.PAGESIZE for place in asked}) * mmap.PAGESIZE
    assert all(size <= 1 << 17 for option, _, size in advice if option == mmap.MADV_WILLNEED)


def test_views_are_known(mapped, advice):
    array = as_array(mapped)[1000:, :50].view(np.ndarray)
    MappedRows.of(array, 1024).ask(slice(10, 20))
    asked, wanted = asked_bytes(advice), addresses(array[10:20])
    assert asked >= wanted
    assert min(asked) > min(wanted) - mmap.PAGESIZE
    assert max(asked) < max(wanted) + 400


def test_the_system_reads_no_neighbours_until_it_is_closed(mapped, advice):
    array = as_array(mapped)
    rows = MappedRows.of(array, 1024)
    ((option, place, size),) = advice
    assert (option, size) == (mmap.MADV_RANDOM, len(mapped))
    assert place == array.__array_interface__["data"][0] - OFFSET
    rows.close()
    assert advice[1:] == [(mmap.MADV_NORMAL, place, size)]


def test_others_are_left_alone(mapped, advice):
    array = as_array(mapped)
    for other in (array[::-1], np.ones((10, 2)), np.asfortranarray(np.ones((10, 2)))):
        assert MappedRows.of(other, 1024) is None
    # neighbours of 400 bytes, and of 4 kB
    assert MappedRows.of(as_array(mapped, "F"), 100) is None
    assert MappedRows.of(as_array(mapped, "F"), 1024) is not None
    assert len(advice) == 1


def test_no_advice_is_given_where_the_system_takes_none(mapped, monkeypatch):
    monkeypatch.setattr(mapped_pages, "_madvise", lambda: None)
    assert MappedRows.of(as_array(mapped), 1024) is None


def test_the_map_can_be_closed(mapped):
    array = as_array(mapped)
    rows = MappedRows.of(array, 1024)
    rows.ask(slice(0, 10))
    rows.close()
    del array, rows
    mapped.close()
    assert mapped.closed
