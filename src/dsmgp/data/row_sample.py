"""Samples of row numbers whose cost does not depend on how many rows there are."""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Index

__all__ = ["draw_numbers"]

# Up to here a permutation of all numbers takes no memory worth mentioning.
FEW = 2**22


def draw_numbers(n: int, size: int, rng: np.random.Generator) -> Index:
    """Draw ``size`` of the numbers below ``n`` without replacement, and return them in order.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> draw_numbers(5, 5, rng), len(np.unique(draw_numbers(10**15, 1000, rng)))
    (array([0, 1, 2, 3, 4]), 1000)
    """
    if n <= FEW or 2 * size > n:
        return np.sort(rng.choice(n, size, replace=False))
    # Generator.choice would permute all numbers unless they are more than 50 times as many. Any set of distinct numbers is as likely as any other of its size.
    numbers = np.empty(0, dtype=np.int64)
    while len(numbers) < size:
        more = rng.integers(n, size=size - len(numbers) + 16)
        numbers = np.union1d(numbers, more)
    surplus = rng.choice(len(numbers), len(numbers) - size, replace=False)
    return np.delete(numbers, surplus)
