"""Calibration of predictions beyond the training data, by rows that leaves have not seen.

A row in the outer quarter of an input is moved inwards along that input, until it lies in leaves whose rows all end before it. To these
leaves the row itself is what a new row beyond the edge of the data is to the model: none of them has seen it, nor anything that far
out. Their mixture, with the gate and the scales of the model, predicts it, and the factor of variances
(:class:`~dsmgp.mixture.edges.Edges`) maximises the density of what was observed there. That is cross-validation with blocks at the edges of
the leaves, and takes no other fit: only predictions of a few hundred rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.loo import Components
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.learning.family import length_scales
from dsmgp.fitting.training_rows import TrainingRows
from dsmgp.gp.scaling import InputScaling
from dsmgp.linalg.threads import Threads, one_thread
from dsmgp.mixture.edges import Edges, range_of
from dsmgp.mixture.fitted_model import FittedModel
from dsmgp.mixture.model import Model
from dsmgp.mixture.row_scale import ScaledDensity
from dsmgp.tree.nodes import leaves
from dsmgp.tree.routing import Routes

__all__ = ["calibrate_edges", "with_edges"]

Fitted = TypeVar("Fitted", bound=FittedModel)

# Inputs at whose edges rows are left out at most, those along which the function varies most, and the values they must have.
MOST_INPUTS, LEAST_VALUES = 8, 8
# Rows that are left out at most, in all, and those that they are drawn from.
MOST_ROWS, MOST_RANKED = 600, 20_000
# Part of the rows on either side of an input that are left out.
OUTER = 0.25
# How far inwards a row is moved at most, as a share of the rows that lie between it and the other end.
INWARDS = 0.5
# With fewer rows that leaves have not seen nothing is learned.
LEAST_ROWS = 20
# Rate of the exponential prior of jump and growth: a few rows do not move them.
PRIOR_RATE = 2.0
# Shares of the rows in the blocks at the edges of the data, the rows of which that are sampled, and the least of a block.
BLOCKS, MOST_DENSE_ROWS, LEAST_BLOCK = (0.1, 0.25), 300, 3
# Of jump and growth, when they are fitted.
LARGEST = 1e4


def with_edges(model: Fitted, X: Array, measured: Index) -> Fitted:
    """Return a model that knows the ranges of its inputs; variances beyond them stay as they are.

    Parameters
    ----------
    model : Model or ChangePointModel
    X : ndarray of shape (n_rows, n_inputs)
        Training rows; where rows are in files, their ranges are known from when they were written.
    measured : ndarray of int
        Numbers of the inputs that have a range.
    """
    low, high = _range(model, X)
    is_measured = np.zeros(len(low), dtype=bool)
    is_measured[measured] = True
    edges = Edges(
        np.where(is_measured, low, -np.inf),
        np.where(is_measured, high, np.inf),
        length_scales(model.families[0], np.ones(model.inputs.n_coordinates)),
    )
    return cast(Fitted, replace(cast(Any, model), edges=edges))


def _range(model: Any, X: Array) -> tuple[Array, Array]:
    store = model.leaf_posterior.leaf_gps.store if model.has_rows_in_files else None
    return range_of(X) if store is None or store.input_range is None else store.input_range


def calibrate_edges(model: Model, rows: TrainingRows) -> Model:
    """Return a model whose variances beyond the ranges of its inputs are as wide as rows left out at edges demand.

    Parameters
    ----------
    model : Model
        With the ranges of its inputs.
    rows : TrainingRows
        Those that the leaves of the tree list.
    """
    # Many small matrices: threads would wait for one another. What is out of range is left out below.
    with one_thread(), np.errstate(all="ignore"):
        return replace(model, edges=_calibrated(model, rows))


def _calibrated(model: Model, rows: TrainingRows) -> Edges:
    X, Y, noise, row_weights = rows.X, rows.Y, rows.noise, rows.weights
    edges = model.edges
    assert edges is not None
    fits = []
    # Each distinct input counts once: rows of weight w and w equal rows then demand the same.
    first, of_point = _points(X)
    left_out = _left_out(model, edges, X, first)
    if left_out is not None:
        fits.append(_fit_left_out(model, left_out, rows))
    weights = np.bincount(of_point, row_weights).astype(np.float64)
    means = [np.bincount(of_point, _weighted(y, row_weights)) / weights for y in Y.T]
    known_noise = None if noise is None else noise[first]
    blocks = _blocks(model, edges, X[first], np.stack(means, axis=1), known_noise, weights)
    if blocks is not None:
        terms, squares = blocks
        fits.append(_fit(terms, partial(_normal_log_density, squares), np.ones(len(squares))))
    largest = np.max(fits, axis=0) if fits else np.zeros(1 + len(edges.low))
    return replace(edges, jump=float(largest[0]), growth=largest[1:])


def _fit_left_out(model: Model, left_out: _LeftOut, rows: TrainingRows) -> Array:
    """Return jump and growth by rows that the mixture of the model predicts, (1 + n_inputs,)."""
    X, Y, noise = rows.X[left_out.rows], rows.Y[left_out.rows], rows.noise
    predicted = model.distribution(
        left_out.components,
        squeeze=False,
        known_noise=None if noise is None else model.outputs.noise_to_experts(noise[left_out.rows]),
        row_scale=None if model.row_scale is None else model.row_scale(X),
    )
    return _fit(left_out.terms, partial(predicted.scaled_log_density, Y), np.ones(len(Y)))


def _points(X: Array) -> tuple[Index, Index]:
    """Return the first row of each distinct input, in order, and the number of each row's input among them."""
    _, first, of_row = np.unique(equal_rows(X), return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[of_row.reshape(-1)]


def _weighted(values: Array, row_weights: Array | None) -> Array:
    return values if row_weights is None else values * row_weights


def _fit(terms: Array, log_density: ScaledDensity, weights: Array) -> Array:
    """Return jump and growth that maximise the density of rows under exponential priors, (1 + n_inputs,)."""
    used = np.flatnonzero(terms.any(axis=0))
    A = terms[:, used]

    def loss(b: Array) -> tuple[float, Array]:
        factor = 1.0 + A @ b
        density, slope = log_density(np.log(factor))
        value = PRIOR_RATE * b.sum() - weights @ density
        return float(value), PRIOR_RATE - A.T @ (weights * slope / factor)

    start, bounds = np.full(len(used), 0.1), [(0.0, LARGEST)] * len(used)
    found = np.zeros(terms.shape[1])
    found[used] = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return np.where(np.isfinite(found), found, 0.0)


def _normal_log_density(squares: Array, log_factor: Array) -> tuple[Array, Array]:
    """Log density of standardised squares if variances were multiplied by factors, up to a constant, and its slope."""
    scaled = squares * np.exp(-log_factor)
    return -0.5 * (scaled + log_factor), 0.5 * (scaled - 1.0)


def _blocks(
    model: Model,
    edges: Edges,
    X: Array,
    Y: Array,
    noise: Array | None,
    weights: Array,
) -> tuple[Array, Array] | None:
    """Leave out whole blocks of rows at the edges of the data, in one leaf of all rows or of a sample.

    Returns
    -------
    terms : ndarray of shape (n, 1 + n_inputs)
    squares : ndarray of shape (n,)
        Squared residuals, relative to what the leaf expects given how well it predicts rows left out one by one.
    """
    if len(X) > MOST_DENSE_ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(len(X), MOST_DENSE_ROWS, replace=False))
        X, Y, weights = X[chosen], Y[chosen], weights[chosen]
        noise = None if noise is None else noise[chosen]
    n = len(X)
    try:
        # On a thread of the pool: GPyTorch's kernels would start OpenMP's threads here, which do not survive a fork.
        (solved,) = Threads().map(lambda _: _solved(model, X, Y, noise, weights), [None])
    except np.linalg.LinAlgError:
        return None
    parts = []
    for j in _examined(edges, model.inputs, X).tolist():
        for side, share in itertools.product((1, -1), BLOCKS):
            end = side * np.sort(side * X[:, j])[n - 1 - int(share * n)]
            block = np.flatnonzero(side * (X[:, j] - end) > 0)
            if len(block) < LEAST_BLOCK:
                continue
            terms = _terms(edges, model.inputs, X[block], np.full(len(block), j), end)
            for inverse, alpha, scale in solved:
                # R&W section 5.4.2, for a group of rows: covariance S, residuals S alpha.
                S = np.linalg.inv(inverse[np.ix_(block, block)])
                squares = np.square(S @ alpha[block]) / np.diag(S) / scale
                parts.append((terms, squares))
    if not parts:
        return None
    terms, squares = (np.concatenate(part) for part in zip(*parts, strict=True))
    return (terms, squares) if np.isfinite(squares).all() else None


