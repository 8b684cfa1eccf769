"""A fitted deep structured mixture: a tree, a process per output, conditioned leaves, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.experts import Conditioned
from dsmgp.inference import Posterior, infer, prior_log_path_weights
from dsmgp.mixture import Mixture
from dsmgp.process import Process
from dsmgp.tree import Leaf, Node, Product, Sum, leaves, nodes, route
from dsmgp.units import InputUnits, OutputUnits

__all__ = ["WEIGHTS", "Model"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
#: How a sum node weighs its children.
WEIGHTS = ("posterior", "uniform")


@dataclass
class Model:
    """The verbs on a fitted mixture. Rows come in, and laws go out, in the user's units.

    Attributes
    ----------
    tree : Node
    processes : list of Process
        One per output of the experts.
    experts : Conditioned
        The leaves, given their training rows.
    inputs, outputs : InputUnits, OutputUnits
    weights : str
        ``"posterior"``: exact Bayesian model averaging over induced trees. ``"uniform"``: the prior's
        weights, as a comparison.
    """

    tree: Node
    processes: list[Process]
    experts: Conditioned
    inputs: InputUnits
    outputs: OutputUnits
    weights: str = "posterior"

    @cached_property
    def posterior(self) -> Posterior:
        return infer(self.tree, self.experts.log_evidence.sum(axis=1))

    @property
    def log_evidence(self) -> float:
        """Log density of the training outputs in the user's units."""
        return self.posterior.log_evidence - len(self.experts.experts.Y) * self.outputs.log_det

    @cached_property
    def log_weights(self) -> dict[Sum, Array]:
        """Log weights of the children of every sum node, as predictions use them."""
        if self.weights == "posterior":
            return self.posterior.log_weights
        return {node: node.log_weights for node in nodes(self.tree) if isinstance(node, Sum)}

    @cached_property
    def leaf_log_weights(self) -> Array:
        """Log of the product of those weights on the path from the root to each leaf."""
        if self.weights == "posterior":
            return self.posterior.log_responsibilities
        return prior_log_path_weights(self.tree)

    def mixture(self, X: Array, include_noise: bool = True, squeeze: bool = True) -> Mixture:
        """The predictive mixture at each row."""
        slots, weights, answers = self._components(X, with_variance=True)
        means = np.zeros((*weights.shape, self.outputs.n_outputs))
        variances = np.ones_like(means)
        for (points, slot), (mean, variance) in zip(slots, answers, strict=True):
            means[points, slot] = _numpy(mean)
            variances[points, slot] = _numpy(variance)
        if include_noise:
            variances += self.experts.noises
        else:
            # f may be known exactly at a training row without noise; a density still needs a width.
            variances = np.maximum(variances, np.finfo(np.float64).tiny)
        return Mixture(weights, means, variances, self.outputs, squeeze)

    def mean(self, X: Array) -> Array:
        """The mixture's mean, (n, n_outputs), at a fraction of the mixture's cost."""
        slots, weights, answers = self._components(X, with_variance=False)
        total = np.zeros((len(X), self.outputs.n_outputs))
        for (points, slot), (mean, _) in zip(slots, answers, strict=True):
            total[points] += weights[points, slot, None] * _numpy(mean)
        return self.outputs.mean_to_user(total)

    def _components(
        self, X: Array, with_variance: bool
    ) -> tuple[list[tuple[Index, Index]], Array, list[tuple[Tensor, Tensor]]]:
        """Where each leaf's answers go, (rows, components); the weights there; and the answers.

        Rows may reach different numbers of leaves: components that a row does not have weigh zero.
        """
        tasks = route(self.tree, X)
        used = np.zeros(len(X), dtype=np.int64)
        slots = []
        for _, points in tasks:
            slots.append((points, used[points]))
            used[points] += 1
        weights = np.zeros((len(X), int(used.max(initial=1))))
        for (number, _), (points, slot) in zip(tasks, slots, strict=True):
            weights[points, slot] = np.exp(self.leaf_log_weights[number])
        weights /= weights.sum(axis=1, keepdims=True)
        Z = self._experts_see(X)
        answers = self.experts.predict(
            [(number, Z[torch.from_numpy(points).to(Z.device)]) for number, points in tasks],
            with_variance,
        )
        return slots, weights, answers

    def covariance(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Mean (n, n_outputs) and each output's joint covariance (n_outputs, n, n) over the rows."""
        mean, covariance = _Joint(self, X).moments(self.tree, np.arange(len(X)))
        if include_noise:
            noise = self.outputs.variance_to_user(np.array(self.experts.noises))
            covariance = covariance + noise[:, None, None] * np.eye(len(X))
        return mean, covariance

    def draws(
        self, X: Array, n_samples: int, rng: np.random.Generator, include_noise: bool = False
    ) -> Array:
        """Joint draws over the rows, (n, n_outputs, n_samples).

        Each draw is a function: one child is picked at every sum node, and each leaf of that induced tree
        is drawn at all its rows together.
        """
        z = np.empty((len(X), len(self.processes), n_samples))
        _Joint(self, X).draw(self.tree, np.arange(len(X)), np.arange(n_samples), rng, z)
        if include_noise:
            z += rng.standard_normal(z.shape) * np.sqrt(self.experts.noises)[:, None]
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

    def _experts_see(self, X: Array) -> Tensor:
        train = self.experts.experts.X
        return torch.from_numpy(self.inputs.to_experts(X)).to(train)


class _Joint:
    """Joint laws over one set of rows, by recursion over the part of the tree that they reach."""

    def __init__(self, model: Model, X: Array) -> None:
        self.model, self.X, self.Z = model, X, model._experts_see(X)
        self.number = {id(leaf): k for k, leaf in enumerate(leaves(model.tree))}

    def moments(self, node: Node, points: Index) -> tuple[Array, Array]:
        """Mean (n, n_outputs) and covariances (n_outputs, n, n) of f in the user's units."""
        if isinstance(node, Leaf):
            mean, covariance = self._leaf(node, points)
            loading = self.model.outputs.loading
            return (
                self.model.outputs.mean_to_user(mean),
                np.einsum("pq,qij->pij", np.square(loading), covariance),
            )
        if isinstance(node, Product):  # children are independent: block-diagonal
            mean = np.empty((len(points), self.model.outputs.n_outputs))
            covariance = np.zeros((mean.shape[1], len(points), len(points)))
            for child, inside in self._children(node, points):
                mean[inside], covariance[:, inside[:, None], inside] = self.moments(
                    child, points[inside]
                )
            return mean, covariance
        weights = np.exp(self.model.log_weights[node])
        parts = [
            (weight, *self.moments(child, points))
            for weight, child in zip(weights, node.children, strict=True)
            if weight > 0
        ]
        mean = sum((weight * m for weight, m, _ in parts), start=np.zeros(()))
        covariance = np.zeros(parts[0][2].shape)
        for weight, m, c in parts:  # around the mean, where offsets do no harm
            away = (m - mean).T
            covariance += weight * (c + away[:, :, None] * away[:, None, :])
        return mean, covariance

    def draw(
        self,
        node: Node,
        points: Index,
        samples: Index,
        rng: np.random.Generator,
        out: Array,
    ) -> None:
        """Fill ``out[points, :, samples]`` with draws of f in the units of the experts."""
        if not samples.size or not points.size:
            return
        if isinstance(node, Leaf):
            mean, covariance = self._leaf(node, points)
            for output, matrix in enumerate(covariance):
                noise = rng.standard_normal((len(points), samples.size))
                drawn = mean[:, output, None] + _root(matrix) @ noise
                out[points[:, None], output, samples] = drawn
        elif isinstance(node, Product):
            for child, inside in self._children(node, points):
                self.draw(child, points[inside], samples, rng, out)
        else:
            weights = np.exp(self.model.log_weights[node])
            pick = rng.choice(len(weights), size=samples.size, p=weights / weights.sum())
            for k, child in enumerate(node.children):
                self.draw(child, points, samples[pick == k], rng, out)

    def _children(self, node: Product, points: Index) -> Sequence[tuple[Node, Index]]:
        """The children that any of the points reach, and which of the points."""
        side = np.searchsorted(node.splits, self.X[points, node.dimension], side="right")
        reached = [(child, np.flatnonzero(side == k)) for k, child in enumerate(node.children)]
        return [(child, inside) for child, inside in reached if inside.size]

    def _leaf(self, leaf: Leaf, points: Index) -> tuple[Array, Array]:
        rows = self.Z[torch.from_numpy(points).to(self.Z.device)]
        mean, covariance = self.model.experts.joint(self.number[id(leaf)], rows)
        return _numpy(mean), _numpy(covariance)


def _root(covariance: Array) -> Array:
    """A matrix whose product with its transpose is the covariance, which may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _numpy(tensor: Tensor) -> Array:
    return tensor.to("cpu", torch.float64).numpy()
