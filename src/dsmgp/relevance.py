"""Which inputs the function varies along, by the length-scales that the leaves' kernels learned."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsmgp.breaking import BreakingModel
from dsmgp.model import Model
from dsmgp.stationary import Stationary
from dsmgp.tree import leaves

__all__ = ["relevance"]


def relevance(model: Model | BreakingModel) -> NDArray[np.float64]:
    """Inverse length-scales per standard deviation of each input, over the largest of them.

    Averaged over outputs, and over families of leaves by the rows that they hold.
    """
    n_dims = model.inputs.centre.size
    total = np.zeros(n_dims)
    for share, family in zip(_shares(model), model.families, strict=True):
        laws = family.laws(n_dims)
        for law, natural in zip(laws, family.naturals(n_dims), strict=True):
            if not isinstance(law, Stationary):
                raise ValueError(
                    "the kernel has no length-scale for each input; use plot_dependence to see what inputs do"
                )
            rates = np.zeros(n_dims)
            rates[list(law.columns)] = 1.0 / natural.numpy()[: len(law.columns)]
            total += share * rates / len(laws)
    return np.asarray(total / total.max())


def _shares(model: Model | BreakingModel) -> list[float]:
    """Of the rows, that the leaves of each family hold."""
    if isinstance(model, BreakingModel):  # one family has them all
        return [1.0]
    sizes = np.array([leaf.n_rows for leaf in leaves(model.tree)])
    return [
        sizes[model.family == number].sum() / max(sizes.sum(), 1)
        for number in range(len(model.families))
    ]
