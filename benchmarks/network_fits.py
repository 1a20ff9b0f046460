"""Whole fits of a network beside JAX: ``python benchmarks/network_fits.py [--clock cpu] [--epochs N ...]``.

The network 20-100-50-1 under plain SGD at a constant rate. A fit of ours is a call of ``fit``: checks of the
data, the order of each epoch, updates, weights. JAX runs a jitted epoch, a ``lax.scan`` over batches that are
gathered inside, on arrays that come from numpy in each fit, and are shuffled by numpy. Both are compiled
before, have one thread, and take turns.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable

from measure import interleave
from run import configure_jax, limit_threads

_ROUNDS, _SECONDS = 15, 0.05


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=[10_240, 102_400])
    parser.add_argument("--batch", nargs="+", type=int, default=[10, 32, 128, 256])
    parser.add_argument("--epochs", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time")
    arguments = parser.parse_args()
    limit_threads(1)
    configure_jax(1)
    import jax
    import onnxruntime

    versions = f"jax {jax.__version__}, onnxruntime {onnxruntime.__version__}"
    print(f"{platform.machine()}, {versions}, {arguments.clock} time, medians\n")
    print("| rows | batch | epochs | JAX, ms | onnxsgd, ms | ratio |\n|---|---|---|---|---|---|")
    for rows in arguments.rows:
        for batch_size in arguments.batch:
            for n_epochs in arguments.epochs:
                blocks = _blocks(rows, batch_size, n_epochs)
                samples = interleave(blocks, arguments.rounds, _SECONDS, arguments.clock)
                ours, jax = samples["onnxsgd"], samples["JAX"]
                cells = (f"{1e3 * each.median:.2f}" for each in (jax, ours))
                ratio = f"{jax.ratio_to(ours):.2f}"
                print("|", " | ".join(map(str, (rows, batch_size, n_epochs, *cells, ratio))), "|", flush=True)


def _blocks(rows: int, batch_size: int, n_epochs: int) -> dict[str, Callable[[int], None]]:
    """Return the two fits."""
    from trainers.jax_numpy import train_by_epoch
    from trainers.ours import train_with
    from workloads import Workload, make_task

    workload = Workload("mlp", (20, 100, 50, 1), "regression", max_rows=rows, max_updates=rows)
    task = make_task(workload, batch_size, 1)
    contestants = {"onnxsgd": train_with(task, "auto"), "JAX": train_by_epoch(task, with_transfer=True)}

    def block(train: Callable[[int, bool], object], units: int) -> None:
        for _ in range(units):
            train(n_epochs, True)

    return {name: lambda units, train=train: block(train, units) for name, train in contestants.items()}


if __name__ == "__main__":
    main()
