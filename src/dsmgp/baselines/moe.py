"""A mixture of GP experts with a gate that is learned: rows go to the expert that explains them best (hard EM)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import gpytorch
import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor

from dsmgp.baselines.committee import Committee
from dsmgp.baselines.division import holder
from dsmgp.conditioned import Conditioned
from dsmgp.mixture import LOG_SQRT_2PI, Mixture
from dsmgp.process import Family
from dsmgp.routes import Routes
from dsmgp.train import Trainer
from dsmgp.tree import Leaf
from dsmgp.validation import check_count

__all__ = ["InputGate", "MoE"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Rows that the common spread is worth in an expert's own.
SPREAD_ROWS = 10.0
# An expert may grow to so many times its share: its cost grows with the cube.
MOST_SHARES = 4
# One row in so many judges sweeps, and at most so many rows.
HELD_SHARE, MOST_HELD = 10, 2000
# Iterations of learning after each sweep: theta is near its best already.
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
        """Fitted to inputs and the experts they belong to, numbered from 0 without gaps."""
        counts = np.bincount(expert).astype(np.float64)
        sums = [np.bincount(expert, column) for column in Z.T]
        centre = np.stack(sums, axis=1) / counts[:, None]
        squares = np.square(Z - centre[expert])
        within = np.maximum(squares.mean(axis=0), 1e-12)
        total = np.stack([np.bincount(expert, column) for column in squares.T], axis=1)
        # A few rows do not tell a spread: the common one counts as some more.
        spread = (total + SPREAD_ROWS * within) / (counts + SPREAD_ROWS)[:, None]
        return cls(np.log(counts / len(Z)), centre, spread)

    def log_joint(self, Z: Array) -> Array:
        """Log density of inputs and expert together, (n, n_experts)."""
        # The square multiplied out: three products of matrices, no array of all differences.
        precision = 1.0 / self.spread
        away = (Z * Z) @ precision.T - 2.0 * Z @ (self.centre * precision).T
        constant = (self.centre**2 * precision + np.log(self.spread)).sum(axis=1)
        return np.asarray(self.log_share - 0.5 * (away + constant) - Z.shape[1] * LOG_SQRT_2PI)

    def most_likely(self, Z: Array, most: int) -> tuple[Index, Array]:
        """The experts with the largest probabilities at each row, and their logarithms; they add up to one."""
        joint = self.log_joint(Z)
        most = min(most, joint.shape[1])
        expert = np.argpartition(-joint, most - 1, axis=1)[:, :most]
        log_gate = np.take_along_axis(joint, expert, axis=1)
        log_gate -= np.logaddexp.reduce(log_gate, axis=1, keepdims=True)
        return expert.astype(np.int64), log_gate


class MoE(Committee):
    """Mixture of GP experts (Tresp 2000; Rasmussen & Ghahramani 2001), fitted by hard EM (cf. Nguyen & Bonilla 2014).

    Which rows an expert has is learned with the gate: starting from k-means, every row goes to the expert whose gate
    and prediction, without that row, explain it best; gate and theta follow, and so on. One row in ten is held out
    to judge: the sweep under which these have the largest density is kept, and they join the expert that their inputs
    point to. Inference is approximate: what DSMGP avoids.

    Parameters
    ----------
    leaf_size : int, default=100
        Rows of an expert, on average.
    n_sweeps : int, default=5
        Sweeps of hard EM, at most.
    n_reached : int, default=8
        Experts that are asked at a row, those with the largest gate there.
    kernel, noise_variance, optimizer, max_iter, standardize, device, memory_limit, random_state
        See :class:`~dsmgp.DSMGPRegressor`.

    Attributes
    ----------
    gate_ : InputGate
        Over standardised inputs.
    path_ : list of float
        Mean log density of the rows held out, after k-means and after every sweep, in the units the experts see.

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
        kernel: str | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        optimizer: str | None = "lbfgs",
        max_iter: int | None = None,
        standardize: bool = True,
        device: str = "auto",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        self.leaf_size = leaf_size
        self.n_sweeps = n_sweeps
        self.n_reached = n_reached
        self.kernel = kernel
        self.noise_variance = noise_variance
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.standardize = standardize
        self.device = device
        self.memory_limit = memory_limit
        self.random_state = random_state

    def _layout(self) -> str:
        return "gated"

    def _fit(self, X: Array, Y: Array) -> None:
        check_count("n_sweeps", self.n_sweeps, 0)
        check_count("n_reached", self.n_reached)
        trainer = self._trainer(X, Y)
        Z = trainer.inputs.to_experts(X)
        held, kept = _hold_out(len(X), trainer.rng)
        expert = self._start(Z[kept], trainer.rng)
        family, best = trainer.build(self.kernel), (expert, InputGate.of(Z[kept], expert))
        best_family = family
        self.path_: list[float] = []
        self.n_iter_ = 0
        for sweep in range(self.n_sweeps + 1):
            some = _members(expert, kept, X.shape[1])
            if trainer.settings.optimizer is not None:
                learned = trainer.learn(some, family, SWEEP_ITERATIONS if sweep else None)
                self.n_iter_ += max(one.n_iterations for one in learned)
            gate = InputGate.of(Z[kept], expert)
            naturals = family.naturals(X.shape[1])
            memory = 0.5 * trainer.memory
            seen = Conditioned(trainer.experts(some, [family]), naturals, memory, trainer.labels)
            _, joint = self._joint(seen, trainer, gate, Z, held)
            self.path_.append(float(np.logaddexp.reduce(joint, axis=1).mean()))
            if self.path_[-1] == max(self.path_):
                best, best_family = (expert, gate), copy.deepcopy(family)
            elif sweep > 1:
                break  # it was better before
            moved = self._reassign(seen, trainer, gate, Z, kept, expert)
            if np.array_equal(moved, expert):
                break
            expert = moved
        self._finish(trainer, Z, held, kept, *best, best_family)

    def _finish(
        self,
        trainer: Trainer,
        Z: Array,
        held: Index,
        kept: Index,
        expert: Index,
        gate: InputGate,
        family: Family,
    ) -> None:
        """The sweep that was best, and the rows held out with the experts whose gate is largest there."""
        everyone = np.empty(len(Z), dtype=np.int64)
        everyone[kept] = expert
        everyone[held] = gate.log_joint(Z[held]).argmax(axis=1)
        self.gate_ = InputGate.of(Z, everyone)
        some = _members(everyone, np.arange(len(Z)), Z.shape[1])
        self._condition(trainer, some, family)

    def _start(self, Z: Array, rng: np.random.Generator) -> Index:
        n_experts = math.ceil(len(Z) / check_count("leaf_size", self.leaf_size))
        n_experts = min(n_experts, len(np.unique(Z, axis=0)))
        seed = int(rng.integers(2**31))
        # Elkan's bounds and a single start: experts are moved afterwards in any case.
        clusters = KMeans(n_experts, n_init=1, max_iter=20, init="random", random_state=seed)
        return _numbered(clusters.fit_predict(Z).astype(np.int64))

    def _joint(
        self, seen: Conditioned, trainer: Trainer, gate: InputGate, Z: Array, rows: Index
    ) -> tuple[Index, Array]:
        """The experts that are asked at rows, and the log density of expert and outputs together, (n, n_reached)."""
        candidates, log_gate = gate.most_likely(Z[rows], self.n_reached)
        leaf, row = candidates.reshape(-1), np.repeat(rows, candidates.shape[1])
        mean, variance = _ask(seen, leaf, row, seen.experts.X)
        # An expert knows its own rows: what counts is what it says of them when they are left out.
        place = np.full((len(Z),), -1)
        place[seen.leaf_rows.flat] = np.arange(len(seen.leaf_rows.flat))
        owner = np.append(seen.leaf_rows.owner, -1)  # the last for rows that nobody has
        own = np.flatnonzero(leaf == owner[place[row]])
        assert seen.left_out is not None
        mean[own] = seen.left_out.mean[place[row[own]]]
        variance[own] = seen.left_out.variance[place[row[own]]]
        targets = trainer.outputs.to_experts(trainer.Y)[row]
        each = -0.5 * (np.square(targets - mean) / variance + np.log(variance)) - LOG_SQRT_2PI
        return candidates, each.sum(axis=1).reshape(candidates.shape) + log_gate

    def _reassign(
        self,
        seen: Conditioned,
        trainer: Trainer,
        gate: InputGate,
        Z: Array,
        kept: Index,
        expert: Index,
    ) -> Index:
        """Every row to the expert that explains it best, as far as there is room."""
        candidates, joint = self._joint(seen, trainer, gate, Z, kept)
        wanted = candidates[np.arange(len(kept)), joint.argmax(axis=1)]
        return _numbered(_within(expert, wanted, joint.max(axis=1), MOST_SHARES * self.leaf_size))

    def _law(self, X: Array) -> Mixture:
        Z = self._inputs.to_experts(X)
        expert, log_gate = self.gate_.most_likely(Z, self.n_reached)
        leaf, row = expert.reshape(-1), np.repeat(np.arange(len(X)), expert.shape[1])
        mean, variance = _ask(self._conditioned, leaf, row, self._seen(X))
        shape = (*expert.shape, self._outputs.n_outputs)
        return Mixture(
            np.exp(log_gate),
            mean.reshape(shape),
            variance.reshape(shape),
            self._outputs,
            self._squeeze,
        )


