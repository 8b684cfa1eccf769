"""Learning a small network of the inputs by the evidence: a deep kernel, shared by all leaves.

Length scales and a metric stretch and turn the input space as a whole. A network bends it: its outputs, beside the
inputs themselves, are coordinates in which a stationary kernel fits functions that vary faster in some places than in
others (Wilson et al. 2016). It is learned by stochastic gradients of the exact log evidence of small blocks of
neighbouring rows; known noise and weights of rows play no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.gp.process import Process
from dsmgp.gp.terms import STATIONARY
from dsmgp.gp.transforms.network import Layer, Network
from dsmgp.linalg.lapack import factorise, invert_factor
from dsmgp.linalg.threads import Threads
from dsmgp.progress import stopping, tick

__all__ = ["block_gradient", "learn_network"]

# Units of each hidden layer, and outputs of the network.
WIDTH, N_OUTPUTS = 64, 4
# Rows of a block, and blocks whose gradients make one step.
BLOCK_ROWS, BLOCKS_PER_STEP = 256, 4
# How often every row is seen at most, and rows seen in all at most.
MOST_EPOCHS, MOST_VISITS = 100, 1_200_000
# Share and number of rows that nothing is learned on, and how often their evidence is looked at: the best network so far is kept.
HELD_OUT, MOST_HELD_OUT, N_CHECKS = 0.1, 2048, 12
# Rows at which derivatives are averaged.
SLOPE_ROWS = 1000
# Highest learning rates, of the network and of the hyperparameters.
RATES = (4e-3, 2e-2)
# Share of the steps in which the rates grow; after it they fall to nothing.
WARM_UP = 0.3
# Added to the diagonal, relative to the output scale.
JITTER = 1e-6


def learn_network(
    Z: Array, Y: Array, processes: Sequence[Process], rng: np.random.Generator
) -> Network:
    """Learn a network of the rows of Z, whose outputs are in units of their length scale.

    Parameters
    ----------
    Z : ndarray of shape (n_rows, n_inputs)
        Scaled inputs.
    Y : ndarray of shape (n_rows, n_outputs)
        Scaled outputs.
    processes : sequence of Process
        By output, with a stationary kernel of Z: where its hyperparameters start.
    rng : numpy.random.Generator

    References
    ----------
    A. G. Wilson, Z. Hu, R. Salakhutdinov and E. P. Xing (2016). Deep kernel learning. AISTATS.
    """
    n_inputs = Z.shape[1]
    held_out, learned_on = np.split(rng.permutation(len(Z)), [_n_held_out(len(Z))])
    layers = _initial_layers(n_inputs, rng)
    kernels = [process.kernel for process in processes]
    theta = [
        np.log(np.r_[kernel.lengthscale, np.ones(N_OUTPUTS), kernel.outputscale, process.noise])
        for kernel, process in zip(kernels, processes, strict=True)
    ]
    names, threads = [kernel.name for kernel in kernels], Threads()

    def objective(values: Sequence[Array], blocks: list[Index]) -> tuple[float, list[Array]]:
        """Average over blocks, each on one thread."""
        of_layers, of_outputs = values[: len(layers)], values[len(layers) :]
        losses, gradients = zip(
            *threads.map(
                lambda rows: block_gradient(of_layers, of_outputs, names, Z[rows], Y[rows]), blocks
            ),
            strict=True,
        )
        by_value = [np.mean(parts, axis=0) for parts in zip(*gradients, strict=True)]
        return float(np.mean(losses)), by_value

    values = _minimise(
        objective,
        [*layers, *theta],
        [RATES[0]] * len(layers) + [RATES[1]] * len(theta),
        _batches(Z, learned_on, rng),
        neighbour_blocks(Z, held_out, rng),
        _n_steps(len(learned_on)),
    )
    layers, theta = values[: len(layers)], values[len(layers) :]
    lengthscale = np.exp(np.mean([t[n_inputs : n_inputs + N_OUTPUTS] for t in theta], axis=0))
    *hidden, last_weights, last_biases = layers
    layers = [*hidden, last_weights / lengthscale, last_biases / lengthscale]
    slopes = _root_mean_square_slopes(layers, Z[learned_on[:SLOPE_ROWS]])
    return Network(tuple(map(Layer, layers[0::2], layers[1::2])), slopes)


def _minimise(
    objective: Callable[[Sequence[Array], list[Index]], tuple[float, list[Array]]],
    values: list[Array],
    rates: Sequence[float],
    batches: Iterator[list[Index]],
    judges: list[Index],
    n_steps: int,
) -> list[Array]:
    """Change values by Adam, in place, and return those with the least loss of the blocks that judge, looked at now and then."""
    adam = _Adam(values, rates, n_steps)
    least, best = math.inf, values
    for step in range(1, n_steps + 1):
        adam.step(objective(values, next(batches))[1])
        tick(step / n_steps)
        if step % max(n_steps // N_CHECKS, 1) == 0 or step == n_steps:
            loss, _ = objective(values, judges)
            if loss < least:
                least, best = loss, [value.copy() for value in values]
            if stopping():
                break
    return best


def _batches(Z: Array, rows: Index, rng: np.random.Generator) -> Iterator[list[Index]]:
    """Yield the blocks of each step, pass after pass through the rows."""
    while True:
        blocks = neighbour_blocks(Z, rows, rng)
        for first in range(0, len(blocks), BLOCKS_PER_STEP):
            yield blocks[first : first + BLOCKS_PER_STEP]


def _n_steps(n_rows: int) -> int:
    visits = min(MOST_EPOCHS * n_rows, MOST_VISITS)
    return math.ceil(visits / min(n_rows, BLOCK_ROWS * BLOCKS_PER_STEP))


def _n_held_out(n_rows: int) -> int:
    """Number of rows that judge: at least a block, if half of the rows are that many."""
    return min(max(round(HELD_OUT * n_rows), BLOCK_ROWS), MOST_HELD_OUT, n_rows // 2)


def _root_mean_square_slopes(layers: Sequence[Array], Z: Array) -> Array:
    """Average the derivatives of the outputs of a network over rows, (n_inputs, n_outputs)."""
    h, slopes = Z, np.broadcast_to(np.eye(Z.shape[1]), (len(Z), Z.shape[1], Z.shape[1]))
    for layer, (weights, biases) in enumerate(zip(layers[0::2], layers[1::2], strict=True)):
        if layer:
            h = np.tanh(h)
            slopes = slopes * (1.0 - np.square(h))[:, None, :]
        h, slopes = h @ weights + biases, slopes @ weights
    return np.asarray(np.sqrt(np.mean(np.square(slopes), axis=0)))


def _initial_layers(n_inputs: int, rng: np.random.Generator) -> list[Array]:
    """Weights and biases, layer after layer; a unit's weights have variance 1 / n_in."""
    widths = [n_inputs, WIDTH, WIDTH, N_OUTPUTS]
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [rng.normal(size=(n_in, n_out)) / math.sqrt(n_in), np.zeros(n_out)]
    return layers


