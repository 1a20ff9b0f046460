"""Fits on the collections of Dask, on workers that are several, slow, killed, or gone."""

import gc
import os
import pickle
import signal
import threading
import time

import numpy as np
import onnxruntime
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits

# submodules, since the folders of these tests have the names of the packages
pytest.importorskip("dask.base")
pytest.importorskip("distributed.client")

import dask
import dask.array as da
import distributed
from distributed import Client, KilledWorker, LocalCluster
from distributed.core import Status

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses
from onnxsgd.dask import DaskOnnxSGDClassifier, DaskOnnxSGDRegressor
from onnxsgd.dask.dask_executor import DaskExecutor
from onnxsgd.exceptions import ParameterError, ParameterTypeError, WorkersLostError

# the fits are short
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)[:240]
Y = Y[:240]
X_REAL, Y_REAL = load_diabetes(return_X_y=True)
Y_REAL = (Y_REAL - Y_REAL.mean()) / Y_REAL.std()
WEIGHT = np.random.RandomState(0).randint(0, 4, len(Y)).astype(float)
WEIGHT_REAL = np.random.RandomState(0).randint(0, 4, len(Y_REAL)).astype(float)
ROWS = (100, 40, 100)
NAMED = {
    "learning_rate": "constant", "eta0": 0.05, "max_iter": 3, "tol": None,
    "batch_size": 40, "random_state": 0,
}  # fmt: skip
#: Updates of averaged gradients, 18 in a fit; and updates of each shard, in 6 rounds.
GRADIENTS = {**NAMED, "sync_every": 1}
ROUNDS = {**NAMED, "sync_every": 4, "batch_size": 20}
#: Settings of fits whose bits are compared.
SETTINGS = {
    "gradients": {**GRADIENTS, "momentum": 0.9},
    "rounds": {**ROUNDS, "optimizer": "adam", "eta0": 1e-2},
    "auto, gradients": {"random_state": 0, "sync_every": 1, "max_iter": 2, "batch_size": 60},
    "auto, rounds": {"random_state": 0, "sync_every": 4, "max_iter": 4, "batch_size": 20},
}
#: The tasks of rounds.
ROUND_TASKS = {"gradient_of_rows", "local_updates"}


def local_cluster(n_workers, processes, memory_limit="1GB"):
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=processes,
        # None takes the port of every other cluster
        dashboard_address="127.0.0.1:0",
        memory_limit=memory_limit,
        silence_logs=50,
    )


