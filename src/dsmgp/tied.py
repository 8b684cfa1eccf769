"""Evidence of leaves at one another's hyperparameters: what fine-tuning maximises, and its gradient.

For leaf i it is ``sum_j w_ij log p(y_j | X_j, theta_i)``, over the few leaves j that are like it. A pair (i, j)
is a leaf with the rows of j and the hyperparameters of i, and experts take those by the thousand: all leaves
are evaluated together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from dsmgp.execution import as_numpy, as_tensor
from dsmgp.experts import PARALLEL_ROWS, Experts
from dsmgp.ragged import Ragged
from dsmgp.thetas import Thetas
from dsmgp.tree import Leaf

__all__ = ["NoiseEvidence", "PairEvidence"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
LOG_2PI = float(np.log(2.0 * np.pi))
# Numbers that are held at a time while spectra are summed.
AT_ONCE = 2**21


class PairEvidence:
    """The evidence by pairs of leaves, for any hyperparameters.

    Parameters
    ----------
    experts : Experts
        Over all leaves.
    leaves : sequence of Leaf
    thetas : Thetas
        Of one output.
    output : int
    ties : sparse matrix of shape (n_leaves, n_leaves)
        The weights w_ij.
    """

    def __init__(
        self,
        experts: Experts,
        leaves: Sequence[Leaf],
        thetas: Thetas,
        output: int,
        ties: sparse.csr_matrix,
    ) -> None:
        self.experts, self.leaves, self.thetas = experts, leaves, thetas
        self.output, self.ties = output, ties
        self._built = np.empty(0, np.int64)

    def __call__(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Values (n,) and gradients by theta (n, n_parameters) of some leaves, in the order of their numbers."""
        # Leaves whose search has ended are left out once they are many; until then they come along.
        if not (len(leaf) > 0.5 * len(self._built) and np.isin(leaf, self._built).all()):
            self._build(leaf)
        self._theta[np.searchsorted(self._built, leaf)] = theta
        naturals = self.thetas.naturals(self._built, self._theta)
        table = as_tensor(naturals[self._of], self._pairs.X)
        evidence, (by_pair,) = self._pairs.log_evidence_and_gradient([table])
        value, by_natural = self._sums @ evidence[:, 0], self._sums @ by_pair
        with np.errstate(invalid="ignore"):
            gradient = self.thetas.pull_back(self._built, self._theta, by_natural)
        where = np.searchsorted(self._built, leaf)
        return value[where], gradient[where]

    def _build(self, leaf: Index) -> None:
        """Experts over the pairs of some leaves."""
        rows = self.ties[leaf]
        self._of = np.repeat(np.arange(len(leaf)), np.diff(rows.indptr))
        self._sums = sparse.csr_matrix(
            (rows.data, np.arange(rows.nnz), rows.indptr), shape=(len(leaf), rows.nnz)
        )
        column = slice(self.output, self.output + 1)
        own = [self.thetas.laws[f] for f in self.thetas.family[leaf].tolist()]
        self._pairs = Experts(
            [self.leaves[j] for j in rows.indices.tolist()],
            self.experts.X,
            self.experts.Y[:, column],
            [[own[k] for k in self._of.tolist()]],
            self.experts.threads,
            memory=self.experts.memory,
            known=None if self.experts.known is None else self.experts.known[:, column],
        )
        self._built = leaf
        self._theta = np.zeros((len(leaf), len(self.thetas.names)))


