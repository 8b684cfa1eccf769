"""A million rows on one GPU: the same code, and the numbers that came out."""

import time

import numpy as np

from dsmgp import DSMGPRegressor
from dsmgp.scores import coverage, nlpd, rmse


def made(n_rows, rng):
    """Eight inputs; smooth, faster in some places than in others; noise with a deviation of 0.1."""
    X = rng.uniform(-1, 1, size=(n_rows, 8))
    f = (
        np.sin(4 * X[:, 0] * np.exp(X[:, 1]))
        + np.tanh(6 * X[:, 2] + 3 * X[:, 3])
        + X[:, 5] * X[:, 6]
    )
    return X, f + 0.1 * rng.normal(size=n_rows)


rng = np.random.default_rng(0)
X, y = made(1_000_000, rng)
X_test, y_test = made(100_000, rng)

DSMGPRegressor().fit(X[:1000], y[:1000])  # the first call starts the GPU
start = time.perf_counter()
model = DSMGPRegressor(random_state=0).fit(X, y)  # device="auto" finds the GPU
fitted = time.perf_counter()
distribution = model.predict_dist(X_test)
print(f"fitted on {len(X):,} rows in {fitted - start:.1f} s")
print(f"predicted {len(X_test):,} rows in {time.perf_counter() - fitted:.1f} s")
print(f"RMSE {rmse(y_test, distribution.mean):.4f} (the noise alone: 0.1)")
print(
    f"NLPD {nlpd(y_test, distribution):.3f} (at best {0.5 * np.log(2 * np.pi * np.e * 0.01):.3f})"
)
print(f"90% intervals hold {coverage(y_test, distribution, 0.9):.1%}")
