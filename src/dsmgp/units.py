"""From the user's units to those the experts see, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["InputUnits", "OutputUnits"]

Array = NDArray[np.float64]


def _moments(A: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column; a column that does not vary has deviation one."""
    centre = A.mean(axis=0)
    centre += (A - centre).mean(axis=0)  # offsets far larger than the spread lose digits at first
    largest = np.abs(A - centre).max(axis=0)
    # Squares of very large or small numbers are out of range.
    unit = np.where(largest > 0, largest, 1.0)
    scale = unit * np.sqrt(np.square((A - centre) / unit).mean(axis=0))
    constant = (A.min(axis=0) == A.max(axis=0)) | ~(scale > 0)
    return centre, np.where(constant, 1.0, scale)


@dataclass(frozen=True)
class InputUnits:
    """Experts see ``(x - centre) / scale``."""

    centre: Array
    scale: Array

    @classmethod
    def of(cls, X: Array, standardize: bool) -> InputUnits:
        if not standardize:
            return cls(np.zeros(X.shape[1]), np.ones(X.shape[1]))
        return cls(*_moments(X))

    def to_experts(self, X: Array) -> Array:
        with np.errstate(over="ignore"):  # validation.check_reach has the words for it
            return np.asarray((X - self.centre) / self.scale)


@dataclass(frozen=True)
class OutputUnits:
    """The user's outputs are ``y = centre + loading @ z``; experts model each entry of z on its own.

    ``loading`` is diagonal where outputs are only rescaled. Where outputs are correlated it also mixes
    components that are not: independent components then give dependent outputs.
    """

    centre: Array
    loading: Array

    @classmethod
    def of(cls, Y: Array, standardize: bool) -> OutputUnits:
        """Each output on its own."""
        if not standardize:
            return cls(np.zeros(Y.shape[1]), np.eye(Y.shape[1]))
        centre, scale = _moments(Y)
        return cls(centre, np.diag(scale))

    @classmethod
    def robust(cls, Y: Array, standardize: bool) -> OutputUnits:
        """Each output on its own, in units that a few rows far off do not change: median, and median distance
        from it."""
        plain = cls.of(Y, standardize)
        if not standardize:
            return plain
        centre = np.median(Y, axis=0)
        spread = 1.4826 * np.median(np.abs(Y - centre), axis=0)
        # Where half of the rows or more are equal it says nothing.
        return cls(centre, np.diag(np.where(spread > 0, spread, np.diag(plain.loading))))

    @classmethod
    def rotated(cls, Y: Array, standardize: bool) -> OutputUnits:
        """Outputs turned to their principal components, each with unit variance if standardised."""
        plain = cls.of(Y, standardize)
        Z = plain.to_experts(Y)
        centre = Z.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov(Z.T, bias=True))
        # A direction in which the outputs do not vary at all keeps its scale.
        spread = np.sqrt(np.maximum(values, 0.0))
        spread = np.where(spread > 1e-9 * spread.max(), spread, 1.0) if standardize else 1.0
        shift = centre if not standardize else np.zeros_like(centre)
        return cls(plain.centre + plain.loading @ shift, plain.loading @ (vectors * spread))

    @classmethod
    def chained(cls, Y: Array, standardize: bool, order: Sequence[int]) -> OutputUnits:
        """Each output, in the given order, less its regression on those before it."""
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

    @property
    def diagonal(self) -> bool:
        return bool(np.all(self.loading == np.diag(np.diag(self.loading))))

    @property
    def log_det(self) -> float:
        """Log of the volume that one unit of the experts takes in the user's units."""
        return float(np.linalg.slogdet(self.loading)[1])

    def to_experts(self, Y: Array) -> Array:
        if self.diagonal:
            with np.errstate(over="ignore"):
                return np.asarray((Y - self.centre) / np.diag(self.loading))
        return np.asarray(np.linalg.solve(self.loading, (Y - self.centre).T).T, np.float64)

    def noise_to_experts(self, noise: Array) -> Array:
        """Noise variances of the outputs, which must not be mixed, as the experts see them."""
        return np.asarray(noise / np.square(np.diag(self.loading)))

    def mean_to_user(self, means: Array) -> Array:
        """Means of z, outputs last, as means of y."""
        return means @ self.loading.T + self.centre

    def variance_to_user(self, variances: Array) -> Array:
        """Variances of independent z, outputs last, as marginal variances of y."""
        return variances @ np.square(self.loading).T
