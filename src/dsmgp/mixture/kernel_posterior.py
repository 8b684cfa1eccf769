"""The posterior over kernels, where every region has a sum node over them (``kernel=["rbf", "matern32"]``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.mixture.fitted_mixture import FittedMixture
from dsmgp.tree.nodes import Leaf, Node, Sum, leaves, nodes
from dsmgp.tree.region import Region, box

__all__ = ["RegionKernels", "kernel_probabilities", "kernel_sums"]


@dataclass(frozen=True, eq=False, repr=False)
class RegionKernels:
    """The posterior over kernels in one region.

    Attributes
    ----------
    region : Region
    n_rows : int
        Training rows inside it.
    reach : float
        Posterior probability that the region is one of the partition.
    probabilities : dict of str to float
        By kernel; they sum to one.

    Examples
    --------
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(-1, 1, 80)[:, None]
    >>> model = DSMGPRegressor(["rbf", "matern12"], sum_children=1, leaf_size=40, random_state=0)
    >>> regions = model.fit(X, np.sin(3 * X[:, 0])).kernel_posterior_
    >>> [max(each.probabilities, key=each.probabilities.get) for each in regions]
    ['rbf', 'rbf', 'rbf']
    """

    region: Region
    n_rows: int
    reach: float
    probabilities: dict[str, float]

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {share:.3g}" for name, share in self.probabilities.items())
        return f"RegionKernels({box(self.region)}, {self.n_rows} rows, reach {self.reach:.3g}: {shares})"


def kernel_sums(tree: Node, family: Index) -> list[tuple[Sum, list[int]]]:
    """Return the sum nodes whose children are leaves of different families, and the families of these."""
    of_leaf: dict[Node, int] = dict(zip(leaves(tree), family.tolist(), strict=True))
    found = []
    for node in nodes(tree):
        if isinstance(node, Sum) and all(isinstance(child, Leaf) for child in node.children):
            families = [of_leaf[child] for child in node.children]
            if len(set(families)) == len(families) > 1:
                found.append((node, families))
    return found


def kernel_probabilities(model: FittedMixture, X: Array) -> Array:
    """Return the posterior probability of each family at rows of X, (n, n_families)."""
    leaf, row = model.router.route(model.inputs.to_coordinates(X)).pairs
    table = np.zeros((len(X), len(model.families)))
    np.add.at(table, (row, model.family[leaf]), np.exp(model.posterior.log_responsibilities[leaf]))
    return table
