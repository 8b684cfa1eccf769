"""Processes with a linear map of the inputs, the *metric*, in place of length scales.

Learned by the evidence, the map gives the directions along which a function varies (:mod:`dsmgp.fitting.learning.metric`).
"""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.gp.leaf_kernels import MetricKernel, StationaryKernel
from dsmgp.gp.named_process import LogNormal, NamedProcess, Normal, ParameterBlock

__all__ = ["METRIC_KINDS", "metric_directions", "metric_process", "principal_directions"]

#: Kernels that a linear map of the inputs can be learned for.
METRIC_KINDS = ("rbf", "matern12", "matern32", "matern52")


def metric_process(process: NamedProcess, rank: int) -> NamedProcess:
    """Return a process that has a linear map A of the inputs in place of length scales, at the same covariance.

    The map starts at ``diag(1 / lengthscale)``, of which the ``rank`` most relevant columns are kept; with all of them the covariance is
    the same. Output scale, mean and noise keep values and priors. The entries of A are unbounded and have a normal prior around
    zero, about as wide as the prior of the length scales allows.

    Parameters
    ----------
    process : NamedProcess
        With a stationary ARD kernel of all inputs.
    rank : int
        Columns of A, from one to the number of inputs.

    Examples
    --------
    >>> from dsmgp.gp.process import build_process
    >>> process = metric_process(build_process("rbf", "zero", 0.1, n_dims=3), rank=2)
    >>> process.leaf_kernel
    MetricKernel(kind='rbf', n_inputs=3, rank=2, mean_kind='zero')
    >>> metric_directions(process).shape
    (3, 2)
    """
    kernel = process.leaf_kernel
    if not isinstance(kernel, StationaryKernel) or kernel.kind not in METRIC_KINDS:
        raise InputError(f"expected one kernel of {', '.join(METRIC_KINDS)}, got {kernel!r}")
    n_inputs = len(kernel.columns)
    if kernel.columns != tuple(range(n_inputs)):
        raise InputError(f"expected a kernel of all inputs, got one of the inputs {kernel.columns}")
    if not 1 <= rank <= n_inputs:
        raise InputError(f"expected rank between 1 and the {n_inputs} inputs, got {rank}")
    relevance = 1.0 / process.kernel_parameters()[:n_inputs]
    kept = np.sort(np.argsort(-relevance, kind="stable")[:rank])
    start = np.zeros((n_inputs, rank))
    start[kept, np.arange(rank)] = relevance[kept]
    parts = []
    for block, theta in process.parts:
        if block.name == "lengthscale":
            prior = _prior_of_metric(block, rank, process.ties)
            block = ParameterBlock("metric", start.size, "identity", prior=prior)
            theta = start.reshape(-1)
        parts.append((block, theta))
    return NamedProcess.of(MetricKernel(kernel.kind, n_inputs, rank, kernel.mean_kind), parts)


def _prior_of_metric(
    lengthscale: ParameterBlock, rank: int, ties: tuple[int, ...] | None
) -> Normal | None:
    """Return a prior for the entries of A: their scale is the inverse of a length scale one standard deviation below the median."""
    prior = lengthscale.prior
    if not isinstance(prior, LogNormal):
        return None
    rates = np.exp(prior.scale - np.broadcast_to(prior.loc, lengthscale.size))
    if ties is not None:
        rates = rates[list(ties)]
    return Normal(np.zeros(len(rates) * rank), np.repeat(rates, rank))


def metric_directions(process: NamedProcess) -> Array:
    """Return the principal directions of a learned linear map of the inputs, from the most important on, (n_inputs, rank).

    The kernel cannot tell them from the map itself: see :func:`principal_directions`.

    Parameters
    ----------
    process : NamedProcess
        With a :class:`~dsmgp.gp.leaf_kernels.MetricKernel`.
    """
    kernel = process.leaf_kernel
    if not isinstance(kernel, MetricKernel):
        raise InputError(f"expected a process of metric_process, got one with {kernel!r}")
    entries = process.kernel_parameters()[: kernel.n_inputs * kernel.rank]
    return principal_directions(entries.reshape(kernel.n_inputs, kernel.rank))


def principal_directions(A: Array) -> Array:
    """Return a matrix of the same ``A A'`` whose columns are orthogonal and in order of length.

    These are the left singular vectors times the singular values. The lengths are inverse length scales along the directions.
    """
    U, S, _ = np.linalg.svd(A, full_matrices=False)
    # The sign of a singular vector is arbitrary: make its largest entry positive.
    largest = U[np.abs(U).argmax(axis=0), np.arange(U.shape[1])]
    return np.asarray(U * (S * np.where(largest < 0.0, -1.0, 1.0)))
