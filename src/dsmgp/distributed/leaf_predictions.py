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
from dsmgp.distributed.row_files import RowFiles
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
        shards = np.flatnonzero(np.add.reduceat(self.rows.sizes, self.rows.firsts[:-1])).tolist()
        posterior.apply(
            {shard: _PredictShard(self.rows.files, shard, self.n_outputs) for shard in shards}
        )

    def of_piece(self, number: int) -> Iterator[tuple[Index, Index, Array, Array]]:
        """Yield, for each run of a piece, leaf and row of all pairs, in the order of :attr:`.Routes.pairs`, and mean and variance of each."""
        files, width = self.rows.files, 2 * self.n_outputs
        n_pairs = files.run_sizes(number)
        shards = np.flatnonzero(n_pairs.any(axis=0))
        firsts = np.array([_first_pair(files, shard, number) for shard in shards.tolist()])
        for run in range(len(n_pairs)):
            counts = n_pairs[run, shards]
            moments = [
                np.fromfile(_file(files, shard), count=width * n, offset=8 * width * first)
                for shard, n, first in zip(
                    shards.tolist(), counts.tolist(), firsts.tolist(), strict=True
                )
            ]
            leaf, row, _, _ = self.rows.read_run(number, run)
            mean, variance = np.split(np.concatenate(moments).reshape(-1, width), 2, axis=1)
            yield leaf, row, mean, variance
            firsts = firsts + counts


@dataclass(frozen=True)
class _PredictShard:
    """Writes the predictions of a shard, called where it is: mean and variance of each of its pairs of a leaf and a row, then the first pair of each file."""

    files: RowFiles
    shard: int
    n_outputs: int

    def __call__(self, posterior: InMemoryLeafPosterior) -> None:
        path = _file(self.files, self.shard)
        partial = path.with_name(f"{path.name}.{os.getpid()}")  # its worker may die
        firsts: list[int] = []
        try:
            with partial.open("wb") as file:
                for raw in self._rows(firsts):
                    leaf = raw[:, 0].astype(np.int64)
                    routes = Routes.of(leaf, np.arange(len(leaf)))
                    X = np.ascontiguousarray(raw[:, N_PREFIX:])
                    moments = np.empty((len(raw), 2 * self.n_outputs))
                    moments[routes.rows.flat] = np.hstack(posterior.predict(routes, X))
                    file.write(moments.data)
                file.write(np.array(firsts, dtype=np.int64).data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def _rows(self, firsts: list[int]) -> Iterator[Array]:
        """Yield the rows of the shard, those of several runs together; add the first pair of each file to a list."""
        held: list[Array] = []
        n_held = n_pairs = 0
        for part in self.files.of_shard(self.shard):
            firsts.append(n_pairs)
            n_pairs, n_held = n_pairs + len(part), n_held + len(part)
            held.append(part)
            if n_held >= PAIRS_AT_ONCE:
                yield np.concatenate(held)
                held, n_held = [], 0
        if n_held:
            yield np.concatenate(held)


def _file(files: RowFiles, shard: int) -> Path:
    return files.folder / f"{shard:05d}.predictions"


def _first_pair(files: RowFiles, shard: int, number: int) -> int:
    """Return the number of a shard's first pair of a file among its predictions."""
    numbers = files.numbers
    with _file(files, shard).open("rb") as file:
        file.seek(8 * (numbers.index(number) - len(numbers)), os.SEEK_END)
        return int(np.fromfile(file, dtype=np.int64, count=1)[0])


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
        self._runs: Iterator[tuple[Index, Index, Array, Array]] = iter(())
        if predictions is not None:
            self._runs = predictions.of_piece(piece)
        self._n_left = 0  # rows of the present run that have not been asked for

    @property
    def leaf_gps(self) -> StoredLeafPosterior:
        """This object, which knows the precision of the leaf GPs."""
        return self

    def predict(self, routes: Routes, X: Array, with_variance: bool = True) -> tuple[Array, Array]:
        if not self._n_left:
            self._run = next(self._runs)
            self._n_left = 1 + int(self._run[1].max())  # every row reaches a leaf
        leaf, row, mean, variance = self._run
        first = 1 + int(row.max()) - self._n_left
        chosen = (row >= first) & (row < first + len(X))
        assert np.array_equal(leaf[chosen], routes.pairs[0]), "rows come in another order"
        self._n_left -= len(X)
        return mean[chosen], variance[chosen]
