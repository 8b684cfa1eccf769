"""Learning a linear map of the inputs by the evidence of leaf GPs.

Length scales weigh inputs one by one. Where a function varies along other directions than the axes, such as a sum of inputs, a full matrix
finds them; trees and kernels then work in its coordinates.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_family
from dsmgp.fitting.learning.optimize import TOLERANCE
from dsmgp.gp.metric_process import metric_directions, metric_process, principal_directions
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import Family, Process

__all__ = ["learn_metric"]


def learn_metric(
    gps: LeafGPs,
    family: Family,
    context: FitContext,
    *,
    rank: int,
    max_iter: int | None = None,
    tolerance: float = TOLERANCE,
) -> Array:
    """Learn a linear map A of the inputs that maximises the evidence of leaves.

    The kernel is ``outputscale * k(|A' (x - x')|^2)`` with a full matrix A, a stationary kernel under a general Mahalanobis distance
    (Vivarelli & Williams 1998). The search starts from the hyperparameters of a family, with ``A = diag(1 / lengthscale)``, and
    learns output scale, mean and noise along with A. The evidence depends on ``A A'`` only, so that A is known up to a rotation;
    the one with orthogonal columns is returned.

    Each output has an A of its own. Their squares ``A A'`` are in the same units, those of the inputs, and are averaged.

    Parameters
    ----------
    gps : LeafGPs
        The leaves, on standardised inputs; their kernels are replaced.
    family : Family
        Learned, with the same stationary ARD kernel in each output.
    context : FitContext
    rank : int
        Columns of A.
    max_iter : int, optional
        Most iterations, besides the user's limit.
    tolerance : float
        Of the optimiser: see :data:`~dsmgp.fitting.learning.optimize.TOLERANCE`.

    Returns
    -------
    metric : ndarray of shape (n_inputs, rank)
        Orthogonal columns, from the most important direction on; a column's length is the inverse length scale along it.
        In the coordinates ``X @ metric`` all length scales are about one.

    References
    ----------
    F. Vivarelli and C. K. I. Williams (1998). Discovering hidden features with Gaussian processes regression. Advances in
    Neural Information Processing Systems 11.
    """
    start = family.with_processes(_with_metric(process, rank) for process in family.processes)
    # A random step from the length scales is no start for a matrix.
    context = replace(context, config=replace(context.config, n_restarts=0))
    learned, _ = learn_family(gps, start, context, max_iter=max_iter, tolerance=tolerance)
    metrics = [_metric(process) for process in learned.processes]
    # Side by side, matrices A have the square A A' that is the sum of theirs.
    root = principal_directions(np.hstack(metrics) / math.sqrt(len(metrics)))
    return root[:, :rank]


def _with_metric(process: Process, rank: int) -> Process:
    if not isinstance(process, NamedProcess):
        raise InputError(f"expected a named kernel and mean, got {type(process).__name__}")
    return metric_process(process, rank)


def _metric(process: Process) -> Array:
    assert isinstance(process, NamedProcess)
    return metric_directions(process)
