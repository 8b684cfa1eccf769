"""The structure of a deep structured mixture: nodes, growing trees, routing rows to leaves. No parameters of the GPs."""

from dsmgp.tree.nodes import (
    Leaf,
    Node,
    Product,
    Sum,
    depth,
    fold,
    from_root,
    induced_tree,
    leaves,
    log_n_induced_trees,
    map_leaves,
    n_induced_trees,
    nodes,
)
from dsmgp.tree.region import Region, box

__all__ = [
    "Leaf",
    "Node",
    "Product",
    "Region",
    "Sum",
    "box",
    "depth",
    "fold",
    "from_root",
    "induced_tree",
    "leaves",
    "log_n_induced_trees",
    "map_leaves",
    "n_induced_trees",
    "nodes",
]
