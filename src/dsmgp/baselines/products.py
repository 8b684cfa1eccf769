"""Products of experts and Bayesian committee machines: predictions are multiplied, with different exponents.

A product of Gaussian predictions to the powers ``beta_k``, and of the prior to a power of its own, is Gaussian: its precision is the
sum of ``beta_k / v_k``, and its mean is the experts' mean in these proportions. The rules differ in the exponents (Liu et al. 2020,
"When Gaussian process meets big data", has all in one table). As published, predictions are of f and noise is added afterwards; those
of the GRBCM are of y.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.validation import check_choice
from dsmgp.baselines.committee import Committee, ExpertPredictions
from dsmgp.baselines.division import divide, unbounded_leaf
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.kernels import Kernel
from dsmgp.tree.nodes import Leaf, Node

if TYPE_CHECKING:
    import gpytorch

__all__ = ["BCM", "GRBCM", "RBCM", "GPoE", "PoE"]


class _Product(Committee):
    """A committee whose predictions of f are multiplied. Subclasses choose the exponents."""

    def _combine(self, predictions: ExpertPredictions) -> tuple[Array, Array]:
        mean, variance = product(predictions, *self._exponents(predictions))
        return mean, variance + predictions.noise

    def _exponents(self, predictions: ExpertPredictions) -> tuple[Array, float | Array]:
        """Return the exponents of the experts (n_experts, n, n_outputs), and that of the prior."""
        raise NotImplementedError


class PoE(_Product):
    """Product of experts (Hinton 2002; Ng & Deisenroth 2014): every exponent is one, and the prior has none.

    Far from all data K experts are K times as certain as the prior; the rule is the base of the others. For parameters and
    attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = PoE(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.n_experts_, model.predict([[0.5]]).round(1)
    (3, array([0.1]))
    """

    def _exponents(self, predictions: ExpertPredictions) -> tuple[Array, float | Array]:
        return np.ones_like(predictions.mean), 0.0


class GPoE(_Product):
    """Generalised product of experts (Cao & Fleet 2014): exponents sum to one, so that predictions far away are the prior.

    The other parameters are those of :class:`~dsmgp.baselines.committee.Committee`.

    Parameters
    ----------
    weighting : "uniform" or "entropy", default="uniform"
        ``1 / K`` for each of K experts (Deisenroth & Ng 2015), or proportional to how much an expert has learned at the
        row: half the difference of the logarithms of prior and posterior variance.

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
        kernel: str | Kernel | gpytorch.kernels.Kernel = "rbf",
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

    def _config(self) -> FitConfig:
        check_choice("weighting", self.weighting, ("uniform", "entropy"))
        return super()._config()

    def _exponents(self, predictions: ExpertPredictions) -> tuple[Array, float | Array]:
        exponents = np.full_like(predictions.mean, 1.0 / len(predictions.mean))
        if self.weighting == "entropy":
            learned = entropy_differences(predictions.variance, predictions.prior)
            total = learned.sum(axis=0)
            # Where no expert has learned anything the exponents stay uniform.
            np.divide(learned, total, out=exponents, where=total > 0)
        return exponents, 0.0


class BCM(_Product):
    """Bayesian committee machine (Tresp 2000): experts are independent given f, so the prior is divided out K - 1 times.

    For parameters and attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> BCM(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0])).predict([[0.5]]).round(1)
    array([0.1])
    """

    def _exponents(self, predictions: ExpertPredictions) -> tuple[Array, float | Array]:
        return np.ones_like(predictions.mean), 1.0 - len(predictions.mean)


class RBCM(_Product):
    """Robust Bayesian committee machine (Deisenroth & Ng 2015): exponents by how much each expert has learned at the row.

    For parameters and attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> RBCM(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0])).predict([[0.5]]).round(1)
    array([0.1])
    """

    def _exponents(self, predictions: ExpertPredictions) -> tuple[Array, float | Array]:
        learned = entropy_differences(predictions.variance, predictions.prior)
        return learned, 1.0 - learned.sum(axis=0)


class GRBCM(Committee):
    """Generalised robust committee machine (Liu et al. 2018): all experts share the random rows of the first.

    The first expert takes the place of the prior in the RBCM: predictions converge to those of a GP on all rows. Predictions are of y.
    Hyperparameters are learned on experts that share no rows.
    For parameters and attributes see :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = GRBCM(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.n_experts_, model.predict([[0.5]]).round(1)
    (3, array([0.1]))
    """

    _layout = "communicating"

    def _divide(self, data: ScaledRows, rng: np.random.Generator) -> list[Leaf]:
        """Draw the rows of the first expert, and divide the rest among the others."""
        n_rows, n_dims = data.X.shape
        first = np.sort(rng.choice(n_rows, min(self.leaf_size, n_rows), replace=False))
        rest = np.setdiff1d(np.arange(n_rows), first)
        experts = [unbounded_leaf(first, n_dims)]
        if len(rest):
            others = divide(self.experts, data.X[rest], self.leaf_size, rng, data.inputs.scale)
            experts += [unbounded_leaf(rest[leaf.rows], n_dims) for leaf in others]
        return experts

    def _arrange(self, disjoint: list[Leaf]) -> list[Leaf]:
        first, *others = disjoint
        assert first.rows is not None
        n_dims = first.region.n_dims
        return [first] + [
            unbounded_leaf(np.concatenate([first.rows, leaf.rows]), n_dims)
            for leaf in others
            if leaf.rows is not None
        ]

    def _combine(self, predictions: ExpertPredictions) -> tuple[Array, Array]:
        first_mean, first_variance = (
            predictions.mean[0],
            predictions.variance[0] + predictions.noise,
        )
        if len(predictions.mean) == 1:
            return first_mean, first_variance
        mean, variance = predictions.mean[1:], predictions.variance[1:] + predictions.noise
        exponents = entropy_differences(variance, first_variance)
        exponents[0] = 1.0  # Liu et al., section 3.1: so that the first two are combined exactly
        of_first = 1.0 - exponents.sum(axis=0)
        precision = (exponents / variance).sum(axis=0) + of_first / first_variance
        weighted = (exponents * mean / variance).sum(axis=0)
        weighted += of_first * first_mean / first_variance
        return weighted / precision, 1.0 / precision


def product(
    predictions: ExpertPredictions, exponents: Array, prior_exponent: float | Array
) -> tuple[Array, Array]:
    """Return mean and variance of f, (n, n_outputs): the product of predictions and the prior, with mean zero, to these powers."""
    weighted = exponents / predictions.variance
    precision = weighted.sum(axis=0) + prior_exponent / predictions.prior
    return (weighted * predictions.mean).sum(axis=0) / precision, 1.0 / precision


def entropy_differences(variance: Array, prior: Array) -> Array:
    """Return how much each expert has learned at a row, in nats; not negative, whatever the rounding."""
    return np.maximum(0.5 * (np.log(prior) - np.log(variance)), 0.0)
