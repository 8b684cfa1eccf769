"""A series with changes: where did it break, and how sure is that?"""

import numpy as np

from dsmgp import DSMGPRegressor

rng = np.random.default_rng(1)
day = np.arange(300.0)
level = 0.5 * np.sin(day / 20) + 2.0 * (day >= 100) - 1.5 * (day >= 210)
y = level + 0.2 * rng.normal(size=300)

# The exact average over all ways to cut the days into stretches, each with a function of its own.
model = DSMGPRegressor(kernel="rbf", structure="changepoint", random_state=0).fit(day[:, None], y)

for change in model.changepoints(level=0.5):
    print(
        f"a change at day {change.position:.0f}, between {change.low:.0f} and {change.high:.0f}, "
        f"probability {change.probability:.2f}"
    )
splits = model.split_posterior()
print(
    f"changes expected in all: {splits.expected:.1f}; near day 150: {splits.within(140, 160):.2f}"
)
mean = model.predict(np.array([[95.0], [105.0]]))
print(f"before the first change {mean[0]:.1f}, after it {mean[1]:.1f}")
