"""Training rows as the leaf GPs see them: in the coordinates and units that a fit has chosen.

A fit scales its rows (:class:`ScaledRows`), builds kernels in those units and sets up leaf GPs
(:mod:`dsmgp.fitting.rows.leaf_setup`). :mod:`dsmgp.fitting.rows.training_rows` has the rows before scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_in_range
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.config import FitConfig
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import LogWarp, OutputWarp, named_warp
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.tree.columns import Columns

__all__ = ["ScaledRows", "coordinate_ties"]


@dataclass(frozen=True, eq=False)
class ScaledRows:
    """Rows in the user's units, and as the leaf GPs see them.

    Attributes
    ----------
    X : ndarray of shape (n_rows, n_inputs)
    Y : ndarray of shape (n_rows, n_outputs)
    noise : ndarray of shape (n_rows, n_outputs) or None
        Known noise variances, which add to the noise that is learned.
    inputs, outputs : InputScaling, OutputScaling
    labels : ndarray of shape (n_rows,)
        Equal for rows with duplicate inputs.
    dtype : "float64" or "float32"
        How precisely the leaf GPs see the rows.
    input_ties : ndarray of shape (n_inputs,), or None
        Equal for inputs that are levels of one category, which share a length scale.
    row_weights : ndarray of shape (n_rows,) or None
        Weights of the rows; None if all are one.
    input_order : ndarray of shape (n_inputs,), or None
        The inputs in the order in which random cuts are drawn; None is the order of the table.
    measured_inputs : ndarray of int, or None
        The inputs that have a range; None if all have.
    direct_inputs : ndarray of int, or None
        The inputs that depend on their row alone, as effects of levels do not; None for all.
    """

    X: Array
    Y: Array
    noise: Array | None
    inputs: InputScaling
    outputs: OutputScaling
    labels: Index
    dtype: str
    row_weights: Array | None = None
    input_ties: Index | None = None
    indicator_inputs: Index | None = None
    input_order: Index | None = None
    measured_inputs: Index | None = None
    direct_inputs: Index | None = None

    @classmethod
    def of(
        cls,
        X: Array,
        Y: Array,
        config: FitConfig,
        noise: Array | None = None,
        warps: Sequence[OutputWarp | None] | None = None,
        row_weights: Array | None = None,
        input_ties: Index | None = None,
        indicator_inputs: Index | None = None,
        input_order: Index | None = None,
        measured_inputs: Index | None = None,
        direct_inputs: Index | None = None,
    ) -> ScaledRows:
        """Scale inputs and outputs column by column, or not at all.

        Outputs are warped first: by ``warps``, one per output, or if that is None as ``config.output_warp`` says.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_inputs)
        Y : ndarray of shape (n_rows, n_outputs)
        config : FitConfig
        noise : ndarray of shape (n_rows, n_outputs), optional
            Known noise variances.
        warps : sequence of OutputWarp or None, optional
        row_weights : ndarray of shape (n_rows,), optional
        input_ties : ndarray of shape (n_inputs,), optional
            Equal for inputs that are levels of one category.
        indicator_inputs : ndarray of int, optional
            The inputs that say where values are missing.
        measured_inputs : ndarray of int, optional
            The inputs that have a range.
        direct_inputs : ndarray of int, optional
            The inputs that depend on their row alone.
        """
        if warps is None:
            warps = _named_warps(Y, config, noise, row_weights)
        return cls(
            X,
            Y,
            noise,
            InputScaling.of(X, config.standardize, None, row_weights, input_ties),
            OutputScaling.of(Y, config.standardize, warps, row_weights),
            equal_rows(X),
            config.dtype,
            row_weights,
            input_ties,
            indicator_inputs,
            input_order,
            measured_inputs,
            direct_inputs,
        )

    def rescaled(
        self,
        coordinates: Coordinates | None,
        warps: Sequence[OutputWarp | None],
        config: FitConfig,
    ) -> ScaledRows:
        """Return the same rows in other coordinates, with other output warps."""
        ties = coordinate_ties(self.input_ties, coordinates)
        return replace(
            self,
            inputs=InputScaling.of(self.X, config.standardize, coordinates, self.row_weights, ties),
            outputs=OutputScaling.of(self.Y, config.standardize, warps, self.row_weights),
        )

    def taken(self, positions: Index) -> ScaledRows:
        """Return the rows at some positions, scaled as they are."""
        noise, row_weights = (
            None if table is None else table[positions] for table in (self.noise, self.row_weights)
        )
        return replace(
            self,
            X=self.X[positions],
            Y=self.Y[positions],
            noise=noise,
            labels=self.labels[positions],
            row_weights=row_weights,
        )

    def with_outputs(self, outputs: OutputScaling) -> ScaledRows:
        """Return the same rows under another output scaling."""
        return self if outputs is self.outputs else replace(self, outputs=outputs)

    @property
    def n_dims(self) -> int:
        """Number of coordinates."""
        return self.inputs.n_coordinates

    @property
    def n_outputs(self) -> int:
        return int(self.Y.shape[1])

    @property
    def n_observations(self) -> float | None:
        """Sum of the weights of the rows; None if all are one."""
        return None if self.row_weights is None else float(self.row_weights.sum())

    @cached_property
    def ties(self) -> tuple[int, ...] | None:
        """For each coordinate, which length scale it has; None if each has its own."""
        return coordinate_ties(self.input_ties, self.inputs.coordinates)

    @cached_property
    def U(self) -> Array:
        """Coordinates of the inputs, in which trees are grown, (n_rows, n_dims)."""
        return self.inputs.to_coordinates(self.X)

    @cached_property
    def scaled_X(self) -> Array:
        """Inputs as the leaf GPs see them, (n_rows, n_dims)."""
        return check_in_range(self.inputs.scaled(self.U), "X", self.dtype == "float32")

    @cached_property
    def scaled_Y(self) -> Array:
        """Outputs as the leaf GPs see them, (n_rows, n_outputs)."""
        return check_in_range(self.outputs.to_experts(self.Y), "y", self.dtype == "float32")

    @cached_property
    def known_noise(self) -> Array | None:
        """Known noise variances as the leaf GPs see them, (n_rows, n_outputs)."""
        return None if self.noise is None else self.outputs.noise_to_experts(self.noise)

    @property
    def leaf_data(self) -> LeafData:
        """The rows as the leaf GPs see them."""
        return LeafData(
            self.scaled_X, self.scaled_Y, self.known_noise, self.labels, self.row_weights
        )

    @cached_property
    def columns(self) -> Columns:
        """Coordinates, ranked, as trees grow on them."""
        return Columns(self.U, self._drawing_order)

    @property
    def _drawing_order(self) -> Index | None:
        """The coordinates in the order of the inputs that they are of; those of a metric are of all inputs."""
        coordinates = self.inputs.coordinates
        if self.input_order is None or (coordinates is not None and coordinates.is_oblique):
            return None
        place = np.argsort(self.input_order)
        return np.argsort(
            place if coordinates is None else place[coordinates.columns], kind="stable"
        )

    @cached_property
    def input_spread(self) -> Array:
        """Standard deviation of each input as the leaf GPs see it, (n_dims,)."""
        scaled = self.inputs.scaled(self.U)
        return InputScaling.of(scaled, True, None, self.row_weights, self.ties).scale


def coordinate_ties(
    input_ties: Index | None, coordinates: Coordinates | None
) -> tuple[int, ...] | None:
    """Return which coordinates share a length scale, given which inputs do; None if none does, as under a metric."""
    if input_ties is None:
        return None
    n_more = 0
    if coordinates is not None:
        if coordinates.metric is not None or coordinates.network is not None:
            return None
        n_more = coordinates.n_coordinates - coordinates.n_linear  # of boosted trees
    columns = np.arange(len(input_ties)) if coordinates is None else coordinates.columns
    group = input_ties[columns]
    # A column that is there twice, as it is and warped, has two length scales.
    single = np.bincount(input_ties)[group] == 1
    group = np.where(single, input_ties.max() + 1 + np.arange(len(group)), group)
    group = np.concatenate([group, group.max() + 1 + np.arange(n_more)])
    _, first, place = np.unique(group, return_index=True, return_inverse=True)
    if len(first) == len(group):
        return None
    rank = np.argsort(np.argsort(first))  # in the order of the coordinates
    return tuple(rank[place.reshape(-1)].tolist())


def _named_warps(
    Y: Array, config: FitConfig, noise: Array | None, row_weights: Array | None
) -> Sequence[OutputWarp | None]:
    """Return the output warps that a user has asked for by name."""
    name = config.output_warp
    if name is None or name == "auto":
        return ()
    if noise is not None:
        raise InputError(
            f"noise cannot be given with output_warp={name!r}: known noise is Gaussian in the units of y, not after the "
            "warp; leave out noise, or set output_warp=None"
        )
    n_outputs = Y.shape[1]
    if name != "rank":  # both have the bound 0
        positive = OutputScaling(np.zeros(n_outputs), np.eye(n_outputs), [LogWarp()] * n_outputs)
        positive.check_support(Y)
    return [named_warp(name, y, row_weights) for y in Y.T]
