"""Weights that depend on x, fitted by leave-one-out.

Posterior weights collapse: with thousands of rows one partition's evidence beats all others by tens of
nats, and the mixture keeps that partition's hard edges. The gate weighs leaves by how sure they are
instead. Leaf L at x gets a weight proportional to

    path weight * v_L(x)^-tau * z_L^-kappa,

with v_L(x) its predictive variance of y and z_L its scale, the mean square of its standardised
leave-one-out residuals. A leaf at whose edge x lies is unsure, and steps back. The weights sum to one
at every x and do not look at y there, so this is a proper mixture and a proper process; but it is
not Bayesian conditioning, and the log evidence is not its own.

Each leaf then predicts with variance ``z_L v_L(x)``, spread over a few scales that all leaves share
(a scale mixture, which gives tails as heavy as the data ask for).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dsmgp.components import Components
from dsmgp.lapack import one_thread

__all__ = [
    "Gate",
    "fit_gate",
    "leaf_scales",
    "log_product",
    "normal_log_density",
    "standardised",
    "without_known",
]

Array = NDArray[np.float64]
# Rows of pseudo-data at scale one: a leaf of few rows keeps its scale near one.
PRIOR_ROWS = 1.0
LOG_2PI = float(np.log(2.0 * np.pi))
START_EXPONENTS = (3.0, 1.0)
START_SHAPES = ((0.0, -0.5, -1.5), (-0.7, -2.5, 1.2))  # log weights and log variances
BOUNDS = {
    "exponent": (0.0, 40.0),
    "scale": (-5.0, 15.0),
    "weight": (-12.0, 6.0),
    "shape": (-9.0, 6.0),
}
# Pull towards the start, per row: only where the data say next to nothing does it count.
RIDGE = 1e-4
# Relative change of the score below which its search ends.
TOLERANCE = 1e-8


@dataclass(frozen=True)
class Gate:
    """Exponents of the leaf's variance and scale, and the scales over which a leaf is spread.

    ``shape_weights`` sum to one; a leaf's variance is multiplied by each of ``shape_variances``.
    """

    variance_exponent: float = 0.0
    scale_exponent: float = 0.0
    shape_weights: Array = field(default_factory=lambda: np.ones(1))
    shape_variances: Array = field(default_factory=lambda: np.ones(1))

    @property
    def mean_variance(self) -> float:
        """What a leaf's variance is multiplied by on average."""
        return float(self.shape_weights @ self.shape_variances)

    def log_weight(self, log_path: Array, variance: Array, scale: Array) -> Array:
        """Log weight of leaves, not normalised; variance and scale have the outputs last."""
        return self.log_constant(log_path, scale) - self.variance_exponent * log_product(variance)

    def log_constant(self, log_path: Array, scale: Array) -> Array:
        """What of it is the same wherever the leaf is asked."""
        return np.asarray(log_path - self.scale_exponent * log_product(scale))


def log_product(values: Array) -> Array:
    """Log of the product over the last axis; sums over an axis of length one are slow."""
    logs = np.log(values)
    return logs[..., 0] if logs.shape[-1] == 1 else np.asarray(logs.sum(-1))


def normal_log_density(away: Array, variance: Array) -> Array:
    """Log density of observations so far from the mean."""
    return np.asarray(-0.5 * (away**2 / variance + np.log(variance) + LOG_2PI))


def leaf_scales(squares: Array, n_rows: Array) -> Array:
    """Scale of leaves whose standardised leave-one-out residuals have the given sums of squares."""
    return np.asarray((PRIOR_ROWS + np.maximum(squares, 0.0)) / (PRIOR_ROWS + n_rows))


def standardised(square: Array, variance: Array, known: Array | None) -> tuple[Array, Array]:
    """Squared residuals of rows left out over their variance, and how much each counts: one but for rows of
    known noise.

    Such noise is not the leaf's to answer for, so it is taken off the square. What is left is the more uncertain the
    larger the noise, and counts by the inverse of its variance.
    """
    if known is None:
        return square / variance, np.ones_like(square)
    own = without_known(variance, known) / variance
    return own * (square - known) / variance, own**2


