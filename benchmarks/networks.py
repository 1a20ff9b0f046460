"""Time updates of networks that torch exports: ``python benchmarks/networks.py [--network NAME ...]``.

Each network is trained by ``fit`` with every installed engine that supports it, and by eager torch,
from the same weights, on shuffled batches, one thread, in turn. All parameters are trained, batch
normalizations keep their statistics. After some updates without shuffling the losses must agree.

``--first`` times the first fits of fresh processes instead: four updates, by processor time, without the
imports of the estimator and with those of the fit; a second fit, which proves that later ones need the
structure of a large graph alone; and a fourth one.

The process restarts itself with an allocator that keeps freed memory, for all contestants alike: torch
allocates its tensors anew in each update, and otherwise spends a quarter of a ResNet-18 in page faults.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from measure import Samples, interleave
from torch.nn import functional
from torch_networks import BATCH_SIZE, N_CLASSES, NETWORKS, Network

ENGINES = ("portable", "onnxruntime-training")
_COLUMNS = ("portable", "native", "torch", "portable / native", "torch / portable")
_RATE, _ROWS = 1e-3, 32 * BATCH_SIZE

#: Settings of glibc: tensors up to 32 MiB, its largest threshold, come from the heap, which never shrinks.
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}

#: Tolerance of the loss after an epoch against torch's, as a share of the improvement of the epoch.
_TOLERANCE = 1e-2

#: The first fit of a process, by the path of a graph and a file of its rows; prints milliseconds.
_FIRST_FIT = """
import sys, time
import numpy as np, onnx
from onnxsgd import OnnxSGDClassifier
onx, data = onnx.load(sys.argv[1]), np.load(sys.argv[2])
weights = [w.name for w in onx.graph.initializer if w.data_type == 1 and "running" not in w.name]
model = OnnxSGDClassifier(onx, penalty=None, learning_rate="constant", eta0=1e-3, batch_size=8,
                          max_iter=1, tol=None, random_state=0, engine="portable", n_threads=1,
                          trainable=weights)
for _ in range(4):
    start = time.process_time()
    model.fit(data["X"], data["y"])
    print(1e3 * (time.process_time() - start))
