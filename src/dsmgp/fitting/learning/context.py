"""What all stages of one fit share: the configuration, the generator of random numbers, and the count of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.optimize import Objective, Vector

__all__ = ["EvaluationCount", "FitContext"]


@dataclass
class EvaluationCount:
    """The number of evaluations of the evidence and its gradient so far."""

    n: int = 0


@dataclass(frozen=True)
class FitContext:
    """What all stages of one fit share.

    Attributes
    ----------
    config : FitConfig
    rng : numpy.random.Generator
        The only source of randomness.
    record : callable
        Wraps an objective so that its evaluations are kept (:mod:`dsmgp.fitting.checkpoint`).
    evaluations : EvaluationCount
        Of all searches, trials included.
    """

    config: FitConfig
    rng: np.random.Generator
    record: Callable[[Objective], Objective] = lambda objective: objective
    evaluations: EvaluationCount = field(default_factory=EvaluationCount)

    def recorded(self, objective: Objective) -> Objective:
        """Wrap the objective of a search so that its evaluations are counted and kept."""
        kept = self.record(objective)

        def evaluate(theta: Vector) -> tuple[float, Vector]:
            self.evaluations.n += 1
            return kept(theta)

        return evaluate
