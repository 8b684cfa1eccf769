"""A fitted deep structured mixture: a tree, a process per output, conditioned leaves, and weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.components import Components
from dsmgp.conditioned import Conditioned
from dsmgp.execution import as_tensor
from dsmgp.gate import Gate, log_product
from dsmgp.inference import Posterior, infer, prior_log_path_weights
from dsmgp.joint import Joint
from dsmgp.loo import LeaveOneOut
from dsmgp.mixture import Mixture
from dsmgp.online import Online
from dsmgp.process import Family, Process
from dsmgp.routes import Router, Routes
from dsmgp.splits import Splits
from dsmgp.tree import Node, Product, Sum, n_induced_trees, nodes
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.validation import check_reach

__all__ = ["WEIGHTS", "Model"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
#: How the leaves that a row reaches are weighed.
WEIGHTS = ("gated", "posterior", "uniform")
# Log of the share of a row's weight below which a leaf is not asked. To move the standard deviation by a
# thousandth its mean would have to be ten thousand of them away, and to move the mean by as much a billion.
NEGLIGIBLE = float(np.log(1e-12))
# Numbers that leaves say of rows at once: a few arrays of 64 MB.
AT_ONCE = 2**23


@dataclass
class Model:
    """The verbs on a fitted mixture. Rows come in, and laws go out, in the user's units.

    Attributes
    ----------
    tree : Node
    families : list of Family
        Kernels, means and noises: leaves of different partitions may differ in them.
    family : ndarray of shape (n_leaves,)
        Which of them a leaf belongs to.
    experts : Conditioned
        The leaves, given their training rows.
    inputs, outputs : InputUnits, OutputUnits
    weights : str
        ``"posterior"``: exact Bayesian model averaging over induced trees. ``"uniform"``: the prior's
        weights. ``"gated"``: by how sure each leaf is at x (see :mod:`dsmgp.gate`).
    scales : ndarray of shape (n_leaves, n_outputs)
        What each leaf's variance is multiplied by.
    gate : Gate or None
        With gated weights.
    thetas : list of ndarray of shape (n_leaves, n_parameters), or None
        By output, each leaf's own theta where leaves were fine-tuned; else that of its family stands.
    """

    tree: Node
    families: list[Family]
    family: Index
    experts: Conditioned | Online
    inputs: InputUnits
    outputs: OutputUnits
    weights: str
    scales: Array
    gate: Gate | None = None
    thetas: list[Array] | None = None

    def with_experts(self, experts: Conditioned | Online) -> Model:
        """The same on other rows: what does not depend on them is not computed again."""
        new = copy.copy(self)
        new.experts = experts
        for name in ("posterior", "log_weights", "log_path_weights", "_log_weight_bounds"):
            new.__dict__.pop(name, None)
        return new

    @property
    def processes(self) -> list[Process]:
        """Of the first family, the one that did best; one per output."""
        return self.families[0].processes

    @cached_property
    def posterior(self) -> Posterior:
        return infer(self.tree, self.experts.log_evidence.sum(axis=1))

    @property
    def n_rows(self) -> int:
        return self.experts.n_rows

    @property
    def log_evidence(self) -> float:
        """Log density of the training outputs in the user's units."""
        return self.posterior.log_evidence - self.n_rows * self.outputs.log_det

    @cached_property
    def log_weights(self) -> dict[Sum, Array]:
        """Log weights of the children of every sum node: the posterior's, or else the prior's."""
        if self.weights == "posterior":
            return self.posterior.log_weights
        return {node: node.log_weights for node in nodes(self.tree) if isinstance(node, Sum)}

    @cached_property
    def log_path_weights(self) -> Array:
        """Log of the product of those weights on the path from the root to each leaf."""
        if self.weights == "posterior":
            return self.posterior.log_responsibilities
        return prior_log_path_weights(self.tree)

    @property
    def local_scale(self) -> bool:
        return bool((self.scales != 1.0).any())

    @property
    def shape(self) -> Gate:
        """The scales over which leaves are spread; without a gate just one."""
        return self.gate or Gate()

    def log_gate(self, leaf: Index, variance: Array) -> Array:
        """The gate's log weight of leaves where their variance of y is given, (n, n_outputs)."""
        return self.shape.log_weight(self.log_path_weights[leaf], variance, self.scales[leaf])

    @property
    def _log_constants(self) -> Array:
        """Log weights of the leaves, but for what their variance adds."""
        return self.shape.log_constant(self.log_path_weights, self.scales)

    @cached_property
    def router(self) -> Router:
        return Router(self.tree, self.experts.experts.X.device)

    def mixture(self, X: Array, include_noise: bool = True, squeeze: bool = True) -> Mixture:
        """The predictive mixture at each row."""
        return self.law(self._components(X), include_noise, squeeze)

    def moments(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """The mixture's mean and standard deviation, (n, n_outputs) each, without the mixture of all rows at once."""
        mean = np.empty((len(X), self.outputs.n_outputs))
        std = np.empty_like(mean)
        for rows in self._parts(len(X)):
            mean[rows], std[rows] = self._moments(self._components(X[rows]), include_noise)
        return mean, std

    def noise(self, X: Array) -> Array:
        """Variance of the noise at each row, (n, n_outputs): that of its leaves, with their scales, as they are
        weighed there.

        It is what the variance of y has beyond that of f.
        """
        found = np.empty((len(X), self.outputs.n_outputs))
        of_leaf = self.experts.noise * self.scales * self.shape.mean_variance
        for rows in self._parts(len(X)):
            components = self._components(X[rows])
            log_constant = components.of_leaves(self._log_constants, -np.inf)
            weights = self._weights(components, log_constant)[:, :, None]
            noise = (weights * components.of_leaves(of_leaf, 0.0)).sum(axis=1)
            found[rows] = self.outputs.variance_to_user(noise)
        return found

    def _parts(self, n_rows: int) -> list[slice]:
        """Rows that are answered at once: what leaves say of more would take too much room."""
        step = max(1, AT_ONCE // (self._coverage * self.outputs.n_outputs))
        return [slice(first, first + step) for first in range(0, n_rows, step)]

    def law(
        self,
        components: Components,
        include_noise: bool = True,
        squeeze: bool = True,
        scale: Array | None = None,
        log_constant: Array | None = None,
        known: Array | None = None,
    ) -> Mixture:
        """The mixture of the leaves' laws of y, in the user's units.

        ``scale`` (n, n_components, n_outputs) and ``log_constant`` (n, n_components) stand in for the leaves'
        own scales and log weights (but for what the variance adds). ``known`` (n, n_outputs) is noise that the
        leaves do not know of.
        """
        if scale is None:
            scale = components.of_leaves(self.scales, 1.0)
        if log_constant is None:
            log_constant = components.of_leaves(self._log_constants, -np.inf)
        weights = self._weights(components, log_constant)
        shapes = self.shape
        n_shapes = len(shapes.shape_weights)
        spread = self._spread(components, scale, include_noise)[:, :, None, :]
        spread = spread * shapes.shape_variances[:, None]
        if known is not None:
            spread = spread + known[:, None, None, :]
        return Mixture(
            (weights[:, :, None] * shapes.shape_weights).reshape(len(weights), -1),
            np.repeat(components.mean, n_shapes, axis=1),
            spread.reshape(len(weights), -1, spread.shape[-1]),
            self.outputs,
            squeeze,
        )

    def _moments(self, components: Components, include_noise: bool) -> tuple[Array, Array]:
        """Of :meth:`law`, in the user's units, without spreading every leaf over its shapes."""
        scale = components.of_leaves(self.scales, 1.0)
        log_constant = components.of_leaves(self._log_constants, -np.inf)
        weights = self._weights(components, log_constant)[:, :, None]
        units, means = self.outputs, components.mean
        spread = self._spread(components, scale * self.shape.mean_variance, include_noise)
        if not units.diagonal:  # outputs meet in the user's units, and there a leaf's mean and the mixture's are compared
            means, spread = units.mean_to_user(means), units.variance_to_user(spread)
        mean = (weights * means).sum(axis=1)
        spread += np.square(means - mean[:, None])
        variance = (weights * spread).sum(axis=1)
        if units.diagonal:
            mean, variance = units.mean_to_user(mean), units.variance_to_user(variance)
        return mean, np.sqrt(variance)

    def _weights(self, components: Components, log_constant: Array) -> Array:
        """Of the leaves at each row, from their log weights there but for the variance: (n, n_components)."""
        tau = self.shape.variance_exponent
        log_weights = log_constant - tau * log_product(components.variance) if tau else log_constant
        weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def _spread(self, components: Components, scale: Array, include_noise: bool) -> Array:
        """Variance of the leaves with their scales."""
        variance = components.variance
        if not include_noise:
            # f may be known exactly at a training row without noise; a density still needs a width.
            variance = np.maximum(
                variance - components.of_leaves(self.experts.noise, 0.0), np.finfo(np.float64).tiny
            )
        return variance * scale

    def left_out_law(self, loo: LeaveOneOut, rows: Index, grouped: bool = False) -> Mixture:
        """The law of y at training rows given all other rows (and, ``grouped``, without their twins)."""
        components, known = loo.components(rows, grouped), loo.known(rows)
        scale = loo.scales_without(rows) if self.local_scale else np.ones(components.mean.shape)
        log_path = components.of_leaves(self.log_path_weights, -np.inf)
        if self.weights == "posterior":
            # These weights have seen what is left out: w_k without it is w_k / p_k(y_i | y_-i), up to a factor.
            # That is the density in the evidence, which knows of no scales.
            log_path = log_path - loo.log_density(rows, grouped)
        log_constant = self.shape.log_constant(log_path, scale)
        return self.law(
            components, squeeze=False, scale=scale, log_constant=log_constant, known=known
        )

    def mean(self, X: Array) -> Array:
        """The mixture's mean, (n, n_outputs); without a gate at a fraction of the mixture's cost."""
        if self.gate is not None:
            return self.moments(X)[0]
        mean = np.empty((len(X), self.outputs.n_outputs))
        for rows in self._parts(len(X)):
            routes = self._needed(self.router.route(X[rows]))
            leaf, row = routes.pairs
            means, _ = self.answers(X[rows], routes, with_variance=False)
            weights = np.exp(self.log_path_weights[leaf])
            total = np.bincount(row, weights)
            sums = [np.bincount(row, weights * column) / total for column in means.T]
            mean[rows] = self.outputs.mean_to_user(np.stack(sums, axis=1))
        return mean

    def covariance(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Mean (n, n_outputs) and each output's joint covariance (n_outputs, n, n) over the rows."""
        return Joint(self, X, include_noise).moments(self.tree, np.arange(len(X)))

    def draws(
        self, X: Array, n_samples: int, rng: np.random.Generator, include_noise: bool = False
    ) -> Array:
        """Joint draws over the rows, (n, n_outputs, n_samples)."""
        z = Joint(self, X, include_noise).draw(self.tree, np.arange(len(X)), n_samples, rng)
        return np.moveaxis(self.outputs.mean_to_user(np.moveaxis(z, 1, 2)), 2, 1)

    def splits(self, dimension: int) -> tuple[Array, Array]:
        """Where the tree cuts an input, in order, and the posterior probability of each cut.

        It is the probability that an induced tree contains the product that makes the cut.
        """
        found = sorted(
            (position, self.posterior.log_reach[node])
            for node in nodes(self.tree)
            if isinstance(node, Product) and node.dimension == dimension
            for position in node.splits
        )
        table = np.array(found, dtype=np.float64).reshape(-1, 2)
        return table[:, 0], np.exp(table[:, 1])

    def split_posterior(self, dimension: int, values: Array) -> Splits:
        """The same by the gaps between ``values``, those of the training rows, that the cuts lie in."""
        return Splits.of_tree(self.tree, self.posterior.log_reach, dimension, values)

    @property
    def n_induced_trees(self) -> int:
        return n_induced_trees(self.tree)

    def experts_see(self, X: Array) -> Tensor:
        like = self.experts.experts.X
        seen = check_reach(self.inputs.to_experts(X), "X", like.dtype == torch.float32)
        return as_tensor(seen, like)

    def answers(self, X: Array, routes: Routes, with_variance: bool = True) -> tuple[Array, Array]:
        """Mean and variance of f for every pair of leaf and row, in the units of the experts."""
        return self.experts.predict(routes, self.experts_see(X), with_variance)

    def _components(self, X: Array) -> Components:
        """What leaves say of y at the rows."""
        routes = self._needed(self.router.route(X))
        leaf, row = routes.pairs
        mean, variance = self.answers(X, routes)
        variance += self.experts.noise[leaf]
        return Components.of_pairs(len(X), leaf, row, mean, variance)

    @cached_property
    def _coverage(self) -> int:
        """Leaves that a row reaches, at most."""
        most: dict[Node, int] = {}
        for node in reversed(list(nodes(self.tree))):
            match node:
                case Sum():
                    most[node] = sum(most[child] for child in node.children)
                case Product():
                    most[node] = max(most[child] for child in node.children)
                case _:
                    most[node] = 1
        return most[self.tree]

    def _needed(self, routes: Routes) -> Routes:
        """Without leaves whose weight is next to nothing beside another's at the row, whatever their variances are."""
        least, most = self._log_weight_bounds
        if most.min() >= least.max() + NEGLIGIBLE:
            return routes
        leaf, row = routes.pairs
        best = np.full(row.max(initial=-1) + 1, -np.inf)
        np.maximum.at(best, row, least[leaf])
        return routes.only(most[leaf] >= best[row] + NEGLIGIBLE)

    @cached_property
    def _log_weight_bounds(self) -> tuple[Array, Array]:
        """The least and the most that a leaf's log weight can be anywhere: it is as sure as its noise at best, and
        its prior at worst."""
        noise = self.experts.noise
        if self.gate is None:
            return self.log_path_weights, self.log_path_weights
        leaf = np.arange(len(noise))
        prior = self.experts.prior_variance
        return self.log_gate(leaf, noise + prior), self.log_gate(leaf, noise)
