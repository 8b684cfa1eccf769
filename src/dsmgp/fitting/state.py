"""The state of a fitted estimator: model, training rows, input schema, and how far online updates have gone.

States are immutable. ``fit`` makes the first one; the functions of :mod:`dsmgp.fitting.updates` take a state and
return another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.fit import FitResult
from dsmgp.fitting.optimize import SearchRecord
from dsmgp.mixture.fitted_model import FittedModel
from dsmgp.mixture.model import Model
from dsmgp.tree.nodes import Node, Sum, leaves, map_splits, nodes
from dsmgp.tree.routing import place

__all__ = ["FittedState", "TrainingRows"]

# A review is due when this share of the rows of the last fit has been added or removed, a fit when all have.
REVIEW_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training data in the user's units.

    Attributes
    ----------
    X : ndarray of shape (n, n_features)
    Y : ndarray of shape (n, n_outputs)
    noise : ndarray of shape (n, n_outputs), or None
        Known noise variances.
    ids : ndarray of shape (n,)
        Row numbers in order of arrival. A number is never used twice.
    next_id : int
        The number of the next row.
    """

    X: Array
    Y: Array
    noise: Array | None
    ids: Index
    next_id: int

    @classmethod
    def first(cls, X: Array, Y: Array, noise: Array | None = None) -> TrainingRows:
        """Number rows from 0."""
        return cls(X, Y, noise, np.arange(len(X)), len(X))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def arrays(self) -> list[Array]:
        """X, Y and, if there is any, noise."""
        return [self.X, self.Y, *([] if self.noise is None else [self.noise])]

    def added(self, X: Array, Y: Array, noise: Array | None = None) -> TrainingRows:
        """Return these rows and further ones; noise that is not given is zero."""
        parts = [(self.noise, self.Y), (noise, Y)]
        known_noise = None
        if self.noise is not None or noise is not None:
            known_noise = np.concatenate([np.zeros_like(y) if n is None else n for n, y in parts])
        next_id = self.next_id + len(X)
        return TrainingRows(
            np.concatenate([self.X, X]),
            np.concatenate([self.Y, Y]),
            known_noise,
            np.concatenate([self.ids, np.arange(self.next_id, next_id)]),
            next_id,
        )

    def removed(self, positions: Index) -> TrainingRows:
        """Return the rows without those at some positions."""
        noise = None if self.noise is None else np.delete(self.noise, positions, axis=0)
        X, Y = (np.delete(table, positions, axis=0) for table in (self.X, self.Y))
        return TrainingRows(X, Y, noise, np.delete(self.ids, positions), self.next_id)

    def positions(self, ids: Index) -> Index:
        """Positions of rows that are to be removed; refuse unknown rows, and to remove all but one."""
        where = np.searchsorted(self.ids, ids)
        exists = where < len(self.ids)
        exists[exists] = self.ids[where[exists]] == ids[exists]
        if not exists.all():
            raise ValueError(
                f"row {ids[~exists][0]} cannot be forgotten: it was never given, or is forgotten already; "
                f"row_ids_ lists the {len(self)} rows that are there"
            )
        if len(ids) > len(self) - 2:
            raise ValueError(
                f"cannot forget {len(ids)} of {len(self)} rows: at least two must stay"
            )
        return np.asarray(where)


