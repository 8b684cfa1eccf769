"""Learning the families of the leaves: output scaling, kernel and mean are chosen on a few leaves, hyperparameters learned on more.

What the user has given is not chosen. The tree is grown afterwards, where these families vary
(:mod:`dsmgp.fitting.structure.grow_tree`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_family
from dsmgp.fitting.learning.kernel_mixture import build_kernels, learn_kernels
from dsmgp.fitting.learning.optimize import TOLERANCE, SearchResult
from dsmgp.fitting.learning.surrogate import sample_leaves, surrogate_leaves
from dsmgp.fitting.rows.leaf_setup import set_up_leaves
from dsmgp.fitting.rows.row_source import RowSource
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.kernels import rank_kernels
from dsmgp.fitting.selection.mean import MeanChoice, choose_mean, with_mean
from dsmgp.fitting.selection.outputs import choose_outputs
from dsmgp.fitting.stages import stage
from dsmgp.gp.process import Family
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree.nodes import Leaf, Node

__all__ = ["LearnedFamilies", "learn_families", "partitions_may_differ"]

# The kernel with which output scalings are compared when the kernel is yet to be chosen.
NEUTRAL_KERNEL = "matern12"
# Partitions alternate between two kernels whose trial scores are this close.
CLOSE_SCORES = 0.05
# Partitions are drawn at random: their hyperparameters need not be found more exactly than this (see
# optimize.TOLERANCE).
RANDOM_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class LearnedFamilies:
    """The output scaling and the kernels that were chosen, with hyperparameters learned on some leaves.

    Attributes
    ----------
    outputs : OutputScaling
    families : list of Family
        Best first; two where partitions may differ in their kernel.
    n_close : int
        How many of them score about as well as the best.
    kernel_scores : dict of str to float, or None
        Score of each kernel that was tried; lower is better.
    mean : MeanChoice or None
        The mean that was chosen, if it was open.
    searches : list of SearchResult
        For each of the close families one entry per output.
    """

    outputs: OutputScaling
    families: list[Family]
    n_close: int
    kernel_scores: dict[str, float] | None = None
    mean: MeanChoice | None = None
    searches: list[SearchResult] = field(default_factory=list)


def partitions_may_differ(config: FitConfig) -> bool:
    """Return whether partitions may differ in kernel and hyperparameters: not where sum nodes are nested."""
    nested = (config.depth or 1) > 1 or config.structure != "balanced"
    if isinstance(config.kernel, tuple):
        return False
    return config.optimizer is not None and config.objective != "full" and not nested


def learn_families(rows: RowSource, given: Node | None, context: FitContext) -> LearnedFamilies:
    """Choose output scaling, kernel and mean on the trial leaves, and learn hyperparameters on the surrogate leaves.

    Parameters
    ----------
    rows : RowSource
        In the coordinates that were chosen.
    given : Node or None
        The tree, if the user has built it.
    context : FitContext
    """
    config, effort = context.config, EFFORTS[context.config.effort]
    automatic = isinstance(config.kernel, str) and config.kernel == "auto"
    kernels = config.kernel if isinstance(config.kernel, tuple) else (config.kernel,)
    kernels = (NEUTRAL_KERNEL,) if automatic else kernels
    if config.optimizer is None:
        families = build_kernels(kernels, rows.data, config)
        return LearnedFamilies(rows.data.outputs, families, len(families))
    grown = surrogate_leaves(rows, given, context)
    data, surrogate = rows.rows_of(grown, rows.data.outputs)
    trial = sample_leaves(surrogate, effort.n_trial_leaves, context.rng)
    with stage("choosing the output scaling"):
        outputs = choose_outputs(rows.data, data, trial, kernels[0], context)
    sample, data = rows.data.with_outputs(outputs), data.with_outputs(outputs)
    if automatic:
        (neutral,) = build_kernels(kernels, sample, config)
        gps = set_up_leaves(trial, neutral.leaf_kernels, data, config)
        chosen = _chosen(gps, trial, data, sample, context)
    else:
        families = build_kernels(kernels, sample, config)
        chosen = LearnedFamilies(outputs, families, len(families))
    if not automatic or trial is not surrogate:
        gps = set_up_leaves(surrogate, chosen.families[0].leaf_kernels, data, config)
    return _learned(gps, chosen, context)


def _chosen(
    gps: LeafGPs,
    trial: list[Leaf],
    data: ScaledRows,
    sample: ScaledRows,
    context: FitContext,
) -> LearnedFamilies:
    """Choose kernel and mean by leave-one-out on the trial leaves, whose rows are those of ``data``."""
    config = context.config
    with stage("trying kernels"):
        ranking = rank_kernels(gps, sample, context)
    families = ranking.families[: 2 if partitions_may_differ(config) else 1]
    scores = np.array([ranking.scores[family.kernel] for family in families])
    n_close = int((scores - scores[0] <= CLOSE_SCORES).sum())
    mean = None
    if config.mean_is_open:
        # A generator of its own: where the mean stays zero, the fit is that of a configuration without a choice.
        mean = choose_mean(trial, data, families[0], np.random.default_rng(0))
    if mean is not None and mean.mean != "zero":
        families = [with_mean(family, mean.mean, sample, config) for family in families]
    return LearnedFamilies(sample.outputs, families, n_close, ranking.scores, mean)


def _learned(gps: LeafGPs, chosen: LearnedFamilies, context: FitContext) -> LearnedFamilies:
    """Learn the hyperparameters of the best families, those that maximise the evidence of the surrogate leaves."""
    config, families = context.config, chosen.families
    tolerance = RANDOM_TOLERANCE if config.structure == "balanced" else TOLERANCE
    if isinstance(config.kernel, tuple):
        with stage("learning hyperparameters"):
            learned, searches = learn_kernels(gps, families, context, tolerance=tolerance)
        return replace(chosen, families=learned, searches=searches)
    learned, searches = list(families), []
    for k, family in enumerate(families[: chosen.n_close]):
        text = None if chosen.kernel_scores is None else f"learning {family.kernel}"
        with stage("learning hyperparameters", text):
            learned[k], of_family = learn_family(gps, family, context, tolerance=tolerance)
        searches += of_family
    return replace(chosen, families=learned, searches=searches)
