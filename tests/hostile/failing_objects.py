"""Objects of users that raise at one of their calls: losses, schedules, sources of batches, arrays, callbacks.

Each case of :data:`FAILING` makes an estimator and a call that uses such objects; all calls to them count
together, and one of them raises. The checks are those of ``interrupts.py``.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from interrupts import LABELS, NAMED, Case, Checker, Fault, X, Y, _quietly, batches, network, snapshot
from sklearn.linear_model import LinearRegression

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses, schedules
from onnxsgd.persistence import saved_file


class Calls:
    """Counts calls, and raises an error at one of them.

    Parameters
    ----------
    at : int
        The number of the call; 0: none.
    error : callable
        Makes the error.
    """

    def __init__(self, at: int = 0, error: Fault = ValueError) -> None:
        self.n, self._at, self._error = 0, at, error
        self.made: BaseException | None = None

    def __call__(self) -> None:
        self.n += 1
        if self.n == self._at:
            self.made = self._error()
            raise self.made

    def __deepcopy__(self, memo: object) -> "Calls":
        return self


class Rate(schedules.Schedule):
    """A schedule that counts its calls."""

    initial = 0.05
    has_formula = False

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def rate(self, t: int, eta: float) -> float:
        self.calls()
        return 0.05 / (1 + t / 100)

    def after_epoch(self, loss: float, eta: float, memory: Any) -> Any:
        self.calls()
        return eta, memory


class Array:
    """Rows of an array that counts conversions and slices, as a memory map of a file that may vanish."""

    def __init__(self, array: np.ndarray, calls: Calls) -> None:
        self._array, self._calls, self.shape, self.dtype, self.ndim = (
            array,
            calls,
            array.shape,
            array.dtype,
            array.ndim,
        )

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: Any) -> np.ndarray:
        self._calls()
        found: np.ndarray = self._array[rows]
        return found

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self._calls()
        return self._array.astype(dtype or self._array.dtype)


class Loader:
    """Batches that begin anew, and count each of them, and each beginning and length."""

    def __init__(self, calls: Calls, *, has_length: bool = True) -> None:
        self._calls = calls
        if has_length:
            self.__class__ = Sized

    def __iter__(self) -> Any:
        self._calls()
        for batch in batches():
            self._calls()
            yield batch
        self._calls()


class Sized(Loader):
    """The same, with a length."""

    def __len__(self) -> int:
        self._calls()
        return 4


class Callback:
    """A callback of scikit-learn that counts its calls."""

    max_propagation_depth = None

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def setup(self, estimator: Any, context: Any) -> None:
        self._calls()

    def on_fit_task_begin(self, estimator: Any, context: Any, *, X: Any = None, y: Any = None) -> None:
        self._calls()

    def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any = None) -> bool:
        self._calls()
        return False

    def teardown(self, estimator: Any, context: Any) -> None:
        self._calls()


class Screen(io.StringIO):
    """A terminal that counts its lines."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def write(self, text: str) -> int:
        self._calls()
        return len(text)

    def isatty(self) -> bool:
        return True


def _own(calls: Calls) -> Any:
    def loss(y: np.ndarray, z: np.ndarray) -> Any:
        calls()
        return (z - y) ** 2, 2 * (z - y)

    return losses.FromCallable(loss)


def _multiplier(calls: Calls) -> Callable[[str], float]:
    def factor(name: str) -> float:
        calls()
        return 0.5

    return factor


def _trains(calls: Calls) -> Callable[[str], bool]:
    def trains(name: str) -> bool:
        calls()
        return True

    return trains


def _shown(calls: Calls, settings: dict[str, Any]) -> Any:
    def fit(estimator: Any, folder: Path) -> None:
        with contextlib.redirect_stdout(Screen(calls)):
            estimator.fit(X, Y)

    return Case(lambda f: OnnxSGDRegressor(**settings), fit)


def _counted(owner: Any, name: str, calls: Calls, settings: dict[str, Any]) -> Case:
    """Return a case in which a function counts, before its work and after it."""

    def fit(estimator: Any, folder: Path) -> None:
        function = getattr(owner, name)

        def counted(*args: Any, **more: Any) -> Any:
            calls()
            result = function(*args, **more)
            calls()
            return result

        setattr(owner, name, counted)
        try:
            estimator.fit(X, Y)
        finally:
            setattr(owner, name, function)

    def make(folder: Path) -> Any:
        return OnnxSGDRegressor(**NAMED, **settings, **({} if settings else {"checkpoint": folder / "files"}))

    return Case(make, fit)


def _fitting(
    settings: dict[str, Any], call: Callable[[Any], object] = lambda e: e.fit(X, Y), **more: Any
) -> Case:
    return Case(lambda f: OnnxSGDRegressor(**{**NAMED, **settings}), lambda e, f: call(e), **more)


def _with_callback(calls: Calls, call: Callable[[Any], object]) -> Case:
    return Case(lambda f: OnnxSGDRegressor(**NAMED).set_callbacks(Callback(calls)), lambda e, f: call(e))


def _part(model: Any, y: Any = Y) -> Any:
    return model.partial_fit(X, y)


