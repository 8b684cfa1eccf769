"""One size of leaves more, or a second partition of each: what is worth more where seconds are short.

    DSMGP_DATA=... python benchmarks/sizes.py [kin40k house ...] [--seeds 2] [--results FILE]

Defaults, but for the seconds that leaves may take, which are a small part of the usual: for data of this size they would be enough for every
size twice, as they are not for millions of rows. ``sizes first`` is how ``effort`` chooses: one partition of each size as far as the
seconds go, then second ones, from the small. ``copies first`` has two of each from the start, and ends sooner. Results are kept in
benchmarks/results/sizes.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from pathlib import Path

import numpy as np

from dsmgp import DSMGPRegressor
from dsmgp.fitting.effort import EFFORTS, Effort, leaf_rows, seconds
from harness import brief_score, results_path, setting, standardised, table, write_report

# Seconds for the leaves of each.
SECONDS = {"kin40k": 0.3, "house": 0.5, "protein": 1.0}


class CopiesFirst(Effort):
    """The least copies of each size, as far as the seconds go."""

    def leaf_sizes(self, n_rows: int, device: str, most: float = np.inf) -> list[int]:
        copies, sizes, spent = self.copies[0], [], 0.0
        for size in self.ladder:
            spent += copies * seconds(n_rows, leaf_rows(size, n_rows), device)
            if spent > self.budget(device):
                break
            sizes += [size] * copies
        return sizes


WAYS = {"copies first": CopiesFirst, "sizes first": Effort}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=list(SECONDS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    usual, rows = dataclasses.asdict(EFFORTS["medium"]), []
    for name in given.data:
        for seed in range(given.seeds):
            X, Y, X_test, Y_test = standardised(name, seed)
            for way, kind in WAYS.items():
                tight = kind(**usual | {"seconds": dict.fromkeys(usual["seconds"], SECONDS[name])})
                EFFORTS["medium"] = tight
                model = DSMGPRegressor(device="cpu", random_state=seed).fit(X, Y)
                sizes = tight.leaf_sizes(len(X), "cpu")
                counts = ", ".join(f"{s} x {sizes.count(s)}" for s in dict.fromkeys(sizes))
                found = brief_score(model.predict_dist(X_test), Y_test)
                rows.append({"data": name, "seconds": SECONDS[name], "way": way, "seed": seed,
                             "sizes": counts, **found, **setting()})  # fmt: skip
                print(rows[-1], flush=True)
    report = {"rows": rows}
    write_report(given.results or results_path("sizes", quick=False), report)
    print(page(report))


def page(report: dict) -> str:
    """Means over seeds."""
    rows, lines = report["rows"], []
    for key in dict.fromkeys((row["data"], row["way"]) for row in rows):
        own = [row for row in rows if (row["data"], row["way"]) == key]
        means = {k: float(np.mean([row[k] for row in own])) for k in ("rmse", "nlpd")}
        lines.append({**own[0], "seeds": len(own), **means})
    titles = {
        "data": "data",
        "seconds": "seconds for leaves",
        "way": "way",
        "sizes": "rows x partitions",
        "seeds": "seeds",
    }
    return table(titles | {"rmse": "RMSE", "nlpd": "NLPD"}, lines)  # fmt: skip


if __name__ == "__main__":
    main()
