"""A leaf with its rows in order: the posterior over its segments, and the gradient of its evidence, at any hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.machine import has_numba
from dsmgp.changepoints.boundaries import Boundaries
from dsmgp.changepoints.prefix_gp import PrefixGPs
from dsmgp.changepoints.segmentation import (
    Chain,
    SegmentPosterior,
    chains_of,
    hazard_log_probabilities,
    posterior_any_changes,
    posterior_no_change,
    posterior_one_change,
    single_change_log_prior,
)
from dsmgp.changepoints.sliding_cholesky import segment_evidences
from dsmgp.gp.leaf_kernels import BoundLeafKernel, StationaryKernel
from dsmgp.gp.process import Process
from dsmgp.linalg.threads import Threads
from dsmgp.tree.changepoint_leaf import ChangePointLeaf, ChangePoints
from dsmgp.tree.nodes import Leaf

__all__ = ["OrderedLeaf", "check_memory"]

# Segments that together are expected less often than this are left out of gradients.
DROPPED_IN_GRADIENT = 1e-6
# Relative step of central differences, for parameters that are not much smaller than this.
STEP = 1e-4
# What a chain and a start cost beside their matrices, in multiplications.
PER_CHAIN, PER_START = 1e6, 1e4


def check_memory(leaves: Sequence[Leaf], longest: int, limit: float) -> None:
    """Raise ValueError if the tables of segment evidences take more than ``limit`` bytes."""
    rows = max(leaf.n_rows for leaf in leaves)
    changes = [leaf.changes for leaf in leaves if isinstance(leaf, ChangePointLeaf)]
    once = all(each.n_changes == 1 for each in changes)
    need = 8.0 * (4 * rows**2 if once else 4 * rows * min(longest, rows))
    if need > limit:
        raise InputError(
            f"{rows} rows in segments of up to {min(longest, rows)} need {need / 1e6:.3g} MB, more than the "
            f"{limit / 1e6:.3g} MB allowed; lower leaf_size or raise memory_limit"
        )


class OrderedLeaf:
    """The rows of a leaf, sorted along the input in which it may change; in any order if it has no change points.

    Parameters
    ----------
    node : Leaf
        The leaf in the tree.
    X : ndarray of shape (n_rows, n_dims)
        All training inputs in the user's units.
    Z : ndarray of shape (n_rows, n_dims)
        The same, scaled for the GPs.
    Y : ndarray of shape (n_rows, n_outputs)
        All training outputs, scaled for the GPs.
    longest : int
        Most rows in a segment.

    Attributes
    ----------
    rows : ndarray of shape (n,)
        Numbers of the leaf's rows, sorted by position.
    changes : ChangePoints or None
    boundaries : Boundaries
    X, Y : ndarray of shape (n, n_dims), (n, n_outputs)
        The leaf's rows, sorted and scaled.
    shortest, longest : int
        Fewest and most rows in a segment.
    """

    def __init__(self, node: Leaf, X: Array, Z: Array, Y: Array, longest: int) -> None:
        assert node.rows is not None
        self.changes: ChangePoints | None = None
        position = np.zeros(node.n_rows)
        if isinstance(node, ChangePointLeaf):
            self.changes = node.changes
            position = X[node.rows, self.dimension]
        sort = np.argsort(position, kind="stable")
        self.node, self.rows = node, node.rows[sort]
        self.boundaries = Boundaries(position[sort])
        self.X, self.Y = Z[self.rows], Y[self.rows]
        self.longest = min(longest, len(self.rows)) if self.has_hazard else len(self.rows)
        self.shortest = 1 if self.changes is None else min(self.changes.shortest, len(self.rows))
        self._check_lengths()

    @property
    def dimension(self) -> int:
        """The input that orders the rows."""
        assert self.changes is not None
        return int(self.changes.dimension)

    @property
    def gaps(self) -> str:
        """How likely gaps are to hold a change point: all alike (``"equal"``), or by their length (``"length"``)."""
        assert self.changes is not None
        return self.changes.gaps

    @property
    def may_change(self) -> bool:
        return self.changes is not None and bool(self.boundaries.is_gap.any())

    @property
    def has_hazard(self) -> bool:
        """Whether there may be any number of change points."""
        return self.changes is not None and self.changes.n_changes is None and self.may_change

    @property
    def most_rows_at_one_position(self) -> int:
        bounds = np.flatnonzero(self.boundaries.is_gap)
        return int(np.diff(np.concatenate([[0], bounds, [len(self.rows)]])).max())

    def positions(self, X: Array) -> Array:
        """Return the positions of any rows along the input that orders the leaf's, (n,)."""
        return np.zeros(len(X)) if self.changes is None else X[:, self.dimension]

    def segment_posterior(
        self, kernels: Sequence[BoundLeafKernel], noise: Array, hazard: float | None
    ) -> SegmentPosterior:
        """Return the posterior over segments.

        Parameters
        ----------
        kernels : sequence of BoundLeafKernel
            One per output.
        noise : ndarray of shape (n, n_outputs)
            Noise variances of the sorted rows.
        hazard : float or None
            None where there is no hazard.

        Raises
        ------
        NotFactorisedError
            If a covariance has no Cholesky factor. Where segments are many, the log evidence is NaN instead.
        """
        if self.has_hazard:
            assert hazard is not None
            return self._any_changes(kernels, noise, hazard)
        prefix = self._prefix_evidences(kernels, noise, reverse=False)
        if not self.may_change:
            return posterior_no_change(self.boundaries, float(prefix[-1]))
        suffix = self._prefix_evidences(kernels, noise, reverse=True)[::-1]
        prior = single_change_log_prior(self.boundaries, self.gaps, self.shortest)
        return posterior_one_change(self.boundaries, prefix, suffix, prior)

    def _any_changes(
        self, kernels: Sequence[BoundLeafKernel], noise: Array, hazard: float
    ) -> SegmentPosterior:
        evidences = np.zeros((len(self.rows), self.longest))
        for k, kernel in enumerate(kernels):
            evidences += segment_evidences(kernel, self.X, self.Y[:, k], noise[:, k], self.longest)
        evidences[:, : self.shortest - 1] = -np.inf
        if np.isnan(evidences).any():
            return posterior_no_change(self.boundaries, np.nan)
        log_hazard, log_survival, _ = hazard_log_probabilities(self.boundaries, self.gaps, hazard)
        return posterior_any_changes(evidences, log_hazard, log_survival)

    def hazard_gradient(self, posterior: SegmentPosterior, hazard: float) -> float:
        """Return the derivative of the log evidence by the log odds or the log of the hazard."""
        *_, slope = hazard_log_probabilities(self.boundaries, self.gaps, hazard)
        return float(slope @ (posterior.change_probability - posterior.prior_change_probability))

    def gradient(
        self,
        posterior: SegmentPosterior,
        processes: Sequence[Process],
        noise: Array,
        noise_factor: Array,
    ) -> list[Array]:
        """Return the gradient of the log evidence by each output's kernel parameters.

        It is the sum of the segments' gradients times their probabilities: in closed form from the factors of the chains or, where these are
        too many, by central differences of all segments' evidences, whose factors slide.

        Parameters
        ----------
        posterior : SegmentPosterior
        processes : sequence of Process
            One per output.
        noise, noise_factor : ndarray of shape (n, n_outputs)
            Noise variances, absolute and in units of the kernels'.
        """
        likely = posterior.pruned(DROPPED_IN_GRADIENT)
        if self._differences_are_cheaper(likely, processes):
            return [
                self._difference_gradient(likely, process, noise[:, k], noise_factor[:, k], k)
                for k, process in enumerate(processes)
            ]
        return self._chain_gradient(likely, processes, noise, noise_factor)

    def _differences_are_cheaper(
        self, likely: SegmentPosterior, processes: Sequence[Process]
    ) -> bool:
        """Compare rough counts of multiplications."""
        stationary = all(isinstance(p.leaf_kernel, StationaryKernel) for p in processes)
        if not self.has_hazard or not has_numba() or not stationary:
            return False
        lengths = np.array([len(chain.rows) for chain in chains_of(likely)], dtype=np.float64)
        n_parameters = max(len(process.kernel_parameters()) for process in processes)
        differences = 2.0 * n_parameters * len(self.rows) * (1.5 * self.longest**2 + PER_START)
        return bool(np.sum(3.0 * lengths**3 + PER_CHAIN) > differences)

    def _difference_gradient(
        self,
        likely: SegmentPosterior,
        process: Process,
        noise: Array,
        noise_factor: Array,
        output: int,
    ) -> Array:
        parameters, y = process.kernel_parameters(), self.Y[:, output]
        gradient = np.empty(len(parameters))
        cells = likely.start, likely.end - likely.start - 1
        for i in range(len(gradient)):
            step = STEP * max(abs(float(parameters[i])), STEP)
            expected = []
            for sign in (1.0, -1.0):
                moved = parameters.copy()
                moved[i] += sign * step
                moved_noise = noise
                if i + 1 == len(gradient):  # the noise is the last parameter
                    moved_noise = noise + sign * step * noise_factor
                kernel = process.leaf_kernel.at(moved)
                evidences = segment_evidences(kernel, self.X, y, moved_noise, self.longest)
                expected.append(likely.probability @ evidences[cells])
            gradient[i] = (expected[0] - expected[1]) / (2.0 * step)
        return gradient

    def _chain_gradient(
        self,
        likely: SegmentPosterior,
        processes: Sequence[Process],
        noise: Array,
        noise_factor: Array,
    ) -> list[Array]:
        kernels = [process.leaf_kernel.at(process.kernel_parameters()) for process in processes]

        def of_chain(chain: Chain) -> list[Array]:
            weights = np.zeros(len(chain.rows))
            weights[chain.lengths - 1] = likely.probability[chain.segments]
            X = self.X[chain.rows]
            gradients = []
            for k, kernel in enumerate(kernels):
                gps = PrefixGPs(kernel, X, self.Y[chain.rows, k], noise[chain.rows, k])
                gradients.append(gps.gradient(weights, noise_factor[chain.rows, k]))
            return gradients

        parts = Threads().map(of_chain, chains_of(likely))
        return [np.sum(part, axis=0) for part in zip(*parts, strict=True)]

    def _prefix_evidences(
        self, kernels: Sequence[BoundLeafKernel], noise: Array, reverse: bool
    ) -> Array:
        """Return the log evidence of the first (or the last) 0, 1, ..., n rows, (n + 1,)."""
        rows = np.arange(len(self.rows))[:: -1 if reverse else 1]

        def of_output(k: int) -> Array:
            return PrefixGPs(kernels[k], self.X[rows], self.Y[rows, k], noise[rows, k]).log_evidence

        each = Threads().map(of_output, range(len(kernels)))
        return np.concatenate([[0.0], np.sum(each, axis=0)])

    def _check_lengths(self) -> None:
        """Raise ValueError if no segmentation has segments of the lengths allowed."""
        if self.may_change and not self.has_hazard:
            gap = np.flatnonzero(self.boundaries.is_gap)
            if not ((gap >= self.shortest) & (len(self.rows) - gap >= self.shortest)).any():
                raise InputError(
                    f"{len(self.rows)} rows cannot be cut into two segments of at least {self.shortest}; lower shortest"
                )
        if not self.has_hazard:
            return
        if self.longest < len(self.rows) and self.longest < 2 * self.shortest:
            raise InputError(
                f"expected segments to be allowed at least twice as long as the shortest ({self.shortest} rows), got "
                f"leaf_size={self.longest}"
            )
        most = self.most_rows_at_one_position
        if most > self.longest:
            raise InputError(
                f"{most} rows have the same value of the input that orders them, more than the {self.longest} a "
                "segment may hold; raise leaf_size or order by another input"
            )
