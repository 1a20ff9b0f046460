"""Random orders: of all rows, and of blocks of neighbours, in fits too."""

import pickle
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, load
from onnxsgd.data import features, random_order, row_tables
from onnxsgd.data.block_reader import BlockTable
from onnxsgd.data.generators import make_generator
from onnxsgd.data.mapped_files import FileRows
from onnxsgd.data.random_order import BlockOrder, Blocks, shuffled
from onnxsgd.data.row_tables import Converted
from onnxsgd.engine.step import batches
from onnxsgd.exceptions import ParameterError
from onnxsgd.training.checkpoints import Checkpoints


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 70_000, 300_000])
def test_each_number_is_drawn_once(n):
    order = shuffled((1, n), np.random.RandomState(0))[0]
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [50, 2000, 100_000, 300_000])
def test_orders_of_several_epochs_are_those_of_one_after_another(n):
    together, apart = np.random.RandomState(0), np.random.RandomState(0)
    orders = shuffled((3, n), together)
    for order in orders:
        np.testing.assert_array_equal(order, shuffled((1, n), apart)[0])


class FewKeys:
    """A generator that draws some keys again and again."""

    def __init__(self):
        self._random_state = np.random.RandomState(0)
        self._bit_generator = self

    def randint(self, low, high, size, dtype):
        return self._random_state.choice(np.array([0, 1, 1 << 16, (1 << 32) - 1], dtype), size)

    def random_raw(self, size):
        return self.randint(0, 1 << 32, size, np.uint64)


@pytest.mark.parametrize("n", [1, 2, 3, 50, 100, 101, 257, 799])
def test_a_short_order_follows_the_keys(n):
    keys = np.random.RandomState(0).randint(0, 1 << 32, n, np.uint32)
    order = shuffled((1, n), np.random.RandomState(0))[0]
    np.testing.assert_array_equal(order, np.lexsort((np.arange(n), keys)))


@pytest.mark.parametrize("n", [50, 257, 799])
def test_equal_keys_keep_their_order(n):
    keys = FewKeys().randint(0, 1 << 32, n, np.uint32)
    np.testing.assert_array_equal(shuffled((1, n), FewKeys())[0], np.lexsort((np.arange(n), keys)))


@pytest.mark.parametrize("n", [800, 1000, 70_000, (1 << 18) - 1, 1 << 18, 300_000])
def test_a_long_order_is_the_permutation_of_numpy(n):
    """In few bits as well."""
    order = shuffled((1, n), np.random.RandomState(0))[0]
    assert order.dtype == np.uint32
    np.testing.assert_array_equal(order, np.random.RandomState(0).permutation(n))


def test_every_order_is_as_likely():
    random_state = np.random.RandomState(0)
    drawn = [tuple(order) for order in shuffled((24_000, 4), random_state)]
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    # chi-squared with 23 degrees of freedom: 49.7 with a probability of 0.001
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7


