"""Split rules: how a node chooses the dimension along which it is cut, and the positions of the splits.

This is the place to add one. A rule is a function of one node's rows (:class:`SplitRule`) that is given to
:func:`~dsmgp.tree.growing.grow_paper` or :func:`~dsmgp.tree.growing.grow_balanced`. The rule of balanced trees is
written for all nodes of a level at once (:func:`near_even_cuts`), since large trees have many thousands of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp.tree.columns import Columns, index_ranges, rows_of_nodes, starts_of

__all__ = ["Cuts", "SplitRule", "cuts_by_rule", "effective_splits", "near_even_cuts", "paper_split"]

# A cut is uneven if it leaves more than this share of a node's rows together. Another dimension is drawn then: several
# at a time, as long as they have no more than so many rows in all.
UNEVEN, DRAWN_ROWS = 0.8, 100_000


class SplitRule(Protocol):
    """Choose how to cut one node.

    Examples
    --------
    Cut the widest input into parts of equal size:

    >>> from dsmgp.tree import leaves
    >>> from dsmgp.tree.growing import grow_balanced
    >>> def widest(X, unit, n_parts, rng):
    ...     dimension = int(np.argmax(np.ptp(X, axis=0) / unit))
    ...     return dimension, np.quantile(X[:, dimension], np.arange(1, n_parts) / n_parts)
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(64, 2)) * [1.0, 3.0]
    >>> tree = grow_balanced(X, leaf_sizes=[16], rng=rng, split_rule=widest)
    >>> tree.dimension, [leaf.n_rows for leaf in leaves(tree)]
    (1, [16, 16, 16, 16])
    """

    def __call__(
        self, X: Array, unit: Array, n_parts: int, rng: np.random.Generator
    ) -> tuple[int, Sequence[float] | Array]:
        """Return a dimension, and the positions of splits along it.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_dims)
            The node's rows, in the user's units; at least one column varies.
        unit : ndarray of shape (n_dims,)
            Unit in which to compare columns: a standard deviation or length scale.
        n_parts : int
            Number of parts to cut the node into.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        dimension : int
        splits : sequence of float
            At most ``n_parts - 1``. A row on a split belongs to the part above. Splits that leave a part without
            rows are dropped; if none is left, the node becomes a leaf.
        """


def effective_splits(x: Array, splits: Sequence[float] | Array) -> list[float]:
    """Return those splits, in order, that leave no part of the values ``x``, of shape (n_rows,), empty."""
    ordered = np.unique(np.asarray(splits, dtype=np.float64))
    n_below = np.searchsorted(np.sort(x), ordered)
    separates = (np.diff(n_below, prepend=0) > 0) & (n_below < len(x))
    return ordered[separates].tolist()


def paper_split(
    X: Array, unit: Array, n_parts: int, rng: np.random.Generator
) -> tuple[int, list[float]]:
    """Cut along a dimension drawn by its variance, at Beta(2, 2) positions shrunk towards the median.

    The rule of Trapp et al. (2020), Algorithm 1; a :class:`SplitRule`.
    """
    dimension = _draw(_spread(X, unit) ** 2, rng)
    values = np.sort(X[:, dimension])
    low, high, middle = values[0], values[-1], np.median(values)
    drawn = low + (high - low) * rng.beta(2.0, 2.0, size=n_parts - 1)
    # Each drawn position moves up to the next row, so that the split lies between two rows.
    after = np.searchsorted(values, 0.5 * drawn + 0.5 * middle)
    ranks = np.unique(np.searchsorted(values, values[np.clip(after, 0, len(values) - 1)]))
    ranks = ranks[ranks > 0]
    if not ranks.size:  # all fell on the smallest value: cut at the first step up
        ranks = np.array([np.searchsorted(values, values[0], side="right")])
    return dimension, _between(values[ranks - 1], values[ranks]).tolist()


def _spread(X: Array, unit: Array) -> Array:
    """Return the standard deviation of each column in units of ``unit``: positive where values differ at all."""
    smallest = 1e-100  # differences whose square underflows are still differences
    varies = X.min(axis=0) < X.max(axis=0)
    return np.where(varies, np.maximum((X / unit).std(axis=0), smallest), 0.0)


def _draw(weights: Array, rng: np.random.Generator) -> int:
    """Draw an index in proportion to non-negative weights."""
    total = np.cumsum(weights / weights.max())
    index = int(np.searchsorted(total, rng.uniform() * total[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))


def _between(low: Array, high: Array) -> Array:
    """Return numbers in ``(low, high]``: the middle where floating point has one."""
    middle = low + 0.5 * (high - low)
    return np.where((low < middle) & (middle <= high), middle, high)


@dataclass(frozen=True)
class Cuts:
    """How several nodes are cut into ``n_parts`` parts each.

    Attributes
    ----------
    dimension : ndarray of shape (n_nodes,)
        Dimension along which each node is cut.
    splits : ndarray of shape (n_nodes, n_parts - 1)
        Positions, in increasing order; two that are equal leave the part between them empty.
    sizes : ndarray of shape (n_nodes, n_parts)
        Rows in each part; all zero if the node is not cut.
    part : ndarray of shape (n_rows,)
        The part of each row, node after node.
    """

    dimension: Index
    splits: Array
    sizes: Index
    part: NDArray[np.int32]

    @classmethod
    def empty(cls, n_nodes: int, n_parts: int, n_rows: int) -> Cuts:
        """Return cuts to be filled in."""
        return cls(
            np.zeros(n_nodes, dtype=np.int64),
            np.zeros((n_nodes, n_parts - 1)),
            np.zeros((n_nodes, n_parts), dtype=np.int64),
            np.zeros(n_rows, dtype=np.int32),
        )


def cuts_by_rule(
    rule: SplitRule,
    columns: Columns,
    rows: Index,
    size: Index,
    unit: Array,
    n_parts: int,
    rng: np.random.Generator,
) -> Cuts:
    """Apply a rule to several nodes, one after the other.

    Parameters
    ----------
    rule : SplitRule
        The rule.
    columns : Columns
        Training inputs.
    rows : ndarray of shape (n_rows,)
        Rows of all nodes, node after node.
    size : ndarray of shape (n_nodes,)
        Rows of each node.
    unit, n_parts, rng
        See :class:`SplitRule`.
    """
    cuts = Cuts.empty(len(size), n_parts, len(rows))
    for k, (start, n_rows) in enumerate(zip(starts_of(size), size, strict=True)):
        X = columns.X[rows[start : start + n_rows]]
        dimension, proposed = rule(X, unit, n_parts, rng)
        splits = effective_splits(X[:, dimension], proposed)[: n_parts - 1]
        if not splits:
            continue
        cuts.dimension[k], cuts.splits[k] = dimension, splits[-1]  # the rest repeats the last one
        cuts.splits[k, : len(splits)] = splits
        part = np.searchsorted(cuts.splits[k], X[:, dimension], side="right")
        cuts.sizes[k] = np.bincount(part, minlength=n_parts)
        cuts.part[start : start + n_rows] = part
    return cuts


def near_even_cuts(
    columns: Columns,
    rows: Index,
    size: Index,
    spread: Array,
    n_parts: int,
    rng: np.random.Generator,
) -> Cuts:
    """Cut several nodes near the even quantiles, along dimensions drawn by their spread.

    Where ties keep a drawn dimension from being cut evenly, the next one is drawn; if none can be cut evenly, the
    most even cut is taken.

    Parameters
    ----------
    columns, rows, size, n_parts, rng
        See :func:`cuts_by_rule`.
    spread : ndarray of shape (n_nodes, n_dims)
        Spread of each column in each node (:meth:`.Columns.spread`); every node has a column that varies.
    """
    # Exponential race: dimensions sampled without replacement, with probability proportional to their spread. What is drawn belongs to
    # a column, wherever it stands in the table: dimensions are numbered in the order of drawing here.
    order, spread = columns.drawing_order, spread[:, columns.drawing_order]
    times = np.full(spread.shape, np.inf)
    np.divide(rng.exponential(size=spread.shape), spread, out=times, where=spread > 0)
    cuts = Cuts.empty(len(size), n_parts, len(rows))
    border = np.zeros(cuts.splits.shape, dtype=np.int64)
    codes = np.empty(len(rows), dtype=columns.codes.dtype)  # along the dimension chosen
    largest, pending, n_draws = size.copy(), np.arange(len(size)), 1
    while pending.size:
        waiting = times[pending]
        earliest = waiting <= np.partition(waiting, n_draws - 1, axis=1)[:, n_draws - 1 : n_draws]
        which, drawn = np.nonzero(earliest & (waiting < np.inf))
        node, dimension = pending[which], order[drawn]
        tried = columns.code(rows_of_nodes(rows, size, node), size[node], dimension)
        borders, splits, sizes = _near_quantiles(
            columns, tried, size[node], dimension, n_parts, rng
        )
        largest_tried = sizes.max(axis=1)
        best = _first_even(which, times[node, drawn], largest_tried, size[node])
        best = best[largest_tried[best] < largest[node[best]]]
        chosen = node[best]
        cuts.dimension[chosen], cuts.splits[chosen] = dimension[best], splits[best]
        cuts.sizes[chosen], border[chosen] = sizes[best], borders[best]
        codes[index_ranges(starts_of(size)[chosen], size[chosen])] = rows_of_nodes(
            tried, size[node], best
        )
        largest[chosen] = largest_tried[best]
        times[node, drawn] = np.inf
        uneven = largest[pending] > UNEVEN * size[pending]
        pending = pending[uneven & (times[pending] < np.inf).any(axis=1)]
        few = DRAWN_ROWS // max(size[pending].sum(), 1)
        n_draws = max(1, min(2 * n_draws, few, spread.shape[1]))
    for first_code in border.T.astype(codes.dtype):
        cuts.part[:] += codes >= np.repeat(first_code, size)
    return cuts


def _near_quantiles(
    columns: Columns,
    codes: Index,
    size: Index,
    dimension: Index,
    n_parts: int,
    rng: np.random.Generator,
) -> tuple[Index, Array, Index]:
    """Cut nodes at ranks drawn around the even quantiles; among ties a cut moves to the nearest step of the values.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,)
        Codes of the rows along the dimension of their node, node after node.
    size, dimension : ndarray of shape (n_nodes,)
        Rows and dimension of each node.

    Returns
    -------
    borders, splits : ndarray of shape (n_nodes, n_parts - 1)
        Between two parts, the first code of the second, and a position in the user's units.
    sizes : ndarray of shape (n_nodes, n_parts)
        Rows in each part.
    """
    base = np.arange(len(size))[:, None] * columns.codes.size
    keys = codes + np.repeat(base[:, 0], size)
    keys.sort()  # sorts each node on its own: keys of different nodes do not overlap
    first, size = starts_of(size)[:, None], size[:, None]
    even = np.arange(1, n_parts) + rng.uniform(-0.3, 0.3, size=(len(size), n_parts - 1))
    rank = np.rint(even / n_parts * size).astype(np.int64)
    rank = np.minimum(np.maximum(rank, 1), size - 1)
    tied = keys[first + rank]
    below = np.searchsorted(keys, tied, side="left") - first
    above = np.searchsorted(keys, tied, side="right") - first
    up = (below == 0) | ((above < size) & (above - rank < rank - below))
    after = np.sort(np.where(up, above, below), axis=1)
    last, border = keys[first + after - 1] - base, keys[first + after] - base
    splits = _between(columns.value(last, dimension), columns.value(border, dimension))
    sizes = np.concatenate([after, size], axis=1)
    sizes[:, 1:] -= after
    return border, splits, sizes


def _first_even(node: Index, times: Array, largest: Index, size: Index) -> Index:
    """Return for each node the first of its draws that cuts it evenly, or else the most even one."""
    unevenness = np.where(largest > UNEVEN * size, largest, 0)
    order = np.lexsort((times, unevenness, node))
    return order[np.searchsorted(node, np.arange(node[-1] + 1))]
