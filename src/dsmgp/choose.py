"""Choosing kernel and units of the outputs: each candidate learns on a few leaves, and leave-one-out decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.conditioned import Conditioned
from dsmgp.gate import fit_gate
from dsmgp.mixture import Mixture
from dsmgp.process import Family
from dsmgp.progress import span
from dsmgp.train import Trainer
from dsmgp.tree import Leaf
from dsmgp.units import OutputUnits

__all__ = ["choose_units", "left_out_score", "rank_kernels", "units_score"]

Array = NDArray[np.float64]

logger = logging.getLogger("dsmgp")

#: From smooth to rough, so that each is a good start for the next, and for the one before.
CANDIDATES = ("rbf", "matern52", "matern32", "matern12")
# A trial need not end far closer to its best than kernels are apart.
TRIAL_ITERATIONS, TRIAL_TOLERANCE = 30, 1e-4
# The way back must have found this much more evidence, in nats a row, to count as another optimum.
FAR_BETTER = 0.01
# Outputs less correlated than this are left as they are.
LEAST_CORRELATION = 0.1


def left_out_score(conditioned: Conditioned) -> float:
    """How well rows left out of their leaf are predicted: their law and, as much, their mean. Lower is better.

    The sum of the mean negative log density, in the units of the experts, and of the log of the root mean square
    error. Densities alone would buy sharp peaks with a worse mean. The worse of two: each row left out
    alone, which is what a random split measures, and left out with all its twins, which is what new inputs will
    see. A kernel or a noise that is good under one only is not good: noise going to zero looks fine on twins left
    out together and is a disaster on rows seen twice.
    """

    def score(law: Mixture, y: Array) -> float:
        error = np.average((y - law.component_means[:, 0]) ** 2, axis=0, weights=trust)
        error = np.maximum(error, np.finfo(np.float64).tiny)  # a constant output is never missed
        return float(-law.joint_logpdf(y).mean() + 0.5 * np.log(error).sum())

    laws, y, known = _left_out_laws(conditioned, None)
    trust = None
    if known is not None:  # rows whose error is mostly noise that is known say little of a kernel
        usual = np.median(laws[0].var - known, axis=0)
        trust = usual / (usual + known)
    return max(score(law, y) for law in laws)


def units_score(conditioned: Conditioned, units: OutputUnits) -> float:
    """How well several outputs of rows left out are predicted, jointly and one by one. Lower is better.

    The sum of the joint negative log density and of those of the marginals. The joint one alone rewards
    whatever makes correlated outputs independent, however much worse each of them is then predicted.
    """
    (law, _), z, _ = _left_out_laws(conditioned, units)
    y = units.mean_to_user(z)
    return float(-law.joint_logpdf(y).mean() - law.logpdf(y).sum(axis=1).mean())


def _left_out_laws(
    conditioned: Conditioned, units: OutputUnits | None
) -> tuple[tuple[Mixture, Mixture], Array, Array | None]:
    """Laws of rows left out alone and with their twins; what was observed, and what is known of its noise, in the
    experts' units.

    Rows stand in one leaf each, so there is nothing to weigh: a law is the leaf's, spread over the shapes.
    """
    loo = conditioned.leave_one_out()
    rows = np.unique(conditioned.leaf_rows.flat)
    scales = loo.scales_without(rows)
    both = [loo.components(rows, grouped) for grouped in (False, True)]
    path = np.zeros(both[0].leaf.shape)
    known = loo.known(rows)
    gate = fit_gate(both[0], scales, path, loo.observed(rows), local_scale=True, known=known)
    weights = np.tile(gate.shape_weights, (len(rows), 1))
    laws = [
        Mixture(
            weights,
            np.repeat(found.mean, len(gate.shape_weights), axis=1),
            found.variance * scales * gate.shape_variances[:, None]
            + (0.0 if known is None else known[:, None, :]),
            units,
            squeeze=False,
        )
        for found in both
    ]
    return (laws[0], laws[1]), loo.observed(rows), known


def rank_kernels(trainer: Trainer, leaves: Sequence[Leaf]) -> dict[str, tuple[float, Family]]:
    """Every candidate's score after learning on the leaves, and the family itself; the best first.

    Evidence may have an optimum that calls noise what is signal in an input of short length-scale, and a smooth
    kernel is drawn to it. So candidates are learned from smooth to rough and, from the start again, from rough to
    smooth; where the way back has found far more evidence, it is another optimum, and leave-one-out decides.
    """
    with span(0.0, 0.5, "trying kernels"):
        families, evidence = _learned_in_turn(trainer, leaves, CANDIDATES)
    with span(0.5, 0.9, "trying kernels"):
        others, other_evidence = _learned_in_turn(trainer, leaves, CANDIDATES[::-1])
    margin = FAR_BETTER * sum(leaf.n_rows for leaf in leaves)
    found: dict[str, tuple[float, Family]] = {}
    for kernel in CANDIDATES:
        ends = [families[kernel]]
        if (other_evidence[kernel] > evidence[kernel] + margin).any():
            ends.append(others[kernel])
        scores = [left_out_score(trainer.left_out(leaves, family)) for family in ends]
        best = int(np.argmin(scores))
        logger.info("kernel %s: leave-one-out score %.4f", kernel, scores[best])
        found[kernel] = scores[best], ends[best]
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def _learned_in_turn(
    trainer: Trainer, leaves: Sequence[Leaf], kernels: Sequence[str]
) -> tuple[dict[str, Family], dict[str, Array]]:
    """Families, each learned from where the one before it ended, and the evidence of every output."""
    families: dict[str, Family] = {}
    evidence: dict[str, Array] = {}
    before: Family | None = None
    for k, kernel in enumerate(kernels):
        family = trainer.build(kernel)
        if before is not None:
            for new, old in zip(family.processes, before.processes, strict=True):
                new.theta = old.theta
        with span(k / len(kernels), (k + 1) / len(kernels), f"trying kernel {kernel}"):
            learned = trainer.learn(leaves, family, TRIAL_ITERATIONS, TRIAL_TOLERANCE)
        families[kernel] = before = family
        evidence[kernel] = np.array([one.objective for one in learned])
    return families, evidence


def choose_units(trainer: Trainer, leaves: Sequence[Leaf], kernel: Any) -> OutputUnits:
    """Units in which several outputs are best learned: as they are, rotated, or each regressed on the others."""
    Y, standardize = trainer.Y, trainer.settings.standardize
    plain = OutputUnits.of(Y, standardize)
    # Noise known output by output would be correlated in any other units.
    if Y.shape[1] == 1 or trainer.noise is not None or _correlation(Y) <= LEAST_CORRELATION:
        return plain
    order = range(Y.shape[1])
    tried = [
        plain,
        OutputUnits.rotated(Y, standardize),
        OutputUnits.chained(Y, standardize, order),
        OutputUnits.chained(Y, standardize, order[::-1]),
    ]
    scores = []
    for trainer.outputs in tried:
        family = trainer.build(kernel)
        trainer.learn(leaves, family, TRIAL_ITERATIONS, TRIAL_TOLERANCE)
        conditioned = trainer.left_out(leaves, family)
        scores.append(units_score(conditioned, trainer.outputs))
        loading = trainer.outputs.loading.round(3).tolist()
        logger.info("outputs as %s: leave-one-out score %.4f", loading, scores[-1])
    return tried[int(np.argmin(scores))]


def _correlation(Y: Array) -> float:
    """The largest absolute correlation between two outputs."""
    centred = Y - Y.mean(axis=0)
    scale = np.sqrt(np.square(centred).sum(axis=0))
    varying = centred[:, scale > 0] / scale[scale > 0]
    if varying.shape[1] < 2:
        return 0.0
    matrix = varying.T @ varying
    return float(np.max(np.abs(matrix - np.diag(np.diag(matrix)))))
