"""Predictions of single leaves, each at test rows of its own."""

from itertools import pairwise

import numpy as np
import torch

from dsmgp._util.ragged import Ragged
from dsmgp.tree.routing import Routes


def predict_leaves(posterior, tasks, with_variance=True):
    """Return mean and variance of f for each pair of a leaf's number and test rows."""
    rows = torch.cat([X for _, X in tasks])
    numbers = Ragged.of(np.split(np.arange(len(rows)), np.cumsum([len(X) for _, X in tasks])[:-1]))
    routes = Routes(np.array([number for number, _ in tasks]), numbers)
    tables = posterior.predict(routes, rows, with_variance)
    mean, variance = (torch.from_numpy(table) for table in tables)
    return [(mean[a:b], variance[a:b]) for a, b in pairwise(numbers.ends)]
