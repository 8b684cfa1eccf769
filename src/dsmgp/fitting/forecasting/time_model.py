"""Tables with a time: trends and seasons, chosen by forecasting the end of the training range from its beginning.

Partitions that cut the time make local leaves, and stationary kernels fall back to the mean outside of the data. So for one date or time
among the inputs some kernels of one leaf that holds all rows are tried (:mod:`dsmgp.gp.time_kernels`). Each learns on the rows
before some origins and forecasts those after it (*rolling origin*). Where one of them is clearly better than a kernel without any such
structure, it is the model; the same forecasts decide between an output and its logarithm, and how wide forecasts are. Beside other inputs
it must also forecast about as well as the mixture that the table is fitted with otherwise.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsmgp._util.dates import format_position
from dsmgp.data.input_schema import InputSchema
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.forecasting.mixture_forecasts import mixture_forecasts
from dsmgp.fitting.forecasting.rolling_origin import (
    ORIGINS,
    PLAIN,
    PLAIN_KERNEL,
    Forecasts,
    RollingOrigin,
    TimeCandidate,
)
from dsmgp.fitting.forecasting.time_input import CALENDAR, find_time, time_coordinates
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.time_kernels import SLOW_PARTS
from dsmgp.progress import span, stopping

__all__ = ["TimeChoice", "choose_time_model"]

logger = logging.getLogger("dsmgp")

# Factors of the variance of slow parts that are tried.
WIDER = (2.0, 4.0, 8.0, 16.0)


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
        """Return the state of the fit with the record of the choice.

        Trends and seasons need all rows in one leaf: online updates do not cut it before it holds more than a fit would allow.
        """
        search = replace(
            state.search,
            kernel_scores=self.scores,
            n_evaluations=state.search.n_evaluations + self.n_evaluations,
            notes=self.notes,
        )
        sizes = np.full_like(state.partition_sizes, _most_rows(self.config))
        return replace(state, search=search, partition_sizes=sizes)


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
    return bool(
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
        and config.boosted_trees != "always"
        and config.output_warp in ("auto", None)
        and isinstance(config.executor, LocalExecutor)
        and rows.Y.shape[1] == 1
        and len(rows) <= _most_rows(config)
        and np.ptp(rows.Y) > 0
    )


def _most_rows(config: FitConfig) -> int:
    """Return how many rows the one leaf may hold."""
    limit = EFFORTS[config.effort].most_rows
    return min(limit.get(config.device_type, limit["cuda"]), config.max_leaf_rows)


class _Trial:
    """Forecasts of candidates from several origins."""

    def __init__(
        self, rows: TrainingRows, schema: InputSchema, time: int, config: FitConfig
    ) -> None:
        self.rows, self.schema, self.config = rows, schema, config
        known = CALENDAR.values() if time in schema.columns.date_inputs else ()
        coordinates = time_coordinates(rows.X, time, schema)
        self.rolling = RollingOrigin(rows, time, config, tuple(known), coordinates)

    def choice(self) -> TimeChoice | None:
        """Return the best candidate, if it is clearly better than a kernel without structure."""
        if len(self.rolling.folds) < len(ORIGINS):
            return None
        plain = TimeCandidate(PLAIN)
        first = self.rolling.forecasts(plain)
        if first is None:
            return None
        best, best_forecasts, scores = plain, first, {str(plain): 0.0}
        for candidate in self._candidates():
            if stopping():
                return None
            best, best_forecasts = self._better(candidate, best, best_forecasts, first, scores)
        if best == plain:
            return None
        if self._may_take_log:
            # A parabola may have stood in for growth by a constant factor, which is a line in the logarithm.
            parts = tuple("line" if part == "curve" else part for part in best.parts)
            logged = TimeCandidate(parts, log=True)
            best, best_forecasts = self._better(logged, best, best_forecasts, first, scores)
        best, best_forecasts = self._widened(best, best_forecasts)
        if "others" in best.parts and self._mixture_is_better_than(best_forecasts):
            return None
        gain = float(best_forecasts.gains_over(first).mean())
        kernel, noise = self._final(best)
        return TimeChoice(
            self._resolved(best, kernel, noise),
            scores,
            self._notes(best, gain, best_forecasts.coverage),
            self.rolling.n_evaluations,
        )

    def _better(
        self,
        candidate: TimeCandidate,
        best: TimeCandidate,
        best_forecasts: Forecasts,
        first: Forecasts,
        scores: dict[str, float],
    ) -> tuple[TimeCandidate, Forecasts]:
        """Return a candidate if its gain over the best so far is clear, else that."""
        forecasts = self.rolling.forecasts(candidate)
        if forecasts is None:
            return best, best_forecasts
        gain = forecasts.gains_over(first)
        scores[str(candidate)] = -float(gain.mean())
        logger.info("forecasts with %s: gains %s per row", candidate, gain.round(3).tolist())
        if forecasts.is_clear(best_forecasts):
            return candidate, forecasts
        return best, best_forecasts

    def _mixture_is_better_than(self, forecasts: Forecasts) -> bool:
        mixture = mixture_forecasts(self.rolling, self.schema, self.config)
        gains = mixture.gains_over(forecasts)
        logger.info("forecasts with a mixture: gains %s per row", gains.round(3).tolist())
        return mixture.is_clear(forecasts)

    @cached_property
    def _may_take_log(self) -> bool:
        config, rows = self.config, self.rows
        return config.output_warp == "auto" and rows.noise is None and bool((rows.Y > 0).all())

    def _candidates(self) -> list[TimeCandidate]:
        """From simple to complicated."""
        season = ("season",) if self.rolling.periods else ()
        with_time: list[tuple[str, ...]] = [
            *([("level", *season)] if self.rolling.periods else []),
            ("line", "level"),
            ("line", "trend", *season, "short"),
            ("curve", "trend", *season, "short"),
        ]
        if self.rows.X.shape[1] == 1:
            return [TimeCandidate(parts) for parts in with_time]
        return [
            TimeCandidate(("others",)),
            *(TimeCandidate((*parts, "others")) for parts in with_time),
        ]

    # The result

    def _widened(
        self, best: TimeCandidate, forecasts: Forecasts
    ) -> tuple[TimeCandidate, Forecasts]:
        """Widen slow parts as far as forecasts gain by it: the evidence knows best what happens one step ahead.

        Errors of the mean count, too: that of an output whose logarithm is wide is far above its median.
        """
        if not set(SLOW_PARTS) & set(best.parts):
            return best, forecasts
        for factor in WIDER:
            candidate = replace(best, wider=factor)
            wider = self.rolling.forecasts(candidate)
            if wider is None or wider.gains_over(forecasts).mean() <= 0.0:
                break
            best, forecasts = candidate, wider
        return best, forecasts

    def _final(self, best: TimeCandidate) -> tuple[Kernel, float]:
        """Learn on all rows, and return kernel and noise."""
        process = self.rolling.learned_on_all(best)
        return process.kernel, process.noise

    def _resolved(self, best: TimeCandidate, kernel: Kernel, noise: float) -> FitConfig:
        return replace(
            self.config,
            kernel=kernel,
            mean="zero",
            mean_is_open=False,
            noise_variance=noise,
            optimizer=None,
            leaf_sizes=[len(self.rows)],
            sum_children=1,
            input_warp=self.rolling.coordinates,
            metric="diagonal",
            output_warp="log" if best.log else None,
            hypotheses=None,
        )

    def _notes(self, best: TimeCandidate, gain: float, coverage: float) -> tuple[str, ...]:
        name = self.schema.input_names[self.rolling.time]
        seasons = ", ".join(self._period_text(period) for period in self.rolling.periods)
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
            f"rolling origin  {len(self.rolling.folds)} forecasts of later training rows from earlier ones: gain {gain:.3g} nats per row over "
            f"{PLAIN_KERNEL} without trend and season, 90% intervals held {coverage:.0%}",
        )

    def _period_text(self, period: float) -> str:
        if self.rolling.time in self.schema.columns.date_inputs:
            for name, days in CALENDAR.items():
                if period == days:
                    return name
            return f"{format_position(round(period, 3))} days"
        return format_position(float(f"{period:.4g}"))
