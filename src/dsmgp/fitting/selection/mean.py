"""Choosing the mean of the GPs: zero, constant or linear, by leave-one-out and by blocks left out at the edges of the data.

At given hyperparameters of the kernel everything about a mean ``H b`` is in closed form. With K block-diagonal over leaves and
``A = H' K^-1 H``, the best b is ``A^-1 H' K^-1 y``, and with ``P = K^-1 - K^-1 H A^-1 H' K^-1`` a row that is left out, of the estimate of b
too, is predicted with the residual ``(P y)_i / P_ii`` and the variance ``1 / P_ii`` (R&W section 2.7 and eqs. 5.10 to 5.12). So one
factorisation of some leaves decides. A block of rows that are left out together has the covariance ``S``, the inverse of the block of P, and the
residuals ``S (P y)`` there. Among rows the kernel can often stand in for a line, and leave-one-out is indifferent; beyond the
edges of the data only the mean goes on. So a line that leave-one-out does not mind is taken if blocks at both ends of the inputs call for it.
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
from dsmgp.fitting.learning.family import SCALE_ROWS, length_scales
from dsmgp.fitting.outside.edge_blocks import EdgeBlock, blocks_at_edges
from dsmgp.fitting.outside.edge_rows import examined_inputs
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.candidate_scores import LEAST_GAIN, RowScores
from dsmgp.gp.leaf_kernels import MEANS, BoundKernel
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import Family
from dsmgp.linalg.cholesky import NotFactorisedError, cholesky, inverse_from_factor
from dsmgp.linalg.threads import one_thread
from dsmgp.mixture.edges import Edges, range_of
from dsmgp.tree.nodes import Leaf

__all__ = [
    "EdgeBlock",
    "LeafInverses",
    "MeanChoice",
    "choose_mean",
    "edge_blocks_of",
    "mean_features",
    "with_mean",
]

logger = logging.getLogger("dsmgp")

# Leaves and rows of a leaf that are factorised at most, and rows that there must be for each parameter of a mean.
MOST_LEAVES, MOST_ROWS, ROWS_PER_PARAMETER = 6, 250, 5
# Inputs at whose ends blocks are left out at most.
MOST_INPUTS = 4
# Standard deviations beyond which an error is not counted as larger: one block that misses is not to decide alone.
MOST_DEVIATIONS = 5.0
# What a line may lose among the rows, and must gain at the edges, in nats per row, but may lose at one of them. Rows of a block err together:
# more is asked of them.
MOST_LOSS, LEAST_EDGE_GAIN, MOST_EDGE_LOSS = 0.01, 0.1, 0.05


@dataclass(frozen=True)
class MeanChoice:
    """A mean, and what means gain.

    Attributes
    ----------
    mean : "zero", "constant", or "linear"
    gains : dict of str to float
        For the means other than zero, the gain over zero in nats per row, by leave-one-out.
    edge_gain : float or None
        The gain of a line over the best other mean in nats per row of blocks left out at the edges, where that was asked for.
    """

    mean: str
    gains: dict[str, float]
    edge_gain: float | None = None

    @property
    def note(self) -> str:
        """A line for the summary."""
        gains = ", ".join(f"{name} {gain:.2g}" for name, gain in self.gains.items())
        why = f"leave-one-out gain in nats per row over zero: {gains}" if gains else "few rows"
        if self.edge_gain is not None:
            why += f"; of a line in blocks left out at the edges: {self.edge_gain:.2g}"
        return f"mean            {self.mean} ({why})"


def choose_mean(
    leaves: Sequence[Leaf], data: ScaledRows, family: Family, rng: np.random.Generator
) -> MeanChoice | None:
    """Choose the mean with which leaves predict rows that are left out best; a simpler one stays unless the gain is clear.

    A linear mean is also taken where that makes no difference among the rows, and a clear one at both ends of the inputs.

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
        inverses = LeafInverses.of(leaves, data, family, rng)
        return None if inverses is None else _chosen(inverses, data, family)


def _chosen(inverses: LeafInverses, data: ScaledRows, family: Family) -> MeanChoice:
    """Judge the means, from simple to complicated."""
    n_rows = len(inverses.rows)
    features = {mean: mean_features(mean, data.scaled_X[inverses.rows]) for mean in MEANS}
    scores = inverses.scores(features["zero"])
    best, best_scores, gains, gain = "zero", scores, {}, 0.0
    for mean in ("constant", "linear"):
        if n_rows < ROWS_PER_PARAMETER * features[mean].shape[1]:
            continue
        of_mean = inverses.scores(features[mean])
        gains[mean], error = of_mean.gain_over(scores)
        logger.info("%s mean: gain %.4f +- %.4f per row", mean, gains[mean], error)
        gain, error = of_mean.gain_over(best_scores)
        if is_clear(gain, error, LEAST_GAIN):
            best, best_scores = mean, of_mean
    if "linear" not in gains or best == "linear" or gain < -max(MOST_LOSS, error):
        return MeanChoice(best, gains)
    edge_gain, clear_at_edges = _gain_at_edges(
        inverses, features["linear"], features[best], edge_blocks_of(data, family, inverses.rows)
    )
    logger.info("linear mean at the edges: gain %.4f per row over %s", edge_gain, best)
    return MeanChoice("linear" if clear_at_edges else best, gains, edge_gain)


