"""Blocks of rows at the edges of the data, left out of one leaf together."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.fitting.outside.edge_rows import examined_inputs
from dsmgp.linalg.cholesky import NotFactorisedError, cholesky, inverse_from_factor
from dsmgp.linalg.threads import Threads
from dsmgp.mixture.edges import Edges
from dsmgp.mixture.model import Model

__all__ = ["BLOCKS", "EdgeBlock", "blocks_at_edges", "left_out_blocks"]

logger = logging.getLogger("dsmgp")

# Shares of the rows in the blocks at the edges of the data, the rows of which that are sampled, and the least
# of a block.
BLOCKS, MOST_DENSE_ROWS, LEAST_BLOCK = (0.1, 0.25), 300, 3


@dataclass(frozen=True, eq=False)
class EdgeBlock:
    """Rows at an end of an input.

    Attributes
    ----------
    column : int
    side : int
        1 for the largest values, -1 for the smallest.
    share : float
        Of the rows, that were to be in the block.
    end : float
        The value of the input at which the other rows end.
    rows : ndarray of shape (n,)
    """

    column: int
    side: int
    share: float
    end: float
    rows: Index


def blocks_at_edges(X: Array, columns: Index) -> Iterator[EdgeBlock]:
    """Yield the blocks at both ends of some inputs that have enough rows."""
    for j in columns.tolist():
        for side, share in itertools.product((1, -1), BLOCKS):
            end = side * np.sort(side * X[:, j])[len(X) - 1 - int(share * len(X))]
            block = np.flatnonzero(side * (X[:, j] - end) > 0)
            if len(block) >= LEAST_BLOCK:
                yield EdgeBlock(j, side, share, float(end), block)


def left_out_blocks(
    model: Model,
    edges: Edges,
    X: Array,
    Y: Array,
    noise: Array | None,
    weights: Array,
) -> tuple[Array, Array] | None:
    """Leave out whole blocks of rows at the edges of the data, in one leaf of all rows or of a sample.

    Returns
    -------
    terms : ndarray of shape (n, 1 + n_inputs)
    squares : ndarray of shape (n,)
        Squared residuals, relative to what the leaf expects given how well it predicts rows left out one by one.
    """
    if len(X) > MOST_DENSE_ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(len(X), MOST_DENSE_ROWS, replace=False))
        X, Y, weights = X[chosen], Y[chosen], weights[chosen]
        noise = None if noise is None else noise[chosen]
    U = model.inputs.to_coordinates(X)

    def solved(U: Array) -> list[tuple[Array, Array, float]]:
        return _solved(model, model.scaled(U), Y, noise, weights)

    parts = []
    try:
        # On a thread of the pool: GPyTorch's kernels would start OpenMP's threads here, which do not survive a fork.
        (of_all,) = Threads().map(solved, [U])
        for edge_block in blocks_at_edges(X, examined_inputs(edges, model.inputs, X)):
            block = edge_block.rows
            which, ends = (np.full(len(block), k) for k in (edge_block.column, edge_block.end))
            terms = edges.terms_beyond(X[block], which, ends, model.inputs)
            beyond = model.inputs.beyond(U[block], X[block], which, ends)
            of_block = of_all
            if not np.array_equal(beyond, U[block]):
                U_beyond = U.copy()
                U_beyond[block] = beyond
                (of_block,) = Threads().map(solved, [U_beyond])
            parts += _squares(block, of_block, of_all, terms)
    except NotFactorisedError:
        logger.info("no blocks are left out: the covariance of all rows cannot be factorised")
        return None
    if not parts:
        return None
    terms, squares = (np.concatenate(part) for part in zip(*parts, strict=True))
    return (terms, squares) if np.isfinite(squares).all() else None


def _squares(
    block: Index,
    of_block: list[tuple[Array, Array, float]],
    of_all: list[tuple[Array, Array, float]],
    terms: Array,
) -> list[tuple[Array, Array]]:
    """Return the terms of a block and its squared residuals for each output, in the scale of all rows left out one by one."""
    parts = []
    for (inverse, alpha, _), (*_, scale) in zip(of_block, of_all, strict=True):
        # R&W section 5.4.2, for a group of rows: covariance S, residuals S alpha.
        S = np.linalg.inv(inverse[np.ix_(block, block)])
        parts.append((terms, np.square(S @ alpha[block]) / np.diag(S) / scale))
    return parts


def _solved(
    model: Model, Z: Array, Y: Array, noise: Array | None, weights: Array
) -> list[tuple[Array, Array, float]]:
    """Return for each output the inverse covariance of one leaf of all rows, that times the residuals, and its leave-one-out scale."""
    latent = model.outputs.to_experts(Y)
    known = np.zeros_like(latent) if noise is None else model.outputs.noise_to_experts(noise)
    family = model.families[0]
    pairs = zip(family.leaf_kernels, family.kernel_parameters, strict=True)
    solved = []
    for output, (kernel, parameters) in enumerate(pairs):
        prior = kernel.at(parameters)
        factor, _ = cholesky(prior.cross(Z, Z), (prior.noise + known[:, output]) / weights)
        inverse = inverse_from_factor(factor)
        alpha = inverse @ (latent[:, output] - prior.mean(Z))
        squares = np.square(alpha) / np.diag(inverse)
        scale = float(np.average(squares, weights=weights))
        if scale > 0.0:  # not a constant output
            solved.append((inverse, alpha, scale))
    return solved
