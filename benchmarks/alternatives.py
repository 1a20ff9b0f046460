"""Try the claims of the table of alternatives: ``python benchmarks/alternatives.py [--library NAME ...]``.

Each claim is a function in ``benchmarks/claims``, run in a process of its own: "yes", a number, or the error.
The libraries need versions that exclude each other, so that it takes an environment for each column::

    pip install .                                                                    # ours, scikit_learn
    pip install torch==2.13.0 skorch onnx2torch onnxscript onnxruntime skl2onnx      # pytorch
    pip install onnxruntime-training-cpu==1.19.2 torch onnx==1.16.2 skl2onnx==1.17   # onnxruntime_training
    pip install river scikit-learn                                                   # river

The sizes are those of the libraries with all that they require, the times of import those of a process.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import multiprocessing
import re
import resource
import subprocess
import sys
from collections.abc import Iterator

LIBRARIES = ("ours", "scikit_learn", "pytorch", "onnxruntime_training", "river")
CLAIMS = {
    "continue_linear": "continues a fitted Pipeline(StandardScaler, LogisticRegression)",
    "continue_mlp": "continues a fitted Pipeline(StandardScaler, MLPClassifier)",
    "train_networks": "trains networks that torch exported to ONNX",
    "return_onnx": "returns an ONNX file",
    "grid_search": "works in Pipeline and GridSearchCV",
    "raw_data": "accuracy on raw columns (breast cancer), default settings",
    "sample_weights": "weights of samples",
    "sparse_data": "sparse rows",
    "stream": "learns from a stream of batches",
    "new_network": "trains a network that is written in Python",
    "size": "MB on disk",
    "import_time": "seconds to import",
}
_SECONDS = 120


def main() -> None:
    """Try the claims, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--claim", nargs="+", choices=CLAIMS, default=list(CLAIMS))
    arguments = parser.parse_args()
    for library in arguments.library:
        packages = importlib.import_module(f"claims.{library}").PACKAGES
        missing = [name for name in packages if not _version(name)]
        if missing:
            print(f"\n{library}: not installed: {', '.join(missing)}")
            continue
        print(f"\n{library}:", ", ".join(f"{name} {_version(name)}" for name in packages), flush=True)
        for claim in arguments.claim:
            print(f"  {CLAIMS[claim]}: {_tried(library, claim)}", flush=True)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tried(library: str, claim: str) -> str:
    """Return the cell of a claim, tried in a process: one that kills its process is no."""
    module = importlib.import_module(f"claims.{library}")
    if claim == "size":
        return f"{_size(module.PACKAGES):.0f}"
    if claim == "import_time":
        return f"{_import_time(module.IMPORT):.2f}"
    if claim == "train_networks" and hasattr(module, "train_network"):
        return _networks(library)
    if not hasattr(module, claim):
        return "no: nothing to call"
    return _in_process(_call, library, claim)


def _in_process(function, *arguments: object) -> str:
    """Return the answer of a function in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(_SECONDS) else f"no: still at work after {_SECONDS} s"
    except EOFError:
        process.join()
        return f"no: the process died (exit code {process.exitcode})"
    finally:
        process.kill()


def _answer(sender, function, arguments) -> None:
    try:
        answer = function(*arguments)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        answer = f"no: {type(error).__name__}: {lines[0][:110]}"
    sender.send(answer)


def _call(library: str, claim: str) -> str:
    detail = getattr(importlib.import_module(f"claims.{library}"), claim)()
    return detail or "yes"


def _networks(library: str) -> str:
    from claims import data

    # imported once: the processes are forks of this one
    exec(importlib.import_module(f"claims.{library}").IMPORT)
    answers = {name: _in_process(_train, library, name) for name in data.networks()}
    failed = {name: answer for name, answer in answers.items() if answer != "yes"}
    reasons = "".join(f"\n    {name}: {answer}" for name, answer in failed.items())
    return f"{len(answers) - len(failed)} of {len(answers)}{reasons}"


def _train(library: str, name: str) -> str:
    from claims import data

    network = data.Network(name)
    loss = importlib.import_module(f"claims.{library}").train_network(network)
    assert loss < network.start, f"loss {network.start:.4f} before, {loss:.4f} after"
    return "yes"


def _size(packages: list[str]) -> float:
    """Return the megabytes of packages and of all that they require."""
    return sum(_bytes(name) for name in _required(packages)) / 1e6


def _required(packages: list[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(packages)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or not _version(name):
            continue
        found.add(name)
        for requirement in importlib.metadata.requires(name) or []:
            if "extra ==" not in requirement:
                waiting.append(re.match(r"[\w.-]+", requirement)[0])
    return found


def _bytes(name: str) -> Iterator[int]:
    files = importlib.metadata.files(name) or []
    paths = {file.locate().resolve() for file in files}
    return sum(path.stat().st_size for path in paths if path.is_file())


def _import_time(statement: str) -> float:
    """Return the processor seconds of an import, beyond those of the interpreter: the best of five."""
    return min(_seconds(statement) for _ in range(5)) - min(_seconds("pass") for _ in range(5))


def _seconds(statement: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-W", "ignore", "-c", statement], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
