"""Scaling of inputs and outputs: from the units of the user to those of the leaf GPs ("experts"), and back.

Outputs may be warped too: see :mod:`dsmgp.gp.transforms.output_warp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import OutputWarp

__all__ = ["InputScaling", "OutputScaling"]


def _moments(A: Array, weights: Array | None) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, of weighted rows; one for a constant column."""
    centre = np.average(A, axis=0, weights=weights)
    # A mean far larger than the spread is inexact at first.
    centre += np.average(A - centre, axis=0, weights=weights)
    largest = np.abs(A - centre).max(axis=0)
    # Squares of very large or small numbers would overflow or underflow.
    unit = np.where(largest > 0, largest, 1.0)
    squares = np.square((A - centre) / unit)
    scale = unit * np.sqrt(np.average(squares, axis=0, weights=weights))
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
        cls,
        X: Array,
        standardize: bool,
        coordinates: Coordinates | None = None,
        row_weights: Array | None = None,
        ties: ArrayLike | None = None,
    ) -> InputScaling:
        """Return the scaling of coordinates to zero mean and unit variance, or none.

        Coordinates that share an entry of ``ties``, the levels of a category, have one scale, and unit variance together.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_inputs)
        standardize : bool
            Whether to scale at all.
        coordinates : Coordinates, optional
            By default the inputs as they are.
        row_weights : ndarray of shape (n_rows,), optional
        ties : array-like of shape (n_coordinates,), optional
        """
        U = X if coordinates is None else coordinates(X)
        if not standardize:
            return cls(np.zeros(U.shape[1]), np.ones(U.shape[1]), coordinates)
        centre, scale = _moments(U, row_weights)
        if ties is not None:
            group = np.asarray(ties)
            total = np.sqrt(np.bincount(group, np.square(scale)))[group]
            scale = np.where(np.bincount(group)[group] > 1, total, scale)
        return cls(centre, scale, coordinates)

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

    def beyond(self, U: Array, X: Array, columns: Index, ends: Array) -> Array:
        """Return the coordinates U of rows as where nothing was learned beyond a value of one input.

        Boosted trees, which have seen these rows, are constant beyond those that they have seen.

        Parameters
        ----------
        U : ndarray of shape (n_rows, n_coordinates)
        X : ndarray of shape (n_rows, n_inputs)
        columns : ndarray of shape (n_rows,)
            The input of each row.
        ends : ndarray of shape (n_rows,)
            Its value beyond which nothing was learned.
        """
        trees = None if self.coordinates is None else self.coordinates.trees
        if trees is None:
            return U
        at_end = X.copy()
        at_end[np.arange(len(X)), columns] = ends
        return np.hstack([U[:, : -trees.n_outputs], trees(X, of_trees=at_end)])


