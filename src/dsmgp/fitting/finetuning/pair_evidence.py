"""The evidence of leaves at one another's hyperparameters, which fine-tuning maximises, and its gradient.

For leaf i it is ``sum_j w_ij log p(y_j | X_j, theta_i)`` over the few leaves j that are similar to it. A pair (i, j) is a leaf GP with the
rows of j and the hyperparameters of i; all pairs are evaluated together, as the leaves of a tree are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import PARALLEL_ROWS
from dsmgp.experts.interface import LeafGPs
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.points import LeafPoints, Observations
from dsmgp.gp.leaf_parameters import LeafParameters
from dsmgp.tree.nodes import Leaf

__all__ = ["NoiseEvidence", "PairEvidence"]

# Eigenvalues that are held at a time while evidences are summed.
CHUNK = 2**21


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs of some leaves, one leaf after the other.

    Attributes
    ----------
    leaf : ndarray of shape (n_leaves,)
        Numbers of the leaves, in increasing order.
    position : ndarray of shape (n_pairs,)
        Position of each pair's leaf i in ``leaf``.
    weights : sparse matrix of shape (n_leaves, n_pairs)
        Sums the pairs of each leaf with their weights w_ij.
    gps : LeafGPs
        One for each pair.
    theta : ndarray of shape (n_leaves, n_parameters)
        The latest theta of each leaf.
    """

    leaf: Index
    position: Index
    weights: sparse.csr_matrix
    gps: LeafGPs
    theta: Array


