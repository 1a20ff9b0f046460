"""Run the benchmarks: ``python benchmarks/run.py [--quick] [--workload NAME ...] [--batch N ...]``.

All contestants run in this one process, in turn, on shuffled data. Peers take part if they are installed:
``pip install torch jax matplotlib``. The tables go to the screen, a CSV file and a plot to ``--output``.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path


def main() -> None:
    """Parse the command line, measure, report."""
    arguments = _parse()
    n_threads = os.cpu_count() or 1 if arguments.all_cores else 1
    # These libraries read the environment when they are imported, so they are imported after it is set.
    limit_threads(n_threads)
    import fits
    import report
    import steps
    from workloads import BATCH_SIZES, WORKLOADS

    arguments.output.mkdir(parents=True, exist_ok=True)
    configure_jax(n_threads)
    quick, clock = arguments.quick, arguments.clock
    effort = steps.Effort(3, 0.2, clock, False) if quick else steps.Effort(7, 0.5, clock, True)
    names = arguments.workload or (["mlp-20-100-50-1", "linear-20"] if quick else list(WORKLOADS))
    batch_sizes = arguments.batch or ((10, 32, 256) if quick else BATCH_SIZES)
    results: list[steps.Result] = []
    print(f"{platform.machine()}, {platform.python_version()}, {n_threads} thread(s); {fits.versions()}")
    for name in (name for name in names if name in WORKLOADS):
        for batch_size in batch_sizes:
            print(f"{name}, batch size {batch_size}", file=sys.stderr)
            results += steps.run_workload(WORKLOADS[name], batch_size, n_threads, effort)
            report.write_csv(arguments.output / "steps.csv", results)
    if results:
        print(f"\nTime of an update, and those of the others in multiples:\n\n{report.step_table(results)}")
        if n_threads == 1:
            print(f"\nTargets:\n\n{report.target_table(results)}")
        report.plot_ratios(arguments.output / "steps.png", results, f"Training steps, {n_threads} thread(s)")
    whole = [name for name in fits.FITS if name in names or (not arguments.workload and not quick)]
    times = [time for name in whole for time in fits.run_fit(name, n_threads, 1 if quick else 3)]
    if times:
        report.write_csv(arguments.output / "fits.csv", times)
        print(f"\nWhole fits:\n\n{fits.fit_table(times)}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few workloads, short blocks; about a minute")
    parser.add_argument("--workload", nargs="+", metavar="NAME", help="names of workloads or of whole fits")
    parser.add_argument("--batch", nargs="+", type=int, metavar="N", help="batch sizes")
    parser.add_argument("--all-cores", action="store_true", help="let everybody use all cores")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: processor time, for one thread on a machine that is not quiet",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"), help="folder of the files")
    return parser.parse_args()


def limit_threads(n_threads: int) -> None:
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = str(n_threads)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if n_threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["PJRT_NPROC"] = os.environ["NPROC"] = "1"


def configure_jax(n_threads: int) -> None:
    """Keep JAX from overlapping its Python part with its computation, which takes a second core."""
    try:
        import jax
    except ImportError:
        return
    jax.config.update("jax_cpu_enable_async_dispatch", n_threads > 1)


if __name__ == "__main__":
    main()
