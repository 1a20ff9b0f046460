"""The report of the last fit: times of its stages, memory, use of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from onnxsgd.runtime.stages import OTHER, STAGES, Numbers, Recording

__all__ = ["FitReport", "RecordedFit"]


@dataclass(frozen=True)
class FitReport:
    """The report of a call of ``fit`` or ``partial_fit``, printed as a table.

    Attributes
    ----------
    seconds : dict of float
        The wall time of each stage that the call went through, in seconds, and of the rest, "other". The time
        of a stage inside another one, such as the scores between two epochs, counts for the inner one alone.
        A later call of ``partial_fit`` with the same parameters, which takes less than a millisecond, counts
        as "train" but for what it compiles.

        - "read": checks, copies and scales of the data; batches of an iterable.
        - "inner fit": the first fit of an unfitted scikit-learn model inside.
        - "convert": reading and conversion of the model, choice of weights and precision.
        - "differentiate": the gradient of the graph.
        - "compile": the rest of the training step, sessions of the runtime, imports on first use.
        - "frozen part": results of frozen layers, computed once for all samples.
        - "train": updates, and objectives that decide the rate.
        - "score": scores on validation data.
        - "checkpoint": writing of checkpoints.
    peak_memory : int or None
        The largest resident size that the process had up to the end of the call, in bytes: a bound of that of
        the call. None where the system does not tell, as on Windows, and in these later calls.
    peak_memory_growth : int or None
        The part of it by which the call exceeded all that came before. If it is above 0, `peak_memory` is the
        peak of this call; with 0 the process needed more at an earlier time.
    cache_hits, cache_misses : int
        The graphs and compiled steps that the cache of the process had, and those that were made.
    """

    seconds: Mapping[str, float]
    peak_memory: int | None
    peak_memory_growth: int | None
    cache_hits: int
    cache_misses: int

    @classmethod
    def of(cls, record: Numbers) -> FitReport:
        """Return the report of the numbers of a :class:`onnxsgd.runtime.stages.Recording`."""
        seconds, (before, now), (hits, misses) = record
        growth = None if before is None or now is None else now - before
        return cls(dict(seconds), now, growth, hits, misses)

    @property
    def total(self) -> float:
        """The sum of the times, in seconds."""
        return sum(self.seconds.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as a dictionary that ``json.dumps`` takes.

        Returns
        -------
        dict
            The attributes, and the total under "total".
        """
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        width = max(len(left) for left, _ in self._rows())
        return "\n".join(f"{left.ljust(width)}  {right}" for left, right in self._rows())

    def _repr_html_(self) -> str:
        cells = (f"<td>{escape(left)}</td><td>{escape(right)}</td>" for left, right in self._rows())
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        """Return the names of the numbers, with the numbers as text."""
        total = self.total
        rows = [
            (name, f"{self.seconds[name]:10.6f} s {100 * self.seconds[name] / (total or 1.0):5.1f} %")
            for name in (*STAGES, OTHER)
            if name in self.seconds
        ]
        rows += [("total", f"{total:10.6f} s"), ("peak memory", self._memory())]
        return [*rows, ("cache", f"{self.cache_hits} hits, {self.cache_misses} misses")]

    def _memory(self) -> str:
        if self.peak_memory is None or self.peak_memory_growth is None:
            return "unknown"
        peak, growth = self.peak_memory / 1e6, self.peak_memory_growth / 1e6
        if growth > 0:
            return f"{peak:.0f} MB, {growth:.1f} MB above the peak before"
        return f"at most {peak:.0f} MB, the peak before"


class RecordedFit(Recording):
    """A call that trains an estimator, which gets its record.

    After an error the estimator has the record if the error left it trained further, as divergence does.

    Parameters
    ----------
    estimator : OnnxSGDRegressor or OnnxSGDClassifier
        The estimator.
    is_part : bool
        Whether the call is one of ``partial_fit``.
    """

    __slots__ = ("_before", "_estimator")

    def __init__(self, estimator: Any, *, is_part: bool = False) -> None:
        self._estimator = estimator
        self._before = _progress(estimator)
        super().__init__(is_part and estimator.__dict__.get("_known_plan") is not None)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if error[0] is None or _progress(self._estimator) != self._before:
            self._estimator.__dict__["_record"] = self.numbers()


def _progress(estimator: Any) -> tuple[int, int] | None:
    """Return numbers that change when training begins."""
    state = estimator.__dict__.get("_state")
    return None if state is None else (id(state), state.t)
