"""Choosing the scaling of several outputs: each on its own, rotated, or regressed on one another.

Each candidate learns on the trial leaves, and leave-one-out decides; correlated outputs are learned best as
components that are not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.experts.interface import LeafPosterior
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_on_trial, loo_posterior
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.loo_predictions import loo_predictions
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree.nodes import Leaf

__all__ = ["choose_outputs"]

logger = logging.getLogger("dsmgp")

# Outputs less correlated than this are not mixed.
MIN_CORRELATION = 0.1


def choose_outputs(
    sample: ScaledRows,
    data: ScaledRows,
    leaves: Sequence[Leaf],
    kernel: Any,
    context: FitContext,
) -> OutputScaling:
    """Choose the output scaling in which several outputs are learned best.

    Candidates: each output on its own, principal components, and each output less its regression on those
    before it, in both orders. With ``outputs="independent"`` only the first.

    Parameters
    ----------
    sample : ScaledRows
        The rows that scaling and kernels are computed from.
    data : ScaledRows
        The rows of the leaves.
    leaves : sequence of Leaf
        Where each candidate is tried, with the given kernel.
    """
    Y, standardize, warps = sample.Y, context.config.standardize, sample.outputs.warps
    weights = sample.row_weights
    # Noise that is known output by output would be correlated in mixed outputs.
    independent = context.config.outputs == "independent"
    if independent or sample.n_outputs == 1 or sample.noise is not None:
        return sample.outputs
    if _max_correlation(sample.outputs.to_latent(Y), weights) <= MIN_CORRELATION:
        return sample.outputs
    order = range(sample.n_outputs)
    candidates = [
        sample.outputs,
        OutputScaling.rotated(Y, standardize, warps, weights),
        OutputScaling.chained(Y, standardize, order, warps, weights),
        OutputScaling.chained(Y, standardize, order[::-1], warps, weights),
    ]
    scores = []
    for outputs in candidates:
        family = build_family(kernel, sample.with_outputs(outputs), context.config)
        scaled = data.with_outputs(outputs)
        gps = set_up_leaves(leaves, family.leaf_kernels, scaled, context.config)
        learned, _ = learn_on_trial(gps, family, context)
        scores.append(_outputs_score(loo_posterior(gps, learned), outputs))
        loading = outputs.loading.round(3).tolist()
        logger.info("outputs as %s: leave-one-out score %.4f", loading, scores[-1])
    return candidates[int(np.argmin(scores))]


def _outputs_score(posterior: LeafPosterior, outputs: OutputScaling) -> float:
    """Score the leave-one-out predictions of several outputs, jointly and one by one. Lower is better.

    The sum of the joint negative log density and those of the marginals. The joint one alone rewards whatever
    makes correlated outputs independent, however much worse each of them is then predicted.
    """
    left_out = loo_predictions(posterior, outputs)
    y, predicted = outputs.from_experts(left_out.observed), left_out.predictions[0]
    densities = predicted.joint_logpdf(y), predicted.logpdf(y).sum(axis=1)
    joint, marginal = (np.average(each, weights=left_out.row_weights) for each in densities)
    return float(-joint - marginal)


def _max_correlation(Y: Array, weights: Array | None) -> float:
    """Return the largest absolute correlation between two outputs."""
    centred = Y - np.average(Y, axis=0, weights=weights)
    if weights is not None:
        centred = centred * np.sqrt(weights)[:, None]
    scale = np.sqrt(np.square(centred).sum(axis=0))
    varying = centred[:, scale > 0] / scale[scale > 0]
    if varying.shape[1] < 2:
        return 0.0
    matrix = varying.T @ varying
    return float(np.max(np.abs(matrix - np.diag(np.diag(matrix)))))
