"""Weighted sums of predictive distributions whose outputs are warped in different ways.

:class:`~dsmgp.mixture.predictive.distribution.Mixture` maps all of its Gaussians through one warp of each output.
Hypotheses that differ in that warp have a mixture each, and :func:`join` makes one distribution of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp._util.arrays import Array
from dsmgp._util.validation import check_count, random_generator
from dsmgp.mixture.predictive.distribution import Mixture
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution

__all__ = ["JoinedMixture", "join"]

# Steps of Newton's method, and how exactly a quantile is found, relative to its size and to the distance of
# the parts' quantiles.
MAX_STEPS, TOLERANCE = 200, 1e-12


def join(
    distributions: Sequence[PredictiveDistribution], weights: ArrayLike
) -> PredictiveDistribution:
    """Return the weighted sum of distributions of the same rows: one mixture where units agree, else a :class:`JoinedMixture`.

    Parameters
    ----------
    distributions : sequence of PredictiveDistribution
    weights : array-like of shape (n_distributions,)
        Of sum one.
    """
    pairs = zip(np.asarray(weights, dtype=np.float64).tolist(), distributions, strict=True)
    parts = [(weight * share, part) for weight, each in pairs for share, part in each.parts]
    shares, mixtures = np.array([share for share, _ in parts]), [part for _, part in parts]
    groups: list[list[int]] = []
    for k, each in enumerate(mixtures):
        same = (group for group in groups if each.has_units_of(mixtures[group[0]]))
        group = next(same, None)
        if group is None:
            groups.append([k])
        else:
            group.append(k)
    if len(groups) == 1:
        return Mixture.joined(mixtures, shares)
    of_group = np.array([shares[group].sum() for group in groups])
    joined = [
        Mixture.joined([mixtures[k] for k in group], shares[group] / total)
        for group, total in zip(groups, of_group, strict=True)
    ]
    return JoinedMixture(joined, of_group)


class JoinedMixture(PredictiveDistribution):
    """The weighted sum of mixtures that differ in the warp of their outputs.

    Parameters
    ----------
    mixtures : sequence of Mixture
        Of the same rows and outputs.
    shares : ndarray of shape (n_mixtures,)
        Their weights, of sum one.

    Examples
    --------
    >>> from dsmgp.gp.transforms.output_warp import LogWarp
    >>> from dsmgp.gp.transforms.scaling import OutputScaling
    >>> one = np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1))
    >>> warped = Mixture(*one, OutputScaling(np.zeros(1), np.eye(1), [LogWarp()]))
    >>> both = JoinedMixture([Mixture(*one), warped], np.array([0.5, 0.5]))
    >>> both.mean.round(3), both.cdf(0.0)
    (array([0.824]), array([0.25]))
    >>> both.cdf(both.quantile(0.75)).round(9)
    array([0.75])
    """

    def __init__(self, mixtures: Sequence[Mixture], shares: Array) -> None:
        self._mixtures, self._shares = tuple(mixtures), shares
        weights = np.concatenate([share * each.weights for share, each in self.parts], axis=1)
        first = self._mixtures[0]
        super().__init__(weights, first._squeeze, first._outside)

    @property
    def parts(self) -> tuple[tuple[float, Mixture], ...]:
        return tuple(zip(self._shares.tolist(), self._mixtures, strict=True))

    def __getitem__(
        self, rows: int | slice | NDArray[np.int64] | NDArray[np.bool_]
    ) -> JoinedMixture:
        return self._of_parts(lambda each: each[rows])

    def __repr__(self) -> str:
        n, components = self.weights.shape
        return f"JoinedMixture({n} rows, {components} components, {len(self._mixtures)} warps)"

    def merged(self, n: int) -> JoinedMixture:
        return self._of_parts(lambda each: each.merged(n))

    def replaced(self, rows: NDArray[np.int64], others: JoinedMixture) -> JoinedMixture:
        pairs = zip(self.parts, others.parts, strict=True)
        return JoinedMixture(
            [own.replaced(rows, new) for (_, own), (_, new) in pairs], self._shares
        )

    def marginal(self, output: int) -> JoinedMixture:
        return self._of_parts(lambda each: each.marginal(output))

    @property
    def latent(self) -> NoReturn:
        raise AttributeError("hypotheses differ in the warp of the output: see parts")

    @property
    def warps(self) -> NoReturn:
        raise AttributeError("hypotheses differ in the warp of the output: see parts")

    @cached_property
    def _component_moments(self) -> tuple[Array, Array]:
        moments = [each._component_moments for each in self._mixtures]
        means, variances = (np.concatenate(part, axis=1) for part in zip(*moments, strict=True))
        return means, variances

    def logpdf(self, y: ArrayLike) -> Array:
        return self._log_sum(lambda each: each.logpdf(y))

    def joint_logpdf(self, y: ArrayLike) -> Array:
        return self._log_sum(lambda each: each.joint_logpdf(y))

    def cdf(self, y: ArrayLike) -> Array:
        return self._sum(lambda each: each.cdf(y))

    def sf(self, y: ArrayLike) -> Array:
        return self._sum(lambda each: each.sf(y))

    def logcdf(self, y: ArrayLike) -> Array:
        return np.minimum(self._log_sum(lambda each: each.logcdf(y)), 0.0)

    def logsf(self, y: ArrayLike) -> Array:
        return np.minimum(self._log_sum(lambda each: each.logsf(y)), 0.0)

    def sample(
        self,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> Array:
        check_count("n_samples", n_samples)
        rng = random_generator(random_state)
        drawn = np.stack([each.sample(n_samples, rng) for each in self._mixtures])
        part = rng.choice(len(drawn), size=(n_samples, len(self)), p=self._shares)
        part = part.reshape(1, *part.shape, *[1] * (drawn.ndim - 3))
        return np.asarray(np.take_along_axis(drawn, part, axis=0)[0])

    def _quantile(self, level: float) -> Array:
        """Newton's method between the smallest and the largest quantile of the parts; shape (n, n_outputs)."""
        ends = np.stack([each._quantile(level) for each in self._mixtures])
        low, high = ends.min(axis=0), ends.max(axis=0)
        # In the upper half solve for 1 - cdf, so that both tails keep their digits.
        upper = level > 0.5
        target = 1.0 - level if upper else level
        width = high - low
        y = np.tensordot(self._shares, ends, 1)
        for _ in range(MAX_STEPS):
            at = self._out(y)
            tail = (self.sf(at) if upper else self.cdf(at)).reshape(y.shape)
            excess = target - tail if upper else tail - target
            low, high = np.where(excess > 0, low, y), np.where(excess > 0, y, high)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = y - excess / self.pdf(at).reshape(y.shape)
            step = np.where((step > low) & (step < high), step, 0.5 * (low + high))
            done = np.abs(step - y) <= TOLERANCE * (np.abs(y) + width)
            y = np.where(excess == 0, y, step)
            if (done | (excess == 0)).all():
                break
        return y

    def _of_parts(self, change: Callable[[Mixture], Mixture]) -> JoinedMixture:
        return JoinedMixture([change(each) for each in self._mixtures], self._shares)

    def _sum(self, of_part: Callable[[Mixture], Array]) -> Array:
        """Return the weighted sum over parts."""
        return np.asarray(sum(share * of_part(each) for share, each in self.parts))

    def _log_sum(self, of_part: Callable[[Mixture], Array]) -> Array:
        """Return the log of the weighted sum of exponentials over parts."""
        terms = np.stack([np.log(share) + of_part(each) for share, each in self.parts])
        return np.asarray(np.logaddexp.reduce(terms, axis=0))
