"""Kernels in closed form: covariances between rows, and gradients through them, in NumPy.

With ``z = x / lengthscale`` and ``r2`` the squared distance of two such rows, a stationary ARD kernel is
``outputscale * k(r2)``. For ``W = 2 dL/dK`` all of them share the gradient

    dL / d log lengthscale_d = sum_ij W_ij outputscale (-dk/dr2) (z_id - z_jd)^2.

To add a kernel, write a function of ``r2`` like :func:`_rbf` and enter it in ``STATIONARY``. :class:`Term` is a scaled kernel without its
hyperparameters, of which the prior of a leaf is composed (:mod:`dsmgp.gp.leaf_kernels`); :class:`Kernel` has values, and is what users see.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist

from dsmgp._util.arrays import Array

__all__ = [
    "NAMED_KERNELS",
    "STATIONARY",
    "Kernel",
    "KernelTerm",
    "Term",
    "kernel_parts",
    "weighted_differences",
]

# Computes -dk/dr2, which covariances do not need.
Slope = Callable[[], Array]
# Takes squared distances, which it may overwrite, and a shape; returns k and its slope.
Radial = Callable[[Array, float], tuple[Array, Slope]]

# Squared norms up to which rounding errors of a product do not matter to a kernel that is smooth in r2.
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
NAMED_KERNELS: ChainMap[str, Any] = ChainMap({"periodic": None}, STATIONARY)


def kernel_parts(name: str) -> list[str]:
    """Return the names in a sum of kernels such as "matern32+periodic"."""
    parts = [part.strip() for part in name.split("+")]
    for part in parts:
        if part not in NAMED_KERNELS:
            raise ValueError(
                f"unknown kernel {part!r}: expected one of {', '.join(map(repr, NAMED_KERNELS))}, a sum of them such as "
                "'matern32+periodic', or a gpytorch kernel"
            )
    return parts


@dataclass(frozen=True)
class Term:
    """A scaled kernel, one term of a sum. Its kernel parameters are length scales, output scale, then shape or periods.

    Attributes
    ----------
    kind : str
        One of :data:`NAMED_KERNELS`.
    columns : tuple of int
        Inputs that it depends on.
    """

    kind: str
    columns: tuple[int, ...]

    @property
    def n_extra(self) -> int:
        """Number of parameters after the output scale: the shape of "rq", the periods of "periodic"."""
        return {"rq": 1, "periodic": len(self.columns)}.get(self.kind, 0)

    @property
    def n_parameters(self) -> int:
        return len(self.columns) + 1 + self.n_extra

    def covariance(self, A: Array, B: Array, parameters: Array) -> Array:
        """Return the covariance of f between rows of A and of B."""
        lengthscale, scale, extra = self._split(parameters)
        columns = list(self.columns)
        if self.kind == "periodic":
            return self._periodic(A, B, lengthscale, scale, extra)
        a, b = (rows[:, columns] / lengthscale for rows in (A, B))
        k, _ = STATIONARY[self.kind](cdist(a, b, "sqeuclidean"), _shape(extra))
        k *= scale
        return k

    def with_gradient(self, X: Array, parameters: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Return the covariance of f at rows of X, and the function from ``W = 2 dL/dK`` to the gradient of L by the parameters."""
        if self.kind == "periodic":
            return self._periodic_with_gradient(X, parameters)
        lengthscale, scale, extra = self._split(parameters)
        Z = X[:, list(self.columns)] / lengthscale
        r2 = cdist(Z, Z, "sqeuclidean")
        u = r2 / (2.0 * extra[0]) if self.kind == "rq" else None
        k, slope = STATIONARY[self.kind](r2, _shape(extra))

        def gradient(W: Array) -> Array:
            G = slope()
            G *= W
            by_lengthscale = _weighted_squares(G, Z, self.kind != "matern12") * scale / lengthscale
            after = [0.5 * np.vdot(W, k)]
            if u is not None:
                after.append(0.5 * scale * np.vdot(W, k * (u / (1.0 + u) - np.log1p(u))))
            return np.concatenate([by_lengthscale, after])

        return scale * k, gradient

    def _periodic_with_gradient(
        self, X: Array, parameters: Array
    ) -> tuple[Array, Callable[[Array], Array]]:
        lengthscale, scale, period = self._split(parameters)
        K = self._periodic(X, X, lengthscale, scale, period)

        def gradient(W: Array) -> Array:
            WK, by_lengthscale, by_period = W * K, np.empty(len(period)), np.empty(len(period))
            for d, column in enumerate(self.columns):
                angle = (math.pi / period[d]) * np.subtract.outer(X[:, column], X[:, column])
                by_lengthscale[d] = np.vdot(WK, np.square(np.sin(angle))) / lengthscale[d] ** 2
                slope = np.vdot(WK, np.sin(2.0 * angle) * angle)
                by_period[d] = slope / (lengthscale[d] * period[d])
            return np.concatenate([by_lengthscale, [0.5 * WK.sum() / scale], by_period])

        return K.copy(), gradient

    def _periodic(
        self, A: Array, B: Array, lengthscale: Array, scale: float, period: Array
    ) -> Array:
        """``scale * exp(-2 sum_d sin(pi (a_d - b_d) / period_d)^2 / lengthscale_d)``."""
        exponent = np.zeros((len(A), len(B)))
        for d, column in enumerate(self.columns):  # one matrix at a time
            angle = (math.pi / period[d]) * np.subtract.outer(A[:, column], B[:, column])
            exponent -= (2.0 / lengthscale[d]) * np.square(np.sin(angle))
        return np.asarray(scale * np.exp(exponent))

    def _split(self, parameters: Array) -> tuple[Array, float, Array]:
        n = len(self.columns)
        return parameters[:n], float(parameters[n]), parameters[n + 1 :]


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

    One matrix product, unless that would cancel: G of a kernel that is not ``smooth`` is large where rows almost coincide.
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


