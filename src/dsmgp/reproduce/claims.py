"""Claims about the results, each with whether it holds and its numbers, computed from the rows of results."""

from __future__ import annotations

from collections.abc import Mapping

from dsmgp.reproduce import paper
from dsmgp.reproduce.experiment import Row, mean_of, select, table

__all__ = ["claims"]

EXPERTS = ("PoE", "gPoE", "gPoE, entropy", "BCM", "rBCM", "GRBCM", "NLE", "MoE")
DEFAULT, POSTERIOR, GATED = "DSMGP, default", "DSMGP, posterior", "DSMGP, gated"
SCORES = {"mae": "MAE", "nlpd": "NLPD"}


def claims(results: Mapping[str, list[Row]]) -> str:
    """Return a Markdown table, from the rows of each experiment by name; claims without rows are left out."""
    lines = [
        *_at_least_as_good(results.get("table-results", [])),
        *_ahead_of_experts(results.get("table-results", [])),
        *_approximation(results.get("figure-approximation", [])),
        *_timings(results.get("table-timings", [])),
        *_converged(results.get("table-results", [])),
    ]
    titles = {"claim": "claim", "data": "where", "holds": "holds", "figures": "figures"}
    return table(titles, lines)


def _line(claim: str, data: str, holds: bool, figures: str) -> Row:
    return {"claim": claim, "data": data, "holds": "yes" if holds else "**no**", "figures": figures}


def _at_least_as_good(rows: list[Row]) -> list[Row]:
    """Compare at the two digits that the paper prints."""
    lines = []
    for name in paper.DATASETS:
        chosen = select(rows, data=name, column=POSTERIOR)
        if chosen:
            theirs = paper.RESULTS[name]["DSMGP"]
            holds = [
                all(round(row[score], 2) <= b for score, b in zip(SCORES, theirs, strict=True))
                for row in chosen
            ]
            mae, nlpd = (mean_of(chosen, score) for score in SCORES)
            figures = f"MAE {mae:.3f} ({theirs[0]:.2f}), NLPD {nlpd:.3f} ({theirs[1]:.2f})"
            claim = "posterior weights, the paper's settings: as good as the paper's DSMGP"
            lines.append(_counted(claim, name, sum(holds), len(holds), figures))
    return lines


def _ahead_of_experts(rows: list[Row]) -> list[Row]:
    """Compare with the best rival of each seed, whichever it is, in each score on its own."""
    lines = []
    for name in paper.DATASETS:
        of_data = select(rows, data=name)
        rivals = [r for r in of_data if r["column"].removesuffix(", same partition") in EXPERTS]
        for column in (DEFAULT, GATED, POSTERIOR):
            for score, title in SCORES.items():
                pairs = _best_by_seed(select(of_data, column=column), rivals, score)
                if not pairs:
                    continue
                ahead = sum(ours[score] < best[score] for ours, best in pairs)
                usual = _most_common([best["column"] for _, best in pairs])
                figures = (
                    f"{title} {mean_of([ours for ours, _ in pairs], score):.3f}; best rival of each seed "
                    f"{mean_of([best for _, best in pairs], score):.3f}, mostly {usual}"
                )
                claim = f"{column}: ahead of every other combination of experts in {title}"
                lines.append(_counted(claim, name, ahead, len(pairs), figures))
    return lines


def _best_by_seed(ours: list[Row], rivals: list[Row], score: str) -> list[tuple[Row, Row]]:
    """Return our result and the best rival's, seed by seed."""
    pairs = []
    for row in ours:
        of_seed = select(rivals, seed=row["seed"])
        if of_seed:
            pairs.append((row, min(of_seed, key=lambda rival: float(rival[score]))))
    return pairs


def _most_common(names: list[str]) -> str:
    return max(names, key=names.count)


def _counted(claim: str, data: str, n_holds: int, n: int, figures: str) -> Row:
    """Return a line whose verdict is the number of seeds, that is of splits and trees, on which a claim holds."""
    holds = f"on {n_holds} of {n} seeds" if n > 1 else ("yes" if n_holds else "no")
    return {
        "claim": claim,
        "data": data,
        "holds": holds if n_holds == n else f"**{holds}**",
        "figures": figures,
    }


def _approximation(rows: list[Row]) -> list[Row]:
    lines = []
    for column in (GATED, POSTERIOR):
        for size, theirs in paper.APPROXIMATION["DSMGP"].items():
            chosen = select(rows, curve=column, rows=size)
            if chosen:
                below = sum(round(row["rmse"], 3) <= round(theirs, 3) for row in chosen)
                claim = f"{column}: on or below the paper's curve on Kin40k"
                figures = f"RMSE {mean_of(chosen, 'rmse'):.3f} ({theirs:.3f}){_leaf_size(chosen)}"
                lines.append(_counted(claim, f"M = {size}", below, len(chosen), figures))
    return lines


def _leaf_size(rows: list[Row]) -> str:
    """Return the size of the leaf that a training row lies in, on average, where it was measured."""
    sizes = [row["mean_leaf"] for row in rows if "mean_leaf" in row]
    return f"; a row's leaf has {sum(sizes) / len(sizes):.0f} rows" if sizes else ""


def _timings(rows: list[Row]) -> list[Row]:
    """Report each structure on a line of its own: Algorithm 1 makes large leaves on skewed data."""
    lines = []
    for columns in (("GP", "gPoE", "rBCM"), ("DSMGP",), ("DSMGP, balanced",)):
        for name, reported in paper.TIMINGS.items():
            ours = {r["method"]: r["seconds"] for r in select(rows, data=name)}
            theirs = {m: reported.get(m.removesuffix(", balanced")) for m in columns}
            both = {m: t for m, t in theirs.items() if t is not None and ours.get(m) is not None}
            if both:
                trees = {r["method"]: r.get("trees", []) for r in select(rows, data=name)}
                figures = ", ".join(
                    f"{m} {ours[m]:.3g} s ({t:g}){_spread(m, trees[m])}" for m, t in both.items()
                )
                holds = all(ours[m] < t for m, t in both.items())
                claim = f"{', '.join(columns)}: an iteration is faster than the paper's"
                lines.append(_line(claim, name, holds, figures))
    return lines


def _spread(method: str, trees: list[float]) -> str:
    """Return the number of trees whose median a time is, and their range; one tree of Algorithm 1 alone is not representative."""
    if trees:
        return f", of {len(trees)} trees {min(trees):.3g} to {max(trees):.3g} s"
    return ", of one tree" if method == "DSMGP" else ""


def _converged(rows: list[Row]) -> list[Row]:
    """Compare rivals with a linear model, where the paper's are ahead of it: a rival that is not has not converged."""
    lines = []
    for name in paper.DATASETS:
        reported, linear = paper.RESULTS[name], select(rows, data=name, column="LR")
        for column in ("KISS", "SVGP", "MoE"):
            chosen = select(rows, data=name, column=column)
            # The paper has no results of the MoE.
            is_claimed = column not in reported or all(
                a < b for a, b in zip(reported[column], reported["LR"], strict=True)
            )
            pairs = [(row, base) for row in chosen for base in select(linear, seed=row["seed"])]
            if not is_claimed or not pairs:
                continue
            better = sum(all(a[score] < b[score] for score in SCORES) for a, b in pairs)
            figures = ", ".join(
                f"{title} {mean_of([a for a, _ in pairs], score):.3f} against {mean_of([b for _, b in pairs], score):.3f}"
                for score, title in SCORES.items()
            )
            lines.append(
                _counted(f"{column} beats a linear model", name, better, len(pairs), figures)
            )
    return lines
