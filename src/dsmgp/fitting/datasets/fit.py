"""A fit to Parquet files, from their columns to a fitted state (:meth:`DSMGPRegressor.fit_dataset`).

Rows stay on disk. Scaling, hyperparameters and the tree come from a sample; a leaf of the sample's tree stands for a region, and
hyperparameters are learned on all rows of some regions. One pass then routes every row to its leaves, in files, and leaves are conditioned
shard by shard. If the sample holds all rows, the fit is the same as in memory.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.archive import ModelFileError
from dsmgp.data.input_schema import InputSchema
from dsmgp.data.parquet.dataset import RowStream
from dsmgp.data.parquet.row_reader import Piece, RowReader
from dsmgp.distributed.row_store import N_PREFIX, check_empty, first_leaves_of_shards
from dsmgp.distributed.row_writer import RoutedBatch, RowWriter, WrittenPiece
from dsmgp.experts.interface import LeafGPs
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.checkpoint import checkpointed
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.fit import fit
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.rows.leaf_setup import LeafFamilies, check_leaf_memory
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.gp.process import kernels_by_leaf
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.linalg.threads import n_threads
from dsmgp.mixture.fitted_model import FIT_DATASET
from dsmgp.tree.nodes import Leaf, leaves
from dsmgp.tree.routing import Router

__all__ = ["ParquetRows", "RouteAndWrite", "fit_files", "log_jacobian"]

logger = logging.getLogger("dsmgp")

# Share of the memory for the sample, which is held a few times over while trees grow, and how many rows it has at least and at most.
SAMPLE_SHARE, SAMPLE_COPIES = 0.2, 5
LEAST_SAMPLE, MOST_SAMPLE = 100_000, 3_000_000
# Copies of the rows of a batch while it is routed and written, and how many rows it has at least.
BATCH_COPIES, LEAST_BATCH = 4, 2**13
# Bytes of a shard's part of a batch, which is read at once: batches are larger where there are many shards. So many shards
# are no trouble however small their parts are.
PART_BYTES, FEW_SHARDS = 4096, 400
# At least this many shards fit in memory side by side.
SHARDS_HELD = 3


def fit_files(
    data: str | Path | Sequence[str | Path],
    targets: Sequence[str],
    columns: dict[str, Any],
    config: FitConfig,
    folder: Path | None,
) -> FittedState:
    """Fit to the rows of Parquet files.

    Parameters
    ----------
    data, targets
        As in :meth:`DSMGPRegressor.fit_dataset`.
    columns : dict
        Its arguments ``features``, ``drop``, ``categories`` and ``missing``.
    config : FitConfig
    folder : Path or None
        Where the rows of the leaves are written; None for a temporary folder.

    Returns
    -------
    FittedState
        Its rows are the sample on which the tree was grown.
    """
    FIT_DATASET.refuse_given(
        {
            "hypotheses='average'": config.hypotheses == "average",
            "objective='full'": config.objective == "full",
            "a structure other than 'balanced' or 'paper'": config.structure
            not in ("balanced", "paper"),
        }
    )
    if folder is not None:
        check_empty(folder)
    pool = config.executor.worker_pool(0.5 * config.memory, config.device)
    stream = RowStream.learn(data, targets, **columns, tasks=pool)
    if folder is not None and any(file.is_inside(folder) for file in stream.files):
        raise ModelFileError(f"{folder} holds the data; give another folder for the model")
    names = stream.schema.input_names
    n_sample = _sample_rows(stream.n_rows, len(names) + len(targets), config.memory)
    identity = _identity(stream, n_sample)
    rng = config.generator()
    with checkpointed(identity, config, rng) as record:
        sample = stream.sample(n_sample, rng)
        remarks = (*stream.schema.encoding_remarks(), *stream.remarks)
        for remark in remarks:
            logger.info("%s", remark)
        schema = InputSchema(
            stream.schema,
            feature_names=tuple(column.name for column in stream.schema.columns),
            target_names=tuple(targets),
            n_outputs=len(targets),
            single_output=len(targets) == 1,
            remarks=remarks,
        )
        sampled = ScaledRows.of(
            *sample,
            config,
            input_ties=stream.schema.input_ties,
            indicator_inputs=stream.schema.indicator_inputs,
            input_order=schema.input_order(*sample[:2]),
            measured_inputs=stream.schema.measured_inputs,
            direct_inputs=stream.schema.direct_inputs,
        )
        source = ParquetRows(stream, sampled, config, folder)
        context = FitContext(config, rng, record)
        return fit(source, TrainingRows.first(*sample), schema, context)


def _identity(stream: RowStream, n_sample: int) -> list[NDArray[Any]]:
    """Arrays that tell a dataset and its conversion from others, for checkpoints, without reading all of it."""
    numbers = [file.identity for file in stream.files]
    text = json.dumps([*map(str, stream.files), stream.schema.to_dict(), n_sample])
    return [np.array(numbers, dtype=np.int64), np.frombuffer(text.encode(), dtype=np.uint8)]


def _sample_rows(n_rows: int, n_columns: int, memory: float) -> int:
    """Return the number of rows of the sample that trees are grown on."""
    fits = SAMPLE_SHARE * memory / (8 * n_columns * SAMPLE_COPIES)
    return int(min(n_rows, max(LEAST_SAMPLE, min(fits, MOST_SAMPLE))))


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """A :class:`~dsmgp.fitting.rows.row_source.RowSource` that holds a sample and reads all other rows from a dataset."""

    stream: RowStream
    data: ScaledRows
    config: FitConfig
    folder: Path | None

    @property
    def n_rows(self) -> int:
        return self.stream.n_rows

    @property
    def holds_all(self) -> bool:
        return len(self.data.X) == self.n_rows

    def with_data(self, data: ScaledRows) -> ParquetRows:
        return replace(self, data=data)

    def rows_of(
        self, leaves: Sequence[Leaf], outputs: OutputScaling
    ) -> tuple[ScaledRows, list[Leaf]]:
        if self.holds_all:
            return self.data.with_outputs(outputs), list(leaves)
        X, Y, rows = self.stream.inside(leaves, self.data.inputs.to_coordinates)
        outputs.check_support(Y)
        filled = [Leaf(leaf.region, inside) for leaf, inside in zip(leaves, rows, strict=True)]
        data = replace(self.data, X=X, Y=Y, labels=equal_rows(X), outputs=outputs)
        return data, [leaf for leaf in filled if leaf.n_rows]

    def set_up(self, tree: LeafFamilies, outputs: OutputScaling) -> LeafGPs:
        config, memory = self.config, 0.5 * self.config.memory
        n_inputs, n_outputs = self.data.X.shape[1], self.data.n_outputs
        in_sample = np.array([leaf.n_rows for leaf in leaves(tree.tree)])
        expected = in_sample * (self.n_rows / len(self.data.X))
        pool = config.executor.worker_pool(memory, config.device)
        room = pool.memory_of_shard(memory) / SHARDS_HELD
        firsts = first_leaves_of_shards(expected, n_inputs, n_outputs, room, pool.n_shards)
        router = Router(tree.tree)
        row_bytes = 8 * router.max_reached * (n_inputs + n_outputs + N_PREFIX)
        reader = self._reader_within(0.1 * memory, row_bytes, len(firsts) - 1)
        writer = RowWriter.into(self.folder, firsts, n_inputs, n_outputs)
        work = RouteAndWrite(reader, router.without_tree(), self.data.inputs, outputs, writer)
        store = writer.store(pool.map(work, self.stream.pieces))
        check_leaf_memory(int(store.sizes.max()), config)
        scaling = (self.data.inputs, outputs)
        kernels = kernels_by_leaf(tree.families, tree.family)
        return store.leaf_gps(pool, kernels, scaling, 0.5 * memory, config.dtype)

    def _reader_within(self, memory: float, row_bytes: int, n_shards: int) -> RowReader:
        """Return a reader of batches that fit in memory on all threads at once, when a row is written as so many bytes.

        Batches have parts of all shards: raise if these would be too small for a disk.
        """
        reader = self.stream.reader
        within = memory / (BATCH_COPIES * row_bytes * n_threads())
        fits = max(int(within), LEAST_BATCH)
        needed = -(-n_shards * PART_BYTES // row_bytes)
        if n_shards > FEW_SHARDS and needed > fits:
            # With more memory batches are larger and shards are fewer.
            times = min(np.sqrt(needed / within), needed / LEAST_BATCH)
            raise MemoryError(
                f"leaves, rows and factors would need {n_shards} shards, more than {FEW_SHARDS}, and batches of {needed} rows, so that a shard's part "
                f"of them is not too small for a disk; there is room for {fits}: raise memory_limit to {times:.1f} times what it is, or lower leaf_size"
            )
        return replace(reader, batch_rows=min(max(reader.batch_rows, needed), fits))

    def log_jacobian(self, outputs: OutputScaling) -> float:
        if not outputs.warps or self.holds_all:
            return outputs.log_jacobian(self.data.Y)
        work = partial(log_jacobian, self.stream.reader, outputs)
        return sum(self.stream.tasks.map(work, self.stream.pieces))


@dataclass(frozen=True)
class RouteAndWrite:
    """Reads a piece, routes its rows to their leaves and writes them; computed by workers."""

    reader: RowReader
    router: Router
    inputs: InputScaling
    outputs: OutputScaling
    writer: RowWriter

    def __call__(self, piece: Piece) -> WrittenPiece:
        return self.writer.write(piece.number, self._routed(piece))

    def _routed(self, piece: Piece) -> Iterator[RoutedBatch]:
        for batch in self.reader.batches(piece):
            self.outputs.check_support(batch.Y, batch.first)
            leaf, row = self.router.route(self.inputs.to_coordinates(batch.X)).pairs
            yield leaf, row, batch.first, batch.X, batch.Y


def log_jacobian(reader: RowReader, outputs: OutputScaling, piece: Piece) -> float:
    """Return the sum over the rows of a piece of the log slopes of the output warps."""
    return sum(outputs.log_jacobian(batch.Y) for batch in reader.batches(piece))
