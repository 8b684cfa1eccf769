"""What all predictive distributions have in common: moments and intervals, from their components, density and quantiles.

:class:`~dsmgp.mixture.predictive.distribution.Mixture` is one, and so is the sum of mixtures with different output warps
(:class:`~dsmgp.mixture.predictive.joined.JoinedMixture`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError

if TYPE_CHECKING:
    from typing import Self

    from dsmgp.mixture.predictive.distribution import Mixture

__all__ = ["PredictiveDistribution"]


class PredictiveDistribution(ABC):
    """The predictive distributions of n rows: mixtures of components, with weights that several outputs share.

    Results have shape (n,) for one output and (n, n_outputs) for several.

    Parameters
    ----------
    weights : array of shape (n, n_components)
    squeeze : bool
        Whether results for one output have shape (n,) instead of (n, 1).
    outside : array of shape (n,), optional
        How far each row lies outside the training data; zero if left out.
    """

    def __init__(self, weights: Array, squeeze: bool, outside: Array | None) -> None:
        self.weights, self._squeeze, self._outside = weights, squeeze, outside

    @abstractmethod
    def __getitem__(self, rows: int | slice | NDArray[np.int64] | NDArray[np.bool_]) -> Self:
        """Return the distributions of some of the rows; an integer selects one of them."""

    @abstractmethod
    def merged(self, n: int) -> Self:
        """Return the average of the distributions of every n consecutive rows."""

    @abstractmethod
    def replaced(self, rows: NDArray[np.int64], others: Self) -> Self:
        """Return the same distributions, but for some rows, which have those of another mixture in the same units."""

    @abstractmethod
    def marginal(self, output: int) -> Self:
        """Return the distribution of one of several outputs."""

    @property
    @abstractmethod
    def parts(self) -> tuple[tuple[float, Mixture], ...]:
        """The distribution as a weighted sum of mixtures that have one warp each."""

    @abstractmethod
    def logpdf(self, y: ArrayLike) -> Array:
        """Return the log density of each output at ``y``: one value per row, or one for all rows."""

    @abstractmethod
    def joint_logpdf(self, y: ArrayLike) -> Array:
        """Return the joint log density of all outputs, (n,)."""

    @abstractmethod
    def cdf(self, y: ArrayLike) -> Array:
        """Return the probability that each output is at most ``y``."""

    @abstractmethod
    def sf(self, y: ArrayLike) -> Array:
        """Return the probability that each output exceeds ``y``, accurate even in the far tail."""

    @abstractmethod
    def logcdf(self, y: ArrayLike) -> Array:
        """Return the log of :meth:`cdf`, accurate even where that underflows."""

    @abstractmethod
    def logsf(self, y: ArrayLike) -> Array:
        """Return the log of :meth:`sf`, accurate even where that underflows."""

    @abstractmethod
    def sample(
        self,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> Array:
        """Draw independently at each row: (n_samples, n) or (n_samples, n, n_outputs)."""

    @property
    @abstractmethod
    def _component_moments(self) -> tuple[Array, Array]:
        """Means and variances of the components, (n, n_components, n_outputs)."""

    @abstractmethod
    def _quantile(self, level: float) -> Array:
        """Return the quantiles of one level, (n, n_outputs)."""

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def outside(self) -> Array:
        """How far each row lies outside the training data, (n,), in length scales of the kernel; 0 inside (docs/uncertainty.md)."""
        return np.zeros(len(self)) if self._outside is None else self._outside

    def with_outside(self, outside: Array) -> Self:
        """Return the same distributions with the distances of their rows from the training data.

        Examples
        --------
        >>> from dsmgp import Mixture
        >>> one = Mixture(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
        >>> one.outside, one.with_outside(np.array([2.5])).outside
        (array([0.]), array([2.5]))
        """
        other = copy(self)
        other._outside = outside
        return other

    @property
    def component_means(self) -> Array:
        """Means of the components, (n, n_components, n_outputs), in the user's units."""
        return self._component_moments[0]

    @property
    def component_variances(self) -> Array:
        """Variances of the components, (n, n_components, n_outputs), in the user's units."""
        return self._component_moments[1]

    @property
    def mean(self) -> Array:
        """Mean at each row."""
        return self._out(self._mean())

    @property
    def var(self) -> Array:
        """Variance at each row."""
        # Around the mean: a difference of second moments would lose digits to a large offset.
        away = self.component_means - self._mean()[:, None, :]
        spread = self.component_variances + away * away
        return self._out(np.einsum("nk,nkp->np", self.weights, spread))

    @property
    def std(self) -> Array:
        """Standard deviation at each row."""
        return np.sqrt(self.var)

    @property
    def median(self) -> Array:
        """Median at each row."""
        return self.quantile(0.5)

    def pdf(self, y: ArrayLike) -> Array:
        """Return the density of each output at ``y``."""
        return np.exp(self.logpdf(y))

    def quantile(self, q: ArrayLike) -> Array:
        """Return the value at which ``cdf`` is ``q``; (n,) or (n, n_outputs) for a number.

        A list of levels adds an axis in front, with one entry per level.
        """
        levels = np.asarray(q, dtype=np.float64)
        if not levels.size or not np.all((levels > 0) & (levels < 1)):
            raise InputError(f"expected quantile levels strictly between 0 and 1, got {q!r}")
        if levels.ndim:
            return np.stack([self.quantile(level) for level in levels])
        return self._out(self._quantile(float(levels)))

    def ppf(self, q: ArrayLike) -> Array:
        """Return quantiles: :meth:`quantile` under SciPy's name.

        Examples
        --------
        >>> from dsmgp import Mixture
        >>> standard = Mixture(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
        >>> standard.ppf([0.5, 0.975]).round(2)
        array([[0.  ],
               [1.96]])
        """
        return self.quantile(q)

    def interval(self, level: ArrayLike = 0.9) -> tuple[Array, Array]:
        """Return the ends of the central interval with probability ``level``, each as :meth:`quantile` does.

        A list of levels adds an axis in front of both, with one entry per level.

        Examples
        --------
        >>> from dsmgp import Mixture
        >>> standard = Mixture(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
        >>> low, high = standard.interval([0.5, 0.9])
        >>> high.round(2)
        array([[0.67],
               [1.64]])
        """
        levels = np.asarray(level)
        numeric = levels.size > 0 and levels.dtype.kind in "fiu"
        if not numeric or not np.all((levels > 0) & (levels < 1)):
            raise InputError(
                f"expected an interval level strictly between 0 and 1, or a list of them, got {level!r}"
            )
        tails = 0.5 * (1.0 - levels)
        return self.quantile(tails), self.quantile(1.0 - tails)

    def _mean(self) -> Array:
        return np.einsum("nk,nkp->np", self.weights, self.component_means)

    def _out(self, values: Array) -> Array:
        return values[..., 0] if self._squeeze else values
