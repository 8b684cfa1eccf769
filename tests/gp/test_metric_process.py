"""Processes of a linear map of the inputs: the same covariance as the length scales they start from, priors, directions."""

import numpy as np
import pytest
from scipy import stats

from dsmgp.gp.leaf_kernels import MetricKernel
from dsmgp.gp.metric_process import metric_directions, metric_process, principal_directions
from dsmgp.gp.process import build_process
from tests.support.finite_differences import central_difference

MEANS = ("zero", "constant", "linear")


def learned(rng, kernel="matern32", mean="linear"):
    """An ARD process away from where learning starts."""
    process = build_process(kernel, mean, 0.1, 3, spread=[1.0, 2.0, 0.5], variance=1.7)
    return process.with_theta(process.theta + 0.3 * rng.normal(size=len(process.theta)))


def moved(process, rng):
    return process.with_theta(process.theta + 0.3 * rng.normal(size=len(process.theta)))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
def test_it_starts_at_the_covariance_of_the_length_scales(rng, kernel, mean):
    process = learned(rng, kernel, mean)
    metric = metric_process(process, 3)
    assert metric.leaf_kernel == MetricKernel(kernel, 3, 3, mean)
    assert metric.noise == process.noise
    A, B = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    one, other = (p.leaf_kernel.at(p.kernel_parameters()) for p in (process, metric))
    np.testing.assert_allclose(other.cross(A, B), one.cross(A, B), rtol=1e-12)
    np.testing.assert_allclose(other.covariance(A)[0], one.covariance(A)[0], rtol=1e-12)
    np.testing.assert_array_equal(other.mean(A), one.mean(A))
    np.testing.assert_array_equal(other.variance(A), one.variance(A))


def test_the_most_relevant_inputs_are_kept(rng):
    process = learned(rng)
    parameters = metric_process(process, 2).kernel_parameters()
    lengthscale = process.kernel.lengthscale
    A = parameters[:6].reshape(3, 2)
    dropped = int(lengthscale.argmax())
    assert not A[dropped].any()
    kept = np.delete(A, dropped, axis=0)
    np.testing.assert_allclose(kept, np.diag(1.0 / np.delete(lengthscale, dropped)), rtol=1e-12)
    np.testing.assert_array_equal(parameters[6:], process.kernel_parameters()[3:])


@pytest.mark.parametrize("mean", MEANS)
def test_gradients_equal_finite_differences(rng, mean):
    process = moved(metric_process(learned(rng, mean=mean), 2), rng)
    theta = process.theta
    by_theta = central_difference(process.kernel_parameters, theta)
    weights = rng.normal(size=len(by_theta))
    np.testing.assert_allclose(
        process.pull_back(theta, weights), weights @ by_theta, rtol=1e-8, atol=1e-9
    )
    expected = central_difference(lambda at: np.array(process.log_prior(at)[0]), theta)
    np.testing.assert_allclose(process.log_prior(theta)[1], expected, rtol=1e-8, atol=1e-9)


def test_the_prior_of_the_map_is_normal(rng):
    process = moved(metric_process(learned(rng), 2), rng)
    parameters = process.kernel_parameters()
    middle = np.sqrt(2.0) + 0.5 * np.log(3.0) + np.log([1.0, 2.0, 0.5])
    width = np.exp(np.sqrt(3.0) - middle)[:, None]
    expected = stats.norm.logpdf(parameters[:6].reshape(3, 2), scale=width).sum()
    expected += stats.lognorm.logpdf(parameters[6], 2.0, scale=1.7)
    assert process.log_prior(process.theta)[0] == pytest.approx(expected, rel=1e-12)
    assert process.has_prior(np.flatnonzero(np.array(process.names) == "metric"))


def test_rescaling_keeps_the_map(rng):
    process = metric_process(learned(rng), 2)
    larger = process.rescaled(2.5)
    assert larger.noise == pytest.approx(2.5 * process.noise, rel=1e-12)
    before, after = process.kernel_parameters(), larger.kernel_parameters()
    assert after[6] == pytest.approx(2.5 * before[6], rel=1e-12)
    np.testing.assert_array_equal(after[:6], before[:6])


def test_directions_are_orthogonal_in_order_and_have_the_same_covariance(rng):
    process = moved(metric_process(learned(rng), 2), rng)
    A = process.kernel_parameters()[:6].reshape(3, 2)
    found = metric_directions(process)
    np.testing.assert_allclose(found @ found.T, A @ A.T, atol=1e-12)
    lengths = np.linalg.norm(found, axis=0)
    assert lengths[0] > lengths[1]
    np.testing.assert_allclose(found.T @ found, np.diag(lengths**2), atol=1e-12)
    np.testing.assert_allclose(lengths, np.linalg.svd(A)[1], rtol=1e-12)
    Q = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    np.testing.assert_allclose(principal_directions(A @ Q), found, atol=1e-12)


def test_other_kernels_ranks_and_processes_are_refused(rng):
    process = learned(rng)
    for other in ("rq", "periodic", "rbf+periodic"):
        with pytest.raises(ValueError, match="expected one kernel of rbf"):
            metric_process(learned(rng, other), 2)
    for rank in (0, 4):
        with pytest.raises(ValueError, match=f"between 1 and the 3 inputs, got {rank}"):
            metric_process(process, rank)
    with pytest.raises(ValueError, match="a process of metric_process"):
        metric_directions(process)
    with pytest.raises(ValueError, match="has no length scales"):
        metric_process(process, 2).kernel  # noqa: B018
