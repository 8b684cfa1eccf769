"""Quantiles that ``predict`` returns, and predictive distributions behind scikit-learn's pipelines."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dsmgp import DSMGPRegressor

LEVELS = [0.05, 0.5, 0.95]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(120, 2))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=120)


@pytest.fixture(scope="module")
def model(rows):
    return DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(*rows)


@pytest.fixture(scope="module")
def two_outputs(rows):
    X, y = rows
    Y = pd.DataFrame({"up": y, "down": -2 * y})
    return DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(
        pd.DataFrame(X, columns=["a", "b"]), Y
    )


@pytest.mark.parametrize("include_noise", [True, False])
def test_quantiles_are_those_of_the_distribution_side_by_side(rows, model, include_noise):
    X, _ = rows
    quantiles = model.predict(X[:4], quantiles=LEVELS, include_noise=include_noise)
    distribution = model.predict_dist(X[:4], include_noise)
    assert quantiles.shape == (4, 3)
    np.testing.assert_array_equal(quantiles, distribution.quantile(LEVELS).T)
    np.testing.assert_array_equal(
        model.predict(X[:4], quantiles=0.5)[:, 0], model.predict_dist(X[:4]).median
    )


def test_quantiles_of_several_outputs_have_an_axis_for_them(rows, two_outputs):
    X = pd.DataFrame(rows[0][:4], columns=["a", "b"])
    quantiles = two_outputs.predict(X, quantiles=LEVELS)
    assert quantiles.shape == (4, 2, 3)
    np.testing.assert_array_equal(
        quantiles[:, 1, 0], two_outputs.predict_dist(X).quantile(0.05)[:, 1]
    )


def test_one_column_of_y_keeps_its_axis(rows):
    X, y = rows
    model = DSMGPRegressor("rbf", max_iter=1, random_state=0).fit(X, y[:, None])
    assert model.predict(X[:4], quantiles=LEVELS).shape == (4, 1, 3)


@pytest.mark.parametrize("library", [pd, pl])
@pytest.mark.parametrize("output", ["input", "pandas", "polars"])
def test_frames_name_the_quantiles(rows, two_outputs, library, output):
    X = library.DataFrame({"a": rows[0][:4, 0], "b": rows[0][:4, 1]})
    plain = two_outputs.predict(X, quantiles=LEVELS)
    try:
        frame = two_outputs.set_output(predict=output).predict(X, quantiles=LEVELS)
        with pytest.raises(ValueError, match="expected distinct levels"):
            two_outputs.predict(X, quantiles=[0.5, 0.5])
    finally:
        two_outputs.set_output(predict="default")
    kind = {"input": library, "pandas": pd, "polars": pl}[output]
    assert isinstance(frame, kind.DataFrame)
    assert list(frame.columns) == ["up_q5", "up_q50", "up_q95", "down_q5", "down_q50", "down_q95"]
    np.testing.assert_array_equal(frame["down_q95"], plain[:, 1, 2])


def test_frames_of_quantiles_keep_the_index(rows):
    X = pd.DataFrame(rows[0], columns=["a", "b"])
    model = DSMGPRegressor("rbf", max_iter=1, random_state=0).set_output(predict="input")
    frame = model.fit(X, rows[1]).predict(X[7:9], quantiles=[0.025])
    assert list(frame.index) == [7, 8]
    assert list(frame.columns) == ["y_q2.5"]


@pytest.mark.parametrize("option", ["return_std", "return_cov"])
def test_quantiles_do_not_go_with_other_spreads(rows, model, option):
    with pytest.raises(ValueError, match="quantiles cannot be combined"):
        model.predict(rows[0], quantiles=LEVELS, **{option: True})


@pytest.mark.parametrize("levels", [[0.0, 0.5], [1.2], [], [[0.1], [0.9]], [np.nan]])
def test_levels_out_of_range_are_refused(rows, model, levels):
    with pytest.raises(ValueError, match="levels"):
        model.predict(rows[0], quantiles=levels)


def test_a_pipeline_passes_quantiles_and_deviations_through_and_its_last_step_has_the_distribution(
    rows,
):
    X, y = rows
    pipe = make_pipeline(StandardScaler(), DSMGPRegressor("rbf", max_iter=3, random_state=0))
    pipe.fit(X, y)
    distribution = pipe[-1].predict_dist(pipe[:-1].transform(X[:4]))
    mean, std = pipe.predict(X[:4], return_std=True)
    np.testing.assert_allclose((distribution.mean, distribution.std), (mean, std))
    quantiles = pipe.predict(X[:4], quantiles=LEVELS)
    np.testing.assert_array_equal(quantiles, distribution.quantile(LEVELS).T)


def test_a_transformed_target_has_transformed_quantiles_but_no_deviation(rows):
    """Quantiles go through an increasing function as they are; moments do not, and scikit-learn refuses them."""
    X, y = rows
    inner = DSMGPRegressor("rbf", max_iter=3, random_state=0)
    outer = TransformedTargetRegressor(inner, func=np.log, inverse_func=np.exp).fit(X, np.exp(y))
    inner.fit(X, y)
    np.testing.assert_allclose(
        outer.predict(X[:4], quantiles=LEVELS), np.exp(inner.predict(X[:4], quantiles=LEVELS))
    )
    with pytest.raises(AttributeError, match="tuple"):
        outer.predict(X[:4], return_std=True)
