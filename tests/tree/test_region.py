"""Boxes that hold only what was cut last have the bounds of boxes that hold all of them."""

import copy
import gc
import pickle
import tracemalloc

import numpy as np
import pytest

from dsmgp.tree import Region, leaves
from dsmgp.tree.columns import Columns
from dsmgp.tree.growing import grow_balanced


def test_parts_of_parts_have_the_bounds_of_explicit_boxes(rng):
    for whole in (Region.whole(3), Region([0.0, -1.0, 2.0], [1.0, 1.0, 9.0])):
        region, lower, upper = whole, whole.lower.copy(), whole.upper.copy()
        for _ in range(40):
            d, k = rng.integers(3), rng.integers(3)
            low, high = (v if np.isfinite(v) else s for v, s in ((lower[d], -5.0), (upper[d], 5.0)))
            splits = np.sort(rng.uniform(low, high, 2)).tolist()
            edges = [lower[d], *splits, upper[d]]
            region = region.split(d, splits)[k]
            lower[d], upper[d] = edges[k], edges[k + 1]
            for found in (region, pickle.loads(pickle.dumps(region)), copy.deepcopy(region)):
                np.testing.assert_array_equal([found.lower, found.upper], [lower, upper])
                assert [found.interval(j) for j in range(3)] == [*zip(lower, upper, strict=True)]
                assert found.same_as(Region(lower, upper))
                assert not found.same_as(whole)
            with pytest.raises(ValueError, match="read-only"):
                region.lower[0] = 0.0
            with pytest.raises(AttributeError):
                region.lower = lower
    assert not whole.same_as(Region.whole(2))
    assert repr(Region([0.0], [1.0])) == "Region(lower=[0.0], upper=[1.0])"


def test_a_leaf_of_a_tree_over_many_inputs_takes_some_half_a_kilobyte(rng):
    """Its share of the inner nodes included, and its row numbers not; it took 1.4 kB where every box had all bounds."""
    X = rng.normal(size=(3000, 16))
    columns = Columns.of(X)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tree = grow_balanced(columns, leaf_sizes=[10] * 2, rng=rng)
        gc.collect()
        n_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert n_bytes - 2 * X[:, 0].nbytes < 700 * len(leaves(tree))
