"""Seconds to fit and to predict, defaults, beside what was scored: ``python benchmarks/speed.py``.

Needs DSMGP_DATA. Writes benchmarks/results/speed.json. Absolute times are of the machine named in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from pathlib import Path

import numpy as np
import torch

import dsmgp
from dsmgp import DSMGPRegressor
from dsmgp.datasets import load

RESULTS = Path(__file__).parent / "results" / "speed.json"


def measure(name: str, seed: int) -> dict:
    X, Y, X_test, Y_test = load(name).split(seed)
    y, y_test = Y.squeeze(), Y_test.squeeze()
    scale = Y.std(axis=0)
    start = time.perf_counter()
    model = DSMGPRegressor(random_state=seed).fit(X, y)
    fitted = time.perf_counter()
    law = model.predict_dist(X_test)
    predicted = time.perf_counter()
    error = (law.mean - y_test) / scale.squeeze()
    nlpd = -law.logpdf(y_test).reshape(len(y_test), -1).sum(1).mean() - np.log(scale).sum()
    return {
        "data": name,
        "seed": seed,
        "rows": len(X),
        "test_rows": len(X_test),
        "fit_seconds": round(fitted - start, 2),
        "predict_seconds": round(predicted - fitted, 2),
        "rmse": round(float(np.sqrt(np.mean(error**2))), 4),
        "nlpd": round(float(nlpd), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["kin40k"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    DSMGPRegressor(max_iter=2).fit(np.random.default_rng(0).normal(size=(50, 2)), np.arange(50.0))
    rows = [measure(name, arguments.seed) for name in arguments.names]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    setting = {
        "dsmgp": dsmgp.__version__,
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
