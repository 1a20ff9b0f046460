"""Tasks of a fit on the workers of Dask."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any
from uuid import uuid4

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future, Scheduler

from onnxsgd.exceptions import WorkersLostError

__all__ = ["TIMEOUT", "DaskExecutor"]

#: The entry of Dask's configuration with the time for which a fit waits without any worker.
TIMEOUT = "onnxsgd.workers-timeout"
#: Its default, and the seconds between two looks at the workers.
_DEFAULT_TIMEOUT, _LOOK = "60s", 2.0
#: The largest source without Dask's warning of large graphs: a state embedded in its task is meant.
_LARGEST_SOURCE = {"distributed.admin.large-graph-warning-threshold": "4 GiB"}


class DaskExecutor:
    """The engine of a fit: a client of Dask.

    Parameters
    ----------
    client : distributed.Client
        The client.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._timeout = float(parse_timedelta(dask.config.get(TIMEOUT, _DEFAULT_TIMEOUT)))

    def source(self, value: object) -> Future:
        """Return a task that holds a value itself."""
        with dask.config.set(_LARGEST_SOURCE):
            return self._submitted(_itself, value, key=_key("source"))

    def submit(self, function: Callable[..., Any], *arguments: object) -> Future:
        """Return a task."""
        return self._submitted(function, *arguments, key=_key(function.__name__))

    def _submitted(self, function: Callable[..., Any], *arguments: object, key: str) -> Future:
        try:
            return self.client.submit(function, *arguments, key=key, pure=False)
        except Exception as error:
            if self.client.status not in ("closing", "closed"):
                raise
            raise WorkersLostError(
                "The client of Dask is closed: its scheduler was closed, or was lost. The estimator keeps "
                "the last whole state, if it has made an update."
            ) from error

    def release(self, handles: Sequence[Future]) -> None:
        """Let the scheduler forget these tasks once none needs them."""
        for future in handles:
            future.release()

    def results(self, handles: Sequence[Future]) -> list[Any]:
        """Return the results of tasks.

        Raises
        ------
        WorkersLostError
            If there is no worker for the time of the configuration, or the scheduler is lost.
        """
        return [self._result(future) for future in handles]

    def _result(self, future: Future) -> Any:
        lost_at: float | None = None
        while True:
            try:
                return future.result(timeout=_LOOK if lost_at is None else min(_LOOK, self._timeout))
            except CancelledError as error:
                raise WorkersLostError(
                    f"The task {future.key!r} was cancelled, as client.restart() does; or the scheduler of "
                    "Dask was closed, or was lost. The estimator keeps the last whole state, if it has made "
                    "an update."
                ) from error
            except TimeoutError:
                if future.status == "error":
                    # that of the task, which may be a TimeoutError of its own
                    return future.result()
                if future.done():
                    # a result that takes long to come
                    continue
            n_workers, can_work = self.client.run_on_scheduler(_present_workers)
            if can_work:
                lost_at = None
                continue
            lost_at = time.monotonic() if lost_at is None else lost_at
            if time.monotonic() - lost_at >= self._timeout:
                found = "had no worker" if not n_workers else "had only workers that it has paused"
                advice = (
                    "start workers" if not n_workers else "give workers more memory, or smaller partitions"
                )
                raise WorkersLostError(
                    f"Dask has {found} for {self._timeout:g} seconds. The estimator keeps the last whole "
                    f"state, if it has made an update: {advice}, and call partial_fit, or fit with "
                    f"warm_start=True. dask.config.set({{{TIMEOUT!r}: '10 minutes'}}) waits longer."
                )


def _present_workers(dask_scheduler: Scheduler) -> tuple[int, bool]:
    """Return the number of workers, and whether one runs tasks: those short of memory begin none."""
    workers = dask_scheduler.workers.values()
    return len(workers), bool(dask_scheduler.running) or any(worker.executing for worker in workers)


def _itself(value: object) -> object:
    """Return a value: the task that holds it."""
    return value


def _key(name: str) -> str:
    return f"onnxsgd_{name}-{uuid4().hex}"
