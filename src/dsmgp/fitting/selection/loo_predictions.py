"""Leave-one-out predictions of the leaves that candidates are tried on, each row in one leaf, and the score of a kernel by them.

All choices by leave-one-out start here: of the kernel, the scaling of outputs, and coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.weighted import weighted_median
from dsmgp.experts.interface import LeafPosterior
from dsmgp.experts.loo import Components
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.predictive.distribution import Mixture
from dsmgp.mixture.weights.gating import fit_gate

__all__ = ["TrialPredictions", "kernel_score", "loo_predictions"]


@dataclass(frozen=True, eq=False)
class TrialPredictions:
    """Rows of disjoint leaves, each predicted from the leaf's other rows.

    Attributes
    ----------
    predictions : tuple of Mixture
        Each row left out alone, and left out with its duplicates.
    observed : ndarray of shape (n_rows, n_outputs)
        Observations in the units of the leaf GPs.
    known_noise : ndarray of shape (n_rows, n_outputs) or None
        Their known noise variances.
    row_weights : ndarray of shape (n_rows,) or None
        Their weights.
    """

    predictions: tuple[Mixture, Mixture]
    observed: Array
    known_noise: Array | None
    row_weights: Array | None


def loo_predictions(posterior: LeafPosterior, outputs: OutputScaling | None) -> TrialPredictions:
    """Predict every row of disjoint leaves from the leaf's other rows, in the units of ``outputs``.

    Each row is in one leaf, so there is no mixture of leaves: a prediction is the leaf's, spread over the shapes of a gate.
    """
    loo = posterior.leave_one_out()
    rows = np.unique(posterior.leaf_rows.flat)
    scales = loo.scales_without(rows)
    alone, grouped = (loo.components(rows, with_duplicates) for with_duplicates in (False, True))
    known_noise, row_weights = loo.known_noise(rows), loo.weights(rows)
    gate = fit_gate(
        alone,
        scales,
        np.zeros(alone.leaf.shape),
        loo.observed(rows),
        local_scale=True,
        known_noise=known_noise,
        row_weights=row_weights,
    )
    weights = np.tile(gate.shape_weights, (len(rows), 1))

    def mixture(components: Components) -> Mixture:
        variance = components.variance * scales * gate.shape_variances[:, None]
        if known_noise is not None:
            variance = variance + known_noise[:, None, :]
        means = np.repeat(components.mean, len(gate.shape_weights), axis=1)
        return Mixture(weights, means, variance, outputs, squeeze=False)

    predictions = mixture(alone), mixture(grouped)
    return TrialPredictions(predictions, loo.observed(rows), known_noise, row_weights)


def kernel_score(posterior: LeafPosterior) -> float:
    """Score the leave-one-out predictions of leaves, each of its rows in one leaf. Lower is better.

    The sum of the mean negative log density, in the units of the leaf GPs, and of the log of the root mean squared error: densities
    alone would trade a worse mean for sharp peaks. The worse of two: each row left out alone, which is what a random split
    measures, and left out with all its duplicates, which is what new inputs will see. Noise near zero looks fine on duplicates left
    out together and is a disaster on rows seen twice.
    """
    left_out = loo_predictions(posterior, None)
    y, known_noise, weights = left_out.observed, left_out.known_noise, left_out.row_weights
    trust = None if weights is None else np.repeat(weights[:, None], y.shape[1], axis=1)
    if known_noise is not None:  # errors that are mostly known noise say little about a kernel
        usual = weighted_median(left_out.predictions[0].var - known_noise, weights)
        share = usual / (usual + known_noise)
        trust = share if trust is None else share * trust

    def score(predicted: Mixture) -> float:
        error = np.average((y - predicted.component_means[:, 0]) ** 2, axis=0, weights=trust)
        error = np.maximum(error, np.finfo(np.float64).tiny)  # a constant output has no error
        density = np.average(predicted.joint_logpdf(y), weights=weights)
        return float(-density + 0.5 * np.log(error).sum())

    return max(score(predicted) for predicted in left_out.predictions)
