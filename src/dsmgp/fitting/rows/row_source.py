"""Where the rows of a fit are: :class:`RowSource`, and the source that holds all of them in memory.

:mod:`dsmgp.fitting.datasets.fit` has the source that reads them from files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.leaf_setup import LeafFamilies, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.process import kernels_by_leaf
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree.nodes import Leaf, leaves

__all__ = ["InMemoryRows", "RowSource"]


class RowSource(Protocol):
    """Where the rows of a fit are: in memory, or on disk."""

    @property
    def data(self) -> ScaledRows:
        """The rows that scaling, kernels and tree are computed from: all rows, or a sample."""

    @property
    def n_rows(self) -> int:
        """Number of all rows."""

    @property
    def holds_all(self) -> bool:
        """Whether :attr:`data` are all rows."""

    def with_data(self, data: ScaledRows) -> RowSource:
        """Return the same source with other scaling, of the same rows."""

    def rows_of(
        self, leaves: Sequence[Leaf], outputs: OutputScaling
    ) -> tuple[ScaledRows, list[Leaf]]:
        """Return all rows in the regions of leaves that were grown on ``data``, and the leaves with their rows among these."""

    def set_up(self, tree: LeafFamilies, outputs: OutputScaling) -> LeafGPs:
        """Set up the GPs of all leaves of a tree on all rows."""

    def log_jacobian(self, outputs: OutputScaling) -> float:
        """Return the sum of the log slopes of the output warps over all rows."""


@dataclass(frozen=True, eq=False)
class InMemoryRows:
    """A :class:`RowSource` that holds all rows."""

    data: ScaledRows
    config: FitConfig

    @property
    def n_rows(self) -> int:
        return len(self.data.X)

    @property
    def holds_all(self) -> bool:
        return True

    def with_data(self, data: ScaledRows) -> InMemoryRows:
        return replace(self, data=data)

    def rows_of(
        self, leaves: Sequence[Leaf], outputs: OutputScaling
    ) -> tuple[ScaledRows, list[Leaf]]:
        return self.data.with_outputs(outputs), list(leaves)

    def set_up(self, tree: LeafFamilies, outputs: OutputScaling) -> LeafGPs:
        kernels = kernels_by_leaf(tree.families, tree.family)
        data = self.data.with_outputs(outputs)
        return set_up_leaves(leaves(tree.tree), kernels, data, self.config)

    def log_jacobian(self, outputs: OutputScaling) -> float:
        return outputs.log_jacobian(self.data.Y, self.data.row_weights)
