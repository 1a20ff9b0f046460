"""An engine of worker processes of this machine, which share the memory of values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Self

from onnxsgd.exceptions import WorkersLostError
from onnxsgd.sharding.changes import add_changes
from onnxsgd.sharding.shared_values import SharedFolder, SharedValues, StoredValue
from onnxsgd.sharding.worker_process import Answer, Order, ValueNumber, WorkerProcess, idle_workers

__all__ = ["ProcessExecutor"]

#: The workers that one task may end: further ones would end too.
_MOST_DEATHS = 3
#: Functions that run in the process of the fit, where their result is needed: sending their arguments takes
#: as long.
_HERE = frozenset({add_changes})


@dataclass(eq=False)
class _Place:
    """A worker, the task that it runs, and the news that it gets with the next one."""

    worker: WorkerProcess
    task: _Task | None = None
    known: set[int] = field(default_factory=set)
    forgotten: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    freed: list[str] = field(default_factory=list)


@dataclass(eq=False)
class _Task:
    """A task, or a value that the process of the fit has; its result as soon as it is known."""

    number: int
    function: Callable[..., Any] | None = None
    arguments: tuple[object, ...] = ()
    stored: StoredValue | None = None
    value: Any = None
    error: BaseException | None = None
    is_done: bool = False
    #: The worker that has written the result; None: this process.
    place: _Place | None = None
    n_deaths: int = 0


class ProcessExecutor:
    """Worker processes, each of which runs a task at a time.

    A worker that ends is replaced, and its task runs again. As many tasks as there are workers go to the same
    workers in each round, which have their data in their caches. A task waits for its arguments before it is
    submitted.

    Parameters
    ----------
    n_workers : int
        The number of processes.
    n_bytes : int
        The bytes of the values that they share.

    Raises
    ------
    OSError
        If no folder has room for them.
    """

    def __init__(self, n_workers: int, n_bytes: int) -> None:
        self._count = 0
        self._waiting, self._places = deque[_Task](), list[_Place]()
        self._folder = SharedFolder(n_bytes)
        with ExitStack() as undo:
            undo.callback(self._folder.remove)
            self._shared = SharedValues(self._folder.path, "fit")
            self._places = [_Place(worker) for worker in idle_workers.take(n_workers)]
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        places, self._places = self._places, []
        try:
            for place in places:
                # one with a task would be in the middle of it
                is_kept = kind is None and place.task is None and place.worker.end_fit()
                if is_kept:
                    idle_workers.give_back(place.worker)
                else:
                    place.worker.end()
        finally:
            self._folder.remove()

    @property
    def workers(self) -> list[WorkerProcess]:
        """The present workers."""
        return [place.worker for place in self._places]

    def source(self, value: object) -> _Task:
        """Return the handle of a value, whose arrays are copied to shared memory."""
        return _Task(self._next_number(), stored=self._shared.store(value), value=value, is_done=True)

    def submit(self, function: Callable[..., Any], *arguments: object) -> _Task:
        """Return a task, which begins as soon as a worker is free."""
        task = _Task(self._next_number(), function, arguments)
        if function not in _HERE:
            for part in arguments:
                if isinstance(part, _Task):
                    self._result(part)
            self._waiting.append(task)
            self._send_waiting()
        return task

    def release(self, handles: Sequence[_Task]) -> None:
        """Free the memory of results."""
        for task in handles:
            stored, task.stored, task.value = task.stored, None, None
            for place in self._places:
                if task.number in place.known:
                    place.known.discard(task.number)
                    place.forgotten.append(task.number)
            if stored is not None and stored.file is not None:
                self._free(task, stored, stored.file)

    def _free(self, task: _Task, stored: StoredValue, file: str) -> None:
        if not stored.is_of_round or (task.place is not None and task.place not in self._places):
            self._shared.remove(file)
            for place in self._places:
                place.removed.append(file)
        elif task.place is None:
            self._shared.free(file)
        else:
            task.place.freed.append(file)

    def results(self, handles: Sequence[_Task]) -> list[Any]:
        """Return the results of tasks.

        Raises
        ------
        WorkersLostError
            If a task ends each worker that runs it.
        """
        return [self._result(task) for task in handles]

    def _next_number(self) -> int:
        self._count += 1
        return self._count

    def _result(self, task: _Task) -> Any:
        if task.function in _HERE and not task.is_done:
            found = [self._result(part) if isinstance(part, _Task) else part for part in task.arguments]
            task.value, task.is_done = task.function(*found), True
        while not task.is_done:
            self._wait()
        if task.error is not None:
            raise task.error
        if task.value is None and task.stored is not None:
            task.value = self._shared.load(task.stored)
        return task.value

    def _send_waiting(self) -> None:
        """Give tasks to workers without one."""
        for place in self._places:
            if self._waiting and place.task is None:
                self._send(place, self._waiting.popleft())

    def _send(self, place: _Place, task: _Task) -> None:
        """Let a worker run a task, with the values that it lacks."""
        values, arguments = dict[int, StoredValue](), list[object]()
        for part in task.arguments:
            if isinstance(part, _Task):
                if part.stored is None:
                    part.stored = self._shared.store(part.value)
                if part.number not in place.known:
                    values[part.number] = part.stored
                arguments.append(ValueNumber(part.number))
            else:
                arguments.append(part)
        order = Order(
            task.number, self._folder.path, task.function, tuple(arguments), values,
            tuple(place.forgotten), tuple(place.removed), tuple(place.freed),
        )  # fmt: skip
        place.task = task
        place.known |= values.keys()
        place.forgotten, place.removed, place.freed = [], [], []
        place.worker.send(order)

    def _wait(self) -> None:
        """Wait for the end of a task."""
        busy = {place.worker.connection: place for place in self._places if place.task is not None}
        for connection in wait(list(busy)):
            place = busy[connection]
            answer = place.worker.answer()
            if answer is None:
                self._replace(place)
            else:
                self._end(place, answer)
        self._send_waiting()

    def _end(self, place: _Place, answer: Answer) -> None:
        """Take the result of a task."""
        task, place.task = place.task, None
        if task is None or answer.number != task.number:
            raise RuntimeError(f"A worker answered task {answer.number}, which it does not have.")
        task.stored, task.error, task.is_done, task.place = answer.value, answer.error, True, place
        task.arguments = ()
        if task.error is not None:
            task.error.add_note(f"In a worker process:\n{answer.lines}")

    def _replace(self, place: _Place) -> None:
        """Put another worker in the place of one that has ended; its task runs again."""
        place.worker.end()
        task = place.task
        (worker,) = idle_workers.take(1)
        self._places[self._places.index(place)] = _Place(worker)
        if task is None:
            return
        task.n_deaths += 1
        if task.n_deaths == _MOST_DEATHS:
            raise WorkersLostError(
                f"A task of the fit ended {task.n_deaths} worker processes, the last one with exit code "
                f"{place.worker.exit_code}; they may lack memory. The estimator keeps the last whole state, "
                "if it has made an update: train with n_jobs=1."
            )
        self._waiting.appendleft(task)
