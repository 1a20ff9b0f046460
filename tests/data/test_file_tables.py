"""Tables of files: the numbers of the file, in a temporary file that leaves nothing."""

import errno
import os
import tempfile

import numpy as np
import pytest
from scipy import sparse

from onnxsgd.data import file_tables
from onnxsgd.data.file_tables import is_file_table, read_file_table
from onnxsgd.data.row_tables import is_mapped
from onnxsgd.exceptions import ParameterError, ParameterTypeError

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
dataset = pytest.importorskip("pyarrow.dataset")

RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(300, 3))


class Stored:
    """An array of a file, as h5py and zarr have them: it is never asked for as a whole."""

    def __init__(self, array, chunks=None):
        self._array, self.chunks = array, chunks
        self.shape, self.dtype, self.largest = array.shape, array.dtype, 0

    def __getitem__(self, rows):
        found = self._array[rows]
        self.largest = max(self.largest, len(found))
        return found


def write(folder, **columns):
    path = folder / "x.parquet"
    pd.DataFrame(columns).to_parquet(path)
    return path


def read(X, y=None, weight=None, columns=None, *, is_regression=True):
    return read_file_table(X, y, weight, columns, is_regression=is_regression)


@pytest.mark.parametrize("X", ["x.csv", "", Stored(NUMBERS), dataset.dataset(pa.table({"a": [1]}))])
def test_files_are_known(X):
    assert is_file_table(X)


class Dask(Stored):
    def __dask_graph__(self):
        return {}


@pytest.mark.parametrize(
    "X",
    [NUMBERS, NUMBERS.tolist(), None, 3, b"x", sparse.csr_matrix(NUMBERS), pd.DataFrame(NUMBERS), {"a": 1},
     Dask(NUMBERS), Stored(np.array([["a"]]))],
    ids=lambda X: type(X).__name__,
)  # fmt: skip
def test_other_data_are_no_files(X):
    assert not is_file_table(X)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("f4", "f4"), ("f8", "f8"), (">f8", "f8"), ("f2", "f4"), ("u1", "f4"), ("i4", "f8"), ("?", "f4")],
)
def test_arrays_of_files_are_read_in_parts(dtype, stored, monkeypatch):
    monkeypatch.setattr(file_tables, "_BLOCK_BYTES", 64 * 3 * np.dtype(dtype).itemsize)
    source = Stored((NUMBERS * 100).astype(dtype))
    y = np.arange(300)
    X, *others = read(source, y)
    assert source.largest == 64
    assert (X.dtype, others) == (np.dtype(stored), [y, None])
    assert is_mapped(X)
    np.testing.assert_array_equal(X, source._array.astype(stored))
    with pytest.raises(ValueError, match="read-only"):
        X[0] = 0


@pytest.mark.parametrize(("chunks", "largest"), [((50, 3), 50), ((100, 1), 100), ((7, 3), 63), (((9,),), 64)])
def test_whole_chunks_are_read(chunks, largest, monkeypatch):
    monkeypatch.setattr(file_tables, "_BLOCK_BYTES", 64 * 24)
    source = Stored(NUMBERS, chunks)
    np.testing.assert_array_equal(read(source)[0], NUMBERS)
    assert source.largest == largest


def test_arrays_of_several_axes_keep_them():
    images = RNG.normal(size=(20, 3, 4, 5))
    np.testing.assert_array_equal(read(Stored(images))[0], images)


def test_columns_become_features_targets_and_weights(tmp_path):
    names, y = ["b", "a", "c"], RNG.integers(0, 2, 300)
    path = write(tmp_path, y=y, **dict(zip(names, NUMBERS.T, strict=True)), w=np.arange(300.0))
    X, target, weight = read(path, "y", "w")
    assert list(X.columns) == names
    np.testing.assert_array_equal(X, NUMBERS)
    assert is_mapped(np.asarray(X))
    np.testing.assert_array_equal(target, y)
    np.testing.assert_array_equal(weight, np.arange(300.0))
    X, target, weight = read(path, ["y", "w"], columns=["a"])
    np.testing.assert_array_equal(X, NUMBERS[:, 1:2])
    np.testing.assert_array_equal(target, np.column_stack([y, np.arange(300.0)]))
    assert weight is None
    for names in (np.array(["y", "w"]), pd.Index(["y", "w"])):
        np.testing.assert_array_equal(read(path, names)[1], target)
    # arrays are those of the caller
    given = np.arange(300)
    assert read(path, given, given)[1:] == (given, given)


def test_labels_are_no_names(tmp_path):
    labels = ["benign", "malignant", "benign"]
    X, y, _ = read(write(tmp_path, a=[1.0, 2.0, 3.0]), labels)
    assert (y, X.shape) == (labels, (3, 1))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array(["x", "yy", "x"]), object),
        (pd.Categorical(["x", "yy", "x"]), object),
        (np.array([3, 1, 3]), np.int64),
        (np.array([True, False, True]), bool),
        (np.array([0.5, np.nan, 1.5], np.float32), np.float32),
    ],
    ids=["texts", "categories", "integers", "booleans", "numbers"],
)
def test_targets_keep_their_values(values, dtype, tmp_path):
    _, y, _ = read(write(tmp_path, a=[1.0, 2.0, 3.0], y=values), "y", is_regression=False)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.asarray(values))


def test_missing_targets_are_nan_or_refused(tmp_path):
    path = write(tmp_path, a=[1.0, 2.0], t=["x", None], n=pd.array([1, None], "Int64"))
    assert np.isnan(read(path, "n", columns=["a"])[1][1])
    with pytest.raises(ParameterError, match="Column .t. of X has missing entries, and is no column"):
        read(path, "t", columns=["a"])


