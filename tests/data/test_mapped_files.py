"""Files of memory maps: what is read from them equals what the map shows."""

import errno
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

from onnxsgd.data import mapped_files
from onnxsgd.data.mapped_files import FileRows, with_files
from onnxsgd.data.row_tables import Converted, Selected

pytestmark = pytest.mark.skipif(not mapped_files._MAPS.exists(), reason="only Linux tells the files of maps")
N_ROWS, N_COLUMNS = 5000, 30
DATA = np.random.default_rng(0).normal(size=(N_ROWS, N_COLUMNS))
SLICES = [
    slice(0, 1),
    slice(3, 70),
    slice(0, N_ROWS),
    slice(N_ROWS - 3, N_ROWS + 10),
    slice(5, 5),
    slice(9, 4),
]


def as_map(folder, dtype=np.float32, order="C", mode="r"):
    np.save(folder / "X.npy", np.asarray(DATA.astype(dtype), order=order))
    return np.load(folder / "X.npy", mmap_mode=mode)


def assert_equal_rows(table, array):
    for rows in SLICES:
        np.testing.assert_array_equal(table[rows], array[rows], strict=True)


VIEWS = {
    "all": lambda array: array,
    "rows": lambda array: array[1001:],
    "columns": lambda array: array[:, 3:20],
    "every other row": lambda array: array[::2],
    "three axes": lambda array: array.reshape(len(array), 5, 6)[:, ::2],
    "vector": lambda array: array.reshape(-1),
    "plain": np.asarray,
}


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
@pytest.mark.parametrize("view", VIEWS)
def test_slices_are_those_of_the_map(view, dtype, mode, tmp_path):
    array = VIEWS[view](as_map(tmp_path, dtype, mode=mode))
    table = FileRows.of(array, 16)
    assert_equal_rows(table, array)
    table.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_are_read_one_by_one(dtype, tmp_path):
    array = as_map(tmp_path, dtype, "F")[:4000, 1:]
    table = FileRows.of(array, 2048)
    assert_equal_rows(table, array)
    table.close()


def test_rows_of_ascending_numbers_are_taken(tmp_path):
    array = as_map(tmp_path)
    table = FileRows.of(array, 16)
    for numbers in ([], [7], [5, 6, 9, 4000]):
        rows = np.array(numbers, np.uint32)
        np.testing.assert_array_equal(table[rows], array[rows])
    table.close()


def test_unaligned_rows_are_read(tmp_path):
    (tmp_path / "X.bin").write_bytes(b"odd" + DATA.tobytes())
    array = np.memmap(tmp_path / "X.bin", float, "r", 3, DATA.shape)
    table = FileRows.of(array, 16)
    np.testing.assert_array_equal(table[10:2000], DATA[10:2000])
    table.close()


def test_rows_that_were_written_to_the_map_are_read(tmp_path):
    array = as_map(tmp_path, mode="r+")
    table = FileRows.of(array, 16)
    array[100:200] = 7
    np.testing.assert_array_equal(table[90:210], array[90:210])
    table.close()


def test_bytes_that_were_read_already_are_taken_once(tmp_path):
    array = as_map(tmp_path)
    table = FileRows.of(array, 16)
    if not (reads := table.begin(slice(100, 200))):
        pytest.skip("the file system has no direct reads")
    ((file, place, size),) = reads
    assert is_direct(file)
    assert size == array[100:200].nbytes
    data = (tmp_path / "X.npy").read_bytes()[place : place + size]
    assert data == array[100:200].tobytes()
    other = np.arange(3000, dtype=np.float32)
    table.know(slice(100, 200), [other.view(np.uint8)])
    table.know(slice(300, 400), [None])
    np.testing.assert_array_equal(table[50:150], array[50:150])
    np.testing.assert_array_equal(table[300:400], array[300:400])
    np.testing.assert_array_equal(table[100:200].ravel(), other)
    np.testing.assert_array_equal(table[100:200], array[100:200])
    assert table.begin(slice(7, 7)) == []
    table.close()


def test_other_tables_have_no_file(tmp_path):
    array = as_map(tmp_path)
    for other in (
        DATA,
        DATA[::-1],
        array[::-1],
        array[:0],
        # a block would be read with ten times as many rows, and in parts of 64 bytes
        array[::10],
        as_map(tmp_path, order="F")[:, :16],
    ):
        assert FileRows.of(other, 16) is None


def test_writes_that_stay_in_memory_are_not_lost(tmp_path):
    array = as_map(tmp_path, mode="c")
    array[5] = 7
    assert FileRows.of(array, 16) is None


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_file_without_its_name_is_read_all_the_same(change, tmp_path):
    array = as_map(tmp_path)
    if change == "removed":
        (tmp_path / "X.npy").unlink()
    else:
        np.save(tmp_path / "Y.npy", DATA.astype(np.float32)[::-1])
        (tmp_path / "Y.npy").replace(tmp_path / "X.npy")
    table = FileRows.of(array, 16)
    assert_equal_rows(table, DATA.astype(np.float32))
    table.close()


def test_systems_that_do_not_tell_files_have_none(tmp_path, monkeypatch):
    array = as_map(tmp_path)
    monkeypatch.setattr(mapped_files, "_MAPS", tmp_path / "maps")
    assert FileRows.of(array, 16) is None


