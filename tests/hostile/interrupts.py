"""Interrupts at every moment of a call: ``python tests/hostile/interrupts.py [--case WORD] [--every N]``.

A call of each case is repeated, and KeyboardInterrupt is raised at another line of the package each time, as
Ctrl-C may at any moment; ``--signals N`` sends so many real signals at random times instead, which also come
while the runtime computes. After each, the estimator must be as it was before, or fitted so far: counts,
histories, coefficients and the graph agree, weights are those of so many updates, predictions, pickles and
further calls work. Prints each moment at which they do not, and the number of moments.
"""

import argparse
import ast
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.runtime.cache import cache
from onnxsgd.runtime.stages import current

PACKAGE = str(Path(onnxsgd.__file__).parent)
RNG = np.random.RandomState(0)
X = RNG.normal(size=(60, 4))
Y = X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * RNG.normal(size=60) + 3.0
LABELS = np.array(["a", "b", "c"])[np.digitize(Y, [2.0, 4.0])]
SPARSE = sparse.random(60, 30, 0.2, "csr", np.float64, RNG)
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 3, "tol": None, "random_state": 0}
#: Attributes that no call promises to keep: caches.
_CACHES = frozenset({"_start", "_known_plan", "_seen_graph"})

#: An error to raise in place of Ctrl-C.
Fault = Callable[[], BaseException]


@dataclass(frozen=True)
class Case:
    """A call, and the estimator that it is made on.

    Attributes
    ----------
    make : callable
        Returns the estimator, given an empty folder.
    call : callable
        Makes the call, on the estimator, and the folder.
    trains : bool
        Whether the call trains; other calls leave the estimator as it was.
    has_path : bool
        Whether the weights after so many updates are always the same.
    may_change : bool
        Whether the call may change the estimator.
    """

    make: Callable[[Path], Any]
    call: Callable[[Any, Path], object]
    trains: bool = True
    has_path: bool = False
    may_change: bool = True


def batches(n: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the data in batches."""
    return list(zip(np.array_split(X, n), np.array_split(Y, n), strict=True))


def _fit(estimator: Any, folder: Path) -> object:
    return estimator.fit(X, Y)


def _fit_labels(estimator: Any, folder: Path) -> object:
    return estimator.fit(X, LABELS)


def _part(estimator: Any, folder: Path) -> object:
    return estimator.partial_fit(X, Y)


def _regressor(**settings: Any) -> Callable[[Path], Any]:
    return lambda folder: OnnxSGDRegressor(**settings)


def _fitted(**settings: Any) -> Callable[[Path], Any]:
    def fit(folder: Path) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return OnnxSGDRegressor(**settings).fit(X, Y)

    return fit


def _classifier(**settings: Any) -> Callable[[Path], Any]:
    return lambda folder: OnnxSGDClassifier(**settings)


@lru_cache
def network() -> bytes:
    """Return a network of one hidden layer."""
    import onnx

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> g (double[N, 4] x) => (double[N, 1] y)
        <double[4, 5] w, double[5] b, double[5, 1] v, double[1] c>
        { h = MatMul(x, w) i = Add(h, b) j = Tanh(i) k = MatMul(j, v) y = Add(k, c) }"""
    )
    values = np.random.RandomState(1)
    del model.graph.initializer[:]
    for name, shape in {"w": (4, 5), "b": (5,), "v": (5, 1), "c": (1,)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.normal(size=shape), name))
    content: bytes = model.SerializeToString()
    return content


def _inside() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=20)).fit(X, LABELS)


def _own_loss() -> Any:
    from onnxsgd import losses

    return losses.FromCallable(lambda y, z: ((z - y) ** 2, 2 * (z - y)))


_BATCHED = {"batch_size": 10, "shuffle": False, "dtype": "float64"}

