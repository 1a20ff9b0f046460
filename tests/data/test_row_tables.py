import numpy as np
import pytest
from sklearn.base import clone
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.data import features, row_tables
from onnxsgd.data.row_tables import Converted, EncodedLabels, Selected, evenly, is_mapped, some_rows, taken
from onnxsgd.engine.step import batches
from onnxsgd.training.checkpoints import Checkpoints

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 4)) * [1, 3, 0.1, 10] + [0, 5, 0, -2]
SCORES = X @ [1.0, 0.2, -3.0, 0.1]
LABELS = np.digitize(SCORES, np.quantile(SCORES, [0.3, 0.7]))
TARGET = np.column_stack([SCORES, X[:, 0] - X[:, 3]])
WEIGHT = RNG.uniform(0.5, 2, 600)


@pytest.fixture
def few(monkeypatch):
    """Let few rows count as many, in several windows."""

    def begin():
        monkeypatch.setattr(row_tables, "MANY_ROWS", 100)
        monkeypatch.setattr(features, "_CONVERTED_BYTES", 0)
        monkeypatch.setattr(batches, "_WINDOW_ROWS", 150)

    return begin


def test_tables_are_the_arrays_that_they_stand_for():
    rows = np.array([3, 3, 500, 0], np.uint32)
    table = Converted(np.asfortranarray(X), np.float32)
    assert (table.shape, table.ndim, table.dtype, table.nbytes) == ((600, 4), 2, np.float32, 600 * 16)
    for part in (rows, slice(10, 20), np.arange(5, 9)):
        np.testing.assert_array_equal(table[part], X.astype(np.float32)[part])
        assert table[part].flags.c_contiguous
    chosen = Selected(table, np.arange(0, 600, 2, dtype=np.uint32))
    np.testing.assert_array_equal(chosen[10:14], X.astype(np.float32)[20:28:2])
    np.testing.assert_array_equal(np.asarray(chosen), X.astype(np.float32)[::2])
    np.testing.assert_array_equal(Converted(X, np.float64, 2)[:3], np.tile(X[:3], 2))


def test_labels_are_encoded_as_losses_take_them():
    columns = np.array([0, 2, -1, 1], np.int8)
    np.testing.assert_array_equal(
        EncodedLabels(columns, 3, -1.0, np.float64)[:], [[1, -1, -1], [-1, -1, 1], [-1, -1, -1], [-1, 1, -1]]
    )
    np.testing.assert_array_equal(EncodedLabels(columns, 1, 0.0, np.float32)[1:], [[0], [0], [1]])


def test_equal_weights_of_many_rows_take_no_memory():
    assert evenly(1.0, 1000).strides == (8,)
    assert evenly(1.0, row_tables.MANY_ROWS + 1).strides == (0,)


def test_some_rows_are_few_and_spread():
    table = Converted(np.broadcast_to(np.float32(0), (10_000_000, 10)), np.float32)
    part = np.arange(10_000_000)[some_rows([table])]
    assert len(part) * 40 <= row_tables._SAMPLE_BYTES
    assert part[-1] > 9_900_000
    assert some_rows([X]) == slice(None)


def test_maps_are_known_behind_views_and_tables(tmp_path):
    mapped = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (10, 2))
    assert is_mapped(np.asarray(mapped)[2:])
    assert is_mapped(Converted(np.asarray(mapped), np.float64))
    assert not is_mapped(X)


def test_neighbours_of_columns_are_read_as_a_slice():
    columns = np.asfortranarray(X)
    assert taken(columns, np.arange(4, 9)).base is columns
    np.testing.assert_array_equal(taken(columns, np.array([4, 6, 5])), X[[4, 6, 5]])


