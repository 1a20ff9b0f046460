"""Fits under a limit of memory: ``python tests/hostile/memory_limits.py [--rows 2000000] [--case NAME]``.

Each is a child that makes a small fit, which loads the libraries, limits the writable memory of its process
(RLIMIT_DATA) to what it has then and the formula of ``docs/guide/memory.rst``, and trains on a memory map. A
copy of the data, or of a few numbers for each row, ends with MemoryError. Prints the peak of each fit as
well, less the memory before, from a second child without the limit (Linux: RssAnon).
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

#: The cases: type, order and columns of the map, parameters, outputs or classes, sample weights.
CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "float64": {"dtype": "float64"},
    "fortran": {"order": "F"},
    "fortran, float64, five outputs": {"order": "F", "dtype": "float64", "outputs": 5},
    "early stopping": {"early_stopping": True},
    "early stopping, half, five outputs": {"early_stopping": True, "validation_fraction": 0.5, "outputs": 5},
    "early stopping, float64, auto": {"early_stopping": True, "dtype": "float64", "auto": True},
    "early stopping, weights": {"early_stopping": True, "weights": True, "classes": 2},
    "classes, auto": {"classes": 10, "auto": True},
    "strings, balanced": {"classes": 5, "strings": True, "class_weight": "balanced", "early_stopping": True},
    "single rows": {"batch_size": 1, "weights": True},
    "network": {"network": True, "classes": 3, "early_stopping": True},
    "network, auto": {"network": True, "auto": True, "weights": True},
    "in order": {"shuffle": False, "dtype": "float64"},
    "by blocks": {"shuffle": "blocks"},
    "by blocks, early stopping, float64": {"shuffle": "blocks", "early_stopping": True, "dtype": "float64"},
    "by blocks, from the disk": {"shuffle": "blocks", "from_disk": True},
    "by blocks, from the disk, float64, auto": {
        "shuffle": "blocks",
        "from_disk": True,
        "dtype": "float64",
        "auto": True,
        "early_stopping": True,
    },
    "by blocks, from the disk, 784 columns": {"shuffle": "blocks", "from_disk": True, "columns": 784},
    "by blocks, from the disk, 784 columns, fortran, float64": {
        "shuffle": "blocks",
        "from_disk": True,
        "columns": 784,
        "order": "F",
        "dtype": "float64",
    },
    "by blocks, network, auto": {"shuffle": "blocks", "network": True, "auto": True, "weights": True},
}
_N_COLUMNS, _SMALL, _MEGABYTE = 32, 40_000, 2**20
_OWN = (
    "dtype", "order", "columns", "outputs", "classes", "strings", "weights", "auto", "network", "from_disk",
)  # fmt: skip


def rows_of(case: dict[str, Any], n_rows: int) -> int:
    """Return the rows of a table with the columns of a case that has the bytes of one with 32."""
    return n_rows * _N_COLUMNS // int(case.get("columns", _N_COLUMNS))


def allowance(case: dict[str, Any], n_rows: int) -> int:
    """Return the bytes of the formula."""
    n_classes = case.get("classes", 2)
    n_outputs = max(case.get("outputs", 1), n_classes if n_classes > 2 else 1)
    return 64 * _MEGABYTE + n_rows * (16 + 8 * (n_outputs - 1))


def make_data(case: dict[str, Any], n_rows: int, path: Path) -> tuple[Any, Any, Any]:
    """Return the features in a memory map, the targets and the weights."""
    rng, is_fortran = np.random.default_rng(0), case.get("order") == "F"
    dtype = case.get("dtype", "float32")
    shape = (n_rows, case.get("columns", _N_COLUMNS))
    X = np.lib.format.open_memmap(path, "w+", dtype, shape, fortran_order=is_fortran)
    for start in range(0, n_rows, 50_000):
        part = X[start : start + 50_000]
        part[...] = rng.normal(size=part.shape)
    weight = rng.uniform(0.5, 2, n_rows) if case.get("weights") else None
    if "classes" in case:
        y: Any = np.digitize(X[:, 0], np.linspace(-1, 1, case["classes"] - 1))
        y = np.char.add("label", np.arange(10).astype(str))[y] if case.get("strings") else y
    else:
        y = np.array(X[:, : case.get("outputs", 1)], np.float64)
        y = y[:, 0] if y.shape[1] == 1 else y
    return X, y, weight


def train(name: str, n_rows: int, folder: Path, *, is_limited: bool) -> float:
    """Make the fit of a case; return the megabytes of its peak, 0 under the limit."""
    import resource

    from sklearn.neural_network import MLPClassifier, MLPRegressor

    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
    from onnxsgd.data.mapped_files import FileRows

    warnings.simplefilter("ignore")
    case = CASES[name]
    small = make_data(case, rows_of(case, _SMALL), folder / "small.npy")
    X, y, weight = make_data(case, n_rows, folder / "large.npy")
    parameters = {key: value for key, value in case.items() if key not in _OWN}
    if not case.get("auto"):
        parameters |= {"learning_rate": "constant", "eta0": 1e-3}
    is_classifier = "classes" in case
    if case.get("network"):
        model = (MLPClassifier if is_classifier else MLPRegressor)(hidden_layer_sizes=16, max_iter=2)
        parameters["model"] = model.fit(small[0][:500], small[1][:500])
    kind = OnnxSGDClassifier if is_classifier else OnnxSGDRegressor
    learner = kind(max_iter=2, tol=None, random_state=0, n_threads=1, **parameters)
    learner.fit(*small)
    if case.get("from_disk"):
        # as of a file that is larger than memory
        FileRows.is_cached = lambda self, rows: False  # type: ignore[method-assign]
    if is_limited:
        limit = _status("VmData") + allowance(case, n_rows)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        learner.fit(X, y, weight)
        return 0.0
    before, peak, done = _status("RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.004):
            peak[0] = max(peak[0], _status("RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        learner.fit(X, y, weight)
    finally:
        done.set()
        thread.join()
    return (peak[0] - before) / _MEGABYTE


def _status(field: str) -> int:
    """Return a number of bytes that the system reports of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def run_child(name: str, n_rows: int, *, is_limited: bool) -> subprocess.CompletedProcess[str]:
    """Make the fit of a case in a child."""
    command = [sys.executable, __file__, "--rows", str(n_rows), "--case", name]
    kind = "--limited" if is_limited else "--measured"
    return subprocess.run([*command, kind], capture_output=True, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--limited", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measured", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.limited or arguments.measured:
        n_rows = rows_of(CASES[arguments.case], arguments.rows)
        with tempfile.TemporaryDirectory() as folder:
            print(train(arguments.case, n_rows, Path(folder), is_limited=arguments.limited))
        return 0
    n_failed = 0
    print("| case | peak, MB | formula, MB | under the limit |")
    print("|---|---|---|---|")
    for name in [arguments.case] if arguments.case else CASES:
        measured = run_child(name, arguments.rows, is_limited=False).stdout.strip() or "nan"
        limited = run_child(name, arguments.rows, is_limited=True)
        n_failed += limited.returncode != 0
        verdict = "passes" if limited.returncode == 0 else limited.stderr.strip().splitlines()[-1]
        megabytes = allowance(CASES[name], rows_of(CASES[name], arguments.rows)) / _MEGABYTE
        print(f"| {name} | {float(measured):.0f} | {megabytes:.0f} | {verdict} |", flush=True)
    return n_failed


if __name__ == "__main__":
    sys.exit(main())
