"""Kernels with the values of their hyperparameters: what ``kernel_`` returns, and what may be passed as ``kernel=``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.gp.terms import NAMED_KERNELS, Term

__all__ = ["Kernel", "KernelTerm"]


@dataclass(frozen=True, eq=False)
class KernelTerm:
    """One term of a :class:`Kernel`: a named kernel with its output scale, or a product of several.

    Attributes
    ----------
    name : str
        One of :data:`NAMED_KERNELS`.
    lengthscale : ndarray of shape (n_dims,)
    outputscale : float
        Prior variance of the function; of "linear", where all of its inputs are zero.
    alpha : float, optional
        Shape of "rq".
    period : ndarray of shape (n_dims,), optional
        Periods of "periodic".
    times : tuple of KernelTerm
        Further factors of the term, each with an output scale of one.
    columns : tuple of int, optional
        Numbers of the inputs that the term depends on; all of them if left out.

    Examples
    --------
    >>> season = KernelTerm("periodic", lengthscale=[1.0], outputscale=1.0, period=[7.0])
    >>> season
    periodic(lengthscale=[1.], outputscale=1, period=[7.])
    >>> KernelTerm("rbf", lengthscale=[90.0], outputscale=0.5, times=(season,))
    rbf(lengthscale=[90.], outputscale=0.5) * periodic(lengthscale=[1.], period=[7.])
    """

    name: str
    lengthscale: Array
    outputscale: float
    alpha: float | None = None
    period: Array | None = None
    times: tuple[KernelTerm, ...] = ()
    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for field in ("lengthscale", "period"):
            value: ArrayLike | None = getattr(self, field)
            if value is not None:
                array = np.atleast_1d(np.array(value, dtype=np.float64))
                array.flags.writeable = False
                object.__setattr__(self, field, array)
        for field in ("outputscale", "alpha"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, float(getattr(self, field)))
        if self.name not in NAMED_KERNELS:
            raise InputError(
                f"unknown kernel {self.name!r}: expected one of {', '.join(map(repr, NAMED_KERNELS))}"
            )
        if (self.alpha is not None) != (self.name == "rq"):
            raise InputError(f"alpha belongs to the kernel 'rq' and to no other, got {self!r}")
        if (self.period is not None) != (self.name == "periodic"):
            raise InputError(
                f"period belongs to the kernel 'periodic' and to no other, got {self!r}"
            )
        if self.period is not None and self.period.shape != self.lengthscale.shape:
            raise InputError(f"expected a period for each length scale, got {self!r}")
        n = len(self.lengthscale)
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(int(column) for column in self.columns))
            if len(self.columns) != n or len(set(self.columns)) < n or min(self.columns) < 0:
                raise InputError(f"expected an input for each length scale, got {self!r}")
        object.__setattr__(self, "times", tuple(self.times))
        for factor in self.times:
            own = factor.outputscale != 1.0 or factor.times or factor.columns is not None
            if own or len(factor.lengthscale) != n:
                raise InputError(
                    f"expected factors with {n} length scales, an output scale of one, and no factors or columns of their own, got "
                    f"{factor!r}"
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KernelTerm):
            return NotImplemented
        same = self.kind == other.kind and self.columns == other.columns
        return same and np.array_equal(self.parameters, other.parameters)

    def __hash__(self) -> int:
        return hash((self.kind, self.columns, self.parameters.tobytes()))

    def __repr__(self) -> str:
        factors = [self._text(with_scale=True), *(each._text(False) for each in self.times)]
        return " * ".join(factors) + ("" if self.columns is None else f"{list(self.columns)}")

    def _text(self, with_scale: bool) -> str:
        values = {"lengthscale": np.array2string(self.lengthscale, precision=4, separator=", ")}
        if with_scale:
            values["outputscale"] = f"{self.outputscale:.4g}"
        if self.alpha is not None:
            values["alpha"] = f"{self.alpha:.4g}"
        if self.period is not None:
            values["period"] = np.array2string(self.period, precision=4, separator=", ")
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in values.items())})"

    @property
    def kind(self) -> str:
        """Names of all factors: "rbf", "rbf*periodic"."""
        return "*".join([self.name, *(factor.name for factor in self.times)])

    def term(self, n_dims: int) -> Term:
        """Return its structure, for inputs with ``n_dims`` columns."""
        columns = tuple(range(n_dims)) if self.columns is None else self.columns
        return Term(self.kind, columns)

    @property
    def parameters(self) -> Array:
        """The kernel parameters of the term."""
        parts = [self.lengthscale, np.array([self.outputscale]), self._extra]
        for factor in self.times:
            parts += [factor.lengthscale, factor._extra]
        return np.concatenate(parts)

    @property
    def _extra(self) -> Array:
        """Shape and periods."""
        period = np.empty(0) if self.period is None else self.period
        return period if self.alpha is None else np.append(self.alpha, period)


@dataclass(frozen=True)
class Kernel:
    """A named kernel, or a sum of products of them, with the values of its hyperparameters, in the units of the leaf GPs.

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
        lengths = {len(term.lengthscale) for term in self.terms if term.columns is None}
        if len(lengths) > 1 or not self.terms:
            raise InputError(
                f"expected terms with the same number of length scales, got {list(self.terms)!r}"
            )
        if lengths and self.n_dims > max(lengths):
            raise InputError(
                f"expected columns below {max(lengths)}, the number of length scales of the other terms, got {list(self.terms)!r}"
            )

    @classmethod
    def of(cls, terms: Sequence[Term], kernel_parameters: Array) -> Kernel:
        """Return the kernel at the leading kernel parameters of a leaf kernel with these terms."""
        ends = np.cumsum([term.n_parameters for term in terms])
        parts = np.split(np.asarray(kernel_parameters)[: ends[-1]], ends[:-1])
        n_dims = max(max(term.columns, default=-1) for term in terms) + 1
        values = []
        for term, parameters in zip(terms, parts, strict=True):
            scale, by_factor = term.split(parameters)
            factors = []
            for kind, (lengthscale, extra) in zip(term.factors, by_factor, strict=True):
                further: dict[str, Any] = {}
                if kind == "rq":
                    further["alpha"] = float(extra[0])
                elif kind == "periodic":
                    further["period"] = extra
                factors.append(KernelTerm(kind, lengthscale, 1.0, **further))
            every = term.columns == tuple(range(n_dims))
            first, *others = factors
            values.append(
                replace(
                    first,
                    outputscale=scale,
                    times=tuple(others),
                    columns=None if every else term.columns,
                )
            )
        return cls(tuple(values))

    @property
    def name(self) -> str:
        """Its name, as it may be passed to the estimator: "matern52", "matern32+periodic", "linear+rbf*periodic"."""
        return "+".join(term.term(self.n_dims).name(self.n_dims) for term in self.terms)

    @property
    def n_dims(self) -> int:
        """Number of inputs."""
        return max(
            len(term.lengthscale) if term.columns is None else max(term.columns) + 1
            for term in self.terms
        )

    @property
    def lengthscale(self) -> Array:
        """Length scales of a kernel of one term, (n_dims,)."""
        return self._only.lengthscale

    @property
    def outputscale(self) -> float:
        """Prior variance of the function, summed over terms; of "linear", where all inputs are zero."""
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
                raise InputError(
                    f"expected rows with {self.n_dims} columns, as many as the kernel has length scales, "
                    f"got {rows.shape[-1]}"
                )
        terms = [(each.term(self.n_dims), each.parameters) for each in self.terms]
        return np.sum([term.covariance(a, b, values) for term, values in terms], axis=0)

    def to_gpytorch(self) -> Any:
        """Return the same kernel as a GPyTorch module; needs ``dsmgp[torch]``."""
        from dsmgp.gp.gpytorch_kernels import gpytorch_kernel

        return gpytorch_kernel(self)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))
