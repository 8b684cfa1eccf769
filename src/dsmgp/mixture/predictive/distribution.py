"""The predictive distribution: at every test row a mixture of Gaussians, mapped through the warps of the outputs if there are any.

:class:`Mixture` is what :meth:`DSMGPRegressor.predict_dist` returns, and what scores and plots take.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

from dsmgp._util.arrays import Array
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_count, random_generator
from dsmgp.gp.transforms.output_warp import OutputWarp, same_warp
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution
from dsmgp.mixture.predictive.quantiles import solve_quantile

__all__ = ["Mixture"]

# Rows whose quantiles are computed together.
QUANTILE_BATCH = 8192
# A component needs a positive variance to have a density.
LEAST_VARIANCE = float(np.finfo(np.float64).tiny)


class Mixture(PredictiveDistribution):
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
    outside : array of shape (n,), optional
        How far each row lies outside the training data; zero if left out.

    Examples
    --------
    >>> two = Mixture(np.array([[0.5, 0.5]]), np.array([[[-1.0], [1.0]]]), np.full((1, 2, 1), 0.25))
    >>> two.mean, two.var
    (array([0.]), array([1.25]))
    >>> two.cdf(0.0), two.quantile(0.5).round(6), two.median.round(6)
    (array([0.5]), array([0.]), array([0.]))
    >>> low, high = two.interval(0.9)
    >>> print(low.round(3), high.round(3))
    [-1.641] [1.641]
    >>> print(two.sf(9.0), two.logsf(99.0).round(1), two.logcdf(-99.0).round(1))
    [3.1943772e-58] [-19214.9] [-19214.9]
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
        outside: Array | None = None,
    ) -> None:
        super().__init__(weights, squeeze and means.shape[-1] == 1, outside)
        self._latent_means = means
        self._latent_variances = variances
        self._units = units or OutputScaling(np.zeros(means.shape[-1]), np.eye(means.shape[-1]))
        # The Gaussians of the latent outputs, which are the outputs themselves unless these are warped.
        self._gaussian_means = self._units.mean_to_latent(means)
        self._gaussian_variances = _positive(self._units.variance_to_latent(variances))

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
            None if self._outside is None else self._outside[rows],
        )

    def __repr__(self) -> str:
        n, components, outputs = self._latent_means.shape
        return f"Mixture({n} rows, {components} components, {outputs} output{'s' * (outputs > 1)})"

    def merged(self, n: int) -> Mixture:
        """Return the average of the distributions of every n consecutive rows.

        Examples
        --------
        >>> two = Mixture(np.ones((2, 1)), np.array([[[0.0]], [[4.0]]]), np.ones((2, 1, 1)))
        >>> two.merged(2).mean, two.merged(2).var
        (array([2.]), array([5.]))
        """
        n_rows, _, n_outputs = self._latent_means.shape
        return Mixture(
            self.weights.reshape(n_rows // n, -1) / n,
            self._latent_means.reshape(n_rows // n, -1, n_outputs),
            self._latent_variances.reshape(n_rows // n, -1, n_outputs),
            self._units,
            self._squeeze,
        )

    @classmethod
    def joined(cls, mixtures: Sequence[Mixture], weights: ArrayLike) -> Mixture:
        """Return the weighted sum of several distributions of the same rows, in the same units.

        Parameters
        ----------
        mixtures : sequence of Mixture
        weights : array-like of shape (n_mixtures,)
            Of sum one.

        Examples
        --------
        >>> zero, five = (
        ...     Mixture(np.ones((1, 1)), np.full((1, 1, 1), m), np.ones((1, 1, 1)))
        ...     for m in (0.0, 5.0)
        ... )
        >>> Mixture.joined([zero, five], [0.8, 0.2]).mean
        array([1.])
        """
        shares = np.asarray(weights, dtype=np.float64)
        if len(shares) != len(mixtures):
            raise InputError(
                f"expected a weight for each of {len(mixtures)} mixtures, got {len(shares)}"
            )
        first = mixtures[0]
        if not all(first.has_units_of(each) for each in mixtures):
            raise InputError("expected mixtures of outputs in the same units")
        return cls(
            np.concatenate(
                [w * each.weights for w, each in zip(shares, mixtures, strict=True)], axis=1
            ),
            np.concatenate([each._latent_means for each in mixtures], axis=1),
            np.concatenate([each._latent_variances for each in mixtures], axis=1),
            first._units,
            first._squeeze,
        )

    def replaced(self, rows: NDArray[np.int64], others: Mixture) -> Mixture:
        """Return the same distributions, but for some rows, which have those of another mixture in the same units.

        Examples
        --------
        >>> zero, five = (
        ...     Mixture(np.ones((n, 1)), np.full((n, 1, 1), m), np.ones((n, 1, 1)))
        ...     for n, m in ((2, 0.0), (1, 5.0))
        ... )
        >>> zero.replaced(np.array([1]), five).mean
        array([0., 5.])
        """
        parts = []
        for own, new, fill in (
            (self.weights, others.weights, 0.0),
            (self._latent_means, others._latent_means, 0.0),
            (self._latent_variances, others._latent_variances, 1.0),
        ):
            shape = (len(own), max(own.shape[1], new.shape[1]), *own.shape[2:])
            part = np.full(shape, fill)
            part[:, : own.shape[1]] = own
            part[rows] = fill
            part[rows, : new.shape[1]] = new
            parts.append(part)
        return Mixture(parts[0], parts[1], parts[2], self._units, self._squeeze)

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
            outside=self._outside,
        )

    @property
    def parts(self) -> tuple[tuple[float, Mixture], ...]:
        """The distribution as a weighted sum of mixtures that have one warp each: itself, unless hypotheses differ in the warp."""
        return ((1.0, self),)

    def has_units_of(self, other: Mixture) -> bool:
        """Return whether both are converted to the user's units alike, warps included.

        Examples
        --------
        >>> one = Mixture(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
        >>> one.has_units_of(one), len(one.parts)
        (True, 1)
        """
        return _same_units(self._units, other._units)

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

    def logpdf(self, y: ArrayLike) -> Array:
        """Return the log density of each output at ``y``: one value per row, or one for all rows."""
        z, scale = self._standardised(y)
        with np.errstate(over="ignore"):  # the density is zero far away
            terms = -0.5 * z * z - np.log(scale) - 0.5 * LOG_2PI
        density = _log_mix(terms, self.weights[:, :, None])
        if self._units.warps:
            density += self._units.log_slopes(self._rows(y))
        return self._out(density)

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
            joint = terms.sum(-1) - variances.shape[-1] * 0.5 * LOG_2PI
        # At infinite outputs, which become NaN where units mix them, the density is zero.
        joint = np.where(np.isfinite(z).all(axis=-1), joint, -np.inf)
        density = _log_mix(joint, self.weights) - self._units.log_det
        return density + self._units.log_slopes(Y).sum(axis=1) if self._units.warps else density

    def scaled_log_density(self, y: ArrayLike, log_factor: Array) -> tuple[Array, Array]:
        """Return the joint log density, up to a constant, if the variances of each row were multiplied by a factor.

        Parameters
        ----------
        y : array-like
            As in :meth:`joint_logpdf`.
        log_factor : ndarray of shape (n,)

        Returns
        -------
        log_density, slope : ndarray of shape (n,)
            The slope is the derivative by ``log_factor``.

        Examples
        --------
        >>> standard = Mixture(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
        >>> _, slope = standard.scaled_log_density(2.0, np.log([4.0]))  # as wide as y is far away
        >>> slope.round(6) + 0.0
        array([0.])
        """
        z = self._units.to_experts(self._rows(y))[:, None, :]
        variances = self._latent_variances * np.exp(log_factor)[:, None, None]
        squares = np.square(z - self._latent_means) / variances
        terms = -0.5 * (squares + np.log(variances)).sum(axis=-1)
        density = _log_mix(terms, self.weights)
        shares = self.weights * np.exp(terms - density[:, None])
        return density, np.einsum("nk,nkp->n", shares, 0.5 * (squares - 1.0))

    def cdf(self, y: ArrayLike) -> Array:
        """Return the probability that each output is at most ``y``."""
        return self._out(self._tail(self._standardised(y)[0]))

    def sf(self, y: ArrayLike) -> Array:
        """Return the probability that each output exceeds ``y``, accurate even in the far tail."""
        return self._out(self._tail(-self._standardised(y)[0]))

    def logcdf(self, y: ArrayLike) -> Array:
        """Return the log of :meth:`cdf`, accurate even where that underflows."""
        return self._out(self._log_tail(self._standardised(y)[0]))

    def logsf(self, y: ArrayLike) -> Array:
        """Return the log of :meth:`sf`, accurate even where that underflows."""
        return self._out(self._log_tail(-self._standardised(y)[0]))

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

    def _rows(self, y: ArrayLike) -> Array:
        """Broadcast ``y`` to (n, n_outputs)."""
        shape = (len(self.weights), self._latent_means.shape[-1])
        given: Any = np.asarray(y, dtype=np.float64)
        if given.ndim == 1 and len(given) == shape[0] and shape[1] == 1:
            given = given[:, None]
        if np.isnan(given).any():
            raise InputError("y contains NaN; drop such rows first")
        try:
            return np.broadcast_to(given, shape)
        except ValueError:
            raise InputError(
                f"expected y with shape {shape if shape[1] > 1 else shape[:1]} or a number, "
                f"got shape {given.shape}"
            ) from None

    def _standardised(self, y: ArrayLike) -> tuple[Array, Array]:
        """Latent outputs less the components' means, in standard deviations, and these."""
        scale = np.sqrt(self._gaussian_variances)
        latent = self._units.to_latent(self._rows(y))
        with np.errstate(over="ignore"):
            return (latent[:, None, :] - self._gaussian_means) / scale, scale

    def _tail(self, z: Array) -> Array:
        """Probability below standardised outputs, (n, n_outputs); above them if ``z`` is their negative."""
        return np.einsum("nk,nkp->np", self.weights, ndtr(z)).clip(0.0, 1.0)

    def _log_tail(self, z: Array) -> Array:
        """Log of :meth:`_tail`."""
        beyond = self._tail(-z)
        # A tail of almost one is known by what is beyond it, a small one by its components' logs.
        with np.errstate(divide="ignore"):
            large = np.log1p(-beyond)
        small = _log_mix(log_ndtr(z), self.weights[:, :, None])
        return np.where(beyond < 0.5, large, np.minimum(small, 0.0))

    def _quantile(self, level: float) -> Array:
        n, _, n_outputs = self._gaussian_means.shape
        quantiles = np.empty((n, n_outputs))
        for output in range(n_outputs):
            for start in range(0, n, QUANTILE_BATCH):
                rows = slice(start, start + QUANTILE_BATCH)
                quantiles[rows, output] = solve_quantile(
                    self.weights[rows],
                    self._gaussian_means[rows, :, output],
                    np.sqrt(self._gaussian_variances[rows, :, output]),
                    level,
                )
        return self._units.from_latent(quantiles)


def _same_units(units: OutputScaling, others: OutputScaling) -> bool:
    return (
        np.array_equal(units.centre, others.centre)
        and np.array_equal(units.loading, others.loading)
        and len(units.warps) == len(others.warps)
        and all(map(same_warp, units.warps, others.warps))
    )


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
