"""How the record of a search and the scores of a fit are stored."""

from __future__ import annotations

import math

from dsmgp.fitting.learning.optimize import SearchRecord, SearchResult
from dsmgp.persistence import checks
from dsmgp.persistence.record import ArrayField, Entry, Items, Record

__all__ = ["SCORES", "SEARCH"]

SEARCH_RESULT = Record(
    "search results",
    lambda path, **fields: SearchResult(**fields, path=path.tolist()),
    {
        "theta": ArrayField("theta", (None,)),
        "objective": Entry("objective", checks.NUMBER, encode=float),
        "n_iterations": Entry("n_iterations", checks.count(), encode=int),
        "n_evaluations": Entry("n_evaluations", checks.count(), encode=int),
        # Minus infinity where a leaf could not be factorised.
        "path": ArrayField("path", (None,), finite=False),
    },
)
SEARCH = Record(
    "search results",
    lambda results, notes, **fields: SearchRecord(
        tuple(results), notes=tuple(notes or ()), **fields
    ),
    {
        "results": Items("learned", SEARCH_RESULT, prefix="learned."),
        "kernel_scores": Entry("scores.kernels", checks.values_of(checks.NUMBER), optional=True),
        "n_evaluations": Entry("scores.n_evaluations", checks.count()),
        "notes": Entry("scores.notes", checks.list_of(checks.TEXT), optional=True, encode=list),
        "gains": Entry("scores.gains", checks.values_of(checks.NUMBER), optional=True),
    },
)
# Models with change points have no leave-one-out scores; JSON has no NaN.
SCORES = Record(
    "scores",
    lambda **scores: tuple(math.nan if score is None else score for score in scores.values()),
    {
        "loo": Entry("scores.loo", checks.number(), optional=True),
        "new_inputs": Entry("scores.loo_new_inputs", checks.number(), optional=True),
    },
    values={
        "loo": lambda scores: scores[0] if math.isfinite(scores[0]) else None,
        "new_inputs": lambda scores: scores[1] if math.isfinite(scores[1]) else None,
    },
)
