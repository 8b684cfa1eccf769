"""Total effects: how much of the variation of the predictive mean each column of the user's table accounts for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.mixture.fitted_model import Predictive

__all__ = ["total_effect_shares"]

# Training rows that the effects are estimated on.
MOST_ROWS = 500
# Numbers in the rows that are predicted at once.
AT_ONCE = 2**22


def total_effect_shares(model: Predictive, X: Array, groups: Sequence[tuple[str, Index]]) -> Array:
    """Return the share of each column in the sum of all total effects, (n_columns,), averaged over outputs.

    The total effect of a column is half the mean square change of the predictive mean when only that column is exchanged
    with the one of another row (Jansen 1999). It includes interactions with other columns, and is zero for a column that
    predictions ignore. If the mean is the same everywhere, all shares are equal.

    Parameters
    ----------
    model : Predictive
    X : ndarray of shape (n, n_inputs)
        Training rows, of which a sample is used.
    groups : sequence of (str, ndarray of int)
        Columns, and the inputs that each of them became.
    """
    rng = np.random.default_rng(0)
    n = min(len(X), MOST_ROWS)
    rows = X[rng.choice(len(X), n, replace=False)]
    # The rows are in random order: those before them are a random partner for each, and no row is its own.
    others = np.roll(rows, 1, axis=0)
    mean = model.mean(rows)
    effects = np.empty((len(groups), mean.shape[1]))
    step = max(1, AT_ONCE // rows.size)
    for first in range(0, len(groups), step):
        some = groups[first : first + step]
        exchanged = np.tile(rows, (len(some), 1, 1))
        for table, (_, inputs) in zip(exchanged, some, strict=True):
            table[:, inputs] = others[:, inputs]
        # Many columns in one call: leaves whose rows are on disk are conditioned again for each.
        predicted = model.mean(exchanged.reshape(-1, rows.shape[1])).reshape(len(some), *mean.shape)
        effects[first : first + step] = 0.5 * np.square(predicted - mean).mean(axis=1)
    total = effects.sum(axis=0)
    shares = np.where(total > 0, effects / np.where(total > 0, total, 1.0), 1.0 / len(groups))
    return np.asarray(shares.mean(axis=1))
