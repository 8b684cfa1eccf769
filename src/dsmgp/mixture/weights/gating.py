"""The gate: mixture weights that depend on x, fitted by leave-one-out.

Posterior weights collapse: with thousands of rows the evidence of one partition exceeds all others by tens of
nats, and the mixture keeps that partition's hard edges. The gate weighs leaves by their predictive variances
instead. Leaf L at x gets a weight proportional to

    path weight * v_L(x)^-tau * z_L^-kappa,

with v_L(x) its predictive variance of y and z_L its scale, the mean square of its standardised
leave-one-out residuals. A leaf is uncertain near its edges, and gets little weight there. The weights sum to
one at every x and do not depend on y there, so this is a proper mixture and a proper process; but it is
not Bayesian conditioning, and the log evidence is that of the posterior weights.

Each leaf then predicts with a scale mixture: variances ``z_L v_L(x)`` times a few factors that all leaves
share (the *shapes*), which gives tails as heavy as the residuals demand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.optimize import minimize

from dsmgp._util.arrays import Array
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.weighted import weighted_median
from dsmgp.experts.loo import Components
from dsmgp.linalg.threads import one_thread

__all__ = ["Gate", "GateObjective", "fit_gate", "log_product"]

START_EXPONENTS = (3.0, 1.0)
START_SHAPES = ((0.0, -0.5, -1.5), (-0.7, -2.5, 1.2))  # log weights and log variances
BOUNDS = {
    "exponent": (0.0, 40.0),
    "scale": (-5.0, 15.0),
    "weight": (-12.0, 6.0),
    "shape": (-9.0, 6.0),
}
# Penalty on the distance from the start, per row: it matters only where the data are not informative.
RIDGE = 1e-4
# Relative change of the score at which L-BFGS stops.
TOLERANCE = 1e-8


@dataclass(frozen=True)
class Gate:
    """Parameters of the gate; the defaults leave weights and variances as they are.

    Attributes
    ----------
    variance_exponent, scale_exponent : float
        tau and kappa.
    shape_weights, shape_variances : ndarray of shape (n_shapes,)
        Weights, of sum one, and factors of the variance in the scale mixture.
    """

    variance_exponent: float = 0.0
    scale_exponent: float = 0.0
    shape_weights: Array = field(default_factory=lambda: np.ones(1))
    shape_variances: Array = field(default_factory=lambda: np.ones(1))

    @property
    def mean_variance(self) -> float:
        """The average factor of a leaf's variance."""
        return float(self.shape_weights @ self.shape_variances)

    def log_weight(self, log_path: Array, variance: Array, scale: Array) -> Array:
        """Log weights of leaves, not normalised; variance and scale have the outputs in the last axis."""
        return self.log_constant(log_path, scale) - self.variance_exponent * log_product(variance)

    def log_constant(self, log_path: Array, scale: Array) -> Array:
        """The part of the log weights that does not depend on x."""
        return np.asarray(log_path - self.scale_exponent * log_product(scale))


def log_product(values: Array) -> Array:
    """Log of the product over the last axis, without NumPy's slow sum over an axis of length one."""
    logs = np.log(values)
    return logs[..., 0] if logs.shape[-1] == 1 else np.asarray(logs.sum(-1))


