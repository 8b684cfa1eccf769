"""A line and boosted regression trees of the inputs, whose predictions are a further coordinate of a fit.

A step-like part of a function, which no length scale suits, is then the trees', and smooth in their prediction. Trees are constant outside the
data; the line goes on, so that the coordinate says that such rows are far away. Both are learned on folds
of the training rows (:mod:`dsmgp.fitting.learning.boosted_trees`): a row that trees were learned on is predicted by those of the folds
without it, any other by the mean over folds. So the coordinate of a row depends on its inputs only, and never on its own output.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.linalg.threads import Threads
from dsmgp.tree.routing import Cuts

__all__ = ["BoostedTrees", "digests"]

# Rows that pass through the trees together, and so few that all trees are descended in one call.
ROWS_AT_ONCE, FEW_ROWS = 4096, 16
# Odd numbers that mix the bits of a row (Steele et al. 2014, splitmix64).
GOLDEN, MIX_1, MIX_2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


@dataclass(frozen=True, eq=False, repr=False)
class BoostedTrees:
    """Linear functions and sums of regression trees, for each output and each fold of the rows that they were learned on.

    Attributes
    ----------
    cuts : Cuts
        All trees, flattened.
    value : ndarray of shape (n_entries,)
        Of entries that are leaves: what the tree adds to the prediction.
    roots : ndarray of shape (n_folds, n_outputs, n_trees)
        Entries at which trees begin.
    lines : ndarray of shape (n_folds, n_outputs, n_inputs)
        Slopes of the linear function, whose residuals the trees were learned on.
    baseline : ndarray of shape (n_folds, n_outputs)
        Its intercept.
    columns : ndarray of int of shape (n_inputs,)
        The order in which trees take the inputs.
    keys : ndarray of int
        Inputs that tell rows apart: those that depend on the row alone, and not on its place in training.
    seen : ndarray of int64
        Digests of the rows that trees were learned on, in order; ``digest % n_folds`` is the fold of a row.
    slopes : ndarray of shape (n_inputs, n_outputs)
        Root mean square change of the prediction per unit of an input, between values of pairs of rows.
    """

    cuts: Cuts
    value: Array
    roots: Index
    lines: Array
    baseline: Array
    columns: Index
    keys: Index
    seen: Index
    slopes: Array

    def __repr__(self) -> str:
        n_folds, n_outputs, n_trees = self.roots.shape
        return f"BoostedTrees({n_trees} trees, {n_folds} folds, {n_outputs} outputs)"

    @property
    def n_outputs(self) -> int:
        return self.roots.shape[1]

    def __call__(self, X: Array, of_trees: Array | None = None) -> Array:
        """Return the predictions for rows of X, (n_rows, n_outputs).

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_inputs)
        of_trees : ndarray of shape (n_rows, n_inputs), optional
            Rows that trees take instead of these.
        """
        X = np.ascontiguousarray(X, dtype=np.float64)
        T = X if of_trees is None else np.ascontiguousarray(of_trees, dtype=np.float64)

        def piece(first: int) -> Array:
            rows = slice(first, first + ROWS_AT_ONCE)
            return self._piece(X[rows], T[rows])

        firsts = range(0, max(len(X), 1), ROWS_AT_ONCE)
        return np.concatenate(Threads().map(piece, firsts, len(X) <= FEW_ROWS))

    def _piece(self, X: Array, T: Array) -> Array:
        fold, n_folds = self._folds(T), len(self.roots)
        new = fold < 0
        total = np.zeros((len(X), self.n_outputs))
        for k in range(n_folds):
            rows = np.flatnonzero(new | (fold == k))
            if len(rows):
                total[rows] += self._of_fold(k, X[rows], T[rows])
        total[new] /= n_folds
        return total

    def _folds(self, X: Array) -> Index:
        """Return the fold of each row of X; -1 for rows that no trees were learned on."""
        digest = digests(X[:, self.keys])
        place = np.searchsorted(self.seen, digest).clip(max=max(len(self.seen) - 1, 0))
        is_seen = self.seen[place] == digest if len(self.seen) else np.zeros(len(X), dtype=bool)
        return np.where(is_seen, digest % len(self.roots), -1)

    def _of_fold(self, fold: int, X: Array, T: Array) -> Array:
        T = np.ascontiguousarray(T[:, self.columns])
        predictions = np.empty((len(X), self.n_outputs))
        for output, roots in enumerate(self.roots[fold]):
            line = np.full(len(X), self.baseline[fold, output])
            # Input by input: a matrix product rounds differently for other numbers of rows.
            for k in self.columns.tolist():
                line += X[:, k] * self.lines[fold, output, k]
            if len(X) <= FEW_ROWS:
                at = self.cuts.descend(np.tile(roots, len(T)), np.repeat(T, len(roots), axis=0))
                added = self.value[at].reshape(len(X), -1)
                # One by one, as below: equal rows get equal sums, however many there are.
                predictions[:, output] = np.add.accumulate(np.column_stack([line, added]), axis=1)[
                    :, -1
                ]
                continue
            predictions[:, output] = line
            for root in roots:
                at = self.cuts.descend(np.full(len(T), root), T)
                predictions[:, output] += self.value[at]
        return predictions


def digests(X: Array) -> Index:
    """Return a number for each row that depends on nothing but its values, (n_rows,); equal rows have equal ones.

    Examples
    --------
    >>> a, b, c = digests(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -0.0]]))
    >>> bool(a == c), bool(a == b)
    (True, False)
    """
    # Adding zero makes -0.0 and 0.0 the same.
    bits = (np.ascontiguousarray(X, dtype=np.float64) + 0.0).view(np.uint64)
    digest = np.zeros(len(bits), dtype=np.uint64)
    for column in bits.T:
        digest = digest * MIX_2 + GOLDEN + column
        digest = (digest ^ (digest >> np.uint64(30))) * MIX_1
        digest = (digest ^ (digest >> np.uint64(27))) * MIX_2
        digest ^= digest >> np.uint64(31)
    return digest.view(np.int64)
