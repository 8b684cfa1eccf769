"""A leaf with change points: its rows, ordered along one input, fall into segments with a GP each.

The leaf stands for a sum node over all segmentations of its rows, with one change point (a sum over every split position) or any
number of them. Such a sum has too many children to write down; it is computed without doing so
(:mod:`dsmgp.changepoints.segmentation`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_choice, check_count, is_whole_number
from dsmgp.tree.nodes import Leaf, Node, leaves, map_leaves

__all__ = ["ChangePointLeaf", "ChangePoints", "has_changepoints", "map_changes"]

GAPS = ("equal", "length")


@dataclass(frozen=True)
class ChangePoints:
    """Change points of a function along one input: ``structure=ChangePoints(...)``.

    Rows are ordered by one input. The function may change in the gap between two consecutive rows; the change point lies
    anywhere in the gap with equal density, so that a point between the two rows belongs to either side with its probability.
    There are no changes before the first row and after the last. Other inputs only enter the kernel.

    Parameters
    ----------
    dimension : int or str, default=0
        The input that orders the rows, by number or name.
    n_changes : {1, None}, default=None
        1: exactly one change point, at an unknown position. None: any number, learned from the data.
    gaps : "equal" or "length", default="equal"
        Whether all gaps are equally likely to contain a change point, or longer ones more so: in proportion to their length (one
        change point), or by a Poisson process (any number).
    hazard : float, optional
        For any number of change points: the prior probability of one in a gap or, with ``gaps="length"``, their expected number
        per unit of the input. It is where learning starts, and kept with ``optimizer=None``.
    shortest : int, default=1
        Fewest rows in a segment. With more than one, a short run of deviating rows is not a segment.
    outliers : bool, default=False
        Whether some rows may carry a much larger noise. Otherwise an outlier looks like two change points. A run of outliers still
        does, unless it is shorter than ``shortest``.

    Examples
    --------
    >>> ChangePoints(outliers=True).n_changes is None
    True
    """

    dimension: int | str = 0
    n_changes: int | None = None
    gaps: str = "equal"
    hazard: float | None = None
    shortest: int = 1
    outliers: bool = False

    def __post_init__(self) -> None:
        is_number = is_whole_number(self.dimension) and int(self.dimension) >= 0
        if not isinstance(self.dimension, str) and not is_number:
            raise InputError(
                f"expected dimension to be the number of an input from 0 on, or its name, got {self.dimension!r}"
            )
        if self.n_changes is not None and not (
            is_whole_number(self.n_changes) and self.n_changes == 1
        ):
            raise InputError(
                f"expected n_changes to be 1 or None for any number, got {self.n_changes!r}"
            )
        check_count("shortest", self.shortest)
        check_choice("gaps", self.gaps, GAPS)
        if not isinstance(self.outliers, (bool, np.bool_)):
            raise InputError(f"expected outliers to be True or False, got {self.outliers!r}")
        if self.hazard is not None:
            is_real = isinstance(self.hazard, numbers.Real) and not isinstance(self.hazard, bool)
            limit = 1.0 if self.gaps == "equal" else math.inf
            if not is_real or not 0.0 < self.hazard < limit:
                raise InputError(
                    "expected hazard to be a probability strictly between 0 and 1, or with gaps='length' a "
                    f"positive rate, got {self.hazard!r}"
                )


@dataclass(frozen=True, eq=False, slots=True)
class ChangePointLeaf(Leaf):
    """A leaf whose rows fall into segments: a sum node over all segmentations.

    Examples
    --------
    One change point somewhere, or none:

    >>> from dsmgp.tree.nodes import Leaf, Sum
    >>> from dsmgp.tree.region import Region
    >>> space = Region.whole(1)
    >>> tree = Sum([Leaf(space), ChangePointLeaf(space, changes=ChangePoints(n_changes=1))])
    >>> has_changepoints(tree)
    True
    """

    changes: ChangePoints = ChangePoints()  # shared by all: it is immutable


def has_changepoints(structure: str | ChangePoints | Node) -> bool:
    """Whether a structure, as given by the user, allows change points."""
    if isinstance(structure, str):
        return structure == "changepoint"
    if isinstance(structure, ChangePoints):
        return True
    return any(isinstance(leaf, ChangePointLeaf) for leaf in leaves(structure))


def map_changes(root: Node, replace_changes: Callable[[ChangePoints], ChangePoints]) -> Node:
    """Return the tree with other settings in its leaves with change points."""

    def replaced(leaf: Leaf) -> Leaf:
        if not isinstance(leaf, ChangePointLeaf):
            return leaf
        return replace(leaf, changes=replace_changes(leaf.changes))

    return map_leaves(root, replaced)