def fit_gate(
    components: Components,
    scale: Array,
    log_path: Array,
    y: Array,
    local_scale: bool,
    known_noise: Array | None = None,
    row_weights: Array | None = None,
    near: Gate | None = None,
) -> Gate:
    """Fit the gate to leave-one-out predictions, by L-BFGS.

    It maximises the mean log density minus the log of the root mean square error, as the selection of kernels does.
    Density alone would give weight to leaves that know the local noise well and the function less well.

    Parameters
    ----------
    components : Components
        Predictions of y at rows, given all other rows.
    scale : ndarray of shape (n, n_components, n_outputs)
        Scales of the leaves, without the row itself.
    log_path : ndarray of shape (n, n_components)
        Log path weights; minus infinity if there is no leaf.
    y : ndarray of shape (n, n_outputs)
        Observations in the experts' units.
    local_scale : bool
        Whether leaves have scales; without them only the variance exponent is fitted, with one shape.
    known_noise : ndarray of shape (n, n_outputs), optional
        Known noise variances of the rows, beyond the noise of the leaves.
    row_weights : ndarray of shape (n,), optional
        Weights of the rows in the score.
    near : Gate, optional
        A gate close to the one to be found, from which the search starts.
    """
    objective = GateObjective(
        log_path,
        np.log(components.variance).sum(-1),
        np.log(scale).sum(-1),
        y[:, None, :] - components.mean,
        components.variance * scale,
        len(START_SHAPES[0]) if local_scale else 0,
        known_noise,
        row_weights,
    )
    start, bounds = [START_EXPONENTS[0]], [BOUNDS["exponent"]]
    if local_scale:
        n = len(START_SHAPES[0])
        start += [START_EXPONENTS[1], *START_SHAPES[0][1:], *START_SHAPES[1]]
        bounds += [BOUNDS["scale"], *[BOUNDS["weight"]] * (n - 1), *[BOUNDS["shape"]] * n]
    origin = np.array(start)

    def loss(theta: Array) -> tuple[float, Array]:
        value, gradient = objective.score(theta)
        distance = theta - origin
        penalty = RIDGE * float(distance @ distance)
        return -value + penalty, -gradient + 2.0 * RIDGE * distance

    with one_thread():  # the optimiser's matrices are tiny
        first = origin if near is None else _parameters(near, local_scale)
        optimum = minimize(
            loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": TOLERANCE}
        )
    tau, kappa, log_weights, log_variances = objective.unpack(optimum.x)
    return Gate(tau, kappa, np.exp(log_weights), np.exp(log_variances))


def _parameters(gate: Gate, local_scale: bool) -> Array:
    """Return the parameters of a gate as :meth:`GateObjective.unpack` takes them."""
    if not local_scale:
        return np.array([gate.variance_exponent])
    log_weights = np.log(np.maximum(gate.shape_weights, np.finfo(np.float64).tiny))
    exponents = [gate.variance_exponent, gate.scale_exponent]
    shapes = np.log(gate.shape_variances)
    return np.array([*exponents, *(log_weights[1:] - log_weights[0]), *shapes])


