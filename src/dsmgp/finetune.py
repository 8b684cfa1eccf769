"""Fine-tuning: hyperparameters for every leaf, tied by how much leaves have in common (the paper's eq. 12).

Leaf i maximises ``sum_j S_ij r_j log p(y_j | X_j, theta_i)`` with r frozen. While r moves this is the gradient
of no one function; frozen, every leaf has an objective of its own, and all are climbed together. With S all
ones it is that of one theta for all; with S the identity every leaf learns alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.effort import GRADIENT, seconds
from dsmgp.execution import as_tensor
from dsmgp.experts import Experts
from dsmgp.inference import infer, prior_log_path_weights
from dsmgp.lbfgs import Found, maximise
from dsmgp.learn import TOLERANCE
from dsmgp.loo import equal_rows
from dsmgp.model import Model
from dsmgp.similarity import similarity_of
from dsmgp.thetas import Thetas
from dsmgp.tied import NoiseEvidence, PairEvidence
from dsmgp.tree import leaves
from dsmgp.validation import check_choice
from dsmgp.weigh import Witnesses, weigh

__all__ = ["RESPONSIBILITIES", "Tied", "Tuned", "finetune"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
logger = logging.getLogger("dsmgp")

#: What a leaf's evidence counts for in the objectives of others.
RESPONSIBILITIES = ("prior", "posterior")
# A leaf that counts for less is left out: posterior responsibilities are nothing for most.
NEGLIGIBLE = 1e-9
# Evaluations that a search takes, over its iterations, and hours that all may take before they are refused.
EVALUATIONS, MOST_HOURS = 1.3, 3.0
# Bytes that a row of a pair takes while pairs are worked on, and rows of pairs at most.
ROW_BYTES, MOST_ROWS = 64, 2**24


@dataclass
class Tuned:
    """A fine-tuned model, evaluations of the objective, and the scores of rows left out."""

    model: Model
    n_evaluations: int
    scores: tuple[float, float]


class Tied:
    """The objectives of all leaves for one output, as functions of the parameters that are tuned.

    Parameters
    ----------
    evidence : PairEvidence or NoiseEvidence
    thetas : Thetas
    ties : sparse matrix of shape (n_leaves, n_leaves)
        ``S_ij r_j``.
    theta : ndarray of shape (n_leaves, n_parameters)
        Where parameters that are not tuned stay.
    columns : ndarray
        Of theta: those that are.
    """

    def __init__(
        self,
        evidence: Callable[[Index, Array], tuple[Array, Array]],
        thetas: Thetas,
        ties: sparse.csr_matrix,
        theta: Array,
        columns: Index,
    ) -> None:
        self.evidence, self.thetas, self.theta, self.columns = evidence, thetas, theta, columns
        # Priors are about one theta and the rows of one leaf, or more. Leaves that a row of leaf i is in add up
        # to one under the overlap, so the prior counts once there; it does where S is all ones. Where a leaf
        # stands alone, with the weight r_i, it counts as much beside the evidence as if the leaf had learned by
        # itself.
        self.prior = None
        if thetas.has_prior(columns):
            self.prior = np.minimum(np.asarray(ties.sum(axis=1)).reshape(-1), 1.0)

    def __call__(self, leaf: Index, point: Array) -> tuple[Array, Array]:
        """Values (n,) and gradients (n, n_columns) of some leaves."""
        theta = self.theta[leaf].copy()
        theta[:, self.columns] = point
        value, gradient = self.evidence(leaf, theta)
        if self.prior is not None:
            log_prior, by_prior = self.thetas.log_prior(leaf, theta)
            value = value + self.prior[leaf] * log_prior
            gradient = gradient + self.prior[leaf, None] * by_prior
        return value, gradient[:, self.columns]


def finetune(
    model: Model,
    X: Array,
    *,
    similarity: Any,
    parameters: str | Sequence[str],
    weights: str,
    rounds: int,
    max_iter: int,
    local_scale: bool,
    n_gate_rows: int,
    rng: np.random.Generator,
) -> Tuned:
    """A model like another, each leaf with a theta of its own. The other stays as it is. ``X`` are its rows in
    the user's units."""
    check_choice("weights", weights, RESPONSIBILITIES, "or None")
    assert isinstance(model.experts, Conditioned), "rows have come or gone since"
    experts = model.experts.experts
    n_dims, n_outputs = experts.X.shape[1], experts.n_outputs
    by_output = [
        Thetas([family.processes[k] for family in model.families], model.family, n_dims)
        for k in range(n_outputs)
    ]
    columns = [_columns(thetas.names, parameters) for thetas in by_output]
    S = similarity_of(similarity, leaves(model.tree), len(experts.X))
    table = [t.start() for t in by_output] if model.thetas is None else list(model.thetas)
    n_evaluations, before = 0, None
    for number in range(rounds):
        r = _responsibilities(model, by_output, table, weights, number)
        if before is not None and np.array_equal(r, before):
            break  # the same objectives: all leaves are at their tops
        ties, before = _ties(S, r), r
        for k, (thetas, own) in enumerate(zip(by_output, columns, strict=True)):
            table[k], spent = _tune(model, thetas, k, ties, table[k], own, max_iter)
            n_evaluations += spent
    naturals = _naturals(by_output, table, experts)
    witnesses = Witnesses.draw(len(X), n_gate_rows if model.weights == "gated" else 0, rng)
    conditioned = model.experts.again(experts, naturals, equal_rows(X), witnesses.rows)
    tuned = replace(model, experts=conditioned, thetas=table, gate=None)
    scores = weigh(tuned, local_scale, witnesses)
    return Tuned(tuned, n_evaluations, scores)


