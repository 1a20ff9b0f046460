"""``fit`` on iterables of batches."""

import inspect
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, schedules
from onnxsgd.exceptions import ConvergenceError, ParameterError

rng = np.random.RandomState(0)
X = rng.randn(120, 5)
Y = X @ [1.0, -2.0, 0.5, 0.0, 3.0] + 1 + 0.1 * rng.randn(120)
LABEL = np.array(["a", "b", "c"])[np.digitize(Y, [-1, 3])]
WEIGHT = rng.uniform(0.5, 2.0, 120)
NAMED = {"learning_rate": "invscaling", "eta0": 0.05, "max_iter": 4, "tol": None, "shuffle": False}


def cut(*arrays, size=30):
    return [tuple(array[i : i + size] for array in arrays) for i in range(0, len(arrays[0]), size)]


class Loader:
    """An iterable without a length that begins anew."""

    def __init__(self, batches):
        self.batches = batches
        self.n_passes = 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self.batches)


def fitted(source, **more):
    return OnnxSGDRegressor(random_state=0, **NAMED | more).fit(source)


@pytest.mark.parametrize("optimizer", [None, "adam"])
@pytest.mark.parametrize(
    "arrays", [(X, Y), (X, Y, WEIGHT), (X, np.c_[Y, -Y])], ids=["", "weights", "targets"]
)
def test_the_same_batches_give_the_same_weights(arrays, optimizer):
    """As ``fit`` makes them without shuffling; batches of 30 rows end with one of 20."""
    arrays = [array[:110] for array in arrays]
    ours = fitted(cut(*arrays), optimizer=optimizer)
    whole = OnnxSGDRegressor(random_state=0, batch_size=30, optimizer=optimizer, **NAMED).fit(*arrays)
    assert (ours.n_iter_, ours.t_) == (whole.n_iter_, whole.t_) == (4, 16)
    np.testing.assert_allclose(ours.coef_, whole.coef_, rtol=1e-5)
    np.testing.assert_allclose(ours.learning_rates_, whole.learning_rates_)
    if len(arrays) == 2:
        # with weights, epochs average by the weight of the batches
        np.testing.assert_allclose(ours.loss_curve_, whole.loss_curve_, rtol=1e-5)


def test_a_batch_is_a_part_of_a_stream():
    stream = OnnxSGDRegressor(random_state=0, **NAMED)
    for _ in range(4):
        for part in cut(X, Y):
            stream.partial_fit(*part)
    np.testing.assert_array_equal(fitted(cut(X, Y)).coef_, stream.coef_)


@pytest.mark.parametrize("size", [7, 30, 200])
def test_defaults(size):
    model = OnnxSGDRegressor(random_state=0).fit(Loader(cut(X, Y, size=size)))
    assert model.score(X, Y) > 0.99
    classes = OnnxSGDClassifier(random_state=0).fit(Loader(cut(X, LABEL, size=size)))
    assert classes.score(X, LABEL) > 0.9
    assert classes.t_ == classes.n_iter_ * -(-120 // size)


def test_a_network_learns_digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(X))
    train, test = order[:1300], order[1300:]
    model = LogisticRegression().fit(X[train[:100]], y[train[:100]])
    learner = OnnxSGDClassifier(model, random_state=0).fit(cut(X[train], y[train], size=32))
    assert learner.score(X[test], y[test]) > model.score(X[test], y[test]) + 0.03


@pytest.mark.parametrize("make", [
    lambda: [(pd.DataFrame(X), pd.Series(Y))], lambda: [{"x": X, "y": Y}], lambda: [[X.tolist(), Y.tolist()]],
    lambda: [(sparse.csr_array(X), Y)], lambda: iter([(X, Y)] * 4), lambda: Loader([(X.astype("f4"), Y)]),
])  # fmt: skip
def test_containers(make):
    source = make()
    source = (
        source if not isinstance(source, list) or isinstance(source[0], tuple | dict) else iter(source * 4)
    )
    more = (
        {} if not inspect.isgenerator(source) and not hasattr(source, "__next__") else {"steps_per_epoch": 1}
    )
    expected = OnnxSGDRegressor(random_state=0, batch_size=120, **NAMED).fit(X, Y)
    np.testing.assert_allclose(fitted(source, **more).coef_, expected.coef_, rtol=1e-4)


