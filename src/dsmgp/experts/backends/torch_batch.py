"""The algebra of a padded batch of leaves in torch: observations, factors, evidence, gradient. Needs torch.

The torch backend (:mod:`dsmgp.experts.backends.torch_backend`) stacks the leaves, evaluates their kernels, and calls this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsmgp._util.constants import LOG_2PI
from dsmgp.linalg import triangular
from dsmgp.linalg.jitter import jitter_ladder

__all__ = ["Batch", "Observations", "Solution", "covariance_gradient", "solve"]


@dataclass(frozen=True)
class Batch:
    """One output of a group of leaves, stacked.

    Attributes
    ----------
    X : Tensor of shape (leaves, points, dims)
        Distinct inputs.
    mask : Tensor of shape (leaves, points)
        False in padding.
    y : Tensor of shape (n_rows,)
        Observations of all rows, leaf after leaf, point after point.
    known_noise : Tensor of shape (n_rows,), optional
        Noise variances known row by row, in addition to the leaf's own.
    weights : Tensor of shape (n_rows,), optional
        Weights of the rows; without them all are one.
    leaf, point : Tensor of shape (n_rows,)
        The leaf of each row, and its point, counted over the padded batch.
    n_rows : Tensor of shape (leaves,)
        Number of rows, or the sum of their weights.
    shared : bool
        Whether any point may have several observations: several rows, or rows with weights.
    """

    X: Tensor
    mask: Tensor
    y: Tensor
    known_noise: Tensor | None
    weights: Tensor | None
    leaf: Tensor
    point: Tensor
    n_rows: Tensor
    shared: bool


class Observations:
    """Observations of f at the points of a batch: see :class:`dsmgp.experts.points.Observations`.

    Parameters
    ----------
    batch : Batch
    noise : Tensor of shape (leaves,)
        Noise variance of each leaf.

    Attributes
    ----------
    mean, variance : Tensor of shape (leaves, points)
        Averages of the rows at each point, and their variances; zero in padding.
    squares, half_log_det : Tensor of shape (leaves,)
        What the evidence has beyond that of the averages.
    """

    def __init__(self, batch: Batch, noise: Tensor) -> None:
        self.batch = batch
        variance = noise[batch.leaf]
        if batch.known_noise is not None:
            variance = variance + batch.known_noise
        if not batch.shared:
            self.mean, self.variance = self._at_points(batch.y), self._at_points(variance)
            self.squares = self.half_log_det = torch.zeros_like(noise)
            return
        self._precision = 1.0 / variance
        precision = self._by_point(self._weighted(self._precision))
        self.variance = torch.where(batch.mask, 1.0 / precision, 0.0)
        self.mean = self._by_point(self._weighted(self._precision * batch.y)) * self.variance
        self._away = batch.y - self.mean.reshape(-1)[batch.point]
        self.squares = self._by_leaf(self._weighted(self._precision * self._away.square()))
        of_points = torch.where(batch.mask, self.variance.log(), 0.0).sum(-1)
        of_rows = self._by_leaf(self._weighted(self._precision.log()))
        self.half_log_det = -0.5 * (of_rows + of_points)

    def noise_trace(self, alpha: Tensor, diagonal: Tensor, weight: Tensor) -> Tensor:
        """Return twice the derivative of the log evidence by the noise of each leaf, (leaves,).

        Parameters
        ----------
        alpha, diagonal : Tensor of shape (leaves, points)
            ``weight K^-1 (y - mean)``, and the diagonal of ``W = 2 dL/dK``.
        weight : Tensor of shape (leaves,)
        """
        if not self.batch.shared:
            return (diagonal * self.batch.mask).sum(-1)
        squared = self._weighted(self._precision.square())
        by_variance = self.variance.square() * self._by_point(squared)
        by_mean = -self.variance * self._by_point(squared * self._away)
        of_points = (diagonal + 1.0 / self.variance) * by_variance - 2.0 * alpha * by_mean
        of_rows = weight[self.batch.leaf] * squared * self._away.square()
        of_rows = of_rows - self._weighted(self._precision)
        return torch.where(self.batch.mask, of_points, 0.0).sum(-1) + self._by_leaf(of_rows)

    def _weighted(self, values: Tensor) -> Tensor:
        """Values of rows times their weights."""
        return values if self.batch.weights is None else values * self.batch.weights

    def _at_points(self, values: Tensor) -> Tensor:
        """Values of rows, each alone at its point; zero in padding."""
        table = values.new_zeros(self.batch.mask.numel())
        table[self.batch.point] = values
        return table.reshape(self.batch.mask.shape)

    def _by_point(self, values: Tensor) -> Tensor:
        total = values.new_zeros(self.batch.mask.numel())
        return total.index_add_(0, self.batch.point, values).reshape(self.batch.mask.shape)

    def _by_leaf(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.batch.mask)).index_add_(0, self.batch.leaf, values)


@dataclass
class Solution:
    """Factorised covariance matrices of a batch.

    Attributes
    ----------
    factor : Tensor of shape (leaves, points, points)
        Lower Cholesky factors.
    residual : Tensor of shape (leaves, points)
        ``y - mean``.
    alpha : Tensor of shape (leaves, points)
        ``K^-1 (y - mean)``.
    jitter : Tensor of shape (leaves,)
        What was added to the diagonal beyond the noise.
    mask : Tensor of shape (leaves, points)
    observations : Observations
    """

    factor: Tensor
    alpha: Tensor
    residual: Tensor
    jitter: Tensor
    mask: Tensor
    observations: Observations

    @property
    def squares(self) -> Tensor:
        """``(y - mean)' K^-1 (y - mean)`` of all rows, (leaves,)."""
        return (self.residual * self.alpha).sum(-1) + self.observations.squares

    @property
    def half_log_det(self) -> Tensor:
        """Half the log determinants of the covariance of all rows, (leaves,)."""
        of_points = (self.factor.diagonal(dim1=-2, dim2=-1).log() * self.mask).sum(-1)
        return of_points + self.observations.half_log_det

    @property
    def log_evidence(self) -> Tensor:
        """Log density of the observations (R&W eq. 2.30), (leaves,)."""
        return -0.5 * (self.squares + self.observations.batch.n_rows * LOG_2PI) - self.half_log_det

    def student_evidence(self, scale_rows: float) -> tuple[Tensor, Tensor]:
        """Return the log evidence with the scale of each leaf integrated out.

        The scale has an inverse-gamma prior worth ``scale_rows`` rows at scale one, which makes the leaf a multivariate
        Student-t with as many degrees of freedom. Its gradient is that of the Gaussian with ``alpha alpha'`` multiplied
        by a weight, the inverse of the scale that the leaf's rows suggest: a leaf that is much noisier than the rest
        does not dominate the hyperparameters.

        Returns
        -------
        log_evidence, weight : Tensor of shape (leaves,)
        """
        squares, n = self.squares, self.observations.batch.n_rows
        half = torch.tensor(0.5 * scale_rows).to(squares)
        constant = (
            torch.lgamma(half + 0.5 * n)
            - torch.lgamma(half)
            - 0.5 * n * math.log(scale_rows * math.pi)
        )
        evidence = (
            constant - self.half_log_det - (half + 0.5 * n) * torch.log1p(squares / scale_rows)
        )
        return evidence, (scale_rows + n) / (scale_rows + squares)


