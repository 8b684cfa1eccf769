"""Other ways to scale the variance of leaves, on the trees, theta and leave-one-out laws of a default fit.

    DSMGP_DATA=... python benchmarks/scales.py [airfoil kin40k ...] [--seeds 2] [--results FILE]

Every way has its exponents and shapes fitted by leave-one-out as the gate has, with one parameter more where it needs one, and is scored on
the test rows. ``none``: no scales, one Gaussian a leaf. ``one``: a scale per leaf, one Gaussian a leaf. ``three`` (the default): that,
spread over three scales that leaves share. ``student``: that as a Student-t of fitted degrees of freedom instead. ``apart``: three, and
noise and signal take different powers of the leaf's scale. ``smooth``: three, and a leaf's scale is pulled towards the geometric mean of
those of all leaves that the row reaches. Results are kept in benchmarks/results/scales.json.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from dsmgp import DSMGPRegressor
from dsmgp.experts.conditioning import condition
from dsmgp.experts.loo import Components
from dsmgp.mixture.weights.gating import RIDGE, START_EXPONENTS, START_SHAPES
from harness import Runs, results_path, setting, standardised, table

DATA = ("airfoil", "kin40k", "house", "protein")
WAYS = ("none", "one", "three", "student", "apart", "smooth")
N_SHAPES = len(START_SHAPES[0])


@dataclass(frozen=True)
class Said:
    """What leaves say of rows, (rows, components) each, and what was observed there."""

    log_path: Tensor
    mean: Tensor
    variance: Tensor
    noise: Tensor
    scale: Tensor
    y: Tensor

    @classmethod
    def of(cls, model, found: Components, scale: np.ndarray, y: np.ndarray) -> Said:
        parts = (
            found.of_leaves(model.component_weights.log_path, -np.inf), found.mean[..., 0], found.variance[..., 0],
            found.of_leaves(model.leaf_posterior.noise, 0.0)[..., 0], scale[..., 0], y,
        )  # fmt: skip
        return cls(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


def start(way: str) -> np.ndarray:
    """Exponents of variance and scale, shapes, and what the way adds."""
    (weights, variances), more = (
        START_SHAPES,
        {"student": [1.5], "apart": [1.0, 1.0], "smooth": [0.0]},
    )
    shapes = [*weights[1:], *variances] if way in ("three", "apart", "smooth") else [0.0]
    return np.array([*START_EXPONENTS, *shapes, *more.get(way, [])])


def laws(way: str, theta: Tensor, said: Said) -> tuple[Tensor, Tensor]:
    """The log density of what was observed, and the mixture's mean."""
    scale = torch.ones_like(said.scale) if way == "none" else said.scale
    log_gate = said.log_path - theta[0] * said.variance.log() - theta[1] * scale.log()
    log_gate = log_gate.log_softmax(1)
    spread = said.variance * scale
    if way == "apart":
        signal = (said.variance - said.noise).clamp_min(1e-12)
        spread = scale ** theta[-2] * said.noise + scale ** theta[-1] * signal
    elif way == "smooth":
        around = (log_gate.exp() * scale.log()).sum(1, keepdim=True)
        spread = said.variance * (scale.log() + theta[-1] * (around - scale.log())).exp()
    square = (said.y[:, None] - said.mean) ** 2
    if way in ("three", "apart", "smooth"):
        logits = torch.cat([torch.zeros(1, dtype=theta.dtype), theta[2 : 1 + N_SHAPES]])
        log_shapes = theta[1 + N_SHAPES : 1 + 2 * N_SHAPES]
        each = spread[..., None] * log_shapes.exp()
        density = -0.5 * (square[..., None] / each + each.log() + math.log(2 * math.pi))
        density = (density + logits.log_softmax(0)).logsumexp(-1)
    else:
        spread = spread * theta[2].exp()
        density = -0.5 * (square / spread + spread.log() + math.log(2 * math.pi))
        if way == "student":
            freedom = 1.0 + theta[-1].exp()
            density = torch.distributions.StudentT(freedom).log_prob((square / spread).sqrt())
            density = density - 0.5 * spread.log()
    return (log_gate + density).logsumexp(1), (log_gate.exp() * said.mean).sum(1)


def fitted(way: str, said: Said) -> Tensor:
    """By leave-one-out, as the gate is: mean log density minus the log of the root mean square error."""
    origin = start(way)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.tensor(values, requires_grad=True)
        density, mean = laws(way, theta, said)
        error = 0.5 * ((said.y - mean) ** 2).mean().log()
        total = error - density.mean() + RIDGE * ((theta - torch.from_numpy(origin)) ** 2).sum()
        total.backward()
        return total.item(), theta.grad.numpy()

    return torch.from_numpy(minimize(loss, origin, jac=True, method="L-BFGS-B").x)


def run(name: str, seed: int) -> list[dict]:
    X, Y, X_test, Y_test = standardised(name, seed)
    full = DSMGPRegressor(random_state=seed).fit(X, Y).state_.model
    posterior = full.leaf_posterior
    conditioned = condition(posterior.leaf_gps, posterior.kernel_parameters, 0, leave_out=True)
    loo = conditioned.leave_one_out()
    rows = np.sort(np.random.default_rng(seed).permutation(len(X))[:6000])
    left_out = Said.of(
        full, loo.components(rows), loo.scales_without(rows), loo.observed(rows)[:, 0]
    )
    found = full._components(X_test)
    scale = found.of_leaves(full.scales, 1.0)
    test = Said.of(full, found, scale, full.outputs.to_experts(Y_test)[:, 0])
    lines = []
    for way in WAYS:
        theta = fitted(way, left_out)
        with torch.no_grad():
            (inside, _), (density, mean) = laws(way, theta, left_out), laws(way, theta, test)
        error = ((test.y - mean) ** 2).mean().sqrt() * math.exp(full.outputs.log_det)
        lines.append(
            {
                "data": name, "way": way, "seed": seed, "rmse": round(error.item(), 5),
                "nlpd": round(full.outputs.log_det - density.mean().item(), 5),
                "loo": round(full.outputs.log_det - inside.mean().item(), 5),
                "theta": [round(value, 3) for value in theta.tolist()], **setting(),
            }
        )  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    path = given.results or results_path("scales", quick=False)
    runs = Runs(path, ("data", "way", "seed"), given.again)
    for name in given.data:
        for seed in range(given.seeds):
            if runs.is_due(data=name, way=WAYS[-1], seed=seed):
                runs.add(run(name, seed))
                print(page(runs.rows), flush=True)


def page(rows: list[dict]) -> str:
    """Means over seeds."""
    lines = []
    for key in dict.fromkeys((row["data"], row["way"]) for row in rows):
        own = [row for row in rows if (row["data"], row["way"]) == key]
        means = {k: float(np.mean([row[k] for row in own])) for k in ("rmse", "nlpd", "loo")}
        lines.append({**own[0], "seeds": len(own), **means})
    titles = {"data": "data", "way": "way", "seeds": "seeds"}
    return table(titles | {"rmse": "RMSE", "nlpd": "NLPD", "loo": "LOO"}, lines)


if __name__ == "__main__":
    main()
