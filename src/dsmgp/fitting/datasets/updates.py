"""Rows of further files are added to a model that was fitted to a dataset, and rows that fulfil a condition are forgotten.

Tree, scaling and hyperparameters stay; leaves are conditioned again on all rows, and scales and gate are fitted again. A change writes new files and
leaves those that are there, so that the model before it stays whole; files that others replace are removed when the model is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.data.parquet.conditions import RowCondition, reason
from dsmgp.data.parquet.dataset import RowStream
from dsmgp.data.row_sample import draw_numbers
from dsmgp.data.table_error import TableError
from dsmgp.distributed.row_files import new_files
from dsmgp.distributed.row_store import RowStore
from dsmgp.distributed.row_writer import RoutedBatch, RowWriter, WrittenPiece
from dsmgp.distributed.workers import WorkerPool
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.datasets.fit import RouteAndWrite, log_jacobian
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.rows.leaf_setup import check_leaf_memory
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.weighting import LOOSample, weigh
from dsmgp.tree.routing import place

__all__ = ["add_files", "forget_rows"]

# Fewest rows that a model keeps, and its sample.
LEAST_ROWS = 2


def add_files(
    state: FittedState,
    data: str | Path | Sequence[str | Path],
    missing: str,
    config: FitConfig,
) -> FittedState:
    """Add the rows of Parquet files with the columns of the training files; ``missing`` as in :class:`RowStream`."""
    store, pool = _store(state), _pool(state)
    model = state.mixture
    stream = RowStream(data, state.schema.columns, missing=missing, tasks=pool)
    stream.check_files()
    writer = RowWriter(store.folder, store.firsts, store.n_inputs, store.n_outputs)
    router = model.router.without_tree()
    work = RouteAndWrite(stream.reader, router, model.inputs, model.outputs, writer)
    with new_files(store.folder, len(stream.pieces)) as first_file:
        pieces = [
            replace(piece, number=first_file + piece.number, first=store.n_rows + piece.first)
            for piece in stream.pieces
        ]
        added = writer.store(pool.map(work, pieces))
        jacobian = 0.0
        if model.outputs.warps:
            jacobian = sum(pool.map(partial(log_jacobian, stream.reader, model.outputs), pieces))
        edges = model.edges
        if edges is not None and added.input_range is not None:
            low, high = added.input_range
            edges = edges.with_range(np.minimum(edges.low, low), np.maximum(edges.high, high))
        changed = replace(model, log_jacobian=model.log_jacobian + jacobian, edges=edges)
        return _conditioned(replace(state, model=changed), store.joined(added), config)


def forget_rows(state: FittedState, where: Any, config: FitConfig) -> FittedState:
    """Remove the rows for which a pyarrow expression on inputs and targets is true, from the files and from the sample."""
    store, pool, model = _store(state), _pool(state), state.mixture
    condition = RowCondition.of(where, state.schema.columns)
    search = _Search(store, condition)
    units = store.files.units
    try:
        found = list(pool.map(partial(_counted, search, model.outputs), units))
    except pa.ArrowException as error:
        raise TableError(f"the condition cannot be evaluated: {reason(error)}") from error
    n_forgotten = sum(each.n_forgotten for each in found)
    if not n_forgotten:
        return state
    n_rows = store.n_rows - n_forgotten
    if n_rows < LEAST_ROWS:
        raise InputError(
            f"cannot forget {n_forgotten} of {store.n_rows} rows: at least two must stay"
        )
    with new_files(store.folder, len(units)) as first_file:
        kept = _rewritten(search, pool, found, first_file)
        rows = _sample_without(state.rows, condition, kept, pool)
        edges = model.edges
        if edges is not None and kept.input_range is not None:
            edges = edges.with_range(*kept.input_range)
        changed = replace(
            model,
            tree=place(model.tree, model.inputs.to_coordinates(rows.X), replace_rows=True),
            log_jacobian=model.log_jacobian - sum(each.log_jacobian for each in found),
            edges=edges,
        )
        return _conditioned(replace(state, rows=rows, model=changed), kept, config)


def _conditioned(state: FittedState, store: RowStore, config: FitConfig) -> FittedState:
    """Condition the leaves on the rows of a store, and fit scales and gate again."""
    model, pool = state.mixture, _pool(state)
    posterior: Any = model.leaf_posterior.settled()
    check_leaf_memory(int(store.sizes.max()), config)
    before = posterior.leaf_gps
    leaf_gps = store.leaf_gps(pool, before.kernels, before.units, before.memory, before.dtype)
    n_gate_rows = EFFORTS[config.effort].n_gate_rows if model.weights == "gated" else 0
    sample = LOOSample.draw(store.n_rows, n_gate_rows, config.generator())
    posterior = leaf_gps.condition(posterior.kernel_parameters, posterior.memory, True, sample.rows)
    weighed, scores = weigh(replace(model, leaf_posterior=posterior), state.local_scale, sample)
    step = f"conditioned again on {store.n_rows} rows; scales and gate fitted again"
    return replace(state, model=weighed, scores=scores, maintenance=(step,))


@dataclass(frozen=True)
class _Search:
    """Finds the rows of some files that fulfil a condition; a row may be in several runs."""

    store: RowStore
    condition: RowCondition

    def __call__(self, files: Sequence[int]) -> tuple[Index, Index, Array]:
        """Return the numbers of all rows, and those of the rows that were found, each once and in order, with their outputs."""
        every, ids, Y = [], [], [np.empty((0, self.store.n_outputs))]
        for number in files:
            for _, row, X, outputs in self.store.read_file(number):
                distinct, first = np.unique(row, return_index=True)
                fulfils = self.condition.holds(X[first], outputs[first])
                every.append(distinct)
                ids.append(distinct[fulfils])
                Y.append(outputs[first[fulfils]])
        none = np.empty(0, dtype=np.int64)
        found, first = np.unique(np.concatenate([none, *ids]), return_index=True)
        return np.unique(np.concatenate([none, *every])), found, np.concatenate(Y)[first]


@dataclass(frozen=True)
class _Found:
    """What a worker reports of some files: counts, no rows."""

    n_rows: int
    n_forgotten: int
    log_jacobian: float


def _counted(search: _Search, outputs: OutputScaling, files: Sequence[int]) -> _Found:
    every, found, Y = search(files)
    jacobian = outputs.log_jacobian(Y) if outputs.warps and len(Y) else 0.0
    return _Found(len(every), len(found), jacobian)


def _without(
    search: _Search, writer: RowWriter, target: tuple[Sequence[int], int, int]
) -> WrittenPiece:
    """Write some files as one, without the rows that are found; the others are numbered from a number on."""
    files, new_number, first = target
    every, forgotten, _ = search(files)
    kept = np.setdiff1d(every, forgotten, assume_unique=True)

    def batches() -> Iterator[RoutedBatch]:
        for number in files:
            for leaf, row, X, Y in search.store.read_file(number):
                stays = np.isin(row, kept)
                ids = first + np.searchsorted(kept, row[stays])
                yield leaf[stays], np.arange(len(ids)), ids, X[stays], Y[stays]

    return writer.write(new_number, batches())


def _rewritten(
    search: _Search, pool: WorkerPool, found: Sequence[_Found], first_file: int
) -> RowStore:
    """Write all files again without the rows that are found."""
    store = search.store
    writer = RowWriter(store.folder, store.firsts, store.n_inputs, store.n_outputs)
    # Rows are numbered anew in the order of the units: each has numbers of its own, without gaps.
    *firsts, n_rows = [0, *accumulate(each.n_rows - each.n_forgotten for each in found)]
    units = enumerate(zip(store.files.units, firsts, strict=True))
    targets = [(unit, first_file + k, first) for k, (unit, first) in units]
    return replace(
        writer.store(pool.map(partial(_without, search, writer), targets)),
        n_rows=n_rows,  # a row is in several leaves
        temporary=store.temporary,
        replaced=(*store.replaced, *store.files.numbers),
    )


def _sample_without(
    rows: TrainingRows, condition: RowCondition, kept: RowStore, pool: WorkerPool
) -> TrainingRows:
    """Return the sample without the rows that fulfil a condition; if next to none are left, another one is drawn."""
    forgotten = condition.holds(rows.X, rows.Y)
    if len(rows) - len(forgotten) >= LEAST_ROWS:
        return rows.removed(forgotten)
    numbers = draw_numbers(kept.n_rows, min(len(rows), kept.n_rows), np.random.default_rng(0))
    parts = list(pool.map(partial(_rows_of_files, kept, numbers), kept.files.units))
    X, Y = (np.concatenate(tables) for tables in zip(*parts, strict=True))
    return TrainingRows.first(X, Y, first_id=rows.next_id)


def _rows_of_files(store: RowStore, numbers: Index, files: Sequence[int]) -> tuple[Array, Array]:
    """Return inputs and outputs of those of some rows that are in some files."""
    ids = [np.empty(0, dtype=np.int64)]
    parts = [np.empty((0, store.n_inputs + store.n_outputs))]
    for number in files:
        for _, row, X, Y in store.read_file(number):
            here = np.flatnonzero(np.isin(row, numbers))
            ids.append(row[here])
            parts.append(np.hstack([X[here], Y[here]]))
    _, first = np.unique(np.concatenate(ids), return_index=True)
    X, Y = np.split(np.concatenate(parts)[first], [store.n_inputs], axis=1)
    return X, Y


def _store(state: FittedState) -> RowStore:
    store: RowStore = state.mixture.leaf_posterior.leaf_gps.store
    return store


def _pool(state: FittedState) -> WorkerPool:
    leaf_gps: Any = state.mixture.leaf_posterior.leaf_gps
    pool: WorkerPool = leaf_gps.pool
    return pool
