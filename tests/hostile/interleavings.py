"""Random interleavings of calls of threads: ``python tests/hostile/interleavings.py --cases 10000``.

In each case, two to four threads make random calls, from a seed, on an estimator that they share and on one of
their own: fit, partial_fit, predict, pickles, clones, files, set_params, set_weights; and some are interrupted by
KeyboardInterrupt, at any moment. Promised and checked:

- predictions are those of the weights at the beginning or the end of a call that trains, of none in between;
- pickles, copies and files hold such a state, whose counts and histories agree;
- an estimator of one thread has the numbers of the same calls in sequence;
- nothing hangs, and no call raises an error.
"""

import argparse
import copy
import ctypes
import faulthandler
import pickle
import random
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.neural_network import MLPClassifier

import onnxsgd
from onnxsgd import OnnxSGDClassifier
from onnxsgd.exceptions import OnnxSGDError

#: Seconds after which a case has hung.
PATIENCE = 60
X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)
ROWS = X[::10]
#: For files. The threads remove no folders: interrupted, shutil.rmtree closes a descriptor twice.
_FOLDER = tempfile.TemporaryDirectory()
_NETWORK = MLPClassifier((4,), random_state=0)
_NETWORK.partial_fit(X[:9], np.arange(9) % 3, classes=[0, 1, 2])
NAMED = {"learning_rate": "constant", "eta0": 1e-2, "batch_size": 16}
PARAMETERS: tuple[dict[str, Any], ...] = (
    {},
    {**NAMED, "optimizer": "adam"},
    {"model": _NETWORK},
    {**NAMED, "average": True, "warm_start": True},
)


