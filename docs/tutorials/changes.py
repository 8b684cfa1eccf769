"""A series with changes: where did it break, and how sure is that?"""

import numpy as np

from dsmgp import DSMGPRegressor

rng = np.random.default_rng(1)
day = np.arange(300.0)
level = 0.5 * np.sin(day / 20) + 2.0 * (day >= 100) - 1.5 * (day >= 210)
y = level + 0.2 * rng.normal(size=300)

# Every sum node weighs 16 places to cut, and the posterior says which of them the data support.
model = DSMGPRegressor(
    kernel="rbf",
    structure="paper",
    leaf_size=40,
    sum_children=16,
    product_children=2,
    depth=2,
    objective="full",
    weights="posterior",
    random_state=0,
).fit(day[:, None], y)

position, probability = model.split_posterior(0)
for left, right in ((80, 120), (190, 230)):
    near = (position >= left) & (position < right)
    best = position[near][np.argmax(probability[near])]
    total = probability[near].sum()
    print(f"days {left} to {right}: a cut near day {best:.0f}, {total:.1f} cuts expected")
mean = model.predict(np.array([[95.0], [105.0]]))
print(f"before the first change {mean[0]:.1f}, after it {mean[1]:.1f}")