def test_data_loaders_of_torch():
    data = pytest.importorskip("torch.utils.data")
    import torch

    pairs = data.TensorDataset(torch.tensor(X), torch.tensor(Y, requires_grad=True))
    loader = data.DataLoader(pairs, batch_size=30)
    expected = fitted(cut(X, Y))
    np.testing.assert_array_equal(fitted(loader).coef_, expected.coef_)


def test_labels_are_collected_from_what_can_be_read_again():
    order = np.argsort(Y)
    loader = Loader(cut(X[order], LABEL[order]))
    model = OnnxSGDClassifier(random_state=0, max_iter=3, tol=None).fit(loader)
    assert model.classes_.tolist() == ["a", "b", "c"]
    # the labels, and three epochs
    assert loader.n_passes == 4
    with pytest.raises(ParameterError, match="classes must be passed.*an iterator, which is read once"):
        OnnxSGDClassifier().fit(iter(cut(X, LABEL)))
    named = OnnxSGDClassifier(random_state=0, classes=["c", "a", "b"], max_iter=1, tol=None)
    assert named.fit(iter(cut(X, LABEL))).n_iter_ == 1


def test_the_batches_of_a_named_size():
    whole = OnnxSGDRegressor(random_state=0, batch_size=10, **NAMED).fit(X, Y)
    assert fitted(cut(X, Y), batch_size=10).t_ == whole.t_ == 48
    np.testing.assert_allclose(fitted(cut(X, Y), batch_size=10).coef_, whole.coef_, rtol=1e-5)
    assert OnnxSGDRegressor(batch_size=10, max_iter=2, tol=None).fit(cut(X, Y)).t_ == 24


