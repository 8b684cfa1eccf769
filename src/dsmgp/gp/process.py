"""The GP prior that leaves share: mean, kernel and Gaussian noise, with hyperparameters as vectors.

Two vectors describe the hyperparameters of a :class:`Process`:

* ``theta``, unconstrained, which is optimised;
* ``kernel_parameters``, the numbers that the covariance of a leaf is computed from (:mod:`dsmgp.gp.terms`). Leaves return
  their gradients in these, and :meth:`Process.pull_back` takes the sum over leaves back to ``theta`` in one step.

:class:`~dsmgp.gp.named_process.NamedProcess` is the process of named kernels and means, in NumPy. GPyTorch
modules that users pass in are adapted to the same interface by
:class:`dsmgp.gp.gpytorch_process.GPyTorchProcess`. Processes are immutable.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.machine import require_torch
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.leaf_kernels import MEANS, LeafKernel
from dsmgp.gp.named_process import ParameterBlock, build_named_process
from dsmgp.gp.terms import NAMED_KERNELS, kernel_parts

__all__ = [
    "NOISE_FLOOR",
    "SINGLE_NOISE_FLOOR",
    "Family",
    "Process",
    "build_process",
    "kernels_by_leaf",
    "parameters_by_leaf",
]

# Least noise variance relative to the variance of the output: duplicate inputs then still give a matrix that can be
# factorised.
NOISE_FLOOR = 1e-6
# The same in single precision: with less, predictions of a smooth kernel are wrong by a standard deviation and more
# (docs/numerics.md).
SINGLE_NOISE_FLOOR = 1e-4
START_NOISE = 0.1


class Process(Protocol):
    """Mean, kernel and Gaussian noise of a leaf at their hyperparameters; immutable.

    Methods that take a ``theta`` evaluate at it, at one vector (n_parameters,) or a table of them (n,
    n_parameters), and return results for each row; they do not depend on the process's own.

    Attributes
    ----------
    theta : ndarray of shape (n_parameters,)
        Unconstrained hyperparameters.
    leaf_kernel : LeafKernel
        What computes the covariance of a leaf.
    """

    @property
    def theta(self) -> Array: ...

    @property
    def leaf_kernel(self) -> LeafKernel: ...

    @property
    def names(self) -> list[str]:
        """The name of each entry of theta: "noise", "mean", or that of the kernel's parameter ("lengthscale", ...)."""

    @property
    def noise(self) -> float:
        """Noise variance."""

    @property
    def kernel(self) -> Any:
        """The kernel with its hyperparameters, in a readable form: a :class:`~dsmgp.gp.kernels.Kernel` or GPyTorch's."""

    def with_theta(self, theta: Array) -> Process:
        """Return the same process at other hyperparameters."""

    def kernel_parameters(self, theta: Array | None = None) -> Array:
        """Return the kernel parameters, by default at the process's own theta, (..., n_kernel_parameters)."""

    def pull_back(self, theta: Array, gradient: Array) -> Array:
        """Return gradients by theta of functions, given those by the kernel parameters."""

    def noise_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """Return noise variances, and their gradients by theta."""

    def log_prior(self, theta: Array) -> tuple[Array, Array]:
        """Return the log density of the priors, and its gradients by theta."""

    def has_prior(self, columns: Index) -> bool:
        """Whether any prior depends on any of these entries of theta."""

    def rescaled(self, factor: float) -> Process | None:
        """Return the process with signal and noise variance multiplied by a factor; noise stays above its floor.

        None if a parameter is fixed, or a constraint forbids its new value.
        """


@dataclass(frozen=True)
class Family:
    """The GP prior that the leaves of some partitions share; immutable.

    Attributes
    ----------
    kernel : str
        Its name.
    processes : tuple of Process
        One per output.
    """

    kernel: str
    processes: tuple[Process, ...]

    def with_processes(self, processes: Iterable[Process]) -> Family:
        """Return the same kernel with other processes, such as learned ones."""
        return Family(self.kernel, tuple(processes))

    @property
    def leaf_kernels(self) -> list[LeafKernel]:
        """The kernel of each output."""
        return [process.leaf_kernel for process in self.processes]

    @property
    def kernel_parameters(self) -> list[Array]:
        """The kernel parameters of each output."""
        return [process.kernel_parameters() for process in self.processes]


