"""The leaf kernel of GPyTorch modules: GPyTorch computes the covariance, and autograd takes gradients back through it. Needs torch.

:class:`Modules` holds mean, kernel and likelihood; :class:`AutogradKernel` is the leaf kernel of any of them. It serves kernels that
users pass in; those with a closed form (:mod:`dsmgp.gp.leaf_kernels`) are much faster.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import LinearKernel
from gpytorch.means import Mean
from torch import Tensor

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.gp.leaf_kernels import Pullback, StationaryKernel
from dsmgp.gp.torch_kernels import BatchPullback, distance

__all__ = ["AutogradKernel", "BoundAutogradKernel", "Modules", "one_at_a_time", "to_tensor"]

# GPyTorch evaluates kernels lazily, and changes settings of the process and attributes of the kernel while it does: one
# thread at a time. What follows, factorisation and autograd, runs in parallel.
_lock = threading.Lock()


def one_at_a_time() -> threading.Lock:
    """Return the lock to hold while GPyTorch evaluates a kernel."""
    return _lock


def _forget_lock() -> None:
    """Replace the lock in a forked child, which has none of its parent's threads to release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


class Modules(torch.nn.Module):
    """Mean, kernel and likelihood of a process, as one module with all parameters.

    Parameters
    ----------
    mean : gpytorch.means.Mean
    kernel : gpytorch.kernels.Kernel
    likelihood : gpytorch.likelihoods.GaussianLikelihood
    """

    def __init__(
        self,
        mean: Mean,
        kernel: gpytorch.kernels.Kernel,
        likelihood: gpytorch.likelihoods.GaussianLikelihood,
    ) -> None:
        super().__init__()
        self.mean, self.kernel, self.likelihood = mean, kernel, likelihood

    def trainable(self) -> list[torch.nn.Parameter]:
        """Return the parameters that are learned."""
        return [p for p in self.parameters() if p.requires_grad]

    def set_theta(self, theta: Tensor) -> None:
        """Set the parameters that are learned."""
        start = 0
        with torch.no_grad():
            for p in self.trainable():
                p.copy_(theta[start : start + p.numel()].reshape(p.shape))
                start += p.numel()

    def prior_log_density(self) -> Tensor:
        """Return the log density of the priors, as a differentiable function of the parameters."""
        terms = [
            prior.log_prob(closure(module)).sum()
            for _, module, prior, closure, _ in self.named_priors()
        ]
        return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)

    def named_priors(self) -> Iterator[Any]:
        """Yield the priors of mean, kernel and likelihood, as GPyTorch does."""
        for name in ("mean", "kernel", "likelihood"):
            yield from getattr(self, name).named_priors()

    def closed_form_parameters(self, leaf_kernel: StationaryKernel) -> Tensor:
        """Return the kernel parameters of a closed form, as a differentiable function of the parameters."""
        base = self.kernel.base_kernel
        n_dims = len(leaf_kernel.columns)
        parts = [base.lengthscale.reshape(-1).expand(n_dims), self.kernel.outputscale]
        if leaf_kernel.kind == "rq":
            parts.append(base.alpha)
        if leaf_kernel.mean_kind == "constant":
            parts.append(self.mean.constant)
        elif leaf_kernel.mean_kind == "linear":
            parts += [self.mean.weights, self.mean.bias]
        parts.append(self.likelihood.noise)
        return torch.cat([part.reshape(-1) for part in parts])


def to_tensor(values: Array) -> Tensor:
    """Return an array as a tensor on the CPU, in double precision; read-only memory is copied."""
    return torch.from_numpy(np.require(values, np.float64, ["C", "W"]))


