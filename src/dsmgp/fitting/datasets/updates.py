"""Rows of further files are added to a model that was fitted to a dataset, and rows that fulfil a condition are forgotten.

Tree, scaling and hyperparameters stay; leaves are conditioned again on all rows, and scales and gate are fitted again. A change writes new files and
leaves those that are there, so that the model before it stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.data.parquet.conditions import RowCondition, reason
from dsmgp.data.parquet.dataset import RowStream
from dsmgp.data.table_error import TableError
from dsmgp.distributed.row_store import RowStore
from dsmgp.distributed.row_writer import RowWriter, WrittenPiece
from dsmgp.distributed.workers import WorkerPool
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.datasets.fit import RouteAndWrite, log_jacobian
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.rows.leaf_setup import check_leaf_memory
from dsmgp.fitting.state import FittedState
from dsmgp.mixture.weighting import LOOSample, weigh

__all__ = ["add_files", "forget_rows"]

# Fewest rows that a model keeps.
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
    first_file = store.next_file
    pieces = [
        replace(piece, number=first_file + piece.number, first=store.n_rows + piece.first)
        for piece in stream.pieces
    ]
    writer = RowWriter(store.folder, store.firsts, store.n_inputs, store.n_outputs)
    router = model.router.without_tree()
    work = RouteAndWrite(stream.reader, router, model.inputs, model.outputs, writer)
    with writer.removing([piece.number for piece in pieces]):
        added = writer.store(pool.map(work, pieces))
        jacobian = 0.0
        if model.outputs.warps:
            jacobian = sum(pool.map(partial(log_jacobian, stream.reader, model.outputs), pieces))
        return _conditioned(state, store.joined(added), jacobian, config)


def forget_rows(state: FittedState, where: Any, config: FitConfig) -> FittedState:
    """Remove the rows for which a pyarrow expression on inputs and targets is true."""
    store, pool, outputs = _store(state), _pool(state), state.model.outputs
    condition = RowCondition.of(where, state.schema.columns)
    numbers = np.unique(store.files).tolist()
    try:
        found = list(pool.map(partial(_fulfilling, store, condition), numbers))
    except pa.ArrowException as error:
        raise TableError(f"the condition cannot be evaluated: {reason(error)}") from error
    forgotten, first = np.unique(np.concatenate([ids for ids, _ in found]), return_index=True)
    if not len(forgotten):
        return state
    if store.n_rows - len(forgotten) < LEAST_ROWS:
        raise InputError(
            f"cannot forget {len(forgotten)} of {store.n_rows} rows: at least two must stay"
        )
    writer = RowWriter(store.folder, store.firsts, store.n_inputs, store.n_outputs)
    first_file = store.next_file
    with writer.removing([first_file + place for place in range(len(numbers))]):
        work = partial(_without, store, writer, forgotten)
        targets = [(number, first_file + place) for place, number in enumerate(numbers)]
        kept = replace(
            writer.store(pool.map(work, targets)),
            n_rows=store.n_rows - len(forgotten),  # a row is in several leaves
            temporary=store.temporary,
        )
        Y = np.concatenate([of_rows for _, of_rows in found])[first]
        gone = -outputs.log_jacobian(Y) if outputs.warps else 0.0
        return _conditioned(state, kept, gone, config)


def _conditioned(
    state: FittedState,
    store: RowStore,
    jacobian: float,
    config: FitConfig,
) -> FittedState:
    """Condition the leaves on the rows of a store, and fit scales and gate again."""
    model, pool = state.mixture, _pool(state)
    posterior: Any = model.leaf_posterior.settled()
    check_leaf_memory(int(store.sizes.max()), config)
    before = posterior.leaf_gps
    leaf_gps = store.leaf_gps(pool, before.kernels, before.units, before.memory, before.dtype)
    n_gate_rows = EFFORTS[config.effort].n_gate_rows if model.weights == "gated" else 0
    sample = LOOSample.draw(store.n_rows, n_gate_rows, config.generator())
    posterior = leaf_gps.condition(posterior.kernel_parameters, posterior.memory, True, sample.rows)
    changed = replace(model, leaf_posterior=posterior, log_jacobian=model.log_jacobian + jacobian)
    weighed, scores = weigh(changed, state.local_scale, sample)
    step = f"conditioned again on {store.n_rows} rows; scales and gate fitted again"
    return replace(state, model=weighed, scores=scores, maintenance=(step,))


def _fulfilling(store: RowStore, condition: RowCondition, number: int) -> tuple[Index, Array]:
    """Return the numbers of the rows of a file that fulfil a condition, and their outputs."""
    ids, Y = [np.empty(0, dtype=np.int64)], [np.empty((0, store.n_outputs))]
    for _, row, X, outputs in store.read_file(number):
        distinct, first = np.unique(row, return_index=True)  # a row is in several leaves
        place = condition.holds(X[first], outputs[first])
        ids.append(distinct[place])
        Y.append(outputs[first[place]])
    return np.concatenate(ids), np.concatenate(Y)


def _without(
    store: RowStore, writer: RowWriter, forgotten: Index, files: tuple[int, int]
) -> WrittenPiece:
    """Write a file again, under a new number, without some rows; the others are numbered anew."""
    number, new_number = files

    def kept() -> Any:
        for leaf, row, X, Y in store.read_file(number):
            stays = ~np.isin(row, forgotten)
            ids = row[stays] - np.searchsorted(forgotten, row[stays])
            yield leaf[stays], np.arange(len(ids)), ids, X[stays], Y[stays]

    return writer.write(new_number, kept())


def _store(state: FittedState) -> RowStore:
    store: RowStore = state.mixture.leaf_posterior.leaf_gps.store
    return store


def _pool(state: FittedState) -> WorkerPool:
    leaf_gps: Any = state.mixture.leaf_posterior.leaf_gps
    pool: WorkerPool = leaf_gps.pool
    return pool
