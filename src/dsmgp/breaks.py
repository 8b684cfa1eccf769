"""A leaf that may break: its rows, in order along one input, fall into segments with a GP each.

The leaf stands for a sum node over every way to cut its rows: at one place (a sum over every split position), or at any
number of places. Such a sum has as many children as there are ways, far too many to write down, and is computed
without writing them down (:mod:`dsmgp.segments`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dsmgp.tree import Leaf, Node, Product, Sum, leaves, nodes
from dsmgp.validation import check_choice, check_count

__all__ = ["BreakingLeaf", "ChangePoints", "has_breaks", "with_changes", "with_leaves"]

GAPS = ("equal", "length")


@dataclass(frozen=True)
class ChangePoints:
    """Where and how often a function may change along one input: ``structure=ChangePoints(...)``.

    Rows are ordered by one input. Between two rows that follow one another, in a gap, the function may change;
    the change lies anywhere in the gap with equal density, so that a point between the two rows belongs to either
    side with its probability. There are no changes before the first row and after the last. Other inputs enter the
    kernel only.

    Parameters
    ----------
    dimension : int or str, default=0
        The input that orders the rows, by number or name.
    n_changes : {1, None}, default=None
        1: just one change, at an unknown place. None: any number, learned.
    gaps : {"equal", "length"}, default="equal"
        Whether all gaps are as likely to hold a change, or longer ones more so: by their length (one change),
        or as a Poisson process would change in them (any number).
    hazard : float, optional
        For any number of changes: the prior probability of a change in a gap, or with ``gaps="length"`` the expected number
        of changes per unit of the input. Learned from there, or kept with ``optimizer=None``.
    shortest : int, default=1
        Fewest rows in a segment. With more than one, rows that are off for a short while are no segment.
    outliers : bool, default=False
        Whether some rows may carry a much larger noise. A row off the rest otherwise looks like
        two changes. A run of such rows does so still, unless it is shorter than ``shortest``.

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
        whole = isinstance(self.dimension, numbers.Integral) and not isinstance(
            self.dimension, bool
        )
        if not isinstance(self.dimension, str) and not (whole and self.dimension >= 0):
            raise ValueError(
                f"expected dimension to be the number of an input from 0 on, or its name, got {self.dimension!r}"
            )
        single = type(self.n_changes) is not bool and isinstance(self.n_changes, numbers.Integral)
        if self.n_changes is not None and not (single and self.n_changes == 1):
            raise ValueError(
                f"expected n_changes to be 1 or None for any number, got {self.n_changes!r}"
            )
        check_count("shortest", self.shortest)
        check_choice("gaps", self.gaps, GAPS)
        if not isinstance(self.outliers, (bool, np.bool_)):
            raise ValueError(f"expected outliers to be True or False, got {self.outliers!r}")
        if self.hazard is not None:
            real = isinstance(self.hazard, numbers.Real) and not isinstance(self.hazard, bool)
            most = 1.0 if self.gaps == "equal" else math.inf
            if not real or not 0.0 < self.hazard < most:
                raise ValueError(
                    "expected hazard to be a probability strictly between 0 and 1, or with gaps='length' a "
                    f"positive rate, got {self.hazard!r}"
                )


@dataclass(frozen=True, eq=False, slots=True)
class BreakingLeaf(Leaf):
    """A leaf whose rows fall into segments: a sum node over every way to cut them.

    Examples
    --------
    One break somewhere, or none:

    >>> from dsmgp.tree import Leaf, Region, Sum
    >>> space = Region.whole(1)
    >>> tree = Sum([Leaf(space), BreakingLeaf(space, changes=ChangePoints(n_changes=1))])
    >>> has_breaks(tree)
    True
    """

    changes: ChangePoints = ChangePoints()  # it cannot change


def has_breaks(structure: str | ChangePoints | Node) -> bool:
    """Whether a structure has leaves that break."""
    if isinstance(structure, str):
        return structure == "changepoint"
    if isinstance(structure, ChangePoints):
        return True
    return any(isinstance(leaf, BreakingLeaf) for leaf in leaves(structure))


def with_changes(root: Node, change: Callable[[ChangePoints], ChangePoints]) -> Node:
    """The same tree with other settings of its leaves that break."""

    def changed(leaf: Leaf) -> Leaf:
        if not isinstance(leaf, BreakingLeaf):
            return leaf
        return replace(leaf, changes=change(leaf.changes))

    return with_leaves(root, changed)


def with_leaves(root: Node, change: Callable[[Leaf], Leaf]) -> Node:
    """The same tree with other leaves in the same regions."""
    made: dict[int, Node] = {}
    for node in reversed(list(nodes(root))):
        if isinstance(node, Leaf):
            made[id(node)] = change(node)
            continue
        children = tuple(made[id(child)] for child in node.children)
        if isinstance(node, Product):
            made[id(node)] = Product(children, node.dimension, node.splits)
        else:
            made[id(node)] = Sum(children, node.log_weights)
    return made[id(root)]
