"""``make demo``: fit a deep structured mixture to data with breaks, score it, and draw what it learned."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression

from dsmgp import DSMGPRegressor

__all__ = ["main"]

Array = NDArray[np.float64]
BREAKS = (-1.0, 0.9)
NOISE = 0.12
FIGURE = Path("out/demo.png")


def breaking_function(x: Array) -> Array:
    """A smooth curve that jumps twice."""
    jumps = 1.3 * (x >= BREAKS[0]) - 1.6 * (x >= BREAKS[1])
    return np.asarray(0.7 * np.sin(2.2 * x) + jumps)


def rows(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-3, 3, size=n)
    return x[:, None], breaking_function(x) + NOISE * rng.normal(size=n)


def main(tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Fit, score beside an exact GP and a linear model, and write the figure; scores by model, and where the figure is."""
    rng = np.random.default_rng(0)
    X, y = rows(500, rng)
    X_test, y_test = rows(2000, rng)
    tell(f"{len(y)} rows of a curve that jumps at {BREAKS[0]} and {BREAKS[1]}, noise {NOISE}\n")

    # Every sum node weighs 16 places to cut; two layers of them, so up to three breaks. The length-scale
    # is learned together with the cuts: on one partition alone it would have to explain the jumps.
    model = DSMGPRegressor(
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
    linear = LinearRegression()

    def mixture_scores() -> tuple[Array, Array]:
        law = model.predict_dist(X_test)
        return law.mean, law.logpdf(y_test)

    def exact_scores() -> tuple[Array, Array]:
        mean, std = exact.predict(X_test, return_std=True)
        return mean, norm.logpdf(y_test, mean, std)

    def linear_scores() -> tuple[Array, Array]:
        residual = y - linear.predict(X)
        mean = linear.predict(X_test)
        return mean, norm.logpdf(y_test, mean, residual.std(ddof=2))

    tell(f"{'':<24}{'MAE':>8}{'RMSE':>8}{'NLPD':>8}{'seconds':>9}")
    contenders: list[tuple[str, Callable[..., object], Callable[[], tuple[Array, Array]]]] = [
        ("DSMGP", model.fit, mixture_scores),
        ("exact GP (scikit-learn)", exact.fit, exact_scores),
        ("linear model", linear.fit, linear_scores),
    ]
    scores = {}
    for name, fit, score in contenders:
        start = time.perf_counter()
        fit(X, y)
        mean, log_density = score()
        seconds = time.perf_counter() - start
        error = y_test - mean
        found = {
            "mae": float(np.abs(error).mean()),
            "rmse": float(np.sqrt((error**2).mean())),
            "nlpd": float(-log_density.mean()),
            "seconds": seconds,
        }
        tell(
            f"{name:<24}{found['mae']:>8.4f}{found['rmse']:>8.4f}{found['nlpd']:>8.4f}{seconds:>9.1f}"
        )
        scores[name] = found
    tell(f"\nSmaller is better; scores are of {len(y_test)} rows not seen in the fit.\n")
    tell(model.summary())
    draw(model, exact, X, y)
    tell(f"\nThe predictive distribution and the posterior over splits: {FIGURE.resolve()}")
    return {"scores": scores, "figure": str(FIGURE.resolve())}


def draw(model: DSMGPRegressor, exact: GaussianProcessRegressor, X: Array, y: Array) -> None:
    """The figure: predictive law above, posterior over the positions of splits below."""
    matplotlib.use("Agg")  # a file, not a window
    from matplotlib import pyplot as plt

    from dsmgp.plots import plot_predictive, plot_splits

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 6.4), sharex=True, height_ratios=[3, 1], layout="constrained"
    )
    plot_predictive(model, X, y, ax=above)
    low, high = above.get_xlim()
    grid = np.linspace(low, high, 600)
    above.plot(
        grid, exact.predict(grid[:, None]), color="#d94801", linewidth=1.0, label="exact GP's mean"
    )
    above.legend(loc="upper right", framealpha=0.9)
    above.set_title("A deep structured mixture of GPs: predictive density of a curve that breaks")
    plot_splits(model, ax=below)
    for k, position in enumerate(BREAKS):
        below.axvline(
            position, color="0.3", linestyle=":", label=None if k else "where the curve jumps"
        )
    below.legend(loc="upper right", framealpha=0.9)
    below.set_xlabel("x")
    below.set_title("posterior over splits", fontsize="medium")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