class NoiseEvidence:
    """The same where noise alone changes: one eigendecomposition for each leaf and kernel, then O(rows) for a pair.

    With the leaf's covariance, and noise that is known, ``K = Q diag(e) Q'`` and ``u = Q'(y - mean)`` the log
    evidence at noise s is ``-1/2 sum(u^2 / (e + s) + log(e + s)) - n/2 log 2 pi``.

    Parameters
    ----------
    theta : ndarray of shape (n_leaves, n_parameters)
        All but the noise is taken from here. The others are those of :class:`PairEvidence`.
    """

    def __init__(
        self,
        experts: Experts,
        thetas: Thetas,
        output: int,
        ties: sparse.csr_matrix,
        theta: Array,
    ) -> None:
        self.experts, self.thetas, self.output, self.ties = experts, thetas, output, ties
        fixed = np.array([name != "noise" for name in thetas.names])
        kernels = np.column_stack([thetas.family, theta[:, fixed]])
        _, first, kernel = np.unique(kernels, axis=0, return_index=True, return_inverse=True)
        kernel = kernel.reshape(-1)
        of, other = np.repeat(np.arange(ties.shape[0]), np.diff(ties.indptr)), ties.indices
        keys, spectrum = np.unique(kernel[of] * len(experts.leaf_rows) + other, return_inverse=True)
        #: Each leaf's pairs, and by pair which spectrum it takes.
        self._pairs = Ragged(np.arange(ties.nnz), ties.indptr.astype(np.int64))
        self._spectrum = spectrum.reshape(-1)
        number, at = keys % len(experts.leaf_rows), first[keys // len(experts.leaf_rows)]
        natural = as_tensor(thetas.naturals(at, theta[at]), experts.X)
        asked = [
            (int(j), int(f), row)
            for j, f, row in zip(number, thetas.family[at], natural, strict=True)
        ]
        found = self._decompose(asked)
        self._spectra = Ragged(
            np.arange(sum(len(e) for e, _ in found)),
            np.concatenate([[0], np.cumsum([len(e) for e, _ in found])]).astype(np.int64),
        )
        self._values = np.concatenate([np.empty(0), *(e for e, _ in found)])
        self._squares = np.concatenate([np.empty(0), *(u for _, u in found)])

    def __call__(self, leaf: Index, theta: Array) -> tuple[Array, Array]:
        """Values (n,) and gradients by theta (n, n_parameters) of some leaves."""
        noise, by_theta = self.thetas.noise(leaf, theta)
        pairs = self._pairs.positions(leaf)
        of, weight = np.repeat(np.arange(len(leaf)), self._pairs.sizes[leaf]), self.ties.data[pairs]
        evidence, slope = self._evidence(self._spectrum[pairs], noise[of])
        value: Array = np.bincount(of, weight * evidence, len(leaf)).astype(np.float64)
        by_noise = np.bincount(of, weight * slope, len(leaf))
        return value, by_noise[:, None] * by_theta

    def _evidence(self, spectrum: Index, noise: Array) -> tuple[Array, Array]:
        """Of each spectrum at a noise, and its derivative by the noise."""
        sizes = self._spectra.sizes[spectrum]
        evidence, slope = np.zeros(len(spectrum)), np.zeros(len(spectrum))
        ends = np.cumsum(sizes)
        first = 0
        while first < len(spectrum):
            before = ends[first] - sizes[first]
            last = max(first + 1, int(np.searchsorted(ends, before + AT_ONCE, side="right")))
            some = slice(first, last)
            where = self._spectra.positions(spectrum[some])
            of = np.repeat(np.arange(last - first), sizes[some])
            precision = 1.0 / (self._values[where] + noise[some][of])
            pull = self._squares[where] * precision
            fit = np.bincount(of, pull - np.log(precision), last - first)
            evidence[some] = -0.5 * (fit + sizes[some] * LOG_2PI)
            slope[some] = 0.5 * np.bincount(of, (pull - 1.0) * precision, last - first)
            first = last
        return evidence, slope

    def _decompose(self, asked: Sequence[tuple[int, int, Tensor]]) -> list[tuple[Array, Array]]:
        """Eigenvalues of leaves' covariances, and squares of their observations along the eigenvectors."""
        X, Y, leaf_rows = self.experts.X, self.experts.Y[:, self.output], self.experts.leaf_rows
        known = self.experts.known

        def work(job: tuple[int, int, Tensor]) -> tuple[Array, Array]:
            number, f, natural = job
            rows = torch.from_numpy(leaf_rows[number]).to(X.device)
            if not len(rows):
                return np.empty(0), np.empty(0)
            own, law = X[rows].unsqueeze(0), self.thetas.laws[f].bind(natural)
            K, _ = law.covariance(own, torch.ones(own.shape[:2], dtype=torch.bool, device=X.device))
            if known is not None:
                K[0].diagonal().add_(known[rows, self.output])
            values, vectors = torch.linalg.eigh(K[0])
            along = vectors.mT @ (Y[rows] - law.mean(own)[0])
            return as_numpy(values.clamp_min(0.0)), np.square(as_numpy(along))

        # As in Experts.map: large leaves one by one on all cores, the rest side by side.
        large = [k for k, job in enumerate(asked) if leaf_rows.sizes[job[0]] > PARALLEL_ROWS]
        alone = {k: work(asked[k]) for k in large}
        rest = iter(
            self.experts.threads.map(work, [j for k, j in enumerate(asked) if k not in alone])
        )
        return [alone[k] if k in alone else next(rest) for k in range(len(asked))]
