"""Rows at the edges of the data, as leaves predict them that have seen nothing that far out.

A row in the outer quarter of an input is moved inwards along that input, until it lies in leaves whose rows
all end before it. To these leaves the row itself is what a new row beyond the edge of the data is to the
model. That is cross-validation with blocks at the edges of the leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.loo import Components
from dsmgp.gp.transforms.scaling import InputScaling
from dsmgp.mixture.edges import Edges, range_of
from dsmgp.mixture.model import Model
from dsmgp.tree.nodes import leaves
from dsmgp.tree.routing import Routes

__all__ = ["RowsBeyondLeaves", "examined_inputs", "rows_beyond_leaves"]

# Inputs at whose edges rows are left out at most, those along which the function varies most, and the values
# they must have.
MOST_INPUTS, LEAST_VALUES = 8, 8
# Rows that are left out at most, in all, and those that they are drawn from.
MOST_ROWS, MOST_RANKED = 600, 20_000
# Part of the rows on either side of an input that are left out.
OUTER = 0.25
# How far inwards a row is moved at most, as a share of the rows that lie between it and the other end.
INWARDS = 0.5
# With fewer rows that leaves have not seen nothing is learned.
LEAST_ROWS = 20


@dataclass(frozen=True, eq=False)
class RowsBeyondLeaves:
    """Rows as leaves predict them that have seen nothing that far out.

    Attributes
    ----------
    rows : ndarray of shape (n,)
        Numbers of the training rows; a row may be there for several inputs.
    inputs : ndarray of shape (n,)
        The input along which each lies beyond the rows of the leaves.
    components : Components
    terms : ndarray of shape (n, 1 + n_inputs)
        Those of :meth:`Edges.terms`, averaged over the leaves with their weights.
    """

    rows: Index
    inputs: Index
    components: Components
    terms: Array


def rows_beyond_leaves(
    model: Model, edges: Edges, X: Array, first: Index
) -> RowsBeyondLeaves | None:
    """Return rows at the edges of leaves, among the first rows of distinct inputs; None if there are too few."""
    places, inputs, side, moved = _moved_inwards(edges, model.inputs, X[first])
    if not len(places):
        return None
    rows = first[places]
    routes = model.router.route(model.inputs.to_coordinates(moved))
    leaf, place = routes.pairs
    ends = _ends(model, leaf, X)[np.unique(leaf, return_inverse=True)[1]]
    # How far out the leaf's rows go along the input, and the row itself.
    end = ends[np.arange(len(leaf)), (side[place] + 1) // 2, inputs[place]]
    beyond = side[place] * (X[rows[place], inputs[place]] - end) > 0
    if model.has_rows_in_files:
        beyond &= _in_few_shards(model, leaf, beyond)
    kept, renumbered = np.unique(place[beyond], return_inverse=True)
    if len(kept) < LEAST_ROWS:
        return None
    leaf, end, place = leaf[beyond], end[beyond], renumbered.reshape(-1)
    rows, inputs = rows[kept], inputs[kept]
    order = np.lexsort((np.arange(len(leaf)), leaf))
    leaf, end, place = leaf[order], end[order], place[order]
    # A row for each pair: what trees predict for it depends on where the rows of the leaf end.
    of_pairs = X[rows][place]
    U = model.inputs.to_coordinates(X[rows])[place]
    Z = model.scaled(model.inputs.beyond(U, of_pairs, inputs[place], end))
    pairs = Routes.of(leaf, np.arange(len(leaf)))
    mean, variance = model.leaf_posterior.predict(pairs, Z)
    variance = variance + model.leaf_posterior.noise[leaf]
    components = Components.of_pairs(len(rows), leaf, place, mean, variance)
    # The mixture has each component in all shapes of the gate.
    weights = (
        model.distribution(components).weights.reshape(*components.leaf.shape, -1).sum(axis=-1)
    )
    terms = edges.terms_beyond(of_pairs, inputs[place], end, model.inputs)
    by_slot = Components.of_pairs(len(rows), leaf, place, terms, None).mean
    return RowsBeyondLeaves(rows, inputs, components, np.einsum("nk,nkt->nt", weights, by_slot))


def _moved_inwards(
    edges: Edges, scaling: InputScaling, X: Array
) -> tuple[Index, Index, Index, Array]:
    """Draw rows on the outer sides of the inputs that matter most; return rows, inputs, sides (1 or -1), and the rows moved inwards."""
    rng = np.random.default_rng(0)
    drawn = np.arange(len(X))
    if len(X) > MOST_RANKED:
        drawn = rng.choice(drawn, MOST_RANKED, replace=False)
        X = X[drawn]
    n, examined = len(X), examined_inputs(edges, scaling, X)
    n_each = MOST_ROWS // max(2 * len(examined), 1)
    parts: list[tuple[Index, Index, Index, Array]] = []
    for j in examined.tolist():
        for side in (1, -1):
            order = np.argsort(side * X[:, j], kind="stable")
            ranks = np.arange(int(np.ceil((1.0 - OUTER) * n)), n)
            if len(ranks) > n_each:
                ranks = rng.choice(ranks, n_each, replace=False)
            inner = (ranks * rng.uniform(INWARDS, 1.0, len(ranks))).astype(np.int64)
            moved = X[order[ranks]].copy()
            moved[:, j] = X[order[inner], j]
            full = np.full(len(ranks), j)
            parts.append((drawn[order[ranks]], full, np.full(len(ranks), side), moved))
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return none, none, none, X[:0]
    rows, inputs, sides, moved = (np.concatenate(part) for part in zip(*parts, strict=True))
    return rows, inputs, sides, moved


def examined_inputs(edges: Edges, scaling: InputScaling, X: Array) -> Index:
    """Return the inputs with a range along which the function varies most: those of the longest ranges in length scales."""
    measured = np.flatnonzero(np.isfinite(edges.low))
    order = np.argsort(-edges.extent(scaling)[measured], kind="stable")
    several = [j for j in measured[order].tolist() if len(np.unique(X[:, j])) >= LEAST_VALUES]
    return np.array(several[:MOST_INPUTS], dtype=np.int64)


def _ends(model: Model, leaf: Index, X: Array) -> Array:
    """Return the ranges of the rows of each distinct leaf, (n_distinct, 2, n_inputs)."""
    every = leaves(model.tree)
    ranges = []
    for k in np.unique(leaf).tolist():
        inside = X[every[k].rows]
        ranges.append(range_of(inside) if len(inside) else (X[0] * np.nan, X[0] * np.nan))
    return np.array(ranges)


def _in_few_shards(model: Model, leaf: Index, beyond: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which leaves are in the two shards with most pairs: others would have to be read and conditioned again."""
    parts = cast(Any, model.leaf_posterior.leaf_gps).parts  # those of ShardedLeafGPs
    shard = np.empty(len(model.family), dtype=np.int64)
    for number, part in enumerate(parts):
        shard[part] = number
    counts = np.bincount(shard[leaf[beyond]], minlength=len(parts))
    return np.isin(shard[leaf], np.argsort(-counts, kind="stable")[:2])
