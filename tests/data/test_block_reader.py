"""Blocks of rows that are copied into memory."""

import os
from itertools import pairwise, product

import numpy as np
import pytest

from onnxsgd.data import block_reader, mapped_files
from onnxsgd.data.block_reader import BlockReader, BlockTable
from onnxsgd.data.disk_reads import DiskReads
from onnxsgd.data.mapped_files import FileRows
from onnxsgd.data.random_order import BlockOrder, Blocks
from onnxsgd.data.row_tables import Converted, RowTable, Selected

pytestmark = pytest.mark.skipif(not mapped_files._MAPS.exists(), reason="only Linux tells the files of maps")
N_ROWS = 1000
DATA = np.random.default_rng(0).normal(size=(N_ROWS, 3))


@pytest.fixture(autouse=True)
def cached(monkeypatch):
    """Let no file be in the cache of the system; return the list of booleans that are answered first."""
    answers = []
    monkeypatch.setattr(FileRows, "is_cached", lambda self, rows: answers.pop(0) if answers else False)
    return answers


def as_map(folder, order="C"):
    """Return a memory map of the data."""
    table = np.lib.format.open_memmap(folder / "X.npy", "w+", float, DATA.shape, fortran_order=order == "F")
    table[:] = DATA
    return table


class Counted(RowTable):
    """A table that counts the slices and the numbers of rows that are read from it."""

    def __init__(self, source):
        self.source, self.shape, self.dtype = source, source.shape, source.dtype
        # a table that reads from the file is a copy with the same lists
        self.slices, self.numbers = [], []

    def __getitem__(self, rows):
        if isinstance(rows, slice):
            self.slices.append(rows)
        else:
            self.numbers.extend(rows)
        return self.source[rows]


def taken(table, rows):
    out = np.full((*rows.shape, *table.shape[1:]), np.nan, table.dtype)
    table.take_into(rows, out)
    return out


@pytest.mark.parametrize(
    ("kind", "size"), [*product(["C", "converted", "selected"], [1, 16, 64]), ("F", 512)]
)
def test_rows_of_an_epoch_come_from_the_copies(kind, size, tmp_path):
    source = as_map(tmp_path, "F" if kind == "F" else "C")
    if kind == "converted":
        source = Converted(source, np.float32)
    elif kind == "selected":
        source = Selected(source, np.arange(0, N_ROWS, 2, dtype=np.uint32))
    counted = Counted(source)
    table, n_rows = BlockTable(counted), source.shape[0]
    expected = source[:]
    reader = BlockReader([table], size, 4)
    order = BlockOrder(n_rows, Blocks(size, 4), np.random.RandomState(0), reader)
    found = np.empty_like(expected)
    for start in range(0, n_rows, 4 * size):
        rows = order[start : start + 4 * size].astype(np.intp)
        found[rows] = taken(table, rows.reshape(-1, 1))[:, 0]
        assert (reader.places(rows) >= 0).all()
    reader.close()
    np.testing.assert_array_equal(found, expected)
    assert len(counted.numbers) == 0
    starts = sorted(rows.start for rows in counted.slices)
    assert starts == list(range(0, n_rows, size))


def test_rows_of_earlier_windows_come_from_the_table(tmp_path):
    counted = Counted(as_map(tmp_path))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 4)
    order = BlockOrder(N_ROWS, Blocks(8, 4), np.random.RandomState(0), reader)
    rows = order[0:256].astype(np.intp).reshape(32, 8)
    np.testing.assert_array_equal(taken(table, rows), DATA[rows])
    # of eight windows the last two are in memory
    assert len(counted.numbers) == 6 * 32
    np.testing.assert_array_equal(table[rows[0]], DATA[rows[0]])
    np.testing.assert_array_equal(table[5:9], DATA[5:9])
    # back to an earlier window
    rows = order[40:50].astype(np.intp)
    np.testing.assert_array_equal(taken(table, rows), DATA[rows])
    assert len(counted.numbers) == 6 * 32 + 8
    reader.close()
    assert table.blocks is None
    np.testing.assert_array_equal(taken(table, rows), DATA[rows])