@dataclass(frozen=True, eq=False, repr=False)
class FittedState:
    """All that a fitted estimator knows.

    Attributes
    ----------
    model : FittedModel
    rows : TrainingRows
    schema : InputSchema
    search : SearchRecord
    local_scale : bool
        Whether every leaf scales its variance by its LOO residuals.
    partition_sizes : ndarray of shape (n_leaves,)
        For each leaf, the rows of the largest leaf of its partition when the tree was grown.
    n_fitted : int
        Number of rows at the last fit.
    scores : tuple of float, or None
        Leave-one-out scores (see :func:`dsmgp.mixture.weighting.weigh`); None after online updates.
    n_changed : int
        Rows added or removed since the last fit.
    n_reviewed : int
        What ``n_changed`` was at the last review.
    metric_ids : ndarray of int, or None
        Numbers of the rows that a metric was learned on; LOO scores leave them out.
    maintenance : tuple of str
        Maintenance steps performed by the last call.
    """

    model: FittedModel
    rows: TrainingRows
    schema: InputSchema
    search: SearchRecord
    local_scale: bool
    partition_sizes: Index
    n_fitted: int
    scores: tuple[float, float] | None = None
    n_changed: int = 0
    n_reviewed: int = 0
    metric_ids: Index | None = None
    maintenance: tuple[str, ...] = ()

    @classmethod
    def from_fit(
        cls, fitted: FitResult, rows: TrainingRows, schema: InputSchema, local_scale: bool
    ) -> FittedState:
        """Return the state after a fit."""
        tree = fitted.model.tree
        partitions = tree.children if isinstance(tree, Sum) else (tree,)
        sizes = [[leaf.n_rows for leaf in leaves(part)] for part in partitions]
        return cls(
            model=fitted.model,
            rows=rows,
            schema=schema,
            search=fitted.search,
            local_scale=local_scale,
            partition_sizes=np.repeat([max(part) for part in sizes], [len(part) for part in sizes]),
            n_fitted=len(rows),
            scores=fitted.scores,
            metric_ids=rows.ids[fitted.learned_on]
            if fitted.learned_on is not None and len(fitted.learned_on)
            else None,
        )

    @property
    def metric_rows(self) -> Index | None:
        """Positions of the present rows that a metric was learned on."""
        if self.metric_ids is None:
            return None
        return np.flatnonzero(np.isin(self.rows.ids, self.metric_ids))

    @property
    def mixture(self) -> Model:
        """The model of a kind that supports updates and fine-tuning (see :func:`check_supported`)."""
        assert isinstance(self.model, Model)
        return self.model

    @cached_property
    def tree(self) -> Node:
        """The tree whose leaves list the present training rows; after online updates rows are routed again."""
        if self.scores is not None:
            return self.model.tree
        return place(
            self.model.tree, self.model.inputs.to_coordinates(self.rows.X), replace_rows=True
        )

    @cached_property
    def user_tree(self) -> Node:
        """:attr:`tree` with its splits in the user's units; in coordinates if a metric makes its regions oblique."""
        coordinates = self.model.inputs.coordinates
        if coordinates is None or coordinates.metric is not None:
            return self.tree
        columns = coordinates.columns.tolist()
        return map_splits(
            self.tree,
            coordinates.n_inputs,
            lambda k, splits: (columns[k], coordinates.to_input(k, np.array(splits)).tolist()),
        )

    @property
    def posterior_weights(self) -> dict[Sum, Array]:
        """Posterior probabilities of the children of each sum node of :attr:`user_tree`."""
        log_weights = self.model.posterior.log_weights
        pairs = zip(nodes(self.user_tree), nodes(self.model.tree), strict=True)
        return {
            new: np.exp(log_weights[old])
            for new, old in pairs
            if isinstance(old, Sum) and isinstance(new, Sum)
        }

    # When maintenance is due depends on the number of rows added and removed, not on how they came in batches.

    @property
    def _review_step(self) -> int:
        return max(1, int(REVIEW_SHARE * self.n_fitted))

    @property
    def until_review(self) -> int:
        """Rows that may be added or removed before the next review is due; at least one."""
        return self._review_step - self.n_changed % self._review_step

    @property
    def review_is_due(self) -> bool:
        """Whether just as many rows have changed as may between two reviews."""
        return self.n_changed > 0 and self.n_changed % self._review_step == 0

    @property
    def review_is_overdue(self) -> bool:
        """Whether a review fell due in calls with ``adapt=False``."""
        return self.n_changed // self._review_step > self.n_reviewed // self._review_step

    @property
    def fit_is_due(self) -> bool:
        """Whether as many rows have changed as there were at the last fit."""
        return self.n_changed >= self.n_fitted
