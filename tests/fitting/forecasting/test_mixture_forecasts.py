"""A time model gives way to the mixture of leaves where that forecasts better."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import check_parameters
from dsmgp.fitting.forecasting.mixture_forecasts import mixture_forecasts
from dsmgp.fitting.forecasting.rolling_origin import RollingOrigin, TimeCandidate
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.linalg.cholesky import NotFactorisedError

N = 240


CONFIG = check_parameters(DSMGPRegressor())
CANDIDATE = TimeCandidate(("line", "level", "others"))


def rolling_origin(X, y):
    schema, given = InputSchema.learn(X, y)
    return RollingOrigin(TrainingRows.first(given.X, given.Y), 0, CONFIG), schema


def forecasts_of_both(X, y):
    """Forecasts of the mixture, and of the candidate that has a trend beside the other inputs."""
    rolling, schema = rolling_origin(X, y)
    return mixture_forecasts(rolling, schema, CONFIG), rolling.forecasts(CANDIDATE)


@pytest.fixture
def inputs(rng):
    return np.column_stack([np.arange(float(N)), rng.uniform(-1.0, 1.0, N)])


def test_leaves_forecast_better_where_the_noise_differs(inputs, rng):
    noise = np.where(inputs[:, 1] < 0.0, 0.01, 2.0)
    mixture, candidate = forecasts_of_both(inputs, noise * rng.normal(size=N))
    assert mixture.is_clear(candidate)
    assert mixture.coverage > 0.8


def test_leaves_do_not_go_on_with_a_trend(inputs, rng):
    y = 0.05 * inputs[:, 0] + np.sin(3.0 * inputs[:, 1]) + 0.1 * rng.normal(size=N)
    mixture, candidate = forecasts_of_both(inputs, y)
    assert (mixture.gains_over(candidate) < 0.0).all()


def test_only_a_covariance_that_cannot_be_factorised_leaves_a_candidate_out(inputs, monkeypatch):
    def fail(*_):
        raise error

    rolling, _ = rolling_origin(inputs, inputs[:, 1])
    monkeypatch.setattr(RollingOrigin, "_learn", fail)
    error = NotFactorisedError()
    assert rolling.forecasts(CANDIDATE) is None
    # A fault of the program that happens to say the same is no reason.
    error = ValueError(str(error))
    with pytest.raises(ValueError, match="could not be factorised") as caught:
        rolling.forecasts(CANDIDATE)
    assert caught.value is error
