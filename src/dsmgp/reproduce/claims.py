"""Claims about the results, each with whether it holds and its numbers, computed from the rows of results."""

from __future__ import annotations

from collections.abc import Mapping

from dsmgp.reproduce import paper
from dsmgp.reproduce.experiment import Row, mean_of, select, table

__all__ = ["claims"]

EXPERTS = ("PoE", "gPoE", "gPoE, entropy", "BCM", "rBCM")
DEFAULT, POSTERIOR, GATED = "DSMGP, default", "DSMGP, posterior", "DSMGP, gated"


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


def _means(rows: list[Row], name: str) -> dict[str, tuple[float, float]]:
    """Return MAE and NLPD of every column on one data set, averaged over seeds."""
    means = {}
    for column in dict.fromkeys(r["column"] for r in select(rows, data=name)):
        chosen = select(rows, data=name, column=column)
        means[column] = mean_of(chosen, "mae"), mean_of(chosen, "nlpd")
    return means


def _line(claim: str, data: str, holds: bool, figures: str) -> Row:
    return {"claim": claim, "data": data, "holds": "yes" if holds else "**no**", "figures": figures}


def _at_least_as_good(rows: list[Row]) -> list[Row]:
    """Compare at the two digits that the paper prints."""
    lines = []
    for name in paper.DATASETS:
        means = _means(rows, name)
        if POSTERIOR in means:
            ours, theirs = means[POSTERIOR], paper.RESULTS[name]["DSMGP"]
            holds = all(round(a, 2) <= b for a, b in zip(ours, theirs, strict=True))
            figures = f"MAE {ours[0]:.3f} ({theirs[0]:.2f}), NLPD {ours[1]:.3f} ({theirs[1]:.2f})"
            claim = "posterior weights, the paper's settings: as good as the paper's DSMGP"
            lines.append(_line(claim, name, holds, figures))
    return lines


def _ahead_of_experts(rows: list[Row]) -> list[Row]:
    lines = []
    for name in paper.DATASETS:
        seeds = {r["seed"] for r in select(rows, data=name, column=EXPERTS[0])}
        means = _means([r for r in rows if r["seed"] in seeds], name)
        rivals = {
            column: nlpd
            for column, (_, nlpd) in means.items()
            if column.removesuffix(", same partition") in EXPERTS
        }
        for column in (DEFAULT, GATED, POSTERIOR):
            if column in means and rivals:
                best = min(rivals, key=rivals.__getitem__)
                holds = means[column][1] < rivals[best]
                figures = f"NLPD {means[column][1]:.3f}; best of them, {best}: {rivals[best]:.3f}"
                claim = f"{column}: ahead of PoE, gPoE, BCM and rBCM in NLPD"
                lines.append(_line(claim, name, holds, figures))
    return lines


def _approximation(rows: list[Row]) -> list[Row]:
    lines = []
    for column in (GATED, POSTERIOR):
        for size, theirs in paper.APPROXIMATION["DSMGP"].items():
            chosen = select(rows, curve=column, rows=size)
            if chosen:
                ours = mean_of(chosen, "rmse")
                claim = f"{column}: on or below the paper's curve on Kin40k"
                figures = f"RMSE {ours:.3f} ({theirs:.3f})"
                lines.append(
                    _line(claim, f"M = {size}", round(ours, 3) <= round(theirs, 3), figures)
                )
    return lines


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
    lines = []
    for name in paper.DATASETS:
        means, reported = _means(rows, name), paper.RESULTS[name]
        for column in ("KISS", "SVGP", "MoE"):
            if column not in means or "LR" not in means:
                continue
            # Only where it does in the paper, which has no results of the MoE.
            is_claimed = column not in reported or all(
                a < b for a, b in zip(reported[column], reported["LR"], strict=True)
            )
            if is_claimed:
                (mae, nlpd), (linear_mae, linear_nlpd) = means[column], means["LR"]
                holds = mae < linear_mae and nlpd < linear_nlpd
                figures = f"MAE {mae:.3f} against {linear_mae:.3f}, NLPD {nlpd:.3f} against {linear_nlpd:.3f}"
                lines.append(_line(f"{column} beats a linear model", name, holds, figures))
    return lines
