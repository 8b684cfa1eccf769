"""How trees are stored: nodes as flat arrays, and the settings of leaves with change points in the header."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.persistence import checks
from dsmgp.persistence.record import ArrayField, Entry, Items, Named, Record, Section, refused
from dsmgp.tree.arrays import flatten_tree, grow_flat
from dsmgp.tree.changepoint_leaf import ChangePointLeaf, ChangePoints
from dsmgp.tree.nodes import Leaf, Node, leaves, map_leaves

__all__ = ["CHANGE_POINTS", "read_tree", "write_tree"]

# ChangePoints checks its settings itself; here they are of types that it can check.
SETTINGS = {
    "dimension": checks.Check(
        "a number or a name", lambda v: checks.count().holds(v) or checks.TEXT.holds(v)
    ),
    "n_changes": checks.count(1),
    "gaps": checks.TEXT,
    "hazard": checks.number(),
    "shortest": checks.count(),
    "outliers": checks.BOOLEAN,
}


CHANGE_POINTS = Record(
    "change points",
    lambda settings: ChangePoints(**settings),
    {"settings": Named({name: Entry(check, optional=True) for name, check in SETTINGS.items()})},
    values={"settings": asdict},
)
LEAF_CHANGES = Items(CHANGE_POINTS, "changes", nullable=True, size="leaves")
NODES = Record(
    "tree",
    dict,
    {
        "numbers": ArrayField((None, 3), dtype=np.int32),
        "values": ArrayField((None,)),
        "rows": ArrayField((None,), optional=True, dtype=np.int64),
        "row_ends": ArrayField((None,), optional=True, dtype=np.int64),
    },
    check=lambda arrays: (arrays["rows"] is None) == (arrays["row_ends"] is None),
)


def write_tree(prefix: str, root: Node, X: Array | None, section: Section) -> None:
    """Write a tree; without ``X`` the rows of its leaves are left out."""
    for name, array in flatten_tree(root, X).items():
        section.put_array(f"{prefix}.{name}", array)
    section.put("tree", prefix)
    settings = [getattr(leaf, "changes", None) for leaf in leaves(root)]
    if any(changes is not None for changes in settings):
        LEAF_CHANGES.write(settings, section)


def read_tree(prefix: str, X: Array | None, section: Section) -> Node:
    """Read a tree, with the rows of ``X`` in its leaves."""
    n_inputs = section.sizes["inputs"] if X is None else X.shape[1]
    arrays = NODES.read(Section({}, section.arrays, prefix=f"{section.prefix}{prefix}."))
    with refused("tree"):
        root = grow_flat({k: a for k, a in arrays.items() if a is not None}, X, n_inputs)
    if "changes" not in section.header:
        return root
    here = replace(section, sizes={"leaves": len(leaves(root))})
    settings = dict(zip(leaves(root), LEAF_CHANGES.read(here) or (), strict=True))

    def with_changes(leaf: Leaf) -> Leaf:
        changes = settings[leaf]
        return leaf if changes is None else ChangePointLeaf(leaf.region, leaf.rows, changes)

    return map_leaves(root, with_changes)
