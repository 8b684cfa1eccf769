"""Tables with a time: trends and seasons, chosen by forecasting the end of the training range from its beginning.

Partitions that cut the time make local leaves, and stationary kernels fall back to the mean outside of the data. So for one date or time
among the inputs some kernels of one leaf that holds all rows are tried (:mod:`dsmgp.gp.time_kernels`). Each learns on the rows
before some origins and forecasts those after it (*rolling origin*). Where one of them is clearly better than a kernel without any such
structure, it is the model; the same forecasts decide between an output and its logarithm, and how wide forecasts are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.dates import format_position
from dsmgp.data.input_schema import InputSchema
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.optimize import maximise_evidence
from dsmgp.fitting.state import FittedState, TrainingRows
from dsmgp.fitting.time_input import CALENDAR, find_time
from dsmgp.fitting.training_data import TrainingData, set_up_leaves
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.named_process import NamedProcess, ParameterBlock
from dsmgp.gp.periods import seasonal_periods
from dsmgp.gp.process import NOISE_FLOOR, Process, build_process
from dsmgp.gp.time_kernels import SLOW_PARTS, TimeInputs, time_process
from dsmgp.progress import span, stopping
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.region import Region
from dsmgp.tree.routing import Router

__all__ = ["TimeChoice", "choose_time_model"]

logger = logging.getLogger("dsmgp")

# Shares of the rows, in order of time, from which the rows up to the next share but one are forecast.
ORIGINS = (0.5, 0.625, 0.75)
HORIZON = 0.25
# Rows that a candidate learns on, and the chosen one in the end; rows that forecasts are conditioned on, and that judge.
LEARNED_ROWS, FINAL_ROWS, CONDITIONED_ROWS, JUDGED_ROWS = 250, 500, 1000, 400
ITERATIONS, FINAL_ITERATIONS, TOLERANCE = 40, 60, 1e-5
# Standard deviations beyond which an error is not counted as larger: one forecast that misses is not to decide alone.
MOST_DEVIATIONS = 5.0
# Gain in nats per row from which a candidate is taken. Rows of one forecast err together: more is asked than of rows left out one by one.
LEAST_GAIN = 0.1
# Factors of the variance of slow parts that are tried.
WIDER = (2.0, 4.0, 8.0, 16.0)
# What stands for a model without trends and seasons.
PLAIN, PLAIN_KERNEL = ("plain",), "matern32"


@dataclass(frozen=True, eq=False)
class TimeChoice:
    """A kernel for a table with a time, and why it was chosen.

    Attributes
    ----------
    config : FitConfig
        Of the fit with this kernel, whose hyperparameters are known already.
    scores : dict of str to float
        Loss per row of the candidates' forecasts relative to that of the kernel without structure; lower is better.
    notes : tuple of str
        Lines for the summary.
    n_evaluations : int
    """

    config: FitConfig
    scores: dict[str, float]
    notes: tuple[str, ...]
    n_evaluations: int

    def recorded_in(self, state: FittedState) -> FittedState:
        """Return the state of the fit with the record of the choice."""
        search = replace(
            state.search,
            kernel_scores=self.scores,
            n_evaluations=state.search.n_evaluations + self.n_evaluations,
            notes=self.notes,
        )
        return replace(state, search=search)


def choose_time_model(
    rows: TrainingRows, schema: InputSchema, config: FitConfig
) -> TimeChoice | None:
    """Choose a kernel with trends and seasons, if the configuration leaves it open and forecasts are clearly better with one.

    Returns
    -------
    TimeChoice or None
        None if there is no time among the inputs, or a model without such a kernel forecasts about as well.
    """
    if not _is_open(rows, config):
        return None
    time = find_time(rows.X, schema)
    if time is None:
        return None
    with span(0.0, 0.5, "forecasting the end of the training rows"):
        trial = _Trial(rows, schema, time, config)
        return trial.choice()


def _is_open(rows: TrainingRows, config: FitConfig) -> bool:
    """Whether the configuration leaves the kernel open, and one leaf can hold all rows."""
    limit = EFFORTS[config.effort].most_rows
    most = limit.get(config.device_type, limit["cuda"])
    return (
        isinstance(config.kernel, str)
        and config.kernel == "auto"
        and config.mean_is_open
        and config.structure == "balanced"
        and config.weights == "gated"
        and config.optimizer is not None
        and config.objective == "surrogate"
        and config.standardize
        and config.leaf_sizes is None
        and config.sum_children is None
        and (config.depth or 1) == 1
        and config.input_warp in ("auto", None)
        and config.metric in ("auto", "diagonal")
        and config.output_warp in ("auto", None)
        and isinstance(config.executor, LocalExecutor)
        and rows.Y.shape[1] == 1
        and len(rows) <= min(most, config.max_leaf_rows)
        and np.ptp(rows.Y) > 0
    )


@dataclass(frozen=True, eq=False)
class _Forecasts:
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
    inside: list[Array]

    def gains_over(self, other: _Forecasts) -> Array:
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

    def is_clear(self, other: _Forecasts) -> bool:
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
class _Candidate:
    """Parts of a kernel, whether the output is its logarithm, and by how much slow parts are widened."""

    parts: tuple[str, ...]
    log: bool = False
    wider: float = 1.0

    def __str__(self) -> str:
        names = {"line": "linear", "curve": "linear*linear", "trend": "matern52", "level": "matern32",
                 "season": "rbf*periodic", "short": "matern12", "plain": PLAIN_KERNEL}  # fmt: skip
        text = "+".join(names.get(part, part) for part in self.parts)
        return f"{text}{', log' * self.log}"


class _Trial:
    """Forecasts of candidates from several origins."""

    def __init__(
        self, rows: TrainingRows, schema: InputSchema, time: int, config: FitConfig
    ) -> None:
        self.rows, self.schema, self.time = rows, schema, time
        self.final_config = config
        self.config = replace(config, device="cpu", dtype="float64", output_warp=None)
        # A generator of its own: where nothing is chosen, the fit is that of a configuration without a choice.
        self.rng = np.random.default_rng(0)
        self.n_evaluations = 0
        t = rows.X[:, time]
        known = CALENDAR.values() if time in schema.columns.date_inputs else ()
        #: In the units of the time.
        self.periods = seasonal_periods(t, rows.Y[:, 0], tuple(known))
        cuts = np.quantile(t, [*ORIGINS, 1.0], method="inverted_cdf")
        ends = np.quantile(t, [min(o + HORIZON, 1.0) for o in ORIGINS], method="inverted_cdf")
        self.folds: list[tuple[Index, Index]] = []
        for origin, end in zip(cuts, ends, strict=False):
            before, after = np.flatnonzero(t <= origin), np.flatnonzero((t > origin) & (t <= end))
            if len(before) and len(after):
                self.folds.append((before, self._sampled(after, JUDGED_ROWS)))

    def choice(self) -> TimeChoice | None:
        """Return the best candidate, if it is clearly better than a kernel without structure."""
        if len(self.folds) < len(ORIGINS):
            return None
        plain = _Candidate(PLAIN)
        first = best_forecasts = self._forecasts(plain)
        best, scores = plain, {str(plain): 0.0}
        for candidate in self._candidates():
            if stopping():
                return None
            best, best_forecasts = self._better(candidate, best, best_forecasts, first, scores)
        if best == plain:
            return None
        if self._may_take_log:
            # A parabola may have stood in for growth by a constant factor, which is a line in the logarithm.
            parts = tuple("line" if part == "curve" else part for part in best.parts)
            logged = _Candidate(parts, log=True)
            best, best_forecasts = self._better(logged, best, best_forecasts, first, scores)
        best, best_forecasts = self._widened(best, best_forecasts)
        gain = float(best_forecasts.gains_over(first).mean())
        kernel, noise = self._final(best)
        return TimeChoice(
            self._resolved(best, kernel, noise),
            scores,
            self._notes(best, kernel, gain, best_forecasts.coverage),
            self.n_evaluations,
        )

    def _better(
        self,
        candidate: _Candidate,
        best: _Candidate,
        best_forecasts: _Forecasts,
        first: _Forecasts,
        scores: dict[str, float],
    ) -> tuple[_Candidate, _Forecasts]:
        """Return a candidate if its gain over the best so far is clear, else that."""
        forecasts = self._forecasts(candidate)
        gain = forecasts.gains_over(first)
        scores[str(candidate)] = -float(gain.mean())
        logger.info("forecasts with %s: gains %s per row", candidate, gain.round(3).tolist())
        if forecasts.is_clear(best_forecasts):
            return candidate, forecasts
        return best, best_forecasts

    @cached_property
    def _may_take_log(self) -> bool:
        config, rows = self.final_config, self.rows
        return config.output_warp == "auto" and rows.noise is None and bool((rows.Y > 0).all())

    def _candidates(self) -> list[_Candidate]:
        """From simple to complicated."""
        season = ("season",) if self.periods else ()
        with_time: list[tuple[str, ...]] = [
            *([("level", *season)] if self.periods else []),
            ("line", "level"),
            ("line", "trend", *season, "short"),
            ("curve", "trend", *season, "short"),
        ]
        if self.rows.X.shape[1] == 1:
            return [_Candidate(parts) for parts in with_time]
        return [_Candidate(("others",)), *(_Candidate((*parts, "others")) for parts in with_time)]

    # Learning and forecasting

    @cached_property
    def _learned(self) -> dict[tuple[_Candidate, int], tuple[TrainingData, NamedProcess]]:
        return {}

    def _forecasts(self, candidate: _Candidate) -> _Forecasts:
        parts = [self._forecast(candidate, fold) for fold in range(len(self.folds))]
        loss, error, inside = (list(each) for each in zip(*parts, strict=True))
        return _Forecasts(loss, error, inside)

    def _forecast(self, candidate: _Candidate, fold: int) -> tuple[Array, Array, Array]:
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
        return -density, np.square(Y - expected)[:, 0], np.abs(away) <= 1.6449

    def _data(self, positions: Index, log: bool) -> TrainingData:
        """Scale some rows on their own, as a fit to them would."""
        config = replace(self.config, output_warp="log" if log else None)
        rows = self.rows.take(positions)
        return TrainingData.of(rows.X, rows.Y, config, rows.noise, row_weights=rows.weights)

    def _learn(
        self, candidate: _Candidate, data: TrainingData, n_rows: int, iterations: int
    ) -> NamedProcess:
        """Learn hyperparameters on a sample of rows."""
        sample = data.taken(self._sampled(np.arange(len(data.X)), n_rows))
        processes: list[Process] = [self._process(candidate, data)]
        gps = set_up_leaves(
            [Leaf(Region.whole(data.n_dims), np.arange(len(sample.X)))],
            [processes[0].leaf_kernel],
            sample,
            self.config,
        )
        results = maximise_evidence(
            None,
            gps,
            processes,
            optimizer="lbfgs",
            rng=self.rng,
            max_iter=iterations,
            tolerance=TOLERANCE,
        )
        self.n_evaluations += sum(result.n_evaluations for result in results)
        learned = processes[0]
        assert isinstance(learned, NamedProcess)
        return learned

    def _process(self, candidate: _Candidate, data: TrainingData) -> Process:
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

    def _predict(self, data: TrainingData, process: NamedProcess, X: Array) -> tuple[Array, Array]:
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

    # The result

    def _widened(self, best: _Candidate, forecasts: _Forecasts) -> tuple[_Candidate, _Forecasts]:
        """Widen slow parts as far as the log density of forecasts gains by it: the evidence knows one step ahead best."""
        if not set(SLOW_PARTS) & set(best.parts):
            return best, forecasts

        def total(each: _Forecasts) -> float:
            return float(np.mean([loss.mean() for loss in each.loss]))

        for factor in WIDER:
            candidate = replace(best, wider=factor)
            wider = self._forecasts(candidate)
            if total(wider) >= total(forecasts):
                break
            best, forecasts = candidate, wider
        return best, forecasts

    def _final(self, best: _Candidate) -> tuple[Kernel, float]:
        """Learn on all rows, and return kernel and noise."""
        data = self._data(np.arange(len(self.rows)), best.log)
        process = self._learn(best, data, FINAL_ROWS, FINAL_ITERATIONS)
        process = _widened(process, best)
        return process.kernel, process.noise

    def _resolved(self, best: _Candidate, kernel: Kernel, noise: float) -> FitConfig:
        return replace(
            self.final_config,
            kernel=kernel,
            mean="zero",
            mean_is_open=False,
            noise_variance=noise,
            optimizer=None,
            leaf_sizes=[len(self.rows)],
            sum_children=1,
            input_warp=None,
            metric="diagonal",
            output_warp="log" if best.log else None,
            hypotheses=False,
        )

    def _notes(
        self, best: _Candidate, kernel: Kernel, gain: float, coverage: float
    ) -> tuple[str, ...]:
        name = self.schema.input_names[self.time]
        seasons = ", ".join(self._period_text(period) for period in self.periods)
        has_season = "season" in best.parts
        parts = {"line": "a line", "curve": "a parabola", "trend": "a slow trend", "level": "a level that moves",
                 "season": f"seasons of period {seasons}", "short": "short deviations",
                 "others": "a function of the other inputs"}  # fmt: skip
        text = ", ".join(parts[part] for part in best.parts if part != "season" or has_season)
        wider = f"; slow parts {best.wider:g} times as variable as by the evidence" * (
            best.wider > 1
        )
        return (
            f"time            {name}: {text}{'; of the logarithm of the output' * best.log}{wider}",
            f"rolling origin  {len(self.folds)} forecasts of later training rows from earlier ones: gain {gain:.3g} nats per row over "
            f"{PLAIN_KERNEL} without trend and season, 90% intervals held {coverage:.0%}",
        )

    def _period_text(self, period: float) -> str:
        if self.time in self.schema.columns.date_inputs:
            for name, days in CALENDAR.items():
                if period == days:
                    return name
            return f"{format_position(round(period, 3))} days"
        return format_position(float(f"{period:.4g}"))


def _widened(process: NamedProcess, candidate: _Candidate) -> NamedProcess:
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
