"""Whole calls on few rows, where fixed costs dominate: ``python benchmarks/fixed_costs.py [--only WORD]``.

Each call is timed in turn with scikit-learn's, on one thread: a fit of one epoch, a ``partial_fit``, a
prediction, a ``partial_fit`` of an unpickled estimator. The fitted models inside take turns too, so that each
call meets weights that the one before did not have. ``--cold`` times the first fits and predictions of fresh
processes instead, beside their imports, and ``--default`` default fits on the data sets of scikit-learn, raw
and scaled. With ``--beside`` our times are those beside the updates, which gather rows and call the runtime;
with ``--beside runtime``, beside the calls of the runtime alone.
Times are those of the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# numpy reads it when it is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

_ROWS, _FEATURES, _CALL = 200, 20, 32
_NAMED = {"learning_rate": "constant", "eta0": 1e-3}
#: The parameters of a fit of one epoch, and those with a rate by name.
_ONCE = {"max_iter": 1, "tol": None, "random_state": 0}
#: The seeds of default fits, whose mean is shown: another order may take one window more.
_SEEDS = 5

#: A call of ours and one of scikit-learn, if there is one that does the same.
Pair = tuple[Callable[[], object], Callable[[], object] | None]


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(_ROWS, _FEATURES)).astype(np.float32)
    y = X[:, 0] + rng.normal(size=_ROWS)
    return X, y, (y > 0).astype(np.int64)


def _pairs() -> Iterator[tuple[str, Pair]]:
    """Yield the name of each row, and its two calls."""
    X, y, labels = _data()
    for word, rate in (("auto", {}), ("named", _NAMED)):
        yield from ((f"{name}, {word}", pair) for name, pair in _fits(X, y, labels, {**_ONCE, **rate}))
        yield from ((f"{name}, {word}", pair) for name, pair in _parts(X[:_CALL], y, labels, rate))


def _fits(X: Any, y: Any, labels: Any, options: dict[str, Any]) -> Iterator[tuple[str, Pair]]:
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    yield (
        "fit linear regressor",
        (
            lambda: OnnxSGDRegressor(**options).fit(X, y),
            lambda: SGDRegressor(**_ONCE).fit(X, y),
        ),
    )
    yield (
        "fit linear classifier",
        (
            lambda: OnnxSGDClassifier(**options).fit(X, labels),
            lambda: SGDClassifier(**_ONCE).fit(X, labels),
        ),
    )
    mlp = MLPClassifier((20,), batch_size=32, max_iter=1)
    networks = itertools.cycle([MLPClassifier((20,), random_state=i).fit(X, labels) for i in range(4)])
    yield (
        "fit fitted MLP",
        (
            lambda: OnnxSGDClassifier(FrozenEstimator(next(networks)), **options).fit(X, labels),
            lambda: mlp.fit(X, labels),
        ),
    )
    pipelines = itertools.cycle(
        [make_pipeline(StandardScaler(), LogisticRegression(C=10.0**i)).fit(X, labels) for i in range(4)]
    )
    yield "fit pipeline", (lambda: OnnxSGDClassifier(next(pipelines), **options).fit(X, labels), None)


def _parts(X: Any, y: Any, labels: Any, rate: dict[str, Any]) -> Iterator[tuple[str, Pair]]:
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    rows = {"random_state": 0, **rate}
    regressor, its_peer = OnnxSGDRegressor(**rows), SGDRegressor()
    yield (
        "partial_fit linear regressor",
        (
            lambda: regressor.partial_fit(X, y[:_CALL]),
            lambda: its_peer.partial_fit(X, y[:_CALL]),
        ),
    )
    classifier, peer = OnnxSGDClassifier(**rows), SGDClassifier()
    yield (
        "partial_fit linear classifier",
        (
            lambda: classifier.partial_fit(X, labels[:_CALL], classes=[0, 1]),
            lambda: peer.partial_fit(X, labels[:_CALL], classes=[0, 1]),
        ),
    )
    mlp = MLPClassifier((20,), max_iter=5, random_state=0).fit(X, labels[:_CALL])
    network = OnnxSGDClassifier(FrozenEstimator(mlp), **rows)
    yield (
        "partial_fit MLP",
        (
            lambda: network.partial_fit(X, labels[:_CALL], classes=[0, 1]),
            lambda: mlp.partial_fit(X, labels[:_CALL]),
        ),
    )
    yield "predict linear classifier", (lambda: classifier.predict(X), lambda: peer.predict(X))
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, labels[:_CALL])
    pipeline = OnnxSGDClassifier(scaled, **rows)
    yield "unpickled, partial_fit linear classifier", _unpickled(classifier, peer, X, labels[:_CALL])
    yield "unpickled, partial_fit MLP", _unpickled(network, mlp, X, labels[:_CALL])
    yield "unpickled, partial_fit pipeline", _unpickled(pipeline, None, X, labels[:_CALL])


def _unpickled(estimator: Any, peer: Any, X: Any, labels: Any) -> Pair:
    """Return calls that unpickle an estimator and train it further, as a worker of a search does."""

    def call_of(trained: Any) -> Callable[[], object]:
        content = pickle.dumps(trained.partial_fit(X, labels, classes=[0, 1]))
        return lambda: pickle.loads(content).partial_fit(X, labels)

    return call_of(estimator), None if peer is None else call_of(peer)


def _default_pairs() -> Iterator[tuple[str, Pair]]:
    """Yield default fits on the data sets of scikit-learn, raw and scaled."""
    from sklearn import datasets
    from sklearn.linear_model import SGDClassifier, SGDRegressor
    from sklearn.preprocessing import StandardScaler

    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    for name in ("iris", "wine", "breast_cancer", "digits", "diabetes", "linnerud"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        scaled = StandardScaler().fit_transform(X)
        is_regression = name in ("diabetes", "linnerud")
        y = y[:, 0] if y.ndim == 2 else y
        ours, theirs = (
            (OnnxSGDRegressor, SGDRegressor) if is_regression else (OnnxSGDClassifier, SGDClassifier)
        )
        for word, table in (("raw", X), ("scaled", scaled)):
            yield f"default fit, {name}, {word}", (_fit(ours, table, y), _fit(theirs, table, y))


def _fit(estimator: Any, X: Any, y: Any) -> Callable[[], object]:
    return lambda: [estimator(random_state=seed).fit(X, y) for seed in range(_SEEDS)]


@dataclass
class _Inside:
    """The time that is spent in updates, or in calls of the runtime, if they are counted."""

    seconds: float = 0.0

    def count_updates(self) -> None:
        """Count each call of a runner of dense batches from now on."""
        from onnxsgd.engine.step import linear_adam, linear_scan, scan_epoch, single_step

        runners: list[Any] = [
            linear_adam.LinearAdamRunner, linear_scan.LinearScanRunner, scan_epoch.EpochRunner,
            single_step.StepRunner,
        ]  # fmt: skip
        for kind in runners:
            kind.run = self._counted(kind.run)

    def count_runtime(self) -> None:
        """Count each call of the runtime from now on."""
        from onnxsgd.runtime.editions import load_runtime

        session = load_runtime().InferenceSession
        for name in ("run", "run_with_iobinding"):
            setattr(session, name, self._counted(getattr(session, name)))

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **more: object) -> object:
            start = time.process_time()
            try:
                return call(*args, **more)
            finally:
                self.seconds += time.process_time() - start

        return counted


_INSIDE = _Inside()


def _times(pair: Pair, n_rounds: int, in_a_row: int = 1) -> list[float]:
    """Return the milliseconds of each call: the first decile, as other work may disturb some.

    So many calls of each are made, and timed, before the other's turn.
    """
    calls = [call for call in pair if call is not None]
    for call in calls * 3:
        call()
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(n_rounds):
        for number, call in enumerate(calls):
            start, inside = time.process_time(), _INSIDE.seconds
            for _ in range(in_a_row):
                call()
            elapsed = time.process_time() - start - (_INSIDE.seconds - inside)
            seconds[number].append(elapsed / in_a_row)
    return [1e3 * float(np.quantile(times, 0.1)) for times in seconds]


def _print_row(name: str, times: list[float]) -> None:
    peer = f"{times[1]:.2f} | {times[0] / times[1]:.2f}" if len(times) > 1 else "|"
    print(f"| {name} | {times[0]:.2f} | {peer} |", flush=True)


def _first_call(modules: Sequence[str], options: dict[str, Any], file: str | None) -> dict[str, Any]:
    """Return the milliseconds of the first call of this process after some imports, and its own imports.

    That is a prediction of the estimator in a file; without one, a fit.
    """
    import onnxsgd
    from onnxsgd.runtime.editions import load_runtime

    load_runtime()
    X, y, _ = _data()
    if file is None:
        call = partial(onnxsgd.OnnxSGDRegressor(**options).fit, X, y)
    else:
        path = Path(file)
        loaded = pickle.loads(path.read_bytes()) if path.suffix == ".pkl" else onnxsgd.load(path)
        call = partial(loaded.predict, X)
    before = set(sys.modules)
    for name in modules:
        # some modules are no longer to be found under the name that they give themselves
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    start = time.perf_counter()
    call()
    elapsed = time.perf_counter() - start
    return {"ms": 1e3 * elapsed, "imported": sorted(set(sys.modules) - before)}


def _in_fresh_process(*given: Any) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), "--one"]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, input=json.dumps(given)
    ).stdout
    return dict(json.loads(output))


def _write_learners(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and files of trained estimators."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from onnxsgd import OnnxSGDClassifier

    X, _, labels = _data()
    models = {
        "linear": None,
        "MLP": MLPClassifier((20,), max_iter=5, random_state=0).fit(X, labels),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()).fit(X, labels),
    }
    for name, model in models.items():
        learner = OnnxSGDClassifier(model, **_ONCE).fit(X, labels)
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(learner))
        learner.save(folder / f"{name}.onnxsgd")
        yield f"unpickled {name}", folder / f"{name}.pkl"
        yield f"loaded {name}", folder / f"{name}.onnxsgd"


def _print_cold() -> None:
    fits = {"default": {}, "one epoch, auto": _ONCE, "one epoch, named": {**_ONCE, **_NAMED}}
    with tempfile.TemporaryDirectory() as folder:
        learners = [(f"predict, {name}", {}, str(path)) for name, path in _write_learners(Path(folder))]
        for name, options, file in [*((f"fit, {name}", fit, None) for name, fit in fits.items()), *learners]:
            modules = _in_fresh_process([], options, file)["imported"]
            times = [_in_fresh_process(modules, options, file)["ms"] for _ in range(7)]
            _print_row(f"first {name}, beside imports", [float(np.median(times))])


def main() -> None:
    """Measure, and print a table in Markdown: milliseconds, and our time over scikit-learn's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name holds this word")
    parser.add_argument("--rounds", type=int, default=50, help="timed calls of each kind")
    parser.add_argument("--cold", action="store_true", help="first calls of fresh processes")
    parser.add_argument(
        "--default", action="store_true", help="default fits on bundled data sets, the mean of five seeds"
    )
    parser.add_argument(
        "--beside", nargs="?", const="updates", choices=("updates", "runtime"),
        help="our times beside the updates, or beside the calls of the runtime alone",
    )  # fmt: skip
    parser.add_argument(
        "--in-a-row", type=int, default=1, metavar="N", help="calls of each kind before those of the other"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.one:
        print(json.dumps(_first_call(*json.load(sys.stdin))))
        return
    if arguments.in_a_row < 1:
        parser.error(f"--in-a-row {arguments.in_a_row} is not accepted: 1 or more calls are")
    if arguments.cold and (arguments.beside or arguments.in_a_row > 1):
        parser.error("--beside and --in-a-row are for calls of this process, and --cold makes them in others")
    if arguments.beside:
        _INSIDE.count_updates() if arguments.beside == "updates" else _INSIDE.count_runtime()
    print("| call | onnxsgd, ms | scikit-learn, ms | ratio |\n|---|---|---|---|")
    if arguments.cold:
        _print_cold()
        return
    n_fits = _SEEDS if arguments.default else 1
    for name, pair in _default_pairs() if arguments.default else _pairs():
        if arguments.only in name:
            _print_row(name, [time / n_fits for time in _times(pair, arguments.rounds, arguments.in_a_row)])


if __name__ == "__main__":
    main()