def without_known(variance: Array, known: Array) -> Array:
    """Variance of y but for what is known of its noise, which is less than the whole."""
    return np.maximum(variance - known, 1e-9 * variance)


def fit_gate(
    components: Components,
    scale: Array,
    log_path: Array,
    y: Array,
    local_scale: bool,
    known: Array | None = None,
) -> Gate:
    """The gate under which the mixture of left-out laws is best at the rows: its law and, as much, its mean.

    It maximises the mean log density minus the log of the root mean square error, as kernels are chosen. Density
    alone would give weight to leaves that know the local noise well and the function less so.

    Parameters
    ----------
    components : Components
        Laws of y at rows, given all other rows.
    scale : ndarray of shape (n, n_components, n_outputs)
        Scales of the leaves, without the row itself.
    log_path : ndarray of shape (n, n_components)
        Log path weights, minus infinity where a row reaches no leaf.
    y : ndarray of shape (n, n_outputs)
        What was observed, in the units of the experts.
    local_scale : bool
        Whether leaves have scales; without them there is one exponent to fit and one shape.
    known : ndarray of shape (n, n_outputs), optional
        Noise variances of the rows that the leaves do not know of.
    """
    problem = _Problem(
        log_path,
        np.log(components.variance).sum(-1),
        np.log(scale).sum(-1),
        y[:, None, :] - components.mean,
        components.variance * scale,
        len(START_SHAPES[0]) if local_scale else 0,
        known,
    )
    start, bounds = [START_EXPONENTS[0]], [BOUNDS["exponent"]]
    if local_scale:
        n = len(START_SHAPES[0])
        start += [START_EXPONENTS[1], *START_SHAPES[0][1:], *START_SHAPES[1]]
        bounds += [BOUNDS["scale"], *[BOUNDS["weight"]] * (n - 1), *[BOUNDS["shape"]] * n]
    origin = np.array(start)

    def loss(theta: Array) -> tuple[float, Array]:
        value, gradient = problem.score(theta)
        away = theta - origin
        return -value + RIDGE * float(away @ away), -gradient + 2.0 * RIDGE * away

    with one_thread():  # the optimiser's matrices are tiny
        found = minimize(
            loss, origin, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": TOLERANCE}
        )
    tau, kappa, log_weights, log_variances = problem.parts(found.x)
    return Gate(tau, kappa, np.exp(log_weights), np.exp(log_variances))