def neighbour_blocks(Z: Array, among: Index, rng: np.random.Generator) -> list[Index]:
    """Cut some rows into blocks of neighbours, at medians along directions that are drawn anew each time, in random order."""
    blocks = [among]
    while len(blocks[0]) >= 2 * BLOCK_ROWS:
        halves = []
        for rows in blocks:
            order = rows[np.argpartition(Z[rows] @ rng.normal(size=Z.shape[1]), len(rows) // 2)]
            halves += [order[: len(rows) // 2], order[len(rows) // 2 :]]
        blocks = halves
    return [rng.permutation(blocks[k])[:BLOCK_ROWS] for k in rng.permutation(len(blocks))]


def block_gradient(
    layers: Sequence[Array],
    theta: Sequence[Array],
    kernels: Sequence[str],
    Z: Array,
    Y: Array,
) -> tuple[float, list[Array]]:
    """Return the negative log evidence of a block, per row, and its gradients by the layers and by the hyperparameters of each output.

    Parameters
    ----------
    layers : sequence of ndarray
        Weights and biases in turn.
    theta : sequence of ndarray
        By output: logs of length scales (inputs, then outputs of the network), output scale and noise variance.
    kernels : sequence of str
    Z : ndarray of shape (n_rows, n_inputs)
    Y : ndarray of shape (n_rows, n_outputs)
    """
    activations = [Z]
    for weights, biases in zip(layers[0::2], layers[1::2], strict=True):
        h = activations[-1] @ weights + biases
        activations.append(np.tanh(h))
    inputs = np.hstack([Z, h])
    by_features = np.zeros_like(h)
    by_theta = []
    loss = 0.0
    for values, kernel, y in zip(theta, kernels, Y.T, strict=True):
        of_output, by_inputs, gradient = _evidence_gradient(values, kernel, inputs, y)
        loss += of_output
        by_features += by_inputs[:, Z.shape[1] :]
        by_theta.append(gradient)
    gradients: list[Array] = []
    back = by_features
    for layer in range(len(layers) // 2 - 1, -1, -1):
        gradients = [activations[layer].T @ back, back.sum(axis=0), *gradients]
        if layer:
            back = (back @ layers[2 * layer].T) * (1.0 - np.square(activations[layer]))
    return loss / len(Z), [each / len(Z) for each in (*gradients, *by_theta)]


def _evidence_gradient(
    theta: Array, kernel: str, inputs: Array, y: Array
) -> tuple[float, Array, Array]:
    """Return the negative log evidence, and its gradients by the inputs of the kernel and by the logs of its hyperparameters."""
    lengthscale, (outputscale, noise) = np.exp(theta[:-2]), np.exp(theta[-2:])
    U = inputs / lengthscale
    squares = np.square(U).sum(axis=1)
    r2 = np.maximum(squares[:, None] + squares - 2.0 * (U @ U.T), 0.0)
    np.fill_diagonal(r2, 0.0)
    k, slope = STATIONARY[kernel](r2, 1.0)
    K = outputscale * k
    K[np.diag_indices_from(K)] += noise + JITTER * outputscale
    inverse = K.copy()
    if not factorise(inverse):
        return math.inf, np.zeros_like(inputs), np.zeros_like(theta)  # a step without this block
    half_log_det = float(np.log(inverse.diagonal()).sum())
    invert_factor(inverse)
    lower = np.tril(inverse)
    inverse = lower.T @ lower
    alpha = inverse @ y
    W = np.outer(alpha, alpha) - inverse
    G = outputscale * W * slope()
    np.fill_diagonal(G, 0.0)
    # d(-log evidence) / dU_i = 2 sum_j G_ij (U_i - U_j), with dk/dr2 = -slope
    by_scaled = 2.0 * (G.sum(axis=1)[:, None] * U - G @ U)
    gradient = np.empty_like(theta)
    gradient[:-2] = -(by_scaled * U).sum(axis=0)
    gradient[-2] = -0.5 * outputscale * (np.vdot(W, k) + JITTER * np.trace(W))
    gradient[-1] = -0.5 * noise * np.trace(W)
    loss = 0.5 * (float(y @ alpha) + len(y) * LOG_2PI) + half_log_det
    return loss, by_scaled / lengthscale, gradient


class _Adam:
    """Adam, in place, with learning rates that grow linearly and then fall as a cosine."""

    def __init__(self, values: Sequence[Array], rates: Sequence[float], n_steps: int) -> None:
        self.values, self.rates, self.n_steps = values, rates, n_steps
        self.means = [np.zeros_like(value) for value in values]
        self.squares = [np.zeros_like(value) for value in values]
        self.done = 0

    def step(self, gradients: Sequence[Array], beta: tuple[float, float] = (0.9, 0.99)) -> None:
        self.done += 1
        progress = self.done / (self.n_steps + 1)
        rate = min(
            progress / WARM_UP,
            0.5 * (1 + math.cos(math.pi * max(progress - WARM_UP, 0) / (1 - WARM_UP))),
        )
        of_value = zip(self.values, self.rates, self.means, self.squares, gradients, strict=True)
        for value, highest, mean, square, gradient in of_value:
            mean += (1 - beta[0]) * (gradient - mean)
            square += (1 - beta[1]) * (np.square(gradient) - square)
            corrected = mean / (1 - beta[0] ** self.done)
            spread = np.sqrt(square / (1 - beta[1] ** self.done)) + 1e-8
            value -= rate * highest * corrected / spread
