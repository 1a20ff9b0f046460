"""Fits on shards against fits of the same rows in one array, over an engine in this process."""

import pickle
import sys
import warnings
from copy import copy

import numpy as np
import pytest
from scipy import sparse
from serial_executor import SerialExecutor, pieces_of
from sklearn.datasets import load_diabetes, load_digits, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, load, losses, schedules
from onnxsgd.data.generators import make_generator
from onnxsgd.data.held_out import hold_out_rows
from onnxsgd.distributed import fit_shards
from onnxsgd.distributed.fit_shards import ShardedClassifier
from onnxsgd.engine.step.batches import Batches
from onnxsgd.estimators.sharded_fit import ShardedData
from onnxsgd.exceptions import ConvergenceError, ParameterError, UnsupportedError
from onnxsgd.sharding.rounds import OuterStep
from onnxsgd.sharding.shard_tasks import Shard
from onnxsgd.training import coordinates

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)[:600]
Y = Y[:600]
X_REAL, Y_REAL = load_diabetes(return_X_y=True)
Y_REAL = (Y_REAL - Y_REAL.mean()) / Y_REAL.std()
WEIGHT = np.random.RandomState(0).randint(0, 4, len(Y)).astype(float)
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 3, "tol": None, "random_state": 0}


def fit(kind, data, sync_every=1, n_shards=None, executor=None, pieces_val=None, **params):
    return fit_again(kind(**params), data, sync_every, executor, n_shards=n_shards, pieces_val=pieces_val)


def fit_again(estimator, data, sync_every=1, executor=None, **options):
    executor = executor or SerialExecutor()
    return fit_shards(
        estimator, [executor.source(part) for part in data], executor, sync_every=sync_every, **options
    )


def fit_part(estimator, data, sync_every, classes=None):
    """Make one epoch on pieces, as ``partial_fit`` of the classes for Dask does."""
    executor = SerialExecutor()
    data = ShardedData(executor, tuple(executor.source(part) for part in data), sync_every=sync_every)
    estimator._partial_fit(data, data, None, classes)


def distance(first, second):
    """Return the largest difference of weights, in units of the largest weight of each tensor."""
    a, b = first.get_weights(), second.get_weights()
    assert a.keys() == b.keys()
    return max(np.abs(a[name] - b[name]).max() / np.abs(a[name]).max() for name in a)