CASES: dict[str, Case] = {
    "steps": Case(_regressor(**NAMED, **_BATCHED), _fit, has_path=True),
    "one loop": Case(_regressor(**{**NAMED, **_BATCHED, "batch_size": 1, "max_iter": 4}), _fit, has_path=True),
    "epochs in one call": Case(
        _regressor(model=network(), **{**NAMED, "batch_size": 1, "max_iter": 9}), _fit, has_path=True
    ),
    "auto": Case(_regressor(max_iter=60, random_state=0), _fit),
    "auto, labels": Case(_classifier(max_iter=20, random_state=0), _fit_labels),
    "network": Case(_regressor(model=network(), max_iter=30, random_state=0), _fit),
    "early stopping": Case(_regressor(max_iter=20, early_stopping=True, random_state=0), _fit),
    "early stopping, named": Case(_regressor(**NAMED, early_stopping=True, batch_size=10), _fit),
    "adam and averages": Case(_regressor(**NAMED, optimizer="adam", average=True, batch_size=7), _fit),
    "sparse": Case(
        _regressor(**NAMED, batch_size=5), lambda e, f: e.fit(SPARSE, Y), has_path=True
    ),
    "sparse, auto": Case(_regressor(max_iter=20, random_state=0), lambda e, f: e.fit(SPARSE, Y)),
    "sparse, few columns": Case(
        _regressor(max_iter=5, random_state=0),
        lambda e, f: e.fit(sparse.hstack([SPARSE, sparse.csr_matrix((60, 300))]).tocsr(), Y),
    ),
    "own loss": Case(_regressor(loss=_own_loss(), **NAMED, **_BATCHED), _fit, has_path=True),
    "norms": Case(_regressor(**NAMED, record_update_norms=True), _fit),
    "validation": Case(
        _regressor(**NAMED), lambda e, f: e.fit(X, Y, X_val=X[:20], y_val=Y[:20])
    ),
    "model inside": Case(_classifier(model=LogisticRegression(max_iter=5), max_iter=5), _fit_labels),
    "fitted model inside": Case(lambda f: OnnxSGDClassifier(_inside(), max_iter=5), _fit_labels),
    "head": Case(
        _regressor(model=network(), output="j", head="linear", max_iter=5, random_state=0), _fit
    ),
    "warm start": Case(_fitted(**NAMED, warm_start=True), _fit),
    "again": Case(_fitted(**NAMED), _fit),
    "first part": Case(_regressor(random_state=0), _part),
    "part, auto": Case(_fitted(max_iter=5, random_state=0), _part),
    "part, named": Case(_fitted(**NAMED, **_BATCHED), _part, has_path=True),
    "sparse part": Case(
        lambda f: OnnxSGDRegressor(random_state=0).partial_fit(SPARSE, Y),
        lambda e, f: e.partial_fit(SPARSE, Y),
    ),
    "batches": Case(_regressor(**NAMED), lambda e, f: e.fit(batches()), has_path=True),
    "batches, auto": Case(_regressor(max_iter=4, random_state=0), lambda e, f: e.fit(batches())),
    "sparse batches": Case(
        _regressor(max_iter=3, random_state=0),
        lambda e, f: e.fit([(SPARSE[:30], Y[:30]), (SPARSE[30:], Y[30:])]),
    ),
    "a generator": Case(
        _regressor(**NAMED, steps_per_epoch=3), lambda e, f: e.fit(iter(batches(9))), has_path=True
    ),
    "checkpoints": Case(
        lambda f: OnnxSGDRegressor(**NAMED, checkpoint=f / "files", checkpoint_every={"updates": 2}, batch_size=20),
        _fit,
    ),
    "resumed": Case(
        lambda f: _stopped(f), lambda e, f: e.fit(X, Y, resume=True), has_path=True
    ),
    "set_weights": Case(_fitted(**NAMED), lambda e, f: e.set_weights(_weights_like(e)), False),
    "set_weights before": Case(
        lambda f: OnnxSGDClassifier(_inside()), lambda e, f: e.set_weights(_weights_like(e)), trains=False
    ),
    "predict": Case(_fitted(**NAMED), lambda e, f: e.predict(X), trains=False, may_change=False),
    "predict before": Case(lambda f: OnnxSGDClassifier(_inside()), lambda e, f: e.predict(X), trains=False, may_change=False),
    "save": Case(_fitted(**NAMED), lambda e, f: e.save(f / "saved.onnxsgd"), trains=False, may_change=False),
    "to_onnx": Case(_fitted(**NAMED), lambda e, f: e.to_onnx(), trains=False, may_change=False),
    "export_training_step": Case(
        _fitted(**NAMED), lambda e, f: e.export_training_step(f / "step.onnx"), trains=False, may_change=False
    ),
}  # fmt: skip


