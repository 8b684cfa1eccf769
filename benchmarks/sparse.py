"""Would a sparse GP over all rows earn its place beside the leaves?

    DSMGP_DATA=... python benchmarks/sparse.py [kin40k protein flight_mixed generated ...]

The paper names sparse leaves as future work. Here a GP of all rows by inducing points (SGPR, Titsias 2009) is added to the fitted default model:
kernel and coordinates as those of its largest leaves, inducing points by greedy conditional variance (Burt et al. 2020), hyperparameters of its own by
L-BFGS on the variational bound of a sample, then all rows.

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

# Rows that fit the weight of the sparse GP, and test rows, at most; rows that it learns on; among them inducing points are chosen.
JUDGES, TEST_ROWS, SAMPLE, CANDIDATES = 10_000, 50_000, 50_000, 20_000
JITTER = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLUMNS = {
    "data": "data", "rows": "rows", "method": "method", "rmse": "RMSE", "nlpd": "NLPD", "alone_rmse": "sparse GP alone: RMSE",
    "alone_nlpd": "NLPD", "weight": "its mean weight", "seconds": "fit (s)",
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
        try:
            loss = -objective()
        except torch.linalg.LinAlgError:  # the line search went too far
            loss = 1e6 + 0.0 * theta.log.sum()
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


# What it is worth


Pair = tuple[Mixture, Mixture, np.ndarray]


def scores_with(test: Pair, judges: Pair) -> dict:
    """Scores of test rows by both together, the second weighted by ``expit(a + b log(variance ratio))``, with a and b fitted to the judges."""

    def loss(ab: np.ndarray, log_densities: np.ndarray, log_ratio: np.ndarray) -> float:
        logit = ab[0] + ab[1] * log_ratio
        log_weights = np.stack([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)])
        return -float(logsumexp(log_densities + log_weights, axis=0).mean())

    def quantities(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
        first, second, y = pair
        log_ratio = np.log(first.var / second.var).reshape(len(y), -1).sum(1)
        return np.stack([first.joint_logpdf(y), second.joint_logpdf(y)]), log_ratio

    best = minimize(loss, [-2.0, 0.5], args=quantities(judges), method="Nelder-Mead").x
    log_densities, log_ratio = quantities(test)
    weight = expit(best[0] + best[1] * log_ratio)
    y = test[2]
    own, new = (each.mean.reshape(y.shape) for each in test[:2])
    nlpd = loss(best, log_densities, log_ratio) / y.shape[1]
    mean = own + weight[:, None] * (new - own)
    return {"rmse": rmse(mean, y), "nlpd": round(nlpd, 4), "weight": round(weight.mean(), 3)}


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
    judges, rows = np.split(rng.permutation(len(X)), [min(JUDGES, len(X) // 10)])
    test = rng.permutation(len(X_test))[:TEST_ROWS]
    asked = {"test": (X_test[test], Y_test[test]), "judges": (X[judges], Y[judges])}
    common = {"data": name, "rows": len(rows), **setting()}
    found = []
    for effort in ("high", "medium"):
        start = time.perf_counter()
        model = DSMGPRegressor(effort=effort, random_state=0).fit(X[rows], Y[rows])
        seconds = round(time.perf_counter() - start, 2)
        scores = own_scores(model.predict_dist(asked["test"][0]), asked["test"][1])
        found.append(
            {"method": f'dsmgp, effort="{effort}"', **scores, "seconds": seconds, **common}
        )
    for n_points in (1000, 3000):
        start = time.perf_counter()
        components = sparse_component(model, X[rows], Y[rows], asked, n_points, rng)
        spent = seconds + time.perf_counter() - start
        pairs = {key: (model.predict_dist(A), components[key], y) for key, (A, y) in asked.items()}
        alone = own_scores(components["test"], asked["test"][1])
        method = {"method": f"medium with {n_points:,} inducing points", "seconds": round(spent, 2)}
        alone = {f"alone_{key}": value for key, value in alone.items()}
        found.append({**method, **scores_with(pairs["test"], pairs["judges"]), **alone, **common})
    return found


def sparse_component(
    model: DSMGPRegressor, X, Y, asked: dict[str, tuple], n_points: int, rng
) -> dict[str, Mixture]:
    """Predictive distributions of a sparse GP of all rows, in the coordinates and from the hyperparameters of the model."""
    inner = model.state_.model

    def to_device(A: np.ndarray) -> Tensor:
        return torch.as_tensor(inner.to_experts(A), dtype=torch.float64, device=DEVICE)

    latent = torch.as_tensor(inner.outputs.to_experts(Y), device=DEVICE)
    Z = to_device(X)
    moments: dict[str, list] = {key: [] for key in asked}
    for y, process in zip(latent.T, inner.families[-1].processes, strict=True):
        kernel = process.kernel
        theta = Hyperparameters(kernel.name, kernel.lengthscale, kernel.outputscale, process.noise)
        gp = sparse_gp(theta, Z, y.contiguous(), n_points, rng)
        for key, (A, _) in asked.items():
            moments[key].append(gp.predict(to_device(A)))
    components = {}
    for key, by_output in moments.items():
        mean, variance = (np.stack(part, -1)[:, None, :] for part in zip(*by_output, strict=True))
        components[key] = Mixture(np.ones((len(mean), 1)), mean, variance, inner.outputs, False)
    return components


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
