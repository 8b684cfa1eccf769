"""A small neural network of the inputs, whose outputs are further coordinates of a fit: the deep kernel of Wilson et al. (2016).

It is learned by the evidence (:mod:`dsmgp.fitting.learning.network`) and kept in :class:`~dsmgp.gp.transforms.coordinates.Coordinates`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array

__all__ = ["Layer", "Network"]

# Rows that pass through the layers together: their activations stay in the processor's cache.
ROWS_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Layer:
    """The map ``h -> h @ weights + biases``.

    Attributes
    ----------
    weights : ndarray of shape (n_in, n_out)
    biases : ndarray of shape (n_out,)
    """

    weights: Array
    biases: Array


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """Layers with tanh between them.

    Attributes
    ----------
    layers : tuple of Layer
    slopes : ndarray of shape (n_inputs, n_outputs)
        Root mean squares of the derivatives of its outputs, over the rows that it was learned on.

    Examples
    --------
    >>> layers = Layer(np.eye(2), np.zeros(2)), Layer(np.ones((2, 1)), np.zeros(1))
    >>> network = Network(layers, slopes=np.ones((2, 1)))
    >>> network(np.array([[0.0, 0.5]])).round(3)
    array([[0.462]])
    """

    layers: tuple[Layer, ...]
    slopes: Array

    def __repr__(self) -> str:
        return f"Network({' -> '.join(map(str, self.widths))})"

    @property
    def widths(self) -> list[int]:
        """Numbers of inputs, of units of each hidden layer, and of outputs."""
        return [len(self.layers[0].weights), *(len(layer.biases) for layer in self.layers)]

    @property
    def n_outputs(self) -> int:
        return len(self.layers[-1].biases)

    def __call__(self, U: Array) -> Array:
        """Return the outputs for rows of U, (n_rows, n_outputs)."""
        outputs = np.empty((len(U), self.n_outputs))
        for first in range(0, len(U), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            h = U[rows]
            for k, layer in enumerate(self.layers):
                h = _product(np.tanh(h) if k else h, layer.weights) + layer.biases
            outputs[rows] = h
        return outputs

    def after(self, centre: Array, scale: Array) -> Network:
        """Return the network of u that is this one of ``(u - centre) / scale``."""
        first, *others = self.layers
        weights = first.weights / scale[:, None]
        first = Layer(weights, first.biases - centre @ weights)
        return Network((first, *others), self.slopes / scale[:, None])


def _product(rows: Array, matrix: Array) -> Array:
    """Multiply column by column: BLAS rounds differently for other numbers of rows, and equal rows must stay equal."""
    total = np.zeros((len(rows), matrix.shape[1]))
    for column, weights in zip(_columns(rows), matrix, strict=True):
        total += column * weights
    return total


def _columns(A: Array) -> Iterable[Array]:
    return np.ascontiguousarray(A.T)[:, :, None]
