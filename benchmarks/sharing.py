"""Shared Cholesky factors against separate ones: ``python benchmarks/sharing.py``.

The experiment of the paper's appendix (figure on shared decompositions): 1,000 synthetic rows of one input, two-way
splits, 4 to 64 partitions, kernel fixed. Timed is what a fit does, ``InMemoryLeafPosterior``: kernel, factor, log evidence and
alpha of all leaves, factors kept, alone and with every row left out. Naive: every leaf for itself, by the backend that
is named in the results (compiled leaves, side by side on all cores). Shared: the same backend where leaves share
nothing, the plan's chains where they do; the plan is made anew each time, and timed. Where the estimated cost says that
sharing does not pay, "used" says no and both columns time the same. ``paper, R=1`` draws all cuts from the root, ``paper, R=2`` draws the
square root of the partitions at each of two layers, ``balanced`` cuts to at most 250 rows.
Prints a table and writes benchmarks/results/sharing.json. Absolute times are of the machine named in it.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch

import dsmgp
from dsmgp.experts.conditioning import condition
from dsmgp.experts.factors.sharing import plan_sharing
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.tree import Node, leaves
from dsmgp.tree.growing import grow_balanced, grow_paper
from harness import HERE, setting, table, write_report

RESULTS = HERE / "results" / "sharing.json"
N_ROWS = 1000
COLUMNS = {
    "tree": "tree", "partitions": "partitions", "leaves": "leaves", "rows": "rows in a leaf",
    "cores": "cores", "used": "used", "naive_ms": "naive (ms)", "shared_ms": "shared (ms)",
    "faster": "faster", "naive_loo_ms": "naive, left out (ms)", "shared_loo_ms": "shared, left out (ms)",
    "faster_loo": "faster", "plan_ms": "plan (ms)", "work_saved": "work saved",
    "memory_saved": "memory saved", "difference": "largest difference",
}  # fmt: skip


class Problem:
    """The leaves of a tree, to be conditioned two ways."""

    def __init__(self, X: np.ndarray, tree: Node, rng: np.random.Generator) -> None:
        self.leaves, n_dims = leaves(tree), X.shape[1]
        y = np.sin(6.0 * X[:, 0]) + 0.1 * rng.normal(size=len(X))
        kernel = StationaryKernel("rbf", tuple(range(n_dims)), "zero")
        self.kernel_parameters = np.array([0.2] * n_dims + [1.0, 0.01])
        self.leaf_gps = InMemoryLeafGPs(self.leaves, LeafData(X, y[:, None]), [kernel])

    def condition(self, share: bool, leave_out: bool) -> InMemoryLeafPosterior:
        return condition(self.leaf_gps, [self.kernel_parameters], leave_out=leave_out, share=share)

    def measure(self, repetitions: int) -> dict:
        runs = {
            f"{name}{'_loo' * left}_ms": lambda s=share, left=left: self.condition(s, left)
            for name, share in (("naive", False), ("shared", True))
            for left in (False, True)
        }
        runs["plan_ms"] = lambda: plan_sharing([leaf.rows for leaf in self.leaves])
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(1 + repetitions):  # in turn, so that a busy moment hits all alike
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        times = {name: 1e3 * float(np.median(found[1:])) for name, found in seconds.items()}
        naive, shared = (self.condition(share, True) for share in (False, True))
        plan, sizes = shared.sharing, [leaf.n_rows for leaf in self.leaves]
        return {
            "leaves": len(sizes),
            "rows": f"{min(sizes)}-{int(np.median(sizes))}-{max(sizes)}",
            "cores": torch.get_num_threads(),
            "engine": type(self.leaf_gps.backend).__name__,
            "used": "no" if plan is None else "yes",
            **{name: round(found, 1) for name, found in times.items()},
            "faster": round(times["naive_ms"] / times["shared_ms"], 2),
            "faster_loo": round(times["naive_loo_ms"] / times["shared_loo_ms"], 2),
            "work_saved": 0.0 if plan is None else round(plan.saving, 3),
            "memory_saved": round(1.0 - shared.factors.n_bytes / naive.factors.n_bytes, 3),
            "difference": float(f"{_difference(naive, shared):.1e}"),
            "factorised": len(sizes) if plan is None else len(plan.flops),
        }


def _difference(one: InMemoryLeafPosterior, other: InMemoryLeafPosterior) -> float:
    """Of log evidences, and of means of rows left out."""

    def left_out(conditioned: InMemoryLeafPosterior) -> np.ndarray:
        rows = conditioned.leaf_rows
        return conditioned.leaf_loo().moments.mean[np.lexsort((rows.flat, rows.owner))]

    means = np.abs(left_out(one) - left_out(other)).max()
    return float(max(np.abs(one.log_evidence - other.log_evidence).max(), means))


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


def page(report: dict) -> str:
    return table(COLUMNS, report["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    problems = [(name, n, Problem(X, tree, rng)) for name, n, X, tree in cases(rng)]
    rows = []
    for n_threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(n_threads)
        rows += [
            {"tree": name, "partitions": n} | problem.measure(arguments.repetitions)
            for name, n, problem in problems
        ]
    described = setting() | {
        "dsmgp": dsmgp.__version__,
        "torch": torch.__version__,
        "rows": N_ROWS,
        "kernel": "rbf, length-scale 0.2, noise variance 0.01",
        "repetitions": arguments.repetitions,
        "seed": arguments.seed,
    }
    report = {"setting": described, "rows": rows}
    write_report(RESULTS, report)
    print(page(report))


if __name__ == "__main__":
    main()
