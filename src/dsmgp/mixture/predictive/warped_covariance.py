"""Joint moments of warped Gaussians, for the joint predictive distribution over several rows.

If A and B are Gaussian with correlation rho, then ``Cov(h(A), h(B)) = sum_k rho^k c_k(A) c_k(B)`` over k = 1,
2, ..., where ``c_k(A) = E[h(A) He_k(Z)] / sqrt(k!)`` for the standardised Z of A (Mehler's formula; He_k are
Hermite polynomials).
"""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.gp.transforms.output_warp import OutputWarp

__all__ = ["warped_moments"]

# Terms of the series, at most, and the share of every variance at which it ends.
MAX_TERMS, NEGLIGIBLE = 24, 1e-9
# Expectations by the trapezoidal rule over standard deviations, which for smooth functions is as exact as it gets.
GRID = np.linspace(-9.0, 9.0, 289)


def warped_moments(
    warp: OutputWarp, mean: Array, covariance: Array, weights: Array, factors: Array
) -> tuple[Array, Array]:
    """Return mean (n,) and covariance (n, n) of the warped outputs of a scale mixture of Gaussians.

    Parameters
    ----------
    warp : OutputWarp
    mean, covariance : ndarray of shape (n,), (n, n)
        Those of the latent outputs.
    weights, factors : ndarray of shape (n_scales,)
        Weights of the mixture, and factors of the covariance in each of its components.
    """
    parts = [_warped(warp, mean, factor * covariance) for factor in factors]
    total = sum((w * part[0] for w, part in zip(weights, parts, strict=True)), np.zeros(()))
    mixed = np.zeros_like(covariance)
    for weight, (part_mean, part) in zip(weights, parts, strict=True):
        away = part_mean - total
        mixed += weight * (part + np.multiply.outer(away, away))
    return np.asarray(total), mixed


def _warped(warp: OutputWarp, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Mean and covariance of h(T) for a Gaussian vector T.

    Each term of the series is positive semi-definite, and so is the sum of some of them. What the series
    leaves of the variances counts as one more term: diagonals are exact, and equal rows stay perfectly
    correlated.
    """
    variance = np.diag(covariance)
    std = np.sqrt(np.maximum(variance, 0.0))
    safe = np.where(std > 0, std, 1.0)
    correlation = np.clip(covariance / np.multiply.outer(safe, safe), -1.0, 1.0)
    mapped_mean, mapped_variance = warp.moments(mean, np.square(std))
    coefficients = _hermite_coefficients(warp, mean, std, mapped_mean)  # (terms, n)
    # The grid may claim slightly more than the whole variance.
    explained = np.cumsum(np.square(coefficients), axis=0)
    least = np.finfo(np.float64).tiny
    coefficients *= np.sqrt(np.minimum(mapped_variance / np.maximum(explained[-1], least), 1.0))
    rest = mapped_variance.copy()
    power, result = np.ones_like(correlation), np.zeros_like(correlation)
    for c in coefficients:
        power *= correlation
        result += power * np.multiply.outer(c, c)
        rest = np.maximum(rest - np.square(c), 0.0)
        if (rest <= NEGLIGIBLE * mapped_variance).all():
            break
    root = np.sqrt(rest)
    result += power * correlation * np.multiply.outer(root, root)
    np.fill_diagonal(result, mapped_variance)
    return mapped_mean, result


def _hermite_coefficients(warp: OutputWarp, mean: Array, std: Array, centre: Array) -> Array:
    """Normalised Hermite coefficients of h(mean + std Z), (MAX_TERMS, n); h is taken relative to ``centre``."""
    h = warp.from_latent(mean[:, None] + std[:, None] * GRID) - centre[:, None]
    before, polynomial = np.zeros_like(GRID), np.exp(-0.5 * GRID * GRID)
    polynomial /= polynomial.sum()
    columns = []
    for k in range(1, MAX_TERMS + 1):
        # sqrt(k) He_k = z He_(k-1) - sqrt(k-1) He_(k-2), for normalised polynomials, here times the Gaussian weight
        following = (GRID * polynomial - np.sqrt(k - 1.0) * before) / np.sqrt(k)
        before, polynomial = polynomial, following
        columns.append(polynomial)
    return np.asarray((h @ np.stack(columns, axis=1)).T)
