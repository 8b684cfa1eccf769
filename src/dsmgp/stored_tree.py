"""Trees in an archive, and back: nodes as flat arrays, and in the header what is asked of leaves that break."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.archive import Archive, ModelFileError
from dsmgp.breaks import BreakingLeaf, ChangePoints, with_leaves
from dsmgp.flat_tree import flatten_tree, grow_flat
from dsmgp.tree import Leaf, Node, leaves

__all__ = ["read_changes", "read_tree", "write_changes", "write_tree"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


def write_tree(prefix: str, root: Node, X: Array | None, arrays: Arrays) -> dict[str, Any]:
    """What the header has to say of a tree whose nodes go into arrays; without ``X`` its rows are left out."""
    flat = flatten_tree(root, X)
    wanted = flat if X is not None else ("numbers", "values")
    arrays |= {f"{prefix}.{name}": flat[name] for name in wanted}
    found = leaves(root)
    if not any(isinstance(leaf, BreakingLeaf) for leaf in found):
        return {"tree": prefix}
    changes = [
        write_changes(leaf.changes) if isinstance(leaf, BreakingLeaf) else None for leaf in found
    ]
    return {"tree": prefix, "changes": changes}


def read_tree(
    archive: Archive, prefix: str, X: Array | None, n_dims: int, changes: Any = None
) -> Node:
    """A tree with the rows of ``X`` in its leaves; ``changes`` is what was asked of each leaf, or of none."""
    flat = {
        "numbers": archive.array(f"{prefix}.numbers", np.int32, None, 3),
        "values": archive.array(f"{prefix}.values", np.float64, None),
    }
    if f"{prefix}.rows" in archive:
        flat["rows"] = archive.array(f"{prefix}.rows", np.int64, None)
        flat["row_ends"] = archive.array(f"{prefix}.row_ends", np.int64, None)
    root = grow_flat(flat, X, n_dims)
    if changes is None:
        return root
    found = leaves(root)
    if not isinstance(changes, list) or len(changes) != len(found):
        raise ModelFileError("its leaves are not those whose changes it lists")
    asked = dict(zip(found, changes, strict=True))

    def breaking(leaf: Leaf) -> Leaf:
        own = asked[leaf]
        return leaf if own is None else BreakingLeaf(leaf.region, leaf.rows, read_changes(own))

    return with_leaves(root, breaking)


def write_changes(changes: ChangePoints) -> dict[str, Any]:
    """As plain numbers, whatever kind of number they were given as."""
    asked = asdict(changes)
    hazard, number = asked["hazard"], asked["n_changes"]
    dimension = asked["dimension"]
    return asked | {
        "dimension": dimension if isinstance(dimension, str) else int(dimension),
        "n_changes": None if number is None else int(number),
        "hazard": None if hazard is None else float(hazard),
        "shortest": int(asked["shortest"]),
        "outliers": bool(asked["outliers"]),
    }


def read_changes(written: Any) -> ChangePoints:
    """Which checks what it is made of."""
    if not isinstance(written, dict):
        raise ModelFileError("what it says of changes makes no sense")
    return ChangePoints(**written)
