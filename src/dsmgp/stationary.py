"""Stationary ARD covariances in closed form: the matrix, and the gradient of anything through it.

With ``z = x / lengthscale`` and ``r2`` the squared distance of two such rows, every kernel here is
``outputscale * k(r2)``. All share one gradient by the length-scales: for ``W = dL/dK * 2``,
``G = W * outputscale * (-dk/dr2)`` and ``g_i = sum_j G_ij``,

    dL / d log lengthscale_d = sum_ij G_ij (z_id - z_jd)^2 = 2 sum_i g_i z_id^2 - 2 sum_i z_id (G Z)_id,

one matrix product for all dimensions. Shapes: (leaves, rows, dims) for inputs, (leaves, rows, rows)
for matrices, (leaves, hyperparameters) for gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dsmgp.distance import centre_of, far, lost_pairs, squared_distance

__all__ = ["BoundStationary", "Stationary"]

# Takes W = 2 dL/dK (which it may overwrite), dL/dmean, sum(W * K) without noise, and the trace of W.
Pullback = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# A kind turns squared distances (which it may overwrite) into the kernel and, when asked, -dk/dr2.
Kind = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Callable[[], Tensor]]]


def _rbf(r2: Tensor, scale: Tensor, shape: Tensor | None) -> tuple[Tensor, Callable[[], Tensor]]:
    k = r2.mul_(-0.5).exp_().mul_(scale)
    return k, lambda: k * 0.5


def _matern12(
    r2: Tensor, scale: Tensor, shape: Tensor | None
) -> tuple[Tensor, Callable[[], Tensor]]:
    r = r2.sqrt_()
    k = torch.neg(r).exp_().mul_(scale)
    return k, lambda: torch.where(r > 0, k / r, 0.0).mul_(0.5)


def _matern32(
    r2: Tensor, scale: Tensor, shape: Tensor | None
) -> tuple[Tensor, Callable[[], Tensor]]:
    a = r2.sqrt_().mul_(math.sqrt(3.0))
    decay = torch.neg(a).exp_().mul_(scale)
    return a.add_(1.0).mul_(decay), lambda: decay * 1.5


def _matern52(
    r2: Tensor, scale: Tensor, shape: Tensor | None
) -> tuple[Tensor, Callable[[], Tensor]]:
    a = r2.sqrt_().mul_(math.sqrt(5.0))
    decay = torch.neg(a).exp_().mul_(scale)
    slope = (a + 1.0).mul_(decay)
    return a.square_().mul_(decay).div_(3.0).add_(slope), lambda: slope * (5.0 / 6.0)


def _rq(r2: Tensor, scale: Tensor, shape: Tensor | None) -> tuple[Tensor, Callable[[], Tensor]]:
    assert shape is not None
    base = r2.div_(2.0 * shape).add_(1.0)
    k = base.pow(-shape).mul_(scale)
    return k, lambda: (k / base).mul_(0.5)


_KINDS: dict[str, Kind] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
    "rq": _rq,
}


@dataclass(frozen=True)
class Stationary:
    """Which closed form: the kernel's kind, the columns it sees, and the kind of mean.

    The natural vector is length-scales, output scale, shape (rq only), the mean's parameters
    (constant: the constant; linear: weights and bias), noise variance.
    """

    kind: str
    columns: tuple[int, ...]
    mean_kind: str
    batched = True

    def bind(self, natural: Tensor) -> BoundStationary:
        """The law at given hyperparameters, one vector for all leaves or one row per leaf."""
        return BoundStationary(self, natural if natural.ndim == 2 else natural.unsqueeze(0))


class BoundStationary:
    """A stationary law at its hyperparameters."""

    def __init__(self, law: Stationary, natural: Tensor) -> None:
        n = len(law.columns)
        self.law = law
        self.lengthscale = natural[:, :n]
        self.outputscale = natural[:, n]
        # (leaves, 1, 1), to meet a (leaves, rows, rows) matrix
        self.shape = natural[:, n + 1, None, None] if law.kind == "rq" else None
        self.noise = natural[:, -1]
        self.mean_parameters = natural[:, n + 1 + (law.kind == "rq") : -1]

    def mean(self, X: Tensor) -> Tensor:
        """Prior mean, (leaves, rows)."""
        if self.law.mean_kind == "zero":
            return X.new_zeros(X.shape[:-1])
        if self.law.mean_kind == "constant":
            return self.mean_parameters.expand(X.shape[0], 1).expand(X.shape[:-1])
        weights, bias = self.mean_parameters[:, :-1], self.mean_parameters[:, -1:]
        return torch.matmul(X, weights.unsqueeze(-1)).squeeze(-1) + bias

    def variance(self, X: Tensor) -> Tensor:
        """Prior variance of f, (leaves, rows)."""
        return self.outputscale.unsqueeze(-1).expand(X.shape[:-1])

    def cross(self, A: Tensor, B: Tensor) -> Tensor:
        """Covariance of f between rows of A and of B, (leaves, rows of A, rows of B)."""
        centre = centre_of(B[..., self._columns(B)])
        a, b = self._scaled(A, centre), self._scaled(B, centre)
        norms_a, norms_b = (a * a).sum(-1), (b * b).sum(-1)
        r2 = squared_distance(a, b, norms_a, norms_b)
        pairs = lost_pairs(r2, norms_a, norms_b, smooth=self.law.kind != "matern12")
        if pairs is not None:
            r2[pairs] = _direct(a, b, pairs).sum(-1)
        k, _ = _KINDS[self.law.kind](r2, self.outputscale[:, None, None], self.shape)
        return k

    def covariance(self, X: Tensor, mask: Tensor) -> tuple[Tensor, Pullback]:
        """Covariance of f at padded training rows, and how to take dL/dK back.

        ``mask`` is (leaves, rows), False in padding; a padded row is independent of all others.
        The pull-back gives the gradient by the natural vector, leaf by leaf.
        """
        z = self._scaled(X, centre_of(X[..., self._columns(X)])) * mask.unsqueeze(-1)
        norms = torch.where(mask, (z * z).sum(-1), far(X.dtype))
        r2 = squared_distance(z, z, norms, norms)
        r2.diagonal(dim1=-2, dim2=-1).zero_()
        pairs = lost_pairs(r2, norms, norms, smooth=self.law.kind != "matern12")
        if pairs is not None:
            leaf, i, j = pairs
            off = i != j
            pairs = (leaf[off], i[off], j[off])
            apart = _direct(z, z, pairs)
            r2[pairs] = apart.sum(-1)
        r2_kept = r2.clone() if self.law.kind == "rq" else None
        K, slope = _KINDS[self.law.kind](r2, self.outputscale[:, None, None], self.shape)
        if self.law.kind == "rq":
            # Its tail is a power, which padding far away does not make vanish.
            K *= mask.unsqueeze(-1) & mask.unsqueeze(-2)

        def pullback(W: Tensor, mean_gradient: Tensor, share: Tensor, trace: Tensor) -> Tensor:
            after = [0.5 * share / self.outputscale]
            if r2_kept is not None:
                after.append(self._by_shape(W, K, r2_kept))
            after += [*self._by_mean(X, mean_gradient), 0.5 * trace]
            G = W.mul_(slope())
            G.diagonal(dim1=-2, dim2=-1).zero_()
            by_log = z.new_zeros(len(z), z.shape[-1])
            if pairs is not None and pairs[0].numel():
                # Their slope is steep and their distance small: take the product pair by pair,
                # where the general form would subtract two large numbers.
                by_log.index_add_(0, pairs[0], G[pairs].unsqueeze(-1) * apart)
                G[pairs] = 0.0
            g = G.sum(-1, keepdim=True)
            by_log += 2.0 * (g * z * z - z * torch.matmul(G, z)).sum(-2)
            return torch.cat(
                [by_log / self.lengthscale, *(part.reshape(len(z), -1) for part in after)], -1
            )

        return K, pullback

    def _by_shape(self, W: Tensor, K: Tensor, r2: Tensor) -> Tensor:
        assert self.shape is not None
        u = r2 / (2.0 * self.shape)
        return 0.5 * (W * K * (u / (1.0 + u) - torch.log1p(u))).sum((-2, -1))

    def _by_mean(self, X: Tensor, mean_gradient: Tensor) -> list[Tensor]:
        if self.law.mean_kind == "zero":
            return []
        total = mean_gradient.sum(-1, keepdim=True)
        if self.law.mean_kind == "constant":
            return [total]
        return [torch.matmul(mean_gradient.unsqueeze(-2), X).squeeze(-2), total]

    def _scaled(self, X: Tensor, centre: Tensor) -> Tensor:
        return (X[..., self._columns(X)] - centre) / self.lengthscale.unsqueeze(-2)

    def _columns(self, X: Tensor) -> slice | list[int]:
        every = self.law.columns == tuple(range(X.shape[-1]))
        return slice(None) if every else list(self.law.columns)


def _direct(a: Tensor, b: Tensor, pairs: tuple[Tensor, ...]) -> Tensor:
    """Squared differences of chosen pairs, one column a dimension."""
    leaf, i, j = pairs
    difference = a[leaf, i] - b[leaf, j]
    return difference * difference