def solve(K: Tensor, kernel: Any, batch: Batch) -> Solution:
    """Factorise K plus noise, and solve for the observations; the diagonal of K is changed in place."""
    noise = kernel.noise.expand(len(K))
    observations = Observations(batch, noise)
    residual = torch.where(batch.mask, observations.mean - kernel.mean(batch.X), 0.0)
    # Padding has noise too, or it could not be factorised.
    on_diagonal = torch.where(batch.mask, observations.variance, noise.unsqueeze(-1))
    K.diagonal(dim1=-2, dim2=-1).add_(on_diagonal)
    jitter = torch.zeros_like(noise)
    factor, info = torch.linalg.cholesky_ex(K)
    if bool(info.any()):
        _add_jitter(K, factor, jitter, info)
    alpha = torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)
    return Solution(factor, alpha, residual, jitter, batch.mask, observations)


def _add_jitter(K: Tensor, factor: Tensor, added: Tensor, info: Tensor) -> None:
    """Add jitter to the leaves that could not be factorised; ``factor`` and ``added`` are changed in place."""
    identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    for slot in torch.nonzero(info).reshape(-1).tolist():
        factor[slot] = torch.nan
        name = str(K.dtype).removeprefix("torch.")
        for jitter in jitter_ladder(float(K[slot].diagonal().mean()), name):
            trial, failed = torch.linalg.cholesky_ex(K[slot] + jitter * identity)
            if not bool(failed):
                factor[slot] = trial
                added[slot] = jitter
                break


def covariance_gradient(solution: Solution, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``W = 2 dL/dK = weight alpha alpha' - K^-1`` (R&W eq. 5.9 where the weight is one), ``tr(W K)`` for K without
    noise, and twice the derivative by the noise: ``tr W``, where every point has one row."""
    W = triangular.inverse_from_factor(solution.factor)
    alpha = solution.alpha
    weighted = alpha * weight.unsqueeze(-1)
    W.baddbmm_(weighted.unsqueeze(-1), alpha.unsqueeze(-2), beta=-1.0)
    diagonal = W.diagonal(dim1=-2, dim2=-1)
    noise = solution.observations.variance + solution.jitter.unsqueeze(-1) * solution.mask
    # tr(W (K + noise)) is weight residual' alpha - n, which saves a pass over the matrices.
    total = (solution.residual * weighted).sum(-1) - solution.mask.sum(-1)
    tr_WK = total - (diagonal * noise).sum(-1)
    return W, tr_WK, solution.observations.noise_trace(weighted, diagonal, weight)
