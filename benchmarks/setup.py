"""Time of the stages of a first fit: ``python benchmarks/setup.py [--engine NAME]``.

A linear model on 1,000 x 20 is fitted in a fresh process, and fitted again; in between, on data of another
shape. Time that a function spends in another one of the table counts for the latter alone.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: The functions of each stage, by module and name.
_STAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "the model: read, converted, chosen weights": (("onnxsgd.learner.dtype_choice", "make_learner"),),
    "differentiate": (("onnxsgd.gradient.joint_graph", "forward_backward_model"),),
    "build the step: loss, update, fusions": (
        ("onnxsgd.engine.step.training_step", "build_step"),
        ("onnxsgd.engine.step.scan_epoch", "build_epoch"),
    ),
    "compile: sessions of the runtime": (("onnxsgd.runtime.sessions", "make_session"),),
    "train": (("onnxsgd.training.loop", "train"),),
}  # fmt: skip
_REST = "checks of the data, the rest"


class Stopwatch:
    """Times of stages, each without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, timed."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            self._inside.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = time.perf_counter() - start
                self.seconds[stage] += elapsed - self._inside.pop()
                self._inside[-1] += elapsed

        return timed

    def watch_all(self) -> None:
        """Time every function of the stages, in every module that imported it."""
        modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "onnxsgd"]
        for stage, places in _STAGES.items():
            for module_name, function_name in places:
                function = getattr(sys.modules[module_name], function_name)
                timed = self.wrap(stage, function)
                for module in modules:
                    if getattr(module, function_name, None) is function:
                        setattr(module, function_name, timed)


def main() -> None:
    """Measure in a few fresh processes, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="auto", help="auto, onnxruntime-training or portable")
    parser.add_argument("--runs", type=int, default=5, help="fresh processes")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(_measure(arguments.engine)))
        return
    command = [sys.executable, str(Path(__file__).resolve()), "--one", "--engine", arguments.engine]
    outputs = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for _ in range(arguments.runs)
    ]
    runs = [json.loads(output.splitlines()[-1]) for output in outputs]
    fits = list(runs[0])
    stages = [*_STAGES, _REST]
    print("| milliseconds |", " | ".join(fits), "|")
    print("|---|" + "---|" * len(fits))
    for stage in [*dict.fromkeys(s for run in runs for s in run[fits[0]] if s not in stages), *stages]:
        cells = [f"{1e3 * np.median([run[fit].get(stage, 0.0) for run in runs]):.1f}" for fit in fits]
        print(f"| {stage} |", " | ".join(cells), "|")
    totals = [f"{1e3 * np.median([sum(run[fit].values()) for run in runs]):.1f}" for fit in fits]
    print("| sum |", " | ".join(totals), "|")


def _measure(engine: str) -> dict[str, dict[str, float]]:
    """Return the seconds of the stages of each fit."""
    imports = {
        "import scikit-learn": _time(lambda: __import__("sklearn.linear_model")),
        "import onnxsgd": _time(lambda: __import__("onnxsgd.estimators.regressor")),
        "import the runtime": _time(lambda: sys.modules["onnxsgd.runtime.editions"].load_runtime()),
    }
    from onnxsgd import OnnxSGDRegressor

    for module in {module for places in _STAGES.values() for module, _ in places}:
        __import__(module)
    watch = Stopwatch()
    watch.watch_all()
    fits = {}
    for name, n_features in (("first fit", 20), ("second fit", 20), ("new structure", 21), ("again", 21)):
        X, y = _data(n_features)
        watch.seconds.clear()
        start = time.perf_counter()
        OnnxSGDRegressor(random_state=0, engine=engine).fit(X, y)
        elapsed = time.perf_counter() - start
        fits[name] = {**watch.seconds, _REST: elapsed - sum(watch.seconds.values())}
    fits["first fit"] = imports | fits["first fit"]
    return fits


def _data(n_features: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, n_features)).astype(np.float32)
    return X, (X @ rng.normal(size=n_features) + 0.1 * rng.normal(size=1000)).astype(np.float32)


def _time(load: Callable[[], object]) -> float:
    start = time.perf_counter()
    load()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
