"""The fitted mixture: a tree, a GP per output and leaf, and weights of the leaves.

To predict, rows are routed to their leaves, the leaf GPs predict, and the gate or the posterior over the tree
combines their predictions into a mixture of Gaussians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.validation import check_in_range
from dsmgp.experts.interface import LeafPosterior
from dsmgp.experts.loo import Components, LeaveOneOut
from dsmgp.gp.process import Family, Process
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.mixture.description import describe_mixture
from dsmgp.mixture.edges import Edges
from dsmgp.mixture.fitted_model import (
    ROWS_IN_FILES,
    ROWS_IN_MEMORY,
    Description,
    Unsupported,
)
from dsmgp.mixture.gated_leaves import GatedLeaves
from dsmgp.mixture.inference import Posterior, infer, prior_log_path_weights
from dsmgp.mixture.kernel_posterior import kernel_sums
from dsmgp.mixture.leaf_components import few_components, low_rank_components
from dsmgp.mixture.predictive.distribution import Mixture
from dsmgp.mixture.splits import Splits
from dsmgp.mixture.variance_error import wants_exact
from dsmgp.mixture.weights.component_weights import ComponentWeights
from dsmgp.mixture.weights.gating import Gate
from dsmgp.mixture.weights.row_scale import MissingIndicators, RowScale
from dsmgp.tree.nodes import Node, Sum, n_induced_trees
from dsmgp.tree.routing import Router

__all__ = ["WEIGHTS", "Model"]

#: How the leaves that a row reaches are weighed.
WEIGHTS = ("gated", "posterior", "uniform")
# Entries of the arrays of leaf predictions that are held at once: a few arrays of 64 MB.
AT_ONCE = 2**23
# Up to so many rows are predicted one by one in compiled code, on the calling thread.
FEW_ROWS = 8


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A fitted mixture, immutable; it implements :class:`~dsmgp.mixture.fitted_model.FittedModel`.

    Inputs and predictions are in the user's units.

    Attributes
    ----------
    tree : Node
    families : list of Family
        Kernels, means and noises: leaves of different partitions may differ in them.
    family : ndarray of shape (n_leaves,)
        Which of them a leaf belongs to.
    leaf_posterior : LeafPosterior
        The leaf GPs, conditioned on their training rows.
    inputs, outputs : InputScaling, OutputScaling
    weights : str
        ``"posterior"``: exact Bayesian model averaging over induced trees. ``"uniform"``: the prior's
        weights. ``"gated"``: by the leaves' variances at x (see :mod:`dsmgp.mixture.weights.gating`).
    scales : ndarray of shape (n_leaves, n_outputs)
        Factors of the leaves' variances.
    gate : Gate or None
        With gated weights.
    thetas : list of ndarray of shape (n_leaves, n_parameters), or None
        By output, the hyperparameters of each leaf if leaves were fine-tuned; else those of their families hold.
    router : Router
        That of the tree; made if left out.
    row_scale : RowScale, optional
        Factors of the variances of rows with missing values.
    log_jacobian : float
        Sum over the training rows of log dt/dy, the log slopes of the output warps.
    n_observations : float or None
        Sum of the weights of the training rows; None if all are one.
    edges : Edges, optional
        Ranges of the inputs, and factors of the variances of rows beyond them.
    """

    tree: Node
    families: list[Family]
    family: Index
    leaf_posterior: LeafPosterior
    inputs: InputScaling
    outputs: OutputScaling
    weights: str
    scales: Array
    gate: Gate | None = None
    thetas: list[Array] | None = None
    router: Router = None  # type: ignore[assignment]
    row_scale: RowScale | None = None
    log_jacobian: float = 0.0
    n_observations: float | None = None
    edges: Edges | None = None

    has_change_points: ClassVar[bool] = False
    split_dimension: ClassVar[int] = 0
    outlier_probability: ClassVar[Array | None] = None

    def __post_init__(self) -> None:
        if self.router is None or self.router.root is not self.tree:
            object.__setattr__(self, "router", Router(self.tree))

    # Properties of the model

    @property
    def processes(self) -> tuple[Process, ...]:
        """The GP of each output, in the first family: the one with the best score."""
        return self.families[0].processes

    @cached_property
    def posterior(self) -> Posterior:
        """Posterior over the induced trees."""
        return infer(self.tree, self.leaf_posterior.log_evidence.sum(axis=1))

    @property
    def n_rows(self) -> int:
        """Number of training rows."""
        return self.leaf_posterior.n_rows

    @property
    def log_evidence(self) -> float:
        """Log density of the training outputs in the user's units."""
        n_observations = self.n_observations or self.n_rows
        latent = self.posterior.log_evidence - n_observations * self.outputs.log_det
        return latent + self.log_jacobian

    @property
    def n_induced_trees(self) -> int:
        """Number of partitions that are averaged."""
        return n_induced_trees(self.tree)

    @property
    def leaf_noise(self) -> Array:
        """Noise variances in the experts' units, without the leaves' scales: (n_leaves, n_outputs)."""
        return self.leaf_posterior.noise

    @property
    def unsupported(self) -> Unsupported:
        """Each kind of model is updated by its own methods, from rows in memory or from files."""
        return ROWS_IN_FILES if self.has_rows_in_files else ROWS_IN_MEMORY

    @property
    def kernel_sums(self) -> list[tuple[Sum, list[int]]]:
        """The sum nodes over kernels, and the families of their children."""
        return kernel_sums(self.tree, self.family)

    @property
    def has_rows_in_files(self) -> bool:
        """Whether the training rows are in files, from which leaves are computed shard by shard."""
        return self.leaf_posterior.leaf_gps.store is not None

    @property
    def pool(self) -> Any:
        """The workers that hold the leaves in shards; None if these are in this process."""
        return self.leaf_posterior.pool

    def description(self, input_names: Sequence[str], output_names: Sequence[str]) -> Description:
        """Return the lines of a summary about tree, evidence and gate."""
        return describe_mixture(self, output_names)

    def split_posterior(self, dimension: int, values: Array) -> Splits:
        """Posterior probabilities of the splits along an input, by the gaps between its training values."""
        coordinates = self.inputs.coordinates
        return Splits.along_input(
            self.tree, self.posterior.log_reach, coordinates, dimension, values
        )

    # Weights of the leaves

    @cached_property
    def component_weights(self) -> ComponentWeights:
        """The weights of the leaves, and which of them count at a row."""
        if self.weights == "posterior":
            log_path = self.posterior.log_responsibilities
        else:
            log_path = prior_log_path_weights(self.tree)
        gate = self.gate or Gate()
        return ComponentWeights(log_path, gate, self.scales, self.router, self.leaf_posterior)

    # Predictions

    def mean(self, X: Array) -> Array:
        """Predictive mean, (n, n_outputs); no variances are computed unless the gate needs them."""
        return self._moments(X, with_variance=False)[0]

    def moments(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Predictive mean and standard deviation, (n, n_outputs) each."""
        mean, variance = self._moments(X, include_noise)
        return mean, np.sqrt(variance)

    def mixture(
        self,
        X: Array,
        include_noise: bool = True,
        squeeze: bool = True,
        known_noise: Array | None = None,
    ) -> Mixture:
        """Predictive distribution at each row; ``known_noise`` (n, n_outputs) is that of the observations there, beyond what was learned."""
        return self.distribution(
            self._components(X, True, include_noise),
            include_noise,
            squeeze,
            known_noise=None if known_noise is None else self.outputs.noise_to_experts(known_noise),
            row_scale=self.row_factors(X),
        )

    def noise_at(self, X: Array) -> Array:
        """Noise variance at each row, (n, n_outputs): what the variance of y has beyond that of f."""
        if self.outputs.warps:
            of_y, of_f = (self._moments(X, noisy)[1] for noisy in (True, False))
            return np.maximum(of_y - of_f, 0.0)
        noise = np.empty((len(X), self.outputs.n_outputs))
        leaf_noise = (
            self.leaf_posterior.noise * self.scales * self.component_weights.gate.mean_variance
        )
        for rows in self._chunks(len(X)):
            components = self._components(X[rows])
            weights = self.component_weights.at(components)[:, :, None]
            total = (weights * components.of_leaves(leaf_noise, 0.0)).sum(axis=1)
            if (row_scale := self.row_factors(X[rows])) is not None:
                total *= row_scale[:, None]
            noise[rows] = self.outputs.variance_to_latent(total)
        return noise

    def leaf_weights(self, X: Array) -> Array:
        """Mixture weight of every leaf, averaged over the rows of X: (n_leaves,), of sum one."""
        total = np.zeros(len(self.family))
        for rows in self._chunks(len(X)):
            components = self._components(X[rows])
            weights, reached = self.component_weights.at(components), components.leaf >= 0
            total += np.bincount(components.leaf[reached], weights[reached], len(total))
        return total / len(X)

    def covariance(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Predictive mean (n, n_outputs) and joint covariance of each output (n_outputs, n, n)."""
        joint = GatedLeaves(self, X, include_noise).joint()
        return joint.moments(self.tree, np.arange(len(X)))

    def draws(
        self, X: Array, n_samples: int, rng: np.random.Generator, include_noise: bool = False
    ) -> Array:
        """Joint draws over the rows, (n, n_outputs, n_samples)."""
        joint = GatedLeaves(self, X, include_noise).joint()
        z = joint.draws(self.tree, np.arange(len(X)), n_samples, rng)
        return np.moveaxis(self.outputs.from_experts(np.moveaxis(z, 1, 2)), 2, 1)

    def loo_distribution(
        self,
        loo: LeaveOneOut,
        rows: Index,
        grouped: bool = False,
        missing: MissingIndicators | None = None,
    ) -> Mixture:
        """Predictive distribution at training rows given all others; ``grouped`` leaves out duplicate inputs, too."""
        components, known_noise = loo.components(rows, grouped), loo.known_noise(rows)
        local_scale = (self.scales != 1.0).any()
        scale = loo.scales_without(rows) if local_scale else np.ones(components.mean.shape)
        log_path = components.of_leaves(self.component_weights.log_path, -np.inf)
        if self.weights == "posterior":
            # These weights have seen the row: without it they are w_k / p_k(y_i | y_-i), up to a factor,
            # with the density of the evidence, which knows no scales.
            log_path = log_path - loo.log_density(rows, grouped)
        row_scale = None
        if self.row_scale is not None and missing is not None:
            row_scale = self.row_scale.of_indicators(missing.table[rows])
        return self.distribution(
            components,
            squeeze=False,
            scale=scale,
            row_scale=row_scale,
            log_constant=self.component_weights.gate.log_constant(log_path, scale),
            known_noise=known_noise,
        )

    def distribution(
        self,
        components: Components,
        include_noise: bool = True,
        squeeze: bool = True,
        scale: Array | None = None,
        log_constant: Array | None = None,
        known_noise: Array | None = None,
        row_scale: Array | None = None,
    ) -> Mixture:
        """Combine the leaves' predictions of y into a mixture in the user's units.

        Parameters
        ----------
        components : Components
        include_noise, squeeze : bool
        scale : ndarray of shape (n, n_components, n_outputs), optional
            Used instead of the leaves' scales.
        log_constant : ndarray of shape (n, n_components), optional
            Used instead of the part of the log weights that does not depend on x.
        known_noise : ndarray of shape (n, n_outputs), optional
            Noise variance beyond that of the leaves.
        row_scale : ndarray of shape (n,), optional
            Factors of the variances of rows.
        """
        if scale is None:
            scale = components.of_leaves(self.scales, 1.0)
        weights = self.component_weights.at(components, log_constant)
        gate = self.component_weights.gate
        n_shapes = len(gate.shape_weights)
        if row_scale is not None:
            scale = scale * row_scale[:, None, None]
        variance = self._scaled_variance(components, scale, include_noise)[:, :, None, :]
        variance = variance * gate.shape_variances[:, None]
        if known_noise is not None:
            variance = variance + known_noise[:, None, None, :]
        return Mixture(
            (weights[:, :, None] * gate.shape_weights).reshape(len(weights), -1),
            np.repeat(components.mean, n_shapes, axis=1),
            variance.reshape(len(weights), -1, variance.shape[-1]),
            self.outputs,
            squeeze,
        )

    def _moments(
        self, X: Array, include_noise: bool = True, with_variance: bool = True
    ) -> tuple[Array, Array]:
        """Mean and, ``with_variance``, variance of the mixture, without the mixture of all rows at once."""
        units = self.outputs
        mean = np.empty((len(X), units.n_outputs))
        variance = np.empty_like(mean) if with_variance else mean[:0]
        for rows in self._chunks(len(X)):
            if units.warps:  # the mean of y depends on the variance of its latent output, too
                mixture = self.mixture(X[rows], include_noise, False)
                mean[rows] = mixture.mean
                if with_variance:
                    variance[rows] = mixture.var
                continue
            components = self._components(
                X[rows], with_variance or self.gate is not None, include_noise
            )
            weights = self.component_weights.at(components)[:, :, None]
            means = components.mean
            # Where outputs are mixed, leaves and mixture are compared in the user's units.
            if not units.diagonal:
                means = units.mean_to_latent(means)
            chunk = (weights * means).sum(axis=1)
            mean[rows] = units.mean_to_latent(chunk) if units.diagonal else chunk
            if not with_variance:
                continue
            scale = (
                components.of_leaves(self.scales, 1.0) * self.component_weights.gate.mean_variance
            )
            if (row_scale := self.row_factors(X[rows])) is not None:
                scale = scale * row_scale[:, None, None]
            spread = self._scaled_variance(components, scale, include_noise)
            if not units.diagonal:
                spread = units.variance_to_latent(spread)
            spread += np.square(means - chunk[:, None])
            total = (weights * spread).sum(axis=1)
            variance[rows] = units.variance_to_latent(total) if units.diagonal else total
        return mean, variance

    def _scaled_variance(self, components: Components, scale: Array, include_noise: bool) -> Array:
        """Variances of the leaves times their scales, (n, n_components, n_outputs)."""
        variance = components.variance
        if not include_noise:
            # f may be known exactly at a training row without noise; a density still needs a width.
            variance = np.maximum(
                variance - components.of_leaves(self.leaf_posterior.noise, 0.0),
                np.finfo(np.float64).tiny,
            )
        return variance * scale

    def row_factors(self, X: Array) -> Array | None:
        """Factors of the variances of rows with missing values and of those outside the data, (n,); None if all are one."""
        missing = None if self.row_scale is None else self.row_scale(X)
        outside = None if self.edges is None else self.edges.variance_factor(X, self.inputs)
        if missing is None or outside is None:
            return missing if outside is None else outside
        return missing * outside

    def outside(self, X: Array) -> Array:
        """How far rows lie outside the training data, in length scales, (n,); 0 inside."""
        return np.zeros(len(X)) if self.edges is None else self.edges.distance(X, self.inputs)

    def outside_by_input(self, X: Array) -> Array:
        """The same by each input alone, (n, n_inputs)."""
        if self.edges is None:
            return np.zeros(X.shape)
        return self.edges.distance_by_input(X, self.inputs)

    # Predictions of the leaves

    def to_experts(self, X: Array) -> Array:
        """Return inputs as the leaf GPs see them."""
        return self.scaled(self.inputs.to_coordinates(X))

    def scaled(self, U: Array) -> Array:
        """Scale coordinates as the leaf GPs see them."""
        single = self.leaf_posterior.leaf_gps.dtype == "float32"
        return check_in_range(self.inputs.scaled(U), "X", single)

    def _components(
        self, X: Array, with_variance: bool = True, include_noise: bool = True
    ) -> Components:
        """Predictions of y by the leaves that the rows reach, but for those of negligible weight.

        Variances of large leaves may be low-rank ones, if noise is included and nobody wants exact ones.
        """
        low_rank = with_variance and include_noise and not wants_exact()
        return self.leaf_predictions(self.inputs.to_coordinates(X), with_variance, low_rank)

    def leaf_predictions(
        self, U: Array, with_variance: bool = True, low_rank: bool = False
    ) -> Components:
        """Predictions of y by the leaves that rows reach, from their coordinates."""
        posterior, Z = self.leaf_posterior, self.scaled(U)
        if (here := posterior.in_memory) is not None:
            if len(U) <= FEW_ROWS and here.leaf_gps.compiled:
                found = few_components(self, here, U, Z, with_variance, low_rank)
                if found is not None:
                    return found
            if low_rank:
                routes = self.component_weights.relevant_routes(U)
                return low_rank_components(self, here, routes, Z)
        routes = self.component_weights.relevant_routes(U)
        leaf, row = routes.pairs
        mean, variance = posterior.predict(routes, Z, with_variance)
        if with_variance:
            variance += posterior.noise[leaf]
        return Components.of_pairs(len(U), leaf, row, mean, variance if with_variance else None)

    def _chunks(self, n_rows: int) -> list[slice]:
        """Slices of rows whose leaf predictions fit in memory together."""
        width = self.router.max_reached * self.outputs.n_outputs
        if self.outputs.warps:  # the moments of each shape are computed
            width *= len(self.component_weights.gate.shape_weights)
        step = max(1, AT_ONCE // width)
        return [slice(first, first + step) for first in range(0, n_rows, step)]
