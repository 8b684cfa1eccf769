"""Accuracy of the defaults and of the peers on every benchmark data set, one table for all.

    DSMGP_DATA=... python benchmarks/accuracy.py [data ...] [--methods a,b] [--seeds 5]

The same settings for all data. Results are kept in benchmarks/results/accuracy.json, one entry per data set, method and
seed, with the commit and machine they came from; what is there already is not run again (``--again`` does). Scores are in
units of the training outputs' standard deviation, as in the paper. ``--table`` only prints the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dsmgp import DSMGPRegressor, Mixture, scores
from dsmgp.conditioned import Conditioned
from dsmgp.datasets import load
from dsmgp.gate import fit_gate
from dsmgp.loo import LeaveOneOut, equal_rows
from dsmgp.tree import Leaf, Region, leaves

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
DATA = ["airfoil", "parkinsons", "kin40k", "house", "protein", "flight_nyc13"]
# What the defaults must reach, mean over seeds: MAE, NLPD.
TARGETS = {
    "airfoil": (0.135, -0.40),
    "parkinsons": (0.62, 2.31),
    "kin40k": (0.085, -0.82),
    "house": (0.325, 0.34),
    "protein": (0.35, 0.46),
    "flight_nyc13": (0.255, 0.25),
}
Answer = tuple[Mixture, dict]


def gaussian(mean: np.ndarray, std: np.ndarray) -> Mixture:
    """A peer's Gaussian prediction as a law of one component."""
    mean, std = mean.reshape(len(mean), -1), std.reshape(len(std), -1)
    return Mixture(np.ones((len(mean), 1)), mean[:, None], std[:, None] ** 2, squeeze=False)


def ours(effort: str) -> Callable[..., Answer]:
    def run(X, Y, X_test, seed):
        start = time.perf_counter()
        model = DSMGPRegressor(effort=effort, random_state=seed).fit(X, Y)
        fitted = time.perf_counter()
        law = model.predict_dist(X_test)
        note = {
            "fit_seconds": fitted - start,
            "predict_seconds": time.perf_counter() - fitted,
            "loo": model.loo_score_,
            "loo_new_inputs": model.loo_score_new_inputs_,
            "kernel_scores": model.kernel_scores_,
        }
        # The other weights need all leaves again: on small data for every seed, on large for the first.
        return law, note | ({"steps": steps(model, X, X_test)} if not seed or len(X) < 5000 else {})

    return run


def steps(model: DSMGPRegressor, X, X_test) -> dict[str, Mixture]:
    """Other weights on the same trees and theta: what each step buys."""
    full = model._model
    experts = full.experts.experts
    ones = np.ones_like(full.scales)
    found = {
        weights: dataclasses.replace(full, weights=weights, scales=ones, gate=None)
        for weights in ("posterior", "uniform")
    }
    labels = equal_rows(X)
    conditioned = Conditioned(experts, full.experts.naturals, 0, labels)
    loo = LeaveOneOut(leaves(full.tree), conditioned, labels)
    rows = np.sort(np.random.default_rng(0).permutation(len(X))[:6000])
    components = loo.components(rows)
    path = components.of_leaves(full.log_path_weights, -np.inf)
    gate = fit_gate(components, np.ones(components.mean.shape), path, loo.Y[rows], False)
    found["gate"] = dataclasses.replace(full, scales=ones, gate=gate)
    return {name: inner.mixture(X_test, squeeze=False) for name, inner in found.items()}


def exact(X, Y, X_test, seed) -> Answer:
    """Our engine, one leaf, converged; the kernel chosen as by default."""
    if len(X) > 6000:
        raise MemoryError("one leaf of more than 6,000 rows takes too long on two cores")
    tree = Leaf(Region.whole(X.shape[1]))
    best = None
    for kernel in ("rbf", "matern52", "matern32", "matern12"):
        model = DSMGPRegressor(
            kernel, structure=tree, weights="posterior", max_iter=100, random_state=seed
        ).fit(X, Y)
        if best is None or model.log_marginal_likelihood_ > best.log_marginal_likelihood_:
            best = model
    return best.predict_dist(X_test), {}


