"""Leaves in padded batches, in torch: their memory, and single precision."""

import numpy as np
import pytest

pytest.importorskip("torch")

from dsmgp.experts.backends import torch_backend as module
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.backends.torch_backend import TorchBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.terms import NAMED_KERNELS
from dsmgp.tree import Leaf, Region
from tests.support.leaf_predictions import predict_leaves
from tests.support.random_leaves import build, random_rows


@pytest.mark.parametrize("kernel", [*NAMED_KERNELS, "matern32+periodic"])
def test_float32_agrees_with_float64_to_its_precision(rng, kernel):
    X, Y = random_rows(rng)
    process, leaf_gps = build(kernel, "zero", X, Y, noise=0.1)
    _, single = build(kernel, "zero", X, Y, noise=0.1, dtype="float32")
    assert isinstance(single.backend, TorchBackend)
    kernel_parameters = [process.kernel_parameters()]
    evidence, (gradient,) = leaf_gps.log_evidence_and_gradient(kernel_parameters)
    evidence32, (gradient32,) = single.log_evidence_and_gradient(kernel_parameters)
    np.testing.assert_allclose(evidence32, evidence, rtol=1e-4)
    np.testing.assert_allclose(gradient32, gradient, rtol=1e-2, atol=1e-2)
    for table in (evidence32, gradient32):
        assert table.dtype == np.float64
    test = rng.normal(size=(9, 3))
    for one, another in zip(
        *(predict_leaves(condition(gps, kernel_parameters), [(0, test)])[0] for gps in (single, leaf_gps)),
        strict=True,
    ):  # fmt: skip
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, another, rtol=1e-2, atol=1e-3)


def test_batches_keep_to_the_memory_they_are_given(rng, monkeypatch):
    monkeypatch.setattr(NumpyBackend, "supports", staticmethod(lambda kernels: False))
    X, Y = random_rows(rng, 400)
    leaf_kernel = StationaryKernel("rbf", (0, 1, 2), "zero")
    leaves = [Leaf(Region.whole(3), rows) for rows in np.arange(400).reshape(20, 20)]
    kernel_parameters = [np.array([1.0, 1.0, 1.0, 1.0, 0.1])]
    free, tight = (
        InMemoryLeafGPs(leaves, LeafData(X, Y), [leaf_kernel], memory=memory)
        for memory in (np.inf, 8 * module.WORKING_ARRAYS * 3 * 20**2)
    )
    assert len(free.backend.groups) == 1
    assert [len(group) for group in tight.backend.groups] == [3] * 6 + [2]
    np.testing.assert_allclose(
        free.log_evidence(kernel_parameters), tight.log_evidence(kernel_parameters), rtol=1e-12
    )
