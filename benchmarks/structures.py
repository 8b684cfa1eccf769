"""Other ways to cut the input space, on the same rows, theta and sizes of leaves: what each is worth for its time.

    DSMGP_DATA=... python benchmarks/structures.py [airfoil kin40k ...] [--seeds 3]

A default fit gives theta and sizes. Then every partition is grown anew, all leaves conditioned, and scales and gate fitted:

- ``balanced``: as by default: a dimension drawn by its spread in length-scales, cut near the middle;
- ``widest``: always the widest dimension;
- ``oblique``: the same as balanced in coordinates turned at random, anew for each partition;
- ``guided``: the last cut of every branch is the best of three by the leave-one-out density of the rows it parts;
- ``balanced, twice``: twice as many partitions, which takes less time than guided does.

Writes benchmarks/results/structures.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsmgp import DSMGPRegressor
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.loo import Components
from dsmgp.experts.points import equal_rows
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.fitting.effort import EFFORTS
from dsmgp.gp.process import kernels_by_leaf, parameters_by_leaf
from dsmgp.mixture.model import Model
from dsmgp.mixture.weights.gating import fit_gate
from dsmgp.tree import Leaf, Region, leaves
from dsmgp.tree.growing import grow_balanced
from dsmgp.tree.routing import Router, Routes
from harness import brief_score, results_path, setting, standardised, table, write_report

DATA = ["airfoil", "kin40k", "house", "protein"]
GATE_ROWS = 6000
CANDIDATES = 3
Array = np.ndarray


@dataclass
class Partition:
    """Rows of each leaf, and which leaf new rows are in."""

    rows: list[Array]
    assign: Callable[[Array], Array]
    family: int


@dataclass
class Setting:
    """What all ways have in common: a fitted model, and for each of its partitions the size of leaves and the family."""

    model: Model
    X: Array
    labels: Array
    units: list[Array]
    wanted: list[tuple[int, int]]

    @classmethod
    def of(cls, model: Model, X: Array) -> Setting:
        kernel_parameters = [family.kernel_parameters[0] for family in model.families]
        units = [model.inputs.scale * natural[: X.shape[1]] for natural in kernel_parameters]
        number, wanted = 0, []
        for child in model.tree.children:
            largest = max(leaf.n_rows for leaf in leaves(child))
            size = next(s for s in (*EFFORTS["medium"].ladder, len(X)) if s >= largest)
            wanted.append((size, int(model.family[number])))
            number += len(leaves(child))
        return cls(model, X, equal_rows(X), units, wanted)


def plain(
    case: Setting, rng: np.random.Generator, size: int, family: int, turn: Array | None = None
) -> Partition:
    unit = case.units[family]
    X, unit = (case.X, unit) if turn is None else (case.X / unit @ turn, np.ones(len(unit)))
    tree = grow_balanced(X, leaf_sizes=[size], rng=rng, unit=unit)
    router = Router(tree)

    def assign(new: Array) -> Array:
        leaf, row = router.route(new if turn is None else new / case.units[family] @ turn).pairs
        found = np.empty(len(new), dtype=np.int64)
        found[row] = leaf
        return found

    return Partition([leaf.rows for leaf in leaves(tree)], assign, family)


def oblique(case: Setting, rng: np.random.Generator, size: int, family: int) -> Partition:
    n_dims = case.X.shape[1]
    turn = np.linalg.qr(rng.normal(size=(n_dims, n_dims)))[0]
    return plain(case, rng, size, family, turn)


def widest(case: Setting, rng: np.random.Generator, size: int, family: int) -> Partition:
    """A tree of cuts (dimension, position, child, child); leaves are numbers."""
    unit, found = case.units[family], []

    def cut(rows: Array):
        spread = (case.X[rows] / unit).std(axis=0)
        if len(rows) <= size or not spread.any():
            found.append(rows)
            return len(found) - 1
        for dimension in np.argsort(-spread):
            values = case.X[rows, dimension]
            at = np.quantile(values, rng.uniform(0.35, 0.65), method="nearest")
            left = values < at
            if left.any() and not left.all():
                return dimension, at, cut(rows[left]), cut(rows[~left])
        found.append(rows)
        return len(found) - 1

    root = cut(np.arange(len(case.X)))

    def assign(new: Array) -> Array:
        leaf = np.empty(len(new), dtype=np.int64)
        stack = [(root, np.arange(len(new)))]
        while stack:
            node, rows = stack.pop()
            if isinstance(node, tuple):
                dimension, at, low, high = node
                left = new[rows, dimension] < at
                stack += [(low, rows[left]), (high, rows[~left])]
            else:
                leaf[rows] = node
        return leaf

    return Partition(found, assign, family)


def guided(case: Setting, rng: np.random.Generator, size: int, family: int) -> Partition:
    """Leaves of up to twice the size, each cut in the best of a few ways."""
    top = plain(case, rng, 2 * size, family)
    tries = []  # for each leaf of the top and candidate: its parts' rows and how new rows are told apart
    for rows in top.rows:
        own = []
        for _ in range(CANDIDATES):
            below = grow_balanced(case.X[rows], leaf_sizes=[size], rng=rng, unit=case.units[family])
            own.append(([rows[leaf.rows] for leaf in leaves(below)], Router(below)))
        tries.append(own)
    parts = [part for own in tries for candidate, _ in own for part in candidate]
    by_part = iter(_loo_density(case, parts, family))
    chosen, first, found = [], [], []
    for own in tries:
        scores = [sum(next(by_part) for _ in candidate) for candidate, _ in own]
        candidate, router = own[int(np.argmax(scores))]
        chosen.append(router)
        first.append(len(found))
        found += candidate

    def assign(new: Array) -> Array:
        above = top.assign(new)
        leaf = np.empty(len(new), dtype=np.int64)
        for k in np.unique(above):
            rows = np.flatnonzero(above == k)
            below, at = chosen[k].route(new[rows]).pairs
            leaf[rows[at]] = first[k] + below
        return leaf

    return Partition(found, assign, family)


def _loo_density(case: Setting, parts: list[Array], family: int) -> Array:
    """Log density of the rows of each part, each given the others."""
    left = _conditioned(case, parts, [family] * len(parts)).leaf_loo()
    found, rows = left.moments, left.leaf_rows
    density = -0.5 * (
        (left.Y[rows.flat] - found.mean) ** 2 / found.variance + np.log(found.variance)
    )
    return np.bincount(rows.owner, density.sum(1), len(parts))


def _conditioned(case: Setting, parts: list[Array], families: list[int]) -> InMemoryLeafPosterior:
    model, whole = case.model, Region.whole(case.X.shape[1])
    seen = model.leaf_posterior.leaf_gps
    family = np.array(families)
    leaf_gps = InMemoryLeafGPs([Leaf(whole, rows) for rows in parts], dataclasses.replace(seen.data, labels=case.labels), kernels_by_leaf(model.families, family), device=seen.device, dtype=seen.dtype)  # fmt: skip
    return condition(leaf_gps, parameters_by_leaf(model.families, family), leave_out=True)


WAYS: dict[str, tuple[Callable[..., Partition], int]] = {
    "balanced": (plain, 1),
    "widest": (widest, 1),
    "oblique": (oblique, 1),
    "guided": (guided, 1),
    "balanced, twice": (plain, 2),
}


def measure(case: Setting, way: str, seed: int, X_test: Array, Y_test: Array) -> dict:
    """Grow, condition, fit the gate, predict."""
    rng = np.random.default_rng(seed)
    grow, times = WAYS[way]
    start = time.perf_counter()
    partitions = [
        # A leaf that holds all rows cannot be cut in another way, and is not taken twice.
        grow(case, rng, size, family) if size < len(case.X) else plain(case, rng, size, family)
        for size, family in case.wanted
        for _ in range(times if size < len(case.X) else 1)
    ]
    parts = [rows for partition in partitions for rows in partition.rows]
    families = [partition.family for partition in partitions for _ in partition.rows]
    conditioned = _conditioned(case, parts, families)
    loo = conditioned.leave_one_out()
    rows = np.sort(np.random.default_rng(0).permutation(len(case.X))[:GATE_ROWS])
    components = loo.components(rows)
    log_path = np.where(components.leaf >= 0, 0.0, -np.inf)
    gate = fit_gate(components, loo.scales_without(rows), log_path, loo.observed(rows), True)
    seconds = time.perf_counter() - start
    model = dataclasses.replace(
        case.model,
        family=np.array(families),
        leaf_posterior=conditioned,
        scales=loo.scales,
        gate=gate,
    )
    first = np.cumsum([0, *(len(partition.rows) for partition in partitions)])
    leaf = np.concatenate([f + p.assign(X_test) for f, p in zip(first, partitions, strict=False)])
    row = np.tile(np.arange(len(X_test)), len(partitions))
    routes = Routes.of(leaf, row)
    leaf, row = routes.pairs
    mean, variance = conditioned.predict(routes, model.to_experts(X_test))
    found = Components.of_pairs(len(X_test), leaf, row, mean, variance + conditioned.noise[leaf])
    constants = gate.log_constant(np.zeros(len(parts)), loo.scales)  # all paths weigh the same
    law = model.distribution(found, squeeze=False, log_constant=found.of_leaves(constants, -np.inf))
    return {"leaves": len(parts), "seconds": round(seconds, 2), **brief_score(law, Y_test)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=DATA)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.data:
        for seed in range(arguments.seeds):
            X, Y, X_test, Y_test = standardised(name, seed)
            case = Setting.of(DSMGPRegressor(random_state=seed).fit(X, Y).state_.model, X)
            for way in WAYS:
                found = measure(case, way, seed, X_test, Y_test)
                rows.append({"data": name, "way": way, "seed": seed, **found, **setting()})
                print(rows[-1], flush=True)
    report = {"rows": rows}
    write_report(results_path("structures", quick=False), report)
    print(page(report))


def page(report: dict) -> str:
    """Means over seeds."""
    rows, lines = report["rows"], []
    for key in dict.fromkeys((row["data"], row["way"]) for row in rows):
        own = [row for row in rows if (row["data"], row["way"]) == key]
        means = {k: float(np.mean([row[k] for row in own])) for k in ("rmse", "nlpd", "seconds")}
        lines.append({"data": key[0], "way": key[1], "seeds": len(own), **means})
    titles = {"data": "data", "way": "way", "seeds": "seeds", "rmse": "RMSE", "nlpd": "NLPD"}
    return table(titles | {"seconds": "seconds"}, lines)


if __name__ == "__main__":
    main()