def _columns(names: Sequence[str], parameters: str | Sequence[str]) -> Index:
    """Where the parameters that a user names stand in theta."""
    wanted: set[Any]
    if isinstance(parameters, str) and parameters == "all":
        wanted = set(names)
    elif isinstance(parameters, str) or not np.iterable(parameters):
        wanted = {parameters}
    else:
        wanted = set(parameters)
    if not wanted or not wanted <= set(names):
        listed = (
            ", ".join(repr(name) for name in dict.fromkeys(names)) or "none, all being held fixed"
        )
        raise ValueError(
            f"expected parameters to be 'all' or some of those that this model learns ({listed}), "
            f"got {parameters!r}"
        )
    return np.flatnonzero([name in wanted for name in names])


def _responsibilities(
    model: Model, by_output: Sequence[Thetas], table: Sequence[Array], weights: str, number: int
) -> Array:
    """What each leaf counts for at the theta of now."""
    if weights == "prior":
        return np.exp(prior_log_path_weights(model.tree))
    if number == 0:
        return np.exp(model.posterior.log_responsibilities)
    experts = model.experts.experts
    evidence = experts.log_evidence(_naturals(by_output, table, experts))
    return np.exp(infer(model.tree, evidence.sum(axis=1)).log_responsibilities)


def _ties(S: sparse.csr_matrix, r: Array) -> sparse.csr_matrix:
    """``S_ij r_j``, without those that count for nothing."""
    ties = (S @ sparse.diags(r)).tocsr()
    ties.data[ties.data < NEGLIGIBLE] = 0.0
    ties.eliminate_zeros()
    return ties


def _tune(
    model: Model,
    thetas: Thetas,
    output: int,
    ties: sparse.csr_matrix,
    theta: Array,
    columns: Index,
    max_iter: int,
) -> tuple[Array, int]:
    """The table of theta with every leaf at the top of its objective for one output, and evaluations spent."""
    experts = model.experts.experts
    rows = np.asarray(ties @ experts.leaf_rows.sizes.astype(np.float64))
    some = np.flatnonzero(rows > 0)  # a leaf that no rows speak for stays as it is
    if all(thetas.names[k] == "noise" for k in columns):
        noise = NoiseEvidence(experts, thetas, output, ties, theta)
        objective = Tied(noise, thetas, ties, theta, columns)
        pieces = [some]
    else:
        _refuse_monsters(ties, experts, max_iter)
        pairs = PairEvidence(experts, leaves(model.tree), thetas, output, ties)
        objective = Tied(pairs, thetas, ties, theta, columns)
        pieces = _pieces(some, ties, experts)
    table, n_evaluations, n_iterations = theta.copy(), 0, 0
    for piece in pieces:
        found = _climb(objective, piece, theta, columns, rows, max_iter)
        table[np.ix_(piece, columns)] = found.point
        n_evaluations += found.n_evaluations
        n_iterations = max(n_iterations, int(found.n_iterations.max(initial=0)))
    logger.info(
        "output %d: %d leaves tuned over %d pairs, %d iterations at most",
        output, len(some), ties.nnz, n_iterations,
    )  # fmt: skip
    return table, n_evaluations


def _refuse_monsters(ties: sparse.csr_matrix, experts: Experts, max_iter: int) -> None:
    """Small leaves inside large ones ask for the large ones' evidence, each at a theta of its own: days go by."""
    sizes, counts = np.unique(experts.leaf_rows.sizes[ties.indices], return_counts=True)
    device = experts.X.device.type
    once = sum(
        n * seconds(m, m, device) for m, n in zip(sizes.tolist(), counts.tolist(), strict=True)
    )
    hours = GRADIENT * EVALUATIONS * max_iter * once / 3600.0
    if hours > MOST_HOURS:
        raise ValueError(
            f"tuning would take about {hours:.3g} hours: {ties.nnz} pairs of similar leaves, of up to {sizes[-1]} rows, "
            f"in up to {max_iter} iterations. Tune parameters='noise' alone, use similarity='jaccard', which does not pair "
            "small leaves with far larger ones, lower max_iter, or fit with a smaller leaf_size"
        )
    logger.info("%d pairs of leaves; about %.3g minutes at most", ties.nnz, 60.0 * hours)


def _climb(
    objective: Tied, piece: Index, theta: Array, columns: Index, rows: Array, max_iter: int
) -> Found:
    """Some leaves' searches, per row that speaks for them."""
    return maximise(
        lambda which, point: objective(piece[which], point),
        theta[np.ix_(piece, columns)],
        rows[piece],
        max_iter,
        TOLERANCE,
    )


def _pieces(some: Index, ties: sparse.csr_matrix, experts: Experts) -> list[Index]:
    """Leaves in pieces whose pairs' rows can be held at once."""
    held = (ties != 0).astype(np.float64) @ experts.leaf_rows.sizes.astype(np.float64)
    most = min(MOST_ROWS, max(experts.memory / ROW_BYTES, 1.0))
    piece = np.floor(np.cumsum(held[some]) / most)
    return [part for part in np.split(some, np.flatnonzero(np.diff(piece)) + 1) if part.size]


def _naturals(
    by_output: Sequence[Thetas], table: Sequence[Array], experts: Experts
) -> list[Tensor]:
    every = np.arange(experts.n_leaves)
    return [
        as_tensor(thetas.naturals(every, own), experts.X)
        for thetas, own in zip(by_output, table, strict=True)
    ]