def clients(n_workers, processes):
    """Yield a client that is not the default one."""
    # workers in this process count the memory of all tests, and pause near their limit
    with (
        local_cluster(n_workers, processes, "1GB" if processes else 0) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client():
    """Two worker processes."""
    yield from clients(2, processes=True)


@pytest.fixture(scope="module")
def client_to_kill():
    """Two worker processes, which tests kill; nannies get the time to start them again."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"}):
        yield from clients(2, processes=True)


@pytest.fixture(scope="module")
def one_worker():
    yield from clients(1, processes=False)


@pytest.fixture(scope="module")
def four_workers():
    yield from clients(4, processes=False)


def arrays(*given, rows=ROWS):
    """Return arrays of Dask, in chunks of so many rows."""
    return [da.from_array(a, chunks=(tuple(rows), *[-1] * (a.ndim - 1))) for a in given]


def delayed_parts(parts, dtype=None, n_columns=None):
    """Return an array of unknown chunk sizes with these parts."""
    tail = parts[0].shape[1:] if n_columns is None else (n_columns,)
    chunks = [da.from_delayed(dask.delayed(p), (np.nan, *tail), meta=parts[0][:0]) for p in parts]
    return da.concatenate(chunks, allow_unknown_chunksizes=True)


def cut(*given, rows=ROWS):
    """Return the parts of arrays, so many rows each."""
    return [np.split(a, np.cumsum(rows)[:-1]) for a in given]


def short(sync_every):
    return GRADIENTS if sync_every == 1 else ROUNDS


def fit_digits(client, **settings):
    return DaskOnnxSGDClassifier(client=client, **settings).fit(*arrays(X, Y))


def assert_same_bits(first, second):
    a, b = first.get_weights(), second.get_weights()
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], strict=True)
    assert first.loss_curve_ == second.loss_curve_
    assert first.t_ == second.t_


def until(condition):
    """Wait for a condition, for a minute at most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition did not come"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def expected(one_worker):
    """Return the undisturbed fit of each of the settings, on one worker."""
    found = {}

    def fit(name):
        if name not in found:
            found[name] = fit_digits(one_worker, **SETTINGS[name])
        return found[name]

    return fit


@pytest.fixture
def at_task(monkeypatch):
    """Return a function that makes a task of a round, by its number, disturb the fit first."""

    def install(number, disturb):
        count, submit = iter(range(10**6)), DaskExecutor.submit

        def counted(self, function, *arguments):
            if function.__name__ in ROUND_TASKS and next(count) == number:
                function = disturb(function) or function
            return submit(self, function, *arguments)

        monkeypatch.setattr(DaskExecutor, "submit", counted)

    return install


# Workers.


@pytest.mark.parametrize("name", SETTINGS)
def test_the_number_of_workers_changes_no_bit(name, expected, client, four_workers):
    for other in (client, four_workers):
        assert_same_bits(expected(name), fit_digits(other, **SETTINGS[name]))


@pytest.mark.parametrize("name", ["gradients", "rounds"])
def test_a_slow_worker_changes_no_bit(name, client, expected, monkeypatch):
    submit = DaskExecutor.submit

    def submit_slow(self, function, *arguments):
        def slow(*given):
            if distributed.get_worker().name == 0:
                time.sleep(0.05)
            return function(*given)

        slow.__name__ = function.__name__
        return submit(self, slow if function.__name__ in ROUND_TASKS else function, *arguments)

    monkeypatch.setattr(DaskExecutor, "submit", submit_slow)
    assert_same_bits(expected(name), fit_digits(client, **SETTINGS[name]))


def addresses(client):
    return set(client.scheduler_info()["workers"])


def some_nanny(client):
    nannies = client.cluster.workers.values()
    return next(nanny for nanny in nannies if nanny.worker_address in addresses(client))


@pytest.mark.slow
def test_a_task_that_ends_its_process_is_run_again(client_to_kill, expected, at_task, tmp_path):
    client_to_kill.wait_for_workers(2, timeout=60)
    marker = tmp_path / "exited"

    def disturb(function):
        def ends_once(*given):
            if not marker.exists():
                marker.touch()
                os._exit(1)
            return function(*given)

        ends_once.__name__ = function.__name__
        return ends_once

    known = expected("rounds")
    at_task(8, disturb)
    assert_same_bits(known, fit_digits(client_to_kill, **SETTINGS["rounds"]))
    assert marker.exists()


@pytest.mark.slow
def test_a_killed_worker_is_replaced(client_to_kill, expected, at_task):
    client_to_kill.wait_for_workers(2, timeout=60)
    before = addresses(client_to_kill)
    known = expected("gradients")
    at_task(8, lambda _: os.kill(some_nanny(client_to_kill).pid, signal.SIGKILL))
    assert_same_bits(known, fit_digits(client_to_kill, **SETTINGS["gradients"]))
    until(lambda: len(addresses(client_to_kill)) == 2 and addresses(client_to_kill) != before)


@pytest.mark.slow
def test_the_other_worker_takes_over_from_a_killed_one(client_to_kill, expected, at_task):
    client_to_kill.wait_for_workers(2, timeout=60)
    nanny = some_nanny(client_to_kill)
    lost = nanny.worker_address

    def disturb(_):
        # a nanny in this status does not start its process again
        nanny.status = Status.closing_gracefully
        os.kill(nanny.pid, signal.SIGKILL)

    known = expected("gradients")
    at_task(8, disturb)
    found = fit_digits(client_to_kill, **SETTINGS["gradients"])
    assert_same_bits(known, found)
    until(lambda: lost not in addresses(client_to_kill))
    assert len(addresses(client_to_kill)) == 1


@pytest.mark.parametrize("name", ["gradients", "rounds"])
@pytest.mark.parametrize("way", ["retired", "closed"])
def test_the_other_worker_takes_over_from_one_that_leaves(way, name, expected, at_task):
    with (
        local_cluster(2, processes=False, memory_limit=0) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        worker, known = cluster.workers[0], expected(name)

        def disturb(_):
            if way == "retired":
                client.retire_workers([worker.address])
            else:
                cluster.sync(worker.close)

        at_task(8, disturb)
        found = fit_digits(client, **SETTINGS[name])
        assert addresses(client) == {cluster.workers[1].address}
        assert_same_bits(known, found)


def test_a_task_that_always_ends_its_process_fails_the_fit(client_to_kill):
    client_to_kill.wait_for_workers(1, timeout=60)
    client_to_kill.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))
    client_process = os.getpid()

    def fatal(y_true, raw_prediction):
        if os.getpid() != client_process:
            os._exit(1)
        residual = raw_prediction - y_true
        return residual**2 / 2, residual

    model = DaskOnnxSGDRegressor(loss=losses.FromCallable(fatal), client=client_to_kill, **ROUNDS)
    with pytest.raises(KilledWorker):
        model.fit(*arrays(X_REAL, Y_REAL, rows=(200, 242)))


