"""Efficiency of rounds on 1 to 1,000 workers: ``python benchmarks/cluster_model.py [--measure]``.

The efficiency of a round is the time of its updates in units of the time of the round. A closed form gives it
from five numbers: the time of an update, the bytes of a source and of a change, the bandwidth of a worker,
the time that the scheduler takes for a task, and the latency between two tasks of which one needs the other.
Beside it stands a simulation of the tasks of a round one by one: the scheduler handles one event at a time,
each worker sends and receives one array at a time, and one that serves as many others as Dask allows refuses
the rest, which ask those that have the array by then.

The bytes are those of a round of a real fit. The times of an update, a task and a latency are arguments;
``--measure`` takes the last two from a cluster of two workers here.
"""

from __future__ import annotations

import argparse
import heapq
import math
import pickle
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier
from onnxsgd.distributed import fit_shards

#: The sends of a worker at a time, from which on others are told to ask elsewhere: Dask's default.
_SENDS = 50
#: The relative deviation of the times of updates between workers.
_NOISE = 0.02
#: Bytes that a worker adds in a second.
_ADDED = 2e9


@dataclass(frozen=True)
class Costs:
    """The numbers of a round.

    Attributes
    ----------
    work : float
        Seconds of the updates of a worker.
    down, up : int
        Bytes of the source, and of a change.
    bandwidth : float
        Bytes a second, of a worker in each direction.
    task, latency : float
        Seconds of the scheduler for a task, and between two tasks of which one needs the other.
    """

    work: float
    down: int
    up: int
    bandwidth: float
    task: float
    latency: float

    @property
    def send(self) -> float:
        """Seconds of a source on its way to one worker."""
        return self.down / self.bandwidth

    @property
    def add(self) -> float:
        """Seconds of a change on its way to a neighbour, and of its sum."""
        return self.up / self.bandwidth + self.up / _ADDED


def closed_form(costs: Costs, n: int) -> float:
    """Return the seconds of a round of n workers."""
    # the client sends the source to the scheduler, which sends it with its task
    ends = 2 * costs.send + 2 * costs.task + 2 * costs.latency + costs.up / costs.bandwidth
    levels = math.ceil(math.log2(n))
    # holders double with each send, but tasks are handed out one by one
    begun = max(levels * costs.send, n * costs.task)
    # the largest of n normal deviations
    work = costs.work * (1 + _NOISE * math.sqrt(2 * math.log(n)))
    sums = levels * (costs.latency + costs.add + costs.task)
    # tasks that are handed out one after the other report so: the scheduler has twice as many reports
    return ends + max(begun + work + sums + n * costs.task, 3 * n * costs.task)


