"""Bayesian optimisation that begins with 1,000 rows: expected improvement on the mixture's posterior."""

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.test_functions import Hartmann

from dsmgp import DSMGPRegressor
from dsmgp.botorch import DSMGPModel

torch.manual_seed(0)
function = Hartmann(dim=6, negate=True)  # its maximum is 3.32
X = np.random.default_rng(0).uniform(size=(1000, 6))
y = function(torch.from_numpy(X)).numpy()
model = DSMGPModel(DSMGPRegressor("matern52", effort="low", random_state=0).fit(X, y))
print(f"best of 1,000 random rows: {y.max():.2f}")

bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.float64)
best = y.max()
for _ in range(5):
    ranked = model.train_targets[:, 0].argsort()
    start = model.train_inputs[0][ranked[-2:], None]  # two restarts, from the best so far
    new, _ = optimize_acqf(
        LogExpectedImprovement(model, best_f=best),
        bounds,
        q=1,
        num_restarts=2,
        batch_initial_conditions=start,
        options={"maxiter": 10},
    )
    seen = function(new)
    best = max(best, seen.item())
    model = model.condition_on_observations(new, seen.reshape(-1, 1))
print(f"after 5 more that were asked for: {best:.2f}")
