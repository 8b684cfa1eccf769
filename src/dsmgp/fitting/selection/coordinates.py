"""Choosing the coordinates of a fit: warps of inputs and outputs, a metric, a network, and boosted trees.

The first stage of a fit. It says which of them the configuration leaves open, and in which order they are tried
(:mod:`dsmgp.fitting.selection.coordinate_trial`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.rows.row_source import RowSource
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.coordinate_trial import (
    learned_coordinates,
    start,
    try_boosted_trees,
    try_input_warps,
    try_metric,
    try_network,
    try_output_warps,
)
from dsmgp.gp.metric_process import METRIC_KINDS
from dsmgp.gp.terms import STATIONARY
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import OutputWarp
from dsmgp.progress import stopping

__all__ = ["LEAST_ROWS", "MOST_FEATURES", "CoordinateChoice", "choose_coordinates"]

# With fewer rows leave-one-out cannot tell candidates apart, and "auto" keeps inputs and outputs as they are.
LEAST_ROWS = 500
# Inputs beyond which no metric is tried.
MOST_FEATURES = 100


@dataclass(frozen=True, eq=False)
class CoordinateChoice:
    """What was chosen, and what it gained.

    Attributes
    ----------
    coordinates : Coordinates or None
        None if inputs are used as they are.
    output_warps : sequence of OutputWarp or None
        By output; empty if no output is warped.
    gains : dict of str to float
        For each step that was taken, the gain in nats per row over the step before (log density and half the relative squared error).
    learned_on : ndarray of int
        Rows that a metric or a network was learned on. It has many entries, and leave-one-out predictions of these rows are too good.
    """

    coordinates: Coordinates | None = None
    output_warps: Sequence[OutputWarp | None] = ()
    gains: dict[str, float] | None = None
    learned_on: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def choose_coordinates(rows: RowSource, context: FitContext) -> CoordinateChoice:
    """Choose warps and metric, as far as the configuration leaves them open.

    Returns
    -------
    CoordinateChoice
        Nothing is chosen on small tables, with a kernel or a structure that refers to the columns, or without gated weights.
    """
    config = context.config
    first = fixed_coordinates(rows.data, config)
    open_inputs = config.input_warp == "auto" and _may_choose(rows, config)
    open_outputs = (
        config.output_warp == "auto" and _may_choose(rows, config) and rows.data.noise is None
    )
    has_metric = config.kernel == "auto" or config.kernel in METRIC_KINDS
    may_learn = config.metric in ("auto", "deep") and has_metric and _may_choose(rows, config)
    open_metric = config.metric == "full" or may_learn
    # A network takes longer to learn than the rest of a fit of medium effort.
    tries_network = config.metric == "auto" and config.effort == "high" and may_learn
    open_network = config.metric == "deep" or tries_network
    forced_trees = config.boosted_trees == "always"
    tries_trees = config.boosted_trees == "auto" and config.effort != "low"
    open_trees = forced_trees or (tries_trees and _may_choose(rows, config))
    if not (open_inputs or open_outputs or open_metric or open_network or open_trees):
        return first
    best = start(rows.data, context, first.coordinates, first.output_warps)
    if best.is_exact and config.metric not in ("full", "deep") and not forced_trees:
        return first
    # A fit that is to stop keeps what it has.
    if open_inputs and not stopping():
        best = try_input_warps(best)
    if (
        open_metric
        and not stopping()
        and (best.n_features <= MOST_FEATURES or config.metric == "full")
    ):
        best = try_metric(best, forced=config.metric == "full", also_raw=open_inputs)
    if open_network and not stopping():
        best = try_network(best, forced=config.metric == "deep")
    # In the coordinates of the model: residuals shrink with better inputs, and so does what a warp of the outputs gains.
    if open_outputs and not stopping():
        best = try_output_warps(best)
    # Last: with skewed outputs a better mean gains nothing before they are warped.
    if open_trees and not stopping():
        best = try_boosted_trees(best, forced=forced_trees)
    coordinates, learned_on = learned_coordinates(best)
    return CoordinateChoice(
        None if coordinates.is_identity else coordinates,
        best.candidate.output_warps,
        best.gains,
        learned_on,
    )


def fixed_coordinates(data: ScaledRows, config: FitConfig) -> CoordinateChoice:
    """Return the warps that the user asked for by name, or that an earlier choice has made."""
    if isinstance(config.input_warp, Coordinates):
        return CoordinateChoice(config.input_warp, data.outputs.warps)
    kinds = {"rank": ("rank",), "both": ("raw", "rank")}.get(str(config.input_warp))
    coordinates = None
    if kinds is not None:
        columns = [kinds] * data.X.shape[1]
        coordinates = Coordinates.of_columns(data.X, columns, data.row_weights)
    return CoordinateChoice(coordinates, data.outputs.warps)


def _may_choose(rows: RowSource, config: FitConfig) -> bool:
    """Whether leave-one-out can choose, and nothing in the configuration refers to the columns as they are."""
    kernel_is_open = isinstance(config.kernel, str) and config.kernel in ("auto", *STATIONARY)
    return (
        rows.n_rows >= LEAST_ROWS
        and config.structure == "balanced"
        and config.weights == "gated"
        and config.optimizer is not None
        and config.objective == "surrogate"
        and config.standardize
        and kernel_is_open
        and config.mean in ("zero", "constant")
    )
