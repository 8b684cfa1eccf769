"""GPyTorch's modules by name and parameters: what is built again is what was described."""

import copy
import json

import pytest

pytest.importorskip("gpytorch")

import gpytorch
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, SmoothedBoxPrior, UniformPrior

from dsmgp import ModelFileError
from dsmgp.gp.gpytorch_process import gpytorch_modules
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import NAMED_KERNELS
from dsmgp.persistence.gpytorch.module_description import MODULE
from dsmgp.persistence.gpytorch.modules import (
    CannotStore,
    build_module,
    describe_module,
    read_parameters,
    write_parameters,
)
from dsmgp.persistence.record import Section, refused
from tests.support.damage import change_entry

MODULES = [
    RBFKernel(ard_num_dims=3, lengthscale_prior=GammaPrior(3.0, 6.0)),
    RBFKernel(lengthscale_constraint=Interval(0.1, 2.5)),
    MaternKernel(nu=0.5, active_dims=[0, 2]),
    RQKernel(ard_num_dims=3, alpha_constraint=LessThan(4.0)),
    PiecewisePolynomialKernel(q=1),
    PeriodicKernel(ard_num_dims=3, period_length_prior=UniformPrior(0.1, 3.0)),
    CosineKernel(),
    LinearKernel(ard_num_dims=3, variance_prior=SmoothedBoxPrior(0.1, 2.0)),
    PolynomialKernel(power=2),
    ConstantKernel(),
    SpectralMixtureKernel(num_mixtures=3, ard_num_dims=3),
    ScaleKernel(RBFKernel(active_dims=[1]), outputscale_constraint=GreaterThan(0.2)),
    ScaleKernel(RBFKernel()) * LinearKernel()
    + ScaleKernel(PeriodicKernel(active_dims=[0]), outputscale_prior=LogNormalPrior(0.0, 1.0)),
    # "linear" is a class of our own there, which files hold by its name.
    *[
        gpytorch_modules(build_process(name, "zero", None, 3)).kernel
        for name in NAMED_KERNELS
        if name != "linear"
    ],
    ZeroMean(),
    ConstantMean(constant_prior=NormalPrior(0.0, 1.0)),
    LinearMean(3),
    LinearMean(3, bias=False),
]


def stored(module):
    """The header and the arrays of a file that holds a module."""
    section = Section()
    write_parameters(module, section)
    MODULE.write(describe_module(module), section)
    return section


def read(section):
    with refused("kernels or means"):
        module = build_module(MODULE.read(section))
    read_parameters(module, section)
    return module


def values_of(module, X):
    out = module(X)
    return out.to_dense() if isinstance(module, gpytorch.kernels.Kernel) else out


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_what_is_built_again_computes_the_same(module):
    module = copy.deepcopy(module)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    section = stored(module)
    section.header = json.loads(json.dumps(section.header))
    again = read(section)
    X = torch.randn(5, 3, dtype=next(module.parameters(), torch.empty(0)).dtype)
    assert torch.equal(values_of(module, X), values_of(again, X))
    assert stored(again).header == section.header
    assert [name for name, *_ in again.named_priors()] == [n for n, *_ in module.named_priors()]
    for ours, theirs in zip(again.named_priors(), module.named_priors(), strict=True):
        value = torch.tensor(0.7)
        assert torch.equal(ours[2].log_prob(value), theirs[2].log_prob(value))


def test_parameters_held_fixed_stay_fixed():
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    again = read(stored(kernel))
    assert not again.base_kernel.raw_lengthscale.requires_grad
    assert again.raw_outputscale.requires_grad


class MyKernel(RBFKernel):
    pass


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (MyKernel(), "MyKernel is not one of GPyTorch's"),
        (ScaleKernel(MyKernel()), "MyKernel"),
        (RBFKernel(lengthscale_constraint=Positive(torch.square, torch.sqrt)), "transform of your own"),
        (RBFKernel(lengthscale_prior=NormalPrior(0.0, 1.0, transform=torch.log)), "transform of your own"),
        (RBFKernel(batch_shape=torch.Size([2])), "batch shape"),
        (RBFKernel().half(), "float16"),
    ],
)  # fmt: skip
def test_what_is_code_is_refused(module, message):
    with pytest.raises(CannotStore, match=message):
        stored(module)


def test_a_prior_of_ones_own_is_refused():
    kernel = RBFKernel()
    kernel.register_prior("hunch", NormalPrior(0.0, 1.0), lambda m: m.lengthscale)
    with pytest.raises(CannotStore, match="hunch"):
        stored(kernel)


@pytest.mark.parametrize(
    "change",
    [
        {"class": "Popen"},
        {"class": "Kernel"},
        {"options": {"nu": 0.7}},
        {"options": {"ard_num_dims": 10**9}},
        {"options": {"cls": 1}},
        {"constraints": {"noise": {}}},
        {"fixed": ["nothing"]},
        {"dtype": "float16"},
    ],
)
def test_only_what_is_on_the_lists_is_built(change):
    section = stored(MaternKernel(nu=1.5))
    section.header |= change
    with pytest.raises(ModelFileError):
        read(section)


@pytest.mark.parametrize("n", [300, pytest.param(30_000, marks=pytest.mark.slow)])
def test_descriptions_that_were_made_up_are_refused_or_make_a_module(rng, n):
    """Whatever GPyTorch's constructors say about odd arguments, there is one kind of error."""
    sections = [stored(module) for module in MODULES]
    outcomes = set()
    for k in range(n):
        section = copy.deepcopy(sections[k % len(sections)])
        for _ in range(int(rng.integers(1, 3))):
            change_entry(section.header, rng)
        try:
            outcomes.add(isinstance(read(section), torch.nn.Module))
        except ModelFileError:
            outcomes.add(ModelFileError)
    assert outcomes == {True, ModelFileError}
