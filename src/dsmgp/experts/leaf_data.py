"""The training rows of leaf GPs, in the units of these: what goes with every call that sets leaves up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from dsmgp._util.arrays import Array, Index

__all__ = ["LeafData"]


@dataclass(frozen=True, eq=False)
class LeafData:
    """Training rows as leaf GPs see them, scaled; leaves refer to them by number.

    Attributes
    ----------
    X : ndarray of shape (n_rows, n_dims)
    Y : ndarray of shape (n_rows, n_outputs)
    known_noise : ndarray of shape (n_rows, n_outputs), optional
        Noise variances known row by row, in addition to the noise that is learned.
    labels : ndarray of shape (n_rows,), optional
        From :func:`~dsmgp.experts.points.equal_rows`: rows with equal inputs are then computed as one. Without them all inputs count as
        distinct, which gives the same results at a higher cost.
    row_weights : ndarray of shape (n_rows,), optional
        Weights of the rows: one of weight w counts as w copies of itself.
    """

    X: Array
    Y: Array
    known_noise: Array | None = None
    labels: Index | None = None
    row_weights: Array | None = None

    def map(self, function: Callable[[Any], Any]) -> LeafData:
        """Return the same rows with a function of each array that is there."""
        arrays: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{k: function(a) for k, a in arrays.items() if a is not None})

    def of_output(self, output: int) -> LeafData:
        """Return the rows with a single output."""
        column = slice(output, output + 1)
        known_noise = None if self.known_noise is None else self.known_noise[:, column]
        return replace(self, Y=self.Y[:, column], known_noise=known_noise)
