"""A network of the inputs learned by the evidence of blocks of rows."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dsmgp.fitting.learning import network as module
from dsmgp.fitting.learning.network import block_gradient, learn_network, neighbour_blocks
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import STATIONARY

KERNELS = ("rbf", "matern12", "matern32", "matern52")


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gradient_equals_finite_differences_of_the_dense_evidence(kernel, rng):
    Z, Y = rng.normal(size=(15, 3)), rng.normal(size=(15, 2))
    layers = [rng.normal(size=shape) / 2 for shape in [(3, 6), (6,), (6, 4), (4,)]]
    theta = [0.3 * rng.normal(size=3 + 4 + 2) for _ in Y.T]
    values = [*layers, *theta]

    def loss(values):
        weights, biases, last, last_biases, *theta = values
        inputs = np.hstack([Z, np.tanh(Z @ weights + biases) @ last + last_biases])
        total = 0.0
        for (*logs, log_scale, log_noise), y in zip(theta, Y.T, strict=True):
            term = KernelTerm(kernel, np.exp(logs), np.exp(log_scale))
            noise = np.exp(log_noise) + module.JITTER * np.exp(log_scale)
            K = Kernel((term,))(inputs) + noise * np.eye(len(y))
            total -= multivariate_normal.logpdf(y, cov=K)
        return total / len(Z)

    found, gradients = block_gradient(layers, theta, [kernel, kernel], Z, Y)
    assert found == pytest.approx(loss(values), rel=1e-9)
    for value, gradient in zip(values, gradients, strict=True):
        for place in list(np.ndindex(value.shape))[:5]:
            before = value[place]
            value[place] = before + 1e-6
            above = loss(values)
            value[place] = before - 1e-6
            below = loss(values)
            value[place] = before
            assert gradient[place] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-7)


def test_blocks_are_rows_that_lie_together(rng):
    Z = rng.normal(size=(3000, 2))
    among = np.flatnonzero(Z[:, 0] > 0)
    blocks = neighbour_blocks(Z, among, rng)
    rows = np.concatenate(blocks)
    assert len(set(rows)) == len(rows)
    assert np.isin(rows, among).all()
    assert {len(block) for block in blocks} == {module.BLOCK_ROWS}
    assert (
        np.mean([Z[block].var(axis=0).sum() for block in blocks]) < 0.8 * Z[among].var(axis=0).sum()
    )


def test_a_function_of_varying_frequency_becomes_smooth(rng, monkeypatch):
    """In the coordinates of the network the evidence of rows that it has not seen is higher."""
    monkeypatch.setattr(module, "MOST_EPOCHS", 40)
    Z = rng.normal(size=(1000, 2))
    y = np.sin(3.0 * np.exp(Z[:, 0])) + 0.05 * rng.normal(size=1000)
    process = build_process("rbf", "zero", None, 2)
    learned, new = np.arange(800), np.arange(800, 1000)
    network = learn_network(Z[learned], y[learned, None], [process], rng)
    assert network.slopes[0].max() > 3 * network.slopes[1].max()  # the second input has no effect

    def best_evidence(inputs):
        """The highest evidence over a grid of length scales, signal and noise as they are."""
        scores = []
        for lengthscale in np.geomspace(0.1, 10, 9):
            r2 = np.square((inputs[:, None] - inputs) / lengthscale).sum(-1)
            K = STATIONARY["rbf"](r2, 1.0)[0] + 0.05**2 * np.eye(len(inputs))
            scores.append(multivariate_normal.logpdf(y[new], cov=K))
        return max(scores)

    bent = np.hstack([Z[new], network(Z[new])])
    assert best_evidence(bent) > best_evidence(Z[new]) + 30.0
