"""What a report says of how a model is made: in words, and where it cuts the inputs or finds that the function changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp import plots
from dsmgp.breaking import BreakingModel
from dsmgp.page import escaped, pair, picture, table
from dsmgp.regressor import DSMGPRegressor
from dsmgp.splits import ChangePoint, Splits
from dsmgp.timeline import place_text
from dsmgp.tree import leaves

__all__ = ["MAX_DRAWN", "cuts_or_changes", "told"]

#: Inputs that are drawn.
MAX_DRAWN = 6
# Probability that a change in the table has at least, and most of them.
LIKELY, MAX_CHANGES = 0.5, 50


def told(model: DSMGPRegressor, names: Sequence[str]) -> str:
    """The model in words."""
    fitted = model._settled().model
    kernels = escaped(", ".join(dict.fromkeys(family.kernel for family in fitted.families)))
    if isinstance(fitted, BreakingModel):
        return (
            f"<p>Rows are put in order of {escaped(names[fitted.dimension])}. In the gap between two rows the function may "
            f"change; from one change to the next a Gaussian process ({kernels}) learns it. A prediction averages over all ways "
            "to place the changes, each weighed by its posterior probability.</p>"
        )
    sizes = np.array([leaf.n_rows for leaf in leaves(fitted.tree)])
    weighed = {
        "gated": "by how sure each leaf is at a row, as fitted by leave-one-out",
        "posterior": "by the posterior probability of their partition",
        "uniform": "equally",
    }[fitted.weights]
    return (
        f"<p>The inputs are cut in several ways into {len(sizes):,} regions of {sizes.min():,} to "
        f"{sizes.max():,} rows. In each region a Gaussian process ({kernels}) learns the "
        f"function. A prediction is a mixture of those whose region holds the row, weighed {weighed}. "
        f"On training rows left out one at a time its negative log predictive density is "
        f"{model.loo_score_:.4g}; at inputs it has not seen, {model.loo_score_new_inputs_:.4g}.</p>"
    )


def cuts_or_changes(
    model: DSMGPRegressor, names: Sequence[str], X: ArrayLike, y: ArrayLike
) -> tuple[str, Callable[[], str]]:
    """A heading, and what stands below it; ``X`` and ``y`` are the rows that the model is judged on."""
    if isinstance(model._model, BreakingModel):
        return "Where the function changes", partial(_changes, model, names, X, y)
    return "Where the model cuts", partial(_cuts, model, names)


def _changes(model: DSMGPRegressor, names: Sequence[str], X: ArrayLike, y: ArrayLike) -> str:
    fitted = model._settled().model
    assert isinstance(fitted, BreakingModel)
    along = names[fitted.dimension]
    likely = model.changepoints(LIKELY)
    splits = model.split_posterior(fitted.dimension)
    most = sorted(likely, key=lambda change: -change.probability)[:MAX_CHANGES]
    left_out = f", of which the {len(most)} most probable are listed" * (len(most) < len(likely))
    text = (
        f"<p>{splits.expected:.3g} changes are expected along {escaped(along)}; {len(likely):,} of them can be placed with a probability "
        f"of {LIKELY:.0%} or more{left_out}{':' if most else '.'}</p>"
    )
    if most:
        heads = [along, "probability", "from", "to", "between these"]
        in_order = sorted(most, key=lambda change: change.position)
        text += table(heads, [_line(change, splits) for change in in_order])
    if fitted.outlier_probability is not None:
        text += f"<p>{_outliers(fitted.outlier_probability)}</p>"
    pictures = [
        picture(
            partial(plots.plot_changepoints, model, LIKELY),
            f"Changes along {along}",
            "Probability of a change in the gap between two rows. Lines mark changes that can be placed; shading, where they lie.",
        )
    ]
    if len(names) == 1 and model._squeeze:
        pictures.append(
            picture(
                partial(plots.plot_predictive, model, X, y),
                "The function",
                "Mean, density and 90% interval of an observation, and the rows.",
            )
        )
    return text + pair(pictures)


def _outliers(probability: NDArray[np.float64]) -> str:
    rows = np.flatnonzero(probability > LIKELY)
    if not len(rows):
        return "No training row is taken for an outlier."
    listed = ", ".join(str(row + 1) for row in rows[:MAX_CHANGES])
    more = f" and {len(rows) - MAX_CHANGES:,} more" if len(rows) > MAX_CHANGES else ""
    return f"Taken for outliers, of the training rows: {listed}{more}."


def _line(change: ChangePoint, splits: Splits) -> list[str]:
    where, low, high = map(place_text, change[:3])
    inside = splits.within(change.low, change.high)
    return [where, f"{change.probability:.2f}", low, high, f"{inside:.2f}"]


def _cuts(model: DSMGPRegressor, names: Sequence[str]) -> str:
    found = [(float(model.split_posterior(k).probability.sum()), k) for k in range(len(names))]
    cut = [k for weight, k in sorted(found, reverse=True) if weight > 1e-3][:MAX_DRAWN]
    text = (
        "<p>Cuts are where the model may change its mind about the function. Their posterior probability says "
        "which of them the data support: a sharp peak is a likely break.</p>"
        if cut
        else "<p>The posterior prefers partitions without cuts: the data show no break.</p>"
    )
    pictures = [
        picture(
            partial(plots.plot_splits, model, k),
            f"Cuts along {names[k]}",
            "Expected number of cuts, by position.",
        )
        for k in cut
    ]
    pictures.append(
        picture(
            partial(plots.plot_tree, model),
            "The tree",
            "Sums choose between partitions, products cut, leaves hold the Gaussian processes.",
        )
    )
    return text + pair(pictures)
