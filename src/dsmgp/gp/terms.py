"""Terms of kernels in closed form: covariances between rows, and gradients through them, in NumPy.

With ``z = x / lengthscale`` and ``r2`` the squared distance of two such rows, a stationary ARD kernel is
``outputscale * k(r2)``. For ``W = 2 dL/dK`` all of them share the gradient

    dL / d log lengthscale_d = sum_ij W_ij outputscale (-dk/dr2) (z_id - z_jd)^2.

To add a kernel, write a function of ``r2`` like :func:`_rbf` and enter it in ``STATIONARY``. Two kernels are
not of this form: "periodic", and "linear", ``outputscale * (1 + z z')``, the covariance of a line with a
normal intercept and normal slopes. A :class:`Term` is a scaled product of kernels without its
hyperparameters; the prior of a leaf is a sum of terms (:mod:`dsmgp.gp.leaf_kernels`). :mod:`dsmgp.gp.kernels`
has kernels with values, which is what users see.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError

__all__ = [
    "HARMLESS_NORM",
    "NAMED_KERNELS",
    "STATIONARY",
    "Term",
    "kernel_parts",
    "weighted_differences",
]

# Computes -dk/dr2, which covariances do not need.
Slope = Callable[[], Array]
# Takes squared distances, which it may overwrite, and a shape; returns k and its slope.
Radial = Callable[[Array, float], tuple[Array, Slope]]

#: Squared norms up to which rounding errors of a product do not matter to a kernel that is smooth in r2.
HARMLESS_NORM = 1e4


def _rbf(r2: Array, shape: float) -> tuple[Array, Slope]:
    """``exp(-r2 / 2)``."""
    r2 *= -0.5
    k = np.exp(r2, out=r2)
    return k, lambda: 0.5 * k


def _matern12(r2: Array, shape: float) -> tuple[Array, Slope]:
    """``exp(-r)``."""
    r = np.sqrt(r2, out=r2)
    k = np.negative(r)
    np.exp(k, out=k)
    return k, lambda: np.divide(0.5 * k, r, out=np.zeros_like(k), where=r > 0)


def _matern32(r2: Array, shape: float) -> tuple[Array, Slope]:
    """``(1 + a) exp(-a)`` with ``a = sqrt(3) r``."""
    a = np.sqrt(r2, out=r2)
    a *= math.sqrt(3.0)
    decay = np.negative(a)
    np.exp(decay, out=decay)
    a += 1.0
    a *= decay
    return a, lambda: 1.5 * decay


def _matern52(r2: Array, shape: float) -> tuple[Array, Slope]:
    """``(1 + a + a^2 / 3) exp(-a)`` with ``a = sqrt(5) r``."""
    a = np.sqrt(r2, out=r2)
    a *= math.sqrt(5.0)
    decay = np.negative(a)
    np.exp(decay, out=decay)
    linear = 1.0 + a
    linear *= decay
    np.square(a, out=a)
    a *= decay
    a /= 3.0
    a += linear
    return a, lambda: (5.0 / 6.0) * linear


def _rq(r2: Array, shape: float) -> tuple[Array, Slope]:
    """Rational quadratic: ``(1 + r2 / (2 shape))^-shape``."""
    r2 /= 2.0 * shape
    r2 += 1.0
    k = r2**-shape
    return k, lambda: 0.5 * k / r2


#: Stationary kernels by name.
STATIONARY: dict[str, Radial] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
    "rq": _rq,
}
#: All kernels that have a name, those entered in ``STATIONARY`` later included.
NAMED_KERNELS: ChainMap[str, Any] = ChainMap({"periodic": None, "linear": None}, STATIONARY)


# A product of names, and the inputs that it depends on.
PART = re.compile(r"\s*([^\[\]]*?)\s*(?:\[\s*(\d+(?:\s*,\s*\d+)*)\s*\])?\s*")


def kernel_parts(name: str) -> list[str]:
    """Return the terms in the name of a kernel such as "linear+matern32*periodic".

    Raises
    ------
    ValueError
        For names that are not known.

    Examples
    --------
    >>> kernel_parts("linear + rbf*periodic + matern32[1, 2]")
    ['linear', 'rbf*periodic', 'matern32[1,2]']
    """
    parts = []
    for part in name.split("+"):
        match = PART.fullmatch(part)
        names, columns = (None, None) if match is None else match.groups()
        factors = [factor.strip() for factor in (names if names is not None else part).split("*")]
        for factor in factors:
            if factor not in NAMED_KERNELS:
                raise InputError(
                    f"unknown kernel {factor!r}: expected one of {', '.join(map(repr, NAMED_KERNELS))}, a sum or product of them such "
                    "as 'matern32+periodic' or 'linear+rbf*periodic', or a gpytorch kernel"
                )
        inputs = "" if columns is None else f"[{','.join(re.findall('[0-9]+', columns))}]"
        parts.append("*".join(factors) + inputs)
    return parts


def n_extra(kind: str, n_columns: int) -> int:
    """Return the number of parameters of a kernel besides its length scales: the shape of "rq", the periods of "periodic"."""
    return {"rq": 1, "periodic": n_columns}.get(kind, 0)


@dataclass(frozen=True)
class Term:
    """A scaled product of kernels, one term of a sum.

    Its kernel parameters are the length scales of the first factor, the output scale, shape or periods of the
    first factor, then length scales and shape or periods of each further factor.

    Attributes
    ----------
    kind : str
        One of :data:`NAMED_KERNELS`, or a product such as "rbf*periodic".
    columns : tuple of int
        Inputs that it depends on.
    """

    kind: str
    columns: tuple[int, ...]

    @classmethod
    def parse(cls, part: str, n_dims: int) -> Term:
        """Return the term of a name as :func:`kernel_parts` has it: of all inputs, unless it lists some."""
        kind, _, columns = part.removesuffix("]").partition("[")
        if not columns:
            return cls(kind, tuple(range(n_dims)))
        chosen = tuple(int(column) for column in columns.split(","))
        if len(set(chosen)) < len(chosen) or max(chosen) >= n_dims:
            raise InputError(
                f"the kernel cannot be evaluated on inputs with {n_dims} columns: expected distinct numbers below {n_dims} "
                f"in {part!r}"
            )
        return cls(kind, chosen)

    def name(self, n_dims: int) -> str:
        """Return what :meth:`parse` reads."""
        every = self.columns == tuple(range(n_dims))
        return self.kind if every else f"{self.kind}[{','.join(map(str, self.columns))}]"

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Names of the kernels that are multiplied."""
        return tuple(self.kind.split("*"))

    @property
    def n_extra(self) -> int:
        """Number of parameters after the output scale."""
        return self.n_parameters - len(self.columns) - 1

    @property
    def n_parameters(self) -> int:
        n = len(self.columns)
        return 1 + sum(n + n_extra(kind, n) for kind in self.factors)

    @property
    def is_bounded(self) -> bool:
        """Whether the output scale is the prior variance everywhere."""
        return "linear" not in self.factors

    def variance(self, X: Array, parameters: Array) -> Array:
        """Return the prior variance of f at rows of X, (n,)."""
        scale, by_factor = self.split(parameters)
        total = np.full(len(X), scale)
        for kind, (lengthscale, _) in zip(self.factors, by_factor, strict=True):
            if kind == "linear":
                total *= 1.0 + np.square(X[:, list(self.columns)] / lengthscale).sum(axis=1)
        return total

    def covariance(self, A: Array, B: Array, parameters: Array) -> Array:
        """Return the covariance of f between rows of A and of B."""
        scale, by_factor = self.split(parameters)
        a, b = A[:, list(self.columns)], B[:, list(self.columns)]
        product: Array | None = None
        for kind, (lengthscale, extra) in zip(self.factors, by_factor, strict=True):
            k = _covariance(kind, a, b, lengthscale, extra)
            product = k if product is None else np.multiply(product, k, out=product)
        assert product is not None
        product *= scale
        return product

    def with_gradient(self, X: Array, parameters: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Return the covariance of f at rows of X, and the function from ``W = 2 dL/dK`` to the gradient of L by the parameters."""
        scale, by_factor = self.split(parameters)
        x = X[:, list(self.columns)]
        matrices, gradients = zip(
            *(
                _with_gradient(kind, x, lengthscale, extra)
                for kind, (lengthscale, extra) in zip(self.factors, by_factor, strict=True)
            ),
            strict=True,
        )
        product = matrices[0] if len(matrices) == 1 else np.prod(matrices, axis=0)

        def gradient(W: Array) -> Array:
            by_scale = 0.5 * np.vdot(W, product)
            parts = []
            for k, of_factor in enumerate(gradients):
                others = [matrix for j, matrix in enumerate(matrices) if j != k]
                V = W * np.prod(others, axis=0) if others else W
                by_lengthscale, by_extra = of_factor(V)
                parts += [
                    scale * by_lengthscale,
                    *([[by_scale]] if k == 0 else []),
                    scale * by_extra,
                ]
            return np.concatenate(parts)

        return scale * product, gradient

    def split(self, parameters: Array) -> tuple[float, list[tuple[Array, Array]]]:
        """Return the output scale, and for each factor length scales and further parameters."""
        n = len(self.columns)
        rest = np.delete(parameters, n)
        by_factor = []
        for kind in self.factors:
            end = n + n_extra(kind, n)
            by_factor.append((rest[:n], rest[n:end]))
            rest = rest[end:]
        return float(parameters[n]), by_factor


# Factors, at an output scale of one. A gradient takes ``V = 2 dL/dk`` to those by length scales and by
# further parameters.
FactorGradient = Callable[[Array], tuple[Array, Array]]


def _covariance(kind: str, a: Array, b: Array, lengthscale: Array, extra: Array) -> Array:
    if kind == "periodic":
        return _periodic(a, b, lengthscale, extra)
    a, b = a / lengthscale, b / lengthscale
    if kind == "linear":
        return np.asarray(1.0 + a @ b.T)
    return STATIONARY[kind](cdist(a, b, "sqeuclidean"), _shape(extra))[0]


def _with_gradient(
    kind: str, x: Array, lengthscale: Array, extra: Array
) -> tuple[Array, FactorGradient]:
    if kind == "periodic":
        return _periodic_with_gradient(x, lengthscale, extra)
    z = x / lengthscale
    if kind == "linear":

        def of_line(V: Array) -> tuple[Array, Array]:
            return -(z * (V @ z)).sum(axis=0) / lengthscale, np.empty(0)

        return 1.0 + z @ z.T, of_line
    r2 = cdist(z, z, "sqeuclidean")
    u = r2 / (2.0 * extra[0]) if kind == "rq" else None
    k, slope = STATIONARY[kind](r2, _shape(extra))

    def of_stationary(V: Array) -> tuple[Array, Array]:
        G = slope()
        G *= V
        by_lengthscale = _weighted_squares(G, z, kind != "matern12") / lengthscale
        if u is None:
            return by_lengthscale, np.empty(0)
        return by_lengthscale, np.array([0.5 * np.vdot(V, k * (u / (1.0 + u) - np.log1p(u)))])

    return k, of_stationary


def _periodic_with_gradient(
    x: Array, lengthscale: Array, period: Array
) -> tuple[Array, FactorGradient]:
    k = _periodic(x, x, lengthscale, period)

    def gradient(V: Array) -> tuple[Array, Array]:
        Vk, by_lengthscale, by_period = V * k, np.empty(len(period)), np.empty(len(period))
        for d, column in enumerate(x.T):
            angle = (math.pi / period[d]) * np.subtract.outer(column, column)
            by_lengthscale[d] = np.vdot(Vk, np.square(np.sin(angle))) / lengthscale[d] ** 2
            slope = np.vdot(Vk, np.sin(2.0 * angle) * angle)
            by_period[d] = slope / (lengthscale[d] * period[d])
        return by_lengthscale, by_period

    return k, gradient


def _periodic(a: Array, b: Array, lengthscale: Array, period: Array) -> Array:
    """``exp(-2 sum_d sin(pi (a_d - b_d) / period_d)^2 / lengthscale_d)``."""
    exponent = np.zeros((len(a), len(b)))
    for d in range(len(period)):  # one matrix at a time
        angle = (math.pi / period[d]) * np.subtract.outer(a[:, d], b[:, d])
        exponent -= (2.0 / lengthscale[d]) * np.square(np.sin(angle))
    return np.asarray(np.exp(exponent))


def _weighted_squares(G: Array, Z: Array, smooth: bool) -> Array:
    """Return ``sum_ij G_ij (z_id - z_jd)^2`` for every column d.

    One matrix product, ``2 sum_i z_id (g_i z_id - (G Z)_id)`` with ``g_i = sum_j G_ij``, unless that would cancel.
    """
    Z = Z - np.median(Z, axis=0)
    if smooth and np.square(Z).sum(axis=1).max(initial=0.0) < HARMLESS_NORM:
        return 2.0 * (Z * (G.sum(axis=1)[:, None] * Z - G @ Z)).sum(axis=0)
    sums, square = np.empty(Z.shape[1]), np.empty_like(G)
    for d, z in enumerate(Z.T):
        np.subtract.outer(z, z, out=square)
        np.square(square, out=square)
        sums[d] = np.vdot(G, square)
    return sums


def weighted_differences(G: Array, Z: Array, smooth: bool) -> Array:
    """Return ``sum_j G_ij (z_i - z_j)`` for every row i, (rows, dims).

    One matrix product, unless that would cancel: G of a kernel that is not ``smooth`` is large where rows
    almost coincide.
    """
    Z = Z - np.median(Z, axis=0)
    if smooth and np.square(Z).sum(axis=1).max(initial=0.0) < HARMLESS_NORM:
        return np.asarray(G.sum(axis=1)[:, None] * Z - G @ Z)
    sums, difference = np.empty_like(Z), np.empty_like(G)
    for d, z in enumerate(Z.T):
        np.subtract.outer(z, z, out=difference)
        difference *= G
        sums[:, d] = difference.sum(axis=1)
    return sums


def _shape(extra: Array) -> float:
    return float(extra[0]) if len(extra) else math.nan
