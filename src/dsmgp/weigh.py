"""What leaves that have seen their rows count for: their scales, the gate, and the scores of rows left out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsmgp.conditioned import Conditioned
from dsmgp.gate import fit_gate
from dsmgp.model import Model

__all__ = ["weigh"]

# Rows on which leave-one-out scores are computed.
MAX_SCORED_ROWS = 20_000


def weigh(
    model: Model, local_scale: bool, n_gate_rows: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Set a model's scales and gate by leave-one-out; its leaves must have left their rows out.

    Returns the negative log predictive densities of rows left out, in the user's units: alone, and with all rows of the
    same inputs. Without rows for it the gate stays.
    """
    assert isinstance(model.experts, Conditioned), "rows have come or gone since"
    n_rows, loo = model.experts.n_rows, model.experts.leave_one_out()
    model.scales = loo.scales if local_scale else np.ones_like(loo.squares)
    if model.weights == "gated" and n_gate_rows:
        rows = _sample(n_rows, n_gate_rows, rng)
        components = loo.components(rows)
        without = loo.scales_without(rows) if local_scale else np.ones(components.mean.shape)
        path = components.of_leaves(model.log_path_weights, -np.inf)
        known = loo.known(rows)
        model.gate = fit_gate(components, without, path, loo.observed(rows), local_scale, known)
    rows = _sample(n_rows, MAX_SCORED_ROWS, rng)
    laws = [model.left_out_law(loo, rows, grouped) for grouped in (False, True)]
    Y = model.outputs.mean_to_user(loo.observed(rows))
    alone, at_new_inputs = (float(-law.logpdf(Y).sum(axis=1).mean()) for law in laws)
    model.experts.forget_left_out()
    return alone, at_new_inputs


def _sample(n_rows: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(rng.choice(n_rows, most, replace=False))
