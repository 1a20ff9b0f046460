"""Worker processes: the results of tasks, workers that end, errors, and remains."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from process_tasks import (
    change_of,
    doubled,
    fail,
    fail_unpicklably,
    killed,
    n_alive,
    pid,
    seen,
    slept,
    summed,
)

from onnxsgd.exceptions import WorkersLostError
from onnxsgd.sharding.changes import Change, add_changes
from onnxsgd.sharding.executor import reduced
from onnxsgd.sharding.process_executor import ProcessExecutor
from onnxsgd.sharding.worker_process import idle_workers

KEY = ("w", "weight")
WEIGHTS = {"w": np.arange(5000.0), "b": np.ones(3)}


@pytest.fixture
def executor(tmp_path, monkeypatch):
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path))
    with ProcessExecutor(2, 1_000_000) as executor:
        yield executor
    assert not list(tmp_path.iterdir())


def round_of(executor, number, n_tasks=2):
    """Return the sum of the changes of some tasks."""
    state = executor.source({name: array + number for name, array in WEIGHTS.items()})
    tasks = [executor.submit(change_of, state, part) for part in range(n_tasks)]
    total = reduced(executor, add_changes, tasks)
    (change,) = executor.results([total])
    executor.release([state, *tasks, total])
    return change.tensors


def test_rounds_have_the_sums_of_their_tasks_and_take_memory_once(executor, tmp_path):
    n_files = []
    for number in range(5):
        for n_tasks in (2, 3):
            found = round_of(executor, number, n_tasks)
            expected = n_tasks * (WEIGHTS["w"] + number) + sum(range(n_tasks))
            np.testing.assert_array_equal(found["w", "gradient"], expected)
        n_files.append(len(list(tmp_path.glob("*/*"))))
    # the weights, and the changes of each worker, one of which makes two of three
    assert max(n_files) <= 1 + 2 * 2


def test_arguments_are_values_sources_and_results(executor, tmp_path):
    data = executor.source([np.ones(5000), np.ones(2)])
    first = executor.submit(summed, data, 1)
    second = executor.submit(doubled, executor.submit(doubled, first))
    assert executor.results([second, first]) == [4 * 5003.0, 5003.0]
    executor.release([data, first, second])
    # data are removed with their handle
    assert not list(tmp_path.glob("*/*"))


def test_workers_forget_released_values(tmp_path):
    with ProcessExecutor(1, 1000) as executor:
        first, second = (executor.source(Change({KEY: np.ones(2)}, 0.0, 1.0)) for _ in range(2))
        executor.results([executor.submit(seen, value) for value in (first, second)])
        assert executor.results([executor.submit(n_alive)]) == [2]
        executor.release([first])
        assert executor.results([executor.submit(n_alive)]) == [1]
    with ProcessExecutor(1, 1000) as executor:
        # a later fit
        assert executor.results([executor.submit(n_alive)]) == [0]


def test_each_worker_gets_a_task_of_a_round(executor):
    pids = [executor.results([executor.submit(pid), executor.submit(slept, 0.05)])[0] for _ in range(2)]
    assert os.getpid() not in pids
    both = executor.results([executor.submit(slept, 0.2), executor.submit(pid), executor.submit(pid)])[1:]
    assert len({*both, *pids}) == 2


def test_tasks_of_ended_workers_run_again(executor, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    before = round_of(executor, 0)
    tasks = [executor.submit(killed, str(folder), number, number % 3) for number in range(5)]
    assert executor.results(tasks) == [0, 1, 2, 3, 4]
    after = round_of(executor, 0)
    np.testing.assert_array_equal(before["w", "gradient"], after["w", "gradient"])
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _run(executor, *task):
    with executor:
        return executor.results([executor.submit(*task)])


def test_a_task_that_always_ends_its_worker_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path))
    runs = tmp_path / "runs"
    runs.mkdir()
    executor = ProcessExecutor(2, 1000)
    with pytest.raises(WorkersLostError, match=r"ended 3 worker processes, the last .* exit code -9"):
        _run(executor, killed, str(runs), 0, 9)
    assert not executor.workers
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_errors_of_tasks_are_raised_with_their_lines(executor):
    with pytest.raises(ValueError, match="a reason") as raised:
        executor.results([executor.submit(fail)])
    assert "process_tasks.py" in raised.value.__notes__[0]
    with pytest.raises(RuntimeError, match="Unsendable"):
        executor.results([executor.submit(fail_unpicklably)])
    assert executor.results([executor.submit(doubled, 2)]) == [4]


def test_workers_are_kept_after_a_fit_and_ended_after_an_error():
    with ProcessExecutor(2, 1000) as executor:
        pids = {worker.pid for worker in executor.workers}
    executor = ProcessExecutor(2, 1000)
    workers = executor.workers
    assert {worker.pid for worker in workers} == pids
    with pytest.raises(ValueError, match="a reason"):
        _run(executor, fail)
    assert not any(worker.is_alive for worker in workers)
    with ProcessExecutor(1, 1000) as executor:
        task = executor.submit(slept, 60)
        workers = executor.workers
    # left in the middle of a task
    assert not task.is_done
    assert not workers[0].is_alive
    idle_workers.end()


@pytest.mark.slow
def test_workers_end_with_their_process_which_prints_nothing(tmp_path):
    script = (
        "from process_tasks import pid\nfrom onnxsgd.sharding.process_executor import ProcessExecutor\n"
        "import os\n"
        "with ProcessExecutor(2, 1000) as executor:\n"
        "    print(*executor.results([executor.submit(pid), executor.submit(pid)]), flush=True)\n"
        "if os.fork() == 0:\n    raise SystemExit\n"
        "os.wait()\n"
        "with ProcessExecutor(2, 1000) as executor:\n"
        "    print(*executor.results([executor.submit(pid), executor.submit(pid)]), flush=True)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert found.stderr == ""
    first, second = found.stdout.splitlines()
    # the child did not end the workers of its parent
    assert set(second.split()) <= set(first.split())
    for number in first.split():
        assert not Path("/proc", number).exists()
