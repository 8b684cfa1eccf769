"""What "auto" stands for: how large and how many the leaves are, on one dial.

Partitions of several sizes beat many of one size: small leaves know the local noise, large leaves the
function, and the gate sorts it out. Sizes are taken from a ladder, from below, as long as their cost
stays within what the effort allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["EFFORTS", "GRADIENT", "Effort", "leaf_rows", "seconds"]

# Rows of a leaf grown down to a leaf_size of M, on average, over M.
FILL = 0.67
# What a row costs in a leaf of m rows that is factorised, inverted and left out, by device: a fixed part, which
# is mostly growing the tree and gathering what leaves say, and m (m + OVERHEAD) operations at a RATE. The
# latter and GRADIENT are what benchmarks/engine.py fits (results/engine.json: two cores; engine-gpu.json: one
# H200).
ROW_SECONDS = {"cpu": 1e-6, "cuda": 1.5e-6}
OVERHEAD = {"cpu": 1400.0, "cuda": 1200.0}
RATE = {"cpu": 150e9, "cuda": 10e12}
# Evidence and gradient over that.
GRADIENT = 1.1
# Share of the seconds up to which more copies are cheap.
CHEAP = 0.15


def leaf_rows(leaf_size: int, n_rows: int) -> float:
    """Rows of a leaf, on average, when all rows are cut down to ``leaf_size``."""
    return n_rows if leaf_size >= n_rows else FILL * leaf_size


def seconds(n_rows: float, rows: float, device: str) -> float:
    """What it takes to condition leaves of ``rows`` rows that hold ``n_rows`` in all, for one output."""
    kind = device if device in RATE else "cuda"
    return n_rows * (ROW_SECONDS[kind] + rows * (rows + OVERHEAD[kind]) / RATE[kind])


@dataclass(frozen=True)
class Effort:
    """What one setting of the dial may cost.

    Attributes
    ----------
    ladder : leaf sizes, from small to large
    copies : partitions of each size, at least and at most; more than the least while they are cheap
    seconds : what all leaves of all partitions may take to condition for one output, by the cost model, by device
    most_rows : rows up to which all of them may be one leaf, by device: predictions pay for it too
    leaf_size : rows of the leaves that theta is learned on
    n_leaves : how many of them
    n_trial_leaves : how many of them a kernel is tried on
    n_gate_rows : rows on which the gate is fitted
    """

    ladder: tuple[int, ...]
    copies: tuple[int, int]
    seconds: dict[str, float]
    most_rows: dict[str, int]
    leaf_size: int
    n_leaves: int
    n_trial_leaves: int
    n_gate_rows: int

    def budget(self, device: str) -> float:
        """Seconds on a device."""
        return self.seconds.get(device, self.seconds["cuda"])

    def leaf_sizes(self, n_rows: int, device: str, most: float = math.inf) -> list[int]:
        """Sizes of the leaves, one entry per partition; ``most`` rows of a leaf can be held in memory.

        Where a size holds all rows, the partition is one leaf that knows everything. It is tried last, even
        if the ladder ends below.
        """
        steps = self._steps(n_rows, device, most)
        for copies in range(self.copies[1], self.copies[0], -1):
            sizes, spent = self._climb(steps, n_rows, device, copies)
            if spent <= CHEAP * self.budget(device):
                return sizes
        return self._climb(steps, n_rows, device, self.copies[0])[0]

    def _climb(
        self, steps: list[int], n_rows: int, device: str, copies: int
    ) -> tuple[list[int], float]:
        """Sizes up the ladder as far as the budget goes, and the seconds they take.

        First one partition of each size, then others of each, from the small: one size more is worth more than
        another partition of the same. The smallest is there in any case.
        """
        sizes: list[int] = []
        spent = 0.0
        for turn in range(copies):
            for size in steps:
                cost = seconds(n_rows, leaf_rows(size, n_rows), device)
                if size > steps[0] and spent + cost > self.budget(device):
                    break
                if turn == 0 or size < n_rows:  # of all rows there is but one leaf
                    sizes.append(size)
                    spent += cost
        return sorted(sizes), spent

    def _steps(self, n_rows: int, device: str, most: float) -> list[int]:
        """Sizes from small to large; the last one holds all rows where that is allowed. There is always one."""
        most_rows = min(self.most_rows.get(device, self.most_rows["cuda"]), most)
        below = [size for size in self.ladder if size < n_rows]
        whole = next((size for size in self.ladder if size >= n_rows), n_rows)
        steps = [size for size in below if size <= most] or below[:1]
        return [*steps, whole] if n_rows <= most_rows or not steps else steps


#: By name.
EFFORTS = {
    "low": Effort(
        ladder=(125, 250, 500),
        copies=(2, 2),
        seconds={"cpu": 2.0, "cuda": 2.0},
        most_rows={"cpu": 1000, "cuda": 5000},
        leaf_size=250,
        n_leaves=20,
        n_trial_leaves=6,
        n_gate_rows=3000,
    ),
    "medium": Effort(
        ladder=(60, 125, 250, 500, 1000, 2000),
        copies=(2, 4),
        seconds={"cpu": 15.0, "cuda": 12.0},
        most_rows={"cpu": 4000, "cuda": 40_000},
        leaf_size=250,
        n_leaves=80,
        n_trial_leaves=20,
        n_gate_rows=6000,
    ),
    "high": Effort(
        ladder=(60, 125, 250, 500, 1000, 2000, 4000),
        copies=(3, 6),
        seconds={"cpu": 150.0, "cuda": 60.0},
        most_rows={"cpu": 20_000, "cuda": 60_000},
        leaf_size=500,
        n_leaves=80,
        n_trial_leaves=20,
        n_gate_rows=20_000,
    ),
}
