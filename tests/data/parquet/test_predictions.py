"""Predictions as columns: in chunks as at once, and every chunk of the distribution is built once."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, Mixture
from dsmgp.data.parquet.predictions import check_kept_columns, prediction_columns
from dsmgp.data.rows import Rows


@pytest.fixture(scope="module")
def fitted():
    X = np.random.default_rng(0).uniform(size=(50, 2))
    return DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, np.sin(6 * X[:, 0])), X


def test_chunks_give_the_quantiles_of_the_whole_and_are_built_once(fitted, monkeypatch):
    model, X = fitted
    monkeypatch.setattr("dsmgp.data.parquet.predictions.CHUNK_ROWS", 20)
    chunks = []
    whole = Mixture.__getitem__

    def counted(self, rows):
        chunks.append(rows)
        return whole(self, rows)

    monkeypatch.setattr(Mixture, "__getitem__", counted)
    columns = prediction_columns(
        model.state_.model, Rows(X), ["y"], intervals=[0.9, 0.5], quantiles=[0.5]
    )
    assert len(chunks) == 3
    assert list(columns) == [
        "y_mean", "y_std", "y_low_90", "y_high_90", "y_low_50", "y_high_50", "y_q50",
    ]  # fmt: skip
    distribution = model.predict_dist(X)
    np.testing.assert_allclose(columns["y_mean"], distribution.mean, rtol=1e-12)
    np.testing.assert_allclose(columns["y_high_90"], distribution.interval(0.9)[1], rtol=1e-9)
    np.testing.assert_allclose(columns["y_q50"], distribution.quantile(0.5), rtol=1e-9)


def test_a_kept_column_may_not_have_the_name_of_a_prediction():
    check_kept_columns(["y", "y_low_80"], ["y"], [0.9])
    with pytest.raises(ValueError, match="'y_low_90' cannot be kept"):
        check_kept_columns(["y_low_90"], ["y"], [0.9])
