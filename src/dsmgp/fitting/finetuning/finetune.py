"""Fine-tuning: hyperparameters for every leaf, tied to those of similar leaves (the paper's eq. 12).

Leaf i maximises ``sum_j S_ij r_j log p(y_j | X_j, theta_i)`` with similarities S and frozen responsibilities r: every leaf has an
objective of its own, and all are maximised together. With S all ones the optimum is one theta for all leaves; with S the identity every
leaf learns alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_choice
from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import GRADIENT, seconds
from dsmgp.fitting.finetuning.batched_lbfgs import BatchResult, maximise
from dsmgp.fitting.finetuning.pair_evidence import NoiseEvidence, PairEvidence
from dsmgp.fitting.finetuning.similarity import similarity_matrix
from dsmgp.fitting.learning.optimize import TOLERANCE
from dsmgp.fitting.state import FittedState
from dsmgp.gp.leaf_parameters import LeafParameters
from dsmgp.mixture.inference import infer, prior_log_path_weights
from dsmgp.mixture.model import Model
from dsmgp.mixture.weighting import LOOSample, weigh
from dsmgp.tree.nodes import leaves

__all__ = ["RESPONSIBILITIES", "FinetuneResult", "TiedObjective", "finetune", "finetune_model"]

logger = logging.getLogger("dsmgp")

#: What the evidence of a leaf is weighted by in the objectives of all leaves.
RESPONSIBILITIES = ("prior", "posterior")
# Smaller weights are dropped: most posterior responsibilities are next to nothing.
NEGLIGIBLE = 1e-9
# Evaluations per iteration of a search, and the most hours that a search may take.
EVALUATIONS, MOST_HOURS = 1.3, 3.0
# Bytes that a row of a pair takes while pairs are worked on, and most rows of pairs at a time.
ROW_BYTES, MOST_ROWS = 64, 2**24


@dataclass(frozen=True, eq=False)
class FinetuneResult:
    """A fine-tuned model, the number of evaluations, and its leave-one-out scores."""

    model: Model
    n_evaluations: int
    scores: tuple[float, float]


class TiedObjective:
    """The objectives of all leaves for one output, as functions of the parameters that are tuned.

    Parameters
    ----------
    evidence : PairEvidence or NoiseEvidence
    thetas : LeafParameters
    ties : sparse matrix of shape (n_leaves, n_leaves)
        ``S_ij r_j``.
    theta : ndarray of shape (n_leaves, n_parameters)
        Values of the parameters that are not tuned.
    columns : ndarray of shape (n_columns,)
        Columns of theta that are tuned.
    """

    def __init__(
        self,
        evidence: Callable[[Index, Array], tuple[Array, Array]],
        thetas: LeafParameters,
        ties: sparse.csr_matrix,
        theta: Array,
        columns: Index,
    ) -> None:
        self.evidence, self.thetas, self.theta, self.columns = evidence, thetas, theta, columns
        # The prior of theta_i counts once beside the evidence of one leaf's rows or more, as under the overlap, or with S all ones. A
        # leaf that learns alone has the weight r_i, and its prior counts as much less, as if the leaf had learned by itself.
        self.prior_weight = None
        if thetas.has_prior(columns):
            self.prior_weight = np.minimum(np.asarray(ties.sum(axis=1)).reshape(-1), 1.0)

    def __call__(self, leaf: Index, point: Array) -> tuple[Array, Array]:
        """Return values (n,) and gradients (n, n_columns) of the objectives of leaves."""
        theta = self.theta[leaf].copy()
        theta[:, self.columns] = point
        value, gradient = self.evidence(leaf, theta)
        if self.prior_weight is not None:
            log_prior, by_prior = self.thetas.log_prior(leaf, theta)
            value = value + self.prior_weight[leaf] * log_prior
            gradient = gradient + self.prior_weight[leaf, None] * by_prior
        return value, gradient[:, self.columns]


def finetune(
    state: FittedState,
    config: FitConfig,
    *,
    similarity: Any,
    parameters: str | Sequence[str],
    weights: str,
    rounds: int,
    max_iter: int,
) -> FittedState:
    """Return the state with hyperparameters of its own for each leaf, and the gate and the scores fitted again.

    Parameters
    ----------
    state : FittedState
        All leaves conditioned on the present rows.
    config : FitConfig
    similarity, parameters, weights, rounds, max_iter
        See :meth:`DSMGPRegressor.finetune`.
    """
    n_gate_rows = config.n_gate_rows(state.model.weights)
    tuned = finetune_model(
        state.mixture,
        similarity=similarity,
        parameters=parameters,
        weights=weights,
        rounds=rounds,
        max_iter=max_iter,
        local_scale=state.local_scale,
        loo_sample=state.loo_sample(n_gate_rows, config.generator()),
    )
    n_evaluations = state.search.n_evaluations + tuned.n_evaluations
    search = replace(state.search, n_evaluations=n_evaluations)
    # The scores of cross-validation are those of other hyperparameters.
    return replace(state, model=tuned.model, scores=tuned.scores, search=search, stacking=None)


def finetune_model(
    model: Model,
    *,
    similarity: Any,
    parameters: str | Sequence[str],
    weights: str,
    rounds: int,
    max_iter: int,
    local_scale: bool,
    loo_sample: LOOSample,
) -> FinetuneResult:
    """Return a model like the given one in which each leaf has hyperparameters of its own.

    Parameters
    ----------
    model : Model
        Its hyperparameters are the start.
    similarity, parameters, weights, rounds, max_iter
        See :meth:`DSMGPRegressor.finetune`.
    local_scale : bool
        Whether leaves scale their variance by their LOO residuals.
    loo_sample : LOOSample
        Rows on which the gate is fitted again and the model is scored.
    """
    check_choice("weights", weights, RESPONSIBILITIES, "or None")
    posterior = model.leaf_posterior.settled()
    leaf_gps = posterior.leaf_gps
    by_output = [
        LeafParameters([f.processes[output] for f in model.families], model.family)
        for output in range(leaf_gps.n_outputs)
    ]
    columns = [_columns(thetas.names, parameters) for thetas in by_output]
    S = similarity_matrix(similarity, leaves(model.tree), len(leaf_gps.data.X))
    tables = [t.start() for t in by_output] if model.thetas is None else list(model.thetas)
    n_evaluations, previous = 0, None
    for number in range(rounds):
        r = _responsibilities(model, by_output, tables, weights, number)
        if previous is not None and np.array_equal(r, previous):
            break  # the objectives are the same, and all leaves are at their optimum
        ties, previous = _ties(S, r), r
        for output, thetas in enumerate(by_output):
            tables[output], n_output = _tune(
                model, thetas, output, ties, tables[output], columns[output], max_iter
            )
            n_evaluations += n_output
    parameters_by_output = _kernel_parameters(by_output, tables, leaf_gps)
    posterior = leaf_gps.condition(parameters_by_output, posterior.memory, True, loo_sample.rows)
    tuned = replace(model, leaf_posterior=posterior, thetas=tables, gate=None)
    tuned, scores = weigh(tuned, local_scale, loo_sample)
    return FinetuneResult(tuned, n_evaluations, scores)


def _columns(names: Sequence[str], parameters: str | Sequence[str]) -> Index:
    """Return the columns of theta that the user names."""
    chosen: set[Any]
    if isinstance(parameters, str) and parameters == "all":
        chosen = set(names)
    elif isinstance(parameters, str) or not np.iterable(parameters):
        chosen = {parameters}
    else:
        chosen = set(parameters)
    if not chosen or not chosen <= set(names):
        listed = (
            ", ".join(repr(name) for name in dict.fromkeys(names)) or "none, all being held fixed"
        )
        raise InputError(
            f"expected parameters to be 'all' or some of those that this model learns ({listed}), "
            f"got {parameters!r}"
        )
    return np.flatnonzero([name in chosen for name in names])


def _responsibilities(
    model: Model,
    by_output: Sequence[LeafParameters],
    tables: Sequence[Array],
    weights: str,
    number: int,
) -> Array:
    """Return the weight of each leaf, (n_leaves,), in round ``number``: prior path weights or posterior responsibilities."""
    if weights == "prior":
        return np.exp(prior_log_path_weights(model.tree))
    if number == 0:
        return np.exp(model.posterior.log_responsibilities)
    leaf_gps = model.leaf_posterior.leaf_gps
    evidence = leaf_gps.log_evidence(_kernel_parameters(by_output, tables, leaf_gps))
    return np.exp(infer(model.tree, evidence.sum(axis=1)).log_responsibilities)


def _ties(S: sparse.csr_matrix, r: Array) -> sparse.csr_matrix:
    """Return ``S_ij r_j`` without negligible entries."""
    ties = (S @ sparse.diags(r)).tocsr()
    ties.data[ties.data < NEGLIGIBLE] = 0.0
    ties.eliminate_zeros()
    return ties


def _tune(
    model: Model,
    thetas: LeafParameters,
    output: int,
    ties: sparse.csr_matrix,
    theta: Array,
    columns: Index,
    max_iter: int,
) -> tuple[Array, int]:
    """Maximise the objectives of all leaves for one output.

    Returns
    -------
    ndarray of shape (n_leaves, n_parameters)
        The new theta.
    int
        Number of evaluations.
    """
    leaf_gps = model.leaf_posterior.leaf_gps
    # Rows that each objective counts, by their weights; a leaf without any keeps its theta.
    n_rows = np.asarray(ties @ _n_observations(leaf_gps))
    tuned = np.flatnonzero(n_rows > 0)
    if all(thetas.names[k] == "noise" for k in columns):
        noise = NoiseEvidence(leaf_gps, thetas, output, ties, theta)
        objective = TiedObjective(noise, thetas, ties, theta, columns)
        chunks = [tuned]
    else:
        _check_cost(ties, leaf_gps, max_iter)
        pairs = PairEvidence(leaf_gps, leaves(model.tree), thetas, output, ties)
        objective = TiedObjective(pairs, thetas, ties, theta, columns)
        chunks = _chunks(tuned, ties, leaf_gps)
    table, n_evaluations, n_iterations = theta.copy(), 0, 0
    for chunk in chunks:
        start = theta[np.ix_(chunk, columns)]
        result = _maximise(objective, chunk, start, n_rows[chunk], max_iter)
        table[np.ix_(chunk, columns)] = result.point
        n_evaluations += result.n_evaluations
        n_iterations = max(n_iterations, int(result.n_iterations.max(initial=0)))
    logger.info(
        "output %d: %d leaves tuned over %d pairs, %d iterations at most",
        output, len(tuned), ties.nnz, n_iterations,
    )  # fmt: skip
    return table, n_evaluations


def _n_observations(leaf_gps: LeafGPs) -> Array:
    """Number of rows of each leaf, or the sum of their weights."""
    rows, weights = leaf_gps.leaf_rows, leaf_gps.data.row_weights
    if weights is None:
        return rows.sizes.astype(np.float64)
    return np.asarray(np.bincount(rows.owner, weights[rows.flat], len(rows)))


def _maximise(
    objective: TiedObjective, chunk: Index, start: Array, n_rows: Array, max_iter: int
) -> BatchResult:
    """Maximise the objectives of some leaves, each per row that it counts."""
    return maximise(
        lambda which, point: objective(chunk[which], point), start, n_rows, max_iter, TOLERANCE
    )


def _check_cost(ties: sparse.csr_matrix, leaf_gps: LeafGPs, max_iter: int) -> None:
    """Refuse a search that would take hours: small leaves inside large ones need the large ones' evidence, each at a theta of its own."""
    sizes, counts = np.unique(leaf_gps.leaf_rows.sizes[ties.indices], return_counts=True)
    per_evaluation = sum(
        n * seconds(m, m, leaf_gps.device)
        for m, n in zip(sizes.tolist(), counts.tolist(), strict=True)
    )
    hours = GRADIENT * EVALUATIONS * max_iter * per_evaluation / 3600.0
    if hours > MOST_HOURS:
        raise InputError(
            f"tuning would take about {hours:.3g} hours: {ties.nnz} pairs of similar leaves, of up to {sizes[-1]} rows, "
            f"in up to {max_iter} iterations. Tune parameters='noise' alone, use similarity='jaccard', which does not pair "
            "small leaves with far larger ones, lower max_iter, or fit with a smaller leaf_size"
        )
    logger.info("%d pairs of leaves; about %.3g minutes at most", ties.nnz, 60.0 * hours)


def _chunks(tuned: Index, ties: sparse.csr_matrix, leaf_gps: LeafGPs) -> list[Index]:
    """Divide leaves so that the rows of each chunk's pairs fit in memory."""
    n_rows = (ties != 0).astype(np.float64) @ leaf_gps.leaf_rows.sizes.astype(np.float64)
    most = min(MOST_ROWS, max(leaf_gps.memory / ROW_BYTES, 1.0))
    chunk = np.floor(np.cumsum(n_rows[tuned]) / most)
    return [part for part in np.split(tuned, np.flatnonzero(np.diff(chunk)) + 1) if part.size]


def _kernel_parameters(
    by_output: Sequence[LeafParameters], tables: Sequence[Array], leaf_gps: LeafGPs
) -> list[Array]:
    """Return the kernel parameters of all leaves, a table per output, at the given thetas."""
    every = np.arange(leaf_gps.n_leaves)
    return [
        thetas.kernel_parameters(every, table)
        for thetas, table in zip(by_output, tables, strict=True)
    ]
