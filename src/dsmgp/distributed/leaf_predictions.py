"""Leaf predictions of more test rows than memory, in files.

Test rows are written as training rows are, sorted by shard (:class:`~dsmgp.distributed.row_writer.RowWriter`). Every shard is then loaded once, whatever the
number of rows, and writes what its leaves predict for its rows; predictions of a piece are read from the files of all shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.distributed.row_store import N_PREFIX, RowStore
from dsmgp.distributed.sharded import ShardedLeafPosterior
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.tree.routing import Routes

__all__ = ["LeafPredictions", "StoredLeafPosterior"]

# Pairs of a leaf and a row that a shard predicts at once, about.
PAIRS_AT_ONCE = 2**18


@dataclass(frozen=True)
class LeafPredictions:
    """Predictions of f by the leaves of all shards, in files beside those of the test rows.

    Attributes
    ----------
    rows : RowStore
        The test rows, scaled as the leaf GPs take them, by the shards of the model; without outputs.
    n_outputs : int
        Outputs of the model.
    """

    rows: RowStore
    n_outputs: int

    def compute(self, posterior: ShardedLeafPosterior) -> None:
        """Let each shard predict its rows, and write a file."""
        shards = np.flatnonzero(self._n_pairs.sum(axis=0)).tolist()
        posterior.apply({shard: _PredictShard(self, shard) for shard in shards})

    def write_shard(self, shard: int, posterior: InMemoryLeafPosterior) -> None:
        """Write the file of a shard, completely or not at all: mean and variance of each of its pairs of a leaf and a row."""
        path = self._file(shard)
        partial = path.with_name(f"{path.name}.{os.getpid()}")  # its worker may die
        try:
            with partial.open("wb") as file:
                for raw in self._rows_of(shard):
                    leaf = raw[:, 0].astype(np.int64)
                    routes = Routes.of(leaf, np.arange(len(leaf)))
                    X = np.ascontiguousarray(raw[:, N_PREFIX:])
                    moments = np.empty((len(raw), 2 * self.n_outputs))
                    moments[routes.rows.flat] = np.hstack(posterior.predict(routes, X))
                    file.write(moments.data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def of_run(self, run: int) -> tuple[Index, Index, Array, Array]:
        """Return leaf and row of all pairs of a run, in the order of :attr:`.Routes.pairs`, and mean and variance of each."""
        n_pairs, width = self._n_pairs, 2 * self.n_outputs
        firsts = n_pairs[:run].sum(axis=0)
        moments = [
            np.fromfile(self._file(shard), count=width * n, offset=8 * width * first)
            for shard, (n, first) in enumerate(zip(n_pairs[run], firsts.tolist(), strict=True))
            if n
        ]
        leaf, row, _, _ = self.rows.read_run(run)
        mean, variance = np.split(np.concatenate(moments).reshape(-1, width), 2, axis=1)
        return leaf, row, mean, variance

    @property
    def _n_pairs(self) -> Index:
        """Number of pairs of each run in each shard."""
        return np.diff(self.rows.ends, axis=1)

    def _rows_of(self, shard: int) -> Iterator[Array]:
        """Yield the rows of a shard, those of several runs together."""
        n_pairs = self._n_pairs[:, shard]
        group = np.cumsum(n_pairs) // PAIRS_AT_ONCE
        for number in np.unique(group[n_pairs > 0]):
            runs = np.flatnonzero((group == number) & (n_pairs > 0)).tolist()
            yield np.concatenate([self.rows.read_part(run, shard) for run in runs])

    def _file(self, shard: int) -> Path:
        return self.rows.folder / f"{shard:05d}.predictions"


@dataclass(frozen=True)
class _PredictShard:
    """Writes the predictions of a shard; called where it is."""

    predictions: LeafPredictions
    shard: int

    def __call__(self, posterior: InMemoryLeafPosterior) -> None:
        self.predictions.write_shard(self.shard, posterior)


class StoredLeafPosterior:
    """What a model needs of its leaf posterior to predict the rows of a piece, whose leaf predictions are in files.

    Parameters
    ----------
    posterior : ShardedLeafPosterior or StoredLeafPosterior
        That of the model.
    predictions : LeafPredictions, optional
    piece : int
        Number of the piece. Its rows have to be asked for in the order in which they were written.
    """

    in_memory = None

    def __init__(
        self,
        posterior: Any,
        predictions: LeafPredictions | None = None,
        piece: int = -1,
    ) -> None:
        self.noise, self.bound = posterior.noise, posterior.bound
        self.log_evidence, self.dtype = posterior.log_evidence, posterior.leaf_gps.dtype
        self.predictions = predictions
        self._runs: list[int] = []
        if predictions is not None:
            self._runs = np.flatnonzero(predictions.rows.files == piece).tolist()
        self._n_left = 0  # rows of the present run that have not been asked for

    @property
    def leaf_gps(self) -> StoredLeafPosterior:
        """This object, which knows the precision of the leaf GPs."""
        return self

    def predict(self, routes: Routes, X: Array, with_variance: bool = True) -> tuple[Array, Array]:
        if not self._n_left:
            assert self.predictions is not None
            self._run = self.predictions.of_run(self._runs.pop(0))
            self._n_left = 1 + int(self._run[1].max())  # every row reaches a leaf
        leaf, row, mean, variance = self._run
        first = 1 + int(row.max()) - self._n_left
        chosen = (row >= first) & (row < first + len(X))
        assert np.array_equal(leaf[chosen], routes.pairs[0]), "rows come in another order"
        self._n_left -= len(X)
        return mean[chosen], variance[chosen]
