"""Time and quality of a shuffle by blocks: ``python benchmarks/shuffle_blocks.py [--gigabytes 1]``.

Whole fits on a memory map, or on a Parquet or CSV file, unshuffled, shuffled by blocks and by rows, in turn.
The first table has their times as multiples of the unshuffled fit: of processor time where the file is in the
cache of the system, and of wall time where it is read from the disk in the first pass and in each epoch, as
one that is larger than memory (Linux). With ``--group FOLDER`` it is larger: the process joins a control
group that limits its memory (``man 7 cgroups``), and fits are cold, unshuffled and by blocks, as rows in
random order would take hours. The second table has the accuracy on other rows after training on a file that
is sorted by class.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier
from onnxsgd.training.epochs import Epochs

_ORDERS: tuple[bool | str, ...] = (False, "blocks", True)
_NAMES: dict[bool | str, str] = {False: "unshuffled, s", "blocks": "by blocks", True: "by rows"}
#: Files whose rows are written to a temporary file first.
_FILES = ("parquet", "csv")
#: The learning rates that a linear model and a network are fitted with.
_RATES: tuple[dict[str, Any], ...] = ({"learning_rate": "constant", "eta0": 1e-3}, {})


def make_file(path: Path, n_columns: int, gigabytes: float, kind: str) -> np.ndarray:
    """Write rows of two classes, sorted by class; return the classes.

    `kind` is the type and the order of a map, or the end of the name of a file with the classes in it.
    """
    if kind in _FILES:
        return make_table(path, n_columns, gigabytes, kind)
    n_rows, rng = int(gigabytes * 2**30) // (4 * n_columns), np.random.default_rng(n_columns)
    dtype, is_fortran = kind.partition(" ")[0], kind.endswith("F")
    rows = np.lib.format.open_memmap(path, "w+", dtype, (n_rows, n_columns), fortran_order=is_fortran)
    y = (np.arange(n_rows) >= n_rows // 2).astype(int)
    # parts that lie together in the file
    shape = (1 << 22, 1) if is_fortran else (20_000, n_columns)
    for row, column in product(range(0, n_rows, shape[0]), range(0, n_columns, shape[1])):
        target = rows[row : row + shape[0], column : column + shape[1]]
        part = rng.normal(size=target.shape).astype(np.float32)
        part[:, : max(0, 5 - column)] += 0.45 * y[row : row + len(part), None]
        target[:] = part
    rows.flush()
    return y


def make_table(path: Path, n_columns: int, gigabytes: float, kind: str) -> np.ndarray:
    """Write such rows to a Parquet or CSV file; return the classes."""
    import pyarrow.csv
    import pyarrow.parquet

    n_rows, rng = int(gigabytes * 2**30) // (4 * n_columns), np.random.default_rng(n_columns)
    y, size = (np.arange(n_rows) >= n_rows // 2).astype(int), 20_000
    names = ["class", *(f"c{number}" for number in range(n_columns))]
    opened = pyarrow.parquet.ParquetWriter if kind == "parquet" else pyarrow.csv.CSVWriter
    schema = pyarrow.schema([(name, pyarrow.float32() if number else pyarrow.int64())
                             for number, name in enumerate(names)])  # fmt: skip
    with opened(str(path), schema) as writer:
        for start in range(0, n_rows, size):
            part = rng.normal(size=(len(y[start : start + size]), n_columns)).astype(np.float32)
            part[:, :5] += 0.45 * y[start : start + size, None]
            writer.write_table(pyarrow.table([y[start : start + size], *part.T.copy()], schema))
    return y


def forget(path: Path, rows: Any = None) -> None:
    """Let the system drop the file from its cache, and the pages of a map of it."""
    if rows is not None:
        rows._mmap.madvise(mmap.MADV_DONTNEED)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@contextmanager
def forgetting(path: Path, rows: np.ndarray) -> Iterator[None]:
    """Let the system drop the file before each epoch."""
    run = Epochs.run

    def run_cold(self: Epochs, *arguments: Any, **named: Any) -> None:
        forget(path, rows)
        run(self, *arguments, **named)

    with patch.object(Epochs, "run", run_cold):
        yield


def make_model(name: str, n_columns: int, **parameters: Any) -> OnnxSGDClassifier:
    """Return a classifier that is ready to be fitted."""
    model = None
    if name == "network":
        few = np.random.default_rng(0).normal(size=(200, n_columns)).astype(np.float32)
        model = MLPClassifier(16, max_iter=1).fit(few, few[:, 0] > 0)
    return OnnxSGDClassifier(model, tol=None, random_state=0, n_threads=1, **parameters)


def ratios(
    fit: Callable[[bool | str], object],
    path: Path,
    repeats: int,
    orders: Sequence[bool | str],
    *,
    is_cold: bool,
) -> tuple[float, list[float]]:
    """Return the least time of the first order, and those of the others as multiples of it."""
    clock = time.perf_counter if is_cold else time.process_time
    best = dict.fromkeys(orders, np.inf)
    for repeat in range(repeats):
        # in turn, as the first fit after another one may be slower
        for shuffle in orders[:: 1 - 2 * (repeat % 2)]:
            if is_cold:
                forget(path)
            start = clock()
            fit(shuffle)
            best[shuffle] = min(best[shuffle], clock() - start)
    return best[orders[0]], [best[shuffle] / best[orders[0]] for shuffle in orders[1:]]


def print_times(
    path: Path, kind: str, n_columns: int, orders: Sequence[bool | str], arguments: argparse.Namespace
) -> None:
    """Print the rows of one file in the table of times."""
    y = make_file(path, n_columns, arguments.gigabytes, kind)
    caches = (True,) if arguments.group else (False, True)
    for model, rate, is_cold in product(("linear", "network"), _RATES, caches):

        def fit(
            shuffle: bool | str,
            model: str = model,
            rate: Mapping[str, Any] = rate,
            is_cold: bool = is_cold,
        ) -> None:
            learner = make_model(model, n_columns, shuffle=shuffle, max_iter=arguments.epochs, **rate)
            if kind in _FILES:
                learner.fit(path, "class")
                return
            # a new map: pages of an old one stay in memory
            rows = np.load(path, mmap_mode="r")
            with forgetting(path, rows) if is_cold else nullcontext():
                learner.fit(rows, y)

        base, found = ratios(fit, path, arguments.repeats, orders, is_cold=is_cold)
        cells = [n_columns, kind, model, rate.get("learning_rate", "auto"), "cold" if is_cold else "warm"]
        print(f"| {' | '.join(map(str, cells))} |", *(f"{time:.2f} |" for time in (base, *found)), flush=True)


def print_quality(n_columns: int, gigabytes: float) -> None:
    """Print the table of accuracies."""
    print("\n| epochs | model | unshuffled | by blocks | by rows |")
    print("|---|---|---|---|---|")
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 10_000)
    others = rng.normal(size=(20_000, n_columns)).astype(np.float32)
    others[:, :5] += 0.45 * labels[:, None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        y = make_file(path, n_columns, gigabytes, "float32")
        rows = np.load(path, mmap_mode="r")
        for name in ("linear", "network"):
            for epochs in (1, 3, 10):
                rate = {"learning_rate": "constant", "eta0": 0.05}
                models = [
                    make_model(name, n_columns, shuffle=shuffle, max_iter=epochs, **rate).fit(rows, y)
                    for shuffle in _ORDERS
                ]
                scores = " | ".join(f"{model.score(others, labels):.3f}" for model in models)
                print(f"| {epochs} | {name} | {scores} |", flush=True)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of each file")
    parser.add_argument("--columns", type=int, nargs="*", default=[8, 64, 784])
    parser.add_argument(
        "--kinds", nargs="*", default=["float32"], help='such as "float64", "float32 F", "parquet"'
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--group", type=Path, help="folder of a control group with less memory than the file")
    parser.add_argument("--quality", type=int, default=64, help="columns of the sorted file; 0: none")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.group:
        (arguments.group / "cgroup.procs").write_text(str(os.getpid()))
    orders = _ORDERS[:2] if arguments.group else _ORDERS
    names = ["columns", "file", "model", "rate", "cache", *map(_NAMES.__getitem__, orders)]
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for n_columns, kind in product(arguments.columns, arguments.kinds):
        with tempfile.TemporaryDirectory() as folder:
            name = f"X.{kind if kind in _FILES else 'npy'}"
            print_times(Path(folder) / name, kind, n_columns, orders, arguments)
    if arguments.quality:
        print_quality(arguments.quality, arguments.gigabytes)


if __name__ == "__main__":
    main()