def test_workers_that_are_short_of_memory_end_the_fit():
    """Dask pauses a worker whose process has 80 % of its limit; this one has more from the beginning."""
    with (
        local_cluster(1, processes=False, memory_limit="20MB") as cluster,
        Client(cluster, set_as_default=False) as client,
        dask.config.set({"onnxsgd.workers-timeout": "2s"}),
    ):
        model = DaskOnnxSGDClassifier(client=client, **SETTINGS["gradients"])
        with pytest.raises(WorkersLostError, match="had only workers that it has paused for 2 seconds"):
            model.fit(*arrays(X, Y))


def test_without_any_worker_the_fit_ends_and_keeps_its_state(at_task, expected):
    with (
        local_cluster(2, processes=False, memory_limit=0) as cluster,
        Client(cluster, set_as_default=False) as client,
        dask.config.set({"onnxsgd.workers-timeout": "2s"}),
    ):
        data, known = arrays(X, Y), expected("gradients")
        model = DaskOnnxSGDClassifier(client=client, **SETTINGS["gradients"])
        at_task(14, lambda _: cluster.scale(0))
        with pytest.raises(WorkersLostError, match="no worker for 2 seconds"):
            model.fit(*data)
        t = model.t_
        assert 0 < t < 18
        assert model.to_local().predict(X).shape == Y.shape
        cluster.scale(1)
        model.partial_fit(*data)
        assert model.t_ == t + 6
        assert model.fit(*data).t_ == 18
        assert_same_bits(known, model)


def test_without_its_scheduler_the_fit_ends_and_keeps_its_state(at_task):
    cluster = local_cluster(1, processes=False, memory_limit=0)
    with cluster, Client(cluster, set_as_default=False) as client:
        model = DaskOnnxSGDClassifier(client=client, **GRADIENTS)
        at_task(14, lambda _: cluster.close())
        with pytest.raises(WorkersLostError, match="scheduler"):
            model.fit(*arrays(X, Y))
    assert 0 < model.t_ < 18
    assert model.to_local().predict(X).shape == Y.shape


@pytest.mark.slow
def test_a_restart_of_the_workers_ends_the_fit_and_keeps_its_state(client_to_kill, at_task):
    client_to_kill.wait_for_workers(1, timeout=60)
    model = DaskOnnxSGDClassifier(client=client_to_kill, **GRADIENTS)
    at_task(14, lambda _: client_to_kill.restart(timeout=60, wait_for_workers=False))
    data = arrays(X, Y)
    with pytest.raises(WorkersLostError, match=r"cancelled, as client\.restart\(\) does"):
        model.fit(*data)
    t = model.t_
    assert 0 < t < 18
    client_to_kill.wait_for_workers(1, timeout=60)
    model.partial_fit(*data)
    assert model.t_ == t + 6


def test_errors_of_tasks_reach_the_caller(one_worker):
    def fail(seconds, error):
        time.sleep(seconds)
        raise error

    executor = DaskExecutor(one_worker)
    for seconds, error in ((0, TimeoutError("of the task")), (2.01, ValueError("of the task"))):
        with pytest.raises(type(error), match="of the task"):
            executor.results([executor.submit(fail, seconds, error)])


