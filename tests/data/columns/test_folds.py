"""Folds by content: the same for any order of the rows, balanced over levels, and equal rows together."""

import numpy as np
import pandas as pd
import pytest

from dsmgp.data.columns.folds import N_FOLDS, dealt_folds, equal_inputs, levels_by_content
from dsmgp.data.columns.learning import encode_table


@pytest.fixture
def rows(rng):
    X = rng.integers(0, 200, (120, 2)).astype(float)
    levels = rng.integers(0, 12, 120)
    return np.column_stack([levels, X]), rng.normal(size=120).round(1), levels


def test_folds_do_not_depend_on_the_order_of_the_rows(rows, rng):
    X, y, levels = rows
    fold, order = dealt_folds(X, y, levels=levels), rng.permutation(120)
    again = dealt_folds(X[order], y[order], levels=levels[order])
    np.testing.assert_array_equal(again, fold[order])


def test_levels_are_divided_evenly_over_folds(rows):
    X, y, levels = rows
    fold = dealt_folds(X, y, levels=levels)
    for level in range(12):
        n = (levels == level).sum()
        counts = np.bincount(fold[levels == level], minlength=N_FOLDS)
        assert counts.max() <= n // N_FOLDS + 2  # hands go over from one level to the next
    assert np.ptp(np.bincount(fold)) <= 1


@pytest.mark.parametrize("n_equal", [8, 60])
def test_a_few_equal_rows_share_a_fold_and_many_are_divided(rows, n_equal):
    X, y, levels = rows
    X[:n_equal:2], levels[:n_equal:2] = X[1 : n_equal + 1 : 2], levels[1 : n_equal + 1 : 2]
    fold = dealt_folds(X, y, levels=levels)
    assert (fold[:n_equal:2] == fold[1 : n_equal + 1 : 2]).all() == (n_equal == 8)


def test_equal_inputs_have_equal_numbers(rng):
    X = rng.integers(0, 3, (50, 3))
    labels = equal_inputs(list(X.T))
    same = (X[:, None] == X).all(axis=2)
    np.testing.assert_array_equal(labels[:, None] == labels, same)


def test_levels_by_content_do_not_depend_on_names(rng):
    codes, y, names = rng.integers(0, 6, 90), rng.normal(size=90), rng.permutation(6)
    place = levels_by_content(codes, y, 6)
    np.testing.assert_array_equal(levels_by_content(names[codes], y, 6)[names], place)


def test_encoded_rows_depend_on_no_order_and_no_names(rng):
    """Rows, columns and names of levels in another order give the same effects, and the same folds."""
    n = 150
    frame = pd.DataFrame(
        {
            "b": [f"{k:02}" for k in rng.integers(0, 12, n)],
            "a": [f"{k:03}" for k in rng.integers(0, 70, n)],
            "x": rng.normal(size=n),
            "c": rng.choice(["u", "v", "w"], n),
        }
    )
    frame["y"] = frame["b"].astype(float) + frame["a"].astype(float) / 20 + rng.normal(size=n)
    before = encode_table(frame, ["y"])
    order = rng.permutation(n)
    other = frame.iloc[order, ::-1].assign(a=frame["a"].str[::-1], b=frame["b"].str[::-1])
    after = encode_table(other, ["y"])
    np.testing.assert_array_equal(after.effects.folds, before.effects.folds[order])
    for name in ("b effect", "a effect"):
        old, new = (each.X[:, each.schema.input_names.index(name)] for each in (before, after))
        np.testing.assert_allclose(new, old[order], rtol=1e-9, atol=1e-12)
