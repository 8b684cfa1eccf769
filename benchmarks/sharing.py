"""Shared Cholesky factors against separate ones: ``python benchmarks/sharing.py``.

The experiment of the paper's appendix (figure on shared decompositions): 1,000 synthetic rows of one
input, two-way splits, 4 to 64 partitions. Timed are kernel, factorisation and log evidence of all
leaves, factors kept, on one core: naively, each leaf for itself; and by a plan, which is timed apart,
as a tree needs one only. ``paper, R=1`` draws all cuts from the root, ``paper, R=2`` draws the square
root of the partitions at each of two layers, ``balanced`` cuts to at most 250 rows, and the last line
is a tree of many dimensions, where there is nothing to share.
Prints a table and writes benchmarks/results/sharing.json. Absolute times are of the machine named in it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch

import dsmgp
from common import HERE, setting, table, write_report
from dsmgp.grow import grow_balanced, grow_paper
from dsmgp.sharing import factorise, plan_sharing
from dsmgp.stationary import Stationary
from dsmgp.tree import Node, leaves

RESULTS = HERE / "results" / "sharing.json"
N_ROWS = 1000
COLUMNS = {
    "tree": "tree", "partitions": "partitions", "leaves": "leaves", "rows": "rows in a leaf",
    "naive_ms": "naive (ms)", "shared_ms": "shared (ms)", "plan_ms": "plan (ms)",
    "factor": "faster", "factor_with_plan": "with plan", "work_saved": "work saved",
    "memory_saved": "memory saved", "difference": "largest difference",
}  # fmt: skip


class Problem:
    """The leaves of a tree, and two ways to their log evidence."""

    def __init__(self, X: np.ndarray, tree: Node, rng: np.random.Generator) -> None:
        self.rows = [np.array(leaf.rows) for leaf in leaves(tree)]
        self.X = torch.from_numpy(X)
        self.y = torch.from_numpy(np.sin(6.0 * X[:, 0]) + 0.1 * rng.normal(size=len(X)))
        natural = torch.tensor([0.2] * X.shape[1] + [1.0, 0.01], dtype=torch.float64)
        self.law = Stationary("rbf", tuple(range(X.shape[1])), "zero").bind(natural)

    def covariance(self, new: np.ndarray, rows: np.ndarray) -> torch.Tensor:
        K = self.law.cross(self.X[new].unsqueeze(0), self.X[rows].unsqueeze(0))[0]
        K.diagonal(len(rows) - len(new)).add_(self.law.noise[0])
        return K

    def naive(self) -> tuple[list[torch.Tensor], np.ndarray]:
        factors, evidence = [], []
        for rows in self.rows:
            L = torch.linalg.cholesky(self.covariance(rows, rows))
            white = torch.linalg.solve_triangular(L, self.y[rows].unsqueeze(-1), upper=False)
            loss = 0.5 * white.square().sum() + L.diagonal().log().sum()
            evidence.append(-float(loss) - 0.5 * len(rows) * math.log(2.0 * math.pi))
            factors.append(L)
        return factors, np.array(evidence)

    def measure(self, repetitions: int) -> dict:
        plan = plan_sharing(self.rows)
        runs: dict[str, Callable[[], object]] = {
            "naive": self.naive,
            "shared": lambda: factorise(plan, self.covariance).log_evidence(self.y),
            "plan": lambda: plan_sharing(self.rows),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repetitions):  # in turn, so that a busy moment hits all alike
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        naive, shared, planning = (float(np.median(seconds[name])) for name in runs)
        evidence = factorise(plan, self.covariance).log_evidence(self.y).numpy()
        sizes = [len(rows) for rows in self.rows]
        owned = sum(sizes[leaf] ** 2 for leaves_of_round in plan.rounds for leaf in leaves_of_round)
        return {
            "leaves": len(sizes),
            "rows": f"{min(sizes)}-{int(np.median(sizes))}-{max(sizes)}",
            "naive_ms": round(1e3 * naive, 1),
            "shared_ms": round(1e3 * shared, 1),
            "plan_ms": round(1e3 * planning, 1),
            "factor": round(naive / shared, 2),
            "factor_with_plan": round(naive / (shared + planning), 2),
            "work_saved": round(plan.saving, 3),
            "memory_saved": round(1.0 - owned / sum(size**2 for size in sizes), 3),
            "difference": float(f"{np.abs(evidence - self.naive()[1]).max():.1e}"),
            "plan": plan.summary(),
        }


def cases(rng: np.random.Generator) -> list[tuple[str, int, np.ndarray, Node]]:
    X = rng.uniform(size=(N_ROWS, 1))
    split = {"leaf_size": 100, "product_children": 2, "rng": rng}
    found = []
    for n in (4, 8, 16, 32, 64):
        found.append(("paper, R=1", n, X, grow_paper(X, sum_children=n, depth=1, **split)))
    for n in (4, 16, 64):
        tree = grow_paper(X, sum_children=math.isqrt(n), depth=2, **split)
        found.append(("paper, R=2", n, X, tree))
    for n in (4, 16, 64):
        found.append(("balanced", n, X, grow_balanced(X, leaf_sizes=[250] * n, rng=rng)))
    wide = rng.normal(size=(4000, 8))
    found.append(
        ("balanced, 8 inputs", 8, wide, grow_balanced(wide, leaf_sizes=[250] * 8, rng=rng))
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(arguments.seed)
    rows = [
        {"tree": name, "partitions": n} | Problem(X, tree, rng).measure(arguments.repetitions)
        for name, n, X, tree in cases(rng)
    ]
    print(table(COLUMNS, rows))
    described = setting() | {
        "dsmgp": dsmgp.__version__,
        "torch": torch.__version__,
        "rows": N_ROWS,
        "kernel": "rbf, length-scale 0.2, noise variance 0.01",
        "repetitions": arguments.repetitions,
        "seed": arguments.seed,
    }
    write_report(RESULTS, {"setting": described, "rows": rows})


if __name__ == "__main__":
    main()
