"""The predictive distribution: at every test row a mixture of Gaussians, mapped through the warps of the outputs if there are any.

:class:`Mixture` is what :meth:`DSMGPRegressor.predict_dist` returns, and what scores and plots take.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from functools import cached_property
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from dsmgp._util.arrays import Array
from dsmgp._util.validation import check_count, random_generator
from dsmgp.gp.output_warp import OutputWarp
from dsmgp.gp.scaling import OutputScaling

__all__ = ["Mixture"]

LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)
# Rows whose quantiles are computed together.
QUANTILE_ROWS = 8192
# A component needs a positive variance to have a density.
LEAST_VARIANCE = float(np.finfo(np.float64).tiny)


class Mixture:
    """A mixture of Gaussians for each of n rows; with warped outputs, of latent outputs that determine the outputs.

    Several outputs share the component weights. Within a component the outputs may be correlated.
    Results have shape (n,) for one output and (n, n_outputs) for several.

    Parameters
    ----------
    weights : array of shape (n, n_components)
    means, variances : arrays of shape (n, n_components, n_outputs)
        In the experts' units, in which outputs are independent within a component.
    units : OutputScaling, optional
        The transformation to the user's units, warps included; none if left out.
    squeeze : bool
        Whether results for one output have shape (n,) instead of (n, 1).

    Examples
    --------
    >>> two = Mixture(np.array([[0.5, 0.5]]), np.array([[[-1.0], [1.0]]]), np.full((1, 2, 1), 0.25))
    >>> two.mean, two.var
    (array([0.]), array([1.25]))
    >>> two.cdf(0.0), two.quantile(0.5).round(6)
    (array([0.5]), array([0.]))
    >>> low, high = two.interval(0.9)
    >>> print(low.round(3), high.round(3))
    [-1.641] [1.641]
    >>> two.pdf(0.0).round(3), two.logpdf(0.0).round(3)
    (array([0.108]), array([-2.226]))
    >>> two.sample(3, random_state=0).shape
    (3, 1)
    """

    def __init__(
        self,
        weights: Array,
        means: Array,
        variances: Array,
        units: OutputScaling | None = None,
        squeeze: bool = True,
    ) -> None:
        self.weights = weights
        self._latent_means = means
        self._latent_variances = variances
        self._units = units or OutputScaling(np.zeros(means.shape[-1]), np.eye(means.shape[-1]))
        self._squeeze = squeeze and means.shape[-1] == 1
        # The Gaussians of the latent outputs, which are the outputs themselves unless these are warped.
        self._gaussian_means = self._units.mean_to_latent(means)
        self._gaussian_variances = _positive(self._units.variance_to_latent(variances))

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: int | slice | NDArray[np.int64] | NDArray[np.bool_]) -> Mixture:
        """Return the distributions of some of the rows; an integer selects one of them."""
        if isinstance(rows, numbers.Integral):
            rows = np.array([rows])
        return Mixture(
            self.weights[rows],
            self._latent_means[rows],
            self._latent_variances[rows],
            self._units,
            self._squeeze,
        )

    def __repr__(self) -> str:
        n, components, outputs = self._latent_means.shape
        return f"Mixture({n} rows, {components} components, {outputs} output{'s' * (outputs > 1)})"

    def marginal(self, output: int) -> Mixture:
        """Return the distribution of one of several outputs.

        Examples
        --------
        >>> two = Mixture(np.ones((1, 1)), np.array([[[0.0, 5.0]]]), np.ones((1, 1, 2)))
        >>> two.marginal(1).mean
        array([5.])
        """
        return Mixture(
            self.weights,
            self._gaussian_means[..., output : output + 1],
            self._gaussian_variances[..., output : output + 1],
            self._units.marginal(output),
        )

    @property
    def latent(self) -> Mixture:
        """The mixture of Gaussians of the latent outputs, which are the outputs themselves unless these are warped."""
        return Mixture(
            self.weights, self._gaussian_means, self._gaussian_variances, squeeze=self._squeeze
        )

    @property
    def warps(self) -> Sequence[OutputWarp | None]:
        """The functions from latent outputs to outputs, one per output; empty if none is warped."""
        return self._units.warps

    @cached_property
    def _component_moments(self) -> tuple[Array, Array]:
        means, variances = self._units.moments_from_latent(
            self._gaussian_means, self._gaussian_variances
        )
        return means, _positive(variances) if self._units.warps else variances

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

    def logpdf(self, y: ArrayLike) -> Array:
        """Return the log density of each output at ``y``: one value per row, or one for all rows."""
        z, scale = self._standardised(y)
        with np.errstate(over="ignore"):  # the density is zero far away
            terms = -0.5 * z * z - np.log(scale) - LOG_SQRT_2PI
        density = _log_mix(terms, self.weights[:, :, None])
        if self._units.warps:
            density += self._units.log_slopes(self._rows(y))
        return self._out(density)

    def pdf(self, y: ArrayLike) -> Array:
        """Return the density of each output at ``y``."""
        return np.exp(self.logpdf(y))

    def joint_logpdf(self, y: ArrayLike) -> Array:
        """Return the joint log density of all outputs, (n,).

        Examples
        --------
        >>> standard = Mixture(np.ones((1, 1)), np.zeros((1, 1, 2)), np.ones((1, 1, 2)))
        >>> standard.joint_logpdf([[0.0, 0.0]]).round(3)
        array([-1.838])
        """
        variances = self._latent_variances
        with np.errstate(over="ignore", invalid="ignore"):
            Y = self._rows(y)
            z = self._units.to_experts(Y)[:, None, :]
            terms = -0.5 * (z - self._latent_means) ** 2 / variances - 0.5 * np.log(variances)
            joint = terms.sum(-1) - variances.shape[-1] * LOG_SQRT_2PI
        # At infinite outputs, which become NaN where units mix them, the density is zero.
        joint = np.where(np.isfinite(z).all(axis=-1), joint, -np.inf)
        density = _log_mix(joint, self.weights) - self._units.log_det
        return density + self._units.log_slopes(Y).sum(axis=1) if self._units.warps else density

    def cdf(self, y: ArrayLike) -> Array:
        """Return the probability that each output is at most ``y``."""
        z, _ = self._standardised(y)
        return self._out(np.einsum("nk,nkp->np", self.weights, ndtr(z)).clip(0.0, 1.0))

    def quantile(self, q: ArrayLike) -> Array:
        """Return the value at which ``cdf`` is ``q``; (n,) or (n, n_outputs) for a number.

        A list of levels adds an axis in front, with one entry per level.
        """
        levels = np.asarray(q, dtype=np.float64)
        if not levels.size or not np.all((levels > 0) & (levels < 1)):
            raise ValueError(f"expected quantile levels strictly between 0 and 1, got {q!r}")
        if levels.ndim:
            return np.stack([self.quantile(level) for level in levels])
        return self._out(self._quantile(float(levels)))

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Return the ends of the central interval with probability ``level``."""
        number = isinstance(level, SupportsFloat) and np.ndim(level) == 0
        if not number or not 0 < level < 1:
            raise ValueError(f"expected an interval level strictly between 0 and 1, got {level!r}")
        tail = 0.5 * (1.0 - level)
        return self.quantile(tail), self.quantile(1.0 - tail)

    def sample(
        self,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> Array:
        """Draw independently at each row: (n_samples, n) or (n_samples, n, n_outputs).

        :meth:`DSMGPRegressor.sample_y` draws functions, jointly over the rows.
        """
        check_count("n_samples", n_samples)
        rng = random_generator(random_state)
        n, _, n_outputs = self._latent_means.shape
        edges = np.cumsum(self.weights, axis=1)
        uniform = rng.uniform(size=(n_samples, n)) * edges[:, -1]
        pick = (uniform[:, :, None] >= edges[None]).sum(-1).clip(max=edges.shape[1] - 1)
        rows = np.arange(n)[None, :]
        noise = rng.standard_normal((n_samples, n, n_outputs))
        z = self._latent_means[rows, pick] + noise * np.sqrt(self._latent_variances[rows, pick])
        return self._out(self._units.from_experts(z))

    def _mean(self) -> Array:
        return np.einsum("nk,nkp->np", self.weights, self.component_means)

    def _rows(self, y: ArrayLike) -> Array:
        """Broadcast ``y`` to (n, n_outputs)."""
        shape = (len(self.weights), self._latent_means.shape[-1])
        given: Any = np.asarray(y, dtype=np.float64)
        if given.ndim == 1 and len(given) == shape[0] and shape[1] == 1:
            given = given[:, None]
        if np.isnan(given).any():
            raise ValueError("y contains NaN; drop such rows first")
        try:
            return np.broadcast_to(given, shape)
        except ValueError:
            raise ValueError(
                f"expected y with shape {shape if shape[1] > 1 else shape[:1]} or a number, "
                f"got shape {given.shape}"
            ) from None

    def _standardised(self, y: ArrayLike) -> tuple[Array, Array]:
        """Latent outputs less the components' means, in standard deviations, and these."""
        scale = np.sqrt(self._gaussian_variances)
        latent = self._units.to_latent(self._rows(y))
        with np.errstate(over="ignore"):
            return (latent[:, None, :] - self._gaussian_means) / scale, scale

    def _quantile(self, level: float) -> Array:
        n, _, n_outputs = self._gaussian_means.shape
        quantiles = np.empty((n, n_outputs))
        for output in range(n_outputs):
            for start in range(0, n, QUANTILE_ROWS):
                rows = slice(start, start + QUANTILE_ROWS)
                quantiles[rows, output] = _solve_quantile(
                    self.weights[rows],
                    self._gaussian_means[rows, :, output],
                    np.sqrt(self._gaussian_variances[rows, :, output]),
                    level,
                )
        return self._units.from_latent(quantiles)

    def _out(self, values: Array) -> Array:
        return values[..., 0] if self._squeeze else values


def _positive(variances: Array) -> Array:
    """Return variances of which none is zero: in the user's units a tiny one may underflow."""
    return np.maximum(variances, LEAST_VARIANCE, out=variances)


def _log_mix(log_terms: Array, weights: Array) -> Array:
    """``log(sum_k weights_k exp(log_terms_k))`` over axis 1; components of weight zero are left out."""
    kept = np.where(weights > 0, log_terms, -np.inf)
    top = kept.max(axis=1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):  # where no component has any density
        return np.log(np.sum(weights * np.exp(kept - top), axis=1)) + np.squeeze(top, axis=1)


def _solve_quantile(weights: Array, means: Array, scales: Array, level: float) -> Array:
    """Newton's method on the log of the smaller tail, kept inside a bracket that halves.

    Arrays are (rows, components). Rows leave the iteration as they converge.
    """
    # Relative to the mean: if that is huge beside the scales, rounding could change the order of quantiles.
    centre = (weights * means).sum(axis=1)
    means = means - centre[:, None]
    ends = means + scales * ndtri(level)
    low = np.where(weights > 0, ends, np.inf).min(axis=1)
    high = np.where(weights > 0, ends, -np.inf).max(axis=1)
    # In the upper half solve for 1 - cdf, so that both tails keep their digits.
    sign = 1.0 if level <= 0.5 else -1.0
    target = np.log(min(level, 1.0 - level))
    result = 0.5 * (low + high)
    active = np.arange(len(result))
    for _ in range(200):
        y = result[active]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
            z = (y[:, None] - means) / scales
            tail = np.log((weights * ndtr(sign * z)).sum(axis=1))
            density = (weights * np.exp(-0.5 * z * z) / scales).sum(axis=1) / np.sqrt(2.0 * np.pi)
            step = y - sign * (tail - target) * np.exp(tail) / density
        beyond = sign * (tail - target) > 0
        low, high = np.where(beyond, low, y), np.where(beyond, y, high)
        # At convergence rounding may put a step on the wrong side of y, which is an end of the bracket.
        close = 1e-13 * (np.abs(y) + scales.min(axis=1))
        converged = np.abs(step - y) <= close
        inside = (step > low) & (step < high)
        result[active] = np.where(converged | inside, step, 0.5 * (low + high))
        going = ~converged & (high - low > close)
        if not going.any():
            break
        active, low, high = active[going], low[going], high[going]
        weights, means, scales = weights[going], means[going], scales[going]
    return centre + result
