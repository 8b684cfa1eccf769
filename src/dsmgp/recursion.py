# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""Sums over all segmentations, forward and backward, in compiled code. Needs numba.

What :mod:`dsmgp.segments` does in NumPy, boundary by boundary.
"""

from __future__ import annotations

import math

from numba import njit

__all__ = ["backward", "forward"]


@njit(nogil=True, cache=True)
def forward(evidences, enter, stay, boundaries, before, going):
    """Fill ``before`` and ``going`` from the second boundary on."""
    longest = evidences.shape[1]
    for place in range(1, len(boundaries)):
        j = boundaries[place]
        low = max(0, j - longest)
        top = -math.inf
        for i in range(low, j):
            top = max(top, going[i] + evidences[i, j - 1 - i])
        total = 0.0
        if top > -math.inf:
            for i in range(low, j):
                total += math.exp(going[i] + evidences[i, j - 1 - i] - top)
            before[j] = top + math.log(total) + stay[j - 1]
        going[j] = before[j] + enter[j] - stay[j]


@njit(nogil=True, cache=True)
def backward(evidences, leave, stay, boundaries, after, ahead):
    """Fill ``after`` and ``ahead`` from the last boundary but one."""
    n, longest = evidences.shape
    for place in range(len(boundaries) - 2, -1, -1):
        i = boundaries[place]
        width = min(longest, n - i)
        top = -math.inf
        for m in range(width):
            top = max(top, evidences[i, m] + ahead[i + 1 + m])
        total = 0.0
        if top > -math.inf:
            for m in range(width):
                total += math.exp(evidences[i, m] + ahead[i + 1 + m] - top)
            after[i] = top + math.log(total) - stay[i]
        ahead[i] = after[i] + leave[i] + stay[max(i - 1, 0)]
