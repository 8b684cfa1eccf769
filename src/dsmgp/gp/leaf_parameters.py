"""Hyperparameters that differ from leaf to leaf, for fine-tuning: one row of theta per leaf.

:class:`LeafParameters` maps tables of theta, for many leaves at once, to kernel parameters, noise and priors, with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.gp.process import Process

__all__ = ["LeafParameters"]


class LeafParameters:
    """Tables of theta for one output: the row of a leaf holds parameters of the process of its family.

    Methods take the numbers of n leaves and their rows of theta, (n, n_parameters).

    Parameters
    ----------
    processes : sequence of Process
        One per family, all with the same parameters.
    family : ndarray of shape (n_leaves,)
        Family of each leaf.
    """

    def __init__(self, processes: Sequence[Process], family: Index) -> None:
        self.processes, self.family = list(processes), family
        self.leaf_kernels = [process.leaf_kernel for process in self.processes]
        self.names = self.processes[0].names
        if any(process.names != self.names for process in self.processes[1:]):
            raise InputError("leaves with kernels of different parameters cannot be tuned together")

    def start(self) -> Array:
        """Return the theta of each leaf's family, (n_leaves, n_parameters)."""
        return np.stack([process.theta for process in self.processes])[self.family]

    def kernel_parameters(self, leaf: Index, theta: Array) -> Array:
        """Return kernel parameters, (n, n_kernel_parameters)."""
        return self._by_family(leaf, lambda p, rows: (p.kernel_parameters(theta[rows]),))[0]

    def pull_back(self, leaf: Index, theta: Array, gradient: Array) -> Array:
        """Return gradients by theta of functions, given those by the kernel parameters."""
        return self._by_family(leaf, lambda p, rows: (p.pull_back(theta[rows], gradient[rows]),))[0]

    def noise(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Return noise variances (n,), and their gradients by theta (n, n_parameters)."""
        values, gradients = self._by_family(leaf, lambda p, rows: p.noise_and_gradient(theta[rows]))
        return values, gradients

    def log_prior(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Return the log density of the priors (n,), and its gradients by theta (n, n_parameters)."""
        values, gradients = self._by_family(leaf, lambda p, rows: p.log_prior(theta[rows]))
        return values, gradients

    def has_prior(self, columns: Index) -> bool:
        """Whether any prior depends on any of these entries of theta."""
        return any(process.has_prior(columns) for process in self.processes)

    def _by_family(
        self, leaf: Index, evaluate: Callable[[Process, Index], tuple[Array, ...]]
    ) -> list[Array]:
        """Evaluate the process of each family at the rows of its leaves, and put the results together."""
        family = self.family[leaf]
        places = [np.flatnonzero(family == number) for number in np.unique(family)]
        results = [
            evaluate(self.processes[number], rows)
            for number, rows in zip(np.unique(family).tolist(), places, strict=True)
        ]
        order = np.argsort(np.concatenate(places))
        return [np.concatenate(parts)[order] for parts in zip(*results, strict=True)]
