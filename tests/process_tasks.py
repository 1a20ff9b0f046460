"""Tasks for worker processes, which import them."""

import os
import signal
import time
import weakref
from pathlib import Path

import numpy as np

from onnxsgd.sharding.changes import Change


def change_of(weights, part):
    """Return a change of the size of the weights."""
    return Change({(name, "gradient"): array + part for name, array in weights.items()}, float(part), 1.0)


def summed(arrays, more):
    """Return the sum of all numbers."""
    return float(sum(array.sum() for array in arrays)) + more


def doubled(value):
    """Return twice a value."""
    return 2 * value


def pid(*arguments):
    """Return the number of the process."""
    return os.getpid()


def fail(*arguments):
    """Raise an error."""
    raise ValueError("a reason")


def fail_unpicklably():
    """Raise an error that cannot be sent."""
    raise Unsendable(lambda: None)


class Unsendable(Exception):
    """An error with a function."""


def killed(folder, number, n_deaths):
    """Return a number; end the process the first times that the task runs."""
    runs = Path(folder, f"run-{number}")
    with runs.open("a") as file:
        file.write("x")
    if len(runs.read_text()) <= n_deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def slept(seconds):
    """Wait."""
    time.sleep(seconds)
    return np.zeros(5000)


_seen = []


def seen(change):
    """Keep a weak reference to an argument."""
    _seen.append(weakref.ref(change))


def n_alive():
    """Return how many arguments of :func:`seen` are in memory."""
    return sum(reference() is not None for reference in _seen)