@pytest.mark.parametrize(("size", "n_joined"), [(10, 5), (50, 2)])
@pytest.mark.parametrize("arrays", [(X, Y), (X, Y, WEIGHT), (sparse.csr_array(X), Y)])
def test_gradients_of_several_batches(arrays, size, n_joined):
    """12 batches of 10 rows make three updates an epoch, the last one of two batches; also of 50 rows."""
    starts = range(0, 120, size)
    batches = [(arrays[0][i : i + size], *(a[i : i + size] for a in arrays[1:])) for i in starts]
    ours = fitted(batches, gradient_accumulation_steps=n_joined, learning_rate="cosine")
    n_rows = size * n_joined
    whole = OnnxSGDRegressor(random_state=0, batch_size=n_rows, **NAMED | {"learning_rate": "cosine"})
    whole.fit(*arrays)
    assert ours.t_ == whole.t_ == 4 * -(-120 // n_rows)
    np.testing.assert_allclose(ours.coef_, whole.coef_, rtol=1e-5)


@pytest.mark.parametrize("name", ["cosine", "polynomial"])
def test_schedules_with_a_length(name):
    whole = OnnxSGDRegressor(random_state=0, batch_size=30, **NAMED | {"learning_rate": name}).fit(X, Y)
    ours = fitted(cut(X, Y), learning_rate=name)
    np.testing.assert_allclose(ours.learning_rates_, whole.learning_rates_)
    ours = fitted(Loader(cut(X, Y)), learning_rate=name, steps_per_epoch=4)
    np.testing.assert_allclose(ours.learning_rates_, whole.learning_rates_)
    model = OnnxSGDRegressor(**NAMED | {"learning_rate": name})
    with pytest.raises(ParameterError, match="number of updates|n_updates"):
        model.fit(Loader(cut(X, Y)))
    assert not hasattr(model, "coef_")


def test_the_end_of_an_iterator():
    with pytest.warns(
        ConvergenceWarning, match="ended with epoch 2 of max_iter=1000: an iterator is read once"
    ):
        model = OnnxSGDRegressor(random_state=0, steps_per_epoch=3).fit(iter(cut(X, Y)))
    assert (model.n_iter_, model.t_, len(model.loss_curve_)) == (2, 4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OnnxSGDRegressor(max_iter=1, tol=None).fit(iter(cut(X, Y)))


def test_training_stops_where_the_loss_stops_falling():
    model = OnnxSGDRegressor(random_state=0).fit(cut(X, Y))
    assert 5 < model.n_iter_ < 300
    with pytest.warns(ConvergenceWarning, match="Maximum number of iteration"):
        OnnxSGDRegressor(random_state=0, max_iter=2).fit(cut(X, Y))


def test_validation_data():
    model = OnnxSGDRegressor(early_stopping=True, random_state=0)
    with pytest.raises(ParameterError, match="early_stopping=True needs X_val and y_val here"):
        model.fit(cut(X, Y))
    model.fit(cut(X[:90], Y[:90]), X_val=X[90:], y_val=Y[90:])
    assert len(model.validation_scores_) == model.n_iter_
    assert model.score(X[90:], Y[90:]) == pytest.approx(max(model.validation_scores_), abs=1e-6)


def test_records_of_epochs(capsys):
    model = fitted(cut(X, Y), record_update_norms=True, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"Epoch {i}/4" for i in range(1, 5)]
    whole = OnnxSGDRegressor(random_state=0, batch_size=30, record_update_norms=True, **NAMED).fit(X, Y)
    np.testing.assert_allclose(model.update_norms_, whole.update_norms_, rtol=1e-5)


def test_epochs_of_multipliers():
    """A frozen layer unfreezes with an epoch, not with a batch."""
    frozen = {"intercept": {"multiplier": 1.0, "from_epoch": 3}}
    whole = OnnxSGDRegressor(random_state=0, batch_size=30, learning_rate_multipliers=frozen, **NAMED)
    ours = fitted(cut(X, Y), learning_rate_multipliers=frozen)
    np.testing.assert_allclose(ours.coef_, whole.fit(X, Y).coef_, rtol=1e-5)
    assert fitted(cut(X, Y), learning_rate_multipliers=frozen, max_iter=2).intercept_ == 0


def test_continuation():
    model = fitted(cut(X, Y), warm_start=True)
    before = model.loss_curve_[-1]
    model.fit(cut(X, Y))
    assert model.loss_curve_[0] < before
    loaded = pickle.loads(pickle.dumps(model)).partial_fit(X, Y)
    np.testing.assert_array_equal(loaded.coef_, model.partial_fit(X, Y).coef_)
    assert clone(fitted(cut(X, Y), steps_per_epoch=2)).steps_per_epoch == 2


def test_a_fitted_network():
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(X, Y)
    model = OnnxSGDRegressor(network, random_state=0).fit(Loader(cut(X, Y)))
    assert model.score(X, Y) > 0.98 > network.score(X, Y)


@pytest.mark.parametrize(("arguments", "settings", "message"), [
    ({"X": X, "y": Y}, {"steps_per_epoch": 3}, "steps_per_epoch=3 counts the batches of an iterable"),
    ({"X": Loader(cut(X, Y)), "y": Y}, {}, r"of type Loader, an iterable of batches.*leave y out, fit\(X\)"),
    ({"X": cut(X, Y), "sample_weight": WEIGHT}, {}, "batches have their own"),
    ({"X": X}, {}, "requires y to be passed"),
    ({"X": []}, {}, "requires y to be passed"),
    ({"X": iter([])}, {}, "yields no batches"),
    ({"X": cut(X, Y)}, {"steps_per_epoch": 0}, "'steps_per_epoch' parameter"),
    ({"X": [(X, Y[:5])]}, {}, r"\[120, 5\]"),
])  # fmt: skip
def test_misuse(arguments, settings, message):
    model = OnnxSGDRegressor(**settings)
    with pytest.raises(ValueError, match=message):
        model.fit(**arguments)
    assert not hasattr(model, "n_iter_")
    assert not hasattr(model, "n_features_in_")


def test_balanced_classes_are_refused():
    with pytest.raises(ParameterError, match="not supported for partial_fit and for batches"):
        OnnxSGDClassifier(class_weight="balanced").fit(cut(X, LABEL))


def test_a_later_batch_that_does_not_fit():
    """The updates before it remain."""
    model = OnnxSGDRegressor(random_state=0, **NAMED)
    with pytest.raises(ValueError, match="4 features"):
        model.fit([*cut(X, Y), (X[:, :4], Y)])
    assert (model.n_iter_, model.t_, model.loss_curve_) == (0, 4, [])
    expected = OnnxSGDRegressor(random_state=0, batch_size=30, **NAMED | {"max_iter": 1}).fit(X, Y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)


@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()])
def test_an_interrupted_source(error):
    def source():
        yield from cut(X, Y) * 2
        yield cut(X, Y)[0]
        raise error

    model = OnnxSGDRegressor(random_state=0, steps_per_epoch=4, **NAMED)
    if isinstance(error, OSError):
        with pytest.raises(OSError, match="the disk is gone"):
            model.fit(source())
    else:
        with pytest.warns(UserWarning, match="interrupted by user"):
            model.fit(source())
    assert (model.n_iter_, model.t_, len(model.loss_curve_)) == (2, 9, 2)
    assert np.isfinite(model.predict(X)).all()


