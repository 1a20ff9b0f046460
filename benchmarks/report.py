"""The output of a run: tables, a CSV file, a plot, and the comparison with the targets."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from contestants import BASELINE
from steps import LIMITS, Result

__all__ = ["TARGETS", "plot_ratios", "step_table", "target_table", "write_csv"]

#: The ratios to reach on one thread: (workload, batch size) -> contestant -> ratio.
TARGETS: dict[tuple[str, int], dict[str, float]] = {
    ("mlp-20-100-50-1", 10): {
        "scikit-learn MLP": 8.0, "torch eager": 10.0, "JAX jit step": 1.8, "JAX jit + scan": 1.0,
    },
    ("mlp-20-100-50-1", 32): {
        "scikit-learn MLP": 7.0, "torch eager": 6.5, "JAX jit step": 1.6, "JAX jit + scan": 1.0,
    },
    ("mlp-20-100-50-1", 256): {
        "scikit-learn MLP": 4.0, "torch eager": 2.3, "JAX jit step": 1.1, "JAX jit + scan": 1.0,
    },
    ("linear-20", 256): {"scikit-learn SGD": 1.4, "torch eager": 5.0, "JAX jit + scan": 1.0},
}  # fmt: skip


def step_table(results: Sequence[Result]) -> str:
    """Return one table in Markdown: the ratios, a row for each workload and batch size.

    The first column is our time for an update; the others are times of contestants in multiples of it.
    """
    names = list(dict.fromkeys(result.contestant for result in results if result.contestant != BASELINE))
    tasks = dict.fromkeys((result.workload, result.batch_size) for result in results)
    by_key = {(result.workload, result.batch_size, result.contestant): result for result in results}
    rows = []
    for workload, batch_size in tasks:
        ours = by_key[workload, batch_size, BASELINE]
        others = [by_key.get((workload, batch_size, name)) for name in names]
        cells = ["" if other is None else f"{other.ratio_median:.2f}" for other in others]
        times = f"{1e6 * ours.median:.1f} us (best {1e6 * ours.best:.1f})"
        rows.append([workload, str(batch_size), times, *cells])
    return _markdown(["workload", "batch", BASELINE, *names], rows)


def target_table(results: Iterable[Result]) -> str:
    """Return a table in Markdown: each ratio that has a target, and whether it is reached."""
    rows = []
    for result in results:
        target = TARGETS.get((result.workload, result.batch_size), {}).get(result.contestant)
        if target is not None:
            ratio = result.ratio_median
            verdict = "reached" if ratio >= target else "MISSED"
            rows.append(
                [
                    result.workload,
                    str(result.batch_size),
                    result.contestant,
                    f"{ratio:.2f}",
                    f"{target:.1f}",
                    verdict,
                ]
            )
    return _markdown(["workload", "batch", "against", "ratio", "target", ""], rows)


def write_csv(path: Path, rows: Sequence[Any]) -> None:
    """Write dataclasses of one type, a line for each."""
    if not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(rows[0])])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def plot_ratios(path: Path, results: Sequence[Result], title: str) -> None:
    """Draw the ratios: a panel for each workload, a line for each contestant over the batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    workloads = list(dict.fromkeys(result.workload for result in results))
    names = [
        n for n in dict.fromkeys(result.contestant for result in results) if n not in (BASELINE, LIMITS[1])
    ]
    n_columns = min(3, len(workloads))
    n_rows = -(-len(workloads) // n_columns)
    figure, axes = plt.subplots(
        n_rows, n_columns, figsize=(5 * n_columns, 3.6 * n_rows), squeeze=False, layout="constrained"
    )
    colors = plt.get_cmap("tab10")
    for ax, workload in zip(axes.flat, workloads, strict=False):
        for number, name in enumerate(names):
            points = sorted(
                (r.batch_size, r.ratio_median)
                for r in results
                if (r.workload, r.contestant) == (workload, name)
            )
            style = "--" if name in LIMITS else "-"
            if points:
                ax.plot(*zip(*points, strict=True), style, marker="o", ms=4, color=colors(number), label=name)
        ax.axhline(1.0, color="black", lw=1)
        ax.set(
            title=workload,
            xscale="log",
            yscale="log",
            xlabel="batch size",
            ylabel=f"time / time of {BASELINE}",
        )
        ax.grid(alpha=0.3, which="both")
    for ax in axes.flat[len(workloads) :]:
        ax.set_axis_off()
    handles = {
        label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)
