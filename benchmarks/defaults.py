"""Compare default settings with scikit-learn's: ``python benchmarks/defaults.py [--only WORD ...]``.

No parameter but `random_state` is set, on either side. A row holds if our mean score over the folds is not
below the reference's by more than the reference's standard deviation over the folds.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import joblib
import numpy as np
from default_rows import ROWS, Contestant, Row

__all__ = ["SETTINGS", "Comparison", "Score", "compare", "compare_all", "summary", "to_markdown", "to_rst"]

#: The settings of the comparison, in words.
SETTINGS = (
    "Both sides have their default settings and random_state=0. Data of up to 200 rows have 5 folds, "
    "others 3; streams are 3 series of 60 calls of 200 rows, those with reversals of 600 calls of 20, "
    "each call scored before it is learned, from the second one on. Scores are accuracy and R2; a score "
    "below -10 counts as -10. A spread is the standard deviation over the folds, at least 0.005. A row "
    "holds if our mean is not below the reference's mean by more than the reference's spread. Times are "
    "medians over the folds, with one thread for each contestant."
)
#: The least spread: a smaller difference of scores does not count.
_LEAST_SPREAD = 0.005
#: The least score, so that one diverged fold does not outweigh all others.
_LEAST_SCORE = -10.0


@dataclass(frozen=True)
class Score:
    """The result of one contestant.

    Attributes
    ----------
    mean, spread : float
        Mean and standard deviation of the score over the folds; -10 for a contestant that raised.
    seconds : float or None
        The median time of a fit; None for a contestant that raised.
    error : str
        The first error, empty without one.
    """

    mean: float
    spread: float
    seconds: float | None
    error: str = ""

    def holds_against(self, reference: Score) -> bool:
        """Tell whether this score is not below `reference` by more than its spread."""
        return not self.error and self.mean >= reference.mean - max(_LEAST_SPREAD, reference.spread)


@dataclass(frozen=True)
class Comparison:
    """The result of one row."""

    name: str
    group: str
    ours: Score
    reference: Score
    second: Score | None

    @property
    def holds(self) -> bool:
        """True if our estimator is not worse than the reference."""
        return self.ours.holds_against(self.reference)

    @property
    def holds_second(self) -> bool | None:
        """True if our estimator is not worse than the second reference; None without one."""
        return None if self.second is None else self.ours.holds_against(self.second)

    @property
    def ratio(self) -> float | None:
        """Our time over the reference's; None for a reference fitted before, or an error."""
        if self.group == "fine-tuning" or not self.ours.seconds or not self.reference.seconds:
            return None
        return self.ours.seconds / self.reference.seconds


def compare(row: Row) -> Comparison:
    """Return the result of one row."""
    second = None if row.second is None else _score(row, row.second)
    return Comparison(row.name, row.group, _score(row, row.ours), _score(row, row.reference), second)


def _score(row: Row, make: Contestant) -> Score:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # warnings of either side are no part of the comparison
        warnings.simplefilter("ignore")
        try:
            scores, seconds = row.task.run(make)
        except Exception as error:  # a row that raises is a result
            return Score(_LEAST_SCORE, 0.0, None, f"{type(error).__name__}: {error}")
    clipped = np.maximum(scores, _LEAST_SCORE)
    return Score(float(clipped.mean()), float(clipped.std()), float(np.median(seconds)))


def compare_all(words: Sequence[str] = (), jobs: int = 1) -> list[Comparison]:
    """Return the results of the rows whose name or group contains one of `words`; of all rows without any."""
    rows = [row for row in ROWS if not words or any(word in f"{row.group}: {row.name}" for word in words)]
    with joblib.parallel_config("loky", inner_max_num_threads=1) if jobs > 1 else joblib.parallel_config():
        parallel = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator")
        results = []
        for result in parallel(joblib.delayed(compare)(row) for row in rows):
            results.append(result)
            print(f"{len(results)}/{len(rows)} {result.name}", file=sys.stderr)
    return results


_HEADER = ("data", "onnxsgd", "reference", "solver", "holds", "against solver", "time")


def _cells(result: Comparison) -> tuple[str, ...]:
    return (
        result.name,
        result.ours.error.partition(":")[0] or _with_spread(result.ours),
        _with_spread(result.reference),
        "" if result.second is None else _with_spread(result.second),
        "yes" if result.holds else "no",
        "" if result.holds_second is None else "yes" if result.holds_second else "no",
        "" if result.ratio is None else f"{result.ratio:.1f}",
    )


def _with_spread(score: Score) -> str:
    return f"{score.mean:.3f} ± {score.spread:.3f}"


def summary(results: Sequence[Comparison]) -> str:
    """Return the numbers of rows that hold, and the median ratio of times."""
    second = [result.holds_second for result in results if result.holds_second is not None]
    ratios = [result.ratio for result in results if result.ratio is not None]
    text = f"{sum(result.holds for result in results)} of {len(results)} rows hold"
    if second:
        text += f"; {sum(second)} of {len(second)} hold against the solver"
    return text + (f"; median time {np.median(ratios):.1f} times the reference's." if ratios else ".")


def to_text(results: Sequence[Comparison]) -> str:
    """Return the results as a table of aligned columns."""
    rows = [_HEADER, *map(_cells, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*(line.rstrip() for line in lines), "", SETTINGS, summary(results)])


def to_markdown(results: Sequence[Comparison]) -> str:
    """Return the results as a table in Markdown."""
    rows = [_HEADER, ["---"] * len(_HEADER), *map(_cells, results)]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", SETTINGS, "", summary(results)])


def to_rst(results: Sequence[Comparison]) -> str:
    """Return the results as a table in reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (_HEADER, *map(_cells, results)):
        lines += [f"   {'*' if index == 0 else ' '} - {cell}".rstrip() for index, cell in enumerate(row)]
    return "\n".join([*lines, "", SETTINGS, "", summary(results)])


def to_json(results: Sequence[Comparison]) -> str:
    """Return the results as JSON, a list of objects."""
    return json.dumps(
        [
            asdict(result)
            | {"holds": result.holds, "holds_second": result.holds_second, "ratio": result.ratio}
            for result in results
        ],
        indent=1,
    )


_FORMATS: dict[str, Callable[[Sequence[Comparison]], str]] = {
    "text": to_text, "markdown": to_markdown, "rst": to_rst, "json": to_json,
}  # fmt: skip


def main() -> None:
    """Parse the command line, compare, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="parts of names of rows")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows compared at the same time")
    parser.add_argument("--list", action="store_true", help="print the names of the rows, and stop")
    parser.add_argument("--json-file", type=Path, metavar="PATH", help="write the results there as JSON too")
    for name in _FORMATS:
        parser.add_argument(f"--{name}", dest="format", action="store_const", const=name)
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{row.group}: {row.name}" for row in ROWS))
        return
    results = compare_all(arguments.only, arguments.jobs)
    if arguments.json_file:
        arguments.json_file.write_text(to_json(results))
    print(_FORMATS[arguments.format or "text"](results))


if __name__ == "__main__":
    main()
