"""What errors of the leaves' variances do to the mixture, and which accuracy leaves therefore need.

Large leaves may predict with low-rank variances (:mod:`dsmgp.experts.low_rank`), whose relative errors are
known. A leaf's variance enters the mixture twice: in its component, and through the gate's ``v^-tau`` in all
weights. To first order a relative error e_L of the variance v_L moves the variance V of the mixture by at
most the share

    sum_L w_L e_L (z_L v_L / V + tau |s_L / V - 1|),    s_L = z_L v_L + (m_L - m)^2,

of V. Errors are largest at few rows, and hardly ever in several leaves at once. So the mean errors of the
leaves are summed, and their largest ones added as independent deviations are, in squares. Rows at which this
exceeds :data:`LIMIT` are predicted again with exact variances of the leaves that have most of the effect.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array
from dsmgp.experts.leaf_bases import ALONE
from dsmgp.experts.loo import Components
from dsmgp.experts.low_rank import LEAST_POINTS
from dsmgp.mixture.fitted_mixture import FittedMixture

__all__ = [
    "LIMIT",
    "exact_variances",
    "leaf_tolerances",
    "leaves_beyond_limit",
    "relative_error",
    "wants_exact",
]

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
# Training rows at which the weights of large leaves are looked at, and those of one step.
N_SAMPLE, STEP_ROWS = 40, 2

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
    typical, squares = _effects(model, components, components.of_leaves(leaf_errors, 0.0))
    return np.asarray(typical.sum(axis=1) + np.sqrt(squares.sum(axis=1)))


def leaves_beyond_limit(
    model: FittedMixture, components: Components, errors: Array
) -> NDArray[np.bool_]:
    """Return the components, (n, n_components), whose variances have to be exact for the mixture's error to be within :data:`LIMIT`.

    Of each row as few as possible, those with the largest effects.

    Parameters
    ----------
    model : FittedMixture
    components : Components
    errors : ndarray of shape (n, n_components, 2)
        Mean and largest relative errors of the components' variances.
    """
    typical, squares = _effects(model, components, errors)
    chosen = np.zeros(squares.shape, dtype=bool)
    beyond = np.flatnonzero(typical.sum(axis=1) + np.sqrt(squares.sum(axis=1)) > LIMIT)
    # Components in the order of their effects, the least first, are left as they are while their sum is within the limit.
    order = np.argsort(squares[beyond], axis=1, kind="stable")
    typical, squares = (
        np.cumsum(np.take_along_axis(effects[beyond], order, axis=1), axis=1)
        for effects in (typical, squares)
    )
    exact = typical + np.sqrt(squares) > LIMIT
    chosen[beyond[:, None], order] = exact
    return chosen


def _effects(model: FittedMixture, components: Components, errors: Array) -> tuple[Array, Array]:
    """Share of the mixture's variance by which mean errors of components move it, and the squares of the same for their largest errors."""
    typical, largest = np.moveaxis(errors, -1, 0)
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
    return effect * typical, np.square(effect * largest)


def leaf_tolerances(model: FittedMixture) -> Generator[float, None, Array]:
    """Compute relative errors of leaves' variances, (n_leaves,), that keep nearly all rows within :data:`LIMIT`.

    The weights of large leaves are looked at on a sample of training rows, a few in each step; yields the multiplications of a step. Larger
    leaves, where accuracy costs most, get larger errors.
    """
    X, sizes = model.leaf_posterior.leaf_gps.data.X, model.leaf_posterior.leaf_sizes
    relative = np.where(sizes >= LEAST_POINTS, (sizes / sizes.max()) ** SIZE_EXPONENT, 0.0)
    rows = np.random.default_rng(0).choice(len(X), min(N_SAMPLE, len(X)), replace=False)
    coordinates = model.inputs.centre + model.inputs.scale * X[np.sort(rows)]
    errors = []
    for piece in np.array_split(coordinates, -(-len(rows) // STEP_ROWS)):
        components = model.leaf_predictions(piece)
        errors.append(relative_error(model, components, relative[:, None] * [TYPICAL_ERROR, 1.0]))
        yield 0.5 * ALONE * float(components.of_leaves(np.square(sizes, dtype=float), 0.0).sum())
    share = max(float(np.quantile(np.concatenate(errors), 0.9)), 1e-3)
    return np.clip(TYPICAL_SHARE * LIMIT / share * relative, *TOLERANCES)
