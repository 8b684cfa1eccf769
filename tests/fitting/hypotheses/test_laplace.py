"""Draws of hyperparameters come from the distribution that their density is of."""

import numpy as np
from scipy.stats import multivariate_t

from dsmgp.fitting.hypotheses.laplace import DEGREES_OF_FREEDOM, StudentT, laplace


def test_the_density_and_the_draws_are_those_of_a_multivariate_t(rng):
    around = StudentT(np.array([1.0, -2.0]), np.array([[1.0, 0.3], [-0.2, 0.5]]))
    scale = around.root @ around.root.T
    drawn = around.sample(20_000, rng)
    known = multivariate_t(around.mode, scale, DEGREES_OF_FREEDOM)
    np.testing.assert_allclose(around.log_density(drawn[:9]), known.logpdf(drawn[:9]))
    covariance = scale * DEGREES_OF_FREEDOM / (DEGREES_OF_FREEDOM - 2.0)
    np.testing.assert_allclose(drawn.mean(axis=0), around.mode, atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.15)


def test_directions_that_the_data_do_not_tell_are_as_wide_as_the_prior():
    def objective(theta):
        return -2.0 * theta[0] ** 2, np.array([-4.0 * theta[0], 0.0])

    around = laplace(objective, np.zeros(2), np.array([3.0, 5.0]))
    np.testing.assert_allclose(around.root @ around.root.T, [[0.25, 0.0], [0.0, 25.0]], atol=1e-6)
