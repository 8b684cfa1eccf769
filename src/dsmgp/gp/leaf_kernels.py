"""The structure of a leaf's GP prior: kernel, mean and noise without their hyperparameters.

A *leaf kernel* is hashable and says what computes a leaf's covariance; its hyperparameters are a vector of *kernel parameters*, and
``leaf_kernel.at(parameters)`` is the prior itself. The backends compute many leaves at once (:mod:`dsmgp.experts.backends.numba_backend`,
:mod:`dsmgp.experts.backends.torch_backend`); what is written here is the reference for them, and serves online updates, change points, joint
predictions and every kernel that has no compiled form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial.distance import cdist

from dsmgp._util.arrays import Array
from dsmgp.gp.terms import STATIONARY, Term, weighted_differences

__all__ = [
    "CLOSED_FORM",
    "MEANS",
    "BoundKernel",
    "BoundLeafKernel",
    "BoundMetricKernel",
    "LeafKernel",
    "MetricKernel",
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
    kind : "rbf", "matern12", "matern32", "matern52", or "rq"
    columns : tuple of int
        Inputs that the kernel depends on.
    mean_kind : "zero", "constant", or "linear"
    """

    kind: str
    columns: tuple[int, ...]
    mean_kind: str
    batched = True
    is_bounded = True

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
class MetricKernel:
    """A scaled stationary kernel of ``A' x``, a linear map of all inputs, with a named mean.

    With a diagonal A it is the :class:`StationaryKernel` with the length scales ``1 / diag(A)``. Only ``A A'`` matters: the kernel is
    the same for ``A Q`` with any orthogonal Q. The mean is a function of x, not of its image.

    The kernel parameters are: the entries of A row by row, output scale, parameters of the mean, noise variance.

    Attributes
    ----------
    kind : "rbf", "matern12", "matern32", or "matern52"
    n_inputs, rank : int
        Rows and columns of A.
    mean_kind : "zero", "constant", or "linear"
    """

    kind: str
    n_inputs: int
    rank: int
    mean_kind: str
    batched = True
    is_bounded = True

    @property
    def output_scales(self) -> list[int]:
        """Where the output scale stands among the kernel parameters."""
        return [self.n_inputs * self.rank]

    def at(self, kernel_parameters: Array) -> BoundMetricKernel:
        return BoundMetricKernel(self, kernel_parameters)


@dataclass(frozen=True)
class SumKernel:
    """A sum of scaled kernels and products of kernels, or a single one that is not stationary ARD, with a named mean.

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

    @property
    def is_bounded(self) -> bool:
        """Whether the output scales add up to the prior variance everywhere."""
        return all(term.is_bounded for term in self.terms)

    def at(self, kernel_parameters: Array) -> BoundKernel:
        return BoundKernel(self.terms, self.mean_kind, kernel_parameters)


#: Leaf kernels in closed form: their last kernel parameter is the noise variance.
CLOSED_FORM = (StationaryKernel, MetricKernel, SumKernel)


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
        pairs = zip(self.terms, self._of_terms, strict=True)
        return np.sum([term.variance(X, parameters) for term, parameters in pairs], axis=0)

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


class BoundMetricKernel(BoundKernel):
    """A :class:`MetricKernel` at its hyperparameters: the isotropic kernel of ``z = A' x``.

    For ``W = 2 dL/dK`` and ``G = W * outputscale * (-dk/dr2)``, which is symmetric,

        dL / dA = -sum_ij G_ij (x_i - x_j) (z_i - z_j)' = -2 sum_i x_i h_i',    h_i = sum_j G_ij (z_i - z_j).

    Parameters
    ----------
    kernel : MetricKernel
    kernel_parameters : ndarray of shape (n_parameters,)
    """

    def __init__(self, kernel: MetricKernel, kernel_parameters: Array) -> None:
        entries, after = np.split(np.asarray(kernel_parameters), kernel.output_scales)
        isotropic = Term(kernel.kind, tuple(range(kernel.rank)))
        super().__init__(
            (isotropic,), kernel.mean_kind, np.concatenate([np.ones(kernel.rank), after])
        )
        self.kind, self.outputscale = kernel.kind, float(after[0])
        self.metric = entries.reshape(kernel.n_inputs, kernel.rank)

    def cross(self, A: Array, B: Array) -> Array:
        # Large inputs would take digits from the products.
        centre = np.median(B, axis=0) if len(B) else 0.0
        return super().cross((A - centre) @ self.metric, (B - centre) @ self.metric)

    def covariance(self, X: Array) -> tuple[Array, Pullback]:
        centred = X - np.median(X, axis=0)
        Z = centred @ self.metric
        k, slope = STATIONARY[self.kind](cdist(Z, Z, "sqeuclidean"), math.nan)

        def pullback(W: Array, mean_gradient: Array, tr_W: float) -> Array:
            G = slope()
            G *= W
            by_image = weighted_differences(G, Z, self.kind != "matern12")
            by_metric = (-2.0 * self.outputscale) * (centred.T @ by_image)
            by_scale = [0.5 * np.vdot(W, k)]
            by_mean = self._by_mean(X, mean_gradient)
            return np.concatenate([by_metric.reshape(-1), by_scale, by_mean, [0.5 * tr_W]])

        return self.outputscale * k, pullback
