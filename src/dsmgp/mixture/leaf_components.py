"""Predictions of y by leaves in this process, with low-rank variances where these are accurate enough for the mixture.

Many rows are predicted leaf by leaf on all cores, few rows in compiled calls on the calling thread.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.experts.loo import Components
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.mixture.fitted_mixture import FittedMixture
from dsmgp.mixture.variance_error import LIMIT, leaf_tolerances, relative_error
from dsmgp.tree.routing import Routes

__all__ = ["few_components", "low_rank_components"]


def low_rank_components(
    model: FittedMixture, posterior: InMemoryLeafPosterior, routes: Routes, Z: Array
) -> Components:
    """Return predictions with low-rank variances; exact ones at rows where the mixture would err by more than its limit.

    Parameters
    ----------
    model : FittedMixture
    posterior : InMemoryLeafPosterior
    routes : Routes
        Pairs of a leaf and a row of Z.
    Z : ndarray of shape (n, n_dims)
        Rows as the leaf GPs take them.
    """
    leaf, row = routes.pairs
    posterior.prepare(
        routes.leaf, routes.rows.sizes, len(Z), False, partial(leaf_tolerances, model)
    )
    mean, variance = posterior.predict(routes, Z, True, True)
    variance += posterior.noise[leaf]
    components, errors = (
        Components.of_pairs(len(Z), leaf, row, mean, variance),
        posterior.bases.errors,
    )
    if not errors[routes.leaf].any():
        return components
    beyond = relative_error(model, components, errors) > LIMIT
    inexact = beyond[row] & (errors[leaf, 1] > 0.0)
    if inexact.any():
        _, exact = posterior.predict(routes.only(inexact), Z)
        variance[inexact] = exact + posterior.noise[leaf[inexact]]
        components = Components.of_pairs(len(Z), leaf, row, mean, variance)
    return components


def few_components(
    model: FittedMixture,
    posterior: InMemoryLeafPosterior,
    U: Array,
    Z: Array,
    with_variance: bool,
    low_rank: bool,
) -> Components | None:
    """Return predictions of few rows, by compiled calls on this thread; None if leaves do not allow that.

    Parameters
    ----------
    model : FittedMixture
    posterior : InMemoryLeafPosterior
    U, Z : ndarray of shape (n, n_dims)
        Coordinates of the rows, and what the leaf GPs take.
    with_variance, low_rank : bool
    """
    leaves = model.component_weights.relevant_leaves(U)
    if low_rank:
        reached = np.unique(leaves[leaves >= 0])
        n_rows = np.full(len(reached), len(U))
        posterior.prepare(reached, n_rows, len(U), True, partial(leaf_tolerances, model))
    found = posterior.predict_few(leaves, Z, with_variance, low_rank)
    if found is None:
        return None
    mean, variance = found
    if not with_variance:
        return Components(leaves, mean, variance)
    noise = np.where(leaves[:, :, None] >= 0, posterior.noise[leaves], 0.0)
    components = Components(leaves, mean, variance + noise)
    inexact = (leaves >= 0) & (posterior.bases.errors[leaves, 1] > 0.0)
    if not low_rank or not inexact.any():
        return components
    beyond = relative_error(model, components, posterior.bases.errors) > LIMIT
    if beyond.any():
        inexact &= beyond[:, None]
        exact = posterior.predict_few(np.where(inexact, leaves, -1), Z, True, False)
        if exact is None:
            return None
        variance = np.where(inexact[:, :, None], exact[1], variance)
        components = Components(leaves, mean, variance + noise)
    return components
