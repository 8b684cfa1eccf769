"""Scaling of inputs and outputs: from the units of the user to those of the leaf GPs ("experts"), and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.gp.coordinates import Coordinates

__all__ = ["InputScaling", "OutputScaling"]


def _moments(A: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column; one for a constant column."""
    centre = A.mean(axis=0)
    centre += (A - centre).mean(axis=0)  # a mean far larger than the spread is inexact at first
    largest = np.abs(A - centre).max(axis=0)
    # Squares of very large or small numbers would overflow or underflow.
    unit = np.where(largest > 0, largest, 1.0)
    scale = unit * np.sqrt(np.square((A - centre) / unit).mean(axis=0))
    constant = (A.min(axis=0) == A.max(axis=0)) | ~(scale > 0)
    return centre, np.where(constant, 1.0, scale)


@dataclass(frozen=True)
class InputScaling:
    """The leaf GPs take ``(u - centre) / scale``, with u the coordinates of x.

    Attributes
    ----------
    centre, scale : ndarray of shape (n_coordinates,)
    coordinates : Coordinates, optional
        Warps and metric; without them the coordinates are the inputs themselves.
    """

    centre: Array
    scale: Array
    coordinates: Coordinates | None = None

    @classmethod
    def of(
        cls, X: Array, standardize: bool, coordinates: Coordinates | None = None
    ) -> InputScaling:
        """Return the scaling of coordinates to zero mean and unit variance, or none."""
        U = X if coordinates is None else coordinates(X)
        if not standardize:
            return cls(np.zeros(U.shape[1]), np.ones(U.shape[1]), coordinates)
        return cls(*_moments(U), coordinates)

    @property
    def n_coordinates(self) -> int:
        return self.centre.size

    def to_coordinates(self, X: Array) -> Array:
        """Return the coordinates of rows, which trees cut."""
        return X if self.coordinates is None else self.coordinates(X)

    def scaled(self, U: Array) -> Array:
        """Scale coordinates for the leaf GPs."""
        with np.errstate(over="ignore"):  # refused by validation.check_in_range
            return np.asarray((U - self.centre) / self.scale)

    def to_experts(self, X: Array) -> Array:
        """Return the inputs of the leaf GPs."""
        return self.scaled(self.to_coordinates(X))


@dataclass(frozen=True)
class OutputScaling:
    """The outputs are ``y = centre + loading @ z``; leaf GPs model each entry of z independently.

    Attributes
    ----------
    centre : ndarray of shape (n_outputs,)
    loading : ndarray of shape (n_outputs, n_outputs)
        Diagonal where outputs are only rescaled. For correlated outputs it mixes independent components.
    """

    centre: Array
    loading: Array

    @classmethod
    def of(cls, Y: Array, standardize: bool) -> OutputScaling:
        """Return the scaling of each output to zero mean and unit variance, or none."""
        if not standardize:
            return cls(np.zeros(Y.shape[1]), np.eye(Y.shape[1]))
        centre, scale = _moments(Y)
        return cls(centre, np.diag(scale))

    @classmethod
    def robust(cls, Y: Array, standardize: bool) -> OutputScaling:
        """Return the scaling of each output by its median and median absolute deviation, which ignore outliers."""
        plain = cls.of(Y, standardize)
        if not standardize:
            return plain
        centre = np.median(Y, axis=0)
        spread = 1.4826 * np.median(np.abs(Y - centre), axis=0)
        # It is zero where half of the rows or more are equal.
        return cls(centre, np.diag(np.where(spread > 0, spread, np.diag(plain.loading))))

    @classmethod
    def rotated(cls, Y: Array, standardize: bool) -> OutputScaling:
        """Return the rotation to principal components, each with unit variance if standardised."""
        plain = cls.of(Y, standardize)
        Z = plain.to_experts(Y)
        centre = Z.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov(Z.T, bias=True))
        # A direction without variance keeps its scale.
        spread = np.sqrt(np.maximum(values, 0.0))
        spread = np.where(spread > 1e-9 * spread.max(), spread, 1.0) if standardize else 1.0
        shift = centre if not standardize else np.zeros_like(centre)
        return cls(plain.centre + plain.loading @ shift, plain.loading @ (vectors * spread))

    @classmethod
    def chained(cls, Y: Array, standardize: bool, order: Sequence[int]) -> OutputScaling:
        """Return the scaling that subtracts from each output, in this order, its regression on those before it."""
        plain = cls.of(Y, standardize)
        Z = plain.to_experts(Y)
        Z = Z - Z.mean(axis=0)
        unit = np.eye(Y.shape[1])
        for place, output in enumerate(order):
            before = list(order[:place])
            slopes = np.linalg.lstsq(Z[:, before], Z[:, output], rcond=None)[0] if before else []
            unit[output] = np.asarray(slopes, dtype=np.float64) @ unit[before] if before else 0.0
            rest = Z[:, output] - (Z[:, before] @ slopes if before else 0.0)
            spread = np.sqrt(np.mean(rest**2))
            unit[output, output] = spread if standardize and spread > 1e-9 else 1.0
        return cls(plain.centre, plain.loading @ unit)

    @property
    def n_outputs(self) -> int:
        return self.centre.size

    @cached_property
    def diagonal(self) -> bool:
        """Whether outputs are only rescaled, not mixed."""
        return bool(np.all(self.loading == np.diag(np.diag(self.loading))))

    @property
    def log_det(self) -> float:
        """Log determinant of the loading, to convert log densities of z to those of y."""
        return float(np.linalg.slogdet(self.loading)[1])

    def to_experts(self, Y: Array) -> Array:
        """Convert outputs y to z."""
        if self.diagonal:
            with np.errstate(over="ignore"):
                return np.asarray((Y - self.centre) / np.diag(self.loading))
        return np.asarray(np.linalg.solve(self.loading, (Y - self.centre).T).T, np.float64)

    def noise_to_experts(self, noise: Array) -> Array:
        """Convert noise variances of y to those of z; the loading must be diagonal."""
        return np.asarray(noise / np.square(np.diag(self.loading)))

    def mean_to_user(self, means: Array) -> Array:
        """Convert means of z, outputs last, to means of y."""
        return means @ self.loading.T + self.centre

    def variance_to_user(self, variances: Array) -> Array:
        """Convert variances of independent z, outputs last, to marginal variances of y."""
        return variances @ np.square(self.loading).T
