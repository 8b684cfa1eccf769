"""Processes built from names, and families of them."""

import numpy as np
import pytest

from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.leaf_kernels import StationaryKernel, SumKernel
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import Family, build_process, kernels_by_leaf, parameters_by_leaf


@pytest.mark.parametrize(
    ("kernel", "mean", "message"),
    [
        ("gauss", "zero", "unknown kernel 'gauss': expected one of 'rbf'"),
        ("rbf+gauss", "zero", "unknown kernel 'gauss': expected one of 'rbf'"),
        (3, "zero", "or a gpytorch kernel, got 3"),
        ("rbf", "quadratic", "unknown mean 'quadratic': expected one of 'zero'"),
        ("rbf", 1.0, "or a gpytorch mean, got 1.0"),
        (Kernel((KernelTerm("rbf", np.ones(5), 1.0),)), "zero", "inputs with 3 columns"),
    ],
)
def test_kernels_and_means_that_do_not_fit_are_refused(kernel, mean, message):
    with pytest.raises(ValueError, match=message):
        build_process(kernel, mean, 0.1, 3)


@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.inf, True, "a"])
def test_noise_must_be_positive(noise):
    with pytest.raises(ValueError, match="noise_variance to be a positive number"):
        build_process("rbf", "zero", noise, 3)


def test_noise_that_is_passed_may_be_less_than_the_floor():
    assert build_process("rbf", "zero", 1e-9, 3).noise == pytest.approx(1e-9, rel=1e-12)


def test_a_module_without_torch_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr("dsmgp._util.machine.has_torch", lambda: False)
    module = type("RBFKernel", (), {"__module__": "gpytorch.kernels.rbf_kernel"})()
    of_mean = type("ZeroMean", (), {"__module__": "gpytorch.means.zero_mean"})()
    for kernel, mean in ((module, "zero"), ("rbf", of_mean)):
        with pytest.raises(ImportError, match=r"needs torch and gpytorch: pip install"):
            build_process(kernel, mean, 0.1, 3)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("matern52", StationaryKernel), ("rq", StationaryKernel), ("periodic", SumKernel)],
)
def test_names_need_no_torch(kernel, expected):
    process = build_process(kernel, "zero", 0.1, 3)
    assert isinstance(process, NamedProcess)
    assert isinstance(process.leaf_kernel, expected)


def test_leaves_take_kernels_and_parameters_from_their_families():
    families = [
        Family(name, tuple(build_process(name, "constant", noise, 2) for noise in (0.1, 0.2)))
        for name in ("rbf", "matern12")
    ]
    family = np.array([1, 0, 1])
    by_output = kernels_by_leaf(families, family)
    assert [[kernel.kind for kernel in kernels] for kernels in by_output] == [
        ["matern12", "rbf", "matern12"]
    ] * 2
    tables = parameters_by_leaf(families, family)
    for output, table in enumerate(tables):
        for leaf, number in enumerate(family):
            expected = families[number].processes[output].kernel_parameters()
            np.testing.assert_array_equal(table[leaf], expected)
    alone = parameters_by_leaf(families[:1], np.zeros(3, dtype=int))
    np.testing.assert_array_equal(alone[1], families[0].kernel_parameters[1])


def test_a_family_with_other_processes_leaves_the_first_as_it_is():
    process = build_process("rbf", "zero", 0.1, 2)
    family = Family("rbf", (process, process))
    moved = family.with_processes([process, process.with_theta(process.theta + 1.0)])
    assert family.processes == (process, process)
    first, second = moved.kernel_parameters
    np.testing.assert_array_equal(first, process.kernel_parameters())
    assert (second[:-1] > first[:-1]).all()
