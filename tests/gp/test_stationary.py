"""Stationary kernels in closed form: values against GPyTorch, distances of rows that almost coincide."""

import pytest
import torch

from dsmgp.gp.kernels import KERNELS
from dsmgp.gp.process import build_process
from dsmgp.gp.stationary import distance


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_covariances_are_those_of_gpytorch(rng, name):
    process = build_process(name, "zero", 0.1, 3)
    kernel = process.leaf_kernel(3)
    bound = kernel.bind(process.kernel_parameters(kernel).detach())
    A, B = (torch.from_numpy(rng.normal(size=(1, n, 3))) for n in (7, 5))
    with torch.no_grad():
        cross, K = process.kernel(A, B).to_dense(), process.kernel(A).to_dense()
    torch.testing.assert_close(bound.cross(A, B), cross, rtol=1e-10, atol=1e-12)
    ours, _ = bound.covariance(A, torch.ones(1, 7, dtype=torch.bool))
    torch.testing.assert_close(
        ours, K, rtol=1e-7, atol=1e-7
    )  # GPyTorch's own distances are rounded
    torch.testing.assert_close(bound.variance(A), K.diagonal(dim1=-2, dim2=-1))


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