class PairEvidence:
    """The evidence by pairs of leaves, for any hyperparameters.

    Parameters
    ----------
    leaf_gps : LeafGPs
        All leaves.
    leaves : sequence of Leaf
    thetas : LeafParameters
        Of one output.
    output : int
    ties : sparse matrix of shape (n_leaves, n_leaves)
        The weights w_ij.
    """

    def __init__(
        self,
        leaf_gps: LeafGPs,
        leaves: Sequence[Leaf],
        thetas: LeafParameters,
        output: int,
        ties: sparse.csr_matrix,
    ) -> None:
        self.leaf_gps, self.leaves, self.thetas = leaf_gps, leaves, thetas
        self.output, self.ties = output, ties
        self._pairs: _Pairs | None = None

    def __call__(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Return values (n,) and gradients by theta (n, n_parameters) of leaves, given in increasing order."""
        pairs = self._pairs
        # Leaves whose search has ended are evaluated along with the others until they are more than half of all.
        if (
            pairs is None
            or len(leaf) <= 0.5 * len(pairs.leaf)
            or not np.isin(leaf, pairs.leaf).all()
        ):
            pairs = self._pairs = self._set_up(leaf)
        where = np.searchsorted(pairs.leaf, leaf)
        pairs.theta[where] = theta
        parameters = self.thetas.kernel_parameters(pairs.leaf, pairs.theta)
        by_pair = [parameters[pairs.position]]
        evidence, (gradients,) = pairs.gps.log_evidence_and_gradient(by_pair)
        value, by_parameters = pairs.weights @ evidence[:, 0], pairs.weights @ gradients
        with np.errstate(invalid="ignore"):
            gradient = self.thetas.pull_back(pairs.leaf, pairs.theta, by_parameters)
        return value[where], gradient[where]

    def _set_up(self, leaf: Index) -> _Pairs:
        """Set up the GPs of all pairs of some leaves."""
        ties = self.ties[leaf]
        position = np.repeat(np.arange(len(leaf)), np.diff(ties.indptr))
        kernels = [self.thetas.leaf_kernels[f] for f in self.thetas.family[leaf].tolist()]
        gps = InMemoryLeafGPs(
            [self.leaves[j] for j in ties.indices.tolist()],
            self.leaf_gps.data.of_output(self.output),
            [[kernels[k] for k in position.tolist()]],
            self.leaf_gps.threads,
            memory=self.leaf_gps.memory,
            device=self.leaf_gps.device,
            dtype=self.leaf_gps.dtype,
        )
        weights = sparse.csr_matrix(
            (ties.data, np.arange(ties.nnz), ties.indptr), shape=(len(leaf), ties.nnz)
        )
        return _Pairs(leaf, position, weights, gps, np.zeros((len(leaf), len(self.thetas.names))))


class NoiseEvidence:
    """The evidence by pairs where only noise changes: one eigendecomposition per leaf and kernel, then O(rows) per pair.

    With the covariance of a leaf, known noise included, ``K = Q diag(e) Q'`` and ``u = Q'(y - mean)`` the log evidence at noise s is
    ``-1/2 sum(u^2 / (e + s) + log(e + s)) - n/2 log 2 pi``. Where m rows share their inputs, ``m - 1`` eigenvalues are zero, and the squares of u along
    these sum to the squares of the rows around their average; the others are those of the averages, scaled by ``sqrt(m)``. Where rows have
    weights, m is the sum of them, and one eigenvalue counts for all ``m - 1``.

    Parameters
    ----------
    leaf_gps, thetas, output, ties
        See :class:`PairEvidence`.
    theta : ndarray of shape (n_leaves, n_parameters)
        Values of all parameters but the noise.
    """

    def __init__(
        self,
        leaf_gps: LeafGPs,
        thetas: LeafParameters,
        output: int,
        ties: sparse.csr_matrix,
        theta: Array,
    ) -> None:
        self.leaf_gps, self.thetas, self.output, self.ties = leaf_gps, thetas, output, ties
        # Pairs with the rows of one leaf and equal kernels share a spectrum.
        fixed = np.array([name != "noise" for name in thetas.names])
        kernels = np.column_stack([thetas.family, theta[:, fixed]])
        _, first, kernel = np.unique(kernels, axis=0, return_index=True, return_inverse=True)
        n_leaves = len(leaf_gps.leaf_rows)
        i, j = np.repeat(np.arange(n_leaves), np.diff(ties.indptr)), ties.indices
        keys, spectrum = np.unique(kernel.reshape(-1)[i] * n_leaves + j, return_inverse=True)
        #: The pairs of each leaf, and by pair the number of its spectrum.
        self._pairs = Ragged(np.arange(ties.nnz), ties.indptr.astype(np.int64))
        self._spectrum = spectrum.reshape(-1)
        rows_of, kernel_of = keys % n_leaves, first[keys // n_leaves]
        parameters = thetas.kernel_parameters(kernel_of, theta[kernel_of])
        families = thetas.family[kernel_of].tolist()
        spectra = self._decompose(list(zip(rows_of.tolist(), families, parameters, strict=True)))
        sizes = [len(eigenvalues) for eigenvalues, *_ in spectra]
        self._spectra = Ragged.of_sizes(np.arange(sum(sizes)), sizes)
        self._eigenvalues, self._squares, counts = (
            np.concatenate([np.empty(0), *(spectrum[k] for spectrum in spectra)]) for k in range(3)
        )
        #: The number of observations that an eigenvalue counts for; None if all count for one.
        self._counts = None if leaf_gps.data.row_weights is None else counts

    def __call__(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Return values (n,) and gradients by theta (n, n_parameters) of leaves."""
        noise, by_theta = self.thetas.noise(leaf, theta)
        pairs = self._pairs.positions(leaf)
        position = np.repeat(np.arange(len(leaf)), self._pairs.sizes[leaf])
        weight = self.ties.data[pairs]
        evidence, slope = self._evidence(self._spectrum[pairs], noise[position])
        value: Array = np.bincount(position, weight * evidence, len(leaf)).astype(np.float64)
        by_noise = np.bincount(position, weight * slope, len(leaf))
        return value, by_noise[:, None] * by_theta

    def _evidence(self, spectrum: Index, noise: Array) -> tuple[Array, Array]:
        """Return the log evidence of each spectrum at a noise variance, and its derivative by the noise."""
        sizes = self._spectra.sizes[spectrum]
        evidence, slope = np.zeros(len(spectrum)), np.zeros(len(spectrum))
        ends = np.cumsum(sizes)
        first = 0
        while first < len(spectrum):
            before = ends[first] - sizes[first]
            last = max(first + 1, int(np.searchsorted(ends, before + CHUNK, side="right")))
            chunk = slice(first, last)
            entries = self._spectra.positions(spectrum[chunk])
            position = np.repeat(np.arange(last - first), sizes[chunk])
            precision = 1.0 / (self._eigenvalues[entries] + noise[chunk][position])
            square, count, n_rows = self._squares[entries] * precision, np.ones(1), sizes[chunk]
            if self._counts is not None:
                count = self._counts[entries]
                n_rows = np.bincount(position, count, last - first)
            fit = np.bincount(position, square - count * np.log(precision), last - first)
            evidence[chunk] = -0.5 * (fit + n_rows * LOG_2PI)
            slope[chunk] = 0.5 * np.bincount(position, (square - count) * precision, last - first)
            first = last
        return evidence, slope

    def _decompose(
        self, jobs: Sequence[tuple[int, int, Array]]
    ) -> list[tuple[Array, Array, Array]]:
        """Decompose covariances, each of a leaf, under the kernel of a family, at kernel parameters.

        Returns
        -------
        list of tuple
            Eigenvalues, squares of the observations along the eigenvectors, and the number that each counts for.
        """
        data = self.leaf_gps.data
        X, Y, known_noise = data.X, data.Y, data.known_noise
        # Rows with equal inputs and different known noise have no common eigenvalue.
        labels = data.labels if known_noise is None else None
        points = LeafPoints.of(self.leaf_gps.leaf_rows, labels, data.row_weights)

        def decompose(job: tuple[int, int, Array]) -> tuple[Array, Array, Array]:
            leaf, family, parameters = job
            rows, starts = points.of_leaf(leaf)
            if not len(rows):
                return np.empty(0), np.empty(0), np.empty(0)
            inputs, kernel = X[rows[starts[:-1]]], self.thetas.leaf_kernels[family].at(parameters)
            weights = points.weights(rows)
            observed = Observations.of(Y[rows, self.output], np.ones(len(rows)), starts, weights)
            counts = observed.counts
            K = kernel.cross(inputs, inputs) * np.sqrt(np.outer(counts, counts))
            known = np.zeros(len(inputs))
            if known_noise is not None:
                known = known_noise[rows, self.output]
                K[np.diag_indices_from(K)] += known
            # NumPy's, not SciPy's, which would hold the interpreter lock.
            eigenvalues, vectors = np.linalg.eigh(K)
            along = vectors.T @ (np.sqrt(counts) * (observed.mean - kernel.mean(inputs)))
            eigenvalues, squares = np.maximum(eigenvalues, 0.0), np.square(along)
            others = counts - 1
            if weights is None:
                within = np.repeat(observed.squares / np.maximum(others, 1), others)
                values, n_each = np.zeros(len(within)), np.ones(len(squares) + len(within))
            else:
                within, values = observed.squares, known
                n_each = np.append(np.ones(len(squares)), others)
            return np.append(eigenvalues, values), np.append(squares, within), n_each

        # As in LeafGPs.map: large leaves one by one on all cores, the rest side by side.
        sizes = points.first.sizes
        large = [k for k, job in enumerate(jobs) if sizes[job[0]] > PARALLEL_ROWS]
        alone = {k: decompose(jobs[k]) for k in large}
        small = [job for k, job in enumerate(jobs) if k not in alone]
        rest = iter(self.leaf_gps.threads.map(decompose, small))
        return [alone[k] if k in alone else next(rest) for k in range(len(jobs))]
