"""The structure of a leaf's GP prior: kernel, mean and noise without their hyperparameters.

A *leaf kernel* is hashable and says what computes a leaf's covariance; its hyperparameters are a vector of *kernel parameters*, and
``leaf_kernel.at(parameters)`` is the prior itself. The backends compute many leaves at once (:mod:`dsmgp.experts.numba_backend`,
:mod:`dsmgp.experts.torch_backend`); what is written here is the reference for them, and serves online updates, change points, joint
predictions and every kernel that has no compiled form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.gp.kernels import Term

__all__ = [
    "MEANS",
    "BoundKernel",
    "BoundLeafKernel",
    "LeafKernel",
    "Pullback",
    "StationaryKernel",
    "SumKernel",
]

#: Takes ``W = 2 dL/dK``, ``dL/dmean`` and ``tr W`` (with noise that differs between rows: its sum over rows in units of the
#: kernel's noise); returns the gradient by the kernel parameters, (n_parameters,).
Pullback = Callable[[Array, Array, float], Array]

#: Prior means by name.
MEANS = ("zero", "constant", "linear")


class BoundLeafKernel(Protocol):
    """Kernel, mean and noise of a leaf at their hyperparameters."""

    @property
    def noise(self) -> float:
        """Noise variance."""

    def mean(self, X: Array) -> Array:
        """Return the prior mean at rows of X, (n,)."""

    def variance(self, X: Array) -> Array:
        """Return the prior variance of f at rows of X, (n,)."""

    def cross(self, A: Array, B: Array) -> Array:
        """Return the covariance of f between rows of A and of B, (rows of A, rows of B)."""

    def covariance(self, X: Array) -> tuple[Array, Pullback]:
        """Return the covariance of f at rows of X, and the function that takes gradients back through it."""


class LeafKernel(Protocol):
    """The structure of kernel, mean and noise of a leaf, without hyperparameters; hashable."""

    @property
    def batched(self) -> bool:
        """Whether the torch backend computes many leaves at once."""

    def at(self, kernel_parameters: Array) -> BoundLeafKernel:
        """Return the kernel at given hyperparameters, (n_parameters,)."""


@dataclass(frozen=True)
class StationaryKernel:
    """A scaled stationary ARD kernel with a named mean; the backends have it in compiled code and in batches.

    The kernel parameters are: length scales, output scale, shape (rq only), parameters of the mean (constant: the
    constant; linear: weights and bias), noise variance.

    Attributes
    ----------
    kind : {"rbf", "matern12", "matern32", "matern52", "rq"}
    columns : tuple of int
        Inputs that the kernel depends on.
    mean_kind : {"zero", "constant", "linear"}
    """

    kind: str
    columns: tuple[int, ...]
    mean_kind: str
    batched = True

    @property
    def terms(self) -> tuple[Term, ...]:
        return (Term(self.kind, self.columns),)

    @property
    def output_scales(self) -> list[int]:
        """Where the output scale stands among the kernel parameters."""
        return [len(self.columns)]

    def at(self, kernel_parameters: Array) -> BoundKernel:
        return BoundKernel(self.terms, self.mean_kind, kernel_parameters)


@dataclass(frozen=True)
class SumKernel:
    """A sum of scaled kernels, or a single one that is not stationary ARD, with a named mean.

    The kernel parameters are: those of each term, parameters of the mean, noise variance.
    """

    terms: tuple[Term, ...]
    mean_kind: str
    batched = True

    @property
    def output_scales(self) -> list[int]:
        """Where the output scales of the terms stand among the kernel parameters."""
        ends = np.cumsum([term.n_parameters for term in self.terms])
        pairs = zip(self.terms, ends, strict=True)
        return [int(end) - term.n_extra - 1 for term, end in pairs]

    def at(self, kernel_parameters: Array) -> BoundKernel:
        return BoundKernel(self.terms, self.mean_kind, kernel_parameters)


class BoundKernel:
    """A sum of terms with a named mean, at its hyperparameters: a :class:`BoundLeafKernel`.

    Parameters
    ----------
    terms : tuple of Term
    mean_kind : str
    kernel_parameters : ndarray of shape (n_parameters,)
    """

    def __init__(self, terms: tuple[Term, ...], mean_kind: str, kernel_parameters: Array) -> None:
        self.terms, self.mean_kind = terms, mean_kind
        ends = np.cumsum([term.n_parameters for term in terms])
        *self._of_terms, after = np.split(np.asarray(kernel_parameters), ends)
        self._mean_parameters, self.noise = after[:-1], float(after[-1])

    def mean(self, X: Array) -> Array:
        if self.mean_kind == "zero":
            return np.zeros(len(X))
        if self.mean_kind == "constant":
            return np.full(len(X), self._mean_parameters[0])
        return np.asarray(X @ self._mean_parameters[:-1] + self._mean_parameters[-1])

    def variance(self, X: Array) -> Array:
        scales = (p[len(t.columns)] for t, p in zip(self.terms, self._of_terms, strict=True))
        return np.full(len(X), sum(scales))

    def cross(self, A: Array, B: Array) -> Array:
        pairs = zip(self.terms, self._of_terms, strict=True)
        matrices = [term.covariance(A, B, parameters) for term, parameters in pairs]
        return matrices[0] if len(matrices) == 1 else np.sum(matrices, axis=0)

    def covariance(self, X: Array) -> tuple[Array, Pullback]:
        pairs = zip(self.terms, self._of_terms, strict=True)
        matrices, gradients = zip(
            *(term.with_gradient(X, parameters) for term, parameters in pairs), strict=True
        )

        def pullback(W: Array, mean_gradient: Array, tr_W: float) -> Array:
            of_terms = [gradient(W) for gradient in gradients]
            return np.concatenate([*of_terms, self._by_mean(X, mean_gradient), [0.5 * tr_W]])

        return matrices[0] if len(matrices) == 1 else np.sum(matrices, axis=0), pullback

    def _by_mean(self, X: Array, mean_gradient: Array) -> Array:
        """Gradient by the parameters of the mean."""
        if self.mean_kind == "zero":
            return np.empty(0)
        if self.mean_kind == "constant":
            return mean_gradient.sum(keepdims=True)
        return np.append(mean_gradient @ X, mean_gradient.sum())
