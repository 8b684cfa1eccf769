"""How much leaves have in common: the matrix S that ties their hyperparameters in fine-tuning (the paper's eq. 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dsmgp.ragged import Ragged
from dsmgp.tree import Leaf

__all__ = ["LEAST", "SIMILARITIES", "checked_similarity", "jaccard", "overlap", "similarity_of"]

Array = NDArray[np.float64]

#: Similarities below this are dropped: each costs a leaf's evidence, and counts for next to nothing.
LEAST = 0.05
# Entries of the products that are held at a time.
AT_ONCE = 2**24


def overlap(leaf_rows: Ragged, n_rows: int, least: float = LEAST) -> sparse.csr_matrix:
    """``S_ij = |rows_i & rows_j| / |rows_i|``: the share of leaf i's rows that leaf j holds too. Not symmetric.

    Examples
    --------
    >>> overlap(Ragged.of([[0, 1, 2, 3], [3, 4]]), 5).toarray()
    array([[1.  , 0.25],
           [0.5 , 1.  ]])
    """
    return _common(leaf_rows, n_rows, least, lambda both, own, other: both / own)


def jaccard(leaf_rows: Ragged, n_rows: int, least: float = LEAST) -> sparse.csr_matrix:
    """``S_ij = |rows_i & rows_j| / |rows_i | rows_j|``: a far larger leaf is not like the leaves inside it."""
    return _common(leaf_rows, n_rows, least, lambda both, own, other: both / (own + other - both))


#: By name.
SIMILARITIES = {"overlap": overlap, "jaccard": jaccard}


def similarity_of(asked: Any, leaves: Sequence[Leaf], n_rows: int) -> sparse.csr_matrix:
    """The matrix that a user asks for: by name, as it is, or made by a function of the leaves."""
    leaf_rows = Ragged.of([() if leaf.rows is None else leaf.rows for leaf in leaves])
    if isinstance(asked, str):
        if asked not in SIMILARITIES:
            raise ValueError(
                f"expected similarity to be one of {', '.join(map(repr, SIMILARITIES))}, a matrix, or a "
                f"function of the leaves, got {asked!r}"
            )
        return SIMILARITIES[asked](leaf_rows, n_rows)
    return checked_similarity(asked(list(leaves)) if callable(asked) else asked, len(leaves))


def checked_similarity(given: Any, n_leaves: int) -> sparse.csr_matrix:
    """A matrix with a row and a column for each leaf, entries in [0, 1] and ones on its diagonal."""
    expected = (
        f"expected similarity to be a matrix of shape ({n_leaves}, {n_leaves}), a row and a column for each "
        "leaf in the order of dsmgp.tree.leaves(tree_)"
    )
    try:
        S = (
            given.tocsr().astype(np.float64)
            if sparse.issparse(given)
            else np.asarray(given, dtype=np.float64)
        )
    except (TypeError, ValueError):
        raise ValueError(f"{expected}, got {type(given).__name__}") from None
    if S.shape != (n_leaves, n_leaves):
        raise ValueError(f"{expected}, got shape {S.shape}")
    S = sparse.csr_matrix(S)
    S.sum_duplicates()
    inside = (S.data >= 0.0) & (S.data <= 1.0)  # not so for NaN
    if not inside.all():
        raise ValueError(
            f"expected similarities in [0, 1], got {S.data[~inside][0]:g}; divide by the largest"
        )
    off = np.flatnonzero(S.diagonal() != 1.0)
    if off.size:
        raise ValueError(
            f"expected every leaf's similarity with itself to be 1, got {S.diagonal()[off[0]]:g} for "
            f"leaf {off[0]}; set the diagonal to one"
        )
    S.eliminate_zeros()
    return S


def _common(
    leaf_rows: Ragged, n_rows: int, least: float, share: Callable[[Array, Array, Array], Array]
) -> sparse.csr_matrix:
    """From the numbers of rows that two leaves have in common, and that each has; small entries dropped.

    A row is in few leaves, so the products of the sparse table of who holds which row are sparse; they are made
    for some leaves at a time.
    """
    n_leaves, sizes = len(leaf_rows), leaf_rows.sizes
    ones = np.ones(len(leaf_rows.flat), dtype=np.float64)
    holds = sparse.csr_matrix((ones, leaf_rows.flat, leaf_rows.ends), shape=(n_leaves, n_rows))
    held = holds.T.tocsr()
    # At most as many leaves have a row in common with a leaf as its rows are in.
    work = np.cumsum(holds @ np.diff(held.indptr).astype(np.float64))
    parts, first = [], 0
    while first < n_leaves:
        before = work[first - 1] if first else 0.0
        last = max(first + 1, int(np.searchsorted(work, before + AT_ONCE)))
        both = (holds[first:last] @ held).tocoo()
        own, other = first + both.row.astype(np.int64), both.col.astype(np.int64)
        values = share(both.data, sizes[own].astype(np.float64), sizes[other].astype(np.float64))
        kept = (values >= least) & (own != other)
        parts.append((values[kept], own[kept], other[kept]))
        first = last
    each = np.arange(n_leaves)
    parts.append((np.ones(n_leaves), each, each))  # a leaf without rows is like itself too
    values, own, other = (np.concatenate(column) for column in zip(*parts, strict=True))
    return sparse.csr_matrix((values, (own, other)), shape=(n_leaves, n_leaves))
