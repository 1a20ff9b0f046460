"""Fits that are killed at random moments and resumed: ``python tests/hostile/killed_fits.py --kills 1000``.

Each is a child that trains with checkpoints, is killed by SIGKILL after a random time, also while it converts,
compiles or writes, and is started again with ``resume=True`` until it ends. Its weights must then be, bit for
bit, those of a fit that nothing interrupted. Prints the number of kills, and how many fits ended.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

#: The settings of the fits: of the estimator, and the model inside.
SETTINGS = (
    {"checkpoint_every": 1},
    {"checkpoint_every": {"updates": 7}, "learning_rate": "invscaling", "optimizer": "adam", "max_iter": 12},
    {"checkpoint_every": {"seconds": 0.01}, "average": True, "max_iter": 20, "tol": None},
    {"checkpoint_every": 2, "early_stopping": True, "penalty": "l1", "learning_rate": "constant"},
)
#: The longest time from the start of a fit to its kill, as a share of the time of a whole fit.
_LONGEST = 1.2


def train(number: int, folder: Path, result: Path) -> None:
    """Make a fit, or continue it; write its weights."""
    import warnings

    from sklearn.datasets import load_digits

    from onnxsgd import OnnxSGDClassifier

    warnings.simplefilter("ignore")
    X, y = load_digits(return_X_y=True)
    learner = OnnxSGDClassifier(checkpoint=folder, random_state=0, n_threads=1, **SETTINGS[number])
    print("begins", flush=True)
    learner.fit(X, y, resume=True)
    np.savez(result, losses=learner.loss_curve_, t=learner.t_, **learner.get_weights())


def child(number: int, folder: Path, result: Path) -> subprocess.Popen[str]:
    """Start a fit; return once it begins."""
    command = [sys.executable, __file__, "--train", str(number), str(folder), str(result)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "begins"
    return process


def run(n_kills: int, seed: int, folder: Path) -> tuple[int, int]:
    """Kill fits so many times; return the number of kills, and of fits that ended as uninterrupted ones."""
    draw, known, n_killed, n_ended = random.Random(seed), dict[int, Any](), 0, 0
    while n_killed < n_kills or not n_ended:
        number = n_ended % len(SETTINGS)
        if number not in known:
            known[number] = _uninterrupted(number, folder)
        expected, seconds = known[number]
        result, place = folder / "result.npz", folder / "checkpoints"
        process = child(number, place, result)
        try:
            # the last fit may end
            process.wait(draw.uniform(0.0, _LONGEST * seconds) if n_killed < n_kills else 600.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            n_killed += 1
            _check_files(place)
            if n_killed % 100 == 0:
                print(f"{n_killed} kills, {n_ended} fits ended", flush=True)
            continue
        finally:
            process.stdout.close()
        assert process.returncode == 0, f"setting {number} ended with {process.returncode}"
        _compare(np.load(result), expected, number)
        shutil.rmtree(place)
        n_ended += 1
    return n_killed, n_ended


def _uninterrupted(number: int, folder: Path) -> tuple[dict[str, np.ndarray], float]:
    """Return the weights of a fit that nothing interrupts, and its time."""
    result, place = folder / f"whole-{number}.npz", folder / "whole"
    with child(number, place, result) as process:
        begin = time.monotonic()
        assert process.wait(600) == 0
    seconds = time.monotonic() - begin
    shutil.rmtree(place)
    return dict(np.load(result)), seconds


def _check_files(place: Path) -> None:
    """Load the checkpoints under their final names: all of them are whole."""
    import onnxsgd

    for path in place.glob("checkpoint-*"):
        onnxsgd.load(path)


def _compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], number: int) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=f"setting {number}, {name}")


def main() -> None:
    """Parse the command line; kill fits, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", nargs=3, metavar=("NUMBER", "FOLDER", "RESULT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        number, folder, result = arguments.train
        train(int(number), Path(folder), Path(result))
        return
    with tempfile.TemporaryDirectory() as folder:
        n_killed, n_ended = run(arguments.kills, arguments.seed, Path(folder))
    print(f"{n_killed} kills, {n_ended} fits ended with the weights of uninterrupted ones")


if __name__ == "__main__":
    main()
