"""Similarity of leaves: the matrix S that ties their hyperparameters in fine-tuning (the paper's eq. 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.ragged import Ragged
from dsmgp._util.validation import check_choice
from dsmgp.experts.leaf_gps import rows_of_leaves
from dsmgp.tree.nodes import Leaf

__all__ = [
    "MIN_SIMILARITY",
    "SIMILARITIES",
    "check_similarity",
    "jaccard",
    "overlap",
    "similarity_matrix",
]

#: Smaller similarities are dropped: each costs the evidence of a leaf, and counts for next to nothing.
MIN_SIMILARITY = 0.05
# Entries of the matrix product that are held at a time.
CHUNK = 2**24


def overlap(leaf_rows: Ragged, n_rows: int, least: float = MIN_SIMILARITY) -> sparse.csr_matrix:
    """Return ``S_ij = |rows_i & rows_j| / |rows_i|``, the share of leaf i's rows that leaf j holds too. Not symmetric.

    Examples
    --------
    >>> overlap(Ragged.of([[0, 1, 2, 3], [3, 4]]), 5).toarray()
    array([[1.  , 0.25],
           [0.5 , 1.  ]])
    """
    return _from_counts(leaf_rows, n_rows, least, lambda both, size_i, size_j: both / size_i)


def jaccard(leaf_rows: Ragged, n_rows: int, least: float = MIN_SIMILARITY) -> sparse.csr_matrix:
    """Return ``S_ij = |rows_i & rows_j| / |rows_i | rows_j|``: a far larger leaf is not similar to the leaves inside it."""
    return _from_counts(
        leaf_rows, n_rows, least, lambda both, size_i, size_j: both / (size_i + size_j - both)
    )


#: By name.
SIMILARITIES = {"overlap": overlap, "jaccard": jaccard}


def similarity_matrix(similarity: Any, leaves: Sequence[Leaf], n_rows: int) -> sparse.csr_matrix:
    """Return the matrix of a similarity given by name, as a matrix, or as a function of the leaves."""
    if isinstance(similarity, str):
        check_choice(
            "similarity", similarity, SIMILARITIES, "or a matrix, or a function of the leaves"
        )
        return SIMILARITIES[similarity](rows_of_leaves(leaves), n_rows)
    matrix = similarity(list(leaves)) if callable(similarity) else similarity
    return check_similarity(matrix, len(leaves))


def check_similarity(matrix: Any, n_leaves: int) -> sparse.csr_matrix:
    """Check that a matrix has a row and a column for each leaf, entries in [0, 1] and ones on its diagonal."""
    expected = (
        f"expected similarity to be a matrix of shape ({n_leaves}, {n_leaves}), a row and a column for each "
        "leaf in the order of dsmgp.tree.nodes.leaves(tree_)"
    )
    try:
        S = (
            matrix.tocsr().astype(np.float64)
            if sparse.issparse(matrix)
            else np.asarray(matrix, dtype=np.float64)
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{expected}, got {type(matrix).__name__}") from error
    if S.shape != (n_leaves, n_leaves):
        raise InputError(f"{expected}, got shape {S.shape}")
    S = sparse.csr_matrix(S)
    S.sum_duplicates()
    inside = (S.data >= 0.0) & (S.data <= 1.0)  # false for NaN
    if not inside.all():
        raise InputError(
            f"expected similarities in [0, 1], got {S.data[~inside][0]:g}; divide by the largest"
        )
    wrong = np.flatnonzero(S.diagonal() != 1.0)
    if wrong.size:
        raise InputError(
            f"expected every leaf's similarity with itself to be 1, got {S.diagonal()[wrong[0]]:g} for "
            f"leaf {wrong[0]}; set the diagonal to one"
        )
    S.eliminate_zeros()
    return S


def _from_counts(
    leaf_rows: Ragged,
    n_rows: int,
    least: float,
    similarity: Callable[[Array, Array, Array], Array],
) -> sparse.csr_matrix:
    """Compute similarities from the number of rows that two leaves share and the sizes of both; drop small ones.

    A row is in few leaves, so the product of the incidence matrix of leaves and rows with its transpose is sparse; it is computed for
    some leaves at a time.
    """
    n_leaves, sizes = len(leaf_rows), leaf_rows.sizes.astype(np.float64)
    ones = np.ones(len(leaf_rows.flat), dtype=np.float64)
    incidence = sparse.csr_matrix((ones, leaf_rows.flat, leaf_rows.ends), shape=(n_leaves, n_rows))
    transposed = incidence.T.tocsr()
    # At most as many leaves share a row with a leaf as its rows are in.
    work = np.cumsum(incidence @ np.diff(transposed.indptr).astype(np.float64))
    parts, first = [], 0
    while first < n_leaves:
        before = work[first - 1] if first else 0.0
        last = max(first + 1, int(np.searchsorted(work, before + CHUNK)))
        shared = (incidence[first:last] @ transposed).tocoo()
        i, j = first + shared.row.astype(np.int64), shared.col.astype(np.int64)
        values = similarity(shared.data, sizes[i], sizes[j])
        kept = (values >= least) & (i != j)
        parts.append((values[kept], i[kept], j[kept]))
        first = last
    each = np.arange(n_leaves)
    parts.append((np.ones(n_leaves), each, each))  # leaves without rows too
    values, i, j = (np.concatenate(column) for column in zip(*parts, strict=True))
    return sparse.csr_matrix((values, (i, j)), shape=(n_leaves, n_leaves))
