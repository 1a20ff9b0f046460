"""Peak memory of a fit: ``python benchmarks/memory.py [--gigabytes 2]``.

A linear model is fitted on float32 data of several sizes, each time in a new process: an array in
memory, and a memory map. The table shows the peak of the memory that belongs to the process alone (Linux:
RssAnon; the pages of a memory map belong to its file). Less the data and the memory before the fit, the rest
should not depend on the size of the data.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

_N_FEATURES, _BATCH_SIZE = 500, 256
_MEGABYTE = 2**20


class PeakMemory:
    """A context that watches the memory of this process, every few milliseconds.

    Attributes
    ----------
    before, peak : float
        Megabytes at the start, and at the peak.
    """

    def __enter__(self) -> Self:
        self.before = self.peak = _anonymous_megabytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, _anonymous_megabytes())


def main() -> None:
    """Measure every size in a child process, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the largest data")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "MEGABYTES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(_measure(arguments.one[0], float(arguments.one[1]))))
        return
    print("| data | MB | before the fit, without data | peak of the fit, more than that and the data |")
    print("|---|---|---|---|")
    for kind in ("array", "memory map"):
        for share in (0.125, 0.5, 1.0):
            size = 1024 * arguments.gigabytes * share
            command = [sys.executable, __file__, "--one", kind, str(size)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            result = json.loads(output.splitlines()[-1])
            print(f"| {kind} | {size:.0f} | {result['base']:.0f} MB | {result['extra']:.0f} MB |")


def _measure(kind: str, megabytes: float) -> dict[str, float]:
    from onnxsgd import OnnxSGDRegressor

    estimator = OnnxSGDRegressor(
        max_iter=1, tol=None, batch_size=_BATCH_SIZE, learning_rate="invscaling", eta0=1e-4, random_state=0
    )
    small = np.zeros((_BATCH_SIZE, _N_FEATURES), np.float32)
    # The memory that libraries take once, on their first use, is not part of a fit.
    estimator.fit(small, small[:, 0])
    n_rows = int(megabytes * _MEGABYTE) // (4 * _N_FEATURES)
    with tempfile.TemporaryDirectory() as folder:
        X = _make_data(kind, Path(folder) / "data", (n_rows, _N_FEATURES))
        y = np.array(X[:, 0])
        in_memory = X.nbytes / _MEGABYTE if kind == "array" else 0.0
        with PeakMemory() as memory:
            estimator.fit(X, y)
        return {"base": memory.before - in_memory, "extra": memory.peak - memory.before}


def _make_data(kind: str, path: Path, shape: tuple[int, int]) -> Any:
    if kind == "array":
        X: Any = np.empty(shape, np.float32)
    else:
        X = np.memmap(path, np.float32, "w+", shape=shape)
    rng = np.random.default_rng(0)
    for start in range(0, len(X), 10_000):
        part = X[start : start + 10_000]
        part[...] = rng.random(part.shape, dtype=np.float32)
    return X


def _anonymous_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no RssAnon: this benchmark needs Linux")


if __name__ == "__main__":
    main()