class Case:
    """One case: the estimators, the calls, and a check of each state that is seen."""

    def __init__(self, seed: int, n_calls: int = 4) -> None:
        self.draw = random.Random(seed)
        self.parameters = PARAMETERS[seed % len(PARAMETERS)]
        self.errors: list[str] = []
        self.interrupted = 0
        self.shared = self.new(0)
        self.begins_fitted = self.draw.random() < 0.8
        if self.begins_fitted:
            self.shared.fit(X, Y)
        n_threads = self.draw.randint(2, 4)
        self.plans = [
            [(self.draw.choice(CALLS), self.draw.random() < 0.6, self.draw.randrange(100))
             for _ in range(n_calls)]
            for _ in range(n_threads)
        ]  # fmt: skip
        self.interrupts = self.draw.random() < 0.5

    def new(self, seed: int) -> OnnxSGDClassifier:
        """Return a new estimator."""
        return OnnxSGDClassifier(**{"max_iter": 3, "tol": None, "random_state": seed, **self.parameters})

    def run(self) -> None:
        """Run the threads, interrupt some, and compare."""
        threads = [
            threading.Thread(target=self._thread, args=(number, plan))
            for number, plan in enumerate(self.plans)
        ]
        for thread in threads:
            thread.start()
        while self.interrupts and any(thread.is_alive() for thread in threads):
            time.sleep(self.draw.uniform(0.0, 0.01))
            _interrupt(self.draw.choice(threads))
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                raise TimeoutError("a thread hangs")
        # the estimator works on
        self._check(self.shared.fit(X, Y), "the last fit")

    def _thread(self, number: int, plan: list[Any]) -> None:
        own, done = self.new(number), []
        for name, is_shared, argument in plan:
            try:
                estimator = self.shared if is_shared else own
                if not is_shared and name in CHANGING:
                    done.append((name, argument))
                getattr(self, f"_{name}")(estimator, argument)
            except KeyboardInterrupt:
                self.interrupted += 1
                done = None if not is_shared else done
                break
            except OnnxSGDError as error:
                if "fitted" not in str(error) and "classes" not in str(error):
                    self.errors.append(f"{name}: {error!r}")
            except Exception as error:
                # during a first fit attributes are those of the moment, and predictions those before
                is_first = is_shared and not self.begins_fitted
                if not (is_first and type(error).__name__ in ("NotFittedError", "AttributeError")):
                    self.errors.append(f"{name}, shared {is_shared}: {error!r}")
        try:
            if done and not self.interrupts:
                again = self.new(number)
                for name, argument in done:
                    getattr(self, f"_{name}")(again, argument)
                self._same(own, again)
        except KeyboardInterrupt:
            pass

    def _same(self, first: OnnxSGDClassifier, second: OnnxSGDClassifier) -> None:
        if hasattr(first, "t_") != hasattr(second, "t_"):
            self.errors.append("one of two equal estimators is fitted")
        elif hasattr(first, "t_"):
            pairs = zip(first.get_weights().values(), second.get_weights().values(), strict=True)
            if not all(np.array_equal(a, b) for a, b in pairs):
                self.errors.append("an estimator of one thread has other weights than in sequence")

    def _check(self, estimator: OnnxSGDClassifier, source: str) -> None:
        """Check a state that no other thread sees."""
        if not hasattr(estimator, "t_"):
            return
        if not len(estimator.loss_curve_) == len(estimator.learning_rates_) == estimator.n_iter_:
            self.errors.append(f"{source}: {estimator.n_iter_} epochs, {len(estimator.loss_curve_)} records")
        if estimator.t_ != estimator._state.t:
            self.errors.append(f"{source}: t_ is {estimator.t_}, that of the state {estimator._state.t}")
        if hasattr(estimator, "coef_"):
            coef = estimator._linear_attributes(*estimator._learner.linear)[0]
            if not np.array_equal(estimator.coef_, coef):
                self.errors.append(f"{source}: coef_ and the weights differ")

    # The calls.

    def _fit(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        estimator.fit(X, Y)

    def _partial_fit(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        rows = slice(argument, argument + 40)
        estimator.partial_fit(X[rows], Y[rows], classes=[0, 1, 2])

    def _predict(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        if hasattr(estimator, "t_"):
            estimator.predict(ROWS)

    def _predict_proba(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        if hasattr(estimator, "t_"):
            sums = estimator.predict_proba(ROWS).sum(axis=1)
            if not np.allclose(sums, 1.0, atol=1e-5):
                self.errors.append("probabilities do not sum to 1")

    def _pickle(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        self._check(pickle.loads(pickle.dumps(estimator)), "pickle")

    def _copy(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        duplicate = (copy.copy, copy.deepcopy)[argument % 2](estimator)
        self._check(duplicate, "copy")
        if hasattr(duplicate, "t_"):
            self._check(duplicate.partial_fit(X[:20], Y[:20]), "training of a copy")

    def _save(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        if hasattr(estimator, "t_") and "model" not in self.parameters:
            path = Path(_FOLDER.name) / f"{threading.get_ident()}.onnxsgd"
            estimator.save(path)
            self._check(onnxsgd.load(path), "file")

    def _clone(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        clone(estimator)

    def _set_params(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        estimator.set_params(alpha=10.0 ** -(argument % 6), max_iter=1 + argument % 3)

    def _set_weights(self, estimator: OnnxSGDClassifier, argument: int) -> None:
        if hasattr(estimator, "t_"):
            found = estimator.get_weights()
            estimator.set_weights({name: array + argument / 100 for name, array in found.items()})


CALLS = (
    "fit", "fit", "partial_fit", "partial_fit", "predict", "predict_proba", "pickle", "copy", "save", "clone",
    "set_params", "set_weights",
)  # fmt: skip
CHANGING = frozenset({"fit", "partial_fit", "set_params", "set_weights"})


def _interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread at its next operation."""
    if thread.is_alive() and thread.ident is not None:
        error = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)


def _import_all() -> None:
    """Make each call once: an interrupt of an import leaves half a module to other threads."""
    for seed in range(len(PARAMETERS)):
        case = Case(seed)
        for name in ("fit", *CALLS):
            getattr(case, f"_{name}")(case.shared, 1)


def main() -> int:
    """Parse the command line; run the cases, print findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-5)
    threading.excepthook = lambda args: None
    _import_all()
    n_findings = n_interrupted = 0
    for seed in range(arguments.first, arguments.first + arguments.cases):
        case = Case(seed)
        case.run()
        n_interrupted += case.interrupted
        n_findings += bool(case.errors)
        for error in case.errors:
            print(f"case {seed}: {error}", flush=True)
    print(f"{arguments.cases} interleavings, {n_interrupted} calls interrupted, {n_findings} findings")
    return int(n_findings > 0)


if __name__ == "__main__":
    sys.exit(main())
