"""Plots of the predictive distribution: over the only input, or over one of several (partial dependence)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.validation import input_number
from dsmgp.data.columns.schema import Column, level_name
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.predictive.distribution import Mixture
from dsmgp.mixture.predictive.joined import join
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution
from dsmgp.plots.style import (
    BAND,
    MODEL,
    OBSERVED,
    THIN,
    add_legend,
    axes_or_new,
    density_colours,
    show_dates,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsmgp.regressor import DSMGPRegressor

__all__ = ["plot_dependence", "plot_predictive"]

# Rows over whose other inputs a partial dependence is averaged.
MAX_BACKGROUND_ROWS = 100
# Mixture components of an averaged distribution that are drawn, the heaviest first.
MAX_COMPONENTS = 1000
# Halvings of the range of the rows' latent means: the mean of a warped output is right to a thousandth of it.
N_BISECTIONS = 12
# Levels of a category that are drawn, the most frequent.
MOST_LEVELS = 20
# A number with at most this many distinct values is drawn value by value: between them there is no data.
MOST_VALUES = 10
# A curve is drawn where some training value is at most this share of its range away.
NEAR = 0.05
# Training rows by which that is decided.
MAX_TRAINING_ROWS = 20_000


def plot_predictive(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    level: float = 0.9,
    n_points: int = 400,
    ax: Axes | None = None,
) -> Axes:
    """Plot the predictive distribution over one input: its density as shading, its mean and a central interval.

    Parameters
    ----------
    model : DSMGPRegressor
        Fitted to one input and one output.
    X, y : array-like
        Rows that set the range shown; with ``y`` they are drawn as points.
    level : float
        Probability of the interval.
    n_points : int
        Number of grid points along the input.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> ax = model.plot_predictive(X, n_points=50)
    >>> ax.get_ylabel()
    'y'
    """
    schema = model.state_.schema
    if schema.n_features != 1 or schema.n_outputs != 1:
        raise InputError(
            f"expected a model of one input and one output, got {schema.n_features} and {schema.n_outputs}; "
            "use plot_dependence"
        )
    x = schema.to_numbers(X)  # dates as days
    ax = axes_or_new(ax)
    margin = 0.03 * np.ptp(x)
    grid = np.linspace(x.min() - margin, x.max() + margin, n_points)
    distribution = model.state_.predictive.mixture(grid[:, None])
    bounds = () if y is None else (np.min(y), np.max(y))
    _draw_curve(ax, grid, distribution.mean, "mean", distribution, level, bounds)
    if y is not None:
        ax.plot(x[:, 0], np.asarray(y), ".", color=OBSERVED, markersize=3, alpha=0.5, label="rows")
    ax.set_xlabel(schema.input_names[0])
    ax.set_ylabel(schema.output_names[0])
    show_dates(ax, model, 0)
    add_legend(ax)
    return ax


def plot_dependence(
    model: DSMGPRegressor,
    X: ArrayLike,
    feature: int | str = 0,
    *,
    output: int = 0,
    level: float = 0.9,
    n_points: int = 60,
    ax: Axes | None = None,
) -> Axes:
    """Plot the partial dependence on one input: predictions with that input set, averaged over the rows of ``X``.

    The line is the average of the predictive means. The shading and the interval show the uncertainty of an
    observation: the average of the rows' predictive distributions, each shifted to the average mean, since
    the differences between rows in their other inputs are no uncertainty. The range is that of the training values of the input,
    without the lowest and highest percent, and where none of them is nearby nothing is drawn. Ticks mark the values in ``X``.
    A category is drawn level by level, a number with at most ten distinct training values value by value.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    X : array-like
        Rows whose other inputs are averaged over (a random sample of them if there are many).
    feature : int or str
        Number or name of the input, or name of a categorical column.
    output : int
        Which of several outputs.
    level : float
        Probability of the interval of a new observation.
    n_points : int
        Number of grid points along the input.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.random.default_rng(0).uniform(size=(60, 2))
    >>> model = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, X[:, 0])
    >>> model.plot_dependence(X, feature=1, n_points=10).get_xlabel()
    'x1'
    """
    schema = model.state_.schema
    rows, names = schema.to_numbers(X), schema.input_names  # dates as days
    ax = axes_or_new(ax)
    category = schema.columns.category(feature)
    if category is not None:
        column, inputs = category
        levels, values = _most_frequent(column, inputs, rows)
        distribution, means = _averaged(model, rows, inputs.tolist(), values, output)
        _draw_levels(ax, levels, means, distribution, level)
        ax.set_xlabel(str(feature))
    else:
        number = input_number(feature, len(names), names)
        values, training = rows[:, number], _training_values(model, number)
        distinct = np.unique(training)
        few = len(distinct) <= MOST_VALUES
        grid = distinct if few else _grid(training, n_points)
        distribution, means = _averaged(model, rows, [number], grid[:, None], output)
        if few:
            _draw_values(ax, grid, means, distribution, level)
        else:
            seen = _near(grid, training)
            _draw_curve(ax, grid, means, "average of the means", distribution, level, seen=seen)
        shown = values[(values >= grid[0]) & (values <= grid[-1])]
        base = np.full(len(shown), 0.01)
        below = ax.get_xaxis_transform()
        ax.plot(shown, base, "|", transform=below, color=OBSERVED, alpha=0.25, markersize=7)
        ax.set_xlabel(names[number])
        show_dates(ax, model, number)
    ax.set_ylabel(schema.output_names[output])
    add_legend(ax)
    return ax


def _training_values(model: DSMGPRegressor, number: int) -> Array:
    """Return the sorted training values of an input; of many rows, those of some."""
    X = model.state_.rows.X
    rows = np.linspace(0, len(X) - 1, min(len(X), MAX_TRAINING_ROWS)).astype(np.int64)
    return np.sort(X[rows, number])


def _grid(values: Array, n_points: int) -> Array:
    """Return points from the first to the last percentile of some values."""
    low, high = np.quantile(values, [0.01, 0.99])
    if not low < high:
        low, high = values.min() - 0.5, values.max() + 0.5
    return np.linspace(low, high, n_points)


def _near(grid: Array, training: Array) -> NDArray[np.bool_]:
    """Return which points of a grid have a training value nearby; all of them if none has."""
    after = np.searchsorted(training, grid)
    neighbours = training[np.stack([after - 1, after]).clip(0, len(training) - 1)]
    near = np.abs(neighbours - grid).min(axis=0) <= NEAR * (grid[-1] - grid[0])
    return near if near.any() else np.ones(len(grid), dtype=bool)


def _most_frequent(column: Column, inputs: Index, rows: Array) -> tuple[list[str], Array]:
    """Return the most frequent levels of a category among some rows, in the order of the category, and their inputs."""
    table = column.level_inputs[:-1]
    if len(table) <= MOST_LEVELS:
        return [level_name(level) for level in column.levels], table
    # Rows of the training data have effects without their own fold: the nearest level counts.
    order = np.argsort(table[:, 0])
    nearest = order[np.searchsorted(table[order, 0], rows[:, inputs[0]]).clip(max=len(table) - 1)]
    counts = np.bincount(nearest, minlength=len(table))
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_LEVELS])
    return [level_name(column.levels[k]) for k in kept.tolist()], table[kept]


def _draw_curve(
    ax: Axes,
    grid: Array,
    means: Array,
    label: str,
    distribution: PredictiveDistribution,
    level: float,
    bounds: tuple[float, ...] = (),
    seen: NDArray[np.bool_] | None = None,
) -> None:
    """Draw density, mean and interval over the part of a grid that is ``seen``; the y-axis holds the interval and ``bounds``."""
    seen = np.ones(len(grid), dtype=bool) if seen is None else seen
    low, high = (end.reshape(-1)[seen] for end in distribution.interval(level))
    bottom, top = min(np.min(low), *bounds, np.inf), max(np.max(high), *bounds, -np.inf)
    pad = 0.08 * (top - bottom)
    heights = np.linspace(float(bottom - pad), float(top + pad), 300)
    density = np.stack([distribution.pdf(height).reshape(-1) for height in heights])
    density /= density.max(axis=0)  # by column, or sharp peaks would drown the rest
    ax.imshow(
        np.where(seen, density, 0.0),
        extent=(grid[0], grid[-1], heights[0], heights[-1]),
        origin="lower",
        aspect="auto",
        cmap=density_colours(),
        vmin=0.0,
        vmax=1.4,
        interpolation="bilinear",
    )
    low, means, high = (_with_gaps(values, seen) for values in (low, means[seen], high))
    dashed: dict[str, Any] = {"color": MODEL, "linewidth": THIN, "linestyle": "--"}
    ax.plot(grid, means, color=MODEL, label=label)
    ax.plot(grid, low, label=f"{level:.0%} interval", **dashed)
    ax.plot(grid, high, **dashed)
    ax.set_xlim(grid[0], grid[-1])


def _with_gaps(values: Array, seen: NDArray[np.bool_]) -> Array:
    """Return the values of the points that are seen, nan at the others, where a line is then interrupted."""
    table = np.full(len(seen), np.nan)
    table[seen] = values
    return table


def _draw_values(
    ax: Axes, positions: Array, means: Array, distribution: PredictiveDistribution, level: float
) -> None:
    """Draw mean and interval at each position."""
    low, high = (end.reshape(-1) for end in distribution.interval(level))
    ax.vlines(positions, low, high, color=BAND, linewidth=2.4, label=f"{level:.0%} interval")
    ax.plot(positions, means, "o", color=MODEL, label="average of the means")


def _draw_levels(
    ax: Axes, levels: list[str], means: Array, distribution: PredictiveDistribution, level: float
) -> None:
    """Draw mean and interval of every level of a categorical column."""
    positions = np.arange(len(levels), dtype=np.float64)
    _draw_values(ax, positions, means, distribution, level)
    ax.set_xticks(positions, levels, rotation=90 if sum(map(len, levels)) > 40 else 0)
    ax.set_xlim(-0.5, len(levels) - 0.5)


def _averaged(
    model: DSMGPRegressor, rows: Array, inputs: list[int], values: Array, output: int
) -> tuple[PredictiveDistribution, Array]:
    """Average the predictive distributions of rows whose ``inputs`` are set, to each line of ``values`` in turn.

    Returns
    -------
    distribution : Mixture
        For each line of ``values`` the mixture of the rows' distributions, each shifted to their average mean. Where the
        output is warped they are shifted before the warp, so that they keep its bounds, to where the mean after it is the
        average mean.
    means : ndarray of shape (n_values,)
        These average means.
    """
    if len(rows) > MAX_BACKGROUND_ROWS:
        chosen = np.random.default_rng(0).choice(len(rows), MAX_BACKGROUND_ROWS, replace=False)
        rows = rows[np.sort(chosen)]
    n_values = len(values)
    set_rows = np.repeat(rows[None], n_values, axis=0)  # (n_values, n_rows, n_inputs)
    set_rows[:, :, inputs] = values[:, None, :]
    each = model.state_.predictive.mixture(set_rows.reshape(-1, rows.shape[1])).marginal(output)
    mixed = [(share, _shifted(part, n_values)) for share, part in each.parts]
    averaged = join([part for _, part in mixed], [share for share, _ in mixed])
    return averaged, _row_means(each, n_values).mean(axis=1)


def _shifted(each: Mixture, n_values: int) -> Mixture:
    """Mix the distributions of rows, ``n_values`` groups of them one after the other, each shifted to the average mean of its group."""
    latent = each.latent
    row_means = _row_means(latent, n_values)
    n_rows = row_means.shape[1]
    weights = each.weights.reshape(n_values, -1) / n_rows
    deviations = (latent.component_means[:, :, 0] - row_means.reshape(-1, 1)).reshape(n_values, -1)
    variances = latent.component_variances[:, :, 0].reshape(n_values, -1)
    # Components of negligible weight cost as much as the others.
    n_kept = min(MAX_COMPONENTS, weights.shape[1])
    heaviest = np.argpartition(-weights, n_kept - 1, axis=1)[:, :n_kept]
    weights, deviations, variances = (
        np.take_along_axis(table, heaviest, axis=1) for table in (weights, deviations, variances)
    )
    weights /= weights.sum(axis=1, keepdims=True)
    units = OutputScaling(np.zeros(1), np.eye(1), each.warps)

    def around(centres: Array) -> Mixture:
        means = centres[:, None] + deviations
        return Mixture(weights, means[:, :, None], variances[:, :, None], units)

    if not each.warps:
        return around(row_means.mean(axis=1))
    # The latent centre at which the mean after the warp is the average mean: it grows with the centre.
    target = _row_means(each, n_values).mean(axis=1)
    low, high = row_means.min(axis=1), row_means.max(axis=1)
    for _ in range(N_BISECTIONS):
        middle = 0.5 * (low + high)
        below = around(middle).mean < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return around(0.5 * (low + high))


def _row_means(distribution: PredictiveDistribution, n_values: int) -> Array:
    """Return the means of the rows of each of ``n_values`` groups, (n_values, n_rows)."""
    means = (distribution.weights * distribution.component_means[:, :, 0]).sum(axis=1)
    return np.asarray(means.reshape(n_values, -1))
