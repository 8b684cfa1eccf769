"""Choosing the mean of the GPs by leave-one-out: zero, constant or linear.

At given hyperparameters of the kernel everything about a mean ``H b`` is in closed form. With K block-diagonal over leaves and
``A = H' K^-1 H``, the best b is ``A^-1 H' K^-1 y``, and with ``P = K^-1 - K^-1 H A^-1 H' K^-1`` a row that is left out, of the estimate of b
too, is predicted with the residual ``(P y)_i / P_ii`` and the variance ``1 / P_ii`` (R&W section 2.7 and eqs. 5.10 to 5.12). So one
factorisation of some leaves decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.significance import is_clear
from dsmgp.experts.loo import normal_log_density
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.family import SCALE_ROWS
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.candidate_scores import LEAST_GAIN, RowScores
from dsmgp.gp.leaf_kernels import BoundKernel
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import Family
from dsmgp.linalg.cholesky import NotFactorisedError, cholesky, inverse_from_factor
from dsmgp.linalg.threads import one_thread
from dsmgp.tree.nodes import Leaf

__all__ = ["MeanChoice", "choose_mean", "with_mean"]

logger = logging.getLogger("dsmgp")

# Leaves and rows of a leaf that are factorised at most, and rows that there must be for each parameter of a mean.
MOST_LEAVES, MOST_ROWS, ROWS_PER_PARAMETER = 6, 250, 10


@dataclass(frozen=True)
class MeanChoice:
    """A mean, and what means gain.

    Attributes
    ----------
    mean : "zero", "constant", or "linear"
    gains : dict of str to float
        For the means other than zero, the gain over zero in nats per row, by leave-one-out.
    """

    mean: str
    gains: dict[str, float]

    @property
    def note(self) -> str:
        """A line for the summary."""
        gains = ", ".join(f"{name} {gain:.2g}" for name, gain in self.gains.items())
        why = f"leave-one-out gain in nats per row over zero: {gains}" if gains else "few rows"
        return f"mean            {self.mean} ({why})"


def choose_mean(
    leaves: Sequence[Leaf], data: ScaledRows, family: Family, rng: np.random.Generator
) -> MeanChoice | None:
    """Choose the mean with which leaves predict rows that are left out best; a simpler one stays unless the gain is clear.

    Parameters
    ----------
    leaves : sequence of Leaf
        Disjoint, with their rows in ``data``.
    data : ScaledRows
    family : Family
        With zero means, and hyperparameters that were learned.

    Returns
    -------
    MeanChoice or None
        None if the kernel has no closed form, or a covariance cannot be factorised.
    """
    if not all(isinstance(process, NamedProcess) for process in family.processes):
        return None
    with one_thread():  # the matrices are small
        blocks = _Blocks.of(leaves, data, family, rng)
        return None if blocks is None else _chosen(blocks, data)


def _chosen(blocks: _Blocks, data: ScaledRows) -> MeanChoice:
    """Judge the means, from simple to complicated."""
    n_rows = len(blocks.rows)
    scores = blocks.scores(np.empty((n_rows, 0)))
    best, best_scores, gains = "zero", scores, {}
    ones = np.ones((n_rows, 1))
    for mean, H in (("constant", ones), ("linear", np.hstack([data.scaled_X[blocks.rows], ones]))):
        if n_rows < ROWS_PER_PARAMETER * H.shape[1]:
            continue
        of_mean = blocks.scores(H)
        gains[mean], error = of_mean.gain_over(scores)
        logger.info("%s mean: gain %.4f +- %.4f per row", mean, gains[mean], error)
        if is_clear(*of_mean.gain_over(best_scores), LEAST_GAIN):
            best, best_scores = mean, of_mean
    return MeanChoice(best, gains)


def with_mean(family: Family, mean: str, data: ScaledRows, config: FitConfig) -> Family:
    """Return a family with another mean, which starts at zero, and the hyperparameters that it has."""
    fresh = build_family(family.kernel, data, replace(config, mean=mean))
    processes = []
    for new, old in zip(fresh.processes, family.processes, strict=True):
        theta = new.theta.copy()
        theta[len(theta) - len(old.theta) :] = old.theta  # those of the mean come first
        processes.append(new.with_theta(theta))
    return family.with_processes(processes)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Inverse covariances of some leaves, one list by output.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,)
        Rows of the leaves, one leaf after the other.
    starts : ndarray of shape (n_leaves,)
        Where each leaf begins.
    inverses : list of list of ndarray
        By output and leaf.
    Y : ndarray of shape (n_rows, n_outputs)
    row_weights : ndarray of shape (n_rows,) or None
    """

    rows: Index
    starts: Index
    inverses: list[list[Array]]
    Y: Array
    row_weights: Array | None

    @classmethod
    def of(
        cls,
        leaves: Sequence[Leaf],
        data: ScaledRows,
        family: Family,
        rng: np.random.Generator,
    ) -> _Blocks | None:
        chosen = [leaf.rows for leaf in leaves if leaf.rows is not None and leaf.n_rows]
        if len(chosen) > MOST_LEAVES:
            kept = np.sort(rng.choice(len(chosen), MOST_LEAVES, replace=False))
            chosen = [chosen[k] for k in kept]
        chosen = [
            rows if len(rows) <= MOST_ROWS else rng.choice(rows, MOST_ROWS, replace=False)
            for rows in chosen
        ]
        inverses: list[list[Array]] = []
        for output, process in enumerate(family.processes):
            kernel = process.leaf_kernel.at(process.kernel_parameters())
            assert isinstance(kernel, BoundKernel)
            try:
                inverses.append([_inverse(kernel, data, rows, output) for rows in chosen])
            except NotFactorisedError:
                logger.info("the mean stays zero: a covariance cannot be factorised")
                return None
        rows = np.concatenate(chosen)
        starts = np.cumsum([0, *map(len, chosen[:-1])])
        weights = None if data.row_weights is None else data.row_weights[rows]
        return cls(rows, starts, inverses, data.scaled_Y[rows], weights)

    def scores(self, H: Array) -> RowScores:
        """Leave out each row under a mean with these features, (n_rows, n_features)."""
        losses = np.zeros(len(self.rows))
        errors = np.empty(self.Y.shape)
        for output, inverses in enumerate(self.inverses):
            y = self.Y[:, output]
            K_y, K_H = self._times(inverses, y[:, None])[:, 0], self._times(inverses, H)
            # Constant and collinear inputs: any solution will do.
            A = np.linalg.pinv(H.T @ K_H, hermitian=True)
            precision = np.concatenate([block.diagonal() for block in inverses])
            explained = np.einsum("ij,jk,ik->i", K_H, A, K_H)
            precision = np.maximum(precision - explained, 1e-9 * precision)
            residual = (K_y - K_H @ (A @ (H.T @ K_y))) / precision
            variance = self._scale(np.square(residual) * precision) / precision
            losses -= normal_log_density(residual, variance)
            errors[:, output] = np.square(residual)
        return RowScores(np.stack([losses] * 2), np.stack([errors] * 2), self.row_weights)

    def _times(self, inverses: Sequence[Array], values: Array) -> Array:
        parts = np.split(values, self.starts[1:])
        return np.concatenate([a @ b for a, b in zip(inverses, parts, strict=True)])

    def _scale(self, squares: Array) -> Array:
        """Return the scale of each row's leaf without that row."""
        sums = np.add.reduceat(squares, self.starts)
        sizes = np.diff([*self.starts, len(squares)])
        without = np.repeat(sums, sizes) - squares
        return np.asarray((SCALE_ROWS + without) / (SCALE_ROWS + np.repeat(sizes, sizes) - 1.0))


def _inverse(kernel: BoundKernel, data: ScaledRows, rows: Index, output: int) -> Array:
    """Return the inverse of the covariance of y at some rows."""
    noise = np.full(len(rows), kernel.noise)
    if data.known_noise is not None:
        noise = noise + data.known_noise[rows, output]
    if data.row_weights is not None:
        noise = noise / data.row_weights[rows]
    X = data.scaled_X[rows]
    return inverse_from_factor(cholesky(kernel.cross(X, X), noise)[0])
