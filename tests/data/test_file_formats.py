"""Files in batches of rows: all rows, in their order, in bounded memory."""

import os
import subprocess
import sys

import numpy as np
import pytest

from onnxsgd.data import file_formats
from onnxsgd.data.file_formats import DatasetRows, rows_of_path
from onnxsgd.exceptions import MissingRuntimeError, ParameterError

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
dataset = pytest.importorskip("pyarrow.dataset")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

N_ROWS = 700
TABLE = pa.table({"a": np.arange(N_ROWS), "b": np.linspace(0, 1, N_ROWS), "c": np.arange(N_ROWS) % 3})


def write(table, path):
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=300)
    elif path.suffix in (".arrow", ".feather"):
        feather.write_feather(table, path, chunksize=256)
    else:
        is_compressed, delimiter = path.suffix == ".gz", "\t" if ".tsv" in path.suffixes else ","
        with pa.CompressedOutputStream(str(path), "gzip") if is_compressed else path.open("wb") as file:
            csv.write_csv(table, file, csv.WriteOptions(delimiter=delimiter))
    return path


def read(rows, names=("c", "a")):
    """Return the columns, and the largest number of rows of a batch."""
    batches = list(rows.batches(names))
    columns = {name: np.concatenate([b.column(name).to_numpy() for b in batches]) for name in names}
    return columns, max(map(len, batches))


ENDS = [".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".arrow", ".feather"]


def test_every_format_has_a_file():
    assert set(file_formats._FORMATS) == set(ENDS)


@pytest.mark.parametrize("end", [*ENDS, ".PARQUET"])
def test_a_file_is_read_in_batches(end, tmp_path, monkeypatch):
    path = write(TABLE, tmp_path / f"x{end.lower()}")
    path = path.rename(tmp_path / f"x{end}")
    # 100 rows of two columns
    monkeypatch.setattr(file_formats, "_BATCH_BYTES", 1600)
    rows = rows_of_path(path, ["c"])
    assert rows.schema.names == ["a", "b", "c"]
    columns, most = read(rows)
    for name, column in columns.items():
        np.testing.assert_array_equal(column, TABLE[name])
    # a block of CSV has a megabyte
    assert most <= 100 or end[:4] in (".csv", ".tsv")


def test_files_of_a_folder_are_read_by_their_names(tmp_path):
    (tmp_path / "b").mkdir()
    for number, name in enumerate(["z.parquet", "a.parquet", "b/a.parquet"]):
        write(TABLE.slice(100 * number, 100), tmp_path / name)
    # left by other programs
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".a.crc").touch()
    columns, _ = read(rows_of_path(tmp_path, []))
    np.testing.assert_array_equal(columns["a"], [*range(100, 300), *range(100)])


@pytest.mark.parametrize("is_scanner", [False, True])
@pytest.mark.parametrize("end", [".parquet", ".csv"])
def test_datasets_and_scanners_are_read(end, is_scanner, tmp_path):
    source = dataset.dataset(write(TABLE, tmp_path / f"x{end}"), format=end[1:])
    if is_scanner:
        source = source.scanner(columns=["a", "c"], filter=dataset.field("a") < 600)
    rows = DatasetRows(source)
    assert rows.schema.names == ["a", "c"] if is_scanner else TABLE.schema.names
    columns, _ = read(rows)
    np.testing.assert_array_equal(columns["a"], np.arange(600 if is_scanner else N_ROWS))


def test_whole_numbers_of_csv_may_have_fractions_further_down(tmp_path):
    """pyarrow takes the types from the first megabyte."""
    path, n_rows = tmp_path / "x.csv", 300_000
    path.write_text("a,c,e\n" + "1,2,\n" * n_rows + "1.5,2,7\n")
    rows = rows_of_path(path, ["c"])
    assert rows.schema.types == [pa.float64(), pa.int64(), pa.float64()]
    last = list(rows.batches(["a", "c", "e"]))[-1]
    assert [last.column(name)[-1].as_py() for name in ("a", "c", "e")] == [1.5, 2, 7.0]
    with pytest.raises(ParameterError, match=r"The file '.*x.csv' of X cannot be read: In CSV column .*1\.5"):
        list(rows_of_path(path, ["a"]).batches(["a"]))


