"""Evidences of all segments: a sliding factor against one factorisation per start."""

import numpy as np
import pytest

from dsmgp.changepoints.sliding_cholesky import segment_evidences
from dsmgp.gp.leaf_kernels import StationaryKernel


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52", "rq"])
def test_a_sliding_factor_equals_one_per_start(name, rng, monkeypatch):
    x = np.sort(rng.uniform(0, 10, size=150))
    y = rng.normal(size=150)
    parameters = [0.5, 1.3, *([2.0] if name == "rq" else []), 0.2, 0.1]
    kernel = StationaryKernel(name, (0,), "constant").at(np.array(parameters))
    noise = rng.uniform(0.05, 0.2, size=150)
    X = x[:, None]
    for longest in (1, 7, 40, 150):
        slid = segment_evidences(kernel, X, y, noise, longest)
        with monkeypatch.context() as without_numba:
            without_numba.setattr("dsmgp.changepoints.sliding_cholesky.has_numba", lambda: False)
            plain = segment_evidences(kernel, X, y, noise, longest)
        np.testing.assert_allclose(slid, plain, rtol=1e-10)