#: Cases, each for the calls that it counts.
FAILING: dict[str, Callable[[Calls], Case]] = {
    "own loss": lambda c: _fitting({"loss": _own(c), "batch_size": 20}, has_path=True),
    "own loss, auto": lambda c: Case(lambda f: OnnxSGDRegressor(loss=_own(c), max_iter=4, random_state=0), lambda e, f: e.fit(X, Y)),
    "own loss, part": lambda c: Case(lambda f: _part(OnnxSGDRegressor(**NAMED)).set_params(loss=_own(c)), lambda e, f: _part(e)),
    "schedule": lambda c: _fitting({"learning_rate": Rate(c), "eta0": None, "batch_size": 30}),
    "schedule, batches": lambda c: _fitting({"learning_rate": Rate(c), "eta0": None}, lambda e: e.fit(batches())),
    "multipliers": lambda c: _fitting({"learning_rate_multipliers": _multiplier(c)}),
    "trainable": lambda c: _fitting({"model": network(), "trainable": _trains(c)}),
    "loader": lambda c: _fitting({}, lambda e: e.fit(Loader(c)), has_path=True),
    "loader without length": lambda c: _fitting({}, lambda e: e.fit(Loader(c, has_length=False)), has_path=True),
    "loader, auto": lambda c: Case(lambda f: OnnxSGDRegressor(max_iter=3, random_state=0), lambda e, f: e.fit(Loader(c))),
    "loader, labels": lambda c: Case(
        lambda f: OnnxSGDClassifier(**NAMED),
        lambda e, f: e.fit(_Relabelled(c)),
    ),
    "iterator": lambda c: _fitting({"steps_per_epoch": 2}, lambda e: e.fit(iter(Loader(c)))),
    "loader, accumulated": lambda c: _fitting({"gradient_accumulation_steps": 2}, lambda e: e.fit(Loader(c))),
    "X": lambda c: _fitting({}, lambda e: e.fit(Array(X, c), Y)),
    "y": lambda c: _fitting({}, lambda e: e.fit(X, Array(Y, c))),
    "sample_weight": lambda c: _fitting({}, lambda e: e.fit(X, Y, sample_weight=Array(np.ones(60), c))),
    "X_val": lambda c: _fitting({}, lambda e: e.fit(X, Y, X_val=Array(X, c), y_val=Array(Y, c))),
    "X, warm start": lambda c: Case(
        lambda f: OnnxSGDRegressor(**NAMED, warm_start=True).partial_fit(X, Y), lambda e, f: e.fit(Array(X, c), Y)
    ),
    "X, part": lambda c: Case(
        lambda f: OnnxSGDRegressor(**NAMED).partial_fit(X, Y), lambda e, f: e.partial_fit(Array(X, c), Y)
    ),
    "callback": lambda c: _with_callback(c, lambda e: e.fit(X, Y)),
    "callback, batches": lambda c: _with_callback(c, lambda e: e.fit(batches())),
    "model inside": lambda c: _counted(LinearRegression, "fit", c, {"model": LinearRegression()}),
    "display": lambda c: _shown(c, {**NAMED, "verbose": 1}),
    "display, early stopping": lambda c: _shown(c, {**NAMED, "verbose": 2, "early_stopping": True}),
    "checkpoints": lambda c: _counted(saved_file, "_fill", c, {}),
}  # fmt: skip


class _Relabelled(Loader):
    """Batches of a classifier, whose labels are read ahead."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __iter__(self) -> Any:
        self._calls()
        for rows in np.array_split(np.argsort(LABELS), 4):
            self._calls()
            yield X[rows], LABELS[rows]


def fail(name: str, error: Fault, numbers: Any = None) -> list[str]:
    """Raise an error at each call of the objects of a case, or at some; return the failures."""
    counted, make = Calls(), FAILING[name]
    with tempfile.TemporaryDirectory() as folder:
        case = make(counted)
        _quietly(case, case.make(Path(folder)), Path(folder))
    checker, failures = Checker(make(Calls())), list[str]()
    assert counted.n, name
    for number in numbers or range(1, counted.n + 1):
        text = _failing(make, checker, Calls(number, error))
        failures += [f"{name}, call {number} of {counted.n}: {text}"] if text else []
    return failures


def _failing(make: Callable[[Calls], Case], checker: Checker, calls: Calls) -> str:
    case = make(calls)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        estimator = case.make(folder)
        before, caught, warned = snapshot(vars(estimator)), None, list[str]()
        try:
            warned = _quietly(case, estimator, folder)
        except BaseException as raised:
            caught = raised
        try:
            assert calls.made is not None, "no call"
            is_swallowed = isinstance(calls.made, KeyboardInterrupt) and warned
            is_warning = isinstance(calls.made, OSError) and estimator.checkpoint is not None
            assert is_swallowed or is_warning or caught is calls.made or caught.__cause__ is calls.made, (
                f"{caught!r}"
            )
            assert not list(folder.glob("**/*.part*")), "a file is left"
            calls._at = 0
            checker.check(estimator, before, caught, warned or ["a warning"])
        except BaseException as failed:
            return f"{type(failed).__name__} {str(failed)[:300]}"
    return ""
