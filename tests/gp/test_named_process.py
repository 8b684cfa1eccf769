"""Processes of named kernels: transforms, priors and gradients by SciPy, by finite differences and by GPyTorch's modules."""

import numpy as np
import pytest
from scipy import stats

from dsmgp.gp.named_process import ParameterBlock
from dsmgp.gp.process import NOISE_FLOOR, build_process
from dsmgp.gp.terms import NAMED_KERNELS
from tests.support.finite_differences import central_difference

MEANS = ("zero", "constant", "linear")
SUMS = ("matern32+periodic", "rq+rbf")
KERNELS = [*NAMED_KERNELS, *SUMS]


def moved(kernel, mean, rng):
    process = build_process(
        kernel, mean, 0.1, 3, spread=[1.0, 2.0, 0.5], variance=1.7, periods=np.array([0.5, 1, 2])
    )
    return process.with_theta(process.theta + 0.3 * rng.normal(size=len(process.theta)))


def thetas_of(process, rng):
    """One theta, and a table."""
    return process.theta, process.theta + 0.5 * rng.normal(size=(4, len(process.theta)))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_equal_finite_differences(rng, kernel, mean):
    process = moved(kernel, mean, rng)
    theta = process.theta
    by_theta = central_difference(process.kernel_parameters, theta)  # (parameters, theta)
    weights = rng.normal(size=len(by_theta))
    np.testing.assert_allclose(
        process.pull_back(theta, weights), weights @ by_theta, rtol=1e-8, atol=1e-9
    )
    for name in ("noise_and_gradient", "log_prior"):
        function = getattr(process, name)
        expected = central_difference(lambda at, f=function: np.array(f(at)[0]), theta)
        np.testing.assert_allclose(function(theta)[1], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_table_of_thetas_gives_what_each_row_gives(rng, kernel, mean):
    process = moved(kernel, mean, rng)
    _, table = thetas_of(process, rng)
    parameters = process.kernel_parameters(table)
    gradient = rng.normal(size=parameters.shape)
    back = process.pull_back(table, gradient)
    noise, by_noise = process.noise_and_gradient(table)
    log_prior, by_prior = process.log_prior(table)
    for k, theta in enumerate(table):
        other = process.with_theta(theta)
        np.testing.assert_allclose(parameters[k], other.kernel_parameters(), rtol=1e-14)
        np.testing.assert_allclose(back[k], process.pull_back(theta, gradient[k]), rtol=1e-14)
        assert noise[k] == pytest.approx(other.noise, rel=1e-14)
        np.testing.assert_allclose(by_noise[k], process.noise_and_gradient(theta)[1], rtol=1e-14)
        value, by = process.log_prior(theta)
        assert log_prior[k] == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(by_prior[k], by, rtol=1e-12)


def test_the_prior_is_log_normal_in_output_scale_length_scales_and_periods(rng):
    process = moved("matern32+periodic", "linear", rng)
    first, second = process.kernel.terms
    # Length scales grow with the root of the number of inputs (Hvarfner et al. 2024), and with their spread.
    middle = np.sqrt(2.0) + 0.5 * np.log(3.0) + np.log([1.0, 2.0, 0.5])
    expected = 0.0
    for term in (first, second):
        expected += stats.lognorm.logpdf(term.outputscale, 2.0, scale=1.7 / 2)
        expected += stats.lognorm.logpdf(term.lengthscale, np.sqrt(3.0), scale=np.exp(middle)).sum()
    expected += stats.lognorm.logpdf(second.period, 2.0).sum()
    assert process.log_prior(process.theta)[0] == pytest.approx(expected, rel=1e-12)
    names = np.array(process.names)
    for name in ("outputscale", "lengthscale", "period_length"):
        assert process.has_prior(np.flatnonzero(names == name))
    assert not process.has_prior(np.flatnonzero((names == "mean") | (names == "noise")))


@pytest.mark.parametrize("kernel", KERNELS)
def test_learning_starts_in_the_units_of_the_data(kernel):
    spread, periods = np.array([1.0, 2.0, 0.5]), np.array([0.5, 1.0, 2.0])
    process = build_process(kernel, "linear", None, 3, spread=spread, variance=1.7, periods=periods)
    assert process.kernel.outputscale == pytest.approx(1.7)
    assert process.noise == pytest.approx(0.17)
    for term in process.kernel.terms:
        np.testing.assert_allclose(term.lengthscale, 0.5 * np.sqrt(3.0) * spread)
        if term.name == "periodic":
            np.testing.assert_allclose(term.period, periods)
        if term.name == "rq":
            assert term.alpha == pytest.approx(np.log(2.0))
    bound = process.leaf_kernel.at(process.kernel_parameters())
    np.testing.assert_array_equal(bound.mean(np.ones((2, 3))), 0.0)


@pytest.mark.parametrize("value", [1e-12, 0.3, 1.0, 40.0, 1e6])
@pytest.mark.parametrize("transform", ["exp", "softplus", "identity"])
def test_values_are_turned_into_theta_and_back(transform, value):
    block = ParameterBlock("alpha", 2, transform, lower=0.25)
    theta = block.to_theta(value + 0.25)
    back = {
        "exp": np.exp,
        "softplus": lambda t: np.logaddexp(0.0, t),
        "identity": lambda t: t,
    }[transform](theta)
    np.testing.assert_allclose(back + 0.25, [value + 0.25] * 2, rtol=1e-12)


def test_a_process_does_not_change(rng):
    process = moved("rbf", "constant", rng)
    before = process.theta.copy()
    other = process.with_theta(before + 1.0)
    np.testing.assert_array_equal(process.theta, before)
    np.testing.assert_array_equal(other.theta, before + 1.0)
    assert other.leaf_kernel is process.leaf_kernel
    with pytest.raises(ValueError, match="read-only"):
        process.theta[0] = 1.0
    start = before.copy()
    held = process.with_theta(start)
    start[:] = 0.0  # what was passed in is the caller's
    np.testing.assert_array_equal(held.theta, before)


@pytest.mark.parametrize("kernel", ["rbf", "rq", "matern32+periodic"])
def test_rescaling_multiplies_signal_and_noise_and_keeps_the_rest(rng, kernel):
    process = moved(kernel, "constant", rng)
    larger = process.rescaled(2.5)
    assert larger.noise == pytest.approx(2.5 * process.noise, rel=1e-12)
    for one, other in zip(process.kernel.terms, larger.kernel.terms, strict=True):
        assert other.outputscale == pytest.approx(2.5 * one.outputscale, rel=1e-12)
        np.testing.assert_array_equal(other.lengthscale, one.lengthscale)
        assert other.alpha == one.alpha
    tiny = process.rescaled(1e-9)
    assert 1.7 * NOISE_FLOOR < tiny.noise < 1.01 * 1.7 * NOISE_FLOOR
    assert tiny.kernel.outputscale == pytest.approx(1e-9 * process.kernel.outputscale)


def test_a_theta_out_of_range_has_infinite_parameters_and_no_warning(rng):
    """An optimiser that went too far steps back."""
    process = moved("rq", "zero", rng)
    parameters = process.kernel_parameters(process.theta + 800.0)
    assert np.isinf(parameters).any()
    assert not np.isnan(parameters).any()
    assert (process.kernel_parameters(process.theta - 800.0) >= 0.0).all()


# Against GPyTorch


def read(modules, leaf_kernel):
    """The kernel parameters, read off the modules one by one; differentiable."""
    torch = pytest.importorskip("torch")
    scaled = getattr(modules.kernel, "kernels", [modules.kernel])
    parts = []
    for term, kernel in zip(leaf_kernel.terms, scaled, strict=True):
        parts += [kernel.base_kernel.lengthscale, kernel.outputscale]
        parts += [kernel.base_kernel.alpha] if term.kind == "rq" else []
        parts += [kernel.base_kernel.period_length] if term.kind == "periodic" else []
    if leaf_kernel.mean_kind == "constant":
        parts.append(modules.mean.constant)
    elif leaf_kernel.mean_kind == "linear":
        parts += [modules.mean.weights, modules.mean.bias]
    return torch.cat([part.reshape(-1) for part in (*parts, modules.likelihood.noise)])


def by_autograd(torch, value, modules):
    """The gradient of a value by theta."""
    parameters = modules.trainable()
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    return np.concatenate(
        [
            np.zeros(p.numel()) if g is None else g.reshape(-1).numpy()
            for p, g in zip(parameters, gradients, strict=True)
        ]
    )


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_process_is_that_of_its_gpytorch_modules(rng, kernel, mean):
    torch = pytest.importorskip("torch")
    from dsmgp.gp.gpytorch_process import GPyTorchProcess, gpytorch_modules

    process = moved(kernel, mean, rng)
    modules = gpytorch_modules(process)
    adapted = GPyTorchProcess(gpytorch_modules(process), 3)
    assert adapted.names == process.names
    np.testing.assert_allclose(adapted.theta, process.theta, rtol=1e-14)
    assert adapted.noise == pytest.approx(process.noise, rel=1e-14)
    columns = np.arange(len(process.theta))
    assert [process.has_prior(columns == k) for k in columns] == [
        adapted.has_prior(columns == k) for k in columns
    ]
    one, table = thetas_of(process, rng)
    for theta in (one, *table):
        modules.set_theta(torch.from_numpy(theta.copy()))
        parameters = read(modules, process.leaf_kernel)
        found = process.kernel_parameters(theta)
        np.testing.assert_allclose(found, parameters.detach().numpy(), rtol=1e-12)
        weights = rng.normal(size=len(found))
        back = by_autograd(torch, (parameters * torch.from_numpy(weights)).sum(), modules)
        np.testing.assert_allclose(process.pull_back(theta, weights), back, rtol=1e-10, atol=1e-12)
        noise, by_noise = process.noise_and_gradient(theta)
        assert noise == pytest.approx(modules.likelihood.noise.item(), rel=1e-12)
        expected = by_autograd(torch, modules.likelihood.noise.sum(), modules)
        np.testing.assert_allclose(by_noise, expected, rtol=1e-12)
        log_prior, by_prior = process.log_prior(theta)
        density = modules.prior_log_density()
        assert log_prior == pytest.approx(density.item(), rel=1e-12)
        expected = by_autograd(torch, density, modules)
        np.testing.assert_allclose(by_prior, expected, rtol=1e-10, atol=1e-12)
    # Tables at once, in both.
    for name in ("noise_and_gradient", "log_prior"):
        for got, expected in zip(
            getattr(process, name)(table), getattr(adapted, name)(table), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_covariances_and_means_are_those_of_its_gpytorch_modules(rng, kernel, mean):
    torch = pytest.importorskip("torch")
    from dsmgp.gp.gpytorch_process import gpytorch_modules

    process = moved(kernel, mean, rng)
    modules = gpytorch_modules(process)
    bound = process.leaf_kernel.at(process.kernel_parameters())
    A, B = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    with torch.no_grad():
        cross = modules.kernel(torch.from_numpy(A), torch.from_numpy(B)).to_dense().numpy()
        K = modules.kernel(torch.from_numpy(A)).to_dense().numpy()
        expected = modules.mean(torch.from_numpy(A)).numpy()
    np.testing.assert_allclose(bound.cross(A, B), cross, rtol=1e-10, atol=1e-12)
    # GPyTorch's own distances are rounded
    np.testing.assert_allclose(bound.covariance(A)[0], K, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(bound.variance(A), K.diagonal(), rtol=1e-12)
    np.testing.assert_allclose(bound.mean(A), expected, rtol=1e-12, atol=1e-12)
