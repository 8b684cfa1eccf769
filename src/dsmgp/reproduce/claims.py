"""The paper's claims and our own, each with whether it holds and its numbers, computed from the rows of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from dsmgp.reproduce import paper
from dsmgp.reproduce.experiment import Row, mean_of, present, select, table
from dsmgp.reproduce.experiments.objective import LEAF_SIZES, TITLES, pairs
from dsmgp.reproduce.experiments.results import LITERAL

__all__ = ["claims"]

EXPERTS = ("PoE", "gPoE", "gPoE, entropy", "BCM", "rBCM", "GRBCM", "NLE", "MoE")
DEFAULT, POSTERIOR, GATED = "DSMGP, default", "DSMGP, posterior", "DSMGP, gated"
SCORES = {"mae": "MAE", "nlpd": "NLPD"}


def claims(results: Mapping[str, list[Row]]) -> str:
    """Return a Markdown table, from the rows of each experiment by name; claims without rows are left out."""
    lines = [
        *_at_least_as_good(results.get("table-results", [])),
        *_ahead_of_experts(results.get("table-results", [])),
        *_competitive(results.get("table-results", [])),
        *_approximation(results.get("figure-approximation", [])),
        *_below_rivals(results.get("figure-approximation", [])),
        *_motorcycle(results.get("figure-motorcycle", [])),
        *_fine_tuned(results.get("figure-noise", [])),
        *_compensated(results.get("figure-contour", [])),
        *_sizes(results.get("mixture-sizes", [])),
        *_sharing(results.get("figure-sharing", [])),
        *_timings(results.get("table-timings", [])),
        *_converged(results.get("table-results", [])),
        *_learned_on_the_mixture(results.get("learning-objective", [])),
    ]
    titles = {"claim": "claim", "data": "where", "holds": "holds", "figures": "figures"}
    return table(titles, lines)


def _at_least_as_good(rows: list[Row]) -> list[Row]:
    """Compare at the two digits that the paper prints."""
    lines = []
    for name, column in product(paper.DATASETS, (LITERAL, POSTERIOR)):
        chosen = select(rows, data=name, column=column)
        if chosen:
            theirs = paper.RESULTS[name]["DSMGP"]
            holds = [
                all(round(row[score], 2) <= b for score, b in zip(SCORES, theirs, strict=True))
                for row in chosen
            ]
            mae, nlpd = (mean_of(chosen, score) for score in SCORES)
            figures = f"MAE {mae:.3f} ({theirs[0]:.2f}), NLPD {nlpd:.3f} ({theirs[1]:.2f})"
            claim = f"{column}: as good as the paper's DSMGP"
            lines.append(_counted(claim, name, sum(holds), len(holds), figures))
    return lines


def _ahead_of_experts(rows: list[Row]) -> list[Row]:
    """Compare with the best rival of each seed, whichever it is, in each score on its own."""
    lines = []
    for name in paper.DATASETS:
        of_data = select(rows, data=name)
        rivals = [r for r in of_data if r["column"].removesuffix(", same partition") in EXPERTS]
        for column in (DEFAULT, GATED, POSTERIOR, LITERAL):
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


def _counted(claim: str, data: str, n_holds: int, n: int, figures: str, unit: str = "seeds") -> Row:
    """Return a line whose verdict is the number of seeds, that is of splits and trees, on which a claim holds."""
    holds = f"on {n_holds} of {n} {unit}" if n > 1 else ("yes" if n_holds else "no")
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
                timed = {r["method"]: r for r in select(rows, data=name)}
                trees = {m: timed[m].get("trees", [ours[m]]) for m in both}
                figures = ", ".join(
                    f"{m} {ours[m]:.3g} s ({t:g}){_spread(m, trees[m])}" for m, t in both.items()
                )
                # Of one tree, or of experts drawn at random, there is one time.
                runs = [
                    all(seconds[k % len(seconds)] < both[m] for m, seconds in trees.items())
                    for k in range(max(map(len, trees.values())))
                ]
                claim = f"{', '.join(columns)}: an iteration is faster than the paper's"
                lines.append(_counted(claim, name, sum(runs), len(runs), figures, "trees"))
    return lines


def _spread(method: str, trees: list[float]) -> str:
    """Return the number of trees whose median a time is, and their range; one tree of Algorithm 1 alone is not representative."""
    if len(trees) > 1:
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


def _learned_on_the_mixture(rows: list[Row]) -> list[Row]:
    """Count the seeds on which learning with K_S = 4 improves a score, as the paper expects."""
    lines = []
    for name in present(LEAF_SIZES, rows):
        of_data = pairs(select(rows, data=name))
        for score, title in (*TITLES.items(), ("evidence", "log evidence per row")):
            sign = 1.0 if score == "evidence" else -1.0
            better = sum(sign * full[score] > sign * one[score] for one, full in of_data)
            figures = _versus(title, [(full, one) for one, full in of_data], score)
            claim = (
                f"hyperparameters learned with K_S = 4 improve {title} over those of one partition"
            )
            lines.append(_counted(claim, name, better, len(of_data), figures))
    return lines


def _competitive(rows: list[Row]) -> list[Row]:
    """Compare with SVGP in both scores, and in the distance from the exact GP, as the paper does of Table 2."""
    lines = []
    for name, column in product(paper.DATASETS, (LITERAL, POSTERIOR)):
        of_data = select(rows, data=name)
        by_seed = [
            (ours, svgp, select(of_data, column="GP", seed=ours["seed"]))
            for ours in select(of_data, column=column)
            for svgp in select(of_data, column="SVGP", seed=ours["seed"])
        ]
        for score, title in SCORES.items() if by_seed else ():
            ahead = sum(ours[score] <= svgp[score] for ours, svgp, _ in by_seed)
            figures = _versus(title, [(a, b) for a, b, _ in by_seed], score)
            claim = f"{column}: at least as good as SVGP in {title}"
            lines.append(_counted(claim, name, ahead, len(by_seed), figures))
        away = [
            (abs(ours["mae"] - exact[0]["mae"]), abs(svgp["mae"] - exact[0]["mae"]))
            for ours, svgp, exact in by_seed
            if exact
        ]
        if away:
            claim = f"{column}: MAE closer to the exact GP's than SVGP's"
            ours_away, theirs_away = (sum(each) / len(away) for each in zip(*away, strict=True))
            figures = f"MAE differs by {ours_away:.3f}, SVGP's by {theirs_away:.3f}"
            lines.append(_counted(claim, name, sum(a < b for a, b in away), len(away), figures))
    return lines


def _below_rivals(rows: list[Row]) -> list[Row]:
    """Compare with gPoE and rBCM at each size, as the paper does."""
    lines = []
    sizes = sorted({row["rows"] for row in rows})[:-1]  # the last is one expert of all rows
    for column, size in product((POSTERIOR, GATED), sizes):
        rivals = [row for row in select(rows, rows=size) if row["curve"] in ("gPoE", "rBCM")]
        of_seeds = _best_by_seed(select(rows, rows=size, curve=column), rivals, "rmse")
        if of_seeds:
            below = sum(ours["rmse"] < best["rmse"] for ours, best in of_seeds)
            figures = f"{_versus('RMSE', of_seeds, 'rmse')}, of the better of both"
            claim = f"{column}: a lower error than gPoE and rBCM"
            lines.append(_counted(claim, f"Kin40k, M = {size}", below, len(of_seeds), figures))
    return lines


def _motorcycle(rows: list[Row]) -> list[Row]:
    """Test what the paper says of its panels: width, distance from the exact GP, and discontinuities."""
    models = {row["model"]: select(rows, model=row["model"]) for row in rows}

    def line(claim: str, model: str, key: str, holds: Callable[[Row], bool], text: str) -> Row:
        n_holds = sum(map(holds, models[model]))
        figures = f"{text} {mean_of(models[model], key):.3f}"
        return _counted(claim, "motorcycle", n_holds, len(models[model]), figures)

    def of(model: str, row: Row, key: str) -> float:
        return float(select(models[model], seed=row["seed"])[0][key])

    if not {"GP", "gPoE", "rBCM", POSTERIOR} <= set(models):
        return []
    lines = [
        line(f"{model}: wider than the exact GP", model, "wider", lambda row: row["wider"] > 1.0,
             "standard deviation over the exact GP's")
        for model in ("gPoE", "rBCM")
    ]  # fmt: skip
    for model in (column for column in (POSTERIOR, GATED) if column in models):
        closest = f"; gPoE {mean_of(models['gPoE'], 'away'):.3f}, rBCM {mean_of(models['rBCM'], 'away'):.3f}"
        nearer = line(
            f"{model}: mean closer to the exact GP's than gPoE's and rBCM's", model, "away",
            lambda row: row["away"] < min(of("gPoE", row, "away"), of("rBCM", row, "away")),
            "RMS distance, in sd of y,",
        )  # fmt: skip
        nearer["figures"] += closest
        smooth = line(
            f"{model}: no severe discontinuities (no step beyond twice the exact GP's largest)", model, "jump",
            lambda row: row["jump"] <= 2.0 * of("GP", row, "jump"),
            f"largest step, in sd of y (exact GP {mean_of(models['GP'], 'jump'):.3f}),",
        )  # fmt: skip
        lines += [nearer, smooth]
    return lines


def _fine_tuned(rows: list[Row]) -> list[Row]:
    """Compare fine-tuned with global noise, in the NLPD, and in the noise where it is known."""
    lines = []
    names = list(dict.fromkeys(row["data"] for row in rows))
    noises = [noise for noise in dict.fromkeys(row["noise"] for row in rows) if noise != "global"]
    for name, noise in product(names, noises):
        both = _by_seed(select(rows, data=name), "noise", noise, "global")
        for score, title in (("nlpd", "NLPD"), ("noise_error", "RMSE of the log noise sd")):
            if both and score in both[0][0]:
                better = sum(tuned[score] < fixed[score] for tuned, fixed in both)
                claim = f"{noise}: better than global noise in {title}"
                lines.append(_counted(claim, name, better, len(both), _versus(title, both, score)))
    return lines


def _compensated(rows: list[Row]) -> list[Row]:
    """Compare small leaves and many children with leaves four times as large and one child."""
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        for weights in ("posterior", "gated"):
            of_data = select(rows, data=name, weights=weights)
            small = select(of_data, size=50, children=8)
            both = [
                (one, other)
                for one in small
                for other in select(of_data, size=200, children=1, seed=one["seed"])
            ]
            if both:
                better = sum(one["nlpd"] <= other["nlpd"] for one, other in both)
                claim = f"DSMGP, {weights}: many children make up for small leaves (M = 50, K_S = 8 against M = 200, K_S = 1)"
                figures = _versus("NLPD", both, "nlpd")
                lines.append(_counted(claim, name, better, len(both), figures))
    return lines


def _sizes(rows: list[Row]) -> list[Row]:
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        found = [float(row["effective"]) for row in select(rows, data=name)]
        claim = "posterior weights: more than ten trees count (exp(entropy))"
        figures = f"effective number {min(found):.3g} to {max(found):.3g}"
        lines.append(_counted(claim, name, sum(n > 10.0 for n in found), len(found), figures))
    return lines


def _sharing(rows: list[Row]) -> list[Row]:
    """Test the paper's speed-up at its largest number of partitions."""
    lines = []
    most = max(paper.SHARING["naive"])
    for depth in sorted({row["depth"] for row in rows}):
        gains = [
            row["naive_ms"] / row["shared_ms"] for row in select(rows, partitions=most, depth=depth)
        ]
        if gains:
            claim = "sharing Cholesky factors is faster by a factor of two"
            figures = f"{min(gains):.2f} to {max(gains):.2f} times as fast"
            where = f"{most} partitions, R = {depth}"
            lines.append(_counted(claim, where, sum(g >= 2.0 for g in gains), len(gains), figures))
    return lines


def _by_seed(rows: list[Row], field: str, one: str, other: str) -> list[tuple[Row, Row]]:
    """Return the rows with two values of a field, seed by seed."""
    return [
        (row, base)
        for row in select(rows, **{field: one})
        for base in select(rows, **{field: other}, seed=row["seed"])
    ]


def _versus(title: str, both: list[tuple[Row, Row]], score: str) -> str:
    """Return the means of a score over pairs of results."""
    ours, theirs = (mean_of([pair[k] for pair in both], score) for k in (0, 1))
    return f"{title} {ours:.3f} against {theirs:.3f}"
