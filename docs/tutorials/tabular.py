"""A table: numbers and categories, a test split, scores, a file."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder

import dsmgp
from dsmgp import DSMGPRegressor, scores

# Prices of flats that depend on size, floor and quarter; large flats scatter more.
rng = np.random.default_rng(0)
n = 1500
flats = pd.DataFrame(
    {
        "size": rng.uniform(20, 150, n),
        "floor": rng.integers(0, 8, n),
        "quarter": rng.choice(["north", "south", "harbour"], n),
    }
)
worth = 2.5 * flats["size"] + 6 * flats["floor"] + 60 * (flats["quarter"] == "harbour")
worth += 25 * np.sin(flats["size"] / 12)
price = (worth + 0.08 * flats["size"] * rng.normal(size=n)).rename("price")

# Categories become columns of zeros and ones; everything else stays as it is.
encode = make_column_transformer(
    (OneHotEncoder(sparse_output=False), ["quarter"]), remainder="passthrough"
)
X = encode.set_output(transform="pandas").fit_transform(flats)
X_train, X_test, y_train, y_test = train_test_split(X, price, random_state=0)

model = DSMGPRegressor(effort="low", random_state=0).fit(X_train, y_train)
distribution = model.predict_dist(X_test)
trees = HistGradientBoostingRegressor(random_state=0).fit(X_train, y_train)
print(f"error of the mean: {scores.mae(y_test, distribution.mean):.2f}")
print(f"of boosted trees:  {scores.mae(y_test, trees.predict(X_test)):.2f}")
print(f"in 90% intervals:  {scores.coverage(y_test, distribution):.0%}")

small, large = X_test["remainder__size"] < 40, X_test["remainder__size"] > 130
print(
    f"standard deviation of small flats {distribution.std[small].mean():.1f}, of large {distribution.std[large].mean():.1f}"
)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "flats.dsmgp"
    model.save(path)
    same = (dsmgp.load(path).predict(X_test) == model.predict(X_test)).all()
    print(f"loaded from {path.stat().st_size / 1000:.0f} kB, it predicts the same: {same}")