REGRESSOR = OnnxSGDRegressor(random_state=0, max_iter=4, tol=None)
CLASSIFIER = OnnxSGDClassifier(random_state=0, max_iter=4, tol=None)
NAMED = {"learning_rate": "invscaling", "eta0": 0.003}
FITS = {
    "named": (REGRESSOR, NAMED, TARGET[:, 0], None),
    "weighted": (REGRESSOR, NAMED, TARGET, WEIGHT),
    "single rows": (REGRESSOR, {**NAMED, "batch_size": 1}, TARGET[:, 0], WEIGHT),
    "in order": (REGRESSOR, {**NAMED, "shuffle": False, "batch_size": 7}, TARGET, None),
    "accumulated": (REGRESSOR, {**NAMED, "gradient_accumulation_steps": 3}, TARGET, WEIGHT),
    "adam": (REGRESSOR, {**NAMED, "optimizer": "adam", "average": True}, TARGET, None),
    "network": (
        CLASSIFIER,
        {**NAMED, "model": MLPClassifier(hidden_layer_sizes=5, max_iter=1, random_state=0)},
        LABELS,
        None,
    ),
    "labels": (CLASSIFIER, {**NAMED, "class_weight": "balanced"}, np.array(["a", "b", "c"])[LABELS], WEIGHT),
    "two labels": (CLASSIFIER, {**NAMED, "penalty": "l1"}, LABELS > 0, None),
    "auto": (REGRESSOR, {}, TARGET, WEIGHT),
    "auto classes": (CLASSIFIER, {}, np.array(["a", "b", "c"], object)[LABELS], None),
    "variances": (REGRESSOR, {**NAMED, "loss": "gaussian_nll"}, 1e-3 * TARGET[:, 0], None),
    "multipliers": (REGRESSOR, {**NAMED, "learning_rate_multipliers": {"coef": 0.5}}, TARGET[:, 0], None),
    "multilabel": (CLASSIFIER, {**NAMED}, (TARGET > 0).astype(int), None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", FITS)
def test_many_rows_make_the_same_fit(name, order, few, tmp_path):
    """Rows that are converted, encoded and weighted when they are taken, in windows of batches."""
    estimator, parameters, y, weight = FITS[name]
    if weight is not None:
        # weights of many rows are rounded to 32 bits
        weight = weight.astype(np.float32)
    data = np.lib.format.open_memmap(
        tmp_path / "X.npy", "w+", np.float64, X.shape, fortran_order=order == "F"
    )
    data[:] = X
    expected = clone(estimator).set_params(**parameters).fit(X, y, weight)
    few()
    found = clone(estimator).set_params(**parameters).fit(data, y, weight)
    assert found.t_ == expected.t_
    np.testing.assert_allclose(found.loss_curve_, expected.loss_curve_, rtol=1e-5)
    for key, array in expected.get_weights().items():
        np.testing.assert_allclose(found.get_weights()[key], array, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [REGRESSOR, CLASSIFIER])
def test_many_rows_are_held_out_without_a_copy(estimator, few):
    """The score is scikit-learn's, and the weights are those of a fit on the rows that are left."""
    y, weight = (TARGET, WEIGHT.astype(np.float32)) if estimator is REGRESSOR else (LABELS, None)
    few()
    found = clone(estimator).set_params(**NAMED, early_stopping=True, validation_fraction=0.3)
    rows = found_rows = None
    split = type(found)._split_rows

    def kept(self, target, random_state):
        nonlocal rows, found_rows
        rows, found_rows, share = split(self, target, random_state)
        return rows.copy(), found_rows, share

    type(found)._split_rows, seen = kept, type(found).__dict__.get("_split_rows")
    try:
        found.fit(X, y, weight)
    finally:
        del type(found)._split_rows
        assert seen is None
    assert len(found_rows) == 180
    np.testing.assert_array_equal(np.sort([*rows, *found_rows]), np.arange(600))
    of_validation = {} if weight is None else {"sample_weight": weight[found_rows]}
    last = clone(found).set_params(early_stopping=False, max_iter=1)
    last.fit(X[rows], y[rows])
    np.testing.assert_allclose(
        found.validation_scores_[int(np.argmax(found.validation_scores_))],
        found.score(X[found_rows], y[found_rows], **of_validation),
        rtol=1e-5,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [{"updates": 2}, {"updates": 4}])
@pytest.mark.parametrize("name", ["weighted", "accumulated", "auto"])
def test_epochs_in_windows_continue_bit_for_bit(name, every, few, tmp_path, monkeypatch):
    estimator, parameters, y, weight = FITS[name]
    few()
    whole = clone(estimator).set_params(**parameters, checkpoint=tmp_path / "whole", checkpoint_every=every)
    whole.fit(X, y, weight)
    write, places = Checkpoints._save, []

    def save(self, state, position):
        write(self, state, position)
        places.append(position and position["n_batches"])
        if len(places) % 2 == 0 and position is not None:
            raise RuntimeError("out of power")

    killed = clone(estimator).set_params(**parameters, checkpoint=tmp_path / "killed", checkpoint_every=every)
    n_kills = 0
    monkeypatch.setattr(Checkpoints, "_save", save)
    for _ in range(40):
        try:
            killed.fit(X, y, weight, resume=True)
            break
        except RuntimeError:
            n_kills += 1
    assert n_kills > 2
    assert 0 in places
    assert killed.loss_curve_ == whole.loss_curve_
    for key, array in whole.get_weights().items():
        np.testing.assert_array_equal(killed.get_weights()[key], array)


@pytest.mark.parametrize("place", [3, 599])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_numbers_of_large_arrays_are_finite(value, place, few):
    few()
    wrong = X.copy()
    wrong[place, 1] = value
    with pytest.raises(ValueError, match=r"NaN|infinity|too large"):
        clone(REGRESSOR).set_params(dtype="float32").fit(wrong, TARGET)