def _flatten(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Return gradients as one vector in the order of the parameters; zero for parameters without one."""
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).reshape(-1)
            for g, p in zip(gradients, parameters, strict=True)
        ]
    )


class AutogradKernel:
    """The :class:`~dsmgp.gp.leaf_kernels.LeafKernel` of modules without closed form. Its kernel parameters are ``theta``.

    Parameters
    ----------
    modules : Modules
    """

    batched = False  # autograd sums gradients over a batch, and a tree needs them leaf by leaf

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def at(self, kernel_parameters: Array) -> _AutogradInNumPy:
        return _AutogradInNumPy(self.bind(to_tensor(kernel_parameters)))

    def bind(self, kernel_parameters: Tensor) -> BoundAutogradKernel:
        """Return the kernel at given hyperparameters, on a copy: several leaves may be computed at once."""
        modules = copy.deepcopy(self.modules).to(kernel_parameters)
        modules.set_theta(kernel_parameters.detach().reshape(-1))
        for module in modules.kernel.modules():
            if type(module) is LinearKernel:
                # In a sum with another kernel its low rank makes GPyTorch factorise the sum.
                object.__setattr__(module, "forward", partial(_linear, module))
            is_kernel = isinstance(module, gpytorch.kernels.Kernel)
            if is_kernel and type(module).covar_dist is gpytorch.kernels.Kernel.covar_dist:
                # GPyTorch's distance of rows that almost coincide is lost to rounding.
                object.__setattr__(module, "covar_dist", _covar_dist)
        return BoundAutogradKernel(modules)


def _linear(kernel: LinearKernel, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
    """GPyTorch's ``LinearKernel.forward``, as a plain matrix."""
    a, b = x1 * kernel.variance.sqrt(), x2 * kernel.variance.sqrt()
    return (a * b).sum(-1) if diag else a @ b.mT


def _covar_dist(
    x1: Tensor,
    x2: Tensor,
    diag: bool = False,
    last_dim_is_batch: bool = False,
    square_dist: bool = False,
    **_: Any,
) -> Tensor:
    """GPyTorch's ``Kernel.covar_dist``, on our distances."""
    if last_dim_is_batch:
        x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
    if diag:
        squared = (x1 - x2).square().sum(-1)
        return squared if square_dist else squared.clamp_min(torch.finfo(x1.dtype).tiny).sqrt()
    return distance(x1, x2, square=square_dist)


class BoundAutogradKernel:
    """GPyTorch modules at their hyperparameters, with the interface of
    :class:`~dsmgp.gp.torch_kernels.BoundStationaryKernel`."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.noise = modules.likelihood.noise.detach().reshape(1)

    def mean(self, X: Tensor) -> Tensor:
        return self.modules.mean(X).detach()

    def variance(self, X: Tensor) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return self.modules.kernel(X, diag=True).detach()

    def cross(self, A: Tensor, B: Tensor) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return self.modules.kernel(A, B).to_dense().detach()

    def covariance(self, X: Tensor, mask: Tensor) -> tuple[Tensor, BatchPullback]:
        """Return the covariance of f at the rows of one leaf, and the function that takes gradients back to theta."""
        if X.shape[0] != 1 or not bool(mask.all()):
            raise InputError("a general kernel takes one leaf at a time, without padding")
        parameters = self.modules.trainable()
        with torch.enable_grad(), one_at_a_time():
            K = self.modules.kernel(X).to_dense()
            mean = self.modules.mean(X)
            noise = self.modules.likelihood.noise

        def pullback(W: Tensor, mean_gradient: Tensor, tr_WK: Tensor, tr_W: Tensor) -> Tensor:
            pairs = [
                (K, 0.5 * W),
                (mean, mean_gradient.expand_as(mean)),
                (noise, 0.5 * tr_W.reshape(noise.shape)),
            ]
            outputs = [(o, g) for o, g in pairs if o.requires_grad]
            if not outputs:
                return X.new_zeros(1, sum(p.numel() for p in parameters))
            by_parameter = torch.autograd.grad(
                [o for o, _ in outputs], parameters, [g for _, g in outputs], allow_unused=True
            )
            return _flatten(by_parameter, parameters).unsqueeze(0)

        # A copy: the caller adds noise in place, and autograd may have kept the matrix itself.
        return K.detach().clone(), pullback


class _AutogradInNumPy:
    """A :class:`~dsmgp.gp.leaf_kernels.BoundLeafKernel` around GPyTorch modules."""

    def __init__(self, bound: BoundAutogradKernel) -> None:
        self.bound, self.noise = bound, float(bound.noise[0])

    def mean(self, X: Array) -> Array:
        return self.bound.mean(to_tensor(X)[None])[0].numpy()

    def variance(self, X: Array) -> Array:
        return self.bound.variance(to_tensor(X)[None])[0].numpy()

    def cross(self, A: Array, B: Array) -> Array:
        return self.bound.cross(to_tensor(A)[None], to_tensor(B)[None])[0].numpy()

    def covariance(self, X: Array) -> tuple[Array, Pullback]:
        K, batch_pullback = self.bound.covariance(
            to_tensor(X)[None], torch.ones(1, len(X), dtype=torch.bool)
        )

        def pullback(W: Array, mean_gradient: Array, tr_W: float) -> Array:
            trace = torch.tensor([tr_W], dtype=torch.float64)
            gradient = batch_pullback(
                to_tensor(W)[None], to_tensor(mean_gradient)[None], trace, trace
            )
            return gradient[0].numpy()

        return K[0].numpy(), pullback