def test_divergence():
    model = OnnxSGDRegressor(
        random_state=0, **NAMED | {"learning_rate": "constant", "eta0": 1e3, "max_iter": 50}
    )
    with pytest.raises(ConvergenceError, match="no longer finite"):
        model.fit(cut(X, Y))
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize("place", [0, 3])
def test_a_refused_batch_is_numbered(place):
    batches = cut(X, Y)
    batches[place] = (X[:, :4], Y) if place else (X,)
    with pytest.raises(ValueError, match="parts|features") as caught:
        fitted(batches)
    if place:
        assert caught.value.__notes__ == [f"This was batch {place} of the epoch, counted from 0."]


@pytest.mark.parametrize("inner", ["adaptive", schedules.ReduceOnPlateau(0.05, patience=1)])
def test_a_reduced_rate_stays_in_later_calls(inner):
    """The schedule of epochs is the same one in the calls that continue it."""
    rates = {}
    for name in ("batches", "arrays"):
        model = OnnxSGDRegressor(
            learning_rate=schedules.ByEpoch(inner), random_state=0, max_iter=100, n_iter_no_change=1,
            shuffle=False, batch_size=30,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(cut(X, Y)) if name == "batches" else model.fit(X, Y)
        reduced = model.learning_rates_[-1]
        rates[name] = (reduced, model.partial_fit(X, Y).learning_rates_[-1])
    assert rates["batches"] == rates["arrays"]
    assert rates["batches"][1] == rates["batches"][0] < 0.01


def test_batches_of_other_sizes_reach_the_end_of_a_schedule():
    """The first epoch counts the updates: batches of 50 rows in updates of 20 end with a short one."""
    settings = NAMED | {"learning_rate": "cosine", "max_iter": 10}
    model = OnnxSGDRegressor(batch_size=20, random_state=0, **settings).fit(cut(X, Y, size=50))
    assert model.t_ == 10 * (3 + 3 + 1)
    assert model.learning_rates_[-1] < 0.001


def test_a_loader_of_unknown_length():
    class Unsized(Loader):
        def __len__(self):
            return len(iter(()))

    np.testing.assert_array_equal(fitted(Unsized(cut(X, Y))).coef_, fitted(cut(X, Y)).coef_)


def test_labels_of_an_endless_source():
    class Endless:
        def __iter__(self):
            while True:
                yield from cut(X, LABEL)

    model = OnnxSGDClassifier(random_state=0, steps_per_epoch=4, **NAMED).fit(Endless())
    assert (model.classes_.tolist(), model.t_) == (["a", "b", "c"], 16)


def test_arrays_that_a_loader_uses_again():
    def source():
        rows, targets = np.empty((30, 5)), np.empty(30)
        for part in cut(X, Y) * 4:
            rows[:], targets[:] = part
            yield rows, targets

    settings = {"gradient_accumulation_steps": 2, "steps_per_epoch": 4}
    found, expected = fitted(source(), **settings), fitted(iter(cut(X, Y) * 4), **settings)
    np.testing.assert_array_equal(found.coef_, expected.coef_)


def test_batches_in_which_nothing_counts_are_left_out():
    nothing = (X[:10], Y[:10], np.zeros(10))
    found = fitted([nothing, *cut(X, Y, WEIGHT), nothing])
    expected = fitted(cut(X, Y, WEIGHT))
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    assert found.loss_curve_ == expected.loss_curve_
    with pytest.raises(ParameterError, match="Nothing counts in the batches"):
        fitted([nothing])


@pytest.mark.filterwarnings("ignore:.*at most .*e-10 in these:sklearn.exceptions.ConvergenceWarning")
def test_the_objective_counts_weights_of_classes():
    order = np.argsort(Y)
    settings = NAMED | {"eta0": 1e-9, "class_weight": {"a": 10.0, "b": 1.0, "c": 0.0}}
    model = LogisticRegression().fit(X, LABEL)
    parts = OnnxSGDClassifier(model, random_state=0, **settings).fit(cut(X[order], LABEL[order], size=20))
    whole = OnnxSGDClassifier(model, random_state=0, batch_size=20, **settings).fit(X[order], LABEL[order])
    np.testing.assert_allclose(parts.loss_curve_, whole.loss_curve_, rtol=1e-6)


def test_dense_and_sparse_batches_together():
    batches = [(X[:60], Y[:60]), (sparse.csr_array(X[60:]), Y[60:])]
    found = fitted(batches, gradient_accumulation_steps=2)
    expected = OnnxSGDRegressor(random_state=0, batch_size=120, **NAMED).fit(X, Y)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-5)


