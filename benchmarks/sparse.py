"""Would a sparse GP over all rows (FITC) earn its place beside the leaves? ``python benchmarks/sparse.py [kin40k protein]``

It takes kernel, theta and noise of the fitted model's last family (that of its largest leaves), and inducing points drawn from
the rows. Its test error stands beside that of single partitions of the same model: the gate can only gain from a component
that is at least as good somewhere. Results are kept in benchmarks/results/sparse.json. Needs DSMGP_DATA.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from dsmgp import DSMGPRegressor
from dsmgp.tree import leaves
from harness import results_path, setting, standardised, table, write_report

JITTER = 1e-8


def fitc(kernel, X, y, Z, X_test):
    """Mean of the FITC posterior (Quinonero-Candela & Rasmussen 2005, eq. 24), zero prior mean."""
    Kuu = kernel.cross(Z, Z)
    L = cholesky(Kuu + JITTER * np.diag(Kuu).mean() * np.eye(len(Z)), lower=True)
    V = solve_triangular(L, kernel.cross(Z, X), lower=True)
    residual = kernel.variance(X) - np.square(V).sum(axis=0) + kernel.noise
    scaled = V / residual
    B = np.eye(len(Z)) + scaled @ V.T
    mean = cho_solve((cholesky(B, lower=True), True), scaled @ y)
    return solve_triangular(L, kernel.cross(Z, X_test), lower=True).T @ mean


def measure(name: str, n_points: tuple[int, ...] = (500, 1000, 2000)) -> list[dict]:
    X, Y, X_test, Y_test = standardised(name, 0)
    model = DSMGPRegressor(random_state=0).fit(X, Y)
    inner = model.state_.model
    leaf_gps = inner.leaf_posterior.leaf_gps
    last = int(np.flatnonzero(inner.family == inner.family.max())[0])
    kernel = inner.leaf_posterior.bound(0, last)
    y = leaf_gps.Y[:, 0]
    test = inner.to_experts(X_test)

    def row(what, mean, seconds):
        error = float(np.sqrt(np.mean((inner.outputs.mean_to_latent(mean[:, None]) - Y_test) ** 2)))
        return {
            "data": name,
            "component": what,
            "rmse": round(error, 4),
            "seconds": seconds and round(seconds, 2),
            **setting(),
        }

    rows = []
    for n in n_points:
        start = time.perf_counter()
        points = np.random.default_rng(0).choice(len(X), n, replace=False)
        mean = fitc(kernel, leaf_gps.X, y, leaf_gps.X[points], test)
        rows.append(row(f"FITC, {n} points", mean, time.perf_counter() - start))
    routes = inner.router.route(X_test)
    leaf, row_of = routes.pairs
    answers = inner.leaf_posterior.predict(routes, inner.to_experts(X_test), False)[0][:, 0]
    number, seen = 0, set()
    for child in inner.tree.children:
        numbers = range(number, number + len(leaves(child)))
        number += len(numbers)
        largest = max(leaf.n_rows for leaf in leaves(child))
        if round(np.log2(largest)) in seen:
            continue
        seen.add(round(np.log2(largest)))
        mean = np.zeros(len(X_test))
        own = np.isin(leaf, numbers)
        mean[row_of[own]] = answers[own]
        rows.append(row(f"one partition, leaves up to {largest} rows", mean, None))
    mean = model.predict(X_test).reshape(len(Y_test), -1)
    error = float(np.sqrt(np.mean((mean - Y_test) ** 2)))
    return [*rows, {"data": name, "component": "the mixture", "rmse": round(error, 4), **setting()}]


def page(report: dict) -> str:
    titles = {"data": "data", "component": "component", "rmse": "RMSE", "seconds": "seconds"}
    return table(titles, report["rows"])


def main() -> None:
    rows = [row for name in sys.argv[1:] or ["kin40k", "protein"] for row in measure(name)]
    report = {"rows": rows}
    write_report(results_path("sparse", quick=False), report)
    print(page(report))


if __name__ == "__main__":
    main()