def _ask(seen: Conditioned, leaf: Index, row: Index, Z: Tensor) -> tuple[Array, Array]:
    """Mean and variance of y by pairs of expert and row, in the order of the pairs."""
    order = np.argsort(leaf, kind="stable")  # in which experts answer
    mean, variance = np.empty((2, len(leaf), seen.experts.n_outputs))
    mean[order], variance[order] = seen.predict(Routes.of(leaf, row), Z)
    return mean, variance + seen.noise[leaf]


def _hold_out(n_rows: int, rng: np.random.Generator) -> tuple[Index, Index]:
    """Rows that judge sweeps, and the others. Rows that choose their expert by their outputs cannot judge."""
    order = rng.permutation(n_rows)
    n_held = max(1, min(n_rows // HELD_SHARE, MOST_HELD))
    return np.sort(order[:n_held]), np.sort(order[n_held:])


def _members(expert: Index, rows: Index, n_dims: int) -> list[Leaf]:
    """The rows of each expert, where ``expert`` says whose each of ``rows`` is."""
    order = np.argsort(expert, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(expert))[:-1])
    return [holder(np.sort(rows[part]), n_dims) for part in parts]


def _numbered(expert: Index) -> Index:
    """Experts numbered anew from 0, those without rows left out."""
    return np.unique(expert, return_inverse=True)[1].astype(np.int64)


def _within(expert: Index, wanted: Index, gain: Array, most: int) -> Index:
    """Where rows want to go, unless an expert would grow beyond ``most``: those with the least gain then stay."""
    moved = wanted.copy()
    counts = np.bincount(wanted, minlength=int(expert.max()) + 1)
    for full in np.flatnonzero(counts > most):
        coming = np.flatnonzero((wanted == full) & (expert != full))
        order = coming[np.argsort(gain[coming])]
        back = order[: counts[full] - most]
        moved[back] = expert[back]
    return moved
