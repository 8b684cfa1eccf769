"""Any GPyTorch kernel and mean: GPyTorch computes the covariance matrix, and autograd takes gradients back through it.

Kernels with a closed form (:mod:`dsmgp.gp.stationary`) are much faster; this is for all others.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.kernels import Kernel, LinearKernel
from torch import Tensor

from dsmgp.gp.stationary import Pullback, distance

if TYPE_CHECKING:
    from dsmgp.gp.process import Process

__all__ = ["AutogradKernel", "BoundAutogradKernel", "flatten", "one_at_a_time"]

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


class AutogradKernel:
    """A kernel and mean without closed form. Its vector of kernel parameters is ``theta``.

    Parameters
    ----------
    process : Process
    """

    batched = False  # autograd sums gradients over a batch, and a tree needs them leaf by leaf

    def __init__(self, process: Process) -> None:
        self.process = process

    def bind(self, kernel_parameters: Tensor) -> BoundAutogradKernel:
        """Return the kernel at given hyperparameters, on a copy: several leaves may be computed at once."""
        process = copy.deepcopy(self.process).to(kernel_parameters)
        process.theta = kernel_parameters.detach().reshape(-1)
        for module in process.kernel.modules():
            if type(module) is LinearKernel:
                # In a sum with another kernel its low rank makes GPyTorch factorise the sum.
                object.__setattr__(module, "forward", partial(_linear, module))
            if isinstance(module, Kernel) and type(module).covar_dist is Kernel.covar_dist:
                # GPyTorch's distance of rows that almost coincide is lost to rounding.
                object.__setattr__(module, "covar_dist", _covar_dist)
        return BoundAutogradKernel(process)


def flatten(gradients: Sequence[Tensor | None], parameters: Sequence[torch.nn.Parameter]) -> Tensor:
    """Return gradients as one vector in the order of the parameters; zero for parameters without one."""
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).reshape(-1)
            for g, p in zip(gradients, parameters, strict=True)
        ]
    )


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
    :class:`~dsmgp.gp.stationary.BoundStationaryKernel`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.noise = process.likelihood.noise.detach().reshape(1)

    def mean(self, X: Tensor) -> Tensor:
        return self.process.mean(X).detach()

    def variance(self, X: Tensor) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return self.process.kernel(X, diag=True).detach()

    def cross(self, A: Tensor, B: Tensor) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return self.process.kernel(A, B).to_dense().detach()

    def covariance(self, X: Tensor, mask: Tensor) -> tuple[Tensor, Pullback]:
        """Return the covariance of f at the rows of one leaf, and the function that takes gradients back to theta."""
        if X.shape[0] != 1 or not bool(mask.all()):
            raise ValueError("a general kernel takes one leaf at a time, without padding")
        parameters = self.process.trainable()
        with torch.enable_grad(), one_at_a_time():
            K = self.process.kernel(X).to_dense()
            mean = self.process.mean(X)
            noise = self.process.likelihood.noise

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
            return flatten(by_parameter, parameters).unsqueeze(0)

        # A copy: the caller adds noise in place, and autograd may have kept the matrix itself.
        return K.detach().clone(), pullback