@pytest.mark.parametrize("n_rows_of_update", [5, 31, 32])
def test_rows_of_updates_that_begin_in_the_window_before_are_in_memory(n_rows_of_update, tmp_path):
    """Each of them would else cost a read of the disk."""
    counted = Counted(as_map(tmp_path))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 4)
    order = BlockOrder(N_ROWS, Blocks(8, 4), np.random.RandomState(0), reader)
    ends = [*(np.arange(32, N_ROWS, 32) // n_rows_of_update * n_rows_of_update).tolist(), N_ROWS]
    for start, end in pairwise([0, *ends]):
        rows = order[start:end].astype(np.intp)
        np.testing.assert_array_equal(taken(table, rows), DATA[rows])
    assert counted.numbers == []
    reader.close()


def test_files_in_the_cache_are_not_copied(tmp_path, cached):
    counted = Counted(as_map(tmp_path))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 4)
    # one block of each window is asked for: of the third one it is missing
    cached += [True, True, False, True, True, True]
    order = BlockOrder(N_ROWS, Blocks(8, 4), np.random.RandomState(0), reader)
    for window in range(5):
        rows = order[32 * window : 32 * (window + 1)].astype(np.intp)
        np.testing.assert_array_equal(taken(table, rows), DATA[rows])
        assert len(counted.slices) == 4 * (window >= 2) or window == 1
        assert len(counted.numbers) == 32 * (window + 1 - (window >= 2))
    reader.close()


def test_tables_without_a_file_are_not_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_files, "_MAPS", tmp_path / "maps")
    counted = Counted(as_map(tmp_path))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 4)
    rows = BlockOrder(N_ROWS, Blocks(8, 4), np.random.RandomState(0), reader)[0:100].astype(np.intp)
    np.testing.assert_array_equal(taken(table, rows), DATA[rows])
    assert (len(counted.slices), len(counted.numbers)) == (0, 100)
    reader.close()


@pytest.mark.parametrize("failure", ["no system", "no reads"])
def test_blocks_are_read_one_by_one_where_they_cannot_be_read_together(failure, tmp_path, monkeypatch):
    if failure == "no system":
        monkeypatch.setattr(DiskReads, "opened", lambda most: None)
    else:
        monkeypatch.setattr(DiskReads, "finish", lambda reads: [None] * len(reads._requests))
    counted = Counted(as_map(tmp_path))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 16)
    rows = BlockOrder(N_ROWS, Blocks(8, 16), np.random.RandomState(0), reader)[0:128].astype(np.intp)
    np.testing.assert_array_equal(taken(table, rows), DATA[rows])
    assert counted.numbers == []
    reader.close()


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_next_window_is_read_while_one_is_taken(is_direct, tmp_path, monkeypatch):
    """By the disk, or by the system into its cache."""
    begun = []
    if is_direct:
        monkeypatch.setattr(DiskReads, "begin", lambda reads, wanted: begun.extend(wanted))
        monkeypatch.setattr(DiskReads, "finish", lambda reads: [None] * 16)
    else:
        monkeypatch.setattr(DiskReads, "opened", lambda most: None)
        monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: begun.append(arguments))
    source = as_map(tmp_path)
    reader = BlockReader([BlockTable(source)], 8, 16)
    begun.clear()
    order = BlockOrder(N_ROWS, Blocks(8, 16), np.random.RandomState(0), reader)
    order[0:1]
    places = [places - source.offset for _, places, *_ in begun]
    assert {size for _, _, size, *_ in begun} == {8 * 3 * 8}
    if not places:
        pytest.skip("the file system has no direct reads")
    # of the first window and of the second one, each in ascending order
    rows = np.sort(order[0:256].astype(np.intp).reshape(2, 128), axis=1)
    np.testing.assert_array_equal(places, rows[:, ::8].reshape(-1) * 3 * 8)
    reader.close()


