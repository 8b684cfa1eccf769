"""Factors are kept while there is room, and made again when not."""

import ctypes
import pickle
import sys
import threading

import numpy as np
import pytest

from dsmgp.experts.factors.cache import FactorCache, LeadingBlocks, Packed


@pytest.fixture
def made():
    return []


def factors(made, sizes, memory):
    def make(group):
        made.append(group)
        return [[np.full((1, 1), float(group))]]

    return FactorCache(make, sizes, memory)


def test_with_room_for_all_everything_stays(made):
    cache = factors(made, [10, 10, 10], 30)
    assert [cache.keeps(k) for k in range(3)] == [True] * 3
    for k in range(3):
        cache.put(k, [[np.zeros((1, 1))]])
    cache.get(1)
    assert made == []
    assert cache.n_bytes == 30


def test_beyond_the_room_the_least_recently_used_goes(made):
    cache = factors(made, [10] * 20, 80)  # 6 stay, 2 are replaced
    assert [k for k in range(20) if cache.keeps(k)] == list(range(6))
    for group in (10, 11, 10, 12, 10, 11):
        assert cache.get(group)[0][0].item() == group
    assert made == [10, 11, 12, 11]
    assert cache.n_bytes <= 80


def test_what_does_not_fit_at_all_is_made_each_time(made):
    cache = factors(made, [10], 0)
    cache.get(0), cache.get(0)
    assert made == [0, 0]
    assert cache.n_bytes == 0


SIZES = np.array([7, 5, 5, 3])


def layouts():
    largest = Packed(np.arange(49.0 + 64.0), np.array([7, 8]))
    flat = np.arange(float((SIZES**2).sum()))
    return [LeadingBlocks(largest, np.array([0, 1, 0, 1]), SIZES), Packed(flat, SIZES)]


def matrices(rng):
    return [np.tril(rng.normal(size=(n, n))) for n in SIZES]


def test_packed_matrices_are_those_that_were_packed(rng):
    given = matrices(rng)
    packed = Packed.of(given)
    assert len(packed.flat) == (SIZES**2).sum()
    for slot, matrix in enumerate(given):
        np.testing.assert_array_equal(packed[slot], matrix)


@pytest.mark.parametrize("factors", layouts(), ids=lambda factors: type(factors).__name__)
def test_factors_lie_where_their_addresses_say(factors):
    slots = np.array([3, 1, 0])
    for slot, address, step in zip(slots, *factors.addresses(slots), strict=True):
        n = SIZES[slot]
        rows = [(ctypes.c_double * n).from_address(int(address + 8 * step * k)) for k in range(n)]
        np.testing.assert_array_equal(factors[slot], rows)


def test_views_are_pickled_once():
    sizes = np.array([100, *range(50, 90)])
    largest = Packed(np.arange(10_000, dtype=np.float32), sizes[:1])
    blocks = LeadingBlocks(largest, np.zeros(len(sizes), np.int64), sizes)
    text = pickle.dumps(blocks)
    assert len(text) < 50_000
    np.testing.assert_array_equal(pickle.loads(text)[3], blocks[3])


def test_bytes_are_counted_while_factors_are_put(made):
    n_groups, errors = 8000, []
    cache = factors(made, [8] * n_groups, 1e9)

    def count():
        while not cache.holds(n_groups - 1):
            try:
                assert cache.n_bytes % 8 == 0
            except RuntimeError as error:  # dictionary changed size during iteration
                errors.append(error)

    threads = [threading.Thread(target=count) for _ in range(2)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for group in range(n_groups):
            cache.put(group, [[np.zeros((1, 1))]])
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert not errors
    assert cache.n_bytes == 8 * n_groups