@dataclass(frozen=True, eq=False)
class KernelTerm:
    """One term of a :class:`Kernel`.

    Attributes
    ----------
    name : str
        One of :data:`NAMED_KERNELS`.
    lengthscale : ndarray of shape (n_dims,)
    outputscale : float
        Prior variance of the function.
    alpha : float, optional
        Shape of "rq".
    period : ndarray of shape (n_dims,), optional
        Periods of "periodic".

    Examples
    --------
    >>> KernelTerm("periodic", lengthscale=[1.0], outputscale=0.5, period=[7.0])
    periodic(lengthscale=[1.], outputscale=0.5, period=[7.])
    """

    name: str
    lengthscale: Array
    outputscale: float
    alpha: float | None = None
    period: Array | None = None

    def __post_init__(self) -> None:
        for field in ("lengthscale", "period"):
            value: ArrayLike | None = getattr(self, field)
            if value is not None:
                array = np.atleast_1d(np.array(value, dtype=np.float64))
                array.flags.writeable = False
                object.__setattr__(self, field, array)
        if self.name not in NAMED_KERNELS:
            raise ValueError(
                f"unknown kernel {self.name!r}: expected one of {', '.join(map(repr, NAMED_KERNELS))}"
            )
        if (self.alpha is not None) != (self.name == "rq"):
            raise ValueError(f"alpha belongs to the kernel 'rq' and to no other, got {self!r}")
        if (self.period is not None) != (self.name == "periodic"):
            raise ValueError(
                f"period belongs to the kernel 'periodic' and to no other, got {self!r}"
            )
        if self.period is not None and self.period.shape != self.lengthscale.shape:
            raise ValueError(f"expected a period for each length scale, got {self!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KernelTerm):
            return NotImplemented
        return self.name == other.name and np.array_equal(self.parameters, other.parameters)

    def __hash__(self) -> int:
        return hash((self.name, self.parameters.tobytes()))

    def __repr__(self) -> str:
        values = {
            "lengthscale": np.array2string(self.lengthscale, precision=4, separator=", "),
            "outputscale": f"{self.outputscale:.4g}",
        }
        if self.alpha is not None:
            values["alpha"] = f"{self.alpha:.4g}"
        if self.period is not None:
            values["period"] = np.array2string(self.period, precision=4, separator=", ")
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in values.items())})"

    @property
    def parameters(self) -> Array:
        """The kernel parameters of the term."""
        extra = [] if self.alpha is None else [self.alpha]
        extra = extra if self.period is None else [*extra, *self.period]
        return np.array([*self.lengthscale, self.outputscale, *extra])


