"""Learning the hyperparameters of several kernels, between which every leaf has a sum node.

Each kernel first learns on all leaves. Then all go on together, on the sum over leaves of the log of the
average of their evidences: a kernel's gradient counts a leaf by the kernel's posterior probability there, so
that each learns from the regions it explains best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from dsmgp._util.errors import InputError
from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_each_family
from dsmgp.fitting.learning.optimize import TOLERANCE, Objective, SearchResult, Vector, maximise
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.process import Family, Process
from dsmgp.linalg.threads import one_thread

__all__ = ["build_kernels", "kernels_objective", "learn_kernels"]


def build_kernels(kernels: Sequence[Any], data: ScaledRows, config: FitConfig) -> list[Family]:
    """Build a family for each of some kernels, all with as many hyperparameters, as leaves keep them in one table."""
    families = [build_family(kernel, data, config) for kernel in kernels]
    counts = [len(family.processes[0].kernel_parameters()) for family in families]
    if len(set(counts)) > 1:
        described = ", ".join(
            f"{f.kernel!r} has {n}" for f, n in zip(families, counts, strict=True)
        )
        raise InputError(
            f"expected a list of kernels with as many hyperparameters each, such as 'rbf' and 'matern32'; {described}"
        )
    return families


def learn_kernels(
    gps: LeafGPs,
    families: Sequence[Family],
    context: FitContext,
    *,
    max_iter: int | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[list[Family], list[SearchResult]]:
    """Learn the hyperparameters of families; one family as :func:`~dsmgp.fitting.learning.family.learn_family` does.

    Returns
    -------
    families : list of Family
    searches : list of SearchResult
        One for each family and output, and the one for all together if there are several families.
    """
    learned, searches = learn_each_family(
        gps, families, context, max_iter=max_iter, tolerance=tolerance
    )
    config = context.config
    # With scales of their own, leaves have other evidences than those that weigh kernels.
    if len(learned) == 1 or config.local_scale:
        return learned, searches
    assert config.optimizer is not None
    processes = [process for family in learned for process in family.processes]
    start = np.concatenate([process.theta for process in processes])
    objective = context.recorded(kernels_objective(gps, learned))
    limits = [n for n in (config.max_iter, max_iter) if n is not None]
    with one_thread():
        best = maximise(
            objective,
            start,
            gps.n_observations,
            config.optimizer,
            min(limits, default=None),
            tolerance,
        )
    # With few leaves the joint evidence may give up a kernel, whose prior then decides: all of them are to be compared.
    if np.isfinite(best.objective) and _all_matter(gps, learned, _split(best.theta, processes)):
        moved = iter(_split(best.theta, processes))
        learned = [
            family.with_processes(process.with_theta(next(moved)) for process in family.processes)
            for family in learned
        ]
    return learned, [*searches, best]


def _all_matter(gps: LeafGPs, families: Sequence[Family], thetas: Sequence[Vector]) -> bool:
    """Return whether every kernel has the posterior weight of a leaf, summed over the leaves."""
    evidences = []
    for number, family in enumerate(families):
        own = thetas[number * len(family.processes) : (number + 1) * len(family.processes)]
        pairs = zip(family.processes, own, strict=True)
        parameters = [process.kernel_parameters(theta) for process, theta in pairs]
        of_family = gps.with_kernels(family.leaf_kernels)
        evidences.append(of_family.log_evidence(parameters).sum(axis=1))
    by_family = np.stack(evidences)  # (families, leaves)
    shares = np.exp(by_family - np.logaddexp.reduce(by_family, axis=0))
    return bool(shares.sum(axis=1).min() >= 1.0)


def kernels_objective(gps: LeafGPs, families: Sequence[Family]) -> Objective:
    """Return the log evidence of leaves that are sums over kernels plus log priors, with gradient, as a function of all thetas.

    Thetas are concatenated by family and, within a family, by output.
    """
    by_family = [list(family.processes) for family in families]
    leaf_gps = [gps.with_kernels(family.leaf_kernels) for family in families]
    processes = [process for own in by_family for process in own]

    def objective(theta: Vector) -> tuple[float, Vector]:
        nothing = -np.inf, np.zeros_like(theta)
        parts = _split(theta, processes)
        evidences, gradients = [], []
        for number, (own, of_leaves) in enumerate(zip(by_family, leaf_gps, strict=True)):
            thetas = parts[number * len(own) : (number + 1) * len(own)]
            parameters = [p.kernel_parameters(t) for p, t in zip(own, thetas, strict=True)]
            if not all(np.isfinite(vector).all() for vector in parameters):
                return nothing
            evidence, gradient = of_leaves.log_evidence_and_gradient(parameters)
            if not np.isfinite(evidence).all() or not all(np.isfinite(g).all() for g in gradient):
                return nothing
            evidences.append(evidence.sum(axis=1))
            gradients += gradient
        table = np.stack(evidences)  # (families, leaves)
        total = logsumexp(table, axis=0)
        shares = np.exp(table - total)
        value = float(total.sum()) - table.shape[1] * math.log(len(table))
        by_theta = []
        for k, (process, part) in enumerate(zip(processes, parts, strict=True)):
            share = shares[k // len(by_family[0])]
            log_prior, by_prior = process.log_prior(part)
            value += float(log_prior)
            by_theta.append(process.pull_back(part, share @ gradients[k]) + by_prior)
        return value, np.concatenate(by_theta)

    return objective


def _split(theta: Vector, processes: Sequence[Process]) -> list[Vector]:
    return np.split(theta, np.cumsum([len(process.theta) for process in processes])[:-1])
