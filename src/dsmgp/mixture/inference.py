"""Exact inference over the tree, in log space: evidence, posterior weights of sum nodes, responsibilities of leaves.

One upward and one downward pass, linear in the number of nodes; the paper's Algorithm 2 with its
product initialised to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.tree.nodes import Node, Product, Sum, fold, from_root, leaves

__all__ = ["Posterior", "infer", "prior_log_path_weights"]


@dataclass(frozen=True)
class Posterior:
    """The posterior over the induced trees of a tree.

    Attributes
    ----------
    log_evidence : float
        Log density of all observations under the root.
    log_weights : dict of Sum to ndarray
        Log posterior weights of each sum node's children.
    log_reach : dict of Node to float
        Log posterior probability that an induced tree contains the node.
    log_responsibilities : ndarray of shape (n_leaves,)
        ``log_reach`` of the leaves, in the order of their numbers. It is the product of the posterior
        weights on the path from the root, and the derivative of the root's log evidence by the leaf's.
    """

    log_evidence: float
    log_weights: dict[Sum, Array]
    log_reach: dict[Node, float]
    log_responsibilities: Array

    @property
    def n_effective_trees(self) -> float:
        """Effective number of induced trees: the exponential of the posterior's entropy."""
        entropy = 0.0
        # The choice at a sum node only counts in the induced trees that contain the node.
        for node, log_weights in self.log_weights.items():
            weights = np.exp(log_weights)
            node_entropy = -float(np.sum(weights * np.where(weights > 0, log_weights, 0.0)))
            entropy += math.exp(self.log_reach[node]) * node_entropy
        return math.exp(entropy) if entropy < 700 else math.inf


def infer(root: Node, leaf_log_evidence: ArrayLike) -> Posterior:
    """Return the posterior of a tree, given the log evidence of each leaf in the order of the leaves' numbers.

    Examples
    --------
    >>> from dsmgp.tree.nodes import Leaf, Sum
    >>> from dsmgp.tree.region import Region
    >>> tree = Sum([Leaf(Region.whole(1)), Leaf(Region.whole(1))])
    >>> posterior = infer(tree, np.log([0.3, 0.1]))
    >>> print(np.exp(posterior.log_evidence).round(3), np.exp(posterior.log_weights[tree]).round(3))
    0.2 [0.75 0.25]
    """
    of_leaf = np.asarray(leaf_log_evidence, dtype=np.float64)
    every = leaves(root)
    if len(every) != len(of_leaf):
        raise InputError(f"expected {len(every)} leaf evidences, got {len(of_leaf)}")
    evidence = dict(zip(every, of_leaf.tolist(), strict=True))
    log_weights: dict[Sum, Array] = {}

    def log_mixture(node: Sum, of_children: list[float]) -> float:
        terms = node.log_weights + of_children
        total = float(logsumexp(terms))
        log_weights[node] = terms - total
        return total

    log_evidence = fold(root, evidence.__getitem__, lambda _, parts: math.fsum(parts), log_mixture)
    log_reach = _log_reach(root, log_weights.__getitem__)
    responsibilities = np.array([log_reach[leaf] for leaf in every])
    return Posterior(log_evidence, log_weights, log_reach, responsibilities)


def prior_log_path_weights(root: Node) -> Array:
    """Return, for each leaf, the log of the product of the prior weights on its path from the root."""
    log_reach = _log_reach(root, lambda node: node.log_weights)
    return np.array([log_reach[leaf] for leaf in leaves(root)])


def _log_reach(root: Node, log_weights: Callable[[Sum], Array]) -> dict[Node, float]:
    """Return the log probability that an induced tree contains each node."""

    def of_children(node: Sum | Product, log_reach: float) -> list[float]:
        if isinstance(node, Sum):
            return [log_reach + log_weight for log_weight in log_weights(node).tolist()]
        return [log_reach] * len(node.children)

    return from_root(root, 0.0, of_children)