def test_the_seed_decides():
    first, second, other = (shuffled((1, 50), np.random.RandomState(seed))[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


SIZES = [(1, 1, 1), (10, 3, 2), (9, 3, 2), (1000, 7, 4), (1000, 7, 1000), (5, 10, 3), (70_000, 64, 16)]


@pytest.mark.parametrize(("n", "size", "n_mixed"), SIZES)
def test_blocks_are_mixed_in_windows(n, size, n_mixed):
    """Each row is taken once, and a window has rows of so many blocks alone."""
    blocks = Blocks(size, n_mixed)
    order = BlockOrder(n, blocks, np.random.RandomState(0))
    rows = order[:]
    assert rows.dtype == np.uint32
    assert len(order) == len(rows) == n
    np.testing.assert_array_equal(np.sort(rows), np.arange(n))
    for first in range(0, n, size * n_mixed):
        assert len(np.unique(rows[first : first + size * n_mixed] // size)) <= n_mixed


@pytest.mark.parametrize(("n", "size", "n_mixed"), SIZES)
def test_parts_of_an_order_are_those_of_the_whole(n, size, n_mixed):
    order = BlockOrder(n, Blocks(size, n_mixed), np.random.RandomState(0))
    rows, draw = order[:], np.random.RandomState(1)
    for _ in range(20):
        first, end = np.sort(draw.randint(0, n + 1, 2))
        np.testing.assert_array_equal(order[first:end], rows[first:end])


def test_orders_of_blocks_follow_the_generator():
    random_state, again = np.random.RandomState(0), np.random.RandomState(0)
    blocks = Blocks(5, 4)
    first, second = (BlockOrder(200, blocks, random_state)[:] for _ in range(2))
    assert not np.array_equal(first, second)
    for expected in (first, second):
        np.testing.assert_array_equal(BlockOrder(200, blocks, again)[:], expected)


def test_every_order_of_one_window_is_as_likely():
    random_state = np.random.RandomState(0)
    drawn = [tuple(BlockOrder(4, Blocks(2, 2), random_state)[:]) for _ in range(12_000)]
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    # chi-squared with 23 degrees of freedom: 49.7 with a probability of 0.001
    assert ((counts - 500) ** 2 / 500).sum() < 49.7


def test_nothing_is_kept_for_each_row():
    n_rows = 200_000_000
    tracemalloc.start()
    order = BlockOrder(n_rows, Blocks(4096, 256), np.random.RandomState(0))
    for start in range(0, n_rows, n_rows // 5):
        assert len(order[start : start + 1000]) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000


@pytest.mark.parametrize(
    ("table", "n_rows", "n_mixed"),
    [
        (np.empty((10, 8), np.float32), 2048, 128),
        (np.empty((10, 784), np.float32), 32, 125),
        (np.empty((10, 784), np.float64), 16, 125),
        (np.empty((3, 200_000), np.float32), 1, 32),
        (np.empty((3, 100_000), np.float32), 1, 32),
        (np.empty((10, 3, 32, 32), np.float32), 8, 127),
        (np.empty(10, np.float32), 4096, 64),
        (np.empty((10, 1), np.uint8), 4096, 64),
        (sparse.random(1000, 5000, 0.01, "csr", np.float32, random_state=0), 256, 122),
    ],
)
def test_sizes_follow_the_tables(table, n_rows, n_mixed):
    found = Blocks.of([table, np.empty((10, 1), np.uint8)], n_rows_of_update=32)
    assert (found.n_rows, found.n_mixed) == (n_rows, n_mixed)
    assert found.n_window <= 1 << 18
    assert found.reader() is None
    # a window holds a batch
    assert Blocks.of([table], n_rows_of_update=10**6).n_window >= 10**6


@pytest.mark.parametrize(
    ("n_columns", "dtype", "n_rows", "n_mixed"),
    [
        (8, np.float32, 4096, 64),
        (32, np.float32, 4096, 24),
        (64, np.float32, 2048, 24),
        (64, np.float64, 1024, 24),
        (784, np.float32, 1024, 3),
        (784, np.float64, 512, 3),
        (1024, np.float16, 2048, 1),
        (1025, np.float32, 16, 128),
    ],
)
def test_blocks_of_columns_have_a_page_of_each(n_columns, dtype, n_rows, n_mixed, tmp_path):
    table = np.lib.format.open_memmap(tmp_path / "X", "w+", dtype, (5000, n_columns), fortran_order=True)
    found = Blocks.of([BlockTable(Converted(table, np.float32))], n_rows_of_update=32)
    assert (found.n_rows, found.n_mixed) == (n_rows, n_mixed)
    # only blocks of pages are read from the file
    read = FileRows.of(table, n_rows)
    assert (read is None) == (n_columns > 1024)
    if read is not None:
        read.close()


RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 4)) * [1, 3, 0.1, 10] + [0, 5, 0, -2]
SCORES = X @ [1.0, 0.2, -3.0, 0.1]
LABELS = np.array(["a", "b", "c"])[np.digitize(SCORES, np.quantile(SCORES, [0.3, 0.7]))]
WEIGHT = RNG.uniform(0.5, 2, 600).astype(np.float32)
NAMED = {"learning_rate": "invscaling", "eta0": 0.003}
SETTINGS = {
    "named": (OnnxSGDRegressor(**NAMED), SCORES, None),
    "weighted": (OnnxSGDRegressor(**NAMED, gradient_accumulation_steps=3), SCORES, WEIGHT),
    "averaged": (OnnxSGDClassifier(**NAMED, optimizer="adam", average=True), LABELS, None),
    "single rows": (OnnxSGDClassifier(**NAMED, batch_size=1, class_weight="balanced"), LABELS, WEIGHT),
    "network": (
        OnnxSGDClassifier(MLPClassifier(5, max_iter=1, random_state=0), **NAMED, dropout=None),
        LABELS,
        None,
    ),
    "auto": (OnnxSGDRegressor(), SCORES, WEIGHT),
}


@pytest.fixture
def small(monkeypatch):
    """Let blocks have 8 rows of four numbers of 32 bits, and windows 16 blocks."""
    monkeypatch.setattr(random_order, "_BLOCK_BYTES", 16 * 8)
    monkeypatch.setattr(random_order, "_MIXED_BLOCKS", 16)


@pytest.fixture
def many(monkeypatch):
    """Let few rows count as many, in several windows."""

    def begin():
        monkeypatch.setattr(row_tables, "MANY_ROWS", 100)
        monkeypatch.setattr(features, "_CONVERTED_BYTES", 0)
        monkeypatch.setattr(batches, "_WINDOW_ROWS", 150)

    return begin


def as_map(folder, dtype=np.float32, order="C"):
    """Return a memory map of the data."""
    data = np.lib.format.open_memmap(folder / "X.npy", "w+", dtype, X.shape, fortran_order=order == "F")
    data[:] = X
    return data


@pytest.mark.parametrize("name", ["named", "weighted", "averaged"])
def test_epochs_take_the_rows_in_that_order(name, small, many, tmp_path):
    """Three epochs are three calls of ``partial_fit`` on rows that are put into the orders."""
    estimator, y, weight = SETTINGS[name]
    many()
    parameters = {"random_state": 3, "max_iter": 3, "tol": None}
    found = clone(estimator).set_params(**parameters, shuffle="blocks").fit(as_map(tmp_path), y, weight)
    draw, expected = make_generator(3), clone(estimator).set_params(**parameters, shuffle=False)
    classes = {} if weight is not None or y is SCORES else {"classes": np.unique(y)}
    for _ in range(3):
        rows = BlockOrder(600, Blocks(8, 16), draw)[:]
        assert len(np.unique(rows[: 8 * 16] // 8)) <= 16
        part = None if weight is None else weight[rows]
        expected.partial_fit(X.astype(np.float32)[rows], y[rows], sample_weight=part, **classes)
    assert found.t_ == expected.t_
    for key, array in expected.get_weights().items():
        np.testing.assert_allclose(found.get_weights()[key], array, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["C", "F", "float64", "array"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_fits_do_not_depend_on_the_place_of_the_rows(
    is_cached, kind, name, small, many, tmp_path, monkeypatch
):
    """A fit on few rows in memory, and on many in a map, planned in windows, perhaps read from a disk."""
    if not is_cached:
        monkeypatch.setattr(FileRows, "is_cached", lambda self, rows: False)
    estimator, y, weight = SETTINGS[name]
    parameters = {"random_state": 0, "max_iter": 4, "tol": None, "shuffle": "blocks", "dtype": "float32"}
    expected = clone(estimator).set_params(**parameters).fit(X.astype(np.float32), y, weight)
    rows = {
        "C": lambda: as_map(tmp_path),
        "F": lambda: as_map(tmp_path, order="F"),
        "float64": lambda: as_map(tmp_path, np.float64),
        "array": lambda: X.astype(np.float32),
    }[kind]()
    many()
    # else its blocks have pages of columns, and others in memory
    monkeypatch.setattr(random_order, "column_pages", lambda table: (1, 0))
    found = clone(estimator).set_params(**parameters).fit(rows, y, weight)
    assert found.t_ == expected.t_
    np.testing.assert_allclose(found.loss_curve_, expected.loss_curve_, rtol=1e-4)
    for key, array in expected.get_weights().items():
        np.testing.assert_allclose(found.get_weights()[key], array, rtol=1e-3, atol=1e-4)
    again = clone(estimator).set_params(**parameters).fit(rows, y, weight)
    other = clone(estimator).set_params(**parameters | {"random_state": 1}).fit(rows, y, weight)
    assert again.loss_curve_ == found.loss_curve_
    assert other.loss_curve_ != found.loss_curve_


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shift", [0, 1.5])
@pytest.mark.parametrize("is_auto", [False, True])
def test_rows_of_sparse_data_are_shuffled_by_blocks(is_auto, shift, monkeypatch):
    """As those of the same numbers in an array, at a named rate."""
    table = np.where(RNG.random((600, 30)) < 0.2, RNG.normal(size=(600, 30)) + shift, 0).astype(np.float32)
    y = table[:, 0] - table[:, 3]
    monkeypatch.setattr(Blocks, "of", lambda tables, batch_size: Blocks(7, 4))
    parameters = {} if is_auto else {"learning_rate": "constant", "eta0": 0.01}
    fits = [
        OnnxSGDRegressor(random_state=0, max_iter=3, tol=None, shuffle=shuffle, **parameters).fit(data, y)
        for shuffle in ("blocks", True)
        for data in (sparse.csr_matrix(table), table)
    ]
    if not is_auto:
        np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(fits[0].coef_, fits[2].coef_)
    assert fits[0].score(table, y) > 0.9 * fits[2].score(table, y)


@pytest.mark.filterwarnings("ignore")
def test_rows_are_held_out_of_blocks(small, many, tmp_path, monkeypatch):
    many()
    monkeypatch.setattr(FileRows, "is_cached", lambda self, rows: False)
    model = OnnxSGDClassifier(
        random_state=0, max_iter=6, tol=None, shuffle="blocks", early_stopping=True, **NAMED
    )
    model.fit(as_map(tmp_path), LABELS)
    in_memory = clone(model).fit(X.astype(np.float32), LABELS)
    assert model.loss_curve_ == in_memory.loss_curve_
    assert len(model.validation_scores_) == 6
    assert model.validation_scores_[-1] > 0.5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [{"updates": 2}, {"updates": 3}, 1])
@pytest.mark.parametrize("name", ["weighted", "averaged", "auto"])
def test_fits_by_blocks_continue_bit_for_bit(name, every, small, many, tmp_path, monkeypatch):
    estimator, y, weight = SETTINGS[name]
    many()
    data = as_map(tmp_path)
    estimator = clone(estimator).set_params(
        random_state=0, max_iter=4, tol=None, shuffle="blocks", checkpoint_every=every
    )
    whole = clone(estimator).set_params(checkpoint=tmp_path / "whole").fit(data, y, weight)
    write, places = Checkpoints._save, []

    def save(self, state, position):
        write(self, state, position)
        places.append(position and position["n_batches"])
        if len(places) % 2 == 0 and (position is not None or every == 1):
            raise RuntimeError("out of power")

    killed, n_kills = clone(estimator).set_params(checkpoint=tmp_path / "killed"), 0
    monkeypatch.setattr(Checkpoints, "_save", save)
    for _ in range(80):
        try:
            killed.fit(data, y, weight, resume=True)
            break
        except RuntimeError:
            n_kills += 1
    assert n_kills > 1
    # an update of the others is as long as a window
    assert every == 1 or (0 in places and (name != "averaged" or any(places)))
    assert killed.loss_curve_ == whole.loss_curve_
    for key, array in whole.get_weights().items():
        np.testing.assert_array_equal(killed.get_weights()[key], array)


@pytest.mark.filterwarnings("ignore")
def test_a_file_sorted_by_class_is_learned(monkeypatch):
    """Its 8,000 rows are 250 blocks, 16 in a window: the guide states the scores of larger files."""
    monkeypatch.setattr(Blocks, "of", lambda tables, batch_size: Blocks(32, 16))
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], 4000)
    rows = rng.normal(size=(8000, 20)).astype(np.float32)
    rows[:, :5] += 0.4 * y[:, None]
    scores = {}
    for shuffle in (False, "blocks", True):
        model = OnnxSGDClassifier(
            learning_rate="constant", eta0=0.1, max_iter=1, tol=None, random_state=0, shuffle=shuffle
        )
        scores[shuffle] = model.fit(rows, y).score(rows, y)
    assert scores[False] < scores[True] - 0.08
    assert scores["blocks"] > scores[True] - 0.02


@pytest.mark.filterwarnings("ignore")
def test_the_parameter_is_one_of_scikit_learn(tmp_path):
    model = OnnxSGDClassifier(shuffle="blocks", random_state=0, max_iter=3, tol=None)
    assert clone(model).get_params()["shuffle"] == "blocks"
    model.fit(X, LABELS)
    model.save(tmp_path / "model")
    for copy in (pickle.loads(pickle.dumps(model)), load(tmp_path / "model")):
        assert copy.shuffle == "blocks"
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    search = GridSearchCV(model, {"shuffle": [True, False, "blocks"]}, cv=2, error_score="raise")
    assert len(search.fit(X, LABELS).cv_results_["params"]) == 3
    part = OnnxSGDClassifier(shuffle="blocks", random_state=0, **NAMED)
    part.partial_fit(X, LABELS, classes=np.unique(LABELS))
    once = OnnxSGDClassifier(shuffle="blocks", random_state=0, max_iter=1, tol=None, **NAMED).fit(X, LABELS)
    np.testing.assert_array_equal(part.coef_, once.coef_)


@pytest.mark.parametrize("value", ["block", "Blocks", "", None, 1, ["blocks"]])
def test_other_values_are_refused(value):
    with pytest.raises(ParameterError, match=r"'shuffle'.*blocks") as caught:
        OnnxSGDRegressor(shuffle=value).fit(X, SCORES)
    assert ("Did you mean 'blocks'?" in str(caught.value)) == (value in ("block", "Blocks"))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (([(X, SCORES)],), "is an iterable of batches"),
        (([X[:3], X[:5]], [0.0, 1.0]), "holds sequences of different lengths"),
    ],
)
def test_data_without_rows_are_refused(data, found):
    with pytest.raises(ParameterError, match=f"shuffle='blocks' takes the rows of tables.*{found}"):
        OnnxSGDRegressor(shuffle="blocks").fit(*data)