def kernels_by_leaf(families: Sequence[Family], family: Index) -> list[list[LeafKernel]]:
    """Return the kernels by output and leaf; ``family`` (n_leaves,) is the number of each leaf's family."""
    by_output = zip(*(each.leaf_kernels for each in families), strict=True)
    return [[by_family[f] for f in family.tolist()] for by_family in by_output]


def parameters_by_leaf(families: Sequence[Family], family: Index) -> list[Array]:
    """Return kernel parameters by output: a vector for all leaves, or a row for each if there are several families."""
    by_output = zip(*(each.kernel_parameters for each in families), strict=True)
    return [each[0] if len(each) == 1 else np.stack(each)[family] for each in by_output]


def build_process(
    kernel: Any,
    mean: Any,
    noise_variance: float | None,
    n_dims: int,
    noise_floor: float = NOISE_FLOOR,
    spread: ArrayLike | None = None,
    variance: float = 1.0,
    periods: Array | None = None,
    ties: tuple[int, ...] | None = None,
    priors: bool = True,
) -> Process:
    """Build a process from names, or from GPyTorch modules, which are copied, never changed.

    Parameters
    ----------
    kernel : str, Kernel, or gpytorch.kernels.Kernel
        A name, a sum of names such as "matern32+periodic", a kernel with values, or a module.
    mean : str or gpytorch.means.Mean
    noise_variance : float, optional
        Where learning starts.
    n_dims : int
    noise_floor : float
        Least noise variance, relative to ``variance``.
    spread : array-like of shape (n_dims,), optional
        Standard deviation of each input, the unit of its length scale; all ones where they are standardised.
    variance : float
        Variance of the output, at which output scales start.
    periods : ndarray of shape (n_dims,), optional
        Where the periods of "periodic" start.
    ties : tuple of int, optional
        Of named kernels, which inputs share a length scale: see :class:`~dsmgp.gp.named_process.NamedProcess`.
    priors : bool
        Whether named kernels have log-normal priors on their hyperparameters; modules keep their own in any case.

    Examples
    --------
    >>> process = build_process("matern52", "zero", 0.01, n_dims=3)
    >>> round(process.noise, 6), len(process.theta)
    (0.01, 5)
    """
    start = START_NOISE * variance if noise_variance is None else noise_variance
    number = isinstance(start, numbers.Real) and not isinstance(start, bool)
    if not number or not (math.isfinite(start) and start > 0):
        raise InputError(f"expected noise_variance to be a positive number, got {noise_variance!r}")
    # A user who passes less noise than the floor means it.
    noise = ParameterBlock("noise", 1, lower=min(noise_floor * variance, 0.5 * float(start)))
    units = np.ones(n_dims) if spread is None else np.asarray(spread, dtype=np.float64)
    if _is_named(kernel, mean):
        named = build_named_process(
            kernel, mean, noise, float(start), units, variance, periods, ties
        )
        return named if priors else named.without_priors()
    require_torch("a gpytorch kernel or mean")
    from dsmgp.gp.gpytorch_process import build_gpytorch_process

    return build_gpytorch_process(kernel, mean, noise, float(start), units, variance, periods)


def _is_named(kernel: Any, mean: Any) -> bool:
    """Whether kernel and mean are named; raises ValueError for anything but names, kernels with values and GPyTorch's modules."""
    if isinstance(kernel, str):
        kernel_parts(kernel)
    elif not isinstance(kernel, Kernel) and not _from_gpytorch(kernel, "kernels"):
        raise InputError(
            f"expected kernel to be one of {', '.join(map(repr, NAMED_KERNELS))}, a sum of them, the kernel_ of a model, "
            f"or a gpytorch kernel, got {kernel!r}"
        )
    if isinstance(mean, str):
        if mean not in MEANS:
            raise InputError(
                f"unknown mean {mean!r}: expected one of {', '.join(map(repr, MEANS))}, "
                "or a gpytorch mean"
            )
    elif not _from_gpytorch(mean, "means"):
        raise InputError(
            f"expected mean to be one of {', '.join(map(repr, MEANS))} or a gpytorch mean, got {mean!r}"
        )
    return isinstance(kernel, (str, Kernel)) and isinstance(mean, str)


def _from_gpytorch(value: Any, package: str) -> bool:
    """Whether a value is of a class in a package of GPyTorch, or derived from one; GPyTorch need not be installed."""
    home = f"gpytorch.{package}."
    return any(cls.__module__.startswith(home) for cls in type(value).__mro__)