@pytest.mark.parametrize("sync_every", [1, 4])
def test_the_scheduler_keeps_no_more_tasks_with_the_rounds(sync_every, client, monkeypatch):
    def n_tasks():
        return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))

    gc.collect()
    until(lambda: n_tasks() == 0)
    counts, results = [], DaskExecutor.results

    def counted(self, handles):
        found = results(self, handles)
        counts.append(n_tasks())
        return found

    monkeypatch.setattr(DaskExecutor, "results", counted)
    settings = GRADIENTS if sync_every == 1 else {**ROUNDS, "max_iter": 8}
    model = fit_digits(client, **settings)
    rounds = counts[-15:]
    # a round has a source, a task for each shard, and two sums
    assert max(rounds) <= rounds[0] + 6
    del model
    gc.collect()
    until(lambda: n_tasks() == 0)


@pytest.mark.parametrize("n_shards", [None, 2])
def test_workers_hold_the_shards_and_no_pieces_during_the_rounds(n_shards, client, monkeypatch):
    def in_memory(dask_scheduler):
        tasks = dask_scheduler.tasks.values()
        return [(task.key, task.nbytes) for task in tasks if task.state == "memory"]

    held, results = [], DaskExecutor.results

    def looked_at(self, handles):
        found = results(self, handles)
        held.append(client.run_on_scheduler(in_memory))
        return found

    monkeypatch.setattr(DaskExecutor, "results", looked_at)
    X_val, y_val = arrays(X[:60], Y[:60], rows=(30, 30))
    model = DaskOnnxSGDClassifier(client=client, **ROUNDS, n_shards=n_shards)
    model.fit(*arrays(X, Y), X_val=X_val, y_val=y_val)
    names = ("piece_of", "rows_of", "summary_of", "_shard")
    # the last but one: a round, before the last score
    of_round = {name: [size for key, size in held[-2] if name in key] for name in names}
    assert not of_round["piece_of"] + of_round["rows_of"] + of_round["summary_of"]
    n_training = 3 if n_shards is None else n_shards
    assert len(of_round["_shard"]) == n_training + 2
    assert sum(of_round["_shard"]) >= 300 * 64 * 4


