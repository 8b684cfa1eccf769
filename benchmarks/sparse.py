"""Would a sparse GP over all rows, with the features of a deep kernel or without, earn its place beside the leaves?

    DSMGP_DATA=... python benchmarks/sparse.py [kin40k protein flight_mixed generated ...]

The future work of the paper names sparse and deep leaves. Here a GP of all rows by inducing points (SGPR, Titsias 2009) is added to the fitted default
model: kernel and coordinates as those of its largest leaves, inducing points by greedy conditional variance (Burt et al. 2020), hyperparameters of its
own by L-BFGS on the variational bound of a sample, then all rows. The deep kernel appends the outputs of a small network, shared by all rows and learned
with the hyperparameters on the evidence of blocks of neighbouring rows, to the coordinates.

Rows that neither has seen decide how much weight the new component gets, constant and by the ratio of variances, as a gate would. ``with`` and
``without`` are scores of test rows, beside a fit that may cost more (``effort="high"``), for what else the seconds could buy. Needs torch;
results are kept in benchmarks/results/sparse.json, on a GPU sparse-gpu.json.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from dsmgp import DSMGPRegressor, Mixture
from harness import Runs, generated, results_path, setting, standardise, standardised, table

JUDGES, SAMPLE, CANDIDATES, JITTER = 10_000, 50_000, 20_000, 1e-6
BLOCK, BLOCKS_AT_ONCE, FEATURES = 256, 16, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLUMNS = {
    "data": "data", "rows": "rows", "method": "method", "rmse": "RMSE", "nlpd": "NLPD", "alone_rmse": "alone: RMSE",
    "alone_nlpd": "alone: NLPD", "weight": "mean weight", "seconds": "seconds",
}  # fmt: skip
Tensor = torch.Tensor


# A stationary kernel and its hyperparameters


def correlation(name: str, A: Tensor, B: Tensor) -> Tensor:
    """One of the named stationary kernels at unit length scales."""
    r = torch.cdist(A, B, compute_mode="use_mm_for_euclid_dist")
    if name == "rbf":
        return torch.exp(-0.5 * r.square())
    s = {"matern12": 1.0, "matern32": 3.0**0.5, "matern52": 5.0**0.5}[name] * r
    polynomial = {"matern12": 1.0, "matern32": 1.0 + s, "matern52": 1.0 + s + s.square() / 3.0}
    return polynomial[name] * torch.exp(-s)


class Hyperparameters:
    """Log length scales, log output scale and log noise variance of a stationary kernel."""

    def __init__(self, name: str, lengthscale: np.ndarray, outputscale: float, noise: float):
        self.name = name
        start = np.log(np.r_[lengthscale, outputscale, noise])
        self.log = torch.tensor(start, device=DEVICE, requires_grad=True)

    def scaled(self, X: Tensor) -> Tensor:
        return X / self.log[:-2].exp()

    def covariance(self, A: Tensor, B: Tensor) -> Tensor:
        return self.outputscale * correlation(self.name, self.scaled(A), self.scaled(B))

    @property
    def outputscale(self) -> Tensor:
        return self.log[-2].exp()

    @property
    def noise(self) -> Tensor:
        return self.log[-1].exp()


# The sparse GP


def inducing_points(theta: Hyperparameters, X: Tensor, n: int) -> Tensor:
    """Rows of X, each the one with the largest conditional variance given those before it: a pivoted Cholesky factorisation."""
    with torch.no_grad():
        variance = theta.outputscale.expand(len(X)).clone()
        factor = torch.zeros(n, len(X), dtype=X.dtype, device=DEVICE)
        chosen = []
        for k in range(n):
            pivot = int(variance.argmax())
            chosen.append(pivot)
            column = theta.covariance(X[pivot : pivot + 1], X)[0] - factor[:k, pivot] @ factor[:k]
            factor[k] = column / variance[pivot].clamp_min(1e-12).sqrt()
            variance = (variance - factor[k].square()).clamp_min(0.0)
            variance[pivot] = -1.0
    return X[chosen]


def root_and_projection(theta: Hyperparameters, Z: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """L with ``K_uu = L L'``, and ``L^-1 K_uf``."""
    identity = torch.eye(len(Z), dtype=Z.dtype, device=DEVICE)
    L = torch.linalg.cholesky(theta.covariance(Z, Z) + JITTER * theta.outputscale * identity)
    return L, torch.linalg.solve_triangular(L, theta.covariance(Z, X), upper=False)


