"""Hyperparameters that differ from leaf to leaf, for fine-tuning: one row of theta per leaf.

:class:`Thetas` maps tables of theta, for many leaves at once, to kernel parameters, noise and priors, with gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp.gp.autograd import AutogradKernel
from dsmgp.gp.process import Process
from dsmgp.linalg.threads import uninterrupted

__all__ = ["Thetas", "parameter_names"]


def parameter_names(process: Process) -> list[str]:
    """Return the name of each entry of theta: "noise", "mean", or that of the kernel's parameter ("lengthscale", ...)."""
    names = []
    for name, parameter in process.named_parameters():
        if parameter.requires_grad:
            part, last = name.split(".")[0], name.split(".")[-1].removeprefix("raw_")
            names += [{"mean": "mean", "likelihood": "noise"}.get(part, last)] * parameter.numel()
    return names


class Thetas:
    """Tables of theta for one output: the row of a leaf holds parameters of the process of its family.

    Methods take the numbers of n leaves and their rows of theta, (n, n_parameters).

    Parameters
    ----------
    processes : sequence of Process
        One per family, all with the same parameters. They are copied.
    family : ndarray of shape (n_leaves,)
        Family of each leaf.
    n_dims : int
    """

    def __init__(self, processes: Sequence[Process], family: Index, n_dims: int) -> None:
        self.processes = [copy.deepcopy(process) for process in processes]
        self.family = family
        self.leaf_kernels = [process.leaf_kernel(n_dims) for process in self.processes]
        self.names = parameter_names(self.processes[0])
        self._priors_vectorise = True
        if any(parameter_names(process) != self.names for process in self.processes[1:]):
            raise ValueError("leaves with kernels of different parameters cannot be tuned together")
        for process in self.processes:
            for _, _, prior, _, _ in process.named_priors():
                # Values cannot be validated for many rows at once, and the constraints keep them valid.
                for distribution in (prior, getattr(prior, "base_dist", None)):
                    if distribution is not None:
                        distribution._validate_args = False

    def start(self) -> Array:
        """Return the theta of each leaf's family, (n_leaves, n_parameters)."""
        return np.stack([process.theta.numpy() for process in self.processes])[self.family]

    def kernel_parameters(self, leaf: Index, theta: Array) -> Array:
        """Return kernel parameters, (n, n_kernel_parameters)."""
        return self._by_family(leaf, theta, lambda *of: (self._kernel_parameters(*of),))[0]

    def pull_back(self, leaf: Index, theta: Array, gradient: Array) -> Array:
        """Return gradients by theta of functions, given those by the kernel parameters."""

        def work(family: int, rows: Tensor, by_vector: Tensor) -> tuple[Tensor]:
            rows = rows.requires_grad_()
            vectors = self._kernel_parameters(family, rows)
            return (torch.autograd.grad(vectors, rows, by_vector)[0],)

        return self._by_family(leaf, theta, work, gradient)[0]

    def noise(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Return noise variances (n,), and their gradients by theta (n, n_parameters)."""
        return self._with_gradient(leaf, theta, lambda process: process.likelihood.noise.sum())

    def log_prior(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Return the log density of the priors (n,), and its gradients by theta (n, n_parameters)."""
        if self._priors_vectorise:
            try:
                return self._with_gradient(leaf, theta, Process.prior_log_density)
            except RuntimeError as error:
                if "vmap" not in str(error):
                    raise
                # The prior branches on its values: one leaf at a time.
                self._priors_vectorise = False
        values, gradients = np.zeros(len(leaf)), np.zeros(theta.shape)
        for k, (number, row) in enumerate(zip(leaf.tolist(), theta, strict=True)):
            process = self.processes[self.family[number]]
            process.theta = torch.from_numpy(row.copy())
            values[k], gradient = process.log_prior()
            gradients[k] = gradient.numpy()
        return values, gradients

    def has_prior(self, columns: Index) -> bool:
        """Whether any prior depends on any of these entries of theta."""
        for process in self.processes:
            density = process.prior_log_density()
            if not density.requires_grad:
                continue
            parameters = process.trainable()
            gradients = torch.autograd.grad(density, parameters, allow_unused=True)
            depends = [
                np.full(p.numel(), g is not None)
                for p, g in zip(parameters, gradients, strict=True)
            ]
            if np.concatenate(depends)[columns].any():
                return True
        return False

    def _kernel_parameters(self, family: int, rows: Tensor) -> Tensor:
        leaf_kernel = self.leaf_kernels[family]
        if isinstance(leaf_kernel, AutogradKernel):
            return rows
        return _evaluate(self.processes[family], lambda p: p.kernel_parameters(leaf_kernel), rows)

    def _with_gradient(
        self, leaf: Index, theta: Array, function: Callable[[Process], Tensor]
    ) -> tuple[Array, Array]:
        """Return a scalar function of the process of each leaf (n,), and its gradient by theta (n, n_parameters)."""

        def work(family: int, rows: Tensor) -> tuple[Tensor, Tensor]:
            rows = rows.requires_grad_()
            values = _evaluate(self.processes[family], function, rows)
            if not values.requires_grad:  # it depends on fixed parameters only
                return values, torch.zeros_like(rows)
            return values.detach(), torch.autograd.grad(values.sum(), rows)[0]

        values, gradients = self._by_family(leaf, theta, work)
        return values, gradients

    def _by_family(
        self, leaf: Index, theta: Array, work: Callable[..., tuple[Tensor, ...]], *tables: Array
    ) -> list[Array]:
        """Apply ``work(family, rows of theta, rows of tables)`` to each family, and put the results together."""
        family, results, places = self.family[leaf], [], []
        for number in np.unique(family).tolist():
            where = np.flatnonzero(family == number)
            rows = [torch.from_numpy(np.ascontiguousarray(t[where])) for t in (theta, *tables)]
            results.append(work(number, *rows))
            places.append(where)
        order = torch.from_numpy(np.argsort(np.concatenate(places)))
        return [torch.cat(parts).detach()[order].numpy() for parts in zip(*results, strict=True)]


class _FunctionOfProcess(torch.nn.Module):
    """A function of a process, as a module without arguments: ``functional_call`` takes modules."""

    def __init__(self, process: Process, function: Callable[[Process], Tensor]) -> None:
        super().__init__()
        self.process, self.function = process, function

    def forward(self) -> Tensor:
        return self.function(self.process)


def _evaluate(process: Process, function: Callable[[Process], Tensor], theta: Tensor) -> Tensor:
    """Evaluate a function of a process at each row of theta, (rows, ...); differentiable."""
    module = _FunctionOfProcess(process, function)
    parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]

    def of_row(row: Tensor) -> Tensor:
        parts = torch.split(row, [p.numel() for _, p in parameters])
        values = {
            name: part.reshape(p.shape) for (name, p), part in zip(parameters, parts, strict=True)
        }
        return torch.func.functional_call(module, values, ())

    # An interrupt inside vmap would leave its stack of levels wrong, and every later call would fail.
    results: Tensor = uninterrupted(lambda: torch.func.vmap(of_row)(theta))
    return results