@dataclass(frozen=True)
class GateObjective:
    """The score of leave-one-out predictions and its gradient, as a function of the gate's parameters theta.

    Attributes
    ----------
    log_path, log_v, log_z : ndarray of shape (n, n_components)
        Log path weights, log variances and log scales of the leaves, the latter two summed over outputs.
    residual, spread : ndarray of shape (n, n_components, n_outputs)
        Observations minus means, and variances with the leaves' scales.
    n_shapes : int
        0 if leaves have no scales: then theta is the variance exponent alone.
    known_noise : ndarray of shape (n, n_outputs), optional
    row_weights : ndarray of shape (n,), optional
    """

    log_path: Array
    log_v: Array
    log_z: Array
    residual: Array
    spread: Array
    n_shapes: int
    known_noise: Array | None = None
    row_weights: Array | None = None

    # With rows last, (n_components, n), contiguous.

    @cached_property
    def _square(self) -> Array:
        """Standardised squared residuals, summed over outputs."""
        return np.ascontiguousarray((self.residual**2 / self.spread).sum(-1).T)

    @cached_property
    def _log_v(self) -> Array:
        return np.ascontiguousarray(self.log_v.T)

    @cached_property
    def _log_z(self) -> Array:
        return np.ascontiguousarray(self.log_z.T)

    @cached_property
    def _log_scale(self) -> Array:
        return self._log_v + self._log_z

    @cached_property
    def trust(self) -> Array:
        """Weights of the squared errors, (n, n_outputs): rows with much known noise count less."""
        n, n_components, n_outputs = self.residual.shape
        if self.known_noise is None:
            trust = np.ones((n, n_outputs))
        else:
            weights = self.row_weights
            if weights is not None:
                weights = np.repeat(weights, n_components)
            usual = weighted_median(self.spread.reshape(-1, n_outputs), weights)
            trust = usual / (usual + self.known_noise)
            trust = trust / np.average(trust, axis=0, weights=self.row_weights)
        return trust if self._share is None else trust * self._share[:, None]

    @cached_property
    def _share(self) -> Array | None:
        """Weights of the rows, with mean one, (n,)."""
        return None if self.row_weights is None else self.row_weights / self.row_weights.mean()

    def unpack(self, theta: Array) -> tuple[float, float, Array, Array]:
        """Return tau, kappa, and log weights and log variances of the shapes."""
        if not self.n_shapes:
            return float(theta[0]), 0.0, np.zeros(1), np.zeros(1)
        logits = np.concatenate([[0.0], theta[2 : 1 + self.n_shapes]])
        log_weights = logits - np.logaddexp.reduce(logits)
        return float(theta[0]), float(theta[1]), log_weights, theta[1 + self.n_shapes :]

    def score(self, theta: Array) -> tuple[float, Array]:
        """Return the mean log density minus the log root mean square error, and its gradient."""
        tau, kappa, log_weights, log_variances = self.unpack(theta)
        logits = self.log_path - tau * self.log_v - kappa * self.log_z
        gate, log_total = _softmax(logits)
        log_gate = logits - log_total[:, None]
        density, by_density = self._log_density(gate, log_gate, log_weights, log_variances)
        if gate.shape[1] == 1:  # the mean is the only leaf's, whatever the gate
            return density - self._error_of_one, by_density
        error, by_error = self._log_error(gate)
        by_density[: len(by_error)] -= by_error
        return density - error, by_density

    @cached_property
    def _error_of_one(self) -> float:
        """The log root mean square error where each row has one leaf."""
        return self._log_error(np.ones(self.residual.shape[:2]))[0]

    def _log_error(self, gate: Array) -> tuple[float, Array]:
        """Return the log root mean square error of the mixture mean, summed over outputs, and its gradient by the exponents.

        ``gate`` has the weights of the leaves at each row, (n, n_components).
        """
        n = len(gate)
        error = np.einsum("nk,nkp->np", gate, self.residual)
        weighted = self.trust * error
        square = np.maximum((weighted * error).sum(0) / n, np.finfo(np.float64).tiny)
        # By the log weight of a leaf; constants cancel in the sums over leaves.
        away = self.residual - error[:, None]
        by_logit = gate * np.einsum("nkp,np->nk", away, weighted / (n * square))
        pulls = (self.log_v, self.log_z)[: 2 if self.n_shapes else 1]
        gradient = np.array([-np.vdot(by_logit, pull) for pull in pulls])
        return 0.5 * float(np.log(square).sum()), gradient

    def _log_density(
        self, gate: Array, log_gate: Array, log_weights: Array, log_variances: Array
    ) -> tuple[float, Array]:
        """Return the mean log density of the rows, and its gradient."""
        normal, by_variance = self._log_normal(log_variances)
        # Rows stand last, where NumPy sums over the other axes fast.
        terms = normal + (log_gate.T + log_weights[:, None, None])  # (shapes, components, rows)
        shape, n = terms.shape, terms.shape[-1]
        posterior, total = _softmax(terms.reshape(-1, n), 0)
        if self._share is not None:
            gate, posterior = gate * self._share[:, None], posterior * self._share
        posterior = posterior.reshape(shape)
        moved = posterior.sum(0) - gate.T  # weights of the leaves given y, minus those without
        gradient = [-np.vdot(moved, self._log_v) / n]
        if self.n_shapes:
            by_shape = posterior.reshape(shape[0], -1).sum(1) / n
            gradient.append(-np.vdot(moved, self._log_z) / n)
            gradient += list((by_shape - np.exp(log_weights))[1:])
            gradient += list(np.einsum("jkn,jkn->j", posterior, by_variance) / n)
        return float(np.average(total, weights=self._share)), np.array(gradient)

    def _log_normal(self, log_variances: Array) -> tuple[Array, Array]:
        """Return the log density under each leaf and shape, and its derivative by the shape's log variance.

        Both are (n_shapes, n_components, n).
        """
        factors = np.exp(log_variances)
        if self.known_noise is None:
            n_outputs = self.residual.shape[-1]
            square = self._square / factors[:, None, None]
            constants = 0.5 * n_outputs * (log_variances + LOG_2PI)
            density = -0.5 * (square + self._log_scale) - constants[:, None, None]
            return density, 0.5 * square - 0.5 * n_outputs
        scaled = self.spread.T[:, None] * factors[:, None, None]  # outputs first
        total = scaled + self.known_noise.T[:, None, None]  # leaves do not scale known noise
        square = self.residual.T[:, None] ** 2 / total
        density = -0.5 * (square + np.log(total) + LOG_2PI).sum(0)
        return density, 0.5 * ((square - 1.0) * scaled / total).sum(0)


def _softmax(log_weights: Array, axis: int = 1) -> tuple[Array, Array]:
    """Return weights normalised over an axis, and the logs of their normalisers."""
    top = log_weights.max(axis=axis, keepdims=True)
    weights = np.exp(log_weights - top)
    total = weights.sum(axis=axis, keepdims=True)
    return weights / total, (np.log(total) + top).squeeze(axis)