@dataclass(frozen=True)
class _Problem:
    """How well left-out rows are predicted, and its gradient, as a function of the gate's parameters.

    Arrays are (rows, components), summed over outputs; ``residual`` and ``spread``, the variance with the leaf's
    scale, have the outputs last.
    ``n_shapes`` is 0 where there are no scales: then theta is the variance exponent alone.
    """

    log_path: Array
    log_v: Array
    log_z: Array
    residual: Array
    spread: Array
    n_shapes: int
    known: Array | None = None

    @property
    def n_outputs(self) -> int:
        return self.residual.shape[-1]

    @cached_property
    def square(self) -> Array:
        """Standardised squared residuals, summed over outputs."""
        return np.asarray((self.residual**2 / self.spread).sum(-1))

    @cached_property
    def trust(self) -> Array:
        """What a row's squared error counts, (rows, outputs): less where most of it is noise that is known."""
        if self.known is None:
            return np.ones((len(self.residual), self.n_outputs))
        usual = np.median(self.spread, axis=(0, 1))
        weight = usual / (usual + self.known)
        return np.asarray(weight / weight.mean(axis=0))

    def parts(self, theta: Array) -> tuple[float, float, Array, Array]:
        """Exponents, and log weights and log variances of the shapes."""
        if not self.n_shapes:
            return float(theta[0]), 0.0, np.zeros(1), np.zeros(1)
        logits = np.concatenate([[0.0], theta[2 : 1 + self.n_shapes]])
        log_weights = logits - np.logaddexp.reduce(logits)
        return float(theta[0]), float(theta[1]), log_weights, theta[1 + self.n_shapes :]

    def score(self, theta: Array) -> tuple[float, Array]:
        """Mean log density minus log root mean square error."""
        density, by_density = self.log_density(theta)
        error, by_error = self.log_error(theta)
        by_density[: len(by_error)] -= by_error
        return density - error, by_density

    def gate(self, theta: Array) -> Array:
        """Weights of the leaves at each row."""
        tau, kappa, _, _ = self.parts(theta)
        return _softmax(self.log_path - tau * self.log_v - kappa * self.log_z)[0]

    def log_error(self, theta: Array) -> tuple[float, Array]:
        """Log of the mixture mean's root mean square error, summed over outputs; by the exponents only."""
        gate = self.gate(theta)
        error = np.einsum("nk,nkp->np", gate, self.residual)
        square = np.maximum(np.mean(self.trust * error**2, axis=0), np.finfo(np.float64).tiny)
        gradient = []
        for pull in (self.log_v, self.log_z)[: 2 if self.n_shapes else 1]:
            away = gate * ((gate * pull).sum(axis=1, keepdims=True) - pull)
            moved = np.einsum("nk,nkp->np", away, self.residual)
            gradient.append(float((np.mean(self.trust * error * moved, axis=0) / square).sum()))
        return 0.5 * float(np.log(square).sum()), np.array(gradient)

    def log_density(self, theta: Array) -> tuple[float, Array]:
        """Mean log density of the rows."""
        _, _, log_weights, log_variances = self.parts(theta)
        gate = self.gate(theta)
        with np.errstate(divide="ignore"):
            log_gate = np.log(gate)
        normal, by_variance = self.log_normal(log_variances)
        terms = log_gate[:, :, None] + log_weights + normal  # (rows, components, shapes)
        n = len(terms)
        posterior, total = _softmax(terms.reshape(n, -1))
        posterior = posterior.reshape(terms.shape)
        moved = posterior.sum(-1) - gate  # where the rows themselves would put the weight
        gradient = [-(moved * self.log_v).sum() / n]
        if self.n_shapes:
            by_shape = posterior.sum((0, 1)) / n
            gradient.append(-(moved * self.log_z).sum() / n)
            gradient += list((by_shape - np.exp(log_weights))[1:])
            gradient += list(np.einsum("nkj,nkj->j", posterior, by_variance) / n)
        return float(total.mean()), np.array(gradient)

    def log_normal(self, log_variances: Array) -> tuple[Array, Array]:
        """Log density of the rows under each leaf and shape, and its derivative by the log of the shape's variance:
        (rows, components, shapes)."""
        if self.known is None:
            square = self.square[:, :, None] * np.exp(-log_variances)
            normal = -0.5 * (self.log_v + self.log_z + self.n_outputs * LOG_2PI)[:, :, None]
            density = normal - 0.5 * (square + self.n_outputs * log_variances)
            return density, 0.5 * (square - self.n_outputs)
        own = self.spread[:, :, None, :] * np.exp(log_variances)[:, None]
        total = own + self.known[:, None, None, :]  # what is known is not the leaf's to scale
        square = self.residual[:, :, None, :] ** 2 / total
        density = -0.5 * (square + np.log(total) + LOG_2PI).sum(-1)
        return density, 0.5 * ((square - 1.0) * own / total).sum(-1)


def _softmax(log_weights: Array) -> tuple[Array, Array]:
    """Normalised weights over axis 1, and the logs of what they were divided by."""
    top = log_weights.max(axis=1, keepdims=True)
    weights = np.exp(log_weights - top)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total, (np.log(total) + top)[:, 0]
