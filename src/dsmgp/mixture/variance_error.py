"""What errors of the leaves' variances do to the mixture, and which accuracy leaves therefore need.

Large leaves may predict with low-rank variances (:mod:`dsmgp.experts.low_rank`), whose relative errors are
known. A leaf's variance enters the mixture twice: in its component, and through the gate's ``v^-tau`` in all
weights. To first order a relative error e_L of the variance v_L moves the variance V of the mixture by at
most the share

    sum_L w_L e_L (z_L v_L / V + tau |s_L / V - 1|),    s_L = z_L v_L + (m_L - m)^2,

of V. Errors are largest at few rows, and hardly ever in several leaves at once. So the mean errors of the
leaves are summed, and their largest ones added as independent deviations are, in squares. Rows at which this
exceeds :data:`LIMIT` are predicted again with exact variances.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.experts.loo import Components
from dsmgp.experts.low_rank import LEAST_POINTS
from dsmgp.mixture.fitted_mixture import FittedMixture

__all__ = ["LIMIT", "exact_variances", "leaf_tolerances", "relative_error", "wants_exact"]

#: Largest relative error of a predictive variance: the standard deviation moves by a thousandth.
LIMIT = 2e-3
# Share of the limit that leaves may use at nine of ten training rows.
TYPICAL_SHARE = 0.8
# Mean error of a leaf's variances over the largest.
TYPICAL_ERROR = 0.2
# Tolerances of leaves.
TOLERANCES = (0.4 * LIMIT, 0.02)
# How tolerances grow with the number of points.
SIZE_EXPONENT = 1.0
# Training rows at which the weights of large leaves are looked at.
N_SAMPLE = 200

_exact: ContextVar[bool] = ContextVar("exact_variances", default=False)


@contextmanager
def exact_variances(wanted: bool = True) -> Iterator[None]:
    """Compute all variances exactly inside, if ``wanted`` here or outside."""
    token = _exact.set(wanted or _exact.get())
    try:
        yield
    finally:
        _exact.reset(token)


def wants_exact() -> bool:
    """Whether variances are to be computed exactly."""
    return _exact.get()


def relative_error(model: FittedMixture, components: Components, leaf_errors: Array) -> Array:
    """Estimates from above of the relative error of the mixture's variances of y, (n,), the largest of all outputs.

    Parameters
    ----------
    model : FittedMixture
    components : Components
        With low-rank variances.
    leaf_errors : ndarray of shape (n_leaves, 2)
        Mean and largest relative errors of the leaves' variances.
    """
    typical, largest = np.moveaxis(components.of_leaves(leaf_errors, 0.0), -1, 0)
    weights, units = model.component_weights.at(components), model.outputs
    means, scale = components.mean, components.of_leaves(model.scales, 1.0)
    own = components.variance * (scale * model.component_weights.gate.mean_variance)
    if not units.diagonal:
        means, own = units.mean_to_latent(means), units.variance_to_latent(own)
    mean = (weights[:, :, None] * means).sum(axis=1)
    spread = own + np.square(means - mean[:, None])
    total = (weights[:, :, None] * spread).sum(axis=1)[:, None]
    tau = model.component_weights.gate.variance_exponent
    effect = own / total + tau * np.abs(spread / total - 1.0)
    effect = (weights[:, :, None] * effect).max(axis=2)
    return np.asarray((effect * typical).sum(axis=1) + np.sqrt(np.square(effect * largest).sum(1)))


def leaf_tolerances(model: FittedMixture) -> Array:
    """Relative errors of leaves' variances, (n_leaves,), that keep nearly all rows within :data:`LIMIT`.

    The weights of large leaves are looked at on a sample of training rows. Larger leaves, where accuracy
    costs most, get larger errors.
    """
    X, sizes = model.leaf_posterior.leaf_gps.data.X, model.leaf_posterior.leaf_sizes
    relative = np.where(sizes >= LEAST_POINTS, (sizes / sizes.max()) ** SIZE_EXPONENT, 0.0)
    rows = np.random.default_rng(0).choice(len(X), min(N_SAMPLE, len(X)), replace=False)
    coordinates = model.inputs.centre + model.inputs.scale * X[np.sort(rows)]
    components = model.leaf_predictions(coordinates)
    errors = relative_error(model, components, relative[:, None] * [TYPICAL_ERROR, 1.0])
    share = max(float(np.quantile(errors, 0.9)), 1e-3)
    return np.clip(TYPICAL_SHARE * LIMIT / share * relative, *TOLERANCES)
