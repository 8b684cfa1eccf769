"""Online updates: functions that take a fitted state and return one with rows added or removed, or reviewed.

Added and removed rows change the leaves that they reach; tree, scaling, hyperparameters and gate stay. After many
changes maintenance is due: a *review* cuts leaves that have outgrown their size and fits scales and gate again, and
in the end everything is fitted again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.validation import check_in_range
from dsmgp.experts.online.posterior import OnlineLeafPosterior
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.family import length_scales
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.mixture.edges import range_of
from dsmgp.tree.nodes import Leaf, Node, Product, leaves, map_leaves
from dsmgp.tree.routing import Routes

__all__ = ["add_rows", "remove_rows", "review", "update"]

logger = logging.getLogger("dsmgp")

# A leaf is cut when it holds this many times the rows of the largest leaf of its partition.
OUTGROWN = 1.5
# Factors of updated leaves may take this share of the memory of all others; beyond it all leaves are reconditioned.
ONLINE_SHARE = 0.5


def update(
    state: FittedState,
    n_rows: int,
    change: Callable[[FittedState, slice], FittedState],
    config: FitConfig,
    refit: Callable[[FittedState], FittedState] | None,
) -> FittedState:
    """Apply a change to all rows, and perform maintenance whenever it is due.

    Parameters
    ----------
    state : FittedState
    n_rows : int
        Rows to add or remove.
    change : callable
        Adds or removes a slice of these rows.
    config : FitConfig
    refit : callable or None
        Fits a model to the rows of a state; None if no maintenance is wanted.
    """
    first, steps = 0, []

    def maintain(state: FittedState) -> FittedState:
        assert refit is not None
        if state.fit_is_due:
            lost = "" if state.mixture.thetas is None else ", without what was fine-tuned"
            state = refit(state)
            steps.append(f"fitted again on {len(state.rows)} rows{lost}")
        else:
            state, n_cut = review(state, config, config.generator())
            steps.append(f"scales and gate fitted again, {n_cut} leaves cut")
        logger.info("%s", steps[-1])
        return state

    if refit is not None and state.review_is_overdue:
        state = maintain(state)
    while first < n_rows:
        last = n_rows if refit is None else min(n_rows, first + state.until_review)
        state = change(state, slice(first, last))
        first = last
        if refit is not None and state.review_is_due:
            state = maintain(state)
    return replace(state, maintenance=tuple(steps))


def add_rows(state: FittedState, new: TrainingRows) -> FittedState:
    """Add training rows."""
    if state.alternatives:
        return state.with_members([add_rows(each, new) for each in state.members])
    model, known_noise = state.mixture, new.noise
    if known_noise is not None:
        known_noise = model.outputs.noise_to_experts(known_noise)
    model.outputs.check_support(new.Y)
    single = model.leaf_posterior.leaf_gps.dtype == "float32"
    scaled = (
        check_in_range(model.inputs.to_experts(new.X), "X", single),
        check_in_range(model.outputs.to_experts(new.Y), "y", single),
    )
    return _updated(
        state,
        state.rows.added(new),
        new.X,
        lambda online, routes: online.with_rows(routes, new.ids, *scaled, known_noise, new.weights),
    )


def remove_rows(state: FittedState, ids: Index) -> FittedState:
    """Remove training rows by their numbers."""
    if state.alternatives:
        return state.with_members([remove_rows(each, ids) for each in state.members])
    positions = state.rows.positions(ids)
    removed, rows = state.rows.X[positions], state.rows.removed(positions)
    return _updated(state, rows, removed, lambda online, routes: online.without_rows(routes, ids))


def review(
    state: FittedState, config: FitConfig, rng: np.random.Generator
) -> tuple[FittedState, int]:
    """Cut outgrown leaves and fit scales and gate again; return the number of leaves that were cut, too."""
    if state.alternatives:
        reviews = [review(each, config, rng) for each in state.members]
        members, n_cuts = zip(*reviews, strict=True)
        return state.with_members(members), sum(n_cuts)
    unit = length_scales(state.model.families[0], state.model.inputs.scale)
    U = state.model.inputs.to_coordinates(state.rows.X)
    tree, origin = _cut_outgrown(state.tree, U, state.partition_sizes, unit)
    n_cut = len(np.unique(origin[np.flatnonzero(np.bincount(origin)[origin] > 1)]))
    n_gate_rows = config.n_gate_rows(state.model.weights)
    reviewed = state.conditioned_on(tree, origin, n_gate_rows, rng)
    return replace(reviewed, n_reviewed=state.n_changed), n_cut


def _updated(
    state: FittedState,
    rows: TrainingRows,
    changed: Array,
    change: Callable[[OnlineLeafPosterior, Routes], OnlineLeafPosterior],
) -> FittedState:
    """Return the state with other rows; inputs of those added or removed are ``changed``.

    Parameters
    ----------
    state : FittedState
    rows : TrainingRows
        Those after the change.
    changed : ndarray of shape (n_changed, n_inputs)
    change : callable
        Changes the posterior of leaves, given which of them the changed rows reach.
    """
    model = state.mixture
    n_changed = state.n_changed + len(changed)
    updated = replace(state, rows=rows, n_changed=n_changed, scores=None)
    online = model.leaf_posterior.online(state.rows.ids)
    routes = model.router.route(model.inputs.to_coordinates(changed))
    if online.n_bytes(routes, copies=len(rows) < len(state.rows)) > ONLINE_SHARE * online.memory:
        return updated.conditioned
    online = change(online, routes)
    scales = model.scales
    if state.local_scale:
        scales = scales.copy()
        scales[routes.leaf] = online.scales(routes.leaf)
    model = replace(
        model,
        leaf_posterior=online,
        scales=scales,
        log_jacobian=model.outputs.log_jacobian(rows.Y, rows.weights),
        n_observations=rows.n_observations,
        edges=None if model.edges is None else model.edges.with_range(*range_of(rows.X)),
    )
    return replace(updated, model=model)


def _cut_outgrown(root: Node, U: Array, sizes: Index, unit: Array) -> tuple[Node, Index]:
    """Cut every leaf that holds too many rows; return the tree, and for each new leaf the old one it comes from."""
    parts: list[Node] = []

    def cut(leaf: Leaf) -> Node:
        parts.append(_cut(leaf, U, OUTGROWN * sizes[len(parts)], unit))
        return parts[-1]

    tree = map_leaves(root, cut)
    return tree, np.repeat(np.arange(len(parts)), [len(leaves(part)) for part in parts])


def _cut(leaf: Leaf, U: Array, most: float, unit: Array) -> Node:
    """Halve a leaf along the coordinate in which its rows are spread most, until no part holds too many rows.

    Parameters
    ----------
    leaf : Leaf
    U : ndarray of shape (n_rows, n_dims)
        Coordinates of all rows.
    most : float
        Rows that a part may hold.
    unit : ndarray of shape (n_dims,)
        What spreads are measured in.
    """
    if leaf.n_rows <= most or leaf.rows is None:
        return leaf
    inside = U[leaf.rows]
    for dimension in np.argsort(-np.ptp(inside, axis=0) / unit, kind="stable").tolist():
        column = inside[:, dimension]
        values = np.unique(column)
        if len(values) < 2:
            continue
        # Halfway between the two values around the median: test points on both sides are equally close to the cut.
        middle = int(np.clip(np.searchsorted(values, np.median(column)), 1, len(values) - 1))
        split = 0.5 * (values[middle - 1] + values[middle])
        if not values[middle - 1] < split:
            split = values[middle]
        below = column < split
        halves = [
            _cut(Leaf(region, leaf.rows[side]), U, most, unit)
            for region, side in zip(
                leaf.region.split(dimension, [split]), (below, ~below), strict=True
            )
        ]
        return Product(tuple(halves), dimension, (float(split),))
    return leaf  # all of its rows are equal
