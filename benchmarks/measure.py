"""Measure contestants side by side: one block of each in turn, again and again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Samples", "interleave"]

_MAX_UNITS = 100_000


@dataclass
class Samples:
    """The times of one contestant, in seconds for one unit of work.

    Attributes
    ----------
    wall, cpu : list of float
        Elapsed time, and processor time of all threads, of each round.
    clock : {"wall", "cpu"}
        The clock in use.
    """

    clock: str
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        """The times by the clock in use."""
        return self.wall if self.clock == "wall" else self.cpu

    @property
    def best(self) -> float:
        """The shortest time."""
        return min(self.times)

    @property
    def median(self) -> float:
        """The median time."""
        return float(np.median(self.times))

    @property
    def n_cores(self) -> float:
        """The number of busy cores."""
        return sum(self.cpu) / sum(self.wall)

    def ratio_to(self, other: Samples) -> float:
        """Return the median over the rounds of this time over the other's time in the same round."""
        return float(np.median(np.divide(self.times, other.times)))


def interleave(
    blocks: Mapping[str, Callable[[int], object]], n_rounds: int, block_seconds: float, clock: str = "wall"
) -> dict[str, Samples]:
    """Time blocks of work, one of each contestant in a round, in an order drawn for each round.

    Parameters
    ----------
    blocks : dict of callable
        Functions that do the given number of units of work.
    n_rounds : int
        The number of rounds.
    block_seconds : float
        The length of a block; a warm-up finds the number of units.
    clock : {"wall", "cpu"}
        The clock: elapsed time, or, for one thread on a shared machine, processor time.
    """
    units = {name: _units_for(block, block_seconds) for name, block in blocks.items()}
    samples = {name: Samples(clock) for name in blocks}
    names, rng = list(blocks), np.random.default_rng(0)
    for _ in range(n_rounds):
        for name in rng.permutation(names):
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            blocks[name](units[name])
            samples[name].wall.append((time.perf_counter() - wall) / units[name])
            samples[name].cpu.append((time.process_time() - cpu) / units[name])
    return samples


def _units_for(block: Callable[[int], object], seconds: float) -> int:
    """Return the number of units that take `seconds`; the block is warm afterwards."""
    block(1)
    units, elapsed = 1, _elapsed(block, 1)
    while elapsed < 0.7 * seconds and units < _MAX_UNITS:
        # The start of a block, before its first unit, makes the first guess too small.
        units = min(_MAX_UNITS, max(units + 1, round(units * seconds / elapsed)))
        elapsed = _elapsed(block, units)
    return units


def _elapsed(block: Callable[[int], object], units: int) -> float:
    start = time.perf_counter()
    block(units)
    return time.perf_counter() - start
