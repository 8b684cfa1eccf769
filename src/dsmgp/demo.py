"""``make demo``: fit a deep structured mixture to a curve with jumps, compare it with an exact GP, and plot it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression

from dsmgp import DSMGPRegressor
from dsmgp._util.arrays import Array
from dsmgp.plots.style import OBSERVED, SERIES, THIN, add_legend, styled

__all__ = ["main"]

BREAKS = (-1.0, 0.9)
NOISE = 0.12
FIGURE = Path("out/demo.png")


def breaking_function(x: Array) -> Array:
    """Return a smooth curve with two jumps."""
    jumps = 1.3 * (x >= BREAKS[0]) - 1.6 * (x >= BREAKS[1])
    return np.asarray(0.7 * np.sin(2.2 * x) + jumps)


def draw_rows(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw noisy observations of the curve."""
    x = rng.uniform(-3, 3, size=n)
    return x[:, None], breaking_function(x) + NOISE * rng.normal(size=n)


def main(print_line: Callable[[str], None] = print) -> dict[str, Any]:
    """Fit the mixture, an exact GP and a linear model, and write the figure.

    Returns
    -------
    dict
        ``scores`` by model, and the path of the ``figure``.
    """
    rng = np.random.default_rng(0)
    X, y = draw_rows(500, rng)
    X_test, y_test = draw_rows(2000, rng)
    print_line(
        f"{len(y)} rows of a curve with jumps at {BREAKS[0]} and {BREAKS[1]}, noise {NOISE}\n"
    )

    # Every sum node chooses among 16 splits; two layers of them allow up to three jumps. The length scale is
    # learned on the whole mixture: on one partition alone it would have to explain the jumps.
    mixture = DSMGPRegressor(
        structure="paper",
        leaf_size=50,
        sum_children=16,
        product_children=2,
        depth=2,
        kernel="rbf",
        objective="full",
        weights="posterior",
        random_state=0,
    )
    exact = GaussianProcessRegressor(
        ConstantKernel() * RBF() + WhiteKernel(0.1), normalize_y=True, alpha=0.0
    )
    models = {
        "DSMGP": mixture,
        "exact GP (scikit-learn)": exact,
        "linear model": LinearRegression(),
    }
    print_line(f"{'':<24}{'MAE':>8}{'RMSE':>8}{'NLPD':>8}{'seconds':>9}")
    scores = {}
    for name, model in models.items():
        scores[name] = values = fit_and_score(model, X, y, X_test, y_test)
        numbers = "".join(f"{values[key]:>8.4f}" for key in ("mae", "rmse", "nlpd"))
        print_line(f"{name:<24}{numbers}{values['seconds']:>9.1f}")
    print_line(f"\nSmaller is better; scores are of {len(y_test)} test rows.\n")
    print_line(mixture.summary())
    draw(mixture, exact, X, y)
    print_line(f"\nThe predictive distribution and the posterior over splits: {FIGURE.resolve()}")
    return {"scores": scores, "figure": str(FIGURE.resolve())}


def fit_and_score(model: Any, X: Array, y: Array, X_test: Array, y_test: Array) -> dict[str, float]:
    """Fit a model; return its scores on test rows, and the seconds that this took."""
    start = time.perf_counter()
    model.fit(X, y)
    if isinstance(model, LinearRegression):
        mean, std = model.predict(X_test), (y - model.predict(X)).std(ddof=2)
        log_density = norm.logpdf(y_test, mean, std)
    elif isinstance(model, DSMGPRegressor):
        distribution = model.predict_dist(X_test)
        mean, log_density = distribution.mean, distribution.logpdf(y_test)
    else:
        mean, std = model.predict(X_test, return_std=True)
        log_density = norm.logpdf(y_test, mean, std)
    seconds = time.perf_counter() - start
    error = y_test - mean
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "nlpd": float(-log_density.mean()),
        "seconds": seconds,
    }


def draw(model: DSMGPRegressor, exact: GaussianProcessRegressor, X: Array, y: Array) -> None:
    """Write the figure: the predictive distribution above, the posterior over splits below."""
    matplotlib.use("Agg")  # a file, not a window
    from matplotlib import pyplot as plt

    with styled():
        figure, (above, below) = plt.subplots(
            2, 1, figsize=(8, 5.6), sharex=True, height_ratios=[3, 1], layout="constrained"
        )
    model.plot_predictive(X, y, ax=above)
    low, high = above.get_xlim()
    grid = np.linspace(low, high, 600)
    mean = exact.predict(grid[:, None])
    above.plot(grid, mean, color=SERIES[4], linewidth=THIN, label="mean of an exact GP")
    add_legend(above)
    above.set_xlabel("")
    above.set_title(
        "A deep structured mixture of GPs: predictive density of a curve with jumps", pad=26
    )
    model.plot_splits(ax=below)
    for k, position in enumerate(BREAKS):
        label = None if k else "jumps of the curve"
        below.axvline(position, color=OBSERVED, linewidth=THIN, linestyle=":", label=label)
    add_legend(below)
    below.set_xlabel("x")
    below.set_ylabel("expected splits\n(posterior)")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