@dataclass(frozen=True)
class OutputScaling:
    """The latent outputs are ``t = centre + loading @ z``; leaf GPs model each entry of z independently.

    An output y is its latent output, or with a warp h it is ``h(t)``.

    Attributes
    ----------
    centre : ndarray of shape (n_outputs,)
    loading : ndarray of shape (n_outputs, n_outputs)
        Diagonal where outputs are only rescaled. For correlated outputs it mixes independent components.
    warps : tuple of OutputWarp or None
        One per output; empty if no output is warped.
    """

    centre: Array
    loading: Array
    warps: Sequence[OutputWarp | None] = ()

    def __post_init__(self) -> None:
        if len(self.warps) not in (0, self.n_outputs):
            raise InputError(f"expected {self.n_outputs} warps or none, got {len(self.warps)}")
        warps = tuple(self.warps) if any(warp is not None for warp in self.warps) else ()
        object.__setattr__(self, "warps", warps)

    @classmethod
    def of(
        cls,
        Y: Array,
        standardize: bool,
        warps: Sequence[OutputWarp | None] = (),
        row_weights: Array | None = None,
    ) -> OutputScaling:
        """Return the scaling of each latent output to zero mean and unit variance, or none.

        Parameters
        ----------
        Y : ndarray of shape (n_rows, n_outputs)
        standardize : bool
            Whether to scale at all.
        warps : sequence of OutputWarp or None
            By output; empty if no output is warped. The latent outputs are scaled.
        row_weights : ndarray of shape (n_rows,), optional
        """
        n = Y.shape[1]
        plain = cls(np.zeros(n), np.eye(n), warps)
        if not standardize:
            return plain
        centre, scale = _moments(plain.to_latent(Y), row_weights)
        return cls(centre, np.diag(scale), warps)

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
    def rotated(
        cls,
        Y: Array,
        standardize: bool,
        warps: Sequence[OutputWarp | None] = (),
        row_weights: Array | None = None,
    ) -> OutputScaling:
        """Return the rotation of latent outputs to principal components, each with unit variance if standardised."""
        plain = cls.of(Y, standardize, warps, row_weights)
        Z = plain.to_experts(Y)
        centre = np.average(Z, axis=0, weights=row_weights)
        values, vectors = np.linalg.eigh(np.cov(Z.T, bias=True, aweights=row_weights))
        # A direction without variance keeps its scale.
        spread = np.sqrt(np.maximum(values, 0.0))
        spread = np.where(spread > 1e-9 * spread.max(), spread, 1.0) if standardize else 1.0
        shift = centre if not standardize else np.zeros_like(centre)
        return cls(plain.centre + plain.loading @ shift, plain.loading @ (vectors * spread), warps)

    @classmethod
    def chained(
        cls,
        Y: Array,
        standardize: bool,
        order: Sequence[int],
        warps: Sequence[OutputWarp | None] = (),
        row_weights: Array | None = None,
    ) -> OutputScaling:
        """Return the scaling that subtracts from each latent output, in this order, its regression on those before it."""
        plain = cls.of(Y, standardize, warps, row_weights)
        Z: Array = plain.to_experts(Y)
        Z = Z - np.average(Z, axis=0, weights=row_weights)
        if row_weights is not None:  # weighted least squares, and means of squares
            Z = Z * np.sqrt(row_weights / row_weights.mean())[:, None]
        unit = np.eye(Y.shape[1])
        for place, output in enumerate(order):
            before = list(order[:place])
            slopes = np.empty(0)
            if before:
                slopes = np.asarray(np.linalg.lstsq(Z[:, before], Z[:, output], rcond=None)[0])
            unit[output] = slopes @ unit[before]
            rest = Z[:, output] - Z[:, before] @ slopes
            spread = np.sqrt(np.mean(rest**2))
            unit[output, output] = spread if standardize and spread > 1e-9 else 1.0
        return cls(plain.centre, plain.loading @ unit, warps)

    @property
    def n_outputs(self) -> int:
        return self.centre.size

    @cached_property
    def diagonal(self) -> bool:
        """Whether outputs are only rescaled and warped, not mixed."""
        return bool(np.all(self.loading == np.diag(np.diag(self.loading))))

    @property
    def log_det(self) -> float:
        """Log determinant of the loading, to convert log densities of z to those of t."""
        return float(np.linalg.slogdet(self.loading)[1])

    def is_warped(self, output: int) -> bool:
        return bool(self.warps) and self.warps[output] is not None

    def user_unit(self, output: int) -> float:
        """Unit of z in that of its output; 1 where outputs are mixed or warped, and z has units of its own."""
        if self.is_warped(output) or not self.diagonal:
            return 1.0
        return float(self.loading[output, output])

    def marginal(self, output: int) -> OutputScaling:
        """Return the conversion of one latent output to that output, without any scaling."""
        return OutputScaling(np.zeros(1), np.eye(1), self.warps[output : output + 1])

    # Outputs

    def to_experts(self, Y: Array) -> Array:
        """Convert outputs y to z."""
        T = self.to_latent(Y)
        if self.diagonal:
            with np.errstate(over="ignore"):
                return np.asarray((T - self.centre) / np.diag(self.loading))
        return np.asarray(np.linalg.solve(self.loading, (T - self.centre).T).T, np.float64)

    def from_experts(self, Z: Array) -> Array:
        """Convert z, outputs last, to outputs y."""
        return self.from_latent(self.mean_to_latent(Z))

    def to_latent(self, Y: Array) -> Array:
        """Convert outputs y, outputs last, to latent outputs t; minus infinity at and below the bound of a warp."""
        return self._by_output(Y, lambda warp, y: warp.to_latent(y))

    def from_latent(self, T: Array) -> Array:
        """Convert latent outputs t, outputs last, to outputs y."""
        return self._by_output(T, lambda warp, t: warp.from_latent(t))

    def log_slopes(self, Y: Array) -> Array:
        """Log dt/dy of each output, which adds to log densities of t; minus infinity at and below the bound of a warp."""
        slopes = np.zeros(Y.shape)
        for output, warp in enumerate(self.warps):
            if warp is not None:
                slopes[..., output] = warp.log_slope(Y[..., output])
        return slopes

    def log_jacobian(self, Y: Array, row_weights: Array | None = None) -> float:
        """Sum of the log slopes over all rows, weighted, to convert the log evidence of t to that of y."""
        if not self.warps:
            return 0.0
        slopes = self.log_slopes(Y)
        return float((slopes if row_weights is None else slopes * row_weights[:, None]).sum())

    def check_support(self, Y: Array, first_row: int = 0) -> None:
        """Refuse training outputs at or below the bound of a warp; rows are numbered from ``first_row``.

        Raises
        ------
        ValueError
            It names the first row of them.
        """
        for output, warp in enumerate(self.warps):
            if warp is None or warp.lower is None:
                continue
            outside = np.flatnonzero(~(Y[:, output] > warp.lower))
            if outside.size:
                value = float(Y[outside[0], output])
                raise InputError(
                    f"expected outputs above {warp.lower:g}, the bound of output_warp='log' and 'positive', got {value:g} "
                    f"in row {first_row + outside[0]}; use output_warp='rank' or None"
                )

    # Moments

    def mean_to_latent(self, means: Array) -> Array:
        """Convert means of z, outputs last, to means of t."""
        return means @ self.loading.T + self.centre

    def variance_to_latent(self, variances: Array) -> Array:
        """Convert variances of independent z, outputs last, to marginal variances of t."""
        return variances @ np.square(self.loading).T

    def moments_from_latent(self, means: Array, variances: Array) -> tuple[Array, Array]:
        """Convert means and variances of Gaussian t, outputs last, to those of y."""
        if not self.warps:
            return means, variances
        means, variances = means.copy(), variances.copy()
        for output, warp in enumerate(self.warps):
            if warp is not None:
                moments = warp.moments(means[..., output], variances[..., output])
                means[..., output], variances[..., output] = moments
        return means, variances

    def noise_to_experts(self, noise: Array) -> Array:
        """Convert noise variances of y to those of z; raise where outputs were warped or mixed."""
        if not self.diagonal:
            raise InputError(
                "noise cannot be given here: the outputs were mixed when the model was fitted without it; "
                "call fit on all rows with their noise"
            )
        if self.warps:
            raise InputError(
                "known noise cannot be combined with an output warp, under which it is no longer Gaussian; leave out noise, "
                "or fit with output_warp=None"
            )
        return np.asarray(noise / np.square(np.diag(self.loading)))

    def _by_output(self, values: Array, function: Callable[[OutputWarp, Array], Array]) -> Array:
        if not self.warps:
            return values
        mapped = np.array(values, dtype=np.float64)
        for output, warp in enumerate(self.warps):
            if warp is not None:
                mapped[..., output] = function(warp, mapped[..., output])
        return mapped
