"""Learning a line and boosted regression trees of the inputs on folds of the rows: scikit-learn's HistGradientBoosting with its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from dsmgp._util.arrays import Array, Index
from dsmgp.gp.transforms.boosted_trees import BoostedTrees, digests
from dsmgp.linalg.threads import Threads
from dsmgp.tree.routing import Cuts

__all__ = ["N_FOLDS", "held_out_predictions", "learn_boosted_trees"]

N_FOLDS = 5
# Rows on which the change of the predictions with each input is averaged.
SLOPE_ROWS = 1000
# Different rows that folds are made of at least.
LEAST_DISTINCT = 20


def learn_boosted_trees(
    X: Array,
    Y: Array,
    row_weights: Array | None = None,
    columns: Index | None = None,
    keys: Index | None = None,
) -> BoostedTrees | None:
    """Learn trees for each output on all folds of the rows but one, in turn; folds keep equal rows together.

    They learn what a linear function leaves, which is learned on the same rows.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_inputs)
    Y : ndarray of shape (n_rows, n_outputs)
    row_weights : ndarray of shape (n_rows,), optional
    columns : ndarray of shape (n_inputs,), optional
        The order in which trees take the inputs, which makes a difference where two cuts are equally good.
    keys : ndarray of int, optional
        Inputs that tell rows apart; all by default.

    Returns
    -------
    BoostedTrees or None
        None if there are too few different rows for folds.
    """
    every = np.arange(X.shape[1])
    columns = every if columns is None else columns
    keys = columns if keys is None else columns[np.isin(columns, keys)]
    digest = digests(X[:, keys])
    fold = digest % N_FOLDS
    if len(np.unique(digest)) < LEAST_DISTINCT or len(np.unique(fold)) < N_FOLDS:
        return None
    work = [(k, output) for k in range(N_FOLDS) for output in range(Y.shape[1])]

    def learned(task: tuple[int, int]) -> tuple[Array, float, list[NDArray[np.void]]]:
        k, output = task
        rows = np.flatnonzero(fold != k)
        weights = None if row_weights is None else row_weights[rows]
        slopes, intercept = _line(X[rows], Y[rows, output], weights)
        residual = Y[rows, output] - X[rows] @ slopes - intercept
        baseline, trees = _trees(_fitted(X[np.ix_(rows, columns)], residual, weights))
        return slopes, intercept + baseline, trees

    of_tasks = Threads().map(learned, work)
    trees = [tree for *_, of_task in of_tasks for tree in of_task]
    cuts, value, roots = _flattened(trees)
    shape = (N_FOLDS, Y.shape[1])
    boosted = BoostedTrees(
        cuts,
        value,
        roots.reshape(*shape, -1),
        np.array([slopes for slopes, *_ in of_tasks]).reshape(*shape, -1),
        np.array([baseline for _, baseline, _ in of_tasks]).reshape(shape),
        columns,
        keys,
        np.unique(digest),
        np.zeros((X.shape[1], Y.shape[1])),
    )
    return replace(boosted, slopes=_slopes(boosted, X))


def held_out_predictions(
    X: Array, Y: Array, learned_on: Index, judged_on: Index, row_weights: Array | None = None
) -> Array:
    """Return predictions at some rows by trees that are learned on others, (n_judged, n_outputs)."""
    weights = None if row_weights is None else row_weights[learned_on]

    def predicted(y: Array) -> Array:
        model = _fitted(X[learned_on], y[learned_on], weights)
        with threadpool_limits(1, user_api="openmp"):
            return np.asarray(model.predict(X[judged_on]))

    return np.column_stack(Threads().map(predicted, list(Y.T)))


def _line(X: Array, y: Array, row_weights: Array | None) -> tuple[Array, float]:
    """Return slopes and intercept of a linear function of the inputs, by weighted least squares."""
    centre = np.average(X, axis=0, weights=row_weights)
    spread = np.sqrt(np.average(np.square(X - centre), axis=0, weights=row_weights))
    spread = np.where(spread > 0, spread, 1.0)
    H = np.column_stack([(X - centre) / spread, np.ones(len(X))])
    root = np.ones(len(X)) if row_weights is None else np.sqrt(row_weights)
    *slopes, at_centre = np.linalg.lstsq(root[:, None] * H, root * y, rcond=None)[0]
    slopes = np.array(slopes) / spread
    return slopes, float(at_centre - centre @ slopes)


def _fitted(X: Array, y: Array, weights: Array | None) -> HistGradientBoostingRegressor:
    """Fit on one thread: OpenMP's threads do not survive a fork."""
    with threadpool_limits(1, user_api="openmp"):
        return HistGradientBoostingRegressor(early_stopping=False, random_state=0).fit(
            X, y, sample_weight=weights
        )


def _trees(model: HistGradientBoostingRegressor) -> tuple[float, list[NDArray[np.void]]]:
    """Return what a model adds its trees to, and the nodes of each tree, which scikit-learn has no public name for."""
    nodes = [predictor.nodes for (predictor,) in model._predictors]
    return float(np.ravel(model._baseline_prediction)[0]), nodes


def _flattened(trees: Sequence[NDArray[np.void]]) -> tuple[Cuts, Array, Index]:
    """Return all nodes as one list of cuts, their values, and where each tree begins."""
    roots = np.cumsum([0, *map(len, trees)])[:-1]
    nodes = np.concatenate(trees)
    first = np.repeat(roots, [len(tree) for tree in trees])
    here = np.arange(len(nodes))
    is_leaf = nodes["is_leaf"].astype(bool)
    below, above = (
        np.where(is_leaf, here, first + nodes[side].astype(np.int64)) for side in ("left", "right")
    )
    cuts = Cuts(
        np.where(is_leaf, 0, nodes["feature_idx"].astype(np.int64)),
        # Values up to the threshold go left there, values below the split here.
        np.where(is_leaf, np.inf, np.nextafter(nodes["num_threshold"], np.inf)),
        below,
        above,
    )
    return cuts, nodes["value"].astype(np.float64), roots


def _slopes(trees: BoostedTrees, X: Array) -> Array:
    """Return the root mean square change of the predictions per unit of each input, between values of pairs of rows."""
    rng = np.random.default_rng(0)
    rows = rng.choice(len(X), min(SLOPE_ROWS, len(X)), replace=False)
    here, other = X[rows], X[rng.permutation(rows)]
    before = trees(here)
    slopes = np.zeros((X.shape[1], trees.n_outputs))
    for k in range(X.shape[1]):
        moved = here.copy()
        moved[:, k] = other[:, k]
        distance = np.sqrt(np.mean(np.square(moved[:, k] - here[:, k])))
        if distance > 0:
            slopes[k] = np.sqrt(np.mean(np.square(trees(moved) - before), axis=0)) / distance
    return slopes
