"""The rows and leaves of a trial of coordinates: some leaves to learn on, others that judge, the same for all candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree.growing import grow_leaves
from dsmgp.tree.nodes import Leaf

__all__ = ["TrialRows"]

# Rows of the large leaves that judge, and how many of these.
LARGE_LEAF, N_LARGE = 1000, 6
# With no more leaves to learn on than this, both halves of them learn in turn.
FEW_LEAVES = 24


@dataclass(frozen=True, eq=False)
class TrialRows:
    """Some leaves of the training set, and their rows.

    Attributes
    ----------
    all_rows : ScaledRows
        The training set, from which warps are made and networks are learned.
    used : ndarray of shape (n_used,)
        Numbers of the rows that are in any of the leaves.
    rows : ScaledRows
        These rows. Those of leaves are positions among them.
    small, large : tuple of Leaf
        Leaves of about the sizes of the model's.
    folds : tuple of tuple of Leaf
        One or two parts of the small leaves, to learn on. Rows that are not in a part judge what was learned on it.
    spread : ndarray of shape (n_outputs,)
        Standard deviations of the outputs; one for a constant output.
    """

    all_rows: ScaledRows
    used: Index
    rows: ScaledRows
    small: tuple[Leaf, ...]
    large: tuple[Leaf, ...]
    folds: tuple[tuple[Leaf, ...], ...]
    spread: Array

    @classmethod
    def drawn(cls, data: ScaledRows, config: FitConfig, rng: np.random.Generator) -> TrialRows:
        """Grow some leaves over the training set."""
        sizes, effort = config.leaf_sizes, EFFORTS[config.effort]

        def grown(size: int, most: int) -> list[Leaf]:
            return grow_leaves(
                data.columns,
                leaf_size=min(size, config.max_leaf_rows),
                most=most,
                rng=rng,
                unit=data.inputs.scale,
            )

        leaves = grown(
            int(np.median(sizes)) if sizes else effort.leaf_size, 2 * effort.n_trial_leaves
        )
        large = grown(min(LARGE_LEAF, max(sizes)) if sizes else LARGE_LEAF, N_LARGE)
        leaves = [leaves[k] for k in rng.permutation(len(leaves))]
        used = np.unique(np.concatenate([leaf.rows for leaf in (*leaves, *large)]))
        small = tuple(_renumbered(leaf, used) for leaf in leaves)
        half = (len(small) + 1) // 2
        both = 1 < len(small) <= FEW_LEAVES
        return cls(
            data,
            used,
            data.taken(used),
            small,
            tuple(_renumbered(leaf, used) for leaf in large),
            (small[:half], small[half:]) if both else (small[:half],),
            np.diag(OutputScaling.of(data.Y, True, row_weights=data.row_weights).loading),
        )

    def learned_on(self, fold: int) -> Index:
        """Return the rows of the leaves to learn on, in order."""
        return _rows(self.folds[fold])

    @property
    def in_large(self) -> Index:
        """The rows of the large leaves, in order."""
        return _rows(self.large)

    def judges(self, fold: int, large: bool) -> tuple[Leaf, ...]:
        """Return the small or large leaves with rows that nothing was learned on; all if there are none."""
        seen, leaves = self.learned_on(fold), self.large if large else self.small
        judges = (leaf for leaf in leaves if not np.isin(_rows([leaf]), seen).all())
        return tuple(judges) or leaves


def _renumbered(leaf: Leaf, used: Index) -> Leaf:
    """Return a leaf whose rows are positions among those used."""
    assert leaf.rows is not None
    return replace(leaf, rows=np.searchsorted(used, leaf.rows))


def _rows(leaves: Sequence[Leaf]) -> Index:
    """Return the rows of disjoint leaves, in order."""
    return np.sort(np.concatenate([leaf.rows for leaf in leaves if leaf.rows is not None]))
