"""Predictions of single leaves, each at test rows of its own."""

from itertools import pairwise

import numpy as np

from dsmgp._util.ragged import Ragged
from dsmgp.tree.routing import Routes


def predict_leaves(posterior, tasks, with_variance=True):
    """Return mean and variance of f for each pair of a leaf's number and test rows."""
    rows = np.concatenate([X for _, X in tasks])
    numbers = Ragged.of(np.split(np.arange(len(rows)), np.cumsum([len(X) for _, X in tasks])[:-1]))
    routes = Routes(np.array([number for number, _ in tasks]), numbers)
    mean, variance = posterior.predict(routes, rows, with_variance)
    return [(mean[a:b], variance[a:b]) for a, b in pairwise(numbers.ends)]
