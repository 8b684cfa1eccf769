"""What ``dsmgp fit`` says of the model it has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsmgp.cli.talk import as_table, print_json

__all__ = ["say_fitted"]

# Changes that are listed one by one.
MOST_CHANGES = 20


def say_fitted(
    model: Any, recipe: Any, out: Path, seconds: float, stopped: bool, as_json: bool
) -> None:
    """On standard output."""
    from dsmgp.breaks import has_breaks

    fitted = model._model
    kernels = list(dict.fromkeys(family.kernel for family in fitted.families))
    breaks = has_breaks(fitted.tree)
    if as_json:
        if breaks:
            splits = model.split_posterior(fitted.dimension)
            changes = [_plain_change(change, splits) for change in model.changepoints()]
            scores = {"changes_expected": splits.expected, "changes": changes}
        else:
            scores = {
                "loo_nlpd": model.loo_score_,
                "loo_nlpd_new_inputs": model.loo_score_new_inputs_,
            }
        print_json(
            {
                "model": str(out),
                "rows": fitted.n_rows,
                "inputs": recipe.input_names,
                "targets": recipe.targets,
                "kernels": kernels,
                **scores,
                "seconds": seconds,
                "interrupted": stopped,
                "remarks": recipe.remarks,
            }
        )
        return
    n_inputs = len(recipe.input_names)
    inputs = f"{n_inputs}: {', '.join(recipe.input_names[:8])}{', ...' * (n_inputs > 8)}"
    lines = [
        ("rows", f"{fitted.n_rows:,}"),
        ("inputs", inputs),
        ("targets", ", ".join(recipe.targets)),
        ("kernel" + "s" * (len(kernels) > 1), ", ".join(kernels)),
    ]
    if breaks:
        lines += _changes(model)
    else:
        lines.append(("leave-one-out NLPD", f"{model.loo_score_:.4g}"))
    lines.append(("seconds", f"{seconds:.1f}" + (", interrupted" if stopped else "")))
    as_table(f"{out} written", lines)


def _changes(model: Any) -> list[tuple[str, str]]:
    """Those that can be placed, with where they lie."""
    from dsmgp.timeline import place_text

    likely, splits = model.changepoints(), model.split_posterior(model._model.dimension)
    lines = [("changes expected", f"{splits.expected:.3g}")]
    for change in likely[:MOST_CHANGES]:
        low, high = place_text(change.low), place_text(change.high)
        inside = f"{splits.within(change.low, change.high):.2f} between {low} and {high}"
        lines.append(
            (f"  {place_text(change.position)}", f"probability {change.probability:.2f}, {inside}")
        )
    if len(likely) > MOST_CHANGES:
        lines.append(("", f"and {len(likely) - MOST_CHANGES} more; --json lists all"))
    return lines


def _plain_change(change: Any, splits: Any) -> dict[str, Any]:
    """``within`` is the probability that it lies between ``low`` and ``high``."""
    from dsmgp.timeline import place_text

    places = (change.position, change.low, change.high)
    position, low, high = (p if isinstance(p, float) else place_text(p) for p in places)
    return {
        "position": position,
        "probability": change.probability,
        "low": low,
        "high": high,
        "within": splits.within(change.low, change.high),
    }
