"""A mixture of GP experts with a learned gate over inputs, fitted by hard EM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.cluster import KMeans

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.validation import check_count, random_generator
from dsmgp.baselines.committee import Committee
from dsmgp.baselines.division import unbounded_leaf
from dsmgp.experts.interface import LeafPosterior
from dsmgp.experts.loo import normal_log_density
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_family
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.kernels import Kernel
from dsmgp.mixture.predictive.distribution import Mixture
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.routing import Routes

if TYPE_CHECKING:
    import gpytorch

__all__ = ["InputGate", "MoE"]

# Rows that the common variance of the inputs is worth in an expert's own.
SPREAD_ROWS = 10.0
# An expert may grow to this many times its share of the rows: its cost grows with the cube.
MOST_SHARES = 4
# One row in ten is held out to score sweeps, at most 2,000.
HELD_SHARE, MOST_HELD = 10, 2000
# Iterations of learning after each sweep: hyperparameters are close to their optimum already.
SWEEP_ITERATIONS = 10


@dataclass(frozen=True)
class InputGate:
    """Probability of each expert given the inputs, by Bayes' rule: a Gaussian of independent inputs for each of them.

    Attributes
    ----------
    log_share : ndarray of shape (n_experts,)
    centre, spread : ndarrays of shape (n_experts, n_dims)
        Mean and variance.
    """

    log_share: Array
    centre: Array
    spread: Array

    @classmethod
    def of(cls, Z: Array, expert: Index) -> InputGate:
        """Fit to inputs and the experts they belong to, numbered from 0 without gaps."""
        counts = np.bincount(expert).astype(np.float64)
        sums = [np.bincount(expert, column) for column in Z.T]
        centre = np.stack(sums, axis=1) / counts[:, None]
        squares = np.square(Z - centre[expert])
        within = np.maximum(squares.mean(axis=0), 1e-12)
        total = np.stack([np.bincount(expert, column) for column in squares.T], axis=1)
        # A few rows do not determine a variance: add pseudo-rows with the common one.
        spread = (total + SPREAD_ROWS * within) / (counts + SPREAD_ROWS)[:, None]
        return cls(np.log(counts / len(Z)), centre, spread)

    def log_joint(self, Z: Array) -> Array:
        """Return the joint log density of inputs and expert, (n, n_experts)."""
        # The square expanded into matrix products, without an array of all differences.
        precision = 1.0 / self.spread
        away = (Z * Z) @ precision.T - 2.0 * Z @ (self.centre * precision).T
        constant = (self.centre**2 * precision + np.log(self.spread)).sum(axis=1)
        return np.asarray(self.log_share - 0.5 * (away + constant + Z.shape[1] * LOG_2PI))

    def most_likely(self, Z: Array, most: int) -> tuple[Index, Array]:
        """Return the experts with the largest probabilities at each row, and the log probabilities, normalised."""
        joint = self.log_joint(Z)
        most = min(most, joint.shape[1])
        expert = np.argpartition(-joint, most - 1, axis=1)[:, :most]
        log_gate = np.take_along_axis(joint, expert, axis=1)
        log_gate -= np.logaddexp.reduce(log_gate, axis=1, keepdims=True)
        return expert.astype(np.int64), log_gate


class MoE(Committee):
    """Mixture of GP experts (Tresp 2000; Rasmussen & Ghahramani 2001), fitted by hard EM (cf. Nguyen & Bonilla 2014).

    The assignment of rows to experts is learned with the gate. Starting from k-means, each sweep assigns every row to the expert
    whose gate and leave-one-out prediction explain it best, then updates gate and hyperparameters. One row in ten is held out to
    score sweeps: the sweep with the largest held-out density is kept, and held-out rows join the expert with the largest gate.
    Inference is approximate, which DSMGP avoids.

    ``kernel``, ``noise_variance``, ``optimizer``, ``max_iter``, ``standardize``, ``device``,
    ``memory_limit`` and ``random_state`` are those of :class:`~dsmgp.DSMGPRegressor`.

    Parameters
    ----------
    leaf_size : int, default=100
        Rows of an expert, on average.
    n_sweeps : int, default=5
        Most sweeps of hard EM.
    n_reached : int, default=8
        Experts that predict at a row: those with the largest gate.

    Attributes
    ----------
    gate_ : InputGate
        Over standardised inputs.
    path_ : list of float
        Mean log density of the held-out rows, after k-means and after every sweep, in the units of the leaf GPs.

    Examples
    --------
    >>> X = np.linspace(0, 1, 80)[:, None]
    >>> model = MoE(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.predict([[0.5]]).round(1)
    array([0.1])
    """

    def __init__(
        self,
        leaf_size: int = 100,
        n_sweeps: int = 5,
        n_reached: int = 8,
        kernel: str | Kernel | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        optimizer: str | None = "lbfgs",
        max_iter: int | None = None,
        standardize: bool = True,
        device: str = "auto",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            leaf_size=leaf_size,
            kernel=kernel,
            noise_variance=noise_variance,
            optimizer=optimizer,
            max_iter=max_iter,
            standardize=standardize,
            device=device,
            memory_limit=memory_limit,
            random_state=random_state,
        )
        self.n_sweeps = n_sweeps
        self.n_reached = n_reached

    _layout = "gated"

    def _fit(self, X: Array, Y: Array) -> None:
        check_count("n_sweeps", self.n_sweeps, 0)
        check_count("n_reached", self.n_reached)
        config, rng = self._config(), random_generator(self.random_state)
        data = ScaledRows.of(X, Y, config)
        Z = data.inputs.to_experts(X)
        held, kept = _hold_out(len(X), rng)
        expert = self._cluster(Z[kept], rng)
        family = build_family(self.kernel, data, config)
        best_expert, best_gate, best_family = expert, InputGate.of(Z[kept], expert), family
        self.path_: list[float] = []
        self.n_iter_ = self.n_evaluations_ = 0
        for sweep in range(self.n_sweeps + 1):
            members = _members(expert, kept, data.n_dims)
            gps = set_up_leaves(members, family.leaf_kernels, data, config)
            if config.optimizer is not None:
                max_iter = SWEEP_ITERATIONS if sweep else None
                context = FitContext(config, rng)
                family, searches = learn_family(gps, family, context, max_iter=max_iter)
                self.n_iter_ += max(search.n_iterations for search in searches)
                self.n_evaluations_ += sum(search.n_evaluations for search in searches)
            gate = InputGate.of(Z[kept], expert)
            posterior = gps.condition(
                family.kernel_parameters, 0.5 * config.memory, True
            ).to_memory()
            _, joint = self._joint(posterior, data, gate, Z, held)
            self.path_.append(float(np.logaddexp.reduce(joint, axis=1).mean()))
            if self.path_[-1] == max(self.path_):
                best_expert, best_gate, best_family = expert, gate, family
            elif sweep > 1:
                break  # an earlier sweep was better
            moved = self._reassign(posterior, data, gate, Z, kept, expert)
            if np.array_equal(moved, expert):
                break
            expert = moved
        # Held-out rows join the expert with the largest gate.
        of_all = np.empty(len(Z), dtype=np.int64)
        of_all[kept], of_all[held] = best_expert, best_gate.log_joint(Z[held]).argmax(axis=1)
        self.gate_ = InputGate.of(Z, of_all)
        members = _members(of_all, np.arange(len(Z)), data.n_dims)
        gps = set_up_leaves(members, best_family.leaf_kernels, data, config)
        self._condition(gps, best_family, data, config)

    def _cluster(self, Z: Array, rng: np.random.Generator) -> Index:
        """Assign rows to experts by k-means."""
        n_experts = math.ceil(len(Z) / check_count("leaf_size", self.leaf_size))
        n_experts = min(n_experts, len(np.unique(Z, axis=0)))
        seed = int(rng.integers(2**31))
        # A single start of few iterations: rows are reassigned afterwards in any case.
        clusters = KMeans(n_experts, n_init=1, max_iter=20, init="random", random_state=seed)
        return _renumber(clusters.fit_predict(Z).astype(np.int64))

    def _joint(
        self,
        posterior: InMemoryLeafPosterior,
        data: ScaledRows,
        gate: InputGate,
        Z: Array,
        rows: Index,
    ) -> tuple[Index, Array]:
        """Return the most likely experts at rows, and the joint log density of expert and outputs, (n, n_reached)."""
        candidates, log_gate = gate.most_likely(Z[rows], self.n_reached)
        leaf, row = candidates.reshape(-1), np.repeat(rows, candidates.shape[1])
        mean, variance = _predict_pairs(posterior, leaf, row, posterior.leaf_gps.data.X)
        # For rows that an expert was trained on, its leave-one-out prediction counts.
        place = np.full((len(Z),), -1)
        place[posterior.leaf_rows.flat] = np.arange(len(posterior.leaf_rows.flat))
        owner = np.append(posterior.leaf_rows.owner, -1)  # the last for rows of no expert
        trained = np.flatnonzero(leaf == owner[place[row]])
        moments = posterior.leaf_loo().moments
        mean[trained] = moments.mean[place[row[trained]]]
        variance[trained] = moments.variance[place[row[trained]]]
        targets = data.outputs.to_experts(data.Y)[row]
        each = normal_log_density(targets - mean, variance)
        return candidates, each.sum(axis=1).reshape(candidates.shape) + log_gate

    def _reassign(
        self,
        posterior: InMemoryLeafPosterior,
        data: ScaledRows,
        gate: InputGate,
        Z: Array,
        kept: Index,
        expert: Index,
    ) -> Index:
        """Assign every row to the expert that explains it best, as far as there is room."""
        candidates, joint = self._joint(posterior, data, gate, Z, kept)
        wanted = candidates[np.arange(len(kept)), joint.argmax(axis=1)]
        return _renumber(_within(expert, wanted, joint.max(axis=1), MOST_SHARES * self.leaf_size))

    def _predictive(self, X: Array) -> Mixture:
        Z = self._inputs.to_experts(X)
        expert, log_gate = self.gate_.most_likely(Z, self.n_reached)
        leaf, row = expert.reshape(-1), np.repeat(np.arange(len(X)), expert.shape[1])
        mean, variance = _predict_pairs(self._posterior, leaf, row, Z)
        shape = (*expert.shape, self._outputs.n_outputs)
        return Mixture(
            np.exp(log_gate),
            mean.reshape(shape),
            variance.reshape(shape),
            self._outputs,
            self._squeeze,
        )


def _predict_pairs(
    posterior: LeafPosterior, leaf: Index, row: Index, Z: Array
) -> tuple[Array, Array]:
    """Predict y by pairs of expert and row: mean and variance, (n_pairs, n_outputs), in the order of the pairs."""
    order = np.argsort(leaf, kind="stable")  # predictions come expert by expert
    mean, variance = np.empty((2, len(leaf), posterior.leaf_gps.n_outputs))
    mean[order], variance[order] = posterior.predict(Routes.of(leaf, row), Z)
    return mean, variance + posterior.noise[leaf]


def _hold_out(n_rows: int, rng: np.random.Generator) -> tuple[Index, Index]:
    """Draw the rows that score sweeps, and return them and the others.

    Rows that choose their expert by their outputs cannot score it.
    """
    order = rng.permutation(n_rows)
    n_held = max(1, min(n_rows // HELD_SHARE, MOST_HELD))
    return np.sort(order[:n_held]), np.sort(order[n_held:])


def _members(expert: Index, rows: Index, n_dims: int) -> list[Leaf]:
    """Return the experts as leaves; ``expert`` has the number of the expert of each of ``rows``."""
    order = np.argsort(expert, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(expert))[:-1])
    return [unbounded_leaf(np.sort(rows[part]), n_dims) for part in parts]


def _renumber(expert: Index) -> Index:
    """Renumber experts from 0 without gaps."""
    return np.unique(expert, return_inverse=True)[1].astype(np.int64)


def _within(expert: Index, wanted: Index, gain: Array, most: int) -> Index:
    """Move rows to the expert they want, unless it would grow beyond ``most`` rows: those with the least gain then stay."""
    moved = wanted.copy()
    counts = np.bincount(wanted, minlength=int(expert.max()) + 1)
    for full in np.flatnonzero(counts > most):
        coming = np.flatnonzero((wanted == full) & (expert != full))
        order = coming[np.argsort(gain[coming])]
        back = order[: counts[full] - most]
        moved[back] = expert[back]
    return moved