def test_the_index_of_a_frame_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": NUMBERS[:, 0], "b": NUMBERS[:, 1], "y": NUMBERS[:, 2]})
    for changed in (frame.sample(frac=1.0, random_state=0), frame.set_index("b"), frame):
        changed.to_parquet(tmp_path / "x.parquet")
        for source in (tmp_path / "x.parquet", dataset.dataset(tmp_path / "x.parquet")):
            X, y, _ = read(source, "y")
            pd.testing.assert_frame_equal(X, changed.drop(columns="y").reset_index(drop=True))
            np.testing.assert_array_equal(y, changed["y"])
    frame.set_index("b").to_parquet(tmp_path / "x.parquet")
    # by its name
    np.testing.assert_array_equal(read(tmp_path / "x.parquet", "b")[1], frame["b"])


@pytest.mark.parametrize("metadata", ["[]", '{"index_columns": null}', '{"index_columns": [{}, 3]}', "{}"])
def test_other_metadata_name_no_index(metadata):
    table = pa.table({"a": [1.0]}).replace_schema_metadata({"pandas": metadata})
    assert list(read(dataset.dataset(table))[0].columns) == ["a"]


def test_damaged_metadata_are_refused():
    table = pa.table({"a": [1.0]}).replace_schema_metadata({"pandas": "{no JSON"})
    with pytest.raises(ParameterError, match="X is not accepted: "):
        read(dataset.dataset(table))


def test_the_type_holds_the_numbers_of_all_files(tmp_path):
    for number, dtype in enumerate(["f4", "f8", "i8"]):
        pd.DataFrame({"a": np.array([1.7e9 + 1], dtype)}).to_parquet(tmp_path / f"{number}.parquet")
    X, *_ = read(tmp_path)
    assert X["a"].tolist() == [1.7e9, 1.7e9 + 1, 1.7e9 + 1]


def test_labels_of_several_types_are_refused(tmp_path):
    for number, y in enumerate([1, "x"]):
        pd.DataFrame({"a": [1.0], "y": [y]}).to_parquet(tmp_path / f"{number}.parquet")
    with pytest.raises(ParameterError, match="Column 'y' of X has numbers in some files and texts in others"):
        read(tmp_path, "y")


def test_features_are_stored_in_the_type_that_holds_them(tmp_path):
    small = {"a": NUMBERS[:, 0].astype("f4"), "b": np.arange(300, dtype="u1"), "c": NUMBERS[:, 0] > 0}
    assert read(write(tmp_path, **small))[0].dtypes.unique() == [np.float32]
    # 2^24 + 1 is no number of 32 bits
    X, *_ = read(write(tmp_path, **small, d=np.arange(300) + 2**24))
    assert X.dtypes.unique() == [np.float64]
    assert X["d"].iloc[1] == 2**24 + 1
    missing = pd.array([1, None, 3], "Int64")
    np.testing.assert_array_equal(read(write(tmp_path, a=missing))[0]["a"], [1, np.nan, 3])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"y": "z"},
            ParameterError,
            r"y is taken from the column 'z', and X has the columns \['a', 'y'",
        ),
        ({"y": ["y", "z"]}, ParameterError, "y is taken from the column 'z', and X has"),
        ({"y": np.array(["y", "z"])}, ParameterError, "y is taken from the column 'z', and X has"),
        ({"weight": "z"}, ParameterError, "sample_weight is taken from the column 'z'"),
        ({"columns": ["a", "z"]}, ParameterError, "X is taken from the column 'z'"),
        (
            {"y": ["a", "y", "t"]},
            ParameterError,
            r"X has .*, and no features beside \['a', 't', 'y'\]",
        ),
        ({"y": "y"}, ParameterTypeError, "X has the column 't' of type .*string, and features are numbers"),
    ],
)
def test_other_columns_are_refused(arguments, kind, message, tmp_path):
    path = write(tmp_path, a=[1.0, 2.0], y=[0, 1], t=["x", "y"])
    with pytest.raises(kind, match=message):
        read(path, **arguments)


def test_two_columns_of_one_name_are_refused():
    table = pa.table([[1.0], [2.0], [3.0]], ["a", "a", "b"])
    with pytest.raises(ParameterError, match="from the column 'a', and X has two columns of this name"):
        read(dataset.dataset(table))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Stored(NUMBERS), "y"), "y='y' names a column, and X is an array of a file, without names"),
        ((Stored(NUMBERS), None, "w"), "sample_weight='w' names a column"),
        ((Stored(np.array(1.0)),), r"X has shape \(\): it must have an axis of samples"),
        (("", "y"), "X is the path '', which names no file"),
    ],
)
def test_other_arguments_are_refused(arguments, message):
    with pytest.raises(ParameterError, match=message):
        read(*arguments)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty_tables_are_refused(shape):
    with pytest.raises(ParameterError, match="it must have one row and column at least"):
        read(Stored(np.zeros(shape)))


def test_an_error_of_the_file_names_the_argument():
    class Broken(Stored):
        def __getitem__(self, rows):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(ParameterError, match="X cannot be read as an array: OSError: .*Input/output error"):
        read(Broken(NUMBERS))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_nothing_is_left_of_the_temporary_file(folder):
    n_files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    X, *_ = read(Stored(NUMBERS))
    # also where the process is killed
    assert os.listdir(folder) == []
    del X
    assert n_files in (0, len(os.listdir("/proc/self/fd")))


def test_a_full_disk_is_one_error(folder, monkeypatch):
    class Full:
        def __init__(self, **_):
            self.n_bytes = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def tell(self):
            return 4096

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(OSError, match="do not fit .* after 4096 bytes: .*TMPDIR.*No space left") as caught:
        read(Stored(NUMBERS))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(folder)
