"""A fitted model whose leaves break, in words and numbers, in the user's units."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsmgp.breaking import BreakingModel
from dsmgp.summary import called, describe

__all__ = ["summarise_breaks"]


def summarise_breaks(
    model: BreakingModel,
    names: Sequence[str],
    kernel_scores: dict[str, float] | None,
    target_names: Sequence[str] | None = None,
) -> str:
    """The text of :meth:`DSMGPRegressor.summary` where leaves break."""
    n_outputs = model.outputs.n_outputs
    outputs = called(target_names, n_outputs)
    ways = model.n_induced_trees
    count = f"{ways:,}" if ways < 10**15 else f"about 10^{math.log10(ways):.1f}"
    lines = [
        f"Segments of GPs in order of {names[model.dimension]}: {model.n_rows} rows, {len(names)} input{'s' * (len(names) > 1)}, "
        f"{n_outputs} output{'s' * (n_outputs > 1)}, posterior weights",
        "",
        f"segmentations   {count}, all averaged",
    ]
    for own, expert, hazard in zip(model.leaves, model.experts, model.hazards, strict=True):
        if own.changes is None:
            continue
        expected = expert.segments.n_changes * math.exp(model.posterior.log_reach[own.leaf])
        words = f"changes         {expected:.2f} expected"
        if hazard is not None:
            unit = "gap" if own.changes.gaps == "equal" else "unit of the input"
            words += f", hazard {hazard:.3g} per {unit}, segments of up to {own.longest} rows"
        lines.append(words)
    bound = " (a lower bound)" if model.outlier_probability is not None else ""
    lines.append(
        f"log evidence    {model.log_evidence:.6g} ({model.log_evidence / model.n_rows:.4g} per row){bound}"
    )
    if model.outlier_probability is not None:
        lines.append(
            f"outliers        {model.outlier_probability.sum():.1f} of the rows, "
            f"with {math.sqrt(model.contamination.ratio):.3g} times the noise's std"
        )
    if kernel_scores:
        ranked = sorted(kernel_scores.items(), key=lambda item: item[1])
        scores = ", ".join(f"{name} {score:.4g}" for name, score in ranked)
        lines.append(f"kernels tried   {scores} (negative log evidence per row)")
    for output, process in enumerate(model.processes):
        title = "" if n_outputs == 1 else f" of {outputs[output]}"
        lines += ["", f"kernel{title}", *describe(model, process, output, names, False)]
    return "\n".join(lines)
