"""The state of a fitted estimator: model, training rows, input schema, and how far online updates have gone.

States are immutable. ``fit`` makes the first one; the functions of :mod:`dsmgp.fitting.updates` take a state and
return another. What the estimator's attributes show is computed here, and kept where it takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.warnings import ExtrapolationWarning, warn_user
from dsmgp.data.columns.remarks import (
    evaluation_remarks,
    n_training_rows,
    prediction_remarks,
    spread_rows,
)
from dsmgp.data.input_schema import InputSchema
from dsmgp.data.outside import OutsideRows
from dsmgp.explain.effects import total_effect_shares
from dsmgp.fitting.learning.optimize import SearchRecord
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.mixture.edges import range_of
from dsmgp.mixture.ensemble import Ensemble
from dsmgp.mixture.fitted_model import FittedModel, Predictive
from dsmgp.mixture.kernel_posterior import RegionKernels
from dsmgp.mixture.model import Model
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution
from dsmgp.mixture.variance_error import exact_variances
from dsmgp.mixture.weighting import LOOSample, weigh
from dsmgp.mixture.weights.row_scale import MissingIndicators
from dsmgp.mixture.weights.stacking import Stacking
from dsmgp.tree.nodes import Leaf, Node, Sum, leaves, map_splits, nodes
from dsmgp.tree.routing import place

__all__ = ["FittedState"]

# A review is due when this share of the rows of the last fit has been added or removed, a fit when all have.
REVIEW_SHARE = 0.2
# Training rows whose predictive intervals are computed for remarks.
N_REMARKED = 500


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
        Weights of all hypotheses, the model's own first, and their scores as of the last fit.
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
    def of(
        cls,
        model: FittedModel,
        rows: TrainingRows,
        schema: InputSchema,
        search: SearchRecord,
        scores: tuple[float, float],
        local_scale: bool,
        metric_ids: Index | None = None,
    ) -> FittedState:
        """Return the state after a fit."""
        tree = model.tree
        partitions = tree.children if isinstance(tree, Sum) else (tree,)
        sizes = [[leaf.n_rows for leaf in leaves(part)] for part in partitions]
        return cls(
            model=model,
            rows=rows,
            schema=schema,
            search=search,
            local_scale=local_scale,
            partition_sizes=np.repeat([max(part) for part in sizes], [len(part) for part in sizes]),
            n_fitted=len(rows),
            scores=scores,
            metric_ids=metric_ids if metric_ids is not None and len(metric_ids) else None,
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
        stacking, order = self.stacking, np.arange(len(members))
        if stacking is not None:
            stacking, order = stacking.updated([each.model.log_evidence for each in members])
        first, *others = (members[k] for k in order.tolist())
        # One copy of the rows serves all.
        alternatives = tuple(replace(each, rows=first.rows) for each in others)
        return replace(first, alternatives=alternatives, stacking=stacking)

    @property
    def log_evidence(self) -> float:
        """Log evidence of the model, or of all hypotheses where they are averaged by it."""
        if self.stacking is None or self.stacking.log_prior is None:
            return self.model.log_evidence
        return self.stacking.log_evidence([each.model.log_evidence for each in self.members])

    @property
    def score_kind(self) -> str:
        """How :attr:`reported_scores` were obtained."""
        return "leave-one-out" if self.stacking is None else self.stacking.score_kind

    @property
    def reported_scores(self) -> tuple[float, float] | None:
        """The scores of the mixture of all hypotheses, else those of the model."""
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

    def loo_sample(self, n_gate_rows: int, rng: np.random.Generator) -> LOOSample:
        """Draw present rows that fit the gate again and score the model."""
        return LOOSample.draw(len(self.rows), n_gate_rows, rng, self.metric_rows, self.missing)

    @property
    def mixture(self) -> Model:
        """The model of a kind that supports updates and fine-tuning (see :func:`check_supported`)."""
        assert not self.model.has_change_points
        return cast(Model, self.model)

    @cached_property
    def conditioned(self) -> FittedState:
        """The state with all leaves conditioned together and LOO scores; itself, where no rows came or went."""
        if self.scores is not None:
            return self
        if self.alternatives:
            return self.with_members([each.conditioned for each in self.members])
        every = np.arange(len(self.partition_sizes))
        return self.conditioned_on(self.tree, every, 0, np.random.default_rng(0))

    def conditioned_on(
        self, tree: Node, origin: Index, n_gate_rows: int, rng: np.random.Generator
    ) -> FittedState:
        """Condition all leaves of a tree on the present rows, and weigh them.

        Parameters
        ----------
        tree : Node
        origin : ndarray of shape (n_leaves of the tree,)
            The leaf of the present model from which each leaf takes its hyperparameters.
        n_gate_rows : int
            Rows that the gate is fitted on again; zero to keep it.
        rng : Generator
        """
        model, rows = self.mixture, self.rows
        old = model.leaf_posterior
        leaf_gps = old.leaf_gps.rebuild(
            leaves(tree),
            rows.leaf_data(model.inputs, model.outputs),
            [[kernels[k] for k in origin] for kernels in old.leaf_gps.kernels],
        )
        kernel_parameters = [p if p.ndim == 1 else p[origin] for p in old.kernel_parameters]
        sample = self.loo_sample(n_gate_rows, rng)
        conditioned = replace(
            model,
            tree=tree,
            family=model.family[origin],
            leaf_posterior=leaf_gps.condition(kernel_parameters, old.memory, True, sample.rows),
            scales=model.scales[origin],
            thetas=None if model.thetas is None else [theta[origin] for theta in model.thetas],
            log_jacobian=model.outputs.log_jacobian(rows.Y, rows.weights),
            n_observations=rows.n_observations,
            edges=None if model.edges is None else model.edges.with_range(*range_of(rows.X)),
        )
        weighed, scores = weigh(conditioned, self.local_scale, sample)
        sizes = self.partition_sizes[origin]
        return replace(self, model=weighed, scores=scores, partition_sizes=sizes)

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
        if coordinates is None or coordinates.is_oblique:
            return self.tree
        columns = coordinates.columns.tolist()
        return map_splits(
            self.tree,
            coordinates.n_inputs,
            lambda k, splits: (columns[k], coordinates.to_input(k, np.array(splits)).tolist()),
        )

    @cached_property
    def effect_shares(self) -> dict[str, float]:
        """Importance of each column that became inputs, of sum one (see :func:`total_effect_shares`)."""
        groups = self.schema.groups
        shares = total_effect_shares(self.predictive, self.rows.X, groups)
        return dict(zip((name for name, _ in groups), shares.tolist(), strict=True))

    @property
    def feature_importances(self) -> Array:
        """Importance of each column of the user's table; zero for those that were left out."""
        return np.array([self.effect_shares.get(name, 0.0) for name in self.schema.column_names])

    @property
    def kernel(self) -> Any:
        """The kernel as learned; a list of those of several outputs."""
        kernels = [process.kernel for process in self.model.processes]
        return kernels[0] if len(kernels) == 1 else kernels

    @property
    def noise(self) -> float | list[float]:
        """The noise variance as learned, in the experts' units; a list of those of several outputs."""
        noises = [process.noise for process in self.model.processes]
        return noises[0] if len(noises) == 1 else noises

    @property
    def leaf_noise(self) -> Array:
        """Noise variance of each leaf in the experts' units, (n_leaves,) or (n_leaves, n_outputs)."""
        return self.schema.shaped(self.model.leaf_noise.copy())

    @property
    def remarks(self) -> list[str]:
        """What became of the columns of the training table, and what looks wrong with them or with predictions."""
        return [*self.schema.remarks, *self.prediction_remarks]

    def outside_rows(self, X: Array) -> OutsideRows:
        """Return how many rows lie outside the training data, and by which columns."""
        return OutsideRows.of(self.predictive.outside_by_input(X), self.schema.groups)

    def warn_of_outside(self, X: Array) -> None:
        """Warn if many rows lie outside the training data, or some far outside."""
        outside = self.outside_rows(X)
        if outside.is_notable:
            warn_user(outside.remark, ExtrapolationWarning, topic="outside")

    @cached_property
    def prediction_remarks(self) -> tuple[str, ...]:
        """Remarks on predictive intervals at some training rows; none if rows are in files, nearly all of which would be read."""
        Y = self.rows.Y
        if self.model.has_rows_in_files or not (Y.min(axis=0) >= 0).any():
            return ()
        some = spread_rows(len(Y), N_REMARKED)
        with exact_variances():  # few rows, and part of a fit
            distribution = self.predictive.mixture(self.rows.X[some])
        return tuple(prediction_remarks(distribution, Y, self.schema.output_names))

    def evaluation_remarks(
        self, X: Array, Y: Array, distribution: PredictiveDistribution, target_names: Sequence[str]
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

    def n_training_rows(self, X: Array, Y: Array) -> int:
        """Return how many rows the model was fitted to, by their inputs and targets."""
        direct, training = self.schema.columns.direct_inputs, self.rows
        return n_training_rows(X[:, direct], Y, training.X[:, direct], training.Y)

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
        model, posterior = self.model, self.model.posterior
        named = {
            old: new for new, old in zip(nodes(self.user_tree), nodes(model.tree), strict=True)
        }
        regions = []
        for node, families in model.kernel_sums:
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
