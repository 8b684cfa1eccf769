"""What holds for every baseline, whatever computes it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from dsmgp import Mixture, scores
from dsmgp.baselines import LinearBaseline


def holds_its_contract(model, X, y):
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(Exception, match="not fitted"):
        model.predict(X)
    assert model.fit(X, y) is model
    predicted = model.predict_dist(X[:9])
    assert isinstance(predicted, Mixture)
    mean, std = model.predict(X[:9], return_std=True)
    np.testing.assert_allclose(mean, predicted.mean)
    np.testing.assert_allclose(std, predicted.std)
    assert mean.shape == std.shape == (9,)
    again = clone(model).fit(X, y)
    np.testing.assert_allclose(again.predict(X[:9]), mean, atol=1e-6)
    # Two outputs, independent: each is what it is alone.
    Y = np.column_stack([y, X[:, 0]])
    both = clone(model).fit(X, Y).predict_dist(X[:9])
    assert both.mean.shape == (9, 2)
    np.testing.assert_allclose(both.joint_logpdf(Y[:9]).shape, (9,))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 1.9, np.nan, X), y)


def ignores_units(model, X, y):
    mean, std = clone(model).fit(X, y).predict(X[:9], return_std=True)
    scaled = clone(model).fit(10.0 * X - 3.0, 5.0 * y + 7.0)
    far, wide = scaled.predict(10.0 * X[:9] - 3.0, return_std=True)
    np.testing.assert_allclose(far, 5.0 * mean + 7.0, atol=1e-3)
    np.testing.assert_allclose(wide, 5.0 * std, rtol=1e-2)


def beats_a_linear_model(model, X, y, rng):
    X_test = rng.uniform(-2, 2, size=(200, 2))
    y_test = np.sin(2 * X_test[:, 0]) + 0.5 * X_test[:, 1] + 0.1 * rng.normal(size=200)
    predicted, line = (m.fit(X, y).predict_dist(X_test) for m in (model, LinearBaseline()))
    assert scores.mae(y_test, predicted.mean) < 0.5 * scores.mae(y_test, line.mean)
    assert scores.nlpd(y_test, predicted) < scores.nlpd(y_test, line)
