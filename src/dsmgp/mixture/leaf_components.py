"""Predictions of y by leaves in this process, with low-rank variances where these are accurate enough for the mixture.

Many rows are predicted leaf by leaf on all cores, few rows in compiled calls on the calling thread.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array
from dsmgp.experts.leaf_bases import MadeBases
from dsmgp.experts.loo import Components
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.mixture.fitted_mixture import FittedMixture
from dsmgp.mixture.variance_error import leaf_tolerances, leaves_beyond_limit
from dsmgp.tree.routing import Routes

__all__ = ["few_components", "low_rank_components"]


def low_rank_components(
    model: FittedMixture, posterior: InMemoryLeafPosterior, routes: Routes, Z: Array
) -> Components:
    """Return predictions with low-rank variances; exact ones of leaves where the mixture would err by more than its limit.

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
    made = posterior.prepare(routes.leaf, routes.rows.sizes, False, partial(leaf_tolerances, model))
    mean, variance = posterior.predict(routes, Z, True, made.of_leaf)
    variance += posterior.noise[leaf]
    components = Components.of_pairs(len(Z), leaf, row, mean, variance)
    rows, places = np.nonzero(_inexact(model, posterior, components, made))
    if len(rows):
        leaf = components.leaf[rows, places]
        by_leaf = np.argsort(leaf, kind="stable")
        leaf, rows, places = leaf[by_leaf], rows[by_leaf], places[by_leaf]
        _, exact = posterior.predict(Routes.of(leaf, rows), Z)
        components.variance[rows, places] = exact + posterior.noise[leaf]
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
    made = None
    if low_rank:
        reached, n_rows = np.unique(leaves[leaves >= 0], return_counts=True)
        made = posterior.prepare(reached, n_rows, True, partial(leaf_tolerances, model))
    bases = None if made is None else made.of_leaf
    found = posterior.predict_few(leaves, Z, with_variance, bases)
    if found is None:
        return None
    mean, variance = found
    if not with_variance:
        return Components(leaves, mean, variance)
    noise = np.where(leaves[:, :, None] >= 0, posterior.noise[leaves], 0.0)
    components = Components(leaves, mean, variance + noise)
    if made is None:
        return components
    inexact = _inexact(model, posterior, components, made)
    if inexact.any():
        exact = posterior.predict_few(np.where(inexact, leaves, -1), Z, True, None)
        if exact is None:
            return None
        components.variance[inexact] = exact[1][inexact] + noise[inexact]
    return components


def _inexact(
    model: FittedMixture, posterior: InMemoryLeafPosterior, components: Components, made: MadeBases
) -> NDArray[np.bool_]:
    """Low-rank variances, (n, n_components), that have to be exact for the mixture to be within its limit."""
    errors = components.of_leaves(made.errors, 0.0)
    low_rank = errors[:, :, 1] > 0.0
    if not low_rank.any():
        return low_rank
    beyond = leaves_beyond_limit(model, components, errors)
    posterior.bases.review(components.leaf[low_rank], components.leaf[beyond])
    return beyond