def test_no_file_can_be_opened(tmp_path, monkeypatch):
    """As where a process has as many open files as it may have."""
    array = as_map(tmp_path)

    def refuse(path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert FileRows.of(array, 16) is None


@pytest.mark.parametrize("name", [" a  b ", "\r\x0c\x1c\x85\u2028é", "a (deleted)"])
def test_names_of_any_characters_are_known(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    array = as_map(folder)
    table = FileRows.of(array, 16)
    assert_equal_rows(table, array)
    table.close()


def test_a_file_that_was_cut_is_an_error(tmp_path):
    array = as_map(tmp_path)
    table = FileRows.of(array, 16)
    os.truncate(tmp_path / "X.npy", 200_000)
    np.testing.assert_array_equal(table[:1000], DATA[:1000].astype(np.float32))
    with pytest.raises(OSError, match="shorter than its memory map.*X.npy"):
        table[1000:2000]
    table.close()


@pytest.fixture
def reads(monkeypatch):
    """Record how files are read, and let some reads fail."""
    called, failing, preadv = [], set(), os.preadv

    def read(descriptor, buffers, place):
        kind = "direct" if is_direct(descriptor) else "cache"
        called.append(kind)
        if kind in failing:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return preadv(descriptor, buffers, place)

    monkeypatch.setattr(os, "preadv", read)
    return called, failing


def is_direct(descriptor):
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    (flags,) = (int(line.split()[1], 8) for line in lines if line.startswith("flags"))
    return bool(flags & os.O_DIRECT)


def test_rows_are_read_past_the_cache(tmp_path, reads):
    table = FileRows.of(as_map(tmp_path), 16)
    if table._direct is None:
        pytest.skip("the file system has no direct reads")
    assert_equal_rows(table, DATA.astype(np.float32))
    assert reads[0] == 4 * ["direct"]
    table.close()


def test_what_cannot_be_read_so_is_read_through_the_cache(tmp_path, reads):
    reads[1].add("direct")
    table = FileRows.of(as_map(tmp_path), 16)
    assert_equal_rows(table, DATA.astype(np.float32))
    assert "cache" in reads[0]
    table.close()


def test_files_of_which_the_system_tells_nothing_are_read_through_the_cache(tmp_path, monkeypatch):
    """Of files of others, which may not be written to, it says that they are in the cache."""
    array = as_map(tmp_path)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(os, "access", lambda path, mode, **where: False)
    table = FileRows.of(array, 16)
    assert table._direct is None
    assert not table.is_cached(slice(0, 100))
    assert_equal_rows(table, DATA.astype(np.float32))
    table.close()


def test_files_that_cannot_be_opened_so_are_read_through_the_cache(tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not supported")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    table = FileRows.of(as_map(tmp_path), 16)
    assert table._direct is None
    assert_equal_rows(table, DATA.astype(np.float32))
    table.close()


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_cache_is_known(order, tmp_path):
    array = as_map(tmp_path, order=order)
    table = FileRows.of(array, 1024)
    if table._direct is None:
        pytest.skip("the file system has no direct reads")
    rows = slice(1024, 2048)
    assert array[rows].sum()
    assert table.is_cached(rows)
    # the system may keep pages for a while
    for _ in range(100):
        array._mmap.madvise(mmap.MADV_DONTNEED)
        forget(tmp_path / "X.npy")
        if not table.is_cached(rows):
            break
        time.sleep(0.05)
    else:
        pytest.fail("always in the cache")
    # to ask has read nothing
    assert not table.is_cached(rows)
    assert array[1024].sum()
    assert table.is_cached(rows)
    table.close()


def test_memory_that_is_no_map_is_not_in_the_cache(tmp_path):
    """As that of a map that was closed."""
    array = as_map(tmp_path)
    table = FileRows.of(array, 16)
    table._address = mmap.PAGESIZE
    assert not table.is_cached(slice(0, 10))
    table.close()


def forget(path):
    """Let the system drop a file from its cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_files_are_closed(tmp_path):
    array, before = as_map(tmp_path), set(os.listdir("/proc/self/fd"))
    table = FileRows.of(array, 16)
    assert set(os.listdir("/proc/self/fd")) > before
    table.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_computed_tables_read_from_the_file(tmp_path):
    array = as_map(tmp_path)
    numbers = np.arange(0, N_ROWS, 2, dtype=np.uint32)
    table = Converted(Selected(array, numbers), np.float64, repeats=2)
    from_file = with_files(table, 16)
    np.testing.assert_array_equal(from_file[100:200], table[100:200], strict=True)
    ((file, rows),) = from_file.sources(slice(100, 200))
    assert isinstance(file, FileRows)
    assert rows == slice(200, 399)
    file.close()
    assert table.source.source is array
    assert with_files(Converted(DATA, np.float32), 16) is None
    assert with_files(Selected(array, numbers[::2]), 16) is None


def test_columns_that_share_bytes_are_not_read_from_the_file(tmp_path):
    """Blocks of two columns would begin at the same byte."""
    np.save(tmp_path / "X.npy", np.zeros(9000, np.float32))
    series = np.load(tmp_path / "X.npy", mmap_mode="r")
    lagged = np.ndarray((6000, 3), np.float32, series, strides=(4, 4 * 1024))
    assert FileRows.of(lagged, 1024) is None