"""

#: Trains for a number of epochs, shuffled or not, and returns a function for the scores of all rows.
Train = Callable[[int, bool], Callable[[], np.ndarray]]


def main() -> None:
    """Parse the command line, measure, print a table."""
    arguments = _parse()
    if arguments.first:
        print("| network | first fit, ms | least | second fit, ms | fourth |\n|---|---|---|---|---|")
        for name in arguments.network or NETWORKS:
            first, second, _, fourth = first_fits(NETWORKS[name], arguments.rounds).T
            times = np.median(first), first.min(), np.median(second), np.median(fourth)
            cells = (name, *(f"{number:.0f}" for number in times))
            print("| " + " | ".join(cells) + " |", flush=True)
        return
    if not _ALLOCATOR.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_ALLOCATOR})
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print(f"{platform.machine()}, torch {torch.__version__}, batch {BATCH_SIZE}; ms an update, medians")
    print("| network | " + " | ".join(_COLUMNS) + " |")
    print("|---" * (len(_COLUMNS) + 1) + "|")
    for name in arguments.network or NETWORKS:
        samples = measure(NETWORKS[name], arguments.rounds, arguments.seconds, arguments.clock)
        print(f"| {name} | " + " | ".join(_cells(samples)) + " |", flush=True)


def measure(network: Network, n_rounds: int, seconds: float, clock: str) -> dict[str, Samples]:
    """Time every engine that takes a network, and torch."""
    X, y = _data(network)
    onx = export(network, X[:BATCH_SIZE])
    trains = {"torch": _train_torch(network, X, y)}
    for engine in ENGINES:
        try:
            train = _train_ours(onx, engine, X, y)
            train(1, False)
        except Exception as error:
            # the other engine is measured anyway
            print(f"{engine} does not take part: {str(error)[:200]}", file=sys.stderr)
            continue
        trains[engine] = train
    losses = {name: _mean_loss(train(2, False)(), y) for name, train in trains.items()}
    _check_equal_work(losses, _mean_loss(trains["torch"](0, False)(), y))
    return interleave({name: _epochs(train) for name, train in trains.items()}, n_rounds, seconds, clock)


def first_fits(network: Network, n_rounds: int) -> np.ndarray:
    """Return the milliseconds of the first four fits of fresh processes, one row for each process."""
    X, _ = _data(network)
    rows = slice(4 * BATCH_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        graph, data = Path(folder, "network.onnx"), Path(folder, "data.npz")
        onnx.save(export(network, X[:BATCH_SIZE]), graph)
        np.savez(data, X=X[rows], y=np.arange(len(X))[rows] % N_CLASSES)
        command = [sys.executable, "-W", "ignore", "-c", _FIRST_FIT, str(graph), str(data)]
        # the first of them compiles the modules
        printed = [
            subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
            for _ in range(n_rounds + 1)
        ]
    return np.array([lines.split() for lines in printed[1:]], float)


def export(network: Network, X: np.ndarray) -> onnx.ModelProto:
    """Return a network exported by torch, with a dynamic number of rows."""
    buffer = io.BytesIO()
    torch.onnx.export(
        network.make(), (torch.from_numpy(X),), buffer, dynamo=False, opset_version=17,
        input_names=["X"], output_names=["score"], dynamic_axes={"X": {0: "N"}, "score": {0: "N"}},
        do_constant_folding=True, training=torch.onnx.TrainingMode.PRESERVE,
    )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="+", choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--first", action="store_true", help="the first fit of fresh processes")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each contestant")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a block")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="cpu", help="cpu: for machines that are not quiet"
    )
    return parser.parse_args()


def _cells(samples: dict[str, Samples]) -> list[str]:
    """Return the cells of a row: times in milliseconds, and ratios."""
    n_updates = _ROWS // BATCH_SIZE
    times = [samples.get(name) for name in (*ENGINES, "torch")]
    cells = ["-" if s is None else f"{1e3 * s.median / n_updates:.3g}" for s in times]
    pairs = (times[:2], (times[2], times[0]))
    ratios = ["-" if None in pair else f"{pair[0].ratio_to(pair[1]):.2f}" for pair in pairs]
    return [*cells, *ratios]


def _data(network: Network) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    size = (_ROWS, *network.shape)
    y = rng.integers(N_CLASSES, size=_ROWS)
    if network.n_tokens:
        return rng.integers(network.n_tokens, size=size), y
    return (rng.normal(size=size) + 0.1 * y.reshape(-1, *[1] * len(network.shape))).astype(np.float32), y


def _train_ours(onx: onnx.ModelProto, engine: str, X: np.ndarray, y: np.ndarray) -> Train:
    from onnxsgd import OnnxSGDClassifier

    estimator: Any = OnnxSGDClassifier(
        onx, penalty=None, learning_rate="constant", eta0=_RATE, batch_size=BATCH_SIZE, tol=None,
        random_state=0, engine=engine, n_threads=1, trainable=_parameters(onx),
    )  # fmt: skip

    def train(n_epochs: int, shuffle: bool) -> Callable[[], np.ndarray]:
        fitted = estimator.set_params(max_iter=n_epochs, shuffle=shuffle).fit(X, y)
        return lambda: fitted.decision_function(X)

    return train


def _parameters(onx: onnx.ModelProto) -> list[str]:
    """Return the names of the tensors that were parameters of the network."""
    return [
        tensor.name
        for tensor in onx.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and "running" not in tensor.name
    ]


def _train_torch(network: Network, X: np.ndarray, y: np.ndarray) -> Train:
    rows, labels = torch.from_numpy(X), torch.from_numpy(y)

    def train(n_epochs: int, shuffle: bool) -> Callable[[], np.ndarray]:
        module = network.make()
        optimizer = torch.optim.SGD(module.parameters(), lr=_RATE)
        for _ in range(n_epochs):
            order = torch.randperm(_ROWS) if shuffle else torch.arange(_ROWS)
            for batch in order.split(BATCH_SIZE):
                optimizer.zero_grad()
                functional.cross_entropy(module(rows[batch]), labels[batch]).backward()
                optimizer.step()
        return lambda: module(rows).detach().numpy()

    return train


def _epochs(train: Train) -> Callable[[int], object]:
    return lambda n_epochs: train(n_epochs, True)


def _mean_loss(scores: np.ndarray, y: np.ndarray) -> float:
    return float(functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(y)))


def _check_equal_work(losses: dict[str, float], initial: float) -> None:
    gain = abs(initial - losses["torch"])
    wrong = {name: loss for name, loss in losses.items() if abs(loss - losses["torch"]) > _TOLERANCE * gain}
    if wrong:
        raise RuntimeError(
            f"The losses should be {losses['torch']:.6f}, from {initial:.6f}; they are {wrong}."
        )


if __name__ == "__main__":
    main()