def _stopped(folder: Path) -> Any:
    """Return an estimator that continues from the checkpoints of a third of a fit."""
    settings = {
        **NAMED,
        "checkpoint": folder / "files",
        "checkpoint_every": 1,
        "batch_size": 20,
        "dtype": "float64",
    }

    from onnxsgd.training.checkpoints import Checkpoints

    after = Checkpoints.after_epoch

    def stop(self: Any, state: Any, n_epochs: int, **how: Any) -> None:
        after(self, state, n_epochs, **how)
        raise OSError("stopped")

    Checkpoints.after_epoch = stop  # type: ignore[method-assign]
    try:
        OnnxSGDRegressor(**settings).fit(X, Y)
    except OSError:
        pass
    finally:
        Checkpoints.after_epoch = after  # type: ignore[method-assign]
    return OnnxSGDRegressor(**settings)


def _weights_like(estimator: Any) -> dict[str, np.ndarray]:
    return {name: array + 1 for name, array in estimator.get_weights().items()}


# The moments.


@lru_cache
def _with_lines(path: str) -> frozenset[int]:
    """Return the lines of ``with``: signals never come between the end of a block and its ``__exit__``."""
    tree = ast.parse(Path(path).read_text())
    return frozenset(node.lineno for node in ast.walk(tree) if isinstance(node, ast.With))


