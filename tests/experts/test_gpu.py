"""A GPU: the same predictions as a CPU, and what happens when its memory runs out.

Most machines have none. There a shortage is feigned where matrices are factorised, on the CPU.
"""

import copy

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from dsmgp import DSMGPRegressor
from dsmgp.experts.backends import torch_backend as batched_module
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.tree import Leaf, Region

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture
def rows(rng):
    X = rng.uniform(-2, 2, size=(3000, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=len(X))
    return X[:2500], y[:2500], X[2500:]


@pytest.fixture
def small_memory(monkeypatch):
    """From the outside: a machine on which a batch of matrices of more than so many numbers does not fit."""
    monkeypatch.setattr(NumpyBackend, "supports", staticmethod(lambda kernels: False))
    monkeypatch.setattr(batched_module, "LEAST_ELEMENTS", 2**8)
    solve, largest = batched_module.solve, []

    def limit(elements):
        def checked(K, leaf_kernel, batch):
            if K.numel() > elements:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. GPU 0")
            largest.append(K.numel())
            return solve(K, leaf_kernel, batch)

        monkeypatch.setattr(batched_module, "solve", checked)
        return largest

    return limit


def fitted(rows, **options):
    X, y, _ = rows
    settings = {"leaf_size": [40, 60], "kernel": "matern32", "max_iter": 5, "random_state": 0}
    return DSMGPRegressor(**settings | options).fit(X, y)


def test_when_memory_runs_out_batches_get_smaller_and_the_result_stays(rows, small_memory):
    limit = 10 * 60**2
    seen = small_memory(10**9)
    expected = fitted(rows)
    assert max(seen) > limit, "the shortage would not be noticed"
    mean, std = expected.predict(rows[2], return_std=True)
    seen = small_memory(limit)
    with pytest.warns(RuntimeWarning, match="ran out of memory.*smaller batches"):
        found = fitted(rows)
    again, spread = found.predict(rows[2], return_std=True)
    np.testing.assert_allclose(again, mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(spread, std, rtol=1e-7, atol=1e-9)


def test_a_prediction_that_runs_out_of_memory_lets_go_of_factors(rows, monkeypatch):
    monkeypatch.setattr(NumpyBackend, "supports", staticmethod(lambda kernels: False))
    found = fitted(rows)
    mean, std = found.predict(rows[2], return_std=True)
    held = found.state_.model.leaf_posterior.factors.n_bytes
    predict, calls = batched_module.TorchBackend.predict, []

    def fails_twice(self, bound, output, request):
        calls.append(None)
        if len(calls) in (1, 3):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return predict(self, bound, output, request)

    monkeypatch.setattr(batched_module.TorchBackend, "predict", fails_twice)
    monkeypatch.setattr(batched_module, "LEAST_ELEMENTS", 2**8)
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        again, spread = found.predict(rows[2], return_std=True)
    np.testing.assert_allclose(again, mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(spread, std, rtol=1e-7, atol=1e-9)
    assert found.state_.model.leaf_posterior.factors.n_bytes < held


@pytest.mark.filterwarnings("ignore:the GPU ran out of memory")
def test_with_no_memory_at_all_the_remedy_is_named(rows, small_memory):
    small_memory(10)
    with pytest.raises(MemoryError, match=r"1 GiB.*device='cpu'"):
        fitted(rows)


@needs_gpu
@pytest.mark.parametrize("weights", ["gated", "posterior"])
def test_a_gpu_says_what_a_cpu_says(rows, weights):
    given = {"noise_variance": 0.01, "optimizer": None, "weights": weights}
    predicted = [
        fitted(rows, device=device, **given).predict(rows[2], return_std=True)
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-6, atol=1e-8)


@needs_gpu
def test_single_precision_on_a_gpu_is_close(rows):
    predicted = [
        fitted(rows, device="cuda", dtype=dtype).predict(rows[2], return_std=True)
        for dtype in ("float64", "float32")
    ]
    spread = predicted[0][1]
    assert np.max(np.abs(predicted[1][0] - predicted[0][0]) / spread) < 0.05


@needs_gpu
def test_a_real_gpu_runs_out_of_memory_and_goes_on(rng):
    X = rng.uniform(-2, 2, size=(20_000, 3))
    rows = X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=len(X)), X[:500]
    options = {"device": "cuda", "leaf_size": 700, "sum_children": 2}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    expected = fitted(rows, **options).predict(rows[2], return_std=True)
    peak, total = (
        torch.cuda.max_memory_allocated(),
        torch.cuda.get_device_properties(0).total_memory,
    )
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction(0.5 * peak / total)
        with pytest.warns(RuntimeWarning, match="ran out of memory"):
            found = fitted(rows, **options)
        predicted = found.predict(rows[2], return_std=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6, atol=1e-8)


@needs_gpu
def test_rows_come_and_go_on_a_gpu(rows):
    X, y, test = rows
    given = {"noise_variance": 0.01, "optimizer": None, "device": "cuda"}
    whole = fitted(rows, **given)
    part = copy.deepcopy(whole)
    part.forget(np.arange(2000, 2500), adapt=False).partial_fit(X[2000:], y[2000:], adapt=False)
    for got, expected in zip(part.predict(test, return_std=True), whole.predict(test, return_std=True), strict=True):  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


@needs_gpu
@pytest.mark.parametrize("parameters", ["noise", "all"])
def test_fine_tuning_ends_where_it_does_on_a_cpu(rows, parameters):
    models = [
        fitted(rows, device=device, weights="posterior").finetune(
            parameters=parameters, similarity="jaccard", max_iter=10
        )
        for device in ("cpu", "cuda")
    ]
    leaf_kernels = [model.predict(rows[2], return_std=True) for model in models]
    np.testing.assert_allclose(models[1].leaf_noise_, models[0].leaf_noise_, rtol=1e-3)
    for on_cpu, on_gpu in zip(*leaf_kernels, strict=True):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("quantity", ["log_evidence", "squares"])
def test_evidence_that_runs_out_of_memory_is_computed_in_smaller_groups(quantity, monkeypatch, rng):
    """The backend is replaced by one with other groups, which must compute the rest."""
    monkeypatch.setattr(NumpyBackend, "supports", staticmethod(lambda kernels: False))
    monkeypatch.setattr(batched_module, "LEAST_ELEMENTS", 2**8)
    X, Y = (rng.normal(size=(64, 1)) for _ in range(2))
    leaves = [Leaf(Region.whole(1), np.arange(16 * k, 16 * k + 16)) for k in range(4)]
    # With two kernels the smaller groups also come in another order.
    kernels = [StationaryKernel(kind, (0,), "zero") for kind in ("rbf", "matern32")] * 2
    leaf_gps = InMemoryLeafGPs(leaves, LeafData(X, Y), [kernels])
    parameters = [np.array([1.0, 1.0, 0.1])]
    expected = getattr(leaf_gps, quantity)(parameters)
    n_groups = len(leaf_gps.backend.groups)
    evaluate, calls = getattr(batched_module.TorchBackend, quantity), []

    def fails_once(*arguments):
        calls.append(None)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return evaluate(*arguments)

    monkeypatch.setattr(batched_module.TorchBackend, quantity, fails_once)
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        found = getattr(leaf_gps, quantity)(parameters)
    assert len(leaf_gps.backend.groups) > n_groups
    np.testing.assert_allclose(found, expected, rtol=1e-10)