def test_two_fits_at_once_are_those_of_each_alone(client, expected):
    found = {}

    def fit(name):
        found[name] = fit_digits(client, **SETTINGS[name])

    threads = [threading.Thread(target=fit, args=[name]) for name in ("gradients", "rounds")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, model in found.items():
        assert_same_bits(expected(name), model)
    assert len(found) == 2


# Collections.


@pytest.fixture(scope="module")
def fitted(one_worker):
    """Return a fitted classifier."""
    return fit_digits(one_worker, **ROUNDS)


def test_data_frames_keep_the_names_of_their_features(one_worker, fitted):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(X, columns=[f"pixel_{i}" for i in range(64)])
    data = dd.from_pandas(frame, npartitions=3), dd.from_pandas(pd.Series(Y), npartitions=3)
    rows = [len(part) for part in dask.compute(*data[0].to_delayed(), scheduler="sync")]
    model = DaskOnnxSGDClassifier(client=one_worker, **GRADIENTS).fit(*data)
    of_arrays = DaskOnnxSGDClassifier(client=one_worker, **GRADIENTS).fit(*arrays(X, Y, rows=rows))
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    assert_same_bits(model, of_arrays)
    found = model.predict_proba(data[0]).compute(scheduler="sync")
    np.testing.assert_array_equal(found, model.to_local().predict_proba(frame))
    assert model.score(*data) == pytest.approx(of_arrays.score(*arrays(X, Y)))


def test_chunks_of_unknown_sizes(one_worker):
    X_all, y_all = arrays(X, Y)
    mask = X_all[:, 20] > 0.3
    data = X_all[mask], y_all[mask]
    assert np.isnan(data[0].shape[0])
    chosen = X[:, 20] > 0.3
    rows = [int(part.sum()) for part in cut(chosen)[0]]
    of_known = DaskOnnxSGDClassifier(client=one_worker, **ROUNDS).fit(
        *arrays(X[chosen], Y[chosen], rows=rows)
    )
    model = DaskOnnxSGDClassifier(client=one_worker, **ROUNDS).fit(*data)
    assert_same_bits(model, of_known)
    found = model.predict(data[0])
    assert np.isnan(found.shape[0])
    np.testing.assert_array_equal(found.compute(scheduler="sync"), model.to_local().predict(X[chosen]))


@pytest.mark.parametrize("sync_every", [1, 4])
def test_empty_partitions_are_left_out(sync_every, one_worker):
    rows = (0, 100, 0, 0, 40, 100, 0)
    data = [delayed_parts(parts) for parts in cut(X, Y, WEIGHT, rows=rows)]
    model = DaskOnnxSGDClassifier(client=one_worker, **short(sync_every))
    plain = clone(model).fit(*arrays(X, Y, WEIGHT))
    assert_same_bits(model.fit(*data), plain)
    assert model.predict_proba(data[0]).compute(scheduler="sync").shape == (240, 10)
    assert model.score(*data) == pytest.approx(plain.score(*arrays(X, Y, WEIGHT)), rel=1e-12)


def test_partitions_of_weight_zero_are_left_out(one_worker):
    X_more, y_more = np.concatenate([X[:50], X]), np.concatenate([Y[:50], Y])
    weight = np.concatenate([np.zeros(50), WEIGHT])
    model = DaskOnnxSGDClassifier(client=one_worker, **GRADIENTS)
    plain = clone(model).fit(*arrays(X, Y, WEIGHT))
    assert_same_bits(model.fit(*arrays(X_more, y_more, weight, rows=(50, *ROWS))), plain)


def test_data_without_rows_are_refused(one_worker):
    data = [delayed_parts(parts) for parts in cut(X[:0], Y[:0], rows=(0, 0))]
    model = DaskOnnxSGDClassifier(client=one_worker, **NAMED)
    with pytest.raises(ParameterError, match="no rows"):
        model.fit(*data)
    with pytest.raises(ParameterError, match="weight above 0"):
        model.fit(*arrays(X, Y, np.zeros(240)))


@pytest.mark.parametrize("sync_every", [1, 4])
def test_partitions_of_one_class(sync_every, one_worker, client):
    order = np.argsort(Y, kind="stable")
    n_first, n_second = np.bincount(Y)[:2]
    rows = (n_first, n_second, len(Y) - n_first - n_second)
    models = [
        DaskOnnxSGDClassifier(client=one, **short(sync_every)).fit(*arrays(X[order], Y[order], rows=rows))
        for one in (one_worker, client)
    ]
    assert models[0].classes_.tolist() == list(range(10))
    assert_same_bits(*models)
    assert models[0].score(*arrays(X, Y)) > 0.6


def test_chunks_of_columns_are_joined(one_worker, fitted):
    in_blocks = da.from_array(X, chunks=(ROWS, 16))
    model = DaskOnnxSGDClassifier(client=one_worker, **ROUNDS)
    assert_same_bits(model.fit(in_blocks, arrays(Y)[0]), fitted)
    found = model.decision_function(in_blocks)
    assert found.chunks == (ROWS, (10,))
    np.testing.assert_array_equal(found.compute(scheduler="sync"), model.to_local().decision_function(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
def test_labels_in_a_column_are_those_of_a_vector(one_worker, fitted):
    model = DaskOnnxSGDClassifier(client=one_worker, **ROUNDS)
    assert_same_bits(model.fit(*arrays(X, Y[:, None])), fitted)


def test_chunks_of_other_rows_follow_those_of_the_samples(one_worker, fitted):
    (y,), (samples,) = arrays(Y, rows=(120, 120)), arrays(X)
    assert_same_bits(DaskOnnxSGDClassifier(client=one_worker, **ROUNDS).fit(samples, y), fitted)


@pytest.mark.parametrize("sync_every", [1, 4])
def test_sparse_chunks(sync_every, one_worker):
    table = sparse.csr_matrix(X)
    parts = [table[:100], table[100:140], table[140:]]
    data = [
        da.concatenate(
            [
                da.from_delayed(
                    dask.delayed(part), part.shape, meta=sparse.csr_matrix((0, 64), dtype=X.dtype)
                )
                for part in parts
            ]
        ),
        *arrays(Y),
    ]
    model = DaskOnnxSGDClassifier(client=one_worker, **short(sync_every)).fit(*data)
    dense = fit_digits(one_worker, **short(sync_every))
    for name, weight in dense.get_weights().items():
        np.testing.assert_allclose(model.get_weights()[name], weight, rtol=1e-4, atol=1e-5)
    found = model.predict(data[0]).compute(scheduler="sync")
    np.testing.assert_array_equal(found, model.to_local().predict(table))
    assert model.score(*data) == pytest.approx(model.to_local().score(table, Y), rel=1e-12)


def test_weights_count_as_on_one_machine(one_worker):
    one = OnnxSGDClassifier(**NAMED).fit(X, Y, WEIGHT)
    data = arrays(X, Y, WEIGHT)
    model = DaskOnnxSGDClassifier(client=one_worker, **GRADIENTS).fit(*data)
    for name, weight in one.get_weights().items():
        np.testing.assert_allclose(model.get_weights()[name], weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["X", "y", "sample_weight", "y_val"])
def test_arrays_in_memory_are_refused(name, one_worker):
    given = dict(zip(("X", "y", "sample_weight"), arrays(X, Y, WEIGHT), strict=True))
    given |= {"X_val": given["X"], "y_val": given["y"]}
    given[name] = given[name].compute(scheduler="sync")
    with pytest.raises(ParameterTypeError, match=f"^{name} is of type ndarray"):
        DaskOnnxSGDClassifier(client=one_worker, **NAMED).fit(**given)


def test_delayed_objects_are_refused(one_worker):
    model = DaskOnnxSGDClassifier(client=one_worker, **NAMED)
    with pytest.raises(ParameterTypeError, match="X is of type Delayed"):
        model.fit(dask.delayed(X), arrays(Y)[0])


def test_partitions_that_do_not_match_are_refused(one_worker):
    model = DaskOnnxSGDClassifier(client=one_worker, **NAMED)
    samples, y = arrays(X, Y)
    with pytest.raises(ParameterError, match="X has 240 rows and y has 200"):
        model.fit(samples, y[:200])
    first = X[:, 20] > 0.3
    with pytest.raises(ParameterError, match="3 of X, 2 of y"):
        model.fit(
            delayed_parts(cut(X[first], rows=(20, 20))[0] + [X[:5]]),
            delayed_parts(cut(Y[first], rows=(20, 20))[0]),
        )
    with pytest.raises(ParameterError, match="Partition 1 has 40 rows of X, 39 rows of y"):
        model.fit(delayed_parts(cut(X)[0]), delayed_parts(cut(Y, rows=(100, 39, 101))[0]))


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_log_proba", "decision_function"])
def test_predictions_are_computed_on_demand(method, fitted, tmp_path):
    marker = tmp_path / "computed"

    @dask.delayed
    def read(rows):
        marker.touch()
        return X[rows]

    rows = [slice(0, 100), slice(100, 240)]
    data = da.concatenate([da.from_delayed(read(r), (r.stop - r.start, 64), X.dtype) for r in rows])
    found, local = getattr(fitted, method)(data), fitted.to_local()
    assert isinstance(found, da.Array)
    assert not marker.exists()
    known = getattr(local, method)(X)
    assert (found.shape, found.dtype) == (known.shape, known.dtype)
    with fitted.client.as_current():
        np.testing.assert_array_equal(found.compute(), known, strict=True)
    assert marker.exists()
    np.testing.assert_array_equal(getattr(fitted, method)(X), known)


def test_predictions_of_a_regressor(one_worker):
    data = arrays(X_REAL, np.stack([Y_REAL, -Y_REAL], axis=1), rows=(200, 242))
    model = DaskOnnxSGDRegressor(client=one_worker, **ROUNDS).fit(*data)
    found = model.predict(data[0])
    assert found.chunks == ((200, 242), (2,))
    np.testing.assert_array_equal(
        found.compute(scheduler="sync"), model.to_local().predict(X_REAL), strict=True
    )
    assert not hasattr(model, "predict_proba")


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_those_of_one_machine(weighted, fitted, one_worker):
    given = X, Y, *([WEIGHT] if weighted else [])
    assert fitted.score(*arrays(*given)) == pytest.approx(fitted.to_local().score(*given), rel=1e-12)
    assert fitted.score(*given) == fitted.to_local().score(*given)
    given = X_REAL, Y_REAL, *([WEIGHT_REAL] if weighted else [])
    data = arrays(*given, rows=(200, 242))
    model = DaskOnnxSGDRegressor(client=one_worker, **ROUNDS).fit(*data)
    assert model.score(*data) == pytest.approx(model.to_local().score(*given), rel=1e-12)


def test_probabilities_need_a_loss_that_gives_them(one_worker):
    model = fit_digits(one_worker, **ROUNDS, loss="hinge")
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model, "predict_log_proba")


# Parts of a fit.


def test_parts_make_the_updates_of_one_machine(one_worker):
    one, many = OnnxSGDClassifier(**NAMED), DaskOnnxSGDClassifier(client=one_worker, **GRADIENTS)
    for rows in (slice(0, 120), slice(120, 240)):
        one.partial_fit(X[rows], Y[rows], np.arange(10))
        many.partial_fit(*arrays(X[rows], Y[rows], rows=(80, 40)), np.arange(10))
    assert one.t_ == many.t_
    for name, weight in one.get_weights().items():
        np.testing.assert_allclose(many.get_weights()[name], weight, rtol=1e-3, atol=1e-5)


def test_parts_continue_a_fit(one_worker, client):
    models = [fit_digits(one, **ROUNDS) for one in (one_worker, client)]
    for model in models:
        t = model.t_
        model.partial_fit(*arrays(X, Y), sample_weight=arrays(WEIGHT)[0])
        # rows of weight zero are left out
        assert model.t_ == t + -(-max(np.count_nonzero(part) for part in cut(WEIGHT)[0]) // 20)
    assert_same_bits(*models)


def test_validation_data_lie_on_workers_or_in_memory(one_worker):
    training, further = arrays(X[:140], Y[:140], rows=(100, 40)), (X[140:], Y[140:])
    on_workers = arrays(*further, rows=(60, 40))
    model = DaskOnnxSGDClassifier(client=one_worker, **ROUNDS)
    scores = [
        clone(model).fit(*training, X_val=given[0], y_val=given[1]).validation_scores_
        for given in (on_workers, further)
    ]
    assert len(scores[0]) == 3
    np.testing.assert_allclose(*scores, rtol=1e-12)


def test_early_stopping_holds_out_rows_of_each_shard(one_worker, client):
    settings = {**ROUNDS, "early_stopping": True, "n_iter_no_change": 2, "tol": 0.5}
    models = [fit_digits(one, **{**settings, "max_iter": 20}) for one in (one_worker, client)]
    assert models[0].n_iter_ < 20
    assert len(models[0].validation_scores_) == models[0].n_iter_
    assert_same_bits(*models)


# Objects.


def test_the_graph_of_a_fit_runs_anywhere(fitted):
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString())
    (label,) = session.run(["label"], {session.get_inputs()[0].name: X})
    np.testing.assert_array_equal(label, fitted.to_local().predict(X))


def test_pickles_drop_the_client_and_clones_keep_it(fitted):
    loaded = pickle.loads(pickle.dumps(fitted))
    assert loaded.client is None
    assert_same_bits(loaded, fitted)
    np.testing.assert_array_equal(
        loaded.predict(arrays(X)[0]).compute(scheduler="sync"), fitted.to_local().predict(X)
    )
    duplicate = clone(fitted)
    assert duplicate.client is fitted.client
    assert not hasattr(duplicate, "classes_")
    assert duplicate.get_params() == fitted.get_params()


def test_the_present_client_is_taken(one_worker, fitted):
    model = DaskOnnxSGDClassifier(**ROUNDS)
    with pytest.raises(ParameterError, match="client=None takes the present client"):
        model.fit(*arrays(X, Y))
    with one_worker.as_current():
        assert_same_bits(model.fit(*arrays(X, Y)), fitted)


@pytest.mark.parametrize("kind", [OnnxSGDClassifier, OnnxSGDRegressor])
def test_estimators_without_workers_refuse_collections(kind):
    named = rf"onnxsgd\.dask\.Dask{kind.__name__}"
    data = arrays(X, Y)
    for call in (kind().fit, kind().partial_fit, kind(**NAMED).fit(X, Y).score):
        with pytest.raises(ParameterTypeError, match=named):
            call(*data)
    with pytest.raises(ParameterTypeError, match=named):
        kind(**NAMED).fit(X, Y).predict(data[0])
