"""A Ray cluster: the same model from two workers."""

import warnings

import numpy as np
import ray

from dsmgp import DSMGPRegressor
from dsmgp.ray import RayExecutor

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(4000, 3))
y = np.sin(4 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=4000)
settings = {"leaf_size": [125, 250], "kernel": "matern52", "random_state": 0}
local = DSMGPRegressor(**settings).fit(X, y)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
with RayExecutor(n_workers=2) as executor:
    model = DSMGPRegressor(executor=executor, **settings).fit(X, y)
    print(f"evidence {model.log_marginal_likelihood_:.4f}")
    print(f"in one process {local.log_marginal_likelihood_:.4f}")

    away = np.abs(model.predict(X[:1000]) - local.predict(X[:1000])).max()
    print(f"predictions are within {max(away, 1e-12):.0e} of those of one process")

    traffic = executor.traffic
    moved = traffic.sent["gradient"] + traffic.received["gradient"]
    moved /= traffic.calls["gradient"]
    print(f"an evaluation moves {'under 10 kB' if moved < 1e4 else 'too much'}, and never rows")
ray.shutdown()
