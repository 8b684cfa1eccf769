"""Exact inference over the tree, in log space: evidence, posterior weights of sum nodes, responsibilities of leaves.

One upward and one downward pass, linear in the number of nodes; the paper's Algorithm 2 with its
product initialised to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from dsmgp.tree.nodes import Leaf, Node, Product, Sum, nodes

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
    log_weights: dict[Sum, NDArray[np.float64]]
    log_reach: dict[Node, float]
    log_responsibilities: NDArray[np.float64]

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
    order = list(nodes(root))
    value: dict[Node, float] = {}
    log_weights: dict[Sum, NDArray[np.float64]] = {}
    number = len(of_leaf)
    for node in reversed(order):  # children before parents
        match node:
            case Leaf():
                number -= 1
                value[node] = float(of_leaf[number])
            case Product():
                value[node] = math.fsum(value[child] for child in node.children)
            case Sum():
                terms = node.log_weights + [value[child] for child in node.children]
                value[node] = float(logsumexp(terms))
                log_weights[node] = terms - value[node]
    if number:
        raise ValueError(f"expected {len(of_leaf) - number} leaf evidences, got {len(of_leaf)}")
    log_reach = _reach(root, order, log_weights)
    responsibilities = np.array([log_reach[node] for node in order if isinstance(node, Leaf)])
    return Posterior(value[root], log_weights, log_reach, responsibilities)


def prior_log_path_weights(root: Node) -> NDArray[np.float64]:
    """Return, for each leaf, the log of the product of the prior weights on its path from the root."""
    order = list(nodes(root))
    prior = {node: node.log_weights for node in order if isinstance(node, Sum)}
    reach = _reach(root, order, prior)
    return np.array([reach[node] for node in order if isinstance(node, Leaf)])


def _reach(
    root: Node, order: list[Node], log_weights: dict[Sum, NDArray[np.float64]]
) -> dict[Node, float]:
    """Return the log probability that an induced tree contains each node."""
    reach = {root: 0.0}
    for node in order:
        if isinstance(node, Sum):
            for child, log_weight in zip(node.children, log_weights[node], strict=True):
                reach[child] = reach[node] + float(log_weight)
        elif isinstance(node, Product):
            for child in node.children:
                reach[child] = reach[node]
    return reach
