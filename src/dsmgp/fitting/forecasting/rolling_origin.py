"""Forecasts of the end of the training range from its beginning (rolling origin), which judge kernels of a series.

A candidate learns on the rows before each of some origins, in time, and forecasts those after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.optimize import maximise_evidence
from dsmgp.fitting.rows.leaf_setup import set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.gp.named_process import NamedProcess, ParameterBlock
from dsmgp.gp.periods import seasonal_periods
from dsmgp.gp.process import NOISE_FLOOR, Process, build_process
from dsmgp.gp.time_kernels import SLOW_PARTS, TimeInputs, time_process
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.region import Region
from dsmgp.tree.routing import Router

__all__ = ["ORIGINS", "PLAIN", "PLAIN_KERNEL", "Forecasts", "RollingOrigin", "TimeCandidate"]

#: Shares of the rows, in order of time, from which later rows are forecast; and the share of rows that each forecasts.
ORIGINS, HORIZON = (0.5, 0.625, 0.75), 0.25
# Rows that a candidate learns on, and the chosen one in the end; rows that forecasts are conditioned on, and that judge.
LEARNED_ROWS, FINAL_ROWS, CONDITIONED_ROWS, JUDGED_ROWS = 250, 500, 1000, 400
ITERATIONS, FINAL_ITERATIONS, TOLERANCE = 40, 60, 1e-5
# Standard deviations beyond which an error is not counted as larger: one forecast that misses is not to decide alone.
MOST_DEVIATIONS = 5.0
# Gain in nats per row from which a candidate is better. Rows of one forecast err together: more is asked than of rows left out one by one.
LEAST_GAIN = 0.1
# What stands for a model without trends and seasons.
PLAIN, PLAIN_KERNEL = ("plain",), "matern32"
# Half the width of a central interval of 90%, in standard deviations.
NINETY = 1.6448536


@dataclass(frozen=True, eq=False)
class Forecasts:
    """Forecasts of a candidate, one entry by origin.

    Attributes
    ----------
    loss, error : list of ndarray of shape (n_rows,)
        Negative log density in the user's units, errors beyond a limit counting as at the limit; squared error of the mean.
    inside : list of ndarray of shape (n_rows,)
        Whether the central 90% interval holds the row.
    """

    loss: list[Array]
    error: list[Array]
    inside: list[NDArray[np.bool_]]

    def gains_over(self, other: Forecasts) -> Array:
        """Return the gain over another candidate at each origin: in mean log density, and in the log of the root mean squared error.

        Density alone would trade a worse mean for wide intervals.
        """
        gains = []
        for k, loss in enumerate(self.loss):
            errors = [
                max(float(each.error[k].mean()), np.finfo(np.float64).tiny)
                for each in (other, self)
            ]
            by_error = 0.5 * math.log(errors[0] / errors[1])
            gains.append(float((other.loss[k] - loss).mean()) + by_error)
        return np.array(gains)

    def is_clear(self, other: Forecasts) -> bool:
        """Return whether the gain over another candidate is clear: in the mean, and from most origins.

        Rows of one forecast err together, so that a standard error over rows would say little.
        """
        gains = self.gains_over(other)
        return bool(gains.mean() > LEAST_GAIN and (gains > 0).mean() > 0.5)

    @property
    def coverage(self) -> float:
        """Share of the rows in their 90% intervals."""
        return float(np.concatenate(self.inside).mean())


@dataclass(frozen=True)
class TimeCandidate:
    """Parts of a kernel, whether the output is its logarithm, and by how much slow parts are widened."""

    parts: tuple[str, ...]
    log: bool = False
    wider: float = 1.0

    def __str__(self) -> str:
        names = {"line": "linear", "curve": "linear*linear", "trend": "matern52", "level": "matern32",
                 "season": "rbf*periodic", "short": "matern12", "plain": PLAIN_KERNEL}  # fmt: skip
        text = "+".join(names.get(part, part) for part in self.parts)
        return f"{text}{', log' * self.log}"


class RollingOrigin:
    """Forecasts of candidates from several origins.

    Parameters
    ----------
    rows : TrainingRows
        With one output.
    time : int
        Number of the input that is a time.
    config : FitConfig
    known_periods : tuple of float
        Periods of seasons that are likely, in the units of the time.
    coordinates : Coordinates, optional
        In which the steps of the time are equal.
    """

    def __init__(
        self,
        rows: TrainingRows,
        time: int,
        config: FitConfig,
        known_periods: tuple[float, ...] = (),
        coordinates: Coordinates | None = None,
    ) -> None:
        self.rows, self.time = rows, time
        self.coordinates = coordinates
        self.config = replace(config, device="cpu", dtype="float64", output_warp=None)
        # A generator of its own: where nothing is chosen, the fit is that of a configuration without a choice.
        self.rng = np.random.default_rng(0)
        self.n_evaluations = 0
        t = rows.X[:, time] if coordinates is None else coordinates(rows.X)[:, time]
        #: In the units of the time.
        self.periods = seasonal_periods(t, rows.Y[:, 0], known_periods)
        shares = [*ORIGINS, *(min(origin + HORIZON, 1.0) for origin in ORIGINS)]
        cuts = np.quantile(t, shares, method="inverted_cdf").reshape(2, -1)
        #: Rows before, and rows after each origin.
        self.folds: list[tuple[Index, Index]] = []
        for origin, end in cuts.T:
            before, after = np.flatnonzero(t <= origin), np.flatnonzero((t > origin) & (t <= end))
            if len(before) and len(after):
                self.folds.append((before, self._sampled(after, JUDGED_ROWS)))

    @cached_property
    def _learned(self) -> dict[tuple[TimeCandidate, int], tuple[ScaledRows, NamedProcess]]:
        return {}

    def forecasts(self, candidate: TimeCandidate) -> Forecasts | None:
        """Return the forecasts of a candidate from all origins; None if a covariance cannot be factorised."""
        try:
            parts = [self._forecast(candidate, fold) for fold in range(len(self.folds))]
        except NotFactorisedError:
            return None
        return Forecasts(
            [loss for loss, _, _ in parts],
            [error for _, error, _ in parts],
            [inside for _, _, inside in parts],
        )

    def _forecast(
        self, candidate: TimeCandidate, fold: int
    ) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Forecast the rows after an origin from those before; return losses, squared errors, and whether intervals hold."""
        before, after = self.folds[fold]
        key = replace(candidate, wider=1.0), fold
        if key not in self._learned:
            data = self._data(before, candidate.log)
            process = self._learn(candidate, data, LEARNED_ROWS, ITERATIONS)
            self._learned[key] = data, process
        data, process = self._learned[key]
        process = _widened(process, candidate)
        mean, variance = self._predict(data, process, self.rows.X[after])
        outputs, Y = data.outputs, self.rows.Y[after]
        z = outputs.to_experts(Y)[:, 0]
        away = (z - mean) / np.sqrt(variance)
        density = -0.5 * (
            np.minimum(np.square(away), MOST_DEVIATIONS**2) + np.log(variance) + LOG_2PI
        )
        density += outputs.log_slopes(Y)[:, 0] - outputs.log_det
        latent = (
            outputs.mean_to_latent(mean[:, None]),
            outputs.variance_to_latent(variance[:, None]),
        )
        expected, _ = outputs.moments_from_latent(*latent)
        return -density, np.asarray(np.square(Y - expected)[:, 0]), np.abs(away) <= NINETY

    def _data(self, positions: Index, log: bool) -> ScaledRows:
        """Scale some rows on their own, as a fit to them would."""
        config = replace(self.config, output_warp="log" if log else None)
        rows = self.rows.take(positions)
        data = ScaledRows.of(rows.X, rows.Y, config, rows.noise, row_weights=rows.weights)
        if self.coordinates is None:
            return data
        return data.rescaled(self.coordinates, data.outputs.warps, config)

    def _learn(
        self, candidate: TimeCandidate, data: ScaledRows, n_rows: int, iterations: int
    ) -> NamedProcess:
        """Learn hyperparameters on a sample of rows."""
        sample = data.taken(self._sampled(np.arange(len(data.X)), n_rows))
        process = self._process(candidate, data)
        gps = set_up_leaves(
            [Leaf(Region.whole(data.n_dims), np.arange(len(sample.X)))],
            [process.leaf_kernel],
            sample,
            self.config,
        )
        (learned,), results = maximise_evidence(
            None,
            gps,
            [process],
            optimizer="lbfgs",
            rng=self.rng,
            max_iter=iterations,
            tolerance=TOLERANCE,
        )
        self.n_evaluations += sum(result.n_evaluations for result in results)
        assert isinstance(learned, NamedProcess)
        return learned

    def _process(self, candidate: TimeCandidate, data: ScaledRows) -> Process:
        if candidate.parts == PLAIN:
            return build_process(PLAIN_KERNEL, "zero", None, data.n_dims, spread=data.input_spread)
        t = data.inputs.scaled(data.U)[:, self.time]
        unit = float(data.inputs.scale[self.time])
        inputs = TimeInputs(
            self.time,
            data.n_dims,
            float(data.input_spread[self.time]),
            float(np.ptp(t)),
            tuple(period / unit for period in self.periods),
        )
        noise = ParameterBlock("noise", 1, lower=NOISE_FLOOR)
        return time_process(candidate.parts, inputs, noise, data.input_spread)

    def _predict(self, data: ScaledRows, process: NamedProcess, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of y at other rows, in the units of the GP."""
        data = data.taken(self._sampled(np.arange(len(data.X)), CONDITIONED_ROWS))
        leaf = Leaf(Region.whole(data.n_dims), np.arange(len(data.X)))
        gps = set_up_leaves([leaf], [process.leaf_kernel], data, self.config)
        posterior = gps.condition([process.kernel_parameters()], math.inf, False)
        Z = data.inputs.to_experts(X)
        mean, variance = posterior.predict(Router(leaf).route(Z), Z)
        return mean[:, 0], variance[:, 0] + process.noise

    def _sampled(self, positions: Index, most: int) -> Index:
        if len(positions) <= most:
            return positions
        return np.sort(self.rng.choice(positions, most, replace=False))

    def learned_on_all(self, candidate: TimeCandidate) -> NamedProcess:
        """Return a candidate's process with what it learns on all rows."""
        data = self._data(np.arange(len(self.rows)), candidate.log)
        return _widened(self._learn(candidate, data, FINAL_ROWS, FINAL_ITERATIONS), candidate)


def _widened(process: NamedProcess, candidate: TimeCandidate) -> NamedProcess:
    """Multiply the variances of the slow parts of a candidate."""
    if candidate.wider == 1.0:
        return process
    theta, term, first = process.theta.copy(), -1, 0
    slow = _slow_terms(candidate.parts, process)
    for block in process.blocks:
        if block.name == "outputscale":
            term += 1
            if term in slow:
                theta[first] += math.log(candidate.wider)
        first += block.size
    return process.with_theta(theta)


def _slow_terms(parts: Sequence[str], process: NamedProcess) -> list[int]:
    """Return the numbers of the terms that are slow parts; a season is as many terms as there are periods."""
    n_seasons = len(process.kernel.terms) - sum(part != "season" for part in parts)
    slow, number = [], 0
    for part in parts:
        if part in SLOW_PARTS:
            slow.append(number)
        number += n_seasons if part == "season" else 1
    return slow