def _gain_at_edges(
    inverses: LeafInverses, H: Array, other: Array, blocks: Sequence[EdgeBlock]
) -> tuple[float, bool]:
    """Return the mean gain of features over others in blocks left out, and whether it is clear: without loss at any end, near or far."""
    gains: dict[tuple[int, float], list[float]] = {}
    for block in blocks:
        of_each = []
        for features in (other, H):
            density, square = inverses.left_out(features, block.rows)
            of_each.append((density.mean(), np.log(max(square.mean(), np.finfo(float).tiny))))
        (density, error), (of_line, error_of_line) = of_each
        # Densities alone would trade a worse mean for wide intervals.
        gain = float(of_line - density + 0.5 * (error - error_of_line))
        gains.setdefault((block.side, block.share), []).append(gain)
    if len({side for side, _ in gains}) < 2:
        return 0.0, False
    # Inputs that do not matter gain nothing either way.
    means = [float(np.mean(of_block)) for of_block in gains.values()]
    clear = np.mean(means) > LEAST_EDGE_GAIN and min(means) > -MOST_EDGE_LOSS
    return float(np.mean(means)), bool(clear)


def mean_features(mean: str, Z: Array) -> Array:
    """Return the features of a mean at rows as the leaf GPs see them, (n_rows, n_features)."""
    ones = np.ones((len(Z), 1))
    return {"zero": ones[:, :0], "constant": ones, "linear": np.hstack([Z, ones])}[mean]


def edge_blocks_of(data: ScaledRows, family: Family, rows: Index) -> list[EdgeBlock]:
    """Return blocks at the ends of the inputs along which the function varies most, among some rows."""
    coordinates = data.inputs.coordinates
    if coordinates is not None and coordinates.trees is not None:
        return []  # trees have seen the rows of the blocks
    X = data.X[rows]
    scales = length_scales(family, np.ones(data.n_dims))
    low, high = range_of(X)
    if data.measured_inputs is not None:  # nothing lies beyond levels and their effects
        others = np.setdiff1d(np.arange(len(low)), data.measured_inputs)
        low[others], high[others] = -np.inf, np.inf
    columns = examined_inputs(Edges(low, high, scales), data.inputs, X)[:MOST_INPUTS]
    return list(blocks_at_edges(X, columns))


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
class LeafInverses:
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
        most_rows: int = MOST_ROWS,
    ) -> LeafInverses | None:
        chosen = [leaf.rows for leaf in leaves if leaf.rows is not None and leaf.n_rows]
        if len(chosen) > MOST_LEAVES:
            kept = np.sort(rng.choice(len(chosen), MOST_LEAVES, replace=False))
            chosen = [chosen[k] for k in kept]
        chosen = [
            rows if len(rows) <= most_rows else rng.choice(rows, most_rows, replace=False)
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
        for output in range(len(self.inverses)):
            P_y, precision, _, _ = self._without_mean(H, output)
            residual = P_y / precision
            variance = self._scale(np.square(residual) * precision) / precision
            losses -= normal_log_density(residual, variance)
            errors[:, output] = np.square(residual)
        return RowScores(np.stack([losses] * 2), np.stack([errors] * 2), self.row_weights)

    def left_out(self, H: Array, block: Index) -> tuple[Array, Array]:
        """Leave out a block of rows under a mean with these features: log densities and squared errors, (n,), summed over outputs."""
        densities, squares = np.zeros((2, len(block)))
        leaf = np.searchsorted(self.starts, block, side="right") - 1
        for output, inverses in enumerate(self.inverses):
            P_y, precision, K_H, A = self._without_mean(H, output)
            P = -K_H[block] @ A @ K_H[block].T
            for k in np.unique(leaf).tolist():
                inside = np.flatnonzero(leaf == k)
                place = block[inside] - self.starts[k]
                P[np.ix_(inside, inside)] += inverses[k][np.ix_(place, place)]
            # R&W section 5.4.2, for a group of rows. Without the block a collinear mean may be undetermined.
            S = np.linalg.pinv(P, hermitian=True)
            residual = S @ P_y[block]
            scale = self._scale(np.square(P_y) / precision)[block]
            variance = np.maximum(np.diag(S), 1.0 / precision[block]) * scale
            most = MOST_DEVIATIONS * np.sqrt(variance)
            densities += normal_log_density(np.clip(residual, -most, most), variance)
            squares += np.square(residual)
        return densities, squares

    def _without_mean(self, H: Array, output: int) -> tuple[Array, Array, Array, Array]:
        """Return ``P y``, the diagonal of P, ``K^-1 H`` and ``A^-1``."""
        inverses, y = self.inverses[output], self.Y[:, output]
        K_y, K_H = self._times(inverses, y[:, None])[:, 0], self._times(inverses, H)
        # Constant and collinear inputs: any solution will do.
        A = np.linalg.pinv(H.T @ K_H, hermitian=True)
        precision = np.concatenate([block.diagonal() for block in inverses])
        explained = np.einsum("ij,jk,ik->i", K_H, A, K_H)
        precision = np.maximum(precision - explained, 1e-9 * precision)
        return K_y - K_H @ (A @ (H.T @ K_y)), np.asarray(precision), K_H, np.asarray(A)

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
