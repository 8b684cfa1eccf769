"""The same leaves under other kernels are what they would be if they were set up anew."""

import numpy as np
import pytest

from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.process import build_process
from dsmgp.tree import Leaf, Region


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kernel", ["matern12", "rq", "periodic", "rbf+matern32", "gpytorch"])
def test_other_kernels_give_what_leaves_set_up_anew_give(rng, kernel):
    kernel = linear() if kernel == "gpytorch" else kernel
    X, Y = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    known = rng.uniform(size=(60, 2))
    leaves = [Leaf(Region.whole(2), np.arange(k, k + 20)) for k in (0, 20, 40)]
    first = [build_process("rbf", "zero", 0.1, 2).leaf_kernel] * 2
    process = build_process(kernel, "zero", 0.1, 2)
    leaf_kernel = process.leaf_kernel
    parameters = [process.kernel_parameters()] * 2
    gps = InMemoryLeafGPs(leaves, LeafData(X, Y, known_noise=known), first)
    evidence, gradients = gps.with_kernels([leaf_kernel] * 2).log_evidence_and_gradient(parameters)
    anew = InMemoryLeafGPs(leaves, LeafData(X, Y, known_noise=known), [leaf_kernel] * 2)
    expected, by = anew.log_evidence_and_gradient(parameters)
    np.testing.assert_allclose(evidence, expected, rtol=1e-10)
    np.testing.assert_allclose(gradients, by, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("backend")
def test_rows_are_not_set_up_again(rng, monkeypatch):
    X = rng.normal(size=(40, 1))
    kernels = [[build_process(k, "zero", 0.1, 1).leaf_kernel] for k in ("rbf", "matern32")]
    gps = InMemoryLeafGPs([Leaf(Region.whole(1), np.arange(40))], LeafData(X, X), kernels[0])
    monkeypatch.setattr(type(gps.backend), "__init__", lambda *args: pytest.fail("set up again"))
    assert gps.with_kernels(kernels[1]).kernels == [kernels[1]]
    assert gps.kernels == [kernels[0]]


PAIRS = [("rq", "rbf"), ("rbf", "rq"), ("rbf", "periodic"), ("rq", "periodic")]
PAIRS += [("rbf", "gpytorch"), ("rq", "gpytorch"), ("gpytorch", "rbf")]


def linear():
    """A kernel that is not computed in batches."""
    pytest.importorskip("torch")
    from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel

    return ScaleKernel(RBFKernel()) + LinearKernel()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_backend_and_groups_are_those_of_leaves_set_up_anew(rng, before, after):
    """Also where only some leaves change from a kernel that is computed in batches to one that is not."""
    X, Y = rng.normal(size=(80, 2)), rng.normal(size=(80, 1))
    leaves = [Leaf(Region.whole(2), np.arange(k, k + 20)) for k in (0, 20, 40, 60)]
    first, other, kept = (
        build_process(linear() if k == "gpytorch" else k, "zero", 0.1, 2).leaf_kernel
        for k in (before, after, "matern32")
    )
    for mixed in (False, True):
        old, new = ([[kept, kept, k, k] if mixed else [k] * 4] for k in (first, other))
        changed = InMemoryLeafGPs(leaves, LeafData(X, Y), old).with_kernels(new)
        anew = InMemoryLeafGPs(leaves, LeafData(X, Y), new)
        assert type(changed.backend) is type(anew.backend)
        for group, expected in zip(changed.backend.groups, anew.backend.groups, strict=True):
            np.testing.assert_array_equal(group, expected)