@dataclass(frozen=True)
class Kernel:
    """A named kernel, or a sum of them, with the values of its hyperparameters, in the units of the leaf GPs.

    It is what ``kernel_`` returns; passed as ``kernel=`` it is where learning starts.

    Attributes
    ----------
    terms : tuple of KernelTerm

    Examples
    --------
    >>> kernel = Kernel((KernelTerm("rbf", lengthscale=[0.5, 2.0], outputscale=1.5),))
    >>> kernel
    rbf(lengthscale=[0.5, 2. ], outputscale=1.5)
    >>> print(kernel([[0.0, 0.0], [0.5, 0.0]]).round(3))
    [[1.5  0.91]
     [0.91 1.5 ]]
    """

    terms: tuple[KernelTerm, ...]

    def __post_init__(self) -> None:
        if len({len(term.lengthscale) for term in self.terms}) != 1:
            raise ValueError(
                f"expected terms with the same number of length scales, got {list(self.terms)!r}"
            )

    @classmethod
    def of(cls, terms: Sequence[Term], kernel_parameters: Array) -> Kernel:
        """Return the kernel at the leading kernel parameters of a leaf kernel with these terms."""
        ends = np.cumsum([term.n_parameters for term in terms])
        parts = np.split(np.asarray(kernel_parameters)[: ends[-1]], ends[:-1])
        values = []
        for term, parameters in zip(terms, parts, strict=True):
            n = len(term.columns)
            extra: dict[str, Any] = {}
            if term.kind == "rq":
                extra["alpha"] = float(parameters[n + 1])
            elif term.kind == "periodic":
                extra["period"] = parameters[n + 1 :]
            values.append(KernelTerm(term.kind, parameters[:n], float(parameters[n]), **extra))
        return cls(tuple(values))

    @property
    def name(self) -> str:
        """Its name, as it may be passed to the estimator: "matern52", "matern32+periodic"."""
        return "+".join(term.name for term in self.terms)

    @property
    def n_dims(self) -> int:
        return len(self.terms[0].lengthscale)

    @property
    def lengthscale(self) -> Array:
        """Length scales of a kernel of one term, (n_dims,)."""
        return self._only.lengthscale

    @property
    def outputscale(self) -> float:
        """Prior variance of the function, summed over terms."""
        return float(sum(term.outputscale for term in self.terms))

    @property
    def _only(self) -> KernelTerm:
        if len(self.terms) > 1:
            raise AttributeError(
                f"{self.name} has several terms, each with length scales; see terms"
            )
        return self.terms[0]

    def __call__(self, A: ArrayLike, B: ArrayLike | None = None) -> Array:
        """Return the covariance of f between the rows of A and of B, or of A."""
        a = np.atleast_2d(np.asarray(A, dtype=np.float64))
        b = a if B is None else np.atleast_2d(np.asarray(B, dtype=np.float64))
        for rows in (a, b):
            if rows.ndim != 2 or rows.shape[1] != self.n_dims:
                raise ValueError(
                    f"expected rows with {self.n_dims} columns, as many as the kernel has length scales, "
                    f"got {rows.shape[-1]}"
                )
        columns = tuple(range(self.n_dims))
        return np.sum(
            [Term(t.name, columns).covariance(a, b, t.parameters) for t in self.terms], axis=0
        )

    def to_gpytorch(self) -> Any:
        """Return the same kernel as a GPyTorch module; needs ``dsmgp[torch]``."""
        from dsmgp.gp.gpytorch_kernels import gpytorch_kernel

        return gpytorch_kernel(self)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))
