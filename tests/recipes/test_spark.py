"""The recipes for Spark: fits and predictions in the partitions of a DataFrame, in a local session."""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from serial_executor import SerialExecutor
from sklearn.datasets import load_diabetes, load_digits

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.distributed import fit_shards
from onnxsgd.exceptions import ParameterError

pytest.importorskip("pyspark", reason="needs Spark: pip install 'onnxsgd[recipes]'")
if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    pytest.skip("Spark needs Java, and no java is found", allow_module_level=True)

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

RECIPES = str(Path(__file__).parents[2] / "docs" / "recipes")
pytestmark = [
    # the fits are short
    pytest.mark.filterwarnings("ignore:sync_every=4 leaves:sklearn.exceptions.ConvergenceWarning"),
    # Spark 4.3 with pandas 3
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The copy keyword is deprecated:DeprecationWarning"),
]

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)[:400]
Y = Y[:400]
X_REAL, Y_REAL = load_diabetes(return_X_y=True)
Y_REAL = (Y_REAL - Y_REAL.mean()) / Y_REAL.std()
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 1, "tol": None, "random_state": 0}
CLASSIFIER = OnnxSGDClassifier, {**NAMED, "batch_size": 100}, X, Y
REGRESSOR = (
    OnnxSGDRegressor,
    {"max_iter": 1, "tol": None, "random_state": 0, "batch_size": 100},
    X_REAL,
    Y_REAL,
)


@pytest.fixture(scope="module")
def session():
    """Start a session with two threads, which runs a failed task again."""
    # workers do not import tests
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        options = {
            "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
        }  # fmt: skip
        found = SparkSession.builder.master("local[2, 4]").config(map=options).getOrCreate()
        found.sparkContext.setLogLevel("OFF")
        yield found
        found.stop()


@pytest.fixture
def recipe(monkeypatch):
    """Import the recipe, which is a file of the documentation."""
    monkeypatch.syspath_prepend(RECIPES)
    import spark_executor

    yield spark_executor
    del sys.modules["spark_executor"]


def table_of(session, X, y, n_partitions=2):
    """Return a DataFrame of as many partitions."""
    columns = {f"x{number}": column for number, column in enumerate(X.T)}
    rows = session.createDataFrame(pd.DataFrame({**columns, "y": y}))
    return rows.repartition(n_partitions).sortWithinPartitions(*rows.columns)


def piece_of(rows):
    return rows.drop(columns="y").to_numpy(np.float32), rows["y"].to_numpy()


def here(table):
    """Return an engine in this process, and pieces of the same rows."""
    executor = SerialExecutor()
    rows = table.withColumn("partition", spark_partition_id()).toPandas()
    pieces = [piece_of(part.drop(columns="partition")) for _, part in rows.groupby("partition")]
    return executor, [executor.source(piece) for piece in pieces]


def trained(case, executor, pieces, sync_every, **options):
    make, settings, *_ = case
    return fit_shards(make(**settings), pieces, executor, sync_every=sync_every, **options)


def assert_same(first, second):
    for mine, others in zip(first.get_weights().values(), second.get_weights().values(), strict=True):
        assert np.array_equal(mine, others)
    assert np.array_equal(first.loss_curve_, second.loss_curve_)


@pytest.fixture(scope="module")
def digits(session):
    table = table_of(session, X, Y).persist()
    yield table
    table.unpersist()


@pytest.mark.parametrize("sync_every", [1, 4])
@pytest.mark.parametrize("case", [CLASSIFIER, REGRESSOR], ids=["classifier", "regressor"])
def test_weights_are_those_of_one_process(case, sync_every, recipe, session):
    table = table_of(session, *case[2:]).persist()
    executor = recipe.SparkExecutor(table, piece_of)
    on_spark = trained(case, executor, executor.pieces, sync_every)
    assert_same(on_spark, trained(case, *here(table), sync_every))
    table.unpersist()


def test_a_killed_worker_changes_no_bit(recipe, digits, tmp_path):
    marker = tmp_path / "killed"

    class Killing(recipe.SparkExecutor):
        def submit(self, function, *arguments):
            def kill_once(*arguments):
                if not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments)

            is_round = function.__name__ == "local_updates"
            return super().submit(kill_once if is_round else function, *arguments)

    executor = Killing(digits, piece_of)
    on_spark = trained(CLASSIFIER, executor, executor.pieces, 4)
    assert marker.exists()
    assert_same(on_spark, trained(CLASSIFIER, *here(digits), 4))


def test_validation_and_empty_partitions(recipe, session):
    """The client scores data in memory; partitions without rows are left out."""
    table = table_of(session, X, Y).repartition(3, "y").where("y < 3").persist()
    executor = recipe.SparkExecutor(table, piece_of)
    assert sorted(len(y) for _, y in executor.results(executor.pieces))[0] == 0
    validation = [executor.source((X[:100], Y[:100] % 3))]
    on_spark = trained(CLASSIFIER, executor, executor.pieces, 1, pieces_val=validation)
    assert len(on_spark.validation_scores_) == 1
    assert on_spark.classes_.tolist() == [0, 1, 2]


def test_workers_keep_shards(recipe, digits):
    """Rounds send no rows once each of the two workers has read both partitions."""
    sent = []

    class Counting(recipe.SparkExecutor):
        def _job(self, parts, sources, rows_of=()):
            sent.append(len(rows_of))
            return super()._job(parts, sources, rows_of)

    executor = Counting(digits, piece_of)
    case = OnnxSGDClassifier, {**CLASSIFIER[1], "max_iter": 12}
    trained(case, executor, executor.pieces, 4)
    # three before the rounds, and at most two while each of the steps of a shard is new
    assert 3 <= sum(n_sent > 0 for n_sent in sent) <= 7
    assert len(sent) >= 16
    # the client keeps no result of a round
    assert executor.found == {}


def test_sorted_partitions_are_refused_where_they_train_on_their_own(recipe, session):
    order = np.argsort(Y, kind="stable")
    table = table_of(session, X[order], Y[order]).repartitionByRange(2, "y")
    executor = recipe.SparkExecutor(table, piece_of)
    with pytest.raises(ParameterError, match=r"their targets differ.* frame.repartition\(n\)"):
        trained(CLASSIFIER, executor, executor.pieces, 4)


def test_errors_of_tasks_are_raised_as_on_one_machine(recipe, session):
    # in the last partition: the client checks the first rows
    y = np.where(X_REAL[:, 0] == X_REAL[:, 0].max(), np.nan, Y_REAL)
    table = table_of(session, X_REAL, y).repartitionByRange(2, "x0")
    executor = recipe.SparkExecutor(table, piece_of)
    with pytest.raises(ValueError, match="^Input y contains NaN.$"):
        trained(REGRESSOR, executor, executor.pieces, 1)
    executor = recipe.SparkExecutor(table, len)
    with pytest.raises(ParameterError, match="the result of its task must be a tuple"):
        trained(REGRESSOR, executor, executor.pieces, 4)


def test_predictions_are_those_of_one_process(session, monkeypatch):
    monkeypatch.syspath_prepend(RECIPES)
    from spark_predictions import with_predictions

    model = OnnxSGDClassifier(**NAMED).fit(X, Y)
    table = table_of(session, X, Y)
    columns = [name for name in table.columns if name != "y"]
    found = with_predictions(table, model, columns, kind="long").toPandas()
    assert found.columns.tolist() == [*table.columns, "prediction"]
    assert len(found) == len(Y)
    assert (found["prediction"] == model.predict(found[columns].to_numpy())).all()
