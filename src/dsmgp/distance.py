"""Squared distances between rows, by one matrix product, right also for rows that almost coincide."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["distance", "near_pairs", "squared_distance"]


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


def near_pairs(squared: Tensor, norms_a: Tensor, norms_b: Tensor) -> tuple[Tensor, ...]:
    """Pairs so close that the product form has lost their distance to rounding.

    Its error is a few ulps of the norms. That is nothing to a kernel smooth in the squared
    distance, but a kernel in the distance itself (Matern-1/2) sees its square root.
    """
    threshold = torch.finfo(squared.dtype).eps ** 0.55
    close = squared < threshold * (norms_a.unsqueeze(-1) + norms_b.unsqueeze(-2))
    return torch.nonzero(close, as_tuple=True)


def distance(x1: Tensor, x2: Tensor, square: bool = False) -> Tensor:
    """Distances that autograd can differentiate, also between equal rows, where the slope is zero."""
    centre = x1.detach().reshape(-1, x1.shape[-1]).mean(0)
    a, b = x1 - centre, x2 - centre
    norms_a, norms_b = (a * a).sum(-1), (b * b).sum(-1)
    squared = squared_distance(a, b, norms_a, norms_b)
    *batch, i, j = near_pairs(squared.detach(), norms_a.detach(), norms_b.detach())
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
