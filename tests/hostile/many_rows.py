"""Memory of fits of many rows on two workers of Dask: ``python tests/hostile/many_rows.py [--rows 20000000]``.

The workers generate the rows, by seeded functions. First ``partial_fit`` gets them in parts, as a stream; then
one ``fit`` gets all of them at once, which the workers hold. A table has the largest resident memory (Linux:
VmHWM) of the process of client and scheduler, and of each worker, in each part and in each epoch. Ends with an
assertion if memory grows from part to part or from epoch to epoch, if workers keep results of the stream, or if a
worker takes more than a small multiple of its share of the rows.
"""

import argparse
import gc
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, Worker, futures_of

from onnxsgd.dask import DaskOnnxSGDClassifier
from onnxsgd.training.loop import Observer
from onnxsgd.training.state import FitState

N_COLUMNS, N_CHUNKS = 10, 4
#: Bytes of a row: features in float32, a label in int64.
ROW_BYTES = 4 * N_COLUMNS + 8
#: The share of the parts, or of the epochs, that fill caches, the logs of Dask and the pools of the allocator.
WARM = 0.25
#: Megabytes by which memory may grow after them.
GROWTH = 25.0
#: The most memory of a worker in a fit: beside the worker itself with onnxruntime, in megabytes, and in units of
#: the bytes of its rows.
WORKER, MULTIPLE = 350.0, 1.5
SETTINGS: dict[str, Any] = {
    "learning_rate": "constant", "eta0": 0.05, "batch_size": 1024, "tol": None, "random_state": 0,
}  # fmt: skip


def rows_of(seed: int, n_rows: int) -> np.ndarray:
    """Return generated samples."""
    return np.random.default_rng(seed).standard_normal((n_rows, N_COLUMNS), np.float32)


def labels_of(X: np.ndarray) -> np.ndarray:
    """Return the labels of samples."""
    return (X @ np.linspace(-1, 1, N_COLUMNS, dtype=np.float32) > 0).astype(np.int64)


def collections(n_rows: int, first_seed: int) -> tuple[da.Array, da.Array]:
    """Return samples and labels that workers generate."""
    size = n_rows // N_CHUNKS
    X, y = [], []
    for seed in range(first_seed, first_seed + N_CHUNKS):
        chunk = dask.delayed(rows_of)(seed, size)
        X.append(da.from_delayed(chunk, (size, N_COLUMNS), np.float32))
        y.append(da.from_delayed(dask.delayed(labels_of)(chunk), (size,), np.int64))
    return da.concatenate(X), da.concatenate(y)


def megabytes_of(name: str) -> float:
    """Return a number of the status of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def restart_peak() -> float:
    """Let the peak of this process begin anew; return the last one."""
    peak = megabytes_of("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def of_worker(dask_worker: Worker) -> tuple[float, float]:
    """Return the peak of a worker since the last call, and the megabytes of the results that it holds."""
    held = sum(dask_worker.state.tasks[key].get_nbytes() for key in dask_worker.data)
    return restart_peak(), held / 1e6


class Memory:
    """The memory of client and scheduler, and of the workers.

    Parameters
    ----------
    client : distributed.Client
        The client; its scheduler is in this process.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def next(self, label: str) -> tuple[list[float], float]:
        """Print the peaks since the last call; return them, and what the workers hold."""
        found = list(self._client.run(of_worker).values())
        peaks, held = [restart_peak(), *(peak for peak, _ in found)], sum(held for _, held in found)
        print(f"{label:>9}", *(f"{number:9.1f}" for number in (*peaks, held)), flush=True)
        return peaks, held


def check_growth(peaks: Sequence[Sequence[float]], what: str) -> None:
    """Refuse peaks that grow after the first ones, in any process."""
    n_warm = max(1, round(WARM * len(peaks)))
    for name, of_process in zip(("client", "worker 0", "worker 1"), zip(*peaks, strict=True), strict=True):
        growth = max(of_process[n_warm:]) - max(of_process[:n_warm])
        print(f"{name}: {growth:+.1f} MB after {n_warm} {what}s")
        assert growth <= GROWTH, f"{name} grows by {growth:.1f} MB after {n_warm} {what}s"


def stream(client: Client, n_rows: int, n_parts: int) -> None:
    """Train on a stream of parts."""
    memory, peaks = Memory(client), []
    model = DaskOnnxSGDClassifier(client=client, **SETTINGS)
    memory.next("start")
    for number in range(n_parts):
        model.partial_fit(*collections(n_rows // n_parts, number * N_CHUNKS), classes=[0, 1])
        gc.collect()
        of_part, held = memory.next(f"part {number + 1}")
        peaks.append(of_part)
        most = 2 * n_rows // n_parts * ROW_BYTES / 1e6
        assert held <= most, f"workers hold {held:.1f} MB after part {number + 1}"
    check_growth(peaks, "part")


class EpochMemory(Observer):
    """The peaks of each epoch."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.peaks = memory, list[list[float]]()

    def epoch_ends(self, state: FitState) -> bool:
        """Keep the peaks."""
        self.peaks.append(self.memory.next(f"epoch {len(self.peaks) + 1}")[0])
        return False


class Watched(DaskOnnxSGDClassifier):
    """A classifier whose epochs are watched."""

    watcher: ClassVar[EpochMemory]

    def _observers(self, *arguments: Any) -> list[Observer]:
        return [*super()._observers(*arguments), self.watcher]


def at_once(client: Client, n_rows: int, n_epochs: int, sync_every: int | None) -> None:
    """Train on all rows, which the workers hold."""
    data = client.persist(collections(n_rows, 0))
    client.gather(client.map(len, futures_of(data)))
    memory = Memory(client)
    memory.next("data")
    Watched.watcher = EpochMemory(memory)
    model = Watched(client=client, **SETTINGS, max_iter=n_epochs, sync_every=sync_every)
    model.fit(*data)
    memory.next("end")
    peaks = model.watcher.peaks
    check_growth(peaks, "epoch")
    most = WORKER + MULTIPLE * n_rows * ROW_BYTES / 2 / 1e6
    found = max(map(max, (of_epoch[1:] for of_epoch in peaks)))
    assert found <= most, f"a worker takes {found:.1f} MB, above {most:.1f}"
    assert model.score(*data) > 0.99


def main() -> None:
    """Make both fits on one cluster each, whose workers have 1 thread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--parts", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for fit in (
        lambda client: stream(client, arguments.rows, arguments.parts),
        # fewer rounds
        lambda client: at_once(client, arguments.rows, arguments.epochs, 512),
    ):
        start = time.perf_counter()
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit="6GB"
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            print("peaks, MB:   client  worker 0  worker 1      held")
            fit(client)
        print(f"{time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