@pytest.mark.parametrize("most", [1, 5, 1000])
def test_more_blocks_are_read_than_can_be_under_way(most, tmp_path, monkeypatch):
    """Their bytes are those of two tables, of other types."""
    monkeypatch.setattr(block_reader, "_MOST_READS", most)
    (tmp_path / "other").mkdir()
    tables = [BlockTable(as_map(tmp_path)), BlockTable(Converted(as_map(tmp_path / "other"), np.float32))]
    reader = BlockReader(tables, 8, 16)
    rows = BlockOrder(N_ROWS, Blocks(8, 16), np.random.RandomState(0), reader)[100:300].astype(np.intp)
    for table in tables:
        np.testing.assert_array_equal(taken(table, rows), DATA[rows].astype(table.dtype))
    reader.close()


def test_a_fork_takes_rows_from_the_map(tmp_path, monkeypatch):
    """The memory that the disk writes into is empty in it."""
    counted = Counted(as_map(tmp_path))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 16)
    order = BlockOrder(N_ROWS, Blocks(8, 16), np.random.RandomState(0), reader)
    rows = order[0:128].astype(np.intp)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    rows = order[128:256].astype(np.intp)
    np.testing.assert_array_equal(taken(table, rows), DATA[rows])
    assert len(counted.numbers) == 128
    monkeypatch.undo()
    reader.close()


def test_a_fork_while_blocks_are_copied_takes_rows_from_the_map(tmp_path, monkeypatch):
    """A handler of a signal may make it: the memory of the reads is empty in it."""
    finish = DiskReads.finish

    def finished(reads):
        found = finish(reads)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        return found

    counted = Counted(as_map(tmp_path))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 16)
    if reader._reads is None:
        pytest.skip("the system has no asynchronous reads")
    order = BlockOrder(N_ROWS, Blocks(8, 16), np.random.RandomState(0), reader)
    monkeypatch.setattr(DiskReads, "finish", finished)
    rows = order[0:128].astype(np.intp)
    np.testing.assert_array_equal(taken(table, rows), DATA[rows])
    assert len(counted.numbers) == 128
    monkeypatch.undo()
    reader.close()


def test_few_rows_of_a_file_are_not_copied(tmp_path):
    """Those between them would be read as well, into memory that nothing bounds."""
    counted = Counted(Selected(as_map(tmp_path), np.arange(0, N_ROWS, 3, dtype=np.uint32)))
    table = BlockTable(counted)
    reader = BlockReader([table], 8, 4)
    rows = BlockOrder(len(counted), Blocks(8, 4), np.random.RandomState(0), reader)[0:32].astype(np.intp)
    np.testing.assert_array_equal(taken(table, rows), DATA[::3][rows])
    assert len(counted.numbers) == 32
    reader.close()


def test_several_tables_are_read_together(tmp_path):
    (tmp_path / "other").mkdir()
    first, second = (
        BlockTable(as_map(tmp_path)),
        BlockTable(Converted(as_map(tmp_path / "other"), np.float32)),
    )
    blocks = Blocks.of([first, second, np.ones((N_ROWS, 2))], n_rows_of_update=1)
    assert blocks.tables == (first, second)
    reader = BlockReader(blocks.tables, 8, 4)
    rows = BlockOrder(N_ROWS, Blocks(8, 4), np.random.RandomState(0), reader)[64:96].astype(np.intp)
    np.testing.assert_array_equal(taken(first, rows), DATA[rows])
    np.testing.assert_array_equal(taken(second, rows), DATA[rows].astype(np.float32))
    reader.close()


def test_arrays_in_memory_are_not_copied(tmp_path):
    assert BlockTable.of(DATA) is DATA
    assert isinstance(BlockTable.of(as_map(tmp_path)), BlockTable)


class Failing(Counted):
    """A table that cannot be read after some rows."""

    def __getitem__(self, rows):
        if isinstance(rows, slice) and rows.start >= 64:
            raise OSError("the disk is gone")
        return super().__getitem__(rows)


def test_errors_of_reads_are_raised(tmp_path):
    reader = BlockReader([BlockTable(Failing(as_map(tmp_path)))], 8, 4)
    reader.begin(np.arange(4))
    reader.finish()
    reader.begin(np.arange(8, 12))
    with pytest.raises(OSError, match="the disk is gone"):
        reader.finish()
    reader.close()
