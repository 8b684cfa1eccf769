"""Rows that keep coming: a model that keeps up, and a window that forgets."""

import numpy as np

from dsmgp import DSMGPRegressor, scores

rng = np.random.default_rng(0)


def hour(k, n=50):
    """Rows of an hour: a curve that slowly moves."""
    X = rng.uniform(0, 1, size=(n, 1))
    return X, np.sin(6 * X[:, 0] + 0.05 * k) + 0.1 * rng.normal(size=n)


first = [hour(k) for k in range(10)]
X, y = (np.concatenate(parts) for parts in zip(*first, strict=True))
model = DSMGPRegressor(effort="low", random_state=0).fit(X, y)
stale = DSMGPRegressor(effort="low", random_state=0).fit(X, y)

errors = []
for k in range(10, 30):
    X, y = hour(k)
    errors.append([scores.mae(y, one.predict(X)) for one in (model, stale)])  # predict, then learn
    model.partial_fit(X, y)
    model.forget(model.row_ids_[:-500])  # the last ten hours
window, old = np.mean(errors[-5:], axis=0)
print(f"{len(model.row_ids_)} rows are kept, numbered up to {model.row_ids_[-1]}")
print(f"error in the last hours: {window:.2f} with a window, {old:.2f} without new rows")