def _solved(
    model: Model, X: Array, Y: Array, noise: Array | None, weights: Array
) -> list[tuple[Array, Array, float]]:
    """Return for each output the inverse covariance of one leaf of all rows, that times the residuals, and its leave-one-out scale."""
    Z, latent = model.to_experts(X), model.outputs.to_experts(Y)
    known = np.zeros_like(latent) if noise is None else model.outputs.noise_to_experts(noise)
    family = model.families[0]
    pairs = zip(family.leaf_kernels, family.kernel_parameters, strict=True)
    solved = []
    for output, (kernel, parameters) in enumerate(pairs):
        prior = kernel.at(parameters)
        K = prior.cross(Z, Z)
        K[np.diag_indices(len(X))] += (prior.noise + known[:, output]) / weights
        inverse = np.asarray(np.linalg.inv(K), dtype=np.float64)
        alpha = inverse @ (latent[:, output] - prior.mean(Z))
        squares = np.square(alpha) / np.diag(inverse)
        scale = float(np.average(squares, weights=weights))
        if scale > 0.0:  # not a constant output
            solved.append((inverse, alpha, scale))
    return solved


@dataclass(frozen=True, eq=False)
class _LeftOut:
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


def _left_out(model: Model, edges: Edges, X: Array, first: Index) -> _LeftOut | None:
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
    routes = Routes.of(leaf, place)
    order = np.lexsort((np.arange(len(leaf)), leaf))
    leaf, end, place = leaf[order], end[order], place[order]
    mean, variance = model.leaf_posterior.predict(routes, model.to_experts(X[rows]))
    variance = variance + model.leaf_posterior.noise[leaf]
    components = Components.of_pairs(len(rows), leaf, place, mean, variance)
    # The mixture has each component in all shapes of the gate.
    weights = (
        model.distribution(components).weights.reshape(*components.leaf.shape, -1).sum(axis=-1)
    )
    terms = _terms(edges, model.inputs, X[rows][place], inputs[place], end)
    by_slot = Components.of_pairs(len(rows), leaf, place, terms, None).mean
    return _LeftOut(rows, inputs, components, np.einsum("nk,nkt->nt", weights, by_slot))


def _moved_inwards(
    edges: Edges, scaling: InputScaling, X: Array
) -> tuple[Index, Index, Index, Array]:
    """Draw rows on the outer sides of the inputs that matter most; return rows, inputs, sides (1 or -1), and the rows moved inwards."""
    rng = np.random.default_rng(0)
    drawn = np.arange(len(X))
    if len(X) > MOST_RANKED:
        drawn = rng.choice(drawn, MOST_RANKED, replace=False)
        X = X[drawn]
    n, examined = len(X), _examined(edges, scaling, X)
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


def _examined(edges: Edges, scaling: InputScaling, X: Array) -> Index:
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


def _terms(edges: Edges, scaling: InputScaling, X: Array, inputs: Index, end: Array) -> Array:
    """Return the terms of the factor at rows that lie beyond an end along one input."""
    at_end = X.copy()
    at_end[np.arange(len(X)), inputs] = end
    away = (scaling.to_experts(X) - scaling.to_experts(at_end)) / edges.unit
    distance = np.sqrt(np.square(away).sum(axis=1))
    by_input = np.zeros((len(X), len(edges.low)))
    by_input[np.arange(len(X)), inputs] = distance
    return edges.terms(distance, by_input, scaling)
