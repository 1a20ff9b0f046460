"""Seconds of a round on Ray and on Spark, by the recipes of the guide: ``engine_rounds.py ray spark``."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from onnxsgd import OnnxSGDClassifier
from onnxsgd.distributed import fit_shards

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "recipes"))

N_PIECES, SYNC_EVERY = 4, 4


def on_ray(X, y):
    """Return an executor of a local cluster, and pieces of even rows."""
    import ray
    from ray_executor import RayExecutor

    ray.init(num_cpus=2, include_dashboard=False)
    executor = RayExecutor()
    return executor, [executor.source((X[i::N_PIECES], y[i::N_PIECES])) for i in range(N_PIECES)]


def on_spark(X, y):
    """Return an executor of a local session, and its partitions of even rows."""
    import os

    import pandas as pd
    from pyspark.sql import SparkSession
    from spark_executor import SparkExecutor

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    session = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    rows = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]).assign(y=y)
    frame = session.createDataFrame(rows).repartition(N_PIECES)
    executor = SparkExecutor(
        frame, lambda rows: (rows.drop(columns="y").to_numpy(np.float32), rows["y"].to_numpy())
    )
    return executor, executor.pieces


def seconds_of_rounds(executor, pieces, n_epochs):
    """Return the seconds between the ends of rounds, those of a first fit left out."""
    times, ask = [], executor.results

    def timed(handles):
        found = ask(handles)
        # a round asks for one sum; before the first one training asks for the first rows
        if len(handles) == 1:
            times.append(time.perf_counter())
        return found

    executor.results = timed
    named = {"learning_rate": "constant", "eta0": 0.05, "tol": None, "random_state": 0, "batch_size": 32}
    for max_iter in (1, n_epochs):
        times.clear()
        fit_shards(OnnxSGDClassifier(max_iter=max_iter, **named), pieces, executor, sync_every=SYNC_EVERY)
    return np.diff(times[1:])


def main():
    """Print a line for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=["ray", "spark"], help="ray, spark")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y = load_digits(return_X_y=True)
    for name in arguments.engines:
        engine = {"ray": on_ray, "spark": on_spark}[name]((X / 16).astype(np.float32), y)
        seconds = seconds_of_rounds(*engine, arguments.epochs)
        print(
            f"{name}: median {np.median(seconds):.3f} s, fastest {seconds.min():.3f} s, "
            f"{len(seconds)} rounds of {SYNC_EVERY} updates on {N_PIECES} shards"
        )


if __name__ == "__main__":
    main()
