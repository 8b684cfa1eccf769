"""Learning the hyperparameters of a family on leaf GPs, and judging them by leave-one-out.

Every stage of a fit that tries or learns a kernel calls :func:`learn_family`;
:mod:`dsmgp.fitting.learning.optimize` does the search.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.experts.interface import LeafGPs, LeafPosterior
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.optimize import TOLERANCE, SearchResult, maximise_evidence
from dsmgp.gp.leaf_kernels import MetricKernel, StationaryKernel
from dsmgp.gp.process import Family
from dsmgp.tree.nodes import Node

__all__ = [
    "SCALE_ROWS",
    "TRIAL_ITERATIONS",
    "TRIAL_TOLERANCE",
    "is_stationary",
    "learn_each_family",
    "learn_family",
    "learn_on_trial",
    "length_scales",
    "loo_posterior",
]

logger = logging.getLogger("dsmgp")

#: Rows that the prior of a leaf's scale is worth while hyperparameters are learned.
SCALE_ROWS = 5.0
# A trial need not end far closer to its optimum than candidates are apart.
TRIAL_ITERATIONS, TRIAL_TOLERANCE = 30, 1e-4


def learn_family(
    gps: LeafGPs,
    family: Family,
    context: FitContext,
    *,
    max_iter: int | None = None,
    tolerance: float = TOLERANCE,
    tree: Node | None = None,
) -> tuple[Family, list[SearchResult]]:
    """Learn the hyperparameters of a family that maximise the evidence of leaves.

    Parameters
    ----------
    gps : LeafGPs
        The leaves; their kernels are replaced by the family's.
    family : Family
        Where the search starts.
    max_iter : int, optional
        Most iterations, besides the user's limit.
    tree : Node, optional
        The tree whose leaves they are, to maximise its evidence instead of the sum over leaves.

    Returns
    -------
    family : Family
        At the hyperparameters that were learned.
    searches : list of SearchResult
        One per output, or one for all outputs of a tree.
    """
    config = context.config
    assert config.optimizer is not None
    gps = gps.with_kernels(family.leaf_kernels)
    # A leaf's own scale would scale its known noise too.
    local_scale = config.local_scale and tree is None and is_stationary(family)
    local_scale = local_scale and gps.data.known_noise is None
    processes, searches = maximise_evidence(
        tree,
        gps,
        family.processes,
        optimizer=config.optimizer,
        rng=context.rng,
        max_iter=min((n for n in (config.max_iter, max_iter) if n is not None), default=None),
        tolerance=tolerance,
        n_restarts=config.n_restarts,
        scale_rows=SCALE_ROWS if local_scale else None,
        recorded=context.recorded,
    )
    if local_scale:
        # With scales of their own, leaves do not determine the common scale: set it to what fits all leaves best.
        factors = gps.mean_squares([process.kernel_parameters() for process in processes])
        for k, factor in enumerate(factors):
            if not (np.isfinite(factor) and factor > 0):
                continue
            rescaled = processes[k].rescaled(float(factor))
            if rescaled is None:
                logger.info("the common scale %.4g was not applied: it is held fixed", factor)
            else:
                processes[k] = rescaled
    return family.with_processes(processes), searches


def learn_each_family(
    gps: LeafGPs,
    families: Sequence[Family],
    context: FitContext,
    *,
    max_iter: int | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[list[Family], list[SearchResult]]:
    """Learn families one after the other on the same leaves, each as :func:`learn_family` does.

    Parameters
    ----------
    gps : LeafGPs
        Their kernels are replaced by each family's.
    families : sequence of Family
        Where searches start.
    context : FitContext
    max_iter : int, optional
        Most iterations of each search, besides the user's limit.
    tolerance : float

    Returns
    -------
    families : list of Family
    searches : list of SearchResult
        One for each family and output.
    """
    learned, searches = [], []
    for start in families:
        family, of_family = learn_family(
            gps, start, context, max_iter=max_iter, tolerance=tolerance
        )
        learned.append(family)
        searches += of_family
    return learned, searches


def learn_on_trial(
    gps: LeafGPs, family: Family, context: FitContext, max_iter: int = TRIAL_ITERATIONS
) -> tuple[Family, list[SearchResult]]:
    """Learn a candidate as exactly as candidates have to be compared."""
    return learn_family(gps, family, context, max_iter=max_iter, tolerance=TRIAL_TOLERANCE)


def loo_posterior(gps: LeafGPs, family: Family) -> LeafPosterior:
    """Condition leaves under a family's kernels and leave out each of their rows."""
    gps = gps.with_kernels(family.leaf_kernels)
    rows = np.unique(gps.leaf_rows.flat)
    return gps.condition(family.kernel_parameters, 0, True, rows)


def is_stationary(family: Family) -> bool:
    """Return whether all outputs of a family have stationary kernels in closed form."""
    stationary = (StationaryKernel, MetricKernel)
    return all(isinstance(kernel, stationary) for kernel in family.leaf_kernels)


def length_scales(family: Family, unit: Array) -> Array:
    """Return the distance along each input over which the function changes, (n_dims,), in the user's units.

    Several outputs change together where the most wiggly of them does. Kernels without length scales give
    ``unit``, which is what the leaf GPs see as one.
    """
    kernels = family.leaf_kernels
    if not all(isinstance(kernel, StationaryKernel) for kernel in kernels):
        return unit
    rates = np.full((len(kernels), len(unit)), 1e-3)  # of an input that the kernel does not use
    for row, (vector, kernel) in enumerate(zip(family.kernel_parameters, kernels, strict=True)):
        assert isinstance(kernel, StationaryKernel)
        scales = vector[: len(kernel.columns)]
        rates[row, list(kernel.columns)] = np.maximum(1.0 / scales, 1e-3)
    largest = rates.max(axis=0)  # squares of very large rates would overflow
    return np.asarray(unit / largest / np.sqrt(np.square(rates / largest).mean(axis=0)))
