"""Change points by brute force: every segmentation as one dense, block-diagonal Gaussian.

Nothing here uses the library.
"""

from __future__ import annotations

import itertools

import numpy as np


def segmentations(x, longest=None):
    """All ways to cut sorted rows between distinct positions, as boundaries with 0 and n."""
    n = len(x)
    gaps = [b for b in range(1, n) if x[b] > x[b - 1]]
    for k in range(len(gaps) + 1):
        for inner in itertools.combinations(gaps, k):
            bounds = (0, *inner, n)
            if longest is None or max(np.diff(bounds)) <= longest:
                yield bounds


class BruteForce:
    """Evidence, weights and predictions of f, summed over segmentations with given prior weights.

    Parameters
    ----------
    x : sorted positions
    y : observations
    k : kernel of two arrays of rows
    noise : variance of each row
    prior : function of the boundaries, not normalised
    Z : rows that the kernel sees, the positions themselves unless given
    """

    def __init__(self, x, y, k, noise, ways, prior, Z=None):
        self.x, self.y, self.k = x, y, k
        self.noise = np.broadcast_to(noise, len(y))
        self.Z = x[:, None] if Z is None else Z
        self.ways = list(ways)
        log_prior = np.log([prior(way) for way in self.ways])
        log_prior -= np.logaddexp.reduce(log_prior)
        terms = log_prior + [self._evidence(way) for way in self.ways]
        self.log_evidence = np.logaddexp.reduce(terms)
        self.weights = np.exp(terms - self.log_evidence)

    def change(self):
        """Posterior probability of a change at each boundary."""
        found = np.zeros(len(self.x) + 1)
        for weight, way in zip(self.weights, self.ways, strict=True):
            found[list(way[1:-1])] += weight
        return found

    def predict(self, at, Z=None):
        """Weights, means and covariances over segmentations and, of each, all sides that points in gaps may lie on.

        A change lies anywhere in its gap with equal density: the points in the gap part it, and each part is a case.
        """
        Z = at[:, None] if Z is None else Z
        weights, means, covariances = [], [], []
        for weight, way in zip(self.weights, self.ways, strict=True):
            cases = []
            for b in way[1:-1]:
                low, high = self.x[b - 1], self.x[b]
                edges = np.unique([low, *at[(at > low) & (at < high)], high])
                cases.append(
                    [(0.5 * (p + q), (q - p) / (high - low)) for p, q in itertools.pairwise(edges)]
                )
            for case in itertools.product(*cases):
                places = np.array([place for place, _ in case])
                weights.append(weight * np.prod([share for _, share in case]))
                mean, covariance = self._given(places, at, Z)
                means.append(mean)
                covariances.append(covariance)
        return np.array(weights), np.array(means), np.array(covariances)

    def _evidence(self, way):
        owner = np.searchsorted(way[1:-1], np.arange(len(self.x)), side="right")
        K = self.k(self.Z, self.Z) * (owner[:, None] == owner) + np.diag(self.noise)
        sign, log_det = np.linalg.slogdet(K)
        assert sign > 0
        return -0.5 * (
            self.y @ np.linalg.solve(K, self.y) + log_det + len(self.y) * np.log(2 * np.pi)
        )

    def _given(self, places, at, Z):
        own, new = np.searchsorted(places, self.x), np.searchsorted(places, at)
        K = self.k(self.Z, self.Z) * (own[:, None] == own) + np.diag(self.noise)
        cross = self.k(Z, self.Z) * (new[:, None] == own)
        both = self.k(Z, Z) * (new[:, None] == new)
        return cross @ np.linalg.solve(K, self.y), both - cross @ np.linalg.solve(K, cross.T)


def overall(weights, means, covariances):
    """Mean and covariance of a mixture of Gaussians."""
    mean = weights @ means
    away = means - mean
    second = np.einsum("w,wij->ij", weights, covariances) + np.einsum(
        "w,wi,wj->ij", weights, away, away
    )
    return mean, second