def test_a_column_that_a_later_file_lacks_is_named(tmp_path):
    write(TABLE, tmp_path / "1.parquet")
    write(TABLE.drop_columns("c"), tmp_path / "2.parquet")
    rows = rows_of_path(tmp_path, [])
    assert rows.types("a") == [pa.int64()] * 2
    with pytest.raises(ParameterError, match=r"2.parquet' of X lacks the column 'c', which '.*1.parquet'"):
        rows.types("c")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for number in range(3):
        write(TABLE, tmp_path / f"{number}.csv")
    (tmp_path / "1.csv").write_text("a,b,c\n1,2\n")
    rows = rows_of_path(tmp_path, [])
    with pytest.raises(ParameterError, match=r"The file '.*1.csv' of X cannot be read: CSV parse error"):
        list(rows.batches(["a"]))


def test_hidden_folders_are_left_out(tmp_path):
    for name in ("a.csv", ".ipynb_checkpoints/a.csv", "b/_temporary/a.csv", "b/c.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(TABLE, tmp_path / name)
    columns, _ = read(rows_of_path(tmp_path, []))
    assert len(columns["a"]) == 2 * N_ROWS


def test_partitions_in_names_of_folders_are_refused(tmp_path):
    (tmp_path / "day=1").mkdir()
    write(TABLE, tmp_path / "day=1" / "a.parquet")
    with pytest.raises(ParameterError, match=r"folders such as 'day=1' hold a column: .*partitioning='hive'"):
        rows_of_path(tmp_path, [])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are those of Unix")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(ParameterError, match="which is no file and no folder"):
        rows_of_path(tmp_path / "x.csv", [])


def test_labels_of_csv_that_look_like_times_are_texts(tmp_path):
    (tmp_path / "x.csv").write_text("a,y\n1,2020-01-01\n2,2020-02-01\n")
    assert rows_of_path(tmp_path / "x.csv", ["y"]).schema.types == [pa.float64(), pa.string()]


def test_labels_of_csv_without_a_text_are_missing(tmp_path):
    """They were a class of their own; in columns of numbers they are missing too."""
    (tmp_path / "x.csv").write_text("a,y,z\n1,yes,\n2,,u\n3,NA,v\n")
    rows = rows_of_path(tmp_path / "x.csv", ["y"])
    table = pa.Table.from_batches(rows.batches(["a", "y", "z"]))
    assert table["y"].to_pylist() == ["yes", None, "NA"]
    assert table["z"].to_pylist() == ["", "u", "v"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.parquet", "where there is no file and no folder"),
        (
            "x.xls",
            r"X is '.*x.xls': it must be a file, or a folder of files, of one of the formats",
        ),
        ("mixed", r"X is the folder '.*mixed' of files that end in \['.csv', '.parquet'\]"),
        ("empty", r"X is the folder '.*empty' of files that end in \[\]"),
        ("a\0b", "X is not accepted: embedded null byte|no file and no folder"),
        ("damaged.parquet", "The file '.*damaged.parquet' of X cannot be read: .*[Pp]arquet"),
    ],
)
def test_other_paths_are_refused(name, message, tmp_path):
    for folder in ("mixed", "empty"):
        (tmp_path / folder).mkdir()
    for file in ("x.xls", "mixed/a.csv", "mixed/a.parquet"):
        (tmp_path / file).touch()
    (tmp_path / "damaged.parquet").write_bytes(b"nothing of this kind")
    with pytest.raises(ParameterError, match=message):
        rows_of_path(tmp_path / name, [])


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    path = write(TABLE, tmp_path / "x.csv")
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    with pytest.raises(MissingRuntimeError, match=r"by pyarrow and pandas .*pip install 'onnxsgd\[files\]'"):
        rows_of_path(path, [])


#: A child that reads a file of 200 MB; prints the growth of its memory.
_READ = """
import sys
from pathlib import Path
from onnxsgd.data.file_formats import arrow, rows_of_path

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024

arrow()
before = peak()
rows = rows_of_path(Path(sys.argv[1]), [])
n_rows = sum(len(batch) for batch in rows.batches(rows.schema.names))
print(n_rows, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is that of Linux")
@pytest.mark.parametrize("end", [".parquet", ".csv", ".feather"])
def test_large_files_are_read_in_little_memory(end, tmp_path):
    rng, names = np.random.default_rng(0), [f"c{number}" for number in range(50)]
    path, n_rows = tmp_path / f"x{end}", 500_000
    table = pa.table([rng.normal(size=n_rows) for _ in names], names)
    if end == ".parquet":
        parquet.write_table(table, path, row_group_size=20_000)
    else:
        write(table, path)
    del table
    found = subprocess.run([sys.executable, "-c", _READ, path], capture_output=True, text=True, check=True)
    n_read, growth = found.stdout.split()
    assert int(n_read) == n_rows
    # a Feather file is mapped: its pages count
    assert float(growth) < (path.stat().st_size / 2**20 + 64 if end == ".feather" else 128)