# Iterables in partial_fit.


@pytest.mark.parametrize("make", [list, Loader, iter], ids=["list", "loader", "iterator"])
def test_batches_of_a_stream_are_calls(make):
    source = [
        (X[:30], LABEL[:30]),
        (X[30:90], LABEL[30:90], WEIGHT[30:90]),
        {"X": X[90:], "label": LABEL[90:]},
    ]
    stream = OnnxSGDClassifier(random_state=0)
    for _ in range(2):
        stream.partial_fit(X[:30], LABEL[:30], ["a", "b", "c"]).partial_fit(
            *source[1][:2], None, source[1][2]
        )
        stream.partial_fit(X[90:], LABEL[90:])
    learner = OnnxSGDClassifier(random_state=0)
    for _ in range(2):
        # what can be read again tells the labels
        learner.partial_fit(make(source), classes=["a", "b", "c"] if make is iter else None)
    np.testing.assert_array_equal(learner.coef_, stream.coef_)
    assert (learner.n_iter_, learner.t_) == (stream.n_iter_, stream.t_)


def test_an_iterator_is_read_in_several_calls():
    batches = iter(cut(X, Y))
    learner = OnnxSGDRegressor(random_state=0, steps_per_epoch=3)
    assert learner.partial_fit(batches).n_iter_ == 3
    assert learner.partial_fit(batches).n_iter_ == 4
    with pytest.raises(ParameterError, match="yields no batches"):
        learner.partial_fit(batches)
    assert learner.n_iter_ == 4


def test_batches_of_a_stream_without_weight_are_left_out():
    batches = [(X[:60], Y[:60], WEIGHT[:60]), (X[60:], Y[60:], np.zeros(60))]
    learner = OnnxSGDRegressor(random_state=0).partial_fit(batches)
    np.testing.assert_array_equal(
        learner.coef_, OnnxSGDRegressor(random_state=0).partial_fit(*batches[0]).coef_
    )


def test_a_batch_of_a_stream_that_does_not_fit():
    """Those before it remain."""
    learner = OnnxSGDRegressor(random_state=0)
    with pytest.raises(ValueError, match="4 features") as caught:
        learner.partial_fit([*cut(X, Y)[:2], (X[:, :4], Y)])
    assert caught.value.__notes__ == ["This was batch 2 of the call, counted from 0."]
    assert learner.n_iter_ == 2
    with pytest.raises(ParameterError, match="batches have their own"):
        learner.partial_fit(cut(X, Y), sample_weight=WEIGHT)
    with pytest.raises(ValueError, match="requires y to be passed"):
        learner.partial_fit(X)


class DataSet:
    """Rows that are cut by a method ``iter``, as those of Hugging Face are."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)

    def iter(self, batch_size):
        for start in range(0, len(self.rows), batch_size):
            part = self.rows[start : start + batch_size]
            yield {name: [row[name] for row in part] for name in part[0]}


@pytest.mark.parametrize("n_rows", [120, 110])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_data_set_of_batches_is_refused_with_advice(n_rows, method):
    """Of the same number of rows, and of others."""
    batches = [{"x": x.tolist(), "label": y.tolist()} for x, y in cut(X[:n_rows], LABEL[:n_rows])]
    model = OnnxSGDClassifier(classes=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"1d array|different lengths|3 axes") as caught:
        getattr(model, method)(DataSet(batches))
    assert "give the data set before its method batch()" in caught.value.__notes__[-1]


def test_a_refused_row_of_a_data_set_keeps_its_error():
    rows = [{"x": [1.0, float("nan")], "label": 0}, {"x": [1.0, 2.0], "label": 1}]
    with pytest.raises(ValueError, match="contains NaN") as caught:
        OnnxSGDClassifier().fit(DataSet(rows))
    assert not hasattr(caught.value, "__notes__")
