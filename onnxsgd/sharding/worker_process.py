"""A worker process of this machine, which runs the tasks of fits one after the other."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import process as multiprocessing_process
from multiprocessing.connection import Connection
from typing import Any
from weakref import WeakSet

from onnxsgd.runtime.forks import call_in_child, new_lock
from onnxsgd.sharding.shared_values import SharedValues, StoredValue

__all__ = ["Answer", "Order", "ValueNumber", "WorkerProcess", "idle_workers"]

#: The seconds after which a process without work ends, as those of joblib do.
_IDLE = 300.0
#: Sessions of the runtime have their own threads: BLAS would start more.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class ValueNumber:
    """The place of a value among the arguments of a task."""

    number: int


@dataclass(frozen=True)
class Order:
    """A task for a worker, and the values that come and go.

    Attributes
    ----------
    number : int
        The number of the task.
    folder : str
        The folder of the files of the fit.
    function : callable
        The task.
    arguments : tuple
        Its arguments; values in the place of their numbers.
    values : dict of StoredValue
        The values that the worker does not know yet, by number.
    forgotten : tuple of int
        Values that no task needs any more.
    removed : tuple of str
        Files that were removed.
    freed : tuple of str
        Files of the worker that may be written again.
    """

    number: int
    folder: str
    function: Any
    arguments: tuple[object, ...]
    values: dict[int, StoredValue] = field(default_factory=dict)
    forgotten: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    freed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The end of a task: its result, or its error with the lines where it was raised."""

    number: int
    value: StoredValue | None
    error: BaseException | None = None
    lines: str = ""


def serve(connection: Connection, owner: str) -> None:
    """Run tasks until there are none for a while, or the process that sends them has ended."""
    # Ctrl-C is for the process of the fit, which ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fit: _FitInWorker | None = None
    while True:
        try:
            message = connection.recv_bytes() if connection.poll(_IDLE) else b""
        except (EOFError, OSError):
            return
        if not message:
            return
        order = pickle.loads(message)
        if order is None:
            # the end of a fit
            fit = None
            continue
        if fit is None or fit.folder != order.folder:
            fit = _FitInWorker(order.folder, owner)
        answer = fit.answer(order)
        del order
        try:
            connection.send_bytes(pickle.dumps(answer, protocol=5))
        except OSError:
            return


class _FitInWorker:
    """The values of one fit in a worker."""

    def __init__(self, folder: str, owner: str) -> None:
        self.folder = folder
        self._shared = SharedValues(folder, owner)
        self._values: dict[int, Any] = {}

    def answer(self, order: Order) -> Answer:
        """Run a task; any error of it is one of the process of the fit."""
        try:
            return Answer(order.number, self._shared.store(self._result(order)))
        except Exception as error:
            return _failed(order.number, error)

    def _result(self, order: Order) -> Any:
        """Return the result of a task, after the news that come with it."""
        self._shared.forget(order.removed)
        for number in order.forgotten:
            self._values.pop(number, None)
        for name in order.freed:
            self._shared.free(name)
        for number, stored in order.values.items():
            self._values[number] = self._shared.load(stored)
        arguments = [
            self._values[part.number] if isinstance(part, ValueNumber) else part for part in order.arguments
        ]
        return order.function(*arguments)


def _failed(number: int, error: Exception) -> Answer:
    """Return the answer that tells an error, which may not be one that can be sent."""
    lines = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Answer(number, None, error, lines)


#: The workers that this process has started, and their numbers.
_numbers = itertools.count()
_started = WeakSet["WorkerProcess"]()


class WorkerProcess:
    """A worker process, as the process of a fit knows it.

    It is started by loky, so that scripts need no guard of their main module, and ends with this process.
    """

    def __init__(self) -> None:
        # not before a fit needs processes
        from joblib.externals.loky.backend.context import get_context

        context = get_context("loky")
        self.connection, theirs = context.Pipe()
        self._process: Any = context.Process(
            target=serve, args=(theirs, f"{os.getpid()}-{next(_numbers)}"), daemon=True, env=_ONE_THREAD
        )
        self._process.start()
        theirs.close()
        _started.add(self)

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        return bool(self._process.is_alive())

    @property
    def pid(self) -> int:
        """The number of the process."""
        return int(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended; that of a signal is negative."""
        code: int | None = self._process.exitcode
        return code

    def send(self, order: Order) -> None:
        """Send a task, unless the process has ended, which :meth:`answer` tells."""
        message = pickle.dumps(order, protocol=5)
        with suppress(OSError):
            self.connection.send_bytes(message)

    def answer(self) -> Answer | None:
        """Return the answer to the last task; None: the process has ended."""
        try:
            answer: Answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return answer

    def end_fit(self) -> bool:
        """Let the process forget the values of a fit; return whether it can."""
        try:
            self.connection.send_bytes(pickle.dumps(None))
        except OSError:
            return False
        return True

    def end(self) -> None:
        """End the process at once."""
        self._process.terminate()
        self._process.join()
        self.connection.close()


class _IdleWorkers:
    """The worker processes without work, which later fits use: starting one takes a second."""

    def __init__(self) -> None:
        self._lock, self._workers = new_lock(), list[WorkerProcess]()
        call_in_child(self._begin_child)

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers at present."""
        return list(self._workers)

    def take(self, count: int) -> list[WorkerProcess]:
        """Return so many workers that no other fit uses; some are started."""
        with self._lock:
            alive = [worker for worker in self._workers if worker.is_alive]
            taken, self._workers = alive[:count], alive[count:]
        while len(taken) < count:
            taken.append(WorkerProcess())
        return taken

    def give_back(self, worker: WorkerProcess) -> None:
        """Keep a worker for later fits."""
        with self._lock:
            self._workers.append(worker)

    def end(self) -> None:
        """End the workers."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()

    def _begin_child(self) -> None:
        """Forget the workers of the process that forked, which a child would end and wait for at its exit."""
        for worker in _started:
            # as multiprocessing does in the children that it forks itself
            multiprocessing_process._children.discard(worker._process)  # type: ignore[attr-defined]
        _started.clear()
        self._workers = []


idle_workers = _IdleWorkers()
