"""Scales of the leaves, the gate, and scores: all that is fitted by leave-one-out once leaves are conditioned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp.data.row_sample import draw_numbers
from dsmgp.experts.loo import LeaveOneOut
from dsmgp.mixture.model import Model
from dsmgp.mixture.weights.gating import Gate, fit_gate
from dsmgp.mixture.weights.row_scale import MissingIndicators, RowScale

__all__ = ["LOOSample", "fit_weights", "weigh"]

# Rows on which leave-one-out scores are computed.
MAX_SCORED_ROWS = 20_000
# Rows that must remain if others are left out.
LEAST_SCORED_ROWS = 200


@dataclass(frozen=True)
class LOOSample:
    """Training rows used for leave-one-out; LOO results are kept for these rows only.

    Attributes
    ----------
    gate : ndarray of int
        Rows on which the gate is fitted; none if it stays.
    scored : ndarray of int
        Rows on which the scores are computed.
    missing : MissingIndicators, optional
        Which rows lack which values.
    """

    gate: Index
    scored: Index
    missing: MissingIndicators | None = None

    @classmethod
    def draw(
        cls,
        n_rows: int,
        n_gate_rows: int,
        rng: np.random.Generator,
        learned_on: Index | None = None,
        missing: MissingIndicators | None = None,
    ) -> LOOSample:
        """Draw rows without replacement; no gate rows if ``n_gate_rows`` is 0.

        Rows that a metric was ``learned_on`` are left out, if others remain: it has many entries, and
        predictions of these rows are too good.

        Parameters
        ----------
        n_rows : int
            Number of training rows.
        n_gate_rows : int
            Rows to fit the gate on.
        rng : Generator
        learned_on : ndarray of int, optional
        missing : MissingIndicators, optional
            Which training rows lack which values.
        """
        left_out = np.empty(0, dtype=np.int64)
        if learned_on is not None and n_rows - len(learned_on) >= LEAST_SCORED_ROWS:
            left_out = np.unique(learned_on)
        none = np.empty(0, dtype=np.int64)
        gate = _sample(n_rows, left_out, n_gate_rows, rng) if n_gate_rows else none
        return cls(gate, _sample(n_rows, left_out, MAX_SCORED_ROWS, rng), missing)

    @property
    def rows(self) -> Index:
        """Gate rows and scored rows."""
        return np.union1d(self.gate, self.scored)


def weigh(model: Model, local_scale: bool, sample: LOOSample) -> tuple[Model, tuple[float, float]]:
    """Fit scales and gate by leave-one-out; the leaf posterior must have kept LOO results.

    Parameters
    ----------
    model : Model
    local_scale : bool
        Whether leaves scale their variances by their LOO residuals.
    sample : LOOSample
        If it has no gate rows, the gate stays.

    Returns
    -------
    model : Model
        With these scales and gate.
    scores : tuple of float
        Negative log predictive densities in the user's units: of rows left out one by one, and of rows left out
        with their duplicates.
    """
    model, loo = fit_weights(model, local_scale, sample)
    Y = model.outputs.from_experts(loo.observed(sample.scored))
    distributions = (
        model.loo_distribution(loo, sample.scored, grouped, sample.missing)
        for grouped in (False, True)
    )
    weights = loo.weights(sample.scored)
    alone, at_new_inputs = (
        float(-np.average(each.logpdf(Y).sum(axis=1), weights=weights)) for each in distributions
    )
    model.leaf_posterior.drop_loo()
    return model, (alone, at_new_inputs)


def fit_weights(
    model: Model, local_scale: bool, sample: LOOSample, near: Gate | None = None
) -> tuple[Model, LeaveOneOut]:
    """Fit scales and gate as :func:`weigh` does; return the model, and the leave-one-out results.

    The search for the gate starts at ``near`` if there is one.
    """
    loo = model.leaf_posterior.leave_one_out()
    gate, rows = model.gate, sample.gate
    if len(rows):
        components = loo.components(rows)
        leaf_scales = loo.scales_without(rows) if local_scale else np.ones(components.mean.shape)
        log_path = components.of_leaves(model.component_weights.log_path, -np.inf)
        known_noise = loo.known_noise(rows)
        gate = fit_gate(
            components,
            leaf_scales,
            log_path,
            loo.observed(rows),
            local_scale,
            known_noise,
            loo.weights(rows),
            near,
        )
    scales = loo.scales if local_scale else np.ones_like(loo.squares)
    model = replace(model, scales=scales, gate=gate)
    if len(rows) and sample.missing is not None:
        model = replace(model, row_scale=_row_scale(model, loo, sample.missing, rows))
    return model, loo


def _row_scale(model: Model, loo: LeaveOneOut, missing: MissingIndicators, rows: Index) -> RowScale:
    """Fit the scales of rows with missing values to leave-one-out residuals."""
    predicted = replace(model, row_scale=None).loo_distribution(loo, rows)
    Y = model.outputs.from_experts(loo.observed(rows))
    log_density = partial(predicted.scaled_log_density, Y)
    return RowScale.fit(missing, rows, log_density, loo.weights(rows))


def _sample(n_rows: int, left_out: Index, most: int, rng: np.random.Generator) -> Index:
    """Draw at most so many rows that are not left out, in order."""
    n_left = n_rows - len(left_out)
    if n_left <= most:
        return np.delete(np.arange(n_rows), left_out)
    # Numbered among those that are not left out: row k has as many before it as are less than k.
    numbers = draw_numbers(n_left, most, rng)
    return numbers + np.searchsorted(left_out - np.arange(len(left_out)), numbers, side="right")
