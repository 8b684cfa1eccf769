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
        "theta": ArrayField((None,)),
        "objective": Entry(checks.NUMBER),
        "n_iterations": Entry(checks.count()),
        "n_evaluations": Entry(checks.count()),
        # Minus infinity where a leaf could not be factorised.
        "path": ArrayField((None,), finite=False),
    },
)
SEARCH = Record(
    "search results",
    SearchRecord,
    {
        "results": Items(SEARCH_RESULT, "learned"),
        "kernel_scores": Entry(checks.values_of(checks.NUMBER), "scores.kernels", optional=True),
        "n_evaluations": Entry(checks.count(), "scores.n_evaluations"),
        "notes": Entry(checks.list_of(checks.TEXT), "scores.notes", optional=True),
        "gains": Entry(checks.values_of(checks.NUMBER), "scores.gains", optional=True),
    },
)
# Models with change points have no leave-one-out scores; JSON has no NaN.
SCORES = Record(
    "scores",
    lambda **scores: tuple(math.nan if score is None else score for score in scores.values()),
    {
        "loo": Entry(checks.number(), "scores.loo", optional=True),
        "new_inputs": Entry(checks.number(), "scores.loo_new_inputs", optional=True),
    },
    values={
        "loo": lambda scores: scores[0] if math.isfinite(scores[0]) else None,
        "new_inputs": lambda scores: scores[1] if math.isfinite(scores[1]) else None,
    },
)
