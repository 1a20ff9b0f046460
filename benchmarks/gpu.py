"""Training on a GPU beside its peers: ``python benchmarks/gpu.py [--device cuda:1] [--batch N ...]``.

Three networks at three batch sizes; the time of an update in whole epochs on shuffled data that are on the
device, including the work of the host between the updates, and once for each epoch. Peers take part if
they are installed. Before anything is timed, all must have reached the same loss after an epoch in order.
``--device cpu`` shows with small networks that the script works.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from report import write_csv
from trainers import TimedTrain
from trainers.plain_numpy import mean_loss
from workloads import Task, Workload, make_task

#: The contestants: the name in the tables, and the place of the function.
CONTESTANTS = {
    "onnxsgd": ("gpu_ours", "train"),
    "onnxsgd, not recorded": ("gpu_ours", "train_without_recording"),
    "onnxsgd, float16": ("gpu_ours", "train_half"),
    "torch eager": ("gpu_pytorch", "train_eager"),
    "torch eager, float16": ("gpu_pytorch", "train_half"),
    "torch CUDA graph": ("gpu_pytorch", "train_graph"),
    "JAX jit + scan": ("gpu_jax", "train"),
}
BASELINE = "onnxsgd"

#: The ratios to reach: the time of another contestant in multiples of ours.
TARGETS = {
    ("torch eager", "onnxsgd"): 8.0,
    ("torch eager", "onnxsgd, not recorded"): 3.0,
    ("torch CUDA graph", "onnxsgd"): 1.0,
}

NETWORKS = {
    "mlp-20-100-50-1": (20, 100, 50, 1),
    "mlp-100-512-512-1": (100, 512, 512, 1),
    "mlp-784-2048-2048-1": (784, 2048, 2048, 1),
}
SMALL = {"mlp-5-8-4-1": (5, 8, 4, 1)}

#: Updates of an epoch at each batch size.
UPDATES = {32: 256, 256: 256, 4096: 64}
SMALL_UPDATES = {32: 21, 256: 5}

#: Epochs before the first one that counts: kernels are chosen, work is recorded.
_WARM_UP = 2
#: Rows on which losses are compared, and their tolerance, as a share of the improvement of an epoch.
_CHECKED_ROWS, _TOLERANCE = 4096, 1e-3
#: That of contestants in float16, whose first updates may be skipped.
_HALF_TOLERANCE = 0.05


@dataclass(frozen=True)
class Result:
    """The measurements of one contestant on one task.

    Attributes
    ----------
    network, batch_size, contestant : str, int, str
        The task and the contestant.
    median, best : float
        Seconds for one update.
    ratio : float
        The median over our median.
    loss : float
        The loss after one epoch in order.
    """

    network: str
    batch_size: int
    contestant: str
    median: float
    best: float
    ratio: float
    loss: float


def main() -> None:
    """Parse the command line, measure, report."""
    arguments = _parse()
    on_gpu = arguments.device != "cpu"
    networks, updates = (NETWORKS, UPDATES) if on_gpu else (SMALL, SMALL_UPDATES)
    # otherwise JAX takes most of the memory
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    print(f"{_device_name(arguments.device)}; {_versions()}")
    results: list[Result] = []
    for name in arguments.network or networks:
        for batch_size in arguments.batch or updates:
            workload = Workload(
                name, (NETWORKS | SMALL)[name], "regression", max_rows=sys.maxsize,
                max_updates=arguments.updates or updates.get(batch_size, 256),
            )  # fmt: skip
            print(f"{name}, batch size {batch_size}", file=sys.stderr)
            results += measure(make_task(workload, batch_size, 1), arguments.device, arguments.epochs)
            arguments.output.mkdir(parents=True, exist_ok=True)
            write_csv(arguments.output / "gpu.csv", results)
    print(f"\nMicroseconds for an update, and times of the others in multiples:\n\n{table(results)}")
    if on_gpu:
        print(f"\nTargets:\n\n{target_table(results)}")


def measure(task: Task, device: str, n_epochs: int) -> list[Result]:
    """Measure all contestants on one task, one after another, as memory may not hold the data of all.

    Raises
    ------
    RuntimeError
        If the losses after an epoch do not agree.
    """
    checked = replace(task, X=task.X[:_CHECKED_ROWS], y=task.y[:_CHECKED_ROWS])
    seconds, losses = {}, {}
    for name, run in _contestants(task, device):
        losses[name] = mean_loss(checked, run(1, False)[0])
        seconds[name] = np.array(run(_WARM_UP + n_epochs, True)[1][_WARM_UP:]) / task.n_updates
        gc.collect()
    gain = abs(mean_loss(checked, task.initial) - losses[BASELINE])
    apart = {
        name: loss
        for name, loss in losses.items()
        if not abs(loss - losses[BASELINE]) <= gain * (_HALF_TOLERANCE if "float16" in name else _TOLERANCE)
    }
    if apart:
        raise RuntimeError(
            f"{task.workload.name}, batch size {task.batch_size}: the loss after an epoch is "
            f"{losses[BASELINE]:.6f}, and of others {apart}. The contestants do not do the same work."
        )
    ours = float(np.median(seconds[BASELINE]))
    return [
        Result(
            task.workload.name, task.batch_size, name, float(np.median(times)), float(times.min()),
            float(np.median(times)) / ours, losses[name],
        )
        for name, times in seconds.items()
    ]  # fmt: skip


def _contestants(task: Task, device: str) -> Iterator[tuple[str, TimedTrain]]:
    """Yield those whose libraries are installed and know the device."""
    for name, (module, function) in CONTESTANTS.items():
        try:
            yield name, getattr(importlib.import_module(f"trainers.{module}"), function)(task, device)
        except ImportError as error:
            if name == BASELINE:
                raise
            print(f"{name} does not take part: {error}", file=sys.stderr)


def table(results: list[Result]) -> str:
    """Return the times and ratios in Markdown, a row for each network and batch size."""
    names = list(dict.fromkeys(result.contestant for result in results))
    rows = [["network", "batch", *(f"{name} us" for name in names), *(f"{name} ratio" for name in names[1:])]]
    rows.append(["---"] * len(rows[0]))
    for network, batch_size in dict.fromkeys((result.network, result.batch_size) for result in results):
        found = {r.contestant: r for r in results if (r.network, r.batch_size) == (network, batch_size)}
        times = [f"{1e6 * found[name].median:.1f}" if name in found else "" for name in names]
        ratios = [f"{found[name].ratio:.2f}" if name in found else "" for name in names[1:]]
        rows.append([network, str(batch_size), *times, *ratios])
    return _markdown(rows)


def target_table(results: list[Result]) -> str:
    """Return each ratio that has a target, and whether it is reached, in Markdown."""
    rows = [["network", "batch", "of", "against", "ratio", "target", ""], ["---"] * 7]
    medians = {(r.network, r.batch_size, r.contestant): r.median for r in results}
    for network, batch_size in dict.fromkeys((r.network, r.batch_size) for r in results):
        for (other, ours), target in TARGETS.items():
            times = [medians.get((network, batch_size, name)) for name in (other, ours)]
            if None not in times:
                ratio = times[0] / times[1]
                verdict = "reached" if ratio >= target else "MISSED"
                rows.append([network, str(batch_size), ours, other, f"{ratio:.2f}", f"{target:.1f}", verdict])
    return _markdown(rows)


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device", default="cuda", help="cuda, cuda:1, or cpu for a trial with small networks"
    )
    parser.add_argument("--network", nargs="+", choices=[*NETWORKS, *SMALL], help="which networks")
    parser.add_argument("--batch", nargs="+", type=int, metavar="N", help="batch sizes")
    parser.add_argument("--updates", type=int, metavar="N", help="updates of an epoch")
    parser.add_argument("--epochs", type=int, default=7, metavar="N", help="epochs that are timed")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark-results"), help="folder of the CSV file"
    )
    return parser.parse_args()


def _device_name(device: str) -> str:
    if device == "cpu":
        return platform.machine()
    try:
        import torch
    except ImportError:
        return device
    return str(torch.cuda.get_device_name(device))


def _versions() -> str:
    from importlib import metadata

    found = []
    for name in ("onnxruntime-gpu", "onnxruntime", "onnxruntime-training-cpu", "torch", "jax"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


if __name__ == "__main__":
    main()
