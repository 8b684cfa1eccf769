"""Products of experts, and the Bayesian committee machines: opinions multiplied, one way or another.

A product of Gaussian opinions with exponents ``beta_k``, and the prior with an exponent of its own, is Gaussian: its
precision is the sum of ``beta_k / v_k``, and its mean the opinions' in these proportions. The rules differ in the
exponents (Liu et al. 2020, "When Gaussian process meets big data", has all in one table). Opinions are of f, as
published, and noise is added afterwards; the GRBCM's are of y, as published.
"""

from __future__ import annotations

import gpytorch
import numpy as np
from numpy.typing import NDArray

from dsmgp.baselines.committee import Committee, Opinions
from dsmgp.baselines.division import divide, holder
from dsmgp.train import Trainer
from dsmgp.tree import Leaf, Node
from dsmgp.validation import check_choice

__all__ = ["BCM", "GRBCM", "RBCM", "GPoE", "PoE"]

Array = NDArray[np.float64]


class PoE(Committee):
    """Product of experts (Hinton 2002; Ng & Deisenroth 2014): every exponent is one, and the prior has none.

    Far from all data K experts are K times as sure as the prior: the rule is here as the base of the others. For parameters
    and attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = PoE(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.n_experts_, model.predict([[0.5]]).round(1)
    (3, array([0.1]))
    """

    def _combine(self, opinions: Opinions) -> tuple[Array, Array]:
        mean, variance = product(opinions, np.ones_like(opinions.mean))
        return mean, variance + opinions.noise


class GPoE(Committee):
    """Generalised product of experts (Cao & Fleet 2014): exponents that add up to one, so that far away the prior is left.

    Parameters
    ----------
    weighting : {"uniform", "entropy"}, default="uniform"
        ``1 / K`` for each of K experts (Deisenroth & Ng 2015), or in proportion to how much an expert has learned at the
        row: half the difference of the logarithms of prior and posterior variance.
    experts, leaf_size, kernel, ...
        See :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = GPoE("entropy", leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.predict([[0.5]]).round(1)
    array([0.1])
    """

    def __init__(
        self,
        weighting: str = "uniform",
        experts: str | Node = "random",
        leaf_size: int = 100,
        kernel: str | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        optimizer: str | None = "lbfgs",
        max_iter: int | None = None,
        standardize: bool = True,
        device: str = "auto",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            experts=experts,
            leaf_size=leaf_size,
            kernel=kernel,
            noise_variance=noise_variance,
            optimizer=optimizer,
            max_iter=max_iter,
            standardize=standardize,
            device=device,
            memory_limit=memory_limit,
            random_state=random_state,
        )
        self.weighting = weighting

    def _trainer(self, X: Array, Y: Array) -> Trainer:
        check_choice("weighting", self.weighting, ("uniform", "entropy"))
        return super()._trainer(X, Y)

    def _combine(self, opinions: Opinions) -> tuple[Array, Array]:
        n_experts = len(opinions.mean)
        exponent = np.full_like(opinions.mean, 1.0 / n_experts)
        if self.weighting == "entropy":
            learned = entropy_differences(opinions.variance, opinions.prior)
            total = learned.sum(axis=0)
            # Where nobody has learned anything all are alike.
            np.divide(learned, total, out=exponent, where=total > 0)
        mean, variance = product(opinions, exponent)
        return mean, variance + opinions.noise


class BCM(Committee):
    """Bayesian committee machine (Tresp 2000): experts are independent given f, so the prior is divided out K - 1 times.

    For parameters and attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> BCM(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0])).predict([[0.5]]).round(1)
    array([0.1])
    """

    def _combine(self, opinions: Opinions) -> tuple[Array, Array]:
        ones = np.ones_like(opinions.mean)
        mean, variance = product(opinions, ones, 1.0 - len(ones))
        return mean, variance + opinions.noise


class RBCM(Committee):
    """Robust Bayesian committee machine (Deisenroth & Ng 2015): exponents by how much each expert has learned at the row.

    For parameters and attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> RBCM(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0])).predict([[0.5]]).round(1)
    array([0.1])
    """

    def _combine(self, opinions: Opinions) -> tuple[Array, Array]:
        learned = entropy_differences(opinions.variance, opinions.prior)
        mean, variance = product(opinions, learned, 1.0 - learned.sum(axis=0))
        return mean, variance + opinions.noise


class GRBCM(Committee):
    """Generalised robust committee machine (Liu et al. 2018): one expert of random rows talks to all others.

    Every other expert also sees the rows of the first, which stands where the RBCM has the prior: its answers become
    those of a GP on all rows as there are more of them. Opinions are of y. Theta is learned on experts that share no rows.
    For parameters and attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = GRBCM(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.n_experts_, model.predict([[0.5]]).round(1)
    (3, array([0.1]))
    """

    def _layout(self) -> str:
        return "communicating"

    def _divide(self, trainer: Trainer) -> list[Leaf]:
        """The expert that talks to all comes first; the others share the rest of the rows."""
        n, n_dims = trainer.X.shape
        first = np.sort(trainer.rng.choice(n, min(self.leaf_size, n), replace=False))
        rest = np.setdiff1d(np.arange(n), first)
        found = [holder(first, n_dims)]
        if len(rest):
            others = divide(
                self.experts,
                trainer.X[rest],
                self.leaf_size,
                trainer.rng,
                trainer.inputs.scale,
            )
            found += [holder(rest[leaf.rows], n_dims) for leaf in others]
        return found

    def _arrange(self, disjoint: list[Leaf]) -> list[Leaf]:
        first, *others = disjoint
        assert first.rows is not None
        n_dims = first.region.n_dims
        return [first] + [
            holder(np.concatenate([first.rows, leaf.rows]), n_dims)
            for leaf in others
            if leaf.rows is not None
        ]

    def _combine(self, opinions: Opinions) -> tuple[Array, Array]:
        first = opinions.mean[0], opinions.variance[0] + opinions.noise
        if len(opinions.mean) == 1:
            return first
        variance = opinions.variance[1:] + opinions.noise
        exponent = entropy_differences(variance, first[1])
        exponent[0] = 1.0  # Liu et al., section 3.1: so that the first two are combined exactly
        own = 1.0 - exponent.sum(axis=0)
        precision = (exponent / variance).sum(axis=0) + own / first[1]
        pulled = (exponent * opinions.mean[1:] / variance).sum(axis=0) + own * first[0] / first[1]
        return pulled / precision, 1.0 / precision


def product(
    opinions: Opinions, exponent: Array, prior_exponent: float | Array = 0.0
) -> tuple[Array, Array]:
    """Mean and variance of f, (n, n_outputs): opinions and the prior, whose mean is zero, to these powers."""
    weighted = exponent / opinions.variance
    precision = weighted.sum(axis=0) + prior_exponent / opinions.prior
    return (weighted * opinions.mean).sum(axis=0) / precision, 1.0 / precision


def entropy_differences(variance: Array, prior: Array) -> Array:
    """What each expert has learned at a row, in nats; never negative, as rounding might have it."""
    return np.maximum(0.5 * (np.log(prior) - np.log(variance)), 0.0)
