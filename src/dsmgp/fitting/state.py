"""The state of a fitted estimator: model, training rows, input schema, and how far online updates have gone.

States are immutable. ``fit`` makes the first one; the functions of :mod:`dsmgp.fitting.updates` take a state and
return another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.data.input_schema import InputSchema
from dsmgp.data.outside import OutsideRows
from dsmgp.data.remarks import evaluation_remarks, prediction_remarks, spread_rows
from dsmgp.experts.points import joined_weights
from dsmgp.explain.effects import total_effect_shares
from dsmgp.fitting.edges import calibrate_edges, with_edges
from dsmgp.fitting.fit import FitResult
from dsmgp.fitting.hypotheses.stacking import Stacking
from dsmgp.fitting.learning.optimize import SearchRecord
from dsmgp.mixture.distribution import Mixture
from dsmgp.mixture.ensemble import Ensemble
from dsmgp.mixture.fitted_model import FittedModel, Predictive
from dsmgp.mixture.kernel_posterior import RegionKernels, kernel_sums
from dsmgp.mixture.model import Model
from dsmgp.mixture.row_scale import MissingIndicators
from dsmgp.mixture.variance_error import exact_variances
from dsmgp.tree.nodes import Leaf, Node, Sum, leaves, map_splits, nodes
from dsmgp.tree.routing import place

__all__ = ["FittedState", "TrainingRows"]

# A review is due when this share of the rows of the last fit has been added or removed, a fit when all have.
REVIEW_SHARE = 0.2
# Training rows whose predictive intervals are computed for remarks.
N_REMARKED = 500


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training data in the user's units.

    Attributes
    ----------
    X : ndarray of shape (n, n_features)
    Y : ndarray of shape (n, n_outputs)
    noise : ndarray of shape (n, n_outputs), or None
        Known noise variances.
    weights : ndarray of shape (n,), or None
        Positive weights; None if all are one.
    ids : ndarray of shape (n,)
        Row numbers in order of arrival. A number is never used twice; those of rows with weight zero, which are not kept, are
        left out.
    next_id : int
        The number of the next row.
    """

    X: Array
    Y: Array
    noise: Array | None
    weights: Array | None
    ids: Index
    next_id: int

    @classmethod
    def first(
        cls,
        X: Array,
        Y: Array,
        noise: Array | None = None,
        weights: Array | None = None,
        first_id: int = 0,
        positions: Index | None = None,
        n_given: int | None = None,
    ) -> TrainingRows:
        """Number rows from ``first_id`` on, and drop those with weight zero.

        Where some of the ``n_given`` rows were left out before, ``positions`` says where the others stood among them.
        """
        places = np.arange(len(X)) if positions is None else positions
        next_id = first_id + (len(X) if n_given is None else n_given)
        rows = cls(X, Y, noise, weights, first_id + places, next_id)
        if weights is None:
            return rows
        rows = rows.removed(np.flatnonzero(weights == 0))
        return replace(rows, weights=None) if np.all(rows.weights == 1.0) else rows

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def arrays(self) -> list[Array]:
        """X, Y and, if there are any, noise and weights."""
        return [self.X, self.Y, *(a for a in (self.noise, self.weights) if a is not None)]

    @property
    def n_observations(self) -> float | None:
        """Sum of the weights; None if all are one."""
        return None if self.weights is None else float(self.weights.sum())

    def added(self, other: TrainingRows) -> TrainingRows:
        """Return these rows and further ones; noise that is not given is zero, and weights are one."""
        parts = (self, other)
        noise = None
        if any(rows.noise is not None for rows in parts):
            known = [np.zeros_like(rows.Y) if rows.noise is None else rows.noise for rows in parts]
            noise = np.concatenate(known)
        return TrainingRows(
            np.concatenate([self.X, other.X]),
            np.concatenate([self.Y, other.Y]),
            noise,
            joined_weights([(rows.weights, len(rows)) for rows in parts]),
            np.concatenate([self.ids, other.ids]),
            other.next_id,
        )

    def take(self, positions: Index | slice) -> TrainingRows:
        """Return the rows at some positions."""
        noise, weights = (
            None if table is None else table[positions] for table in (self.noise, self.weights)
        )
        X, Y = self.X[positions], self.Y[positions]
        return TrainingRows(X, Y, noise, weights, self.ids[positions], self.next_id)

    def removed(self, positions: Index) -> TrainingRows:
        """Return the rows without those at some positions."""
        return self.take(np.delete(np.arange(len(self)), positions))

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
    alternatives : tuple of FittedState
        Fits of the same rows under other hypotheses, whose predictions are mixed with those of ``model``; that is the heaviest.
    stacking : Stacking or None
        Weights of all hypotheses, the model's own first, and their cross-validated scores, as of the last fit.
    fit_times : dict of str to float
        Seconds of the stages of the last fit; empty where that was in another process.
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
    alternatives: tuple[FittedState, ...] = ()
    stacking: Stacking | None = None
    fit_times: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_fit(
        cls, fitted: FitResult, rows: TrainingRows, schema: InputSchema, local_scale: bool
    ) -> FittedState:
        """Return the state after a fit."""
        model = with_edges(fitted.model, rows.X, schema.columns.measured_inputs)
        if local_scale and isinstance(model, Model):
            model = calibrate_edges(model, rows.X, rows.Y, rows.noise, rows.weights)
        tree = model.tree
        partitions = tree.children if isinstance(tree, Sum) else (tree,)
        sizes = [[leaf.n_rows for leaf in leaves(part)] for part in partitions]
        return cls(
            model=model,
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
    def hypothesis_weights(self) -> Array:
        """Weights of the model and of its alternatives, of sum one."""
        return np.ones(1) if self.stacking is None else self.stacking.weights

    @cached_property
    def predictive(self) -> Predictive:
        """What predicts: the model, or the weighted sum of it and its alternatives."""
        if not self.alternatives:
            return self.model
        models = (self.model, *(each.model for each in self.alternatives))
        return Ensemble(models, self.hypothesis_weights)

    @property
    def members(self) -> tuple[FittedState, ...]:
        """The states of all hypotheses, each on its own."""
        return (replace(self, alternatives=(), stacking=None), *self.alternatives)

    def with_members(self, members: Sequence[FittedState]) -> FittedState:
        """Return the same hypotheses after a change of each."""
        first, *others = members
        # One copy of the rows serves all.
        alternatives = tuple(replace(each, rows=first.rows) for each in others)
        return replace(first, alternatives=alternatives, stacking=self.stacking)

    @property
    def reported_scores(self) -> tuple[float, float] | None:
        """Cross-validated scores where hypotheses were stacked, else those of leave-one-out."""
        return self.scores if self.stacking is None else self.stacking.scores

    @property
    def metric_rows(self) -> Index | None:
        """Positions of the present rows that a metric was learned on."""
        if self.metric_ids is None:
            return None
        return np.flatnonzero(np.isin(self.rows.ids, self.metric_ids))

    @property
    def missing(self) -> MissingIndicators | None:
        """Which training rows lack which values."""
        return MissingIndicators.of(self.rows.X, self.schema.columns.indicator_inputs)

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

    @cached_property
    def feature_importances(self) -> Array:
        """Importance of each column of the user's table, of sum one (see :func:`total_effect_shares`)."""
        return total_effect_shares(self.predictive, self.rows.X, self.schema.groups)

    def outside_rows(self, X: Array) -> OutsideRows:
        """Return how many rows lie outside the training data, and by which columns."""
        return OutsideRows.of(self.predictive.outside_by_input(X), self.schema.groups)

    @cached_property
    def prediction_remarks(self) -> tuple[str, ...]:
        """Remarks on predictive intervals at some training rows; none if rows are in files, nearly all of which would be read."""
        Y = self.rows.Y
        in_files = isinstance(self.model, Model) and self.model.has_rows_in_files
        if in_files or not (Y.min(axis=0) >= 0).any():
            return ()
        some = spread_rows(len(Y), N_REMARKED)
        with exact_variances():  # few rows, and part of a fit
            distribution = self.predictive.mixture(self.rows.X[some])
        return tuple(prediction_remarks(distribution, Y, self.schema.output_names))

    def evaluation_remarks(
        self, X: Array, Y: Array, distribution: Mixture, target_names: Sequence[str]
    ) -> list[str]:
        """Return remarks on rows that the model is evaluated on, and on its predictions there.

        Parameters
        ----------
        X : ndarray of shape (n, n_inputs)
        Y : ndarray of shape (n, n_outputs)
        distribution : Mixture
            Of these rows.
        target_names : sequence of str
        """
        columns, training = self.schema.columns, self.rows
        direct = columns.direct_inputs
        return [
            *evaluation_remarks(
                X[:, direct], Y, training.X[:, direct], training.Y, columns.indirect_columns
            ),
            *self.outside_rows(X).remarks,
            *prediction_remarks(distribution, training.Y, target_names),
        ]

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

    @property
    def kernel_posterior(self) -> list[RegionKernels]:
        """Posterior over kernels in every region of :attr:`user_tree` that has a sum node over them."""
        if not isinstance(self.model, Model):
            return []
        model, posterior = self.model, self.model.posterior
        named = {
            old: new for new, old in zip(nodes(self.user_tree), nodes(model.tree), strict=True)
        }
        regions = []
        for node, families in kernel_sums(model.tree, model.family):
            names = [model.families[k].kernel for k in families]
            shares = np.exp(posterior.log_weights[node]).tolist()
            first = named[node.children[0]]
            assert isinstance(first, Leaf)
            regions.append(
                RegionKernels(
                    first.region,
                    first.n_rows,
                    float(np.exp(posterior.log_reach[node])),
                    dict(zip(names, shares, strict=True)),
                )
            )
        return regions

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
