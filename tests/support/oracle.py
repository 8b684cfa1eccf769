"""The model by brute force: every induced tree as one dense, block-diagonal Gaussian.

Nothing here uses the library's inference, experts or mixture; only the tree's nodes are read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from dsmgp.tree import Leaf, Product


def induced_trees(node):
    """All (log prior probability, leaves) pairs."""
    if isinstance(node, Leaf):
        return [(0.0, [node])]
    parts = [induced_trees(child) for child in node.children]
    if isinstance(node, Product):
        return [
            (sum(p for p, _ in combination), [leaf for _, some in combination for leaf in some])
            for combination in itertools.product(*parts)
        ]
    return [
        (log_weight + p, some)
        for log_weight, part in zip(node.log_weights, parts, strict=True)
        for p, some in part
    ]


def kernel(kind, lengthscale, outputscale, alpha=1.0, period=1.0):
    """ARD kernels written from their textbook formulas."""

    def k(A, B):
        if kind == "periodic":  # with length scales as GPyTorch has them, not squared
            sines = np.sin(np.pi * (A[:, None, :] - B[None, :, :]) / period) ** 2
            return outputscale * np.exp(-2.0 * (sines / lengthscale).sum(-1))
        difference = (A[:, None, :] - B[None, :, :]) / lengthscale
        r = np.sqrt((difference**2).sum(-1))
        shapes = {
            "rbf": np.exp(-0.5 * r**2),
            "matern12": np.exp(-r),
            "matern32": (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
            "matern52": (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
            "rq": (1 + r**2 / (2 * alpha)) ** (-alpha),
            "linear": 1.0 + (A / lengthscale) @ (B / lengthscale).T,
        }
        return outputscale * shapes[kind]

    return k


def same_leaf(A, B, some):
    """True where a row of A and a row of B lie in one leaf's box."""
    return (
        sum(leaf.region.contains(A)[:, None] & leaf.region.contains(B)[None, :] for leaf in some)
        > 0
    )


@dataclass
class BruteForce:
    """Evidence and predictions of a tree of GPs with one kernel, summed over all induced trees."""

    log_evidence: float
    weights: np.ndarray
    trees: list
    means: np.ndarray  # (n_trees, n_test)
    covariances: np.ndarray  # (n_trees, n_test, n_test), of f

    @property
    def mean(self):
        return self.weights @ self.means

    @property
    def covariance(self):
        second = np.einsum("t,tij->ij", self.weights, self.covariances) + np.einsum(
            "t,ti,tj->ij", self.weights, self.means, self.means
        )
        return second - np.outer(self.mean, self.mean)

    def density(self, y, noise):
        variance = np.diagonal(self.covariances, axis1=1, axis2=2) + noise
        each = np.exp(-0.5 * (y - self.means) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
        return self.weights @ each


def brute_force(tree, X, y, X_test, k, noise):
    trees = induced_trees(tree)
    evidences, means, covariances = [], [], []
    for log_prior, some in trees:
        K = k(X, X) * same_leaf(X, X, some) + noise * np.eye(len(X))
        K_test = k(X_test, X) * same_leaf(X_test, X, some)
        K_both = k(X_test, X_test) * same_leaf(X_test, X_test, some)
        sign, log_det = np.linalg.slogdet(K)
        assert sign > 0
        solved = np.linalg.solve(K, y)
        evidences.append(log_prior - 0.5 * (y @ solved + log_det + len(y) * np.log(2 * np.pi)))
        means.append(K_test @ solved)
        covariances.append(K_both - K_test @ np.linalg.solve(K, K_test.T))
    evidences = np.array(evidences)
    total = np.logaddexp.reduce(evidences)
    return BruteForce(
        total, np.exp(evidences - total), trees, np.array(means), np.array(covariances)
    )
