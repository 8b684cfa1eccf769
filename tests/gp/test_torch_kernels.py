"""Kernels in batches of leaves, in torch: those of GPyTorch and of NumPy, and distances of rows that almost coincide."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from dsmgp.gp.gpytorch_process import gpytorch_modules
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import NAMED_KERNELS
from dsmgp.gp.torch_kernels import bind, distance

KERNELS = [
    *NAMED_KERNELS,
    "matern32+periodic",
    "rq+rbf",
    "rbf*periodic",
    "linear*rq[2]+matern12[0,1]",
]


def moved(kernel, mean, rng):
    process = build_process(kernel, mean, 0.1, 3, spread=[1.0, 2.0, 0.5], variance=1.7)
    return process.with_theta(process.theta + 0.3 * rng.normal(size=len(process.theta)))


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_are_those_of_gpytorch(rng, name):
    process = moved(name, "zero", rng)
    bound = bind(process.leaf_kernel, torch.from_numpy(process.kernel_parameters()))
    kernel = gpytorch_modules(process).kernel
    A, B = (torch.from_numpy(rng.normal(size=(1, n, 3))) for n in (7, 5))
    with torch.no_grad():
        cross, K = kernel(A, B).to_dense(), kernel(A).to_dense()
    torch.testing.assert_close(bound.cross(A, B), cross, rtol=1e-10, atol=1e-12)
    ours, _ = bound.covariance(A, torch.ones(1, 7, dtype=torch.bool))
    torch.testing.assert_close(
        ours, K, rtol=1e-7, atol=1e-7
    )  # GPyTorch's own distances are rounded
    torch.testing.assert_close(bound.variance(A), K.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("name", KERNELS)
def test_covariances_and_gradients_are_those_of_numpy(rng, name, mean):
    """For leaves of different size in one batch, with hyperparameters of their own, and one vector for all."""
    process, sizes = moved(name, mean, rng), (12, 9)
    X, W, by_mean = np.zeros((2, 12, 3)), np.zeros((2, 12, 12)), np.zeros((2, 12))
    mask = np.arange(12) < np.array(sizes)[:, None]
    for leaf, n in enumerate(sizes):
        X[leaf, :n] = rng.normal(size=(n, 3))
        X[leaf, 3] = X[leaf, 4]
        W[leaf, :n, :n] = rng.normal(size=(n, n))
        by_mean[leaf, :n] = rng.normal(size=n)
    W, tr_W = W + W.swapaxes(1, 2), np.array([2.3, 1.1])
    vector = process.kernel_parameters()
    for parameters in (vector, np.stack([vector * 0.8, vector * 1.3])):
        batch = bind(process.leaf_kernel, torch.from_numpy(parameters))
        K, pullback = batch.covariance(torch.from_numpy(X), torch.from_numpy(mask))
        alone = [
            process.leaf_kernel.at(parameters if parameters.ndim == 1 else parameters[leaf])
            for leaf in range(2)
        ]
        K = K.numpy()
        tr_WK = torch.from_numpy((W * K).sum((1, 2)))
        given = (torch.from_numpy(a.copy()) for a in (W, by_mean))
        gradient = pullback(*given, tr_WK, torch.from_numpy(tr_W)).numpy()
        mean_of = batch.mean(torch.from_numpy(X)).numpy()
        for leaf, (n, kernel) in enumerate(zip(sizes, alone, strict=True)):
            own = X[leaf, :n]
            expected, back = kernel.covariance(own)
            np.testing.assert_allclose(K[leaf, :n, :n], expected, rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(mean_of[leaf, :n], kernel.mean(own), rtol=1e-12)
            expected = back(W[leaf, :n, :n], by_mean[leaf, :n], tr_W[leaf])
            np.testing.assert_allclose(gradient[leaf], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_per_leaf_hyperparameters_equal_separate_leaves(rng, kernel):
    """A batch may carry one vector of kernel parameters per leaf."""
    X = torch.from_numpy(rng.normal(size=(2, 15, 3)))
    mask = torch.ones(2, 15, dtype=torch.bool)
    process = moved(kernel, "zero", rng)
    parameters = torch.from_numpy(np.stack([process.kernel_parameters() * f for f in (0.5, 1.5)]))
    K, _ = bind(process.leaf_kernel, parameters).covariance(X, mask)
    for leaf in range(2):
        alone, _ = bind(process.leaf_kernel, parameters[leaf]).covariance(
            X[leaf : leaf + 1], mask[:1]
        )
        torch.testing.assert_close(K[leaf], alone[0])


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_distances_of_rows_that_almost_coincide_are_exact(rng, offset):
    a = torch.from_numpy(rng.normal(size=(20, 3))) + offset
    b = a + 1e-9
    expected = (a[:, None] - b[None]).norm(dim=-1)
    torch.testing.assert_close(distance(a, b), expected, rtol=1e-6, atol=1e-14)
    torch.testing.assert_close(distance(a, b, square=True), expected**2, rtol=1e-6, atol=1e-24)


def test_the_distance_of_equal_rows_has_gradient_zero(rng):
    x = torch.from_numpy(rng.normal(size=(4, 2))).requires_grad_()
    (gradient,) = torch.autograd.grad(distance(x, x).diagonal().sum(), x)
    assert torch.equal(gradient, torch.zeros_like(x))
