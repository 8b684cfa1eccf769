"""What leaves that have seen their rows count for: their scales, the gate, and the scores of rows left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsmgp.conditioned import Conditioned
from dsmgp.gate import fit_gate
from dsmgp.model import Model

__all__ = ["Witnesses", "weigh"]

Index = NDArray[np.int64]
# Rows on which leave-one-out scores are computed.
MAX_SCORED_ROWS = 20_000


@dataclass(frozen=True)
class Witnesses:
    """Rows on which leaves are weighed, drawn before leaves see theirs: only of these is remembered what was said.

    ``gate`` are those on which a gate is fitted, none where it stays; ``scored`` those whose scores are told.
    """

    gate: Index
    scored: Index

    @classmethod
    def draw(cls, n_rows: int, n_gate_rows: int, rng: np.random.Generator) -> Witnesses:
        gate = _sample(n_rows, n_gate_rows, rng) if n_gate_rows else np.empty(0, dtype=np.int64)
        return cls(gate, _sample(n_rows, MAX_SCORED_ROWS, rng))

    @property
    def rows(self) -> Index:
        """All of them."""
        return np.union1d(self.gate, self.scored)


def weigh(model: Model, local_scale: bool, witnesses: Witnesses) -> tuple[float, float]:
    """Set a model's scales and gate by leave-one-out; its leaves must have left their rows out.

    Returns the negative log predictive densities of rows left out, in the user's units: alone, and with all rows of the
    same inputs.
    """
    assert isinstance(model.experts, Conditioned), "rows have come or gone since"
    loo = model.experts.leave_one_out()
    model.scales = loo.scales if local_scale else np.ones_like(loo.squares)
    rows = witnesses.gate
    if len(rows):
        components = loo.components(rows)
        without = loo.scales_without(rows) if local_scale else np.ones(components.mean.shape)
        path = components.of_leaves(model.log_path_weights, -np.inf)
        known = loo.known(rows)
        model.gate = fit_gate(components, without, path, loo.observed(rows), local_scale, known)
    rows = witnesses.scored
    laws = [model.left_out_law(loo, rows, grouped) for grouped in (False, True)]
    Y = model.outputs.mean_to_user(loo.observed(rows))
    alone, at_new_inputs = (float(-law.logpdf(Y).sum(axis=1).mean()) for law in laws)
    model.experts.forget_left_out()
    return alone, at_new_inputs


def _sample(n_rows: int, most: int, rng: np.random.Generator) -> Index:
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(rng.choice(n_rows, most, replace=False))
