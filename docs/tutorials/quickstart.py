import numpy as np

from dsmgp import DSMGPRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, size=(1000, 2))
y = np.sin(2 * X[:, 0]) + (X[:, 1] > 1) + 0.1 * rng.normal(size=1000)

model = DSMGPRegressor(effort="low", random_state=0).fit(X, y)
mean, std = model.predict([[0.5, 0.0]], return_std=True)
low, high = model.predict_dist([[0.5, 0.0]]).interval(0.9)
print(f"{mean[0]:.2f} +- {std[0]:.2f}, 90% between {low[0]:.2f} and {high[0]:.2f}")
print(f"the truth is {np.sin(1.0):.2f}")
