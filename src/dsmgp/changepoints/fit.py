"""Fit a model with change points: learn theta and the hazard, find outliers, and compute the posterior over segments."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.warnings import warn_user
from dsmgp.changepoints.leaf import OrderedLeaf, check_memory
from dsmgp.changepoints.model import ChangePointModel
from dsmgp.changepoints.objective import ChangePointObjective
from dsmgp.changepoints.outliers import Outliers, find_outliers
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.optimize import SearchRecord, SearchResult
from dsmgp.fitting.outside.edges import with_edges
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.gp.process import Family
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.linalg.threads import one_thread
from dsmgp.progress import stopping
from dsmgp.tree.changepoint_leaf import ChangePointLeaf, ChangePoints
from dsmgp.tree.nodes import Node, leaves
from dsmgp.tree.region import Region
from dsmgp.tree.routing import place

__all__ = ["TrainingLeaves", "fit_changepoints", "prepare"]

logger = logging.getLogger("dsmgp")

#: Most rows in a segment unless leaf_size is given, by effort.
LONGEST = {"low": 250, "medium": 500, "high": 1000}
# Kernels that "auto" compares by their evidence. Outliers are first looked for with the first of them.
CANDIDATES = ("matern32", "rbf", "matern12")
# L-BFGS ends when a step improves the objective per row by less than this, relatively.
TOLERANCE = 1e-6
# Most rows in a segment while theta is learned.
LEARN_LONGEST = {"low": 80, "medium": 150, "high": 300}
# Iterations for theta between two updates of the outliers.
ROUND_ITERATIONS = 5
# A segment counts as cut short where it has this share of the longest length or more.
CUT_SHORT = 0.97


@dataclass(frozen=True)
class TrainingLeaves:
    """The training set as leaves with ordered rows.

    Attributes
    ----------
    rows : ScaledRows
    config : FitConfig
    rng : Generator
    tree : Node
    Y : ndarray of shape (n_rows, n_outputs)
        Scaled outputs.
    leaves : list of OrderedLeaf
    short_leaves : list of OrderedLeaf
        The same with shorter segments, on which theta is learned at a fraction of the cost.
    """

    rows: ScaledRows
    config: FitConfig
    rng: np.random.Generator
    tree: Node
    Y: Array
    leaves: list[OrderedLeaf]
    short_leaves: list[OrderedLeaf]

    def objective(self, family: Family, noise_factor: Array) -> ChangePointObjective:
        """Return the objective of theta, at short segments and starting hazards."""
        return ChangePointObjective(self.tree, self.short_leaves, family.processes, noise_factor)


def fit_changepoints(
    rows: TrainingRows, schema: InputSchema, config: FitConfig, rng: np.random.Generator
) -> FittedState:
    """Fit a mixture over segmentations.

    Parameters
    ----------
    rows : TrainingRows
    schema : InputSchema
    config : FitConfig
        That of :func:`dsmgp.changepoints.config.changepoint_config`.
    rng : Generator
        For random restarts.
    """
    with one_thread():  # many small matrices: threads would wait for one another
        data = prepare(rows.X, rows.Y, config, rng)
        automatic = isinstance(config.kernel, str) and config.kernel == "auto"
        kernels = CANDIDATES if automatic else (config.kernel,)
        if config.optimizer is None:
            kernels = kernels[:1]
        model, learned, scores, n_evaluations = _select_kernel(data, kernels)
    if not np.isfinite(model.log_evidence):
        raise InputError(
            "no segmentation has segments of the lengths allowed; lower shortest or raise leaf_size"
        )
    _warn_of_long_segments(model)
    search = SearchRecord(
        () if config.optimizer is None else (learned,),
        scores if automatic else None,
        n_evaluations,
    )
    model = with_edges(model, rows.X, schema.columns.measured_inputs)
    return FittedState.of(model, rows, schema, search, (math.nan, math.nan), config.local_scale)


def prepare(X: Array, Y: Array, config: FitConfig, rng: np.random.Generator) -> TrainingLeaves:
    """Place the rows in the tree, scale inputs and outputs, and order the rows of every leaf."""
    rows = ScaledRows.of(X, Y, config)
    tree = place(_tree(config.structure, X.shape[1]), X)
    sizes = config.leaf_sizes
    longest = max(sizes) if sizes else LONGEST[config.effort]
    check_memory(leaves(tree), longest, config.table_memory)
    if _has_outliers(tree):
        if Y.shape[1] > 1:
            raise InputError(
                f"outliers=True takes one output, got {Y.shape[1]}; fit outputs one by one"
            )
        rows = rows.with_outputs(OutputScaling.robust(Y, config.standardize))
    Z = rows.inputs.to_experts(X)
    scaled = rows.outputs.to_experts(Y)
    ordered = [OrderedLeaf(leaf, X, Z, scaled, longest) for leaf in leaves(tree)]
    # Rows at one position stay together, and may need longer segments.
    needed = [2 * max(leaf.most_rows_at_one_position, leaf.shortest) for leaf in ordered]
    short = min(longest, max(LEARN_LONGEST[config.effort], *needed, 1))
    short_ordered = [OrderedLeaf(leaf, X, Z, scaled, short) for leaf in leaves(tree)]
    return TrainingLeaves(rows, config, rng, tree, scaled, ordered, short_ordered)


def _tree(structure: str | ChangePoints | Node, n_dims: int) -> Node:
    """Return the tree of a structure; inputs given by name have been replaced by their numbers."""
    if isinstance(structure, str):
        structure = ChangePoints()
    if isinstance(structure, ChangePoints):
        return ChangePointLeaf(Region.whole(n_dims), changes=structure)
    return structure


def _has_outliers(tree: Node) -> bool:
    return any(isinstance(leaf, ChangePointLeaf) and leaf.changes.outliers for leaf in leaves(tree))


def _select_kernel(
    data: TrainingLeaves, kernels: tuple[Any, ...]
) -> tuple[ChangePointModel, SearchResult, dict[str, float], int]:
    """Fit every kernel; return the model of highest evidence, its search, all scores and the number of evaluations.

    A score is the negative log evidence per row.
    """
    best: tuple[float, ChangePointModel, SearchResult] | None = None
    scores: dict[str, float] = {}
    n_evaluations = 0
    for kernel in kernels:
        if best is not None and stopping():
            break
        model, learned, n = _fit_kernel(data, kernel)
        n_evaluations += n
        score = -model.log_evidence / len(data.Y)
        scores[str(kernel)] = score
        logger.info("kernel %s: log evidence %.6g", kernel, model.log_evidence)
        if best is None or score < best[0] or np.isnan(best[0]):
            best = score, model, learned
    assert best is not None
    return best[1], best[2], scores, n_evaluations


def _fit_kernel(data: TrainingLeaves, kernel: Any) -> tuple[ChangePointModel, SearchResult, int]:
    """Fit one kernel: outliers first, if there may be any, then theta; return also the number of evaluations."""
    family = build_family(kernel, data.rows, data.config)
    objective = data.objective(family, np.ones_like(data.Y))
    outliers, n_evaluations = None, 0
    if _has_outliers(data.tree):
        objective, outliers, n_evaluations = find_outliers(
            objective, data.Y[:, 0], lambda each: _learn(data, each, ROUND_ITERATIONS)
        )
    learned = _learn(data, objective, data.config.max_iter)
    family = family.with_processes(objective.processes)
    model = _condition(data, family, objective, outliers)
    return model, learned, n_evaluations + learned.n_evaluations


def _learn(
    data: TrainingLeaves, objective: ChangePointObjective, max_iter: int | None
) -> SearchResult:
    config = data.config
    if config.optimizer is None:
        return SearchResult(objective.theta, -np.inf)
    return objective.learn(config.optimizer, data.rng, max_iter, TOLERANCE, config.n_restarts)


def _condition(
    data: TrainingLeaves,
    family: Family,
    objective: ChangePointObjective,
    outliers: Outliers | None,
) -> ChangePointModel:
    """Compute the posterior with segments of full length, at the theta that short ones were learned with."""
    full = ChangePointObjective(
        data.tree, data.leaves, family.processes, objective.noise_factor, objective.hazards
    )
    memory = 0.5 * data.config.memory
    segmented_gps = full.condition(memory)
    pairs = zip(data.short_leaves, data.leaves, strict=True)
    was_shorter = any(short.longest < leaf.longest for short, leaf in pairs)
    if data.config.optimizer is not None and was_shorter:
        full.update_hazards(segmented_gps)
        segmented_gps = full.condition(memory)
    return ChangePointModel(
        tree=data.tree,
        family=family,
        segmented_gps=segmented_gps,
        inputs=data.rows.inputs,
        outputs=data.rows.outputs,
        n_rows=len(data.Y),
        outliers=outliers,
    )


def _warn_of_long_segments(model: ChangePointModel) -> None:
    """Warn where segments may end only because they must: such change points look like others."""
    for gp in model.segmented_gps:
        longest, segments = gp.leaf.longest, gp.segments
        if longest >= len(gp.leaf.rows):
            continue
        long = segments.end - segments.start >= CUT_SHORT * longest
        expected = float(segments.probability[long].sum())
        if expected > 0.5:
            count = round(expected)
            what = "a segment is" if count == 1 else f"about {count} segments are"
            warn_user(
                f"{what} as long as leaf_size={longest} allows, and may end only because of that; raise leaf_size",
                topic="segments cut short",
            )
