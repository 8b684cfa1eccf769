"""Kernels in closed form for batches of leaves, in torch: covariance matrices, and gradients through them.

The counterpart of :mod:`dsmgp.gp.terms`, which has one leaf at a time in NumPy.

With ``z = x / lengthscale`` and ``r2`` the squared distance of two such rows, every kernel here is
``outputscale * k(r2)``. All share one gradient by the length scales. For ``W = 2 dL/dK``,
``G = W * outputscale * (-dk/dr2)`` and ``g_i = sum_j G_ij``,

    dL / d log lengthscale_d = sum_ij G_ij (z_id - z_jd)^2 = 2 sum_i g_i z_id^2 - 2 sum_i z_id (G Z)_id,

which is one matrix product for all dimensions. A linear map A of the inputs in place of length scales has ``z = A' x`` and, with
``h_i = g_i z_i - (G Z)_i``,

    dL / dA = -2 sum_i x_i h_i'.

Shapes: (leaves, rows, dims) for inputs, (leaves, rows, rows) for matrices, (leaves, parameters) for gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsmgp._util.errors import InputError
from dsmgp.gp.leaf_kernels import LeafKernel, MetricKernel, StationaryKernel, SumKernel
from dsmgp.gp.terms import HARMLESS_NORM, Term, n_extra

__all__ = [
    "BatchPullback",
    "BoundMetricKernel",
    "BoundStationaryKernel",
    "BoundSumKernel",
    "bind",
    "distance",
]

#: Takes ``W = 2 dL/dK`` (which it may overwrite), ``dL/dmean``, ``tr(W K)`` for K without noise, and ``tr W``; returns
#: the gradient by the kernel parameters, (leaves, parameters).
BatchPullback = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# Takes squared distances (which it may overwrite), output scale and shape, the latter two as (leaves, 1, 1). Returns the
# covariances and a function that computes -dk/dr2.
Radial = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Callable[[], Tensor]]]


def _rbf(r2: Tensor, scale: Tensor, shape: Tensor | None) -> tuple[Tensor, Callable[[], Tensor]]:
    """``exp(-r2 / 2)``."""
    k = r2.mul_(-0.5).exp_().mul_(scale)
    return k, lambda: k * 0.5


def _matern12(
    r2: Tensor, scale: Tensor, shape: Tensor | None
) -> tuple[Tensor, Callable[[], Tensor]]:
    """``exp(-r)``."""
    r = r2.sqrt_()
    k = torch.neg(r).exp_().mul_(scale)
    return k, lambda: torch.where(r > 0, k / r, 0.0).mul_(0.5)


def _matern32(
    r2: Tensor, scale: Tensor, shape: Tensor | None
) -> tuple[Tensor, Callable[[], Tensor]]:
    """``(1 + a) exp(-a)`` with ``a = sqrt(3) r``."""
    a = r2.sqrt_().mul_(math.sqrt(3.0))
    decay = torch.neg(a).exp_().mul_(scale)
    return a.add_(1.0).mul_(decay), lambda: decay * 1.5


def _matern52(
    r2: Tensor, scale: Tensor, shape: Tensor | None
) -> tuple[Tensor, Callable[[], Tensor]]:
    """``(1 + a + a^2 / 3) exp(-a)`` with ``a = sqrt(5) r``."""
    a = r2.sqrt_().mul_(math.sqrt(5.0))
    decay = torch.neg(a).exp_().mul_(scale)
    linear = (a + 1.0).mul_(decay)
    return a.square_().mul_(decay).div_(3.0).add_(linear), lambda: linear * (5.0 / 6.0)


def _rq(r2: Tensor, scale: Tensor, shape: Tensor | None) -> tuple[Tensor, Callable[[], Tensor]]:
    """Rational quadratic: ``(1 + r2 / (2 shape))^-shape``."""
    assert shape is not None
    base = r2.div_(2.0 * shape).add_(1.0)
    k = base.pow(-shape).mul_(scale)
    return k, lambda: (k / base).mul_(0.5)


_KERNELS: dict[str, Radial] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
    "rq": _rq,
}


def bind(kernel: LeafKernel, kernel_parameters: Tensor) -> Any:
    """Return a leaf kernel at given hyperparameters, one vector for all leaves of a batch or one row per leaf."""
    parameters = torch.atleast_2d(kernel_parameters)
    for term in getattr(kernel, "terms", ()):
        if not {*_KERNELS, "periodic", "linear"}.issuperset(term.factors):
            raise InputError(
                f"the kernel {term.kind!r} has no form in torch: use device='cpu' and dtype='float64', or add it to "
                "gp/torch_kernels.py"
            )
    if isinstance(kernel, StationaryKernel):
        return BoundStationaryKernel(kernel, parameters)
    if isinstance(kernel, MetricKernel):
        return BoundMetricKernel(kernel, parameters)
    if isinstance(kernel, SumKernel):
        return BoundSumKernel(kernel, parameters)
    return kernel.bind(kernel_parameters)  # type: ignore[attr-defined]


class BoundStationaryKernel:
    """A stationary kernel at its hyperparameters.

    Parameters
    ----------
    kernel : StationaryKernel
    kernel_parameters : Tensor of shape (leaves, parameters)
        Or with one row for all leaves.
    """

    def __init__(self, kernel: StationaryKernel, kernel_parameters: Tensor) -> None:
        n, has_shape = len(kernel.columns), kernel.kind == "rq"
        self.kernel: StationaryKernel | MetricKernel = kernel
        self.columns, self.kernel_parameters = kernel.columns, kernel_parameters
        self.lengthscale = kernel_parameters[:, :n]  # (leaves, dims)
        self.outputscale = kernel_parameters[:, n]  # (leaves,)
        # (leaves, 1, 1), to meet matrices (leaves, rows, rows)
        self.shape = kernel_parameters[:, n + 1, None, None] if has_shape else None
        self.mean_parameters = kernel_parameters[:, n + 1 + has_shape : -1]
        self.noise = kernel_parameters[:, -1]  # (leaves,)

    def mean(self, X: Tensor) -> Tensor:
        """Return the prior mean, (leaves, rows)."""
        return _mean(self.kernel.mean_kind, X, self.mean_parameters)

    def variance(self, X: Tensor) -> Tensor:
        """Return the prior variance of f, (leaves, rows)."""
        return self.outputscale.unsqueeze(-1).expand(X.shape[:-1])

    def cross(self, A: Tensor, B: Tensor) -> Tensor:
        """Return the covariance of f between rows of A and of B, (leaves, rows of A, rows of B)."""
        centre = _centre(B[..., self._columns(B)])
        a, b = self._scaled(A, centre), self._scaled(B, centre)
        norms_a, norms_b = (a * a).sum(-1), (b * b).sum(-1)
        r2 = _squared_distance(a, b, norms_a, norms_b)
        pairs = _close_pairs(r2, norms_a, norms_b, smooth=self.kernel.kind != "matern12")
        if pairs is not None:
            r2[pairs] = _squared_differences(a, b, pairs).sum(-1)
        k, _ = _KERNELS[self.kernel.kind](r2, self.outputscale[:, None, None], self.shape)
        return k

    def covariance(self, X: Tensor, mask: Tensor) -> tuple[Tensor, BatchPullback]:
        """Return the covariance of f at training rows, and the function that takes gradients back.

        Parameters
        ----------
        X : Tensor of shape (leaves, rows, dims)
        mask : Tensor of shape (leaves, rows)
            False in padding; a padded row is independent of all others.

        Returns
        -------
        K : Tensor of shape (leaves, rows, rows)
        pullback : BatchPullback
            From ``dL/dK`` and ``dL/dmean`` to the gradient by the kernel parameters.
        """
        kind = self.kernel.kind
        z = self._scaled(X, _centre(X[..., self._columns(X)])) * mask.unsqueeze(-1)
        norms = torch.where(mask, (z * z).sum(-1), _far(X.dtype))
        r2 = _squared_distance(z, z, norms, norms)
        r2.diagonal(dim1=-2, dim2=-1).zero_()
        pairs = _close_pairs(r2, norms, norms, smooth=kind != "matern12")
        if pairs is not None:
            leaf, i, j = pairs
            off_diagonal = i != j
            pairs = (leaf[off_diagonal], i[off_diagonal], j[off_diagonal])
            r2[pairs] = _squared_differences(z, z, pairs).sum(-1)
        r2_kept = r2.clone() if kind == "rq" else None
        K, slope = _KERNELS[kind](r2, self.outputscale[:, None, None], self.shape)
        if kind == "rq":
            # Its tail is a power of the distance, which does not vanish in padding.
            K *= mask.unsqueeze(-1) & mask.unsqueeze(-2)

        def pullback(W: Tensor, mean_gradient: Tensor, tr_WK: Tensor, tr_W: Tensor) -> Tensor:
            after = [0.5 * tr_WK / self.outputscale]
            if r2_kept is not None:
                after.append(self._shape_gradient(W, K, r2_kept))
            after += [*_mean_gradients(self.kernel.mean_kind, X, mean_gradient), 0.5 * tr_W]
            G = W.mul_(slope())
            G.diagonal(dim1=-2, dim2=-1).zero_()
            by_scaling = self._by_scaling(X, z, G, pairs)
            return torch.cat([by_scaling, *(part.reshape(len(z), -1) for part in after)], -1)

        return K, pullback

    def _by_scaling(
        self, X: Tensor, z: Tensor, G: Tensor, pairs: tuple[Tensor, ...] | None
    ) -> Tensor:
        """Gradient by the length scales, (leaves, dims); G is overwritten.

        Close ``pairs`` have a steep slope and a small distance: they are summed pair by pair, where the general form would subtract
        two large numbers.
        """
        by_log = z.new_zeros(len(z), z.shape[-1])
        if pairs is not None and pairs[0].numel():
            squares = _squared_differences(z, z, pairs)
            by_log.index_add_(0, pairs[0], G[pairs].unsqueeze(-1) * squares)
            G[pairs] = 0.0
        g = G.sum(-1, keepdim=True)
        by_log += 2.0 * (g * z * z - z * torch.matmul(G, z)).sum(-2)
        return by_log / self.lengthscale

    def _shape_gradient(self, W: Tensor, K: Tensor, r2: Tensor) -> Tensor:
        """Gradient by the shape of the rational quadratic kernel, (leaves,)."""
        assert self.shape is not None
        u = r2 / (2.0 * self.shape)
        return 0.5 * (W * K * (u / (1.0 + u) - torch.log1p(u))).sum((-2, -1))

    def _scaled(self, X: Tensor, centre: Tensor) -> Tensor:
        return (X[..., self._columns(X)] - centre) / self.lengthscale.unsqueeze(-2)

    def _columns(self, X: Tensor) -> slice | list[int]:
        every = self.columns == tuple(range(X.shape[-1]))
        return slice(None) if every else list(self.columns)


class BoundMetricKernel(BoundStationaryKernel):
    """A kernel of a linear map of the inputs at its hyperparameters.

    Parameters
    ----------
    kernel : MetricKernel
    kernel_parameters : Tensor of shape (leaves, parameters)
        Or with one row for all leaves.
    """

    def __init__(self, kernel: MetricKernel, kernel_parameters: Tensor) -> None:
        (n,) = kernel.output_scales
        self.kernel, self.columns = kernel, tuple(range(kernel.n_inputs))
        self.kernel_parameters, self.shape = kernel_parameters, None
        # (leaves, inputs, dims)
        self.metric = kernel_parameters[:, :n].unflatten(-1, (kernel.n_inputs, kernel.rank))
        self.outputscale = kernel_parameters[:, n]  # (leaves,)
        self.mean_parameters = kernel_parameters[:, n + 1 : -1]
        self.noise = kernel_parameters[:, -1]  # (leaves,)

    def _by_scaling(
        self, X: Tensor, z: Tensor, G: Tensor, pairs: tuple[Tensor, ...] | None
    ) -> Tensor:
        """Gradient by the entries of the map, (leaves, entries); close pairs are summed one by one here, too."""
        by_image = torch.zeros_like(z)
        if pairs is not None and pairs[0].numel():
            leaf, i, j = pairs
            difference = z[leaf, i] - z[leaf, j]
            by_image.index_put_((leaf, i), G[pairs].unsqueeze(-1) * difference, accumulate=True)
            G[pairs] = 0.0
        by_image += G.sum(-1, keepdim=True) * z - torch.matmul(G, z)
        return torch.matmul((X - _centre(X)).mT, by_image).mul_(-2.0).flatten(-2)

    def _scaled(self, X: Tensor, centre: Tensor) -> Tensor:
        return torch.matmul(X - centre, self.metric)


class BoundSumKernel:
    """A sum of kernels at its hyperparameters, with the interface of :class:`BoundStationaryKernel`; gradients by autograd.

    Parameters
    ----------
    kernel : SumKernel
    kernel_parameters : Tensor of shape (leaves, parameters)
        Or with one row for all leaves.
    """

    def __init__(self, kernel: SumKernel, kernel_parameters: Tensor) -> None:
        self.kernel, self.kernel_parameters = kernel, kernel_parameters
        self._n_terms = sum(term.n_parameters for term in kernel.terms)
        self.mean_parameters = kernel_parameters[:, self._n_terms : -1]
        self.noise = kernel_parameters[:, -1]  # (leaves,)

    def mean(self, X: Tensor) -> Tensor:
        return _mean(self.kernel.mean_kind, X, self.mean_parameters)

    def variance(self, X: Tensor) -> Tensor:
        total, first = X.new_zeros(()), 0
        for term in self.kernel.terms:
            n, of_term = (
                len(term.columns),
                self.kernel_parameters[:, first : first + term.n_parameters],
            )
            variance = of_term[:, n, None]
            for kind, lengthscale, _ in _factors(term, of_term):
                if kind == "linear":
                    z = X[..., list(term.columns)] / lengthscale.unsqueeze(-2)
                    variance = variance * (1.0 + z.square().sum(-1))
            total = total + variance
            first += term.n_parameters
        return total.expand(X.shape[:-1])

    def cross(self, A: Tensor, B: Tensor) -> Tensor:
        with torch.no_grad():
            return self._matrix(A, B, self.kernel_parameters)

    def covariance(self, X: Tensor, mask: Tensor) -> tuple[Tensor, BatchPullback]:
        # A row for each leaf: autograd then returns gradients leaf by leaf.
        parameters = self.kernel_parameters.detach().expand(len(X), -1).clone().requires_grad_()
        with torch.enable_grad():
            K = self._matrix(X, X, parameters) * (mask.unsqueeze(-1) & mask.unsqueeze(-2))

        def pullback(W: Tensor, mean_gradient: Tensor, tr_WK: Tensor, tr_W: Tensor) -> Tensor:
            (by_kernel,) = torch.autograd.grad(K, parameters, 0.5 * W)
            by_mean = _mean_gradients(self.kernel.mean_kind, X, mean_gradient)
            parts = [by_kernel[:, : self._n_terms], *by_mean, 0.5 * tr_W]
            return torch.cat([part.reshape(len(X), -1) for part in parts], -1)

        return K.detach().clone(), pullback

    def _matrix(self, A: Tensor, B: Tensor, parameters: Tensor) -> Tensor:
        total, first = A.new_zeros(()), 0
        for term in self.kernel.terms:
            of_term = parameters[:, first : first + term.n_parameters]
            total = total + _term_covariance(term, A, B, of_term)
            first += term.n_parameters
        return total


def _term_covariance(term: Term, A: Tensor, B: Tensor, parameters: Tensor) -> Tensor:
    """Covariance of one term, (leaves, rows of A, rows of B), as a differentiable function of its parameters."""
    a, b = A[..., list(term.columns)], B[..., list(term.columns)]
    product = parameters[:, len(term.columns), None, None]
    for kind, lengthscale, extra in _factors(term, parameters):
        product = product * _factor_covariance(kind, a, b, lengthscale.unsqueeze(-2), extra)
    return product


def _factors(term: Term, parameters: Tensor) -> list[tuple[str, Tensor, Tensor]]:
    """Return name, length scales and further parameters of each factor of a term, (leaves, dims) and (leaves, parameters)."""
    n = len(term.columns)
    rest = torch.cat([parameters[:, :n], parameters[:, n + 1 :]], -1)
    factors = []
    for kind in term.factors:
        end = n + n_extra(kind, n)
        factors.append((kind, rest[:, :n], rest[:, n:end]))
        rest = rest[:, end:]
    return factors


def _factor_covariance(
    kind: str, a: Tensor, b: Tensor, lengthscale: Tensor, extra: Tensor
) -> Tensor:
    """Covariance of one factor at an output scale of one; length scales are (leaves, 1, dims)."""
    if kind == "periodic":
        angle = math.pi * (a.unsqueeze(-2) - b.unsqueeze(-3)) / extra[:, None, None, :]
        return (-2.0 * angle.sin().square() / lengthscale.unsqueeze(-2)).sum(-1).exp()
    a, b = a / lengthscale, b / lengthscale
    if kind == "linear":
        return 1.0 + torch.matmul(a, b.mT)
    if kind in ("rbf", "rq"):
        r2 = distance(a, b, square=True)
        if kind == "rbf":
            return (-0.5 * r2).exp()
        shape = extra[:, :1, None]
        return (1.0 + r2 / (2.0 * shape)) ** -shape
    r = distance(a, b)
    if kind == "matern12":
        return (-r).exp()
    if kind == "matern32":
        r = math.sqrt(3.0) * r
        return (1.0 + r) * (-r).exp()
    r = math.sqrt(5.0) * r
    return (1.0 + r + r.square() / 3.0) * (-r).exp()


def _mean(mean_kind: str, X: Tensor, parameters: Tensor) -> Tensor:
    """Prior mean of a batch, (leaves, rows)."""
    if mean_kind == "zero":
        return X.new_zeros(X.shape[:-1])
    if mean_kind == "constant":
        return parameters.expand(X.shape[0], 1).expand(X.shape[:-1])
    weights, bias = parameters[:, :-1], parameters[:, -1:]
    return torch.matmul(X, weights.unsqueeze(-1)).squeeze(-1) + bias


def _mean_gradients(mean_kind: str, X: Tensor, mean_gradient: Tensor) -> list[Tensor]:
    """Gradients by the parameters of the mean, in their order."""
    if mean_kind == "zero":
        return []
    total = mean_gradient.sum(-1, keepdim=True)
    if mean_kind == "constant":
        return [total]
    return [torch.matmul(mean_gradient.unsqueeze(-2), X).squeeze(-2), total]


# Squared distances by one matrix product, corrected for rows that almost coincide


def distance(x1: Tensor, x2: Tensor, square: bool = False) -> Tensor:
    """Return distances (..., n, m) that autograd can differentiate, also between equal rows, where the slope is zero."""
    centre = _centre(x1.detach())
    a, b = x1 - centre, x2 - centre
    norms_a, norms_b = (a * a).sum(-1), (b * b).sum(-1)
    squared = _squared_distance(a, b, norms_a, norms_b)
    pairs = _close_pairs(squared.detach(), norms_a.detach(), norms_b.detach(), smooth=False)
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


def _squared_distance(a: Tensor, b: Tensor, norms_a: Tensor, norms_b: Tensor) -> Tensor:
    """``|a_i - b_j|^2`` for a (..., n, d) and b (..., m, d), as one product of widened matrices.

    ``norms`` are the squared norms of the rows. A norm of :func:`_far` puts a row infinitely far from all others,
    which keeps padding out of a batch at no cost.
    """
    wide_a = torch.cat(
        [a * -2.0, norms_a.unsqueeze(-1), torch.ones_like(norms_a).unsqueeze(-1)], -1
    )
    wide_b = torch.cat([b, torch.ones_like(norms_b).unsqueeze(-1), norms_b.unsqueeze(-1)], -1)
    return torch.matmul(wide_a, wide_b.mT).clamp_min_(0.0)


def _far(dtype: torch.dtype) -> float:
    """A squared norm so large that every kernel but rq vanishes, and its square is finite."""
    return float(torch.finfo(dtype).max) ** 0.5


def _centre(X: Tensor) -> Tensor:
    """Median of the rows (..., n, d), which outliers do not move."""
    return X.median(dim=-2, keepdim=True).values


def _close_pairs(
    squared: Tensor, norms_a: Tensor, norms_b: Tensor, smooth: bool
) -> tuple[Tensor, ...] | None:
    """Pairs of rows so close that the product form has lost their distance to rounding; None if that is harmless.

    Its error is a few ulps of the norms. A kernel ``smooth`` in the squared distance does not see it as long as norms
    are moderate; a kernel in the distance itself (Matern-1/2) sees the square root of the error.
    """
    real = norms_a < _far(norms_a.dtype)
    if smooth and float(torch.where(real, norms_a, 0.0).amax()) < HARMLESS_NORM:
        return None
    threshold = torch.finfo(squared.dtype).eps ** 0.55
    close = squared < threshold * (norms_a.unsqueeze(-1) + norms_b.unsqueeze(-2))
    return torch.nonzero(close, as_tuple=True)


def _squared_differences(a: Tensor, b: Tensor, pairs: tuple[Tensor, ...]) -> Tensor:
    """Squared differences of chosen pairs, (pairs, dims)."""
    leaf, i, j = pairs
    difference = a[leaf, i] - b[leaf, j]
    return difference * difference
