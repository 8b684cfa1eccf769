"""What a deep kernel is worth: fits with and without a network of the inputs as further coordinates.

    DSMGP_DATA=... python benchmarks/deep.py [airfoil kin40k protein house parkinsons ...]

``metric="auto"`` with medium effort tries no network, with high effort it does, and keeps it if its leave-one-out gain is clear; ``metric="deep"`` keeps it
in any case. Seed 0. Results are kept in benchmarks/results/deep.json, on a GPU deep-gpu.json.
"""

from __future__ import annotations

import sys
import time
import warnings

from dsmgp import DSMGPRegressor, scores
from harness import Runs, results_path, setting, standardised, table

WAYS = {
    "medium": {},
    'medium, metric="deep"': {"metric": "deep"},
    "high": {"effort": "high"},
}
COLUMNS = {
    "data": "data", "way": "effort", "rmse": "RMSE", "nlpd": "NLPD", "coverage90": "90% covers", "loo": "loo_score_",
    "gain": "leave-one-out gain of the network", "kept": "kept", "seconds": "fit (s)",
}  # fmt: skip
TEST_ROWS = 60_000


def measure(name: str, way: str) -> dict:
    X, Y, X_test, Y_test = standardised(name, 0)
    X_test, Y_test = X_test[:TEST_ROWS], Y_test[:TEST_ROWS]
    start = time.perf_counter()
    model = DSMGPRegressor(random_state=0, **WAYS[way]).fit(X, Y)
    seconds = time.perf_counter() - start
    distribution = model.predict_dist(X_test)
    coordinates, gains = model.coordinates_, model.state_.search.gains or {}
    found = {
        "rmse": scores.rmse(Y_test, distribution.mean),
        "nlpd": scores.nlpd(Y_test, distribution),
        "coverage90": scores.coverage(Y_test, distribution, 0.9),
        "loo": model.loo_score_,
        "gain": gains.get("network"),
        "seconds": seconds,
    }
    rounded = {
        key: None if value is None else round(float(value), 4) for key, value in found.items()
    }
    kept = coordinates is not None and coordinates.network is not None
    return {"data": name, "way": way, **rounded, "kept": "yes" if kept else "no", **setting()}


def page(report: list) -> str:
    return table(COLUMNS, report)


def main() -> None:
    runs = Runs(results_path("deep", quick=False), ("data", "way"))
    for name in sys.argv[1:] or ["airfoil", "parkinsons", "kin40k", "house", "protein"]:
        for way in WAYS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runs.add([measure(name, way)])
            print(table(COLUMNS, runs.rows[-1:]), flush=True)


if __name__ == "__main__":
    main()