class Moments:
    """Counts the lines of the package that run, and raises an error at one of them, or at two.

    Parameters
    ----------
    at : collection of int
        The numbers of the lines; none: all run.
    error : callable
        Makes the error.
    """

    def __init__(self, at: tuple[int, ...] = (), error: Fault = KeyboardInterrupt) -> None:
        self._at, self._error, self.n = frozenset(at), error, 0
        self.places: list[tuple[str, int]] = []
        self.raised: list[str] = []

    def __enter__(self) -> "Moments":
        sys.settrace(self._enters)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _enters(self, frame: Any, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: Any, event: str, arg: object) -> Any:
        if event != "line" or frame.f_lineno in _with_lines(frame.f_code.co_filename):
            return self._line
        self.n += 1
        if self.n in self._at:
            self.raised.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            raise self._error()
        if not self._at:
            self.places.append((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def moments_of(case: Case, n: int, seed: int = 0, is_cold: bool = False) -> tuple[list[int], int]:
    """Return some of the moments of a call, each line first, and the number of all; `n` of them, 0: all."""
    with tempfile.TemporaryDirectory() as name, Moments() as found:
        sys.settrace(None)
        made = case.make(Path(name))
        if is_cold:
            cache.clear()
        with found:
            _quietly(case, made, Path(name))
    if not n or n >= found.n:
        return list(range(1, found.n + 1)), found.n
    draw, first = random.Random(seed), dict[tuple[str, int], int]()
    for number, place in enumerate(found.places, start=1):
        first.setdefault(place, number)
    lines = list(first.values())
    some = draw.sample(lines, min(len(lines), n // 2))
    return sorted({*some, *draw.sample(range(1, found.n + 1), n - len(some))}), found.n


def _quietly(case: Case, estimator: Any, folder: Path) -> list[str]:
    """Make the call; return the warnings of interruptions."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case.call(estimator, folder)
    return [str(w.message) for w in caught if "interrupted" in str(w.message)]


# The state of an estimator.


def snapshot(value: Any, depth: int = 0) -> Any:
    """Return a value of an estimator in arrays and numbers, copied; objects without state are themselves."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: snapshot(entry, depth + 1) for key, entry in value.items() if key not in _CACHES}
    if isinstance(value, list | tuple):
        return tuple(snapshot(entry, depth + 1) for entry in value)
    if is_dataclass(value) and type(value).__name__ in ("FitState", "Moments"):
        names = [field.name for field in fields(value) if field.name != "random_state"]
        return {name: snapshot(getattr(value, name), depth + 1) for name in names}
    return value


def is_equal(first: Any, second: Any) -> bool:
    """Tell whether two snapshots are equal to the last bit."""
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray)
            and first.dtype == second.dtype
            and first.tobytes() == second.tobytes()
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(is_equal(first[k], second[k]) for k in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(is_equal, first, second))
    return first is second or bool(first == second) or (first != first and second != second)


# The checks.


class Checker:
    """Checks of one case.

    Parameters
    ----------
    case : Case
        The case.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._paths: dict[int, dict[str, np.ndarray]] = {}

    def check(self, estimator: Any, before: Any, caught: BaseException | None, warned: list[str]) -> str:
        """Check an estimator after a call that was interrupted; return "before", "fitted" or "whole"."""
        case, now = self._case, snapshot(vars(estimator))
        if is_equal(now, before):
            assert caught is not None or not case.trains or not hasattr(estimator, "_state"), (
                "silently undone"
            )
            self._check_unchanged(estimator)
            return "before"
        assert case.may_change, "changed"
        if not hasattr(estimator, "_state"):
            assert is_equal(snapshot(estimator.get_weights()), snapshot(dict(estimator._set_before))), (
                "weights"
            )
            return "whole"
        self._check_agreement(estimator)
        self._check_use(estimator)
        return "fitted" if caught is not None or warned else "whole"

    def _check_unchanged(self, estimator: Any) -> None:
        data = self._data(estimator)
        try:
            estimator.predict(data[:5] if data is not None else X[:5])
        except NotFittedError:
            assert not hasattr(estimator, "_state")
            assert not [n for n in vars(estimator) if n.endswith("_") and not n.startswith("_")], (
                "half fitted"
            )
        pickle.loads(pickle.dumps(estimator)) if not self._has_lambda(estimator) else None

    @staticmethod
    def _has_lambda(estimator: Any) -> bool:
        functions = (estimator.trainable, estimator.learning_rate_multipliers)
        return type(estimator.loss).__name__ == "FromCallable" or any(map(callable, functions))

    @staticmethod
    def _data(estimator: Any) -> Any:
        n = getattr(estimator, "n_features_in_", None)
        if n == 30:
            return SPARSE
        if n == 330:
            return sparse.hstack([SPARSE, sparse.csr_matrix((60, 300))]).tocsr()
        return X

    def _check_agreement(self, estimator: Any) -> None:
        state, n = estimator._state, estimator.n_iter_
        assert estimator.t_ == state.t, f"t_ {estimator.t_}, state {state.t}"
        assert n == len(estimator.loss_curve_) == len(estimator.learning_rates_), "histories"
        assert len(state.validation_scores) in (0, n, n - 1), "scores"
        assert len(state.update_norms) <= n, "norms"
        assert state.of_batches is None, "records of batches"
        assert all(np.isfinite(a).all() for a in state.tensors.values()), "not finite"
        if estimator._learner.linear is not None:
            coef, intercept = estimator._linear_attributes(*estimator._learner.linear)
            assert np.array_equal(coef, estimator.coef_), "coef_"
            assert np.array_equal(intercept, estimator.intercept_), "intercept_"
        if self._case.has_path:
            weights = estimator.get_weights()
            known = self._paths.setdefault(state.t, weights)
            for name, array in weights.items():
                np.testing.assert_allclose(array, known[name], rtol=1e-5, atol=1e-7, err_msg=f"t_={state.t}")

    def _check_use(self, estimator: Any) -> None:
        data = self._data(estimator)
        prediction = estimator.predict(data)
        estimator.to_onnx()
        if not self._has_lambda(estimator):
            restored = pickle.loads(pickle.dumps(estimator))
            assert np.array_equal(restored.predict(data), prediction), "pickle"
        t, n = estimator.t_, estimator.n_iter_
        if not estimator.early_stopping:
            y = LABELS if estimator._task == "classification" else Y
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                estimator.set_params(steps_per_epoch=None).partial_fit(data, y)
            assert estimator.t_ > t, "partial_fit"
            assert estimator.n_iter_ == n + 1 == len(estimator.loss_curve_), "partial_fit"
        self._check_files(estimator)

    def _check_files(self, estimator: Any) -> None:
        if estimator.checkpoint is None:
            return
        for path in Path(estimator.checkpoint).glob("checkpoint-*"):
            onnxsgd.load(path)


def interrupt(
    case: Case, checker: Checker, at: tuple[int, ...], error: Fault = KeyboardInterrupt, is_cold: bool = False
) -> str:
    """Interrupt a call at some lines; check the estimator; return the outcome, or the failure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        estimator = case.make(folder)
        before, caught, warned = snapshot(vars(estimator)), None, list[str]()
        if is_cold:
            cache.clear()
        moments = Moments(at, error)
        try:
            with moments:
                warned = _quietly(case, estimator, folder)
        except BaseException as raised:
            caught = raised
        finally:
            sys.settrace(None)
        try:
            assert caught is None or isinstance(caught, type(error())), f"raised {caught!r}"
            if moments.raised and case.trains:
                assert caught is not None or warned or isinstance(error(), GeneratorExit), "lost"
            assert not list(folder.glob("**/*.part*")), "a file is left"
            assert current() is None, "a recording is left"
            return checker.check(estimator, before, caught, warned)
        except BaseException as failed:
            return f"{moments.raised}: {type(failed).__name__} {str(failed)[:300]}"


def sweep(
    name: str, n: int, seed: int = 0, error: Fault = KeyboardInterrupt, is_cold: bool = False
) -> list[str]:
    """Interrupt the call of a case at `n` moments, 0: all; return the failures."""
    case = CASES[name]
    numbers, _ = moments_of(case, n, seed, is_cold)
    checker = Checker(case)
    found = [interrupt(case, checker, (number,), error, is_cold) for number in numbers]
    return [text for text in found if text not in ("before", "fitted", "whole")]


def signals(name: str, n: int, seed: int = 0) -> list[str]:
    """Send a signal at a random time of the call, `n` times; return the failures."""
    case, draw, failures = CASES[name], random.Random(seed), list[str]()
    checker = Checker(case)
    with tempfile.TemporaryDirectory() as folder:
        estimator = case.make(Path(folder))
        begin = time.perf_counter()
        _quietly(case, estimator, Path(folder))
        seconds = time.perf_counter() - begin
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in range(n):
            with tempfile.TemporaryDirectory() as folder:
                estimator = case.make(Path(folder))
                before, caught, warned = snapshot(vars(estimator)), None, list[str]()
                if number % 4 == 3:
                    cache.clear()
                timer = threading.Timer(draw.uniform(0, 1.2 * seconds), os.kill, (os.getpid(), signal.SIGINT))
                try:
                    timer.start()
                    warned = _quietly(case, estimator, Path(folder))
                    timer.join()
                except KeyboardInterrupt as raised:
                    caught = raised
                try:
                    timer.join()
                    assert current() is None, "a recording is left"
                    if caught is not None or warned:
                        checker.check(estimator, before, caught, warned)
                except KeyboardInterrupt:
                    continue
                except Exception as failed:
                    failures.append(f"signal {number}: {type(failed).__name__} {str(failed)[:300]}")
    finally:
        signal.signal(signal.SIGINT, handler)
    return failures


def main() -> None:
    """Parse the command line; interrupt calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="", help="a part of the names of the cases")
    parser.add_argument("--moments", type=int, default=400, help="moments of each case; 0: all")
    parser.add_argument("--signals", type=int, default=0, help="real signals in each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true", help="compile in each call")
    arguments = parser.parse_args()
    has_failed = False
    for name in CASES:
        if arguments.case not in name:
            continue
        begin = time.perf_counter()
        if arguments.signals:
            failures = signals(name, arguments.signals, arguments.seed)
        else:
            failures = sweep(name, arguments.moments, arguments.seed, is_cold=arguments.cold)
        has_failed |= bool(failures)
        print(f"{name}: {len(failures)} failures, {time.perf_counter() - begin:.1f} s", flush=True)
        for text in failures[:10]:
            print("   ", text, flush=True)
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