MLP = MLPClassifier((12,), max_iter=1, random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    MLP.fit(X, Y)


#: Settings whose updates are those of one machine.
SETTINGS = {
    "sgd": NAMED,
    "momentum": {**NAMED, "momentum": 0.9, "nesterov": True},
    "adam": {**NAMED, "optimizer": "adam", "eta0": 1e-3},
    "adamw": {**NAMED, "optimizer": "adamw", "eta0": 1e-3},
    "rmsprop": {**NAMED, "optimizer": "rmsprop", "eta0": 1e-3},
    "lion": {**NAMED, "optimizer": "lion", "eta0": 1e-4},
    "invscaling": {**NAMED, "learning_rate": "invscaling", "eta0": 0.1},
    "cosine": {**NAMED, "learning_rate": schedules.Cosine(), "eta0": None},
    "l1 through zero": {**NAMED, "penalty": "l1", "alpha": 0.01},
    "elastic net": {**NAMED, "penalty": "elasticnet", "alpha": 0.01, "l1_ratio": 0.5},
    "average": {**NAMED, "average": 5},
    "clipped": {**NAMED, "max_grad_norm": 0.1},
    "clipped values": {**NAMED, "max_grad_value": 0.01, "optimizer": "adam", "eta0": 1e-3},
    "accumulated": {**NAMED, "gradient_accumulation_steps": 4, "batch_size": 16},
    "single rows": {**NAMED, "batch_size": 1, "max_iter": 1},
    "all rows": {**NAMED, "batch_size": 600},
    "not shuffled": {**NAMED, "shuffle": False},
    "frozen layers": {**NAMED, "learning_rate_multipliers": {"coef*": 0.5}},
    "balanced": {**NAMED, "class_weight": "balanced"},
    "auto": {"random_state": 0, "max_iter": 12},
    "auto, l1": {"random_state": 0, "max_iter": 12, "penalty": "l1", "alpha": 1e-3},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weights"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_averaged_gradients_make_the_updates_of_one_machine(name, weight):
    params = {"loss": "log_loss", **SETTINGS[name]}
    if name == "frozen layers":
        params["model"] = MLP
    one = OnnxSGDClassifier(**params).fit(X, Y, weight)
    many = fit(OnnxSGDClassifier, pieces_of(X, Y, weight), **params)
    assert distance(one, many) < 2e-5
    assert many.t_ == one.t_
    np.testing.assert_allclose(many.loss_curve_, one.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize(
    "params",
    [
        {**NAMED},
        {**NAMED, "model": None, "loss": "huber", "epsilon": 0.5},
        {**NAMED, "loss": "gaussian_nll", "eta0": 0.01},
        {"max_iter": 12, "random_state": 0},
        {"max_iter": 12, "random_state": 0, "loss": "poisson"},
        {**NAMED, "dtype": "float64"},
    ],
    ids=["named", "huber", "gaussian_nll", "auto", "poisson", "float64"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_averaged_gradients_of_regressions(params):
    y = np.exp(Y_REAL) if params.get("loss") == "poisson" else Y_REAL
    one = OnnxSGDRegressor(**params).fit(X_REAL, y)
    many = fit(OnnxSGDRegressor, pieces_of(X_REAL, y), **params)
    assert distance(one, many) < (1e-10 if "dtype" in params else 2e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_networks_and_pipelines():
    for model in (MLP, make_pipeline(StandardScaler(), LogisticRegression(max_iter=20)).fit(X, Y)):
        params = {"model": model, **NAMED, "optimizer": "adam", "eta0": 1e-3}
        one = OnnxSGDClassifier(**params).fit(X, Y)
        assert distance(one, fit(OnnxSGDClassifier, pieces_of(X, Y), **params)) < 2e-5


@pytest.fixture
def plain_means(monkeypatch):
    """Let the outer step be the mean also at named rates."""
    monkeypatch.setattr(OuterStep, "of", classmethod(lambda cls, *_: cls()))


LONG = {"learning_rate": "constant", "eta0": 0.02, "max_iter": 40, "tol": None, "random_state": 0}


@pytest.mark.filterwarnings("ignore:sync_every=4 leaves")
@pytest.mark.parametrize("sync_every", [1, 4])
def test_results_depend_on_the_shards_alone(sync_every):
    """The same bits in a second fit, with everything in the cache."""
    runs = [fit(OnnxSGDClassifier, pieces_of(X, Y), sync_every, **FEW, model=MLP) for _ in range(2)]
    first, second = (run.get_weights() for run in runs)
    assert all((first[name] == second[name]).all() for name in first)


FEW = {**LONG, "max_iter": 9}


@pytest.mark.parametrize("name", ["momentum", "adam", "l1 through zero", "average", "invscaling", "cosine"])
@pytest.mark.usefixtures("plain_means")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_updates_of_one_shard_are_those_of_one_machine(name):
    """Weights, states, counts and numbers travel: nothing of the state is lost between rounds."""
    params = {**SETTINGS[name], "shuffle": False}
    one = OnnxSGDClassifier(**params).fit(X, Y)
    many = fit(OnnxSGDClassifier, [(X, Y, None)], 3, **params)
    assert distance(one, many) < 2e-5
    np.testing.assert_allclose(many.loss_curve_, one.loss_curve_, rtol=1e-5)
    assert many.t_ == one.t_


@pytest.mark.usefixtures("plain_means")
def test_shards_of_the_same_rows_make_the_updates_of_one():
    one = fit(OnnxSGDClassifier, [(X, Y, None)], 4, **{**LONG, "shuffle": False})
    twice = fit(OnnxSGDClassifier, [(X, Y, None)] * 2, 4, **{**LONG, "shuffle": False})
    assert distance(one, twice) < 1e-5


@pytest.mark.usefixtures("plain_means")
def test_the_mean_counts_each_shard_by_its_weight():
    """One round of one update a shard: the mean of updates of plain SGD, by hand."""
    params = {**NAMED, "max_iter": 1, "alpha": 0.0, "batch_size": 400, "shuffle": False}
    weight = np.where(np.arange(len(X_REAL)) < 100, 3.0, 1.0)
    with pytest.warns(ConvergenceWarning, match="fewer than 40 rounds"):
        many = fit(OnnxSGDRegressor, pieces_of(X_REAL, Y_REAL, weight, (100,)), 2, **params)
    steps, shares = [], []
    for rows in (slice(0, 100), slice(100, None)):
        x, y = X_REAL[rows], Y_REAL[rows]
        steps.append(0.05 * (x * y[:, None]).mean(axis=0))
        shares.append(weight[rows].sum() / weight.sum())
    np.testing.assert_allclose(many.coef_, np.average(steps, axis=0, weights=shares), atol=1e-8)


@pytest.mark.parametrize("named", [{}, {"optimizer": "adam", "learning_rate": "constant", "eta0": 1e-3}])
@pytest.mark.parametrize("kind", ["even", "uneven", "sorted"])
def test_local_updates_end_near_one_machine(kind, named):
    features, y = make_classification(3000, 20, n_informative=10, n_classes=3, random_state=0)
    if kind == "sorted":
        order = np.argsort(y, kind="stable")
        features, y = features[order], y[order]
    cuts = (1600, 2600) if kind == "uneven" else (1000, 2000)
    params = {"max_iter": 30, "random_state": 0, "tol": None, **named}
    one = OnnxSGDClassifier(**params).fit(features, y)
    many = fit(OnnxSGDClassifier, pieces_of(features, y, cuts=cuts), 8, **params)
    assert many.score(features, y) > one.score(features, y) - 0.02


def test_shards_that_differ_are_mixed(caplog):
    order = np.argsort(Y, kind="stable")
    with caplog.at_level("INFO", logger="onnxsgd.shards"):
        fit(OnnxSGDClassifier, pieces_of(X[order], Y[order]), 4, **LONG)
        assert "rows are dealt anew among 4" in caplog.text
        caplog.clear()
        fit(OnnxSGDClassifier, pieces_of(X[order], Y[order]), 1, **{**LONG, "max_iter": 1})
        fit(OnnxSGDClassifier, pieces_of(X, Y, cuts=(200, 400)), 4, **LONG)
        assert "dealt" not in caplog.text
        order = np.argsort(Y_REAL)
        fit(OnnxSGDRegressor, pieces_of(X_REAL[order], Y_REAL[order]), 4, **LONG)
        assert "dealt" in caplog.text


def test_numbers_of_shards():
    """Two shards of equal size, whatever the partitions: those of neighbouring rows."""
    cut = fit(OnnxSGDClassifier, pieces_of(X, Y), 4, n_shards=2, **LONG)
    halves = fit(OnnxSGDClassifier, pieces_of(X, Y, cuts=(300,)), 4, **LONG)
    assert distance(cut, halves) == 0
    with pytest.raises(ParameterError, match="n_shards=601 is above 600"):
        fit(OnnxSGDClassifier, pieces_of(X, Y), n_shards=601, **NAMED)


def test_empty_partitions_and_rows_without_weight():
    weight = np.r_[np.zeros(100), np.ones(500)]
    rest = fit(OnnxSGDClassifier, [(X[100:], Y[100:], None)], **NAMED)
    empty = (X[:0], Y[:0], None)
    many = fit(OnnxSGDClassifier, [empty, (X[100:], Y[100:], None), empty], **NAMED)
    assert distance(rest, many) == 0
    many = fit(OnnxSGDClassifier, pieces_of(X, Y, weight), **NAMED)
    assert distance(rest, many) < 2e-5
    with pytest.raises(ParameterError, match="No sample of the training data has a weight above 0"):
        fit(OnnxSGDClassifier, pieces_of(X, Y, 0 * weight), **NAMED)
    with pytest.raises(ParameterError, match="X has no rows"):
        fit(OnnxSGDClassifier, [empty], **NAMED)


def test_partitions_of_one_class():
    rows = [np.flatnonzero(label == Y) for label in range(10)]
    given = [(X[part], Y[part], None) for part in rows]
    order = np.concatenate(rows)
    one = OnnxSGDClassifier(**NAMED).fit(X[order], Y[order])
    assert distance(one, fit(OnnxSGDClassifier, given, **NAMED)) < 2e-5


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("sync_every", [1, 4])
def test_sparse_chunks(sync_every):
    table = sparse.csr_matrix(np.where(X > 0.9, X, 0))
    params = {**LONG, "max_iter": 5}
    one = OnnxSGDClassifier(**params).fit(table.toarray(), Y)
    many = fit(
        OnnxSGDClassifier, [(table[:300], Y[:300], None), (table[300:], Y[300:], None)], sync_every, **params
    )
    if sync_every == 1:
        assert distance(one, many) < 2e-5
    assert many.score(table, Y) > one.score(table, Y) - 0.03
    auto = fit(
        OnnxSGDClassifier, [(table[:300], Y[:300], None), (table[300:], Y[300:], None)], sync_every,
        random_state=0,
    )  # fmt: skip
    assert auto.score(table, Y) > 0.9


@pytest.mark.filterwarnings("ignore:sync_every=4 leaves")
@pytest.mark.parametrize("sync_every", [1, 4])
def test_validation_decides(sync_every):
    held = fit(
        OnnxSGDClassifier, pieces_of(X, Y), sync_every, early_stopping=True, random_state=0, max_iter=60,
        n_iter_no_change=2,
    )  # fmt: skip
    assert len(held.validation_scores_) == held.n_iter_ < 60
    assert max(held.validation_scores_) > 0.85
    executor = SerialExecutor()
    values = [executor.source(part) for part in pieces_of(X[:200], Y[:200], cuts=(50,))]
    within = fit(OnnxSGDClassifier, pieces_of(X, Y), sync_every, pieces_val=values, **FEW)
    whole = [executor.source((X[:200], Y[:200]))]
    memory = fit(OnnxSGDClassifier, pieces_of(X, Y), sync_every, pieces_val=whole, **FEW)
    np.testing.assert_allclose(within.validation_scores_, memory.validation_scores_, rtol=1e-12)
    real = pieces_of(X_REAL, Y_REAL)
    scored = fit(OnnxSGDRegressor, real, sync_every, pieces_val=map(executor.source, real), **FEW)
    assert scored.validation_scores_[-1] == pytest.approx(scored.score(X_REAL, Y_REAL), abs=1e-6)


@pytest.mark.filterwarnings(
    "ignore:(Training raised the score|No epoch scored better):sklearn.exceptions.ConvergenceWarning"
)
def test_held_out_rows_do_not_train():
    """Those of a shard follow from a seed; the weights are those of a fit on the others."""
    params = {**NAMED, "early_stopping": True, "validation_fraction": 0.25}
    held = fit(OnnxSGDRegressor, [(X_REAL, Y_REAL, None)], **params)
    rest = 1e6 * Y_REAL
    generator = make_generator(0)
    rows, _ = hold_out_rows(len(Y_REAL), 0.25, np.random.RandomState(generator.randint(0, 1 << 31)))
    rest[rows] = Y_REAL[rows]
    again = fit(OnnxSGDRegressor, [(X_REAL, rest, None)], **params)
    assert distance(held, again) == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("sync_every", [1, 4])
@pytest.mark.parametrize(
    "params", [{**LONG, "momentum": 0.9, "max_iter": 6}, {"max_iter": 8, "random_state": 0}]
)
def test_a_fit_continues_from_a_checkpoint(tmp_path, sync_every, params):
    whole = fit(OnnxSGDClassifier, pieces_of(X, Y), sync_every, **params)

    class Stop(Exception):
        pass

    class Stopping(SerialExecutor):
        def submit(self, function, *arguments):
            if self.n_tasks > 4 * 15:
                raise Stop
            return super().submit(function, *arguments)

    estimator = OnnxSGDClassifier(**params, checkpoint=tmp_path)
    with pytest.raises(Stop):
        fit_again(estimator, pieces_of(X, Y), sync_every, Stopping())
    assert type(load(tmp_path)) is OnnxSGDClassifier
    resumed = OnnxSGDClassifier(**params, checkpoint=tmp_path)
    with pytest.raises(ParameterError, match="other values of sync_every"):
        fit_again(copy(resumed), pieces_of(X, Y), sync_every + 1, resume=True)
    fit_again(resumed, pieces_of(X, Y), sync_every, resume=True)
    # weights of standardised data are rounded on their way into a checkpoint and back
    assert distance(whole, resumed) < 1e-4
    assert resumed.n_iter_ == whole.n_iter_


def test_checkpoints_of_local_updates_count_epochs(tmp_path):
    with pytest.raises(ParameterError, match="count epochs, or give sync_every=1"):
        fit(
            OnnxSGDClassifier,
            pieces_of(X, Y),
            4,
            **LONG,
            checkpoint=tmp_path,
            checkpoint_every={"updates": 3},
        )


@pytest.mark.parametrize("sync_every", [1, 4])
def test_an_error_in_a_round_keeps_the_last_whole_state(sync_every):
    class Lost(Exception):
        pass

    class Failing(SerialExecutor):
        def results(self, handles):
            if self.n_tasks > 100:
                raise Lost
            return super().results(handles)

    estimator = OnnxSGDClassifier(**LONG)
    with pytest.raises(Lost):
        fit_again(estimator, pieces_of(X, Y), sync_every, Failing())
    assert 0 < estimator.t_ < 40 * 19
    assert 0.2 < estimator.score(X, Y) < 0.9
    before = estimator.t_
    estimator.partial_fit(X, Y)
    assert estimator.t_ > before


def test_divergence_keeps_the_last_finite_weights():
    for sync_every in (1, 4):
        estimator = OnnxSGDRegressor(**{**LONG, "eta0": 1e4, "max_iter": 200})
        with pytest.raises(ConvergenceError, match="no longer finite at update"):
            fit_again(estimator, pieces_of(X_REAL, 1e4 * Y_REAL), sync_every)
        assert np.isfinite(estimator.coef_).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("sync_every", [1, 4])
def test_streams_of_shards(sync_every):
    estimator = ShardedClassifier(random_state=0)
    for _ in range(8):
        fit_part(estimator, pieces_of(X, Y), sync_every)
    assert len(estimator.loss_curve_) == 8
    assert estimator.score(X, Y) > 0.9


def test_warm_starts_and_copies():
    estimator = OnnxSGDClassifier(**{**NAMED, "warm_start": True})
    one = OnnxSGDClassifier(**{**NAMED, "warm_start": True})
    for _ in range(2):
        fit_again(estimator, pieces_of(X, Y))
        one.fit(X, Y)
    assert distance(one, estimator) < 2e-5
    assert type(estimator) is OnnxSGDClassifier
    assert estimator.get_params() == one.get_params()
    again = pickle.loads(pickle.dumps(estimator))
    assert (again.predict_proba(X) == estimator.predict_proba(X)).all()
    again.partial_fit(X, Y)
    assert again.t_ > estimator.t_


@pytest.mark.parametrize(
    ("params", "sync_every", "error", "message"),
    [
        ({"model": LogisticRegression()}, 1, ParameterError, "model=LogisticRegression.. is not fitted"),
        ({"device": "cuda"}, 1, Exception, "cuda"),
        ({"n_jobs": 2}, 1, ParameterError, "n_jobs=2 counts processes of this machine"),
        ({"shuffle": "blocks"}, 1, ParameterError, "shuffle='blocks' reads files"),
        ({"steps_per_epoch": 3}, 1, ParameterError, "steps_per_epoch=3 counts the batches of an iterable"),
        (
            {"loss": losses.FromCallable(lambda y, raw: (np.ones(len(y)), raw), targets="sign")},
            1,
            UnsupportedError,
            "sync_every=1 needs a loss that is a formula",
        ),
    ],
)
def test_misuse(params, sync_every, error, message):
    with pytest.raises(error, match=message):
        fit(OnnxSGDClassifier, pieces_of(X, Y), sync_every, **params)


def test_the_state_of_a_round_is_little_more_than_its_numbers():
    """Weights travel once to a shard and once back, as arrays: no graph, no data."""
    executor = Counting()
    fit(OnnxSGDClassifier, pieces_of(X, Y, cuts=(300,)), 1, executor=executor, **NAMED, model=MLP)
    n_bytes = sum(array.nbytes for array in MLP.coefs_ + MLP.intercepts_)
    assert n_bytes < executor.sizes["gradient_of_rows"] < n_bytes + 1500
    assert n_bytes < executor.sizes["source"] < n_bytes + 1000


class Counting(SerialExecutor):
    """Keeps the bytes of the last result of each function."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def source(self, value):
        result = super().source(value)
        self.sizes["source"] = len(result.data)
        return result

    def submit(self, function, *arguments):
        result = super().submit(function, *arguments)
        self.sizes[function.__name__] = len(result.data)
        return result


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_rows", [500, 5000])
def test_extreme_rows_are_those_of_all_shards(n_rows):
    """Their weights and the scales of columns are those of one machine; one row of them stops no training."""
    generator = np.random.RandomState(0)
    table = generator.standard_t(1.2, (n_rows, 6))
    y = (table[:, 0] + 0.1 * generator.standard_normal(n_rows) > 0).astype(int)
    # differences grow from epoch to epoch
    params = {"random_state": 0, "max_iter": 12 if n_rows == 500 else 5}
    cuts = (n_rows // 5, n_rows // 2)
    one = OnnxSGDClassifier(**params).fit(table, y)
    many = fit(OnnxSGDClassifier, pieces_of(table, y, cuts=cuts), **params)
    assert many.t_ == one.t_
    # of more rows than the client has, the limits are those of a sample
    assert distance(one, many) < (1e-4 if n_rows == 500 else 0.05)
    outlier = np.vstack([generator.standard_normal((300, 6)), np.full((1, 6), 1e4)])
    y = (outlier[:, 0] > 0).astype(int)
    one = OnnxSGDClassifier(**params).fit(outlier, y)
    for sync_every in (1, 4):
        many = fit(OnnxSGDClassifier, pieces_of(outlier, y, cuts=(150,)), sync_every, **params)
        assert many.score(outlier, y) > 0.95
        assert sync_every > 1 or distance(one, many) < 1e-4


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("sync_every", [1, 4])
def test_extreme_targets_are_those_of_all_shards(sync_every):
    """Neither the first prediction nor the unit of the rates is theirs, under a robust loss."""
    generator = np.random.RandomState(0)
    table = generator.standard_normal((900, 6))
    target = table @ np.arange(1.0, 7.0) + generator.standard_normal(900)
    given = target.copy()
    given[::150] = 1e6
    params, pieces = {"loss": "huber", "random_state": 0}, pieces_of(table, given, cuts=(200, 500))
    if sync_every == 1:
        # rounding grows from epoch to epoch
        one = OnnxSGDRegressor(**params, max_iter=2).fit(table, given)
        assert distance(one, fit(OnnxSGDRegressor, pieces, max_iter=2, **params)) < 1e-4
    assert fit(OnnxSGDRegressor, pieces, sync_every, **params).score(table, target) > 0.95


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_columns_that_outnumber_the_rows():
    generator = np.random.RandomState(0)
    table = generator.standard_normal((80, 200)) * np.geomspace(1, 20, 200)
    y = (table[:, 0] > 0).astype(int)
    one = OnnxSGDClassifier(random_state=0, max_iter=12).fit(table, y)
    many = fit(OnnxSGDClassifier, pieces_of(table, y, cuts=(30,)), random_state=0, max_iter=12)
    assert distance(one, many) < 1e-4


@pytest.mark.parametrize("n_rows", [600, 3000])
@pytest.mark.parametrize("make", [OnnxSGDClassifier, OnnxSGDRegressor])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_correlated_columns(make, n_rows, monkeypatch):
    """Some rows of all shards choose the preconditioner: all of them up to 2,048."""
    generator = np.random.RandomState(0)
    factors = generator.standard_normal((n_rows, 20))
    table = factors @ generator.standard_normal((20, 20))
    y = factors @ generator.standard_normal(20)
    y = y > 0 if make is OnnxSGDClassifier else y
    found, chosen = [], coordinates.preconditioner
    monkeypatch.setattr(
        coordinates, "preconditioner", lambda *given: found.append(chosen(*given)) or found[-1]
    )
    params = {"random_state": 0, "max_iter": 12, "dtype": "float64"}
    one = make(**params).fit(table, y)
    many = fit(make, pieces_of(table, y, cuts=(n_rows // 3,)), **params)
    assert all(matrix is not None for matrix in found)
    if n_rows == 600:
        assert distance(one, many) < 1e-5
    assert many.score(table, y) > one.score(table, y) - 0.01
    assert fit(make, pieces_of(table, y, cuts=(n_rows // 3,)), 4, **params).score(table, y) > 0.9


@pytest.mark.parametrize("rows", [slice(330, None), slice(100, 130), slice(0, 300)])
def test_shards_whose_labels_are_all_ignored(rows):
    y = Y.copy()
    y[rows] = -1
    params = {**NAMED, "loss": losses.CrossEntropy(ignore_index=-1)}
    one = OnnxSGDClassifier(**params).fit(X, y)
    many = fit(OnnxSGDClassifier, pieces_of(X, y), **params)
    assert many.t_ == one.t_
    assert distance(one, many) < 2e-5


def test_a_part_in_which_the_first_rows_do_not_count():
    y = np.r_[np.full(300, -1), Y[300:]]
    estimator = ShardedClassifier(**NAMED, loss=losses.CrossEntropy(ignore_index=-1))
    fit_part(estimator, pieces_of(X, y), 1, np.arange(10))
    one = OnnxSGDClassifier(**NAMED, loss=losses.CrossEntropy(ignore_index=-1))
    one.partial_fit(X, y, classes=np.arange(10))
    assert estimator.t_ == one.t_
    before = estimator.get_weights()
    fit_part(estimator, pieces_of(X, np.full_like(y, -1)), 1)
    assert all((array == before[name]).all() for name, array in estimator.get_weights().items())


def test_a_second_fit_deals_the_same_rows():
    order = np.argsort(Y, kind="stable")
    estimator = OnnxSGDClassifier(**LONG)
    first, second = (fit_again(estimator, pieces_of(X[order], Y[order]), 4).coef_.copy() for _ in range(2))
    assert (first == second).all()


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
def test_targets_of_one_column():
    one = fit(OnnxSGDClassifier, pieces_of(X, Y), **NAMED)
    assert distance(one, fit(OnnxSGDClassifier, pieces_of(X, Y[:, None]), **NAMED)) == 0


SEVERAL = np.stack([Y > 4, Y % 2, Y == 3, Y < 10], axis=1).astype(int)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weights"])
def test_labels_of_several_columns(class_weight, weight):
    """The last column lacks a label, and the third does in the first piece."""
    order = np.argsort(Y == 3, kind="stable")
    data = X[order], SEVERAL[order], None if weight is None else weight[order]
    params = {**NAMED, "class_weight": class_weight}
    one = OnnxSGDClassifier(**params).fit(*data)
    assert distance(one, fit(OnnxSGDClassifier, pieces_of(*data), **params)) < 2e-5
    in_floats = data[0], data[1].astype(float), data[2]
    assert distance(one, fit(OnnxSGDClassifier, pieces_of(*in_floats), **params)) < 2e-5


def test_balanced_weights_of_probabilities_are_refused():
    table = np.eye(10)[Y]
    for y in (table, (table + 1) / 11):
        params = {**NAMED, "loss": losses.CrossEntropy(soft=True), "class_weight": "balanced"}
        with pytest.raises(UnsupportedError, match="y has probabilities"):
            fit(OnnxSGDClassifier, pieces_of(X, y), **params)


def as_function(y, raw):
    return (raw - y) ** 2 / 2, raw - y


def test_fits_of_few_updates_take_rounds_where_there_is_no_gradient_of_rows():
    params = {**NAMED, "loss": losses.FromCallable(as_function, targets="indicator")}
    assert fit(OnnxSGDClassifier, pieces_of(X, Y), None, **params).t_ > 0
    with pytest.raises(UnsupportedError, match="sync_every=1 needs a loss that is a formula"):
        fit(OnnxSGDClassifier, pieces_of(X, Y), 1, **params)


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    fit(OnnxSGDClassifier, pieces_of(X, Y), **NAMED, checkpoint=tmp_path)
    again = OnnxSGDClassifier(**NAMED, checkpoint=tmp_path)
    with pytest.raises(ParameterError, match="other values of X, y"):
        fit_again(again, pieces_of(1 - X, (Y + 1) % 10), resume=True)


def test_shards_of_one_row_hold_out_none():
    pieces = pieces_of(X[:20], Y[:20], cuts=range(1, 20))
    with pytest.raises(ParameterError, match="of each shard holds out no sample"):
        fit(OnnxSGDClassifier, pieces, **NAMED, early_stopping=True)


def shard_of(table):
    target = np.zeros((len(Y), 1), np.float32)
    return Shard(Batches({"X": table}, target, np.ones(len(Y)), 20, is_mean=True), Y)


@pytest.mark.parametrize("table", [X, sparse.csr_matrix(X)], ids=["dense", "sparse"])
def test_the_size_of_a_shard_is_that_of_its_data(table):
    arrays = [table, Y] if isinstance(table, np.ndarray) else [table.data, table.indices, table.indptr, Y]
    n_bytes = sum(array.nbytes for array in arrays)
    assert n_bytes <= sys.getsizeof(shard_of(table)) < n_bytes + 500
    assert sys.getsizeof(Shard(None, None)) < 500


def test_a_shard_keeps_the_order_of_the_last_epoch_alone():
    shard = shard_of(X)
    assert shard.order(None) is None
    orders = [shard.order((seed, 0)) for seed in (1, 1, 2, 1)]
    assert orders[0] is orders[1]
    assert sorted(orders[0]) == list(range(len(Y)))
    assert (orders[2] != orders[0]).any()
    assert orders[3] is not orders[0]
    np.testing.assert_array_equal(orders[3], orders[0])
    assert len(pickle.dumps(shard)) == len(pickle.dumps(shard_of(X)))
