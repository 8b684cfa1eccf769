"""The predictive law: at every test row a mixture of Gaussians."""

from __future__ import annotations

import numbers
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from dsmgp.units import OutputUnits
from dsmgp.validation import check_count, random_generator

__all__ = ["Mixture"]

Array = NDArray[np.float64]
LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)
# Rows whose quantiles are solved for together.
QUANTILE_ROWS = 8192
# A density needs a width.
LEAST_VARIANCE = float(np.finfo(np.float64).tiny)


class Mixture:
    """A mixture of Gaussians for each of n rows, as :meth:`DSMGPRegressor.predict_dist` returns it.

    Several outputs share the component weights. Inside a component the outputs may be correlated.
    Arrays have shape (n,) for one output and (n, n_outputs) for several.

    Parameters
    ----------
    weights : array of shape (n, n_components)
    means, variances : arrays of shape (n, n_components, n_outputs)
        In the units the experts see, where outputs are independent inside a component.
    units : OutputUnits, optional
        How to get from there to the user's units.
    squeeze : bool
        Whether one output is given as (n,).

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
        units: OutputUnits | None = None,
        squeeze: bool = True,
    ) -> None:
        self.weights = weights
        self._latent_means = means
        self._latent_variances = variances
        self._units = units or OutputUnits(np.zeros(means.shape[-1]), np.eye(means.shape[-1]))
        self._squeeze = squeeze and means.shape[-1] == 1
        #: Means and variances of the components, (n, n_components, n_outputs), in the user's units.
        self.component_means = self._units.mean_to_user(means)
        self.component_variances = self._units.variance_to_user(variances)
        # In the user's units what is known all but exactly may have no width that a number could hold.
        np.maximum(self.component_variances, LEAST_VARIANCE, out=self.component_variances)

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: int | slice | NDArray[np.int64] | NDArray[np.bool_]) -> Mixture:
        """The laws of some of the rows; of one of them by its number."""
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

    @property
    def mean(self) -> Array:
        """Mean of each row's law."""
        return self._out(self._mean())

    @property
    def var(self) -> Array:
        """Its variance."""
        return self._out(self._variance())

    @property
    def std(self) -> Array:
        """Its standard deviation."""
        return np.sqrt(self.var)

    def logpdf(self, y: ArrayLike) -> Array:
        """Log density of each output at ``y``, one value per row (or one for all rows)."""
        z, scale = self._standardised(y)
        with np.errstate(over="ignore"):  # so far away that there is no density
            terms = -0.5 * z * z - np.log(scale) - LOG_SQRT_2PI
        return self._out(_log_mix(terms, self.weights[:, :, None]))

    def pdf(self, y: ArrayLike) -> Array:
        """Density of each output at ``y``."""
        return np.exp(self.logpdf(y))

    def joint_logpdf(self, y: ArrayLike) -> Array:
        """Log density of all outputs together, (n,).

        Examples
        --------
        >>> law = Mixture(np.ones((1, 1)), np.zeros((1, 1, 2)), np.ones((1, 1, 2)))
        >>> law.joint_logpdf([[0.0, 0.0]]).round(3)
        array([-1.838])
        """
        variances = self._latent_variances
        with np.errstate(over="ignore", invalid="ignore"):
            z = self._units.to_experts(self._rows(y))[:, None, :]
            terms = -0.5 * (z - self._latent_means) ** 2 / variances - 0.5 * np.log(variances)
            joint = terms.sum(-1) - variances.shape[-1] * LOG_SQRT_2PI
        # Infinite outputs, of which units that mix them make anything, have no density.
        joint = np.where(np.isfinite(z).all(axis=-1), joint, -np.inf)
        return _log_mix(joint, self.weights) - self._units.log_det

    def cdf(self, y: ArrayLike) -> Array:
        """Probability of each output to be at most ``y``."""
        z, _ = self._standardised(y)
        return self._out(np.einsum("nk,nkp->np", self.weights, ndtr(z)).clip(0.0, 1.0))

    def quantile(self, q: ArrayLike) -> Array:
        """The value at which ``cdf`` is ``q``; (n,) or (n, n_outputs) for a number.

        For a list of levels the result has one more axis in front, one entry per level.
        """
        levels = np.asarray(q, dtype=np.float64)
        if not levels.size or not np.all((levels > 0) & (levels < 1)):
            raise ValueError(f"expected quantile levels strictly between 0 and 1, got {q!r}")
        if levels.ndim:
            return np.stack([self.quantile(level) for level in levels])
        return self._out(self._quantile(float(levels)))

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Ends of the central interval that holds ``level`` of the probability."""
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
        """Independent draws at each row, (n_samples, n) or (n_samples, n, n_outputs).

        Rows are drawn independently of one another; :meth:`DSMGPRegressor.sample_y` draws functions.
        """
        check_count("n_samples", n_samples)
        rng = random_generator(random_state)
        n, _, n_outputs = self._latent_means.shape
        edges = np.cumsum(self.weights, axis=1)
        drawn = rng.uniform(size=(n_samples, n)) * edges[:, -1]
        pick = (drawn[:, :, None] >= edges[None]).sum(-1).clip(max=edges.shape[1] - 1)
        rows = np.arange(n)[None, :]
        noise = rng.standard_normal((n_samples, n, n_outputs))
        z = self._latent_means[rows, pick] + noise * np.sqrt(self._latent_variances[rows, pick])
        return self._out(self._units.mean_to_user(z))

    def _mean(self) -> Array:
        return np.einsum("nk,nkp->np", self.weights, self.component_means)

    def _variance(self) -> Array:
        # Around the mean, not as a difference of second moments, which offsets would spoil.
        away = self.component_means - self._mean()[:, None, :]
        return np.einsum("nk,nkp->np", self.weights, self.component_variances + away * away)

    def _rows(self, y: ArrayLike) -> Array:
        """``y`` as (n, n_outputs)."""
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
        scale = np.sqrt(self.component_variances)
        with np.errstate(over="ignore"):
            return (self._rows(y)[:, None, :] - self.component_means) / scale, scale

    def _quantile(self, level: float) -> Array:
        n, _, n_outputs = self.component_means.shape
        found = np.empty((n, n_outputs))
        for output in range(n_outputs):
            for start in range(0, n, QUANTILE_ROWS):
                rows = slice(start, start + QUANTILE_ROWS)
                found[rows, output] = _solve_quantile(
                    self.weights[rows],
                    self.component_means[rows, :, output],
                    np.sqrt(self.component_variances[rows, :, output]),
                    level,
                )
        return found

    def _out(self, values: Array) -> Array:
        return values[..., 0] if self._squeeze else values


def _log_mix(log_terms: Array, weights: Array) -> Array:
    """``log(sum_k weights_k exp(log_terms_k))`` over axis 1; components that weigh nothing are left out."""
    kept = np.where(weights > 0, log_terms, -np.inf)
    top = kept.max(axis=1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):  # where no component has any density
        return np.log(np.sum(weights * np.exp(kept - top), axis=1)) + np.squeeze(top, axis=1)


def _solve_quantile(weights: Array, means: Array, scales: Array, level: float) -> Array:
    """Newton's method on the log of the smaller tail, kept inside a bracket that halves.

    Arrays are (rows, components). Rows leave the iteration as they converge.
    """
    # From the mean on: where that is huge beside the scales, rounding could put quantiles in another order.
    centre = (weights * means).sum(axis=1)
    means = means - centre[:, None]
    ends = means + scales * ndtri(level)
    low = np.where(weights > 0, ends, np.inf).min(axis=1)
    high = np.where(weights > 0, ends, -np.inf).max(axis=1)
    # In the upper half work on 1 - cdf, so that both tails keep their digits.
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
        # Where it has arrived, rounding may put a step on the wrong side of y, which is an end of the bracket.
        close = 1e-13 * (np.abs(y) + scales.min(axis=1))
        arrived = np.abs(step - y) <= close
        inside = (step > low) & (step < high)
        result[active] = np.where(arrived | inside, step, 0.5 * (low + high))
        going = ~arrived & (high - low > close)
        if not going.any():
            break
        active, low, high = active[going], low[going], high[going]
        weights, means, scales = weights[going], means[going], scales[going]
    return centre + result
