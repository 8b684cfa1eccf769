"""What "auto" stands for: how large and how many the leaves are, on one dial.

Partitions of several sizes beat many of one size: small leaves know the local noise, large leaves the
function, and the gate sorts it out. Sizes are taken from a ladder, from below, as long as their cost
stays within what the effort allows.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EFFORTS", "Effort", "leaf_rows", "seconds"]

# Rows of a leaf grown down to a leaf_size of M, on average, over M.
FILL = 0.67
# Seconds for a leaf to be factorised, inverted and left out, with m (m + OVERHEAD) operations a row: fitted to
# timings of leaves of 70 to 670 rows on two cores during development; the GPU's rate is a cautious guess.
OVERHEAD = 400.0
CHEAP = 0.1
SECONDS = {"cpu": 1.0 / 30e9, "cuda": 1.0 / 3000e9}


def leaf_rows(leaf_size: int, n_rows: int) -> float:
    """Rows of a leaf, on average, when all rows are cut down to ``leaf_size``."""
    return n_rows if leaf_size >= n_rows else FILL * leaf_size


def seconds(n_rows: float, rows: float, device: str) -> float:
    """What it takes to condition leaves of ``rows`` rows that hold ``n_rows`` in all, for one output."""
    return n_rows * rows * (rows + OVERHEAD) * SECONDS[device if device in SECONDS else "cuda"]


@dataclass(frozen=True)
class Effort:
    """What one setting of the dial may cost.

    Attributes
    ----------
    ladder : leaf sizes, from small to large
    copies : partitions of each size, at least and at most; more than the least while they are cheap
    seconds : what all leaves of all partitions may take to condition, by the cost model
    most_rows : rows up to which all of them may be one leaf, by device: predictions pay for it too
    leaf_size : rows of the leaves that theta is learned on
    n_leaves : how many of them
    n_trial_leaves : how many of them a kernel is tried on
    n_gate_rows : rows on which the gate is fitted
    """

    ladder: tuple[int, ...]
    copies: tuple[int, int]
    seconds: float
    most_rows: dict[str, int]
    leaf_size: int
    n_leaves: int
    n_trial_leaves: int
    n_gate_rows: int

    def leaf_sizes(self, n_rows: int, n_outputs: int, device: str) -> list[int]:
        """Sizes of the leaves, one entry per partition.

        Where a size holds all rows, the partition is one leaf that knows everything. It is tried last, even
        if the ladder ends below.
        """
        for copies in range(self.copies[1], self.copies[0], -1):
            sizes, spent = self._climb(n_rows, n_outputs, device, copies)
            if spent <= CHEAP * self.seconds:
                return sizes
        return self._climb(n_rows, n_outputs, device, self.copies[0])[0]

    def _climb(
        self, n_rows: int, n_outputs: int, device: str, n_copies: int
    ) -> tuple[list[int], float]:
        """Sizes up the ladder as far as the budget goes, and the seconds they take."""
        kind = device if device in SECONDS else "cuda"
        sizes: list[int] = []
        spent = 0.0
        for size in (*self.ladder, n_rows):
            if sizes and (sizes[-1] >= n_rows or size >= n_rows > self.most_rows[kind]):
                break
            copies = 1 if size >= n_rows else n_copies
            cost = copies * n_outputs * seconds(n_rows, leaf_rows(size, n_rows), device)
            if sizes and spent + cost > self.seconds:
                break
            spent += cost
            sizes += [size] * copies
        return sizes, spent


#: By name.
EFFORTS = {
    "low": Effort((125, 250, 500), (2, 2), 5.0, {"cpu": 1000, "cuda": 5000}, 250, 20, 6, 3000),
    "medium": Effort(
        (60, 125, 250, 500, 1000, 2000),
        (2, 4),
        45.0,
        {"cpu": 4000, "cuda": 40_000},
        500,
        40,
        10,
        6000,
    ),
    "high": Effort(
        (60, 125, 250, 500, 1000, 2000, 4000),
        (3, 6),
        400.0,
        {"cpu": 20_000, "cuda": 60_000},
        1000,
        60,
        20,
        20_000,
    ),
}
