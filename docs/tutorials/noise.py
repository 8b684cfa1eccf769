"""Noise that differs: intervals that are narrow where data are quiet and wide where they are not."""

import numpy as np
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from dsmgp import DSMGPRegressor, scores

rng = np.random.default_rng(0)


def rows(n):
    x = rng.uniform(0, 10, n)
    return x[:, None], np.sin(x) + (0.05 + 0.5 * (x > 5)) * rng.normal(size=n)


X, y = rows(600)
X_test, y_test = rows(2000)

model = DSMGPRegressor(random_state=0).fit(X, y)
distribution = model.predict_dist(X_test)
quiet = X_test[:, 0] < 4.5
print(
    f"standard deviation where it is quiet: {distribution.std[quiet].mean():.2f}, elsewhere: {distribution.std[~quiet].mean():.2f}"
)
print(f"NLPD of the mixture:  {scores.nlpd(y_test, distribution):.2f}")

exact = GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True).fit(X, y)
mean, std = exact.predict(X_test, return_std=True)
print(f"NLPD of one exact GP: {-norm.logpdf(y_test, mean, std).mean():.2f}")
print(f"90% intervals hold {scores.coverage(y_test, distribution):.0%} of new rows")
