"""Log evidences of sets of rows, as a search over trees needs them: cached, and for all cuts of a set at once.

The factor of the first m of n ordered rows is the leading block of the factor of all, so one factorisation of the rows in the order of an
input gives the evidence of every set below a cut along it, and one in the opposite order that of every set above: 2 D factorisations are an
exact scan of all cuts of a region along D inputs. Beyond so many rows some of them scan all inputs, and all of them only the best.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.gp.process import Family
from dsmgp.linalg.cholesky import cholesky, solve
from dsmgp.linalg.threads import Threads
from dsmgp.tree.cut_tree import Cut, cut_gaps, leaf_rows

__all__ = ["CutScan", "RowEvidence"]

# Factorisations of fewer rows are not worth starting threads for.
BRIEF_ROWS = 100


@dataclass(frozen=True, eq=False)
class CutScan:
    """Cuts of one region, each with the log evidence of the rows below and above; exact for all rows of the region.

    Attributes
    ----------
    dimension, split, below, above : ndarray of shape (n_cuts,)
    whole : float
        Log evidence of the rows that were scanned, in one leaf; not a number if there are no cuts.
    """

    dimension: Index
    split: Array
    below: Array
    above: Array
    whole: float = math.nan

    def __len__(self) -> int:
        return len(self.split)

    @classmethod
    def joined(cls, parts: Sequence[CutScan]) -> CutScan:
        """Return the cuts of several scans."""
        if not parts:
            return cls(np.empty(0, dtype=np.int64), *np.empty((3, 0)))
        return cls(
            np.concatenate([part.dimension for part in parts]),
            np.concatenate([part.split for part in parts]),
            np.concatenate([part.below for part in parts]),
            np.concatenate([part.above for part in parts]),
            parts[0].whole,
        )

    @property
    def evidence(self) -> Array:
        """Log evidence of both sides together, (n_cuts,)."""
        return np.asarray(self.below + self.above)


class RowEvidence:
    """The log evidence of any set of training rows in one leaf, given the hyperparameters.

    With several families a leaf is a sum over them, of equal prior weights.

    Parameters
    ----------
    data : ScaledRows
    families : sequence of Family
    least : int
        Rows that each side of a cut must have.
    scan_rows : int
        Most rows with which all inputs are scanned.
    n_lines : int
        How many inputs are scanned with all rows, where these are more.
    rng : numpy.random.Generator
        Draws the rows of a scan.
    """

    def __init__(
        self,
        data: ScaledRows,
        families: Sequence[Family],
        *,
        least: int,
        scan_rows: int,
        n_lines: int,
        rng: np.random.Generator,
    ) -> None:
        self.data, self.least, self.scan_rows, self.n_lines = data, least, scan_rows, n_lines
        self.kernels: list[list[BoundLeafKernel]] = [
            [process.leaf_kernel.at(process.kernel_parameters()) for process in family.processes]
            for family in families
        ]
        self._rng, self._threads = rng, Threads()
        self._evidence: dict[bytes, float] = {}
        self._scans: dict[bytes, CutScan] = {}
        #: Factorisations so far, in units of multiplications.
        self.n_operations = 0.0

    def log_evidence(self, rows: Index) -> float:
        """Return the log evidence of rows, which must be in increasing order."""
        key = _key(rows)
        if key not in self._evidence:
            self._evidence[key] = float(self._prefixes(rows, [np.arange(len(rows))])[0][-1])
        return self._evidence[key]

    def remember(self, rows: Index, log_evidence: float) -> None:
        """Keep an evidence that a scan has computed."""
        self._evidence.setdefault(_key(rows), log_evidence)

    def scan(self, rows: Index, exactly: bool = True) -> CutScan:
        """Return cuts of a region with these rows and their exact log evidences: all cuts, or all along the best inputs.

        With ``exactly`` False, for regions that are too large for one leaf, evidences are those of some rows.
        """
        key = _key(rows)
        if key not in self._scans:
            if len(rows) <= self.scan_rows:
                self._scans[key] = self._scan_lines(rows, range(self.data.U.shape[1]))
            else:
                some = np.sort(self._rng.choice(rows, self.scan_rows, replace=False))
                rough = self._scan_lines(some, range(self.data.U.shape[1]))
                if not exactly:
                    return rough
                self._scans[key] = self._scan_lines(rows, self._best_lines(rough))
        return self._scans[key]

    def conditional_scan(self, rows: Index, cut: Cut) -> CutScan:
        """Return all positions of a cut along its input, given how its two parts are cut in turn.

        Parameters
        ----------
        rows : ndarray of int
            The rows of the region that is cut.
        cut : Cut
        """
        U, dimension = self.data.U, cut.dimension
        _, splits = cut_gaps(np.sort(U[rows, dimension]), self.least)
        totals, valid = np.zeros((2, len(splits))), np.ones(len(splits), dtype=bool)
        for total, part, is_above in zip(
            totals, (cut.below, cut.above), (False, True), strict=True
        ):
            # Every leaf of the part, as far as it would reach without the cut.
            for leaf in leaf_rows(part, U, rows):
                x = U[leaf, dimension]
                order = np.argsort(x, kind="stable")
                n_inside = np.searchsorted(x[order], splits)
                if is_above:
                    order, n_inside = order[::-1], len(leaf) - n_inside
                valid &= n_inside >= self.least
                if not valid.any():
                    return CutScan.joined([])
                total += self._prefixes(leaf, [order])[0][np.maximum(n_inside, 1) - 1]
        below, above = totals[:, valid]
        return CutScan(np.full(len(below), dimension), splits[valid], below, above)

    def _best_lines(self, scan: CutScan) -> list[int]:
        """Return the inputs along which the best cuts are."""
        best = {}
        for dimension in np.unique(scan.dimension).tolist():
            best[dimension] = scan.evidence[scan.dimension == dimension].max()
        return sorted(best, key=lambda dimension: -best[dimension])[: self.n_lines]

    def _scan_lines(self, rows: Index, dimensions: Sequence[int] | range) -> CutScan:
        """Scan all cuts of rows along some inputs."""
        U, lines, orders = self.data.U, [], []
        for dimension in dimensions:
            x = U[rows, dimension]
            order = np.argsort(x, kind="stable")
            after, splits = cut_gaps(x[order], self.least)
            if len(after):
                lines.append((dimension, after, splits))
                orders += [order, order[::-1]]
        if not lines:
            return CutScan.joined([])
        evidence = self._prefixes(rows, orders)
        parts = []
        for k, (dimension, after, splits) in enumerate(lines):
            below, above = evidence[2 * k][after - 1], evidence[2 * k + 1][len(rows) - after - 1]
            whole = float(evidence[0][-1])
            parts.append(CutScan(np.full(len(after), dimension), splits, below, above, whole))
        return CutScan.joined(parts)

    def _prefixes(self, rows: Index, orders: Sequence[Index]) -> list[Array]:
        """Return for each order of the rows the log evidence of the first one, two, and so on."""
        by_family = np.zeros((len(self.kernels), len(orders), len(rows)))
        for total, of_outputs in zip(by_family, self.kernels, strict=True):
            for output, kernel in enumerate(of_outputs):
                total += self._of_output(rows, orders, kernel, output)
        self.n_operations += len(orders) * len(self.kernels) * len(rows) ** 3 / 3
        return list(np.logaddexp.reduce(by_family, axis=0) - math.log(len(by_family)))

    def _of_output(
        self, rows: Index, orders: Sequence[Index], kernel: BoundLeafKernel, output: int
    ) -> Array:
        """Return log evidences of prefixes for one kernel and output, (n_orders, n_rows)."""
        data = self.data
        X, residual = (
            data.scaled_X[rows],
            data.scaled_Y[rows, output] - kernel.mean(data.scaled_X[rows]),
        )
        noise, constant = np.full(len(rows), kernel.noise), np.zeros(len(rows))
        if data.known_noise is not None:
            noise = noise + data.known_noise[rows, output]
        if data.row_weights is not None:
            # A row of weight w is the average of w copies, and a factor that does not depend on f.
            weights = data.row_weights[rows]
            constant = -0.5 * (weights - 1.0) * (LOG_2PI + np.log(noise)) - 0.5 * np.log(weights)
            noise = noise / weights
        K = kernel.cross(X, X)

        def terms(order: Index) -> Array:
            L, _ = cholesky(K[np.ix_(order, order)], noise[order], overwrite=True)
            beta = solve(L, residual[order])
            density = -0.5 * np.square(beta) - np.log(L.diagonal()) - 0.5 * LOG_2PI
            return np.cumsum(density + constant[order])

        return np.stack(self._threads.map(terms, list(orders), brief=len(rows) < BRIEF_ROWS))


def _key(rows: Index) -> bytes:
    return hashlib.blake2b(rows.tobytes(), digest_size=16).digest()