class Simulation:
    """The tasks of a round on n workers, event by event."""

    def __init__(self, costs: Costs, n: int, seed: int = 0) -> None:
        self.costs, self.n, self.now = costs, n, 0.0
        self._events: list[tuple[float, int, object]] = []
        self._number = 0
        self._scheduler = 0.0
        self._out, self._in, self._cpu = np.zeros(n), np.zeros(n), np.zeros(n)
        self._sending = np.zeros(n, int)
        self._holders: list[int] = []
        self._done: dict[tuple[int, int], int] = {}
        self._random = np.random.default_rng(seed)

    def at(self, moment: float, action: object) -> None:
        """Let an action happen."""
        self._number += 1
        heapq.heappush(self._events, (moment, self._number, action))

    def scheduled(self, action: object) -> None:
        """Let the scheduler handle an event, after those before it; a worker knows after the latency."""
        self._scheduler = max(self._scheduler, self.now) + self.costs.task
        self.at(self._scheduler + self.costs.latency, action)

    def run(self) -> float:
        """Return the seconds of the round."""
        # the client sends the source to the scheduler, which sends it with its task
        self.at(2 * self.costs.send, lambda: self.scheduled(self._source_made))
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return self.now

    def _source_made(self) -> None:
        self._holders.append(0)
        for worker in range(self.n):
            self._scheduler = max(self._scheduler, self.now) + self.costs.task
            self.at(self._scheduler, lambda worker=worker: self._fetch(worker))

    def _fetch(self, worker: int) -> None:
        if worker == 0:
            self._compute(worker)
            return
        free = [holder for holder in self._holders if self._sending[holder] < _SENDS]
        if not free:
            self.at(self.now + self.costs.send, lambda: self._fetch(worker))
            return
        holder = min(free, key=lambda one: self._out[one])
        self._sending[holder] += 1
        start = max(self.now, self._out[holder], self._in[worker])
        self._out[holder] = self._in[worker] = start + self.costs.send

        def arrived() -> None:
            self._sending[holder] -= 1
            self._holders.append(worker)
            self._compute(worker)

        self.at(start + self.costs.send, arrived)

    def _compute(self, worker: int) -> None:
        work = self.costs.work * (1 + _NOISE * abs(self._random.standard_normal()))
        self.at(self.now + work, lambda: self._finished(0, worker, worker))

    def _finished(self, level: int, place: int, worker: int) -> None:
        """Report a change or a sum of changes; the pair of two is added where the first is."""
        width = self.n
        for _ in range(level):
            width = -(-width // 2)
        if width == 1:
            self.at(self.now + self.costs.up / self.costs.bandwidth + self.costs.latency, lambda: None)
            return
        self._done[level, place] = worker
        pair = place - place % 2
        if pair + 1 == width:
            self._finished(level + 1, pair // 2, worker)
        elif (level, pair) in self._done and (level, pair + 1) in self._done:
            first, second = self._done[level, pair], self._done[level, pair + 1]
            self.scheduled(lambda: self._add(level, pair, first, second))
        else:
            # the report of the first of two
            self._scheduler = max(self._scheduler, self.now) + self.costs.task

    def _add(self, level: int, pair: int, first: int, second: int) -> None:
        start = max(self.now, self._out[second], self._in[first])
        end = start + self.costs.up / self.costs.bandwidth
        self._out[second] = self._in[first] = end
        end = max(end, self._cpu[first]) + self.costs.up / _ADDED
        self._cpu[first] = end
        self.at(end, lambda: self._finished(level + 1, pair // 2, first))


class Recorder:
    """An engine in this process that records the bytes of sources and of results."""

    def __init__(self) -> None:
        self.sources: list[int] = []
        self.changes: list[int] = []

    def source(self, value: object) -> object:
        """Return the value."""
        self.sources.append(len(pickle.dumps(value, protocol=5)))
        return value

    def submit(self, function: object, *arguments: object) -> object:
        """Return the result."""
        found = function(*arguments)
        if function.__name__ == "local_updates":
            self.changes.append(len(pickle.dumps(found, protocol=5)))
        return found

    def release(self, handles: object) -> None:
        """Do nothing."""

    def results(self, handles: object) -> list[object]:
        """Return the values."""
        return list(handles)


def bytes_of_round(layers: tuple[int, ...], n_columns: int, **params: object) -> tuple[int, int]:
    """Return the bytes of the source of a round, and of a change."""
    random = np.random.default_rng(0)
    X, y = random.standard_normal((512, n_columns), np.float32), np.arange(512) % 10
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier(layers, max_iter=1, learning_rate_init=1e-9).fit(X, y) if layers else None
        engine = Recorder()
        learner = OnnxSGDClassifier(model, max_iter=1, tol=None, batch_size=32, random_state=0, **params)
        fit_shards(learner, [(X[:256], y[:256]), (X[256:], y[256:])], engine, sync_every=8)
    return engine.sources[-1], max(engine.changes)


def measured_costs() -> tuple[float, float]:
    """Return the seconds of a task, and between two tasks, on a cluster of two workers here."""
    # the folder of this file has a module named like a library that dask imports
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent]
    from dask.distributed import Client, LocalCluster

    def same(value: object) -> object:
        return value

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        tasks, chains = [], []
        for _ in range(5):
            start = time.perf_counter()
            client.gather([client.submit(same, number, pure=False) for number in range(1000)])
            tasks.append((time.perf_counter() - start) / 1000)
            start = time.perf_counter()
            link = client.submit(same, 0, pure=False)
            for _ in range(49):
                link = client.submit(same, link, pure=False)
            link.result()
            chains.append((time.perf_counter() - start) / 50)
    return min(tasks), min(chains)


def main() -> None:
    """Print the efficiencies of some models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 16, 64, 256, 1000])
    parser.add_argument("--gigabits", nargs="+", type=float, default=[10, 100])
    parser.add_argument("--every", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--update", type=float, default=5e-3, help="seconds of an update")
    parser.add_argument("--task", type=float, default=5e-4, help="seconds of the scheduler for a task")
    parser.add_argument("--latency", type=float, default=5e-3, help="seconds between two tasks")
    parser.add_argument("--measure", action="store_true", help="measure --task and --latency here")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    given = parser.parse_args()
    task, latency = measured_costs() if given.measure else (given.task, given.latency)
    down, up = bytes_of_round((512, 512), 784, learning_rate="constant", optimizer=given.optimizer)
    print(
        f"784-512-512-10 under {given.optimizer}: a source of {down:,} bytes, a change of {up:,};\n"
        f"{1e3 * given.update:g} ms an update, {1e3 * task:.2f} ms a task, {1e3 * latency:.1f} ms between two"
        "\n"
    )
    print(" Gb/s  every  workers  round, s  simulated  efficiency  simulated")
    for gigabits in given.gigabits:
        for sync_every in given.every:
            for n in given.workers:
                work = sync_every * given.update
                costs = Costs(work, down, up, gigabits * 1e9 / 8, task, latency)
                form, simulated = closed_form(costs, n), Simulation(costs, n).run()
                print(
                    f"{gigabits:5g} {sync_every:6} {n:8} {form:9.3f} {simulated:10.3f} {work / form:11.2f} "
                    f"{work / simulated:10.2f}"
                )


if __name__ == "__main__":
    main()
