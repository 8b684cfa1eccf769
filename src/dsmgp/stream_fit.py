"""Fitting to a dataset that stays on disk.

Units, theta and the tree come from a sample of rows; a leaf of the sample's tree stands for a region, and theta is learned on all rows
of some of them. One pass then sends every row to the leaves that it reaches, in files, and leaves are conditioned shard by shard. With
a sample that holds all rows it is the same fit as in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsmgp.conditioned import Conditioned
from dsmgp.learn import Objective
from dsmgp.loo import equal_rows
from dsmgp.process import Family
from dsmgp.routes import Router
from dsmgp.settings import Settings
from dsmgp.sharded import ShardedConditioned
from dsmgp.store import Spill, divided
from dsmgp.stream import RowStream
from dsmgp.train import Trainer
from dsmgp.tree import Leaf, Node, leaves

__all__ = ["StreamTrainer", "sample_rows"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Share of the memory for the sample, which is held a few times over while trees grow, and how many rows it has at least and at most.
SAMPLE_SHARE, SAMPLE_COPIES = 0.2, 5
LEAST_SAMPLE, MOST_SAMPLE = 100_000, 3_000_000
# Shards of which at least so many fit in memory beside one another.
SHARDS_HELD = 3


def sample_rows(n_rows: int, n_columns: int, memory: float) -> int:
    """How many rows trees are grown on."""
    fits = SAMPLE_SHARE * memory / (8 * n_columns * SAMPLE_COPIES)
    return int(min(n_rows, max(LEAST_SAMPLE, min(fits, MOST_SAMPLE))))


class StreamTrainer(Trainer):
    """A :class:`~dsmgp.train.Trainer` that holds a sample, and goes through the dataset for the rest.

    Parameters
    ----------
    stream : RowStream
    settings, rng, remember : as for a Trainer
    sample : tuple of ndarray
        Inputs and outputs of the rows that are held.
    folder : Path, optional
        Where rows go; a temporary folder if left out.
    """

    def __init__(
        self,
        stream: RowStream,
        settings: Settings,
        rng: np.random.Generator,
        sample: tuple[Array, Array],
        folder: Path | None,
        remember: Callable[[Objective], Objective],
    ) -> None:
        super().__init__(*sample, settings, rng, None, remember)
        self.stream, self.folder = stream, folder
        # Whole leaves that theta is learned on.
        self._held = sample if self._all_held else (self.X[:0], self.Y[:0])

    @property
    def _all_held(self) -> bool:
        return len(self.X) == self.stream.n_rows

    @property
    def table(self) -> tuple[Array, Array]:
        return self._held

    @property
    def n_rows(self) -> int:
        return self.stream.n_rows

    def _scaled(self, size: int) -> int:
        """Rows of the sample that stand for so many."""
        return max(1, round(size * len(self.X) / self.n_rows))

    def grow(self, sizes: Sequence[int], unit: Array) -> Node:
        return super().grow([self._scaled(size) for size in sizes], unit)

    def grow_leaves(self, size: int, most: int, unit: Array) -> list[Leaf]:
        found = super().grow_leaves(self._scaled(size), most, unit)
        if self._all_held:
            return found
        X, Y, rows = self.stream.inside(found)
        n_before = len(self._held[0])
        self._held = np.concatenate([self._held[0], X]), np.concatenate([self._held[1], Y])
        self.labels = equal_rows(self._held[0])
        filled = [Leaf(old.region, own + n_before) for old, own in zip(found, rows, strict=True)]
        return [leaf for leaf in filled if leaf.n_rows]

    def conditioned(
        self, tree: Node, families: Sequence[Family], family: Index, watched: Index
    ) -> Conditioned:
        settings, memory = self.settings, 0.5 * self.memory
        some = leaves(tree)
        expected = np.array([leaf.n_rows for leaf in some]) * (self.n_rows / len(self.X))
        hosts = settings.executor.hosts(memory, settings.device)
        room = hosts.memory_of_shard(memory) / SHARDS_HELD
        firsts = divided(expected, self.n_dims, self.n_outputs, room, hosts.n_shards)
        router = Router(tree)
        with Spill(self.folder, firsts, self.n_dims, self.n_outputs) as spill:
            for batch in self.stream.batches():
                leaf, row = router.route(batch.X).pairs
                spill.add(leaf, row, batch.X, batch.Y)
        store = spill.store
        self._refuse_large(int(store.sizes.max()))
        own = [each.laws(self.n_dims) for each in families]
        laws = [[own[f][output] for f in family.tolist()] for output in range(self.n_outputs)]
        units = (self.inputs, self.outputs)
        experts = store.experts(hosts, laws, units, 0.5 * memory, settings.dtype)
        return ShardedConditioned(experts, self.naturals(families, family), memory, watched)