def bound(theta: Hyperparameters, Z: Tensor, X: Tensor, y: Tensor) -> Tensor:
    """The variational lower bound of the log evidence (Titsias 2009), per row."""
    _, V = root_and_projection(theta, Z, X)
    n, s = len(X), theta.noise
    B = torch.eye(len(Z), dtype=Z.dtype, device=DEVICE) + V @ V.T / s
    LB = torch.linalg.cholesky(B)
    c = torch.linalg.solve_triangular(LB, (V @ y)[:, None], upper=False)[:, 0] / s
    fit = y @ y / s - c @ c
    log_det = 2.0 * LB.diagonal().log().sum() + n * s.log()
    trace = (n * theta.outputscale - V.square().sum()) / s
    return -0.5 * (fit + log_det + n * np.log(2 * np.pi) + trace) / n


def maximise(theta: Hyperparameters, objective, steps: int = 60) -> None:
    """L-BFGS on the hyperparameters."""
    search = torch.optim.LBFGS([theta.log], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        loss = -objective()
        loss.backward()
        return loss

    search.step(closure)


class SparseGP:
    """Predictive moments of y by inducing points, given all rows; rows pass in pieces."""

    def __init__(
        self, theta: Hyperparameters, Z: Tensor, X: Tensor, y: Tensor, piece: int = 20_000
    ):
        self.theta, self.Z = theta, Z
        n = len(Z)
        gram = torch.zeros(n, n, dtype=X.dtype, device=DEVICE)
        projected = torch.zeros(n, dtype=X.dtype, device=DEVICE)
        with torch.no_grad():
            for first in range(0, len(X), piece):
                self.L, V = root_and_projection(theta, Z, X[first : first + piece])
                gram += V @ V.T
                projected += V @ y[first : first + piece]
            identity = torch.eye(n, dtype=X.dtype, device=DEVICE)
            self.LB = torch.linalg.cholesky(identity + gram / theta.noise)
            self.c = torch.cholesky_solve(projected[:, None] / theta.noise, self.LB)[:, 0]

    def predict(self, X: Tensor, piece: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
        means, variances = [], []
        with torch.no_grad():
            for first in range(0, len(X), piece):
                _, V = root_and_projection(self.theta, self.Z, X[first : first + piece])
                W = torch.linalg.solve_triangular(self.LB, V, upper=False)
                prior = self.theta.outputscale - V.square().sum(0)
                variance = (prior + W.square().sum(0)).clamp_min(0.0) + self.theta.noise
                means.append(V.T @ self.c)
                variances.append(variance)
        return torch.cat(means).cpu().numpy(), torch.cat(variances).cpu().numpy()


def sparse_gp(theta: Hyperparameters, X: Tensor, y: Tensor, n_points: int, rng) -> SparseGP:
    """Learn hyperparameters on a sample, with inducing points before and after, then condition on all rows."""
    some = torch.as_tensor(rng.permutation(len(X))[:SAMPLE], device=DEVICE)
    candidates = X[some[:CANDIDATES]]
    for _ in range(2):
        Z = inducing_points(theta, candidates, min(n_points, len(candidates)) // 2)
        maximise(theta, lambda Z=Z: bound(theta, Z, X[some], y[some]), 30)
    return SparseGP(theta, inducing_points(theta, candidates, min(n_points, len(candidates))), X, y)


# The deep kernel


class Features(torch.nn.Module):
    """The coordinates, and beside them the outputs of a small network."""

    def __init__(self, n_dims: int, width: int = 64) -> None:
        super().__init__()
        layers = [torch.nn.Linear(n_dims, width), torch.nn.SiLU(), torch.nn.Linear(width, width)]
        self.network = torch.nn.Sequential(
            *layers, torch.nn.SiLU(), torch.nn.Linear(width, FEATURES)
        )

    def forward(self, X: Tensor) -> Tensor:
        return torch.cat([X, self.network(X)], dim=-1)


def blocks(X: Tensor, rng) -> Tensor:
    """Numbers of rows, (n_blocks, BLOCK): neighbours, by cuts at the median along directions drawn anew each time."""
    parts = [torch.as_tensor(rng.permutation(len(X)), device=DEVICE)]
    while len(parts[0]) >= 2 * BLOCK:
        halves = []
        for rows in parts:
            direction = torch.as_tensor(rng.normal(size=X.shape[1]), device=DEVICE)
            order = rows[torch.argsort(X[rows] @ direction)]
            halves += [order[: len(order) // 2], order[len(order) // 2 :]]
        parts = halves
    return torch.stack([rows[torch.randperm(len(rows), device=DEVICE)[:BLOCK]] for rows in parts])


def learn_features(theta: Hyperparameters, X: Tensor, y: Tensor, rng, steps: int) -> Features:
    """Adam on the exact evidence of blocks of neighbouring rows, for network and hyperparameters together."""
    torch.manual_seed(0)
    features = Features(X.shape[1]).to(DEVICE, torch.float64)
    groups = [{"params": features.parameters(), "lr": 2e-3}, {"params": [theta.log], "lr": 1e-2}]
    search = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.OneCycleLR(search, [4e-3, 2e-2], steps)
    waiting: list[Tensor] = []
    identity = torch.eye(BLOCK, dtype=X.dtype, device=DEVICE)
    for _ in range(steps):
        if not waiting:
            every = blocks(X, rng)
            waiting = list(every[torch.randperm(len(every), device=DEVICE)].split(BLOCKS_AT_ONCE))
        rows = waiting.pop()
        K = theta.covariance(features(X[rows]), features(X[rows]))
        L = torch.linalg.cholesky(K + (theta.noise + JITTER * theta.outputscale) * identity)
        white = torch.linalg.solve_triangular(L, y[rows][..., None], upper=False)
        loss = (0.5 * white.square().sum((1, 2)) + L.diagonal(dim1=1, dim2=2).log().sum(1)).mean()
        search.zero_grad()
        (loss / BLOCK).backward()
        search.step()
        schedule.step()
    return features


# What it is worth


def scores_with(
    mixture: Mixture, other: Mixture, judged: Mixture, other_judged: Mixture, Y, Y_judges
):
    """Scores of test rows of both together, with a weight ``expit(a + b (log variance ratio))`` fitted to the judges."""

    def ratio(first: Mixture, second: Mixture) -> np.ndarray:
        return np.log(first.var / second.var).reshape(len(first), -1).sum(1)

    def densities(first: Mixture, second: Mixture, values) -> np.ndarray:
        both = [each.joint_logpdf(values) for each in (first, second)]
        return np.stack(both)

    log_p, log_ratio = densities(judged, other_judged, Y_judges), ratio(judged, other_judged)

    def loss(ab: np.ndarray, log_p=log_p, log_ratio=log_ratio) -> float:
        logit = ab[0] + ab[1] * log_ratio
        log_w = np.stack([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)])
        return -float(logsumexp(log_p + log_w, axis=0).mean())

    best = minimize(loss, [-2.0, 0.5], method="Nelder-Mead").x
    weight = expit(best[0] + best[1] * ratio(mixture, other))
    own, new = (each.mean.reshape(len(Y), -1) for each in (mixture, other))
    mean = own + weight[:, None] * (new - own)
    n_outputs = Y.shape[1]
    found = loss(best, densities(mixture, other, Y), ratio(mixture, other)) / n_outputs
    return {
        "rmse": rmse(mean, Y),
        "nlpd": round(found, 4),
        "weight": round(float(weight.mean()), 3),
    }


def rmse(mean: np.ndarray, Y: np.ndarray) -> float:
    return round(float(np.sqrt(np.mean((mean.reshape(Y.shape) - Y) ** 2))), 4)


def own_scores(mixture: Mixture, Y: np.ndarray) -> dict:
    density = mixture.joint_logpdf(Y).mean() / Y.shape[1]
    return {"rmse": rmse(mixture.mean, Y), "nlpd": round(-float(density), 4)}


def measure(name: str) -> list[dict]:
    split = generated(10**6, 50_000) if name == "generated" else None
    X, Y, X_test, Y_test = standardised(name, 0) if split is None else standardise(*split)
    Y, Y_test = Y.reshape(len(Y), -1), Y_test.reshape(len(Y_test), -1)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(X))
    judges, rows = np.split(order, [min(JUDGES, len(X) // 10)])
    test = rng.permutation(len(X_test))[:50_000]
    X_test, Y_test = X_test[test], Y_test[test]
    common = {"data": name, "rows": len(rows), **setting()}
    found, distributions = [], {}
    for effort in ("medium", "high"):
        start = time.perf_counter()
        model = DSMGPRegressor(effort=effort, random_state=0).fit(X[rows], Y[rows])
        seconds = round(time.perf_counter() - start, 2)
        if effort == "medium":
            fitted, fit_seconds = model, seconds
            distributions = {
                key: model.predict_dist(A) for key, A in (("test", X_test), ("judges", X[judges]))
            }
        of_test = distributions["test"] if effort == "medium" else model.predict_dist(X_test)
        found.append(
            {
                "method": f'dsmgp, effort="{effort}"',
                **own_scores(of_test, Y_test),
                "seconds": seconds,
                **common,
            }
        )
    inner = fitted.state_.model
    latent = torch.as_tensor(inner.outputs.to_experts(Y[rows]), device=DEVICE)
    Z, Z_test, Z_judges = (
        torch.as_tensor(inner.to_experts(A), dtype=torch.float64, device=DEVICE)
        for A in (X[rows], X_test, X[judges])
    )
    for what, n_points, steps in (
        ("sparse, 1,000 points", 1000, 0),
        ("sparse, 3,000 points", 3000, 0),
        ("deep, 1,000 points", 1000, 1500),
    ):
        if DEVICE == "cpu":
            steps = min(steps, 300)
        start = time.perf_counter()
        moments = {"test": [], "judges": []}
        for output, process in enumerate(inner.families[-1].processes):
            kernel, y = process.kernel, latent[:, output]
            theta = Hyperparameters(
                kernel.name, kernel.lengthscale, kernel.outputscale, process.noise
            )
            of = lambda A: A  # noqa: E731
            if steps:
                theta = Hyperparameters(
                    kernel.name,
                    np.r_[kernel.lengthscale, np.ones(FEATURES)],
                    kernel.outputscale,
                    process.noise,
                )
                of = learn_features(theta, Z, y, rng, steps)
            with torch.no_grad():
                own, own_test, own_judges = of(Z), of(Z_test), of(Z_judges)
            gp = sparse_gp(theta, own, y, n_points, rng)
            moments["test"].append(gp.predict(own_test))
            moments["judges"].append(gp.predict(own_judges))
        seconds = round(time.perf_counter() - start, 2)
        component = {}
        for key, by_output in moments.items():
            mean, variance = (
                np.stack(part, -1)[:, None, :] for part in zip(*by_output, strict=True)
            )
            component[key] = Mixture(np.ones((len(mean), 1)), mean, variance, inner.outputs, False)
        alone = own_scores(component["test"], Y_test)
        together = scores_with(
            distributions["test"],
            component["test"],
            distributions["judges"],
            component["judges"],
            Y_test,
            Y[judges],
        )
        found.append(
            {
                "method": f"with {what}",
                **together,
                "alone_rmse": alone["rmse"],
                "alone_nlpd": alone["nlpd"],
                "seconds": round(fit_seconds + seconds, 2),
                **common,
            }
        )
    return found


def page(report: list) -> str:
    return table(COLUMNS, report)


def main() -> None:
    runs = Runs(results_path("sparse", quick=False), ("data", "method"))
    for name in sys.argv[1:] or ["kin40k", "protein", "flight_mixed", "generated"]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs.add(measure(name))
        print(table(COLUMNS, [row for row in runs.rows if row["data"] == name]), flush=True)


if __name__ == "__main__":
    main()
