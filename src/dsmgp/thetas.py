"""Hyperparameters that differ from leaf to leaf: a table of theta for one output, and what leaves read off it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.general import General
from dsmgp.process import Process
from dsmgp.stationary import Stationary

__all__ = ["Thetas", "parameter_names"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def parameter_names(process: Process) -> list[str]:
    """For each entry of theta the name by which it is tuned: "noise", "mean", or the kernel's own
    ("lengthscale", ...)."""
    found = []
    for name, parameter in process.named_parameters():
        if parameter.requires_grad:
            part, last = name.split(".")[0], name.split(".")[-1].removeprefix("raw_")
            found += [last if part == "kernel" else _OUTSIDE[part]] * parameter.numel()
    return found


_OUTSIDE = {"mean": "mean", "likelihood": "noise"}


class Thetas:
    """How tables of theta are read, for one output: leaf k's row belongs to the process of its family.

    Parameters
    ----------
    processes : sequence of Process
        One per family, all with as many parameters. They are copied.
    family : ndarray of shape (n_leaves,)
    n_dims : int
    """

    def __init__(self, processes: Sequence[Process], family: Index, n_dims: int) -> None:
        self.processes = [copy.deepcopy(process) for process in processes]
        self.family = family
        self.laws = [process.law(n_dims) for process in self.processes]
        self.names = parameter_names(self.processes[0])
        self._priors_by_rows = True
        if any(parameter_names(process) != self.names for process in self.processes[1:]):
            raise ValueError("leaves with kernels of different parameters cannot be tuned together")

    def start(self) -> Array:
        """What the families have learned, (n_leaves, n_parameters)."""
        own = [process.theta.numpy() for process in self.processes]
        return np.stack(own)[self.family]

    def naturals(self, leaf: Index, theta: Array) -> Array:
        """Hyperparameters as leaves read them, (n, n_naturals)."""
        return self._by_family(leaf, theta, lambda f, own: (self._natural(f, own),))[0].numpy()

    def pull_back(self, leaf: Index, theta: Array, gradient: Array) -> Array:
        """Gradients by theta of functions whose gradients by the naturals are given."""

        def work(f: int, own: Tensor, by: Tensor) -> tuple[Tensor]:
            own = own.requires_grad_()
            return (torch.autograd.grad(self._natural(f, own), own, by)[0],)

        return self._by_family(leaf, theta, work, gradient)[0].numpy()

    def noise(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Noise variances (n,), and their gradients by theta (n, n_parameters)."""

        def work(f: int, own: Tensor) -> tuple[Tensor, Tensor]:
            own = own.requires_grad_()
            noise = _each(_Noise(self.processes[f]), own).reshape(len(own))
            if not noise.requires_grad:  # held fixed
                return noise, torch.zeros_like(own)
            return noise.detach(), torch.autograd.grad(noise.sum(), own)[0]

        noise, by = self._by_family(leaf, theta, work)
        return noise.numpy(), by.numpy()

    def log_prior(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Log density of the priors (n,), and its gradients by theta."""
        if self._priors_by_rows:
            try:
                value, by = self._by_family(leaf, theta, self._prior)
                return value.numpy(), by.numpy()
            except RuntimeError:  # a prior that looks at its values: one leaf at a time
                self._priors_by_rows = False
        slow, by_slow = np.zeros(len(leaf)), np.zeros(theta.shape)
        for k, (number, row) in enumerate(zip(leaf.tolist(), theta, strict=True)):
            process = self.processes[self.family[number]]
            process.theta = torch.from_numpy(row.copy())
            slow[k], gradient = process.log_prior()
            by_slow[k] = gradient.numpy()
        return slow, by_slow

    def _prior(self, f: int, theta: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta.requires_grad_()
        value = _each(_Prior(self.processes[f]), theta)
        if not value.requires_grad:
            return value, torch.zeros_like(theta)
        return value.detach(), torch.autograd.grad(value.sum(), theta)[0]

    def has_prior(self, columns: Index) -> bool:
        """Whether any prior depends on any of these parameters."""
        for process in self.processes:
            terms = [
                prior.log_prob(closure(module)).sum()
                for _, module, prior, closure, _ in process.named_priors()
            ]
            total = sum(terms, torch.zeros(()))
            if not isinstance(total, Tensor) or not total.requires_grad:
                continue
            parameters = process.trainable()
            found = torch.autograd.grad(total, parameters, allow_unused=True)
            counts = [
                np.full(p.numel(), g is not None) for p, g in zip(parameters, found, strict=True)
            ]
            if np.concatenate(counts)[columns].any():
                return True
        return False

    def _natural(self, f: int, theta: Tensor) -> Tensor:
        process, law = self.processes[f], self.laws[f]
        return theta * 1.0 if isinstance(law, General) else _each(_Natural(process, law), theta)

    def _by_family(self, leaf: Index, theta: Array, work, *tables: Array) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
        """``work`` on the rows of each family, put together."""
        own, found = self.family[leaf], []
        places = list(_places(own))
        for f, where in places:
            given = [torch.from_numpy(np.ascontiguousarray(t[where])) for t in (theta, *tables)]
            found.append(work(f, *given))
        back = torch.from_numpy(np.argsort(np.concatenate([where for _, where in places])))
        return tuple(torch.cat(parts).detach()[back] for parts in zip(*found, strict=True))


def _places(own: Index) -> Iterator[tuple[int, Index]]:
    for f in np.unique(own).tolist():
        yield f, np.flatnonzero(own == f)


class _Natural(torch.nn.Module):
    def __init__(self, process: Process, law: Stationary) -> None:
        super().__init__()
        self.process, self.law = process, law

    def forward(self) -> Tensor:
        return self.process.natural(self.law)


class _Noise(torch.nn.Module):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process

    def forward(self) -> Tensor:
        return self.process.likelihood.noise


class _Prior(torch.nn.Module):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process
        for _, _, prior, _, _ in process.named_priors():
            # Checks of values cannot be made for many rows at once, and constraints see to it that they are right.
            for law in (prior, getattr(prior, "base_dist", None)):
                if law is not None:
                    law._validate_args = False

    def forward(self) -> Tensor:
        terms = [
            prior.log_prob(closure(module)).sum()
            for _, module, prior, closure, _ in self.process.named_priors()
        ]
        return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)


def _each(module: torch.nn.Module, theta: Tensor) -> Tensor:
    """What a module says with its parameters set to each row of theta, (rows, ...); differentiable."""
    own = [(name, p) for name, p in module.named_parameters() if p.requires_grad]

    def one(vector: Tensor) -> Tensor:
        parts = torch.split(vector, [p.numel() for _, p in own])
        values = {name: part.reshape(p.shape) for (name, p), part in zip(own, parts, strict=True)}
        return torch.func.functional_call(module, values, ())

    found: Tensor = torch.func.vmap(one)(theta)
    return found
