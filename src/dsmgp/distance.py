"""Squared distances between rows, by one matrix product, right also for rows that almost coincide."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["centre_of", "distance", "far", "lost_pairs", "squared_distance"]

# Squared norms up to which rounding in the product form is no matter to a smooth kernel.
HARMLESS_NORM = 1e4


def squared_distance(a: Tensor, b: Tensor, norms_a: Tensor, norms_b: Tensor) -> Tensor:
    """``|a_i - b_j|^2`` for a (..., n, d) and b (..., m, d), as one product of widened matrices.

    ``norms`` are the squared norms of the rows. A norm of :func:`far` puts a row infinitely far
    from all others, which is how padding is kept out of a batch at no cost.
    """
    wide_a = torch.cat(
        [a * -2.0, norms_a.unsqueeze(-1), torch.ones_like(norms_a).unsqueeze(-1)], -1
    )
    wide_b = torch.cat([b, torch.ones_like(norms_b).unsqueeze(-1), norms_b.unsqueeze(-1)], -1)
    return torch.matmul(wide_a, wide_b.mT).clamp_min_(0.0)


def far(dtype: torch.dtype) -> float:
    """A squared norm so large that every stationary kernel vanishes, and its square is finite."""
    return float(torch.finfo(dtype).max) ** 0.5


def centre_of(X: Tensor) -> Tensor:
    """A point amid the rows (..., n, d): their median, which a row far away does not move."""
    return X.median(dim=-2, keepdim=True).values


def lost_pairs(
    squared: Tensor, norms_a: Tensor, norms_b: Tensor, smooth: bool
) -> tuple[Tensor, ...] | None:
    """Pairs so close that the product form has lost their distance to rounding.

    Its error is a few ulps of the norms. To a kernel ``smooth`` in the squared distance that is nothing as long
    as norms are moderate; a kernel in the distance itself (Matern-1/2) sees the square root of the error.
    """
    real = norms_a < far(norms_a.dtype)
    if smooth and float(torch.where(real, norms_a, 0.0).amax()) < HARMLESS_NORM:
        return None
    threshold = torch.finfo(squared.dtype).eps ** 0.55
    close = squared < threshold * (norms_a.unsqueeze(-1) + norms_b.unsqueeze(-2))
    return torch.nonzero(close, as_tuple=True)


def distance(x1: Tensor, x2: Tensor, square: bool = False) -> Tensor:
    """Distances that autograd can differentiate, also between equal rows, where the slope is zero."""
    centre = centre_of(x1.detach())
    a, b = x1 - centre, x2 - centre
    norms_a, norms_b = (a * a).sum(-1), (b * b).sum(-1)
    squared = squared_distance(a, b, norms_a, norms_b)
    pairs = lost_pairs(squared.detach(), norms_a.detach(), norms_b.detach(), smooth=False)
    assert pairs is not None
    *batch, i, j = pairs
    if i.numel():
        difference = (
            a.expand(*squared.shape[:-2], *a.shape[-2:])[(*batch, i)]
            - (b.expand(*squared.shape[:-2], *b.shape[-2:])[(*batch, j)])
        )
        squared = squared.index_put((*batch, i, j), (difference * difference).sum(-1))
    if square:
        return squared
    tiny = torch.finfo(squared.dtype).tiny
    return squared.clamp_min(tiny).sqrt()
