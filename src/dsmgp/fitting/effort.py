"""Leaf sizes and costs of a fit: what ``leaf_size="auto"`` means at each ``effort``.

Partitions of several sizes predict better than many of one size: small leaves capture local noise, large leaves the function, and the gate
weights them. Sizes are taken from a ladder, starting with the smallest, while their cost stays within the budget of the effort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["EFFORTS", "GRADIENT", "Effort", "leaf_rows", "seconds"]

# Average number of rows of a leaf over leaf_size.
FILL = 0.67
# Cost model of a row in a leaf of m rows that is conditioned with leave-one-out, by device: a fixed part, mostly for growing the tree and
# gathering results, and m (m + OVERHEAD) operations at a RATE. OVERHEAD, RATE and GRADIENT are fitted by benchmarks/engine.py
# (results/engine.json: two cores; backend-gpu.json: one H200).
ROW_SECONDS = {"cpu": 1e-6, "cuda": 1.5e-6}
OVERHEAD = {"cpu": 1400.0, "cuda": 1200.0}
RATE = {"cpu": 150e9, "cuda": 10e12}
# Cost of evidence and gradient relative to conditioning.
GRADIENT = 1.1
# Further copies of all sizes are made if they take at most this share of the budget.
CHEAP = 0.15


def leaf_rows(leaf_size: int, n_rows: int) -> float:
    """Return the average number of rows of a leaf when ``n_rows`` are cut into leaves of at most ``leaf_size``."""
    return n_rows if leaf_size >= n_rows else FILL * leaf_size


def seconds(n_rows: float, rows: float, device: str) -> float:
    """Return the seconds for conditioning leaves of ``rows`` rows each, ``n_rows`` in all, for one output, by the cost model."""
    kind = device if device in RATE else "cuda"
    return n_rows * (ROW_SECONDS[kind] + rows * (rows + OVERHEAD[kind]) / RATE[kind])


@dataclass(frozen=True)
class Effort:
    """The budget of one effort.

    Attributes
    ----------
    ladder : tuple of int
        Leaf sizes, in increasing order.
    copies : tuple of int
        Fewest and most partitions of each size; more than the fewest only if they are cheap.
    seconds : dict of str to float
        For conditioning all leaves of all partitions for one output, by the cost model; by device.
    most_rows : dict of str to int
        Most rows for which one leaf may hold all of them, by device: predictions get slower too.
    leaf_size, n_leaves : int
        Size and number of the leaves that hyperparameters are learned on.
    n_trial_leaves : int
        Number of leaves that a kernel is tried on.
    n_gate_rows : int
        Rows on which the gate is fitted.
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
        """Return the seconds for a device."""
        return self.seconds.get(device, self.seconds["cuda"])

    def leaf_sizes(self, n_rows: int, device: str, most: float = math.inf) -> list[int]:
        """Return the leaf size of each partition; leaves of up to ``most`` rows fit in memory.

        A size of all rows, a partition of one leaf, comes last even if the ladder ends below.
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
        """Return the sizes that fit in the budget, smallest first, and the seconds they take.

        First one partition of each size, then further copies: another size is worth more than another partition of the same size. The
        smallest size is always included.
        """
        sizes: list[int] = []
        spent = 0.0
        for turn in range(copies):
            for size in steps:
                cost = seconds(n_rows, leaf_rows(size, n_rows), device)
                if size > steps[0] and spent + cost > self.budget(device):
                    break
                if turn == 0 or size < n_rows:  # copies of one leaf with all rows would be equal
                    sizes.append(size)
                    spent += cost
        return sorted(sizes), spent

    def _steps(self, n_rows: int, device: str, most: float) -> list[int]:
        """Return the ladder for a number of rows, at least one size; the last holds all rows if that is allowed."""
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
