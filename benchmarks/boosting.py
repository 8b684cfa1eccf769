"""What predictions of boosted trees are worth as a further coordinate: fits without them, as by default, and with them in any case.

    DSMGP_DATA=... python benchmarks/boosting.py [airfoil kin40k protein house parkinsons flight_nyc13 ...] [--seeds 1]

Results are kept in benchmarks/results/boosting.json.
"""

from __future__ import annotations

import argparse
import time
import warnings

import accuracy
from dsmgp import DSMGPRegressor, scores
from harness import Runs, results_path, setting, standardised, table

WAYS = {"none": None, "auto": "auto", "always": "always"}
COLUMNS = {
    "data": "data", "way": "boosted_trees", "seeds": "seeds", "rmse": "RMSE", "nlpd": "NLPD", "coverage90": "90% covers",
    "loo": "loo_score_", "kept": "kept", "fit_cpu": "fit (processor s)", "predict_cpu": "predict (processor s)",
}  # fmt: skip
TEST_ROWS = 60_000


def measure(name: str, way: str, seed: int) -> dict:
    X, Y, X_test, Y_test = standardised(name, seed)
    X_test, Y_test = X_test[:TEST_ROWS], Y_test[:TEST_ROWS]
    start = time.process_time()
    model = DSMGPRegressor(random_state=seed, boosted_trees=WAYS[way]).fit(X, Y)
    fitted = time.process_time()
    distribution = model.predict_dist(X_test)
    found = {
        "fit_cpu": fitted - start,
        "predict_cpu": time.process_time() - fitted,
        "rmse": scores.rmse(Y_test, distribution.mean),
        "nlpd": scores.nlpd(Y_test, distribution),
        "coverage90": scores.coverage(Y_test, distribution, 0.9),
        "loo": model.loo_score_,
    }
    coordinates = model.coordinates_
    kept = coordinates is not None and coordinates.trees is not None
    rounded = {key: round(float(value), 4) for key, value in found.items()}
    return {"data": name, "way": way, "seed": seed, **rounded, "kept": int(kept), **setting()}


def page(report: list) -> str:
    """Means over the seeds that all ways were run on."""
    lines = []
    for name in dict.fromkeys(row["data"] for row in report):
        of_ways = {way: [r for r in report if (r["data"], r["way"]) == (name, way)] for way in WAYS}
        seeds = set.intersection(*({r["seed"] for r in rows} for rows in of_ways.values()))
        for way, rows in of_ways.items():
            common = [row for row in rows if row["seed"] in seeds]
            means = {
                key: sum(row[key] for row in common) / len(common)
                for key in ("rmse", "nlpd", "coverage90", "loo", "fit_cpu", "predict_cpu")
            }
            n_kept = sum(row["kept"] for row in common)
            kept = f"{n_kept} of {len(common)}"
            lines.append({"data": name, "way": way, "seeds": len(common), **means, "kept": kept})
    return table(COLUMNS, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=accuracy.DATA)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    runs = Runs(results_path("boosting", quick=False), ("data", "way", "seed"))
    for name in given.data:
        for seed in range(given.seeds):
            for way in WAYS:
                if runs.is_due(data=name, way=way, seed=seed):
                    runs.add([measure(name, way, seed)])
                    print(runs.rows[-1], flush=True)
    print(page(runs.rows))


if __name__ == "__main__":
    main()