def per_output(fit_one: Callable) -> Callable[..., Answer]:
    """A peer of one output, run for each; standardised data."""

    def run(X, Y, X_test, seed):
        parts = [fit_one(X, y, X_test, seed) for y in Y.T]
        return gaussian(*(np.column_stack([p[k] for p in parts]) for k in (0, 1))), {}

    return run


def sklearn_gp(X, y, X_test, seed):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    rows = np.random.default_rng(seed).permutation(len(X))[:2000]
    kernel = ConstantKernel() * Matern(np.ones(X.shape[1]), nu=1.5) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, alpha=0.0, random_state=seed).fit(X[rows], y[rows])
    parts = [
        model.predict(part, return_std=True)
        for part in np.array_split(X_test, 1 + len(X_test) // 5000)
    ]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def boosted_quantiles(X, y, X_test, seed):
    """Boosted trees: the mean by squares, the spread from the 5% and 95% quantiles."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def fit(**options):
        return HistGradientBoostingRegressor(random_state=seed, **options).fit(X, y).predict(X_test)

    low, high = (fit(loss="quantile", quantile=q) for q in (0.05, 0.95))
    return fit(), np.maximum(high - low, 1e-3) / (2 * 1.6449)


def ngboost(X, y, X_test, seed):
    from ngboost import NGBRegressor

    law = (
        NGBRegressor(n_estimators=500, verbose=False, random_state=seed).fit(X, y).pred_dist(X_test)
    )
    return law.loc, law.scale


def gpboost(X, y, X_test, seed):
    import gpboost as gpb

    model = gpb.GPModel(
        gp_coords=X, cov_function="matern_ard", cov_fct_shape=1.5, gp_approx="vecchia",
        num_neighbors=30, likelihood="gaussian",
    )  # fmt: skip
    model.fit(y=y)
    found = model.predict(gp_coords_pred=X_test, predict_var=True, predict_response=True)
    return found["mu"], np.sqrt(found["var"])


def svgp(X, y, X_test, seed, n_inducing=1024, epochs=30):
    import gpytorch
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    Xt, yt = (torch.tensor(a, dtype=torch.float32, device=device) for a in (X, y))

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, points):
            law = CholeskyVariationalDistribution(len(points))
            super().__init__(VariationalStrategy(self, points, law, learn_inducing_locations=True))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model = Model(Xt[torch.randperm(len(Xt))[:n_inducing]].clone()).to(device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(Xt))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(Xt)).split(1024):
            optimizer.zero_grad()
            loss = -bound(model(Xt[rows]), yt[rows])
            loss.backward()
            optimizer.step()
    model.eval(), likelihood.eval()
    with torch.no_grad():
        parts = [
            likelihood(model(part.to(device)))
            for part in torch.tensor(X_test, dtype=torch.float32).split(4096)
        ]
    mean = torch.cat([p.mean for p in parts]).cpu().double().numpy()
    return mean, torch.cat([p.stddev for p in parts]).cpu().double().numpy()


METHODS: dict[str, Callable[..., Answer]] = {
    "dsmgp": ours("medium"),
    "dsmgp-low": ours("low"),
    "dsmgp-high": ours("high"),
    "exact": exact,
    "sklearn-2000": per_output(sklearn_gp),
    "hist-boosting": per_output(boosted_quantiles),
    "ngboost": per_output(ngboost),
    "gpboost": per_output(gpboost),
    "svgp": per_output(svgp),
}


def score(law: Mixture, Y: np.ndarray) -> dict[str, float]:
    if law.mean.ndim == 1:
        Y = Y[:, 0]
    found = {
        "mae": scores.mae(Y, law.mean),
        "rmse": scores.rmse(Y, law.mean),
        "nlpd": scores.nlpd(Y, law),
        "gaussian_nlpd": scores.gaussian_nlpd(Y, law),
        "joint_nlpd": scores.joint_nlpd(Y, law),
        "crps": scores.crps(Y, law),
        "coverage90": scores.coverage(Y, law, 0.9),
        "se_nlpd": float(np.std(law.logpdf(Y).reshape(len(Y), -1).sum(1)) / np.sqrt(len(Y))),
    }
    return {key: round(value, 5) for key, value in found.items()}


def run(name: str, method: str, seed: int) -> list[dict]:
    X, Y, X_test, Y_test = load(name).split(seed)
    X_unit, Y_unit = X.std(axis=0), Y.std(axis=0)
    X_unit[X_unit == 0] = 1.0
    X_centre, Y_centre = X.mean(axis=0), Y.mean(axis=0)
    X, X_test = (X - X_centre) / X_unit, (X_test - X_centre) / X_unit
    Y, Y_test = (Y - Y_centre) / Y_unit, (Y_test - Y_centre) / Y_unit
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        law, note = METHODS[method](X, Y, X_test, seed)
    seconds = time.perf_counter() - start
    laws = {method: law} | {f"{method}/{k}": v for k, v in note.pop("steps", {}).items()}
    note.setdefault("seconds", seconds)
    note = {k: round(v, 4) if isinstance(v, float) else v for k, v in note.items()}
    return [
        {
            "data": name,
            "method": m,
            "seed": seed,
            **score(one, Y_test),
            **(note if m == method else {}),
            **setting(),
        }
        for m, one in laws.items()
    ]


def setting() -> dict[str, str]:
    command = ["git", "rev-parse", "--short", "HEAD"]
    # A machine that was sent the files alone is told the commit.
    commit = os.environ.get("DSMGP_COMMIT") or subprocess.check_output(command, text=True)
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{torch.get_num_threads()} cores"
    )
    return {"commit": commit.strip(), "machine": f"{platform.machine()}, {device}"}


def table(rows: list[dict]) -> str:
    """Means over seeds, one line per data set and method."""
    lines = [
        "| data | method | seeds | MAE | RMSE | NLPD | CRPS | 90% covers | LOO | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in DATA:
        for method in dict.fromkeys(r["method"] for r in rows if r["data"] == name):
            some = [r for r in rows if (r["data"], r["method"]) == (name, method)]

            def mean(key, some=some):
                values = [r[key] for r in some if r.get(key) is not None]
                return f"{np.mean(values):.3f}" if values else ""

            cells = [
                mean(k) for k in ("mae", "rmse", "nlpd", "crps", "coverage90", "loo", "seconds")
            ]
            lines.append(f"| {name} | {method} | {len(some)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=DATA)
    parser.add_argument("--methods", default="dsmgp")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = json.loads(arguments.results.read_text()) if arguments.results.exists() else []
    if arguments.table:
        print(table(rows))
        return
    for name in arguments.data:
        for method in arguments.methods.split(","):
            for seed in range(arguments.seeds):
                done = any(
                    (r["data"], r["method"], r["seed"]) == (name, method, seed) for r in rows
                )
                if done and not arguments.again:
                    continue
                try:
                    new = run(name, method, seed)
                except (ImportError, MemoryError) as error:
                    print(f"{name} {method}: {error}", flush=True)
                    break
                keys = {(r["data"], r["method"], r["seed"]) for r in new}
                rows = [r for r in rows if (r["data"], r["method"], r["seed"]) not in keys] + new
                arguments.results.parent.mkdir(exist_ok=True)
                arguments.results.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
                r = new[0]
                print(f"{name} {method} {seed}: MAE {r['mae']:.4f} RMSE {r['rmse']:.4f} NLPD {r['nlpd']:.4f} "
                      f"covers {r['coverage90']:.3f} LOO {r.get('loo', float('nan')):.4f} in {r['seconds']:.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
