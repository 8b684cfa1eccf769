"""Shards: leaf GPs built from a plan, whose arguments may come out of Ray's object store."""

import numpy as np
import pytest

from dsmgp._util.ragged import Ragged
from dsmgp.distributed.shard import Shard, ShardData, ShardPlan
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel

KERNEL = StationaryKernel("rbf", (0, 1), "constant")
# Two length scales, output scale, mean, noise.
PARAMETERS = [np.array([0.8, 1.2, 1.0, 0.1, 0.05])]


@pytest.fixture
def leaf_rows():
    return Ragged.of([np.arange(0, 40), np.arange(20, 60)])


@pytest.fixture
def data(rng, leaf_rows):
    X, Y = rng.normal(size=(60, 2)), rng.normal(size=(60, 1))
    return ShardData(np.arange(60) * 2, leaf_rows, LeafData(X, Y, labels=np.arange(60)))


@pytest.fixture
def shard(data):
    kernels = [[KERNEL, KERNEL]]
    return Shard(ShardPlan(lambda: data, np.array([4, 7]), kernels, 1e9, "cpu", "float64"))


def read_only(array):
    array = np.array(array)
    array.flags.writeable = False
    return array


def test_a_shard_computes_what_its_leaf_gps_do(shard, data, leaf_rows):
    gps = InMemoryLeafGPs(leaf_rows, data.data, [KERNEL])
    np.testing.assert_array_equal(shard.log_evidence(PARAMETERS), gps.log_evidence(PARAMETERS))
    np.testing.assert_array_equal(shard.squares(PARAMETERS), gps.squares(PARAMETERS))
    evidence, gradients = shard.gradient(PARAMETERS, [0], None)
    expected, of_parameters = gps.log_evidence_and_gradient(PARAMETERS)
    np.testing.assert_array_equal(evidence, expected)
    np.testing.assert_array_equal(gradients, of_parameters)


def test_leave_one_out_rows_are_found_by_their_numbers_in_the_training_set(shard):
    *_, pairs = shard.condition(0, PARAMETERS, 1e9, np.array([1, 10, 60, 200]))
    # Row 10 is in the first leaf only, row 60 in both; 1 and 200 are in other shards.
    np.testing.assert_array_equal(pairs.leaf, [0, 0, 1])
    np.testing.assert_array_equal(pairs.place, [1, 2, 2])


def test_read_only_arrays_are_taken(shard, rng):
    X, leaf, row, ends = rng.normal(size=(6, 2)), np.arange(2), np.arange(6), np.array([0, 3, 6])

    def results(key, as_given):
        given = [as_given(table) for table in PARAMETERS]
        evidence, gradient = shard.gradient(given, [0], None)
        shard.condition(key, given, 1e9)
        routed = (as_given(array) for array in (leaf, row, ends, X))
        mean, variance = shard.predict(key, *routed, True)
        return evidence, gradient[0], mean, variance, *shard.joint(key, 1, as_given(X))

    expected = results(0, np.array)
    for one, other in zip(results(1, read_only), expected, strict=True):
        np.testing.assert_array_equal(one, other)
