"""Effects of levels: shrunken means in closed form, additive models by a direct solution, and nothing of a row's own output."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dsmgp import DSMGPRegressor
from dsmgp.data.columns import effects
from dsmgp.data.columns.effects import N_BINS, bins_of, normal_scores
from dsmgp.data.columns.learning import encode_table


def fold_of_rows(n):
    return np.arange(n) % 5


def level_effects(wanted, others, scores):
    """The effects, and of_rows: those of each row without its fold."""
    fold = fold_of_rows(len(scores))
    found = effects.level_effects(wanted, others, scores, fold)
    of_rows = [table[fold, codes] for table, codes in zip(found.by_fold, wanted, strict=True)]
    return SimpleNamespace(effects=found.effects, of_rows=of_rows)


@pytest.fixture
def grouped(rng):
    """Levels of very different sizes, with effects of their own."""
    codes = rng.choice(12, 300, p=np.arange(1, 13) / 78)
    codes[:12] = np.arange(12)
    return codes, rng.normal(size=12)[codes] + 0.7 * rng.normal(size=300)


def shrunken_means(codes, y, n_levels):
    """Random effects by the moments of a one-way analysis of variance."""
    groups = [y[codes == k] for k in range(n_levels)]
    present = [group for group in groups if len(group)]
    n, sizes = len(y), np.array([len(group) for group in present])
    within = sum(((g - g.mean()) ** 2).sum() for g in present) / (n - len(present))
    between = sum(len(g) * (g.mean() - y.mean()) ** 2 for g in present) / (len(present) - 1)
    variance = (between - within) / ((n - (sizes**2).sum() / n) / (len(present) - 1))
    assert variance > 1e-3 * within  # else other rules hold
    return np.array(
        [
            len(g) / (len(g) + within / variance) * (g.mean() - y.mean()) if len(g) else 0.0
            for g in groups
        ]
    )


def test_effects_of_one_category_are_shrunken_means(grouped):
    codes, y = grouped
    found = level_effects([codes], [], y[:, None])
    np.testing.assert_allclose(found.effects[0][:, 0], shrunken_means(codes, y, 12), rtol=1e-10)


def test_effects_of_training_rows_are_those_of_the_other_folds(grouped):
    codes, y = grouped
    found = level_effects([codes], [], y[:, None])
    fold = fold_of_rows(len(y))
    for part in np.unique(fold):
        inside = fold == part
        expected = shrunken_means(codes[~inside], y[~inside], 12)
        np.testing.assert_allclose(found.of_rows[0][inside, 0], expected[codes[inside]], rtol=1e-10)


@pytest.mark.parametrize("n_others", [0, 2])
def test_the_output_of_a_row_does_not_enter_its_own_effect(grouped, rng, n_others):
    codes, y = grouped
    # Columns that depend on one another: the sweeps of backfitting have not ended when they stop.
    others = [(codes + rng.integers(0, 3, 300)) % 12 for _ in range(n_others)]
    second = rng.integers(0, 20, 300)
    before = level_effects([codes, second], others, y[:, None])
    for row in (0, 7, 299):
        changed = y.copy()
        inside = fold_of_rows(300) == fold_of_rows(300)[row]
        changed[inside] += 100.0 * rng.normal(size=inside.sum())
        after = level_effects([codes, second], others, changed[:, None])
        for k in range(2):
            np.testing.assert_array_equal(after.of_rows[k][row], before.of_rows[k][row])
            assert np.abs(after.effects[k] - before.effects[k]).max() > 0.1


def test_other_columns_are_not_counted_twice(rng):
    """A level that comes with high values of a number does not get the effect of the number."""
    x = rng.integers(0, 4, 2000)
    codes = (3 * x + rng.integers(0, 6, 2000)) % 12
    truth = np.linspace(-1, 1, 12)
    y = truth[codes] + 2.0 * x + 0.1 * rng.normal(size=2000)
    alone = level_effects([codes], [], y[:, None]).effects[0][:, 0]
    together = level_effects([codes], [x], y[:, None]).effects[0][:, 0]
    # The direct solution: least squares on indicators of both.
    design = np.column_stack([np.eye(12)[codes], np.eye(4)[x]])
    direct = np.linalg.lstsq(design, y, rcond=None)[0][:12]
    error = np.abs((together - together.mean()) - (direct - direct.mean())).max()
    assert error < 0.15 * np.abs((alone - alone.mean()) - (direct - direct.mean())).max()


def test_levels_that_say_nothing_have_no_effect(rng):
    y = rng.normal(size=40)
    found = level_effects([np.arange(40)], [], y[:, None])  # each row its own
    assert not found.effects[0].any()
    assert not found.of_rows[0].any()
    noise = level_effects([np.arange(4000) % 20], [], rng.normal(size=(4000, 1)))
    assert np.abs(noise.effects[0]).max() < 0.1


def test_rows_that_do_not_differ_within_levels_give_finite_effects():
    """Also for a level that is in one fold only, without which the others have exactly no variance within."""
    codes = np.arange(20) % 2
    codes[[0, 10]] = 2  # of one fold
    codes[1] = 0
    scores = np.array([1.0, -1.0, 0.5])[codes][:, None]
    found = level_effects([codes], [], scores)
    assert np.isfinite(found.of_rows[0]).all()
    np.testing.assert_array_equal(found.of_rows[0][[0, 10]], 0.0)
    np.testing.assert_allclose(found.effects[0][:2, 0], [1.0, -1.0], atol=0.1)


def test_each_output_has_effects_of_its_own(grouped):
    codes, y = grouped
    both = level_effects([codes], [], np.column_stack([y, -3 * y]))
    np.testing.assert_allclose(both.effects[0][:, 1], -3 * both.effects[0][:, 0], rtol=1e-9)
    single = level_effects([codes], [], y[:, None])
    np.testing.assert_array_equal(both.of_rows[0][:, :1], single.of_rows[0])


def test_normal_scores_are_those_of_ranks(rng):
    y = np.round(rng.normal(size=(50, 2)), 1)  # with ties
    expected = stats.norm.ppf((stats.rankdata(y, axis=0) - 0.5) / 50)
    np.testing.assert_allclose(normal_scores(y), expected, atol=1e-12)


def test_bins_hold_equal_shares_and_missing_numbers_have_their_own(rng):
    x = rng.normal(size=1600)
    bins = bins_of(x)
    np.testing.assert_array_equal(np.bincount(bins), np.full(N_BINS, 100))
    x[::2] = np.nan
    assert set(bins_of(x)[::2]) == {bins_of(x).max()}


def test_whole_weights_are_repetition(grouped, rng):
    codes, y = grouped
    x, weights = rng.normal(size=300), rng.integers(1, 4, size=300)
    x[::9] = np.nan
    y = np.round(y, 1)  # with ties
    rows = np.repeat(np.arange(300), weights)
    weights = weights.astype(float)
    scores, bins = normal_scores(y[:, None], weights), bins_of(x, weights)
    np.testing.assert_allclose(scores[rows], normal_scores(y[rows, None]), atol=1e-12)
    np.testing.assert_array_equal(bins[rows], bins_of(x[rows]))
    fold = fold_of_rows(300)
    found, expected = (
        effects.level_effects([codes[r]], [bins[r]], scores[r], fold[r], None, 2, w)
        for r, w in ((slice(None), weights), (rows, None))
    )
    for name in ("effects", "by_fold", "by_pair"):
        np.testing.assert_allclose(
            *(getattr(each, name)[0] for each in (found, expected)), atol=1e-10
        )


def test_small_weights_count_relative_to_each_other(grouped, rng):
    codes, y = grouped
    weights, x = rng.uniform(0.1, 0.9, size=300), rng.normal(size=300)
    full, small = (
        effects.level_effects([codes], [bins_of(x, w)], y[:, None], fold_of_rows(300), weights=w)
        for w in (weights, weights / weights.sum())
    )
    assert np.abs(full.effects[0]).max() > 0.5
    np.testing.assert_allclose(small.effects[0], full.effects[0], rtol=1e-8)
    plain = effects.level_effects([codes], [bins_of(x)], y[:, None], fold_of_rows(300))
    assert np.abs(full.effects[0] - plain.effects[0]).max() > 1e-3


def test_the_number_of_levels_decides_on_indicators_and_effects(rng):
    n = 400

    def inputs(n_levels):
        codes = np.append(np.arange(n_levels), rng.integers(0, n_levels, n - n_levels))
        table = pd.DataFrame({"c": [f"l{k:02}" for k in codes], "y": rng.normal(size=n)})
        return encode_table(table, ["y"]).schema.input_names

    assert inputs(8) == [f"c=l{k:02}" for k in range(8)]
    assert inputs(64) == [*(f"c=l{k:02}" for k in range(64)), "c effect"]
    assert inputs(65) == ["c effect"]


def test_a_category_of_many_levels_is_learned(rng):
    """Predictions of rows that were not in training follow their level; a mean of all levels would not."""
    codes = rng.integers(0, 70, 900)
    truth = rng.normal(size=70)
    frame = pd.DataFrame({"shop": [f"s{k}" for k in codes], "x": rng.normal(size=900)})
    y = truth[codes] + 0.2 * rng.normal(size=900)
    model = DSMGPRegressor("rbf", max_iter=20, random_state=0).fit(frame[:700], y[:700])
    assert model.score(frame[700:], y[700:]) > 0.9
    # Effects of training rows are without their own outputs: residuals of new rows are no larger than promised.
    _, std = model.predict(frame[700:], return_std=True)
    z = (y[700:] - model.predict(frame[700:])) / std
    assert 0.8 < z.std() < 1.2
