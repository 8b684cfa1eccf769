"""Joint laws over several points of a function that breaks: exact covariances, and draws.

Two points lie in one segment, or a change lies between them. Given a change, what is left of it and what is right of it are
independent, so expectations of products follow from one recursion over boundaries, from right to left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.segmented import Segmented

__all__ = ["draw", "moments"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def moments(broken: Segmented, Z: Tensor, at: Array) -> tuple[Array, Array]:
    """Mean (n, n_outputs) and covariances (n_outputs, n, n) of f at the rows of Z, whose positions are ``at``."""
    sort = np.argsort(at, kind="stable")
    back = np.argsort(sort, kind="stable")
    Z, at = Z[sort], at[sort]
    who, weight, means, _ = broken.entries(Z, at)
    mean = np.zeros((len(at), broken.n_outputs))
    np.add.at(mean, who, weight[:, None] * means)
    covariance = np.zeros((broken.n_outputs, len(at), len(at)))
    _add_together(broken, Z, at, mean, covariance)
    _add_apart(broken, Z, at, mean, covariance)
    return mean[back], covariance[:, back][:, :, back]


def _add_together(broken: Segmented, Z: Tensor, at: Array, mean: Array, covariance: Array) -> None:
    """Where both points lie in one segment: its covariance, and its mean around the overall one."""
    segments, order = broken.segments, broken.order
    for number, chain in enumerate(broken.chains):
        points = np.flatnonzero(
            order.near(
                int(segments.start[chain.segments].min()),
                int(segments.end[chain.segments].max()),
                at,
            )
        )
        if not len(points):
            continue
        own = chain.segments
        after = order.right_of(segments.start[own], at[points])
        before = 1.0 - order.right_of(segments.end[own], at[points])
        before[segments.end[own] == order.n_rows] = 1.0  # also where there are no rows at all
        grid = np.ix_(points, points)
        for output, factor in enumerate(broken.factors(number)):
            for k, (m, C) in enumerate(factor.joints(Z[points], chain.lengths)):
                # The first of the two right of where the segment begins, the last left of where it ends.
                both = np.minimum.outer(after[k], after[k]) * np.minimum.outer(before[k], before[k])
                away = m - mean[points, output]
                covariance[output][grid] += (
                    segments.probability[own[k]] * both * (C + np.outer(away, away))
                )


def _add_apart(broken: Segmented, Z: Tensor, at: Array, mean: Array, covariance: Array) -> None:
    """Where a change lies between the points: given that change the two sides are independent.

    ``left[b]`` is the expected mean of the segment that ends at boundary b, around the overall mean; ``right[b]`` what is
    expected right of a change there.
    """
    segments, order = broken.segments, broken.order
    said: dict[int, tuple[Index, Array]] = {}
    for found in broken.answers(Z, at):
        for k, segment in enumerate(found.chain.segments):
            said[int(segment)] = found.points, found.mean[k] - mean[found.points]
    n, shape = order.n_rows, mean.shape
    left: dict[int, Array] = {}
    right: dict[int, Array] = {}
    for segment in np.argsort(-segments.start, kind="stable"):
        start, end = int(segments.start[segment]), int(segments.end[segment])
        go_on = order.right_of(np.array([end]), at)[0][:, None]
        total = right.setdefault(start, np.zeros(shape))
        chance = segments.next_probability[segment]
        if end < n and end in right:
            total += chance * go_on * right[end]
        if int(segment) in said:
            points, away = said[int(segment)]
            total[points] += chance * (1.0 - go_on[points]) * away
            begun = order.right_of(np.array([start]), at[points])[0][:, None]
            ends = left.setdefault(end, np.zeros(shape))
            ends[points] += segments.probability[segment] * begun * away
    for boundary, ends in left.items():
        if boundary == n or boundary not in right:
            continue
        past = order.right_of(np.array([boundary]), at)[0]
        between = np.maximum(past[None, :] - past[:, None], 0.0)  # of a point left and one right
        for output in range(shape[1]):
            apart = ends[:, output, None] * between * right[boundary][None, :, output]
            covariance[output] += apart + apart.T


def draw(
    broken: Segmented, Z: Tensor, at: Array, n_samples: int, rng: np.random.Generator
) -> Array:
    """Joint draws of f, (n_points, n_outputs, n_samples): a segmentation, places of its changes, then each segment."""
    segments, position = broken.segments, broken.order.position
    number_of = {
        (int(start), int(end)): k
        for k, (start, end) in enumerate(zip(segments.start, segments.end, strict=True))
    }
    # For each segment that comes up, the samples it comes up in, and which points it holds there.
    asked: dict[int, list[tuple[int, Index]]] = {}
    for sample in range(n_samples):
        bounds = segments.draw(rng)
        inner = bounds[1:-1]
        places = position[inner - 1] + rng.uniform(size=len(inner)) * broken.order.length[inner]
        owner = np.searchsorted(places, at, side="right")
        for k in np.unique(owner):
            number = number_of[int(bounds[k]), int(bounds[k + 1])]
            asked.setdefault(number, []).append((sample, np.flatnonzero(owner == k)))
    out = np.empty((len(at), broken.n_outputs, n_samples))
    for number, chain in enumerate(broken.chains):
        wanted = [k for k, segment in enumerate(chain.segments) if int(segment) in asked]
        if not wanted:
            continue
        held = [asked[int(chain.segments[k])] for k in wanted]
        points = np.unique(np.concatenate([own for one in held for _, own in one]))
        for output, factor in enumerate(broken.factors(number)):
            laws = factor.joints(Z[points], chain.lengths[wanted])
            for (mean, covariance), one in zip(laws, held, strict=True):
                values, vectors = np.linalg.eigh(covariance)
                root = vectors * np.sqrt(np.maximum(values, 0.0))
                # Of all points, though each sample takes only those that the segment holds there.
                drawn = mean[:, None] + root @ rng.standard_normal((len(points), len(one)))
                for column, (sample, own) in enumerate(one):
                    out[own, output, sample] = drawn[np.searchsorted(points, own), column]
    return out
