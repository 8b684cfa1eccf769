"""Predictions of Parquet files that may hold more rows than memory (:meth:`DSMGPRegressor.predict_dataset`).

Workers read, predict and write pieces side by side; the process that asks holds counts. A model in memory predicts piece by piece, on every worker. One whose
training rows are in files takes three passes: pieces are routed to shards, each shard is conditioned once and predicts all of its rows, and the predictions of the
leaves are combined piece by piece (:mod:`dsmgp.distributed.leaf_predictions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from dsmgp._util.errors import InputError
from dsmgp.data.input_schema import InputSchema
from dsmgp.data.outside import OutsideRows
from dsmgp.data.parquet.dataset import RowStream
from dsmgp.data.parquet.parts import PartFiles, part_files
from dsmgp.data.parquet.predictions import check_kept_columns, prediction_columns
from dsmgp.data.parquet.row_reader import Piece, RowReader, Tally
from dsmgp.data.parquet.sink import ParquetSink
from dsmgp.data.unknown_inputs import tables_at
from dsmgp.distributed.leaf_predictions import LeafPredictions, StoredLeafPosterior
from dsmgp.distributed.row_writer import RoutedBatch, RowWriter, WrittenPiece
from dsmgp.mixture.model import Model
from dsmgp.mixture.variance_error import exact_variances, wants_exact
from dsmgp.progress import span, tick

__all__ = ["predict_files"]

# Rows whose leaf predictions are in files at once, or as many as the model was fitted to: they take about as much disk as its own rows. Shards that do not fit
# in memory are conditioned again for the next.
ROWS_AT_ONCE = 2**26


def predict_files(
    model: Any,
    schema: InputSchema,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    intervals: Sequence[float],
    quantiles: Sequence[float],
    keep: Sequence[str],
    include_noise: bool,
) -> tuple[int, list[str]]:
    """Write the predictions that :meth:`DSMGPRegressor.predict_dataset` describes.

    Returns
    -------
    n_rows : int
    remarks : list of str
        On missing values, new levels, and rows outside the training data.
    """
    for level in [*intervals, *quantiles]:
        if not 0 < level < 1:
            raise InputError(f"expected levels between 0 and 1, such as 0.9, got {level!r}")
    if schema.feature_names is None:
        raise InputError(
            "the model was fitted to an array and does not know its columns by name; use predict, or fit it to a frame"
        )
    columns, keep = schema.columns, list(dict.fromkeys(keep))
    check_kept_columns(keep, columns.targets, intervals, quantiles)
    # Without a pool a prediction is computed on all cores of this process: pieces are predicted in turn.
    pool = model.pool
    sharded = pool is not None
    stream = RowStream(data, columns, with_targets=False, tasks=pool)
    stream.check_files(keep)
    outside = OutsideRows(0, 0, 0, {})
    with part_files(out) as parts:
        work = PredictPiece(
            model, schema, stream.reader, stream.n_rows, parts,
            tuple(intervals), tuple(quantiles), tuple(keep), include_noise, sharded or wants_exact(),
        )  # fmt: skip
        predicted = _shard_by_shard if sharded and model.has_rows_in_files else _piece_by_piece
        for tally, of_piece in predicted(stream, work):
            stream.add(tally)
            outside = outside.joined(of_piece)
    return stream.n_rows, [*stream.remarks, *outside.remarks]


@dataclass(frozen=True)
class PredictPiece:
    """Reads a piece, predicts its rows and writes them; computed by workers."""

    model: Any
    schema: InputSchema
    reader: RowReader
    n_rows: int
    parts: PartFiles
    intervals: tuple[float, ...]
    quantiles: tuple[float, ...]
    keep: tuple[str, ...]
    include_noise: bool
    exact: bool

    def __call__(self, piece: Piece) -> tuple[Tally, OutsideRows]:
        tally, outside = Tally(), OutsideRows(0, 0, 0, {})
        with ParquetSink(self.parts.path(piece.number)) as sink, exact_variances(self.exact):
            for batch in self.reader.batches(piece, self.keep):
                first, end = batch.first / self.n_rows, (batch.first + len(batch.X)) / self.n_rows
                with span(first, end, "predicting rows"):
                    columns = prediction_columns(
                        self.model, batch.rows, self.schema.columns.targets,
                        self.intervals, self.quantiles, self.include_noise,
                    )  # fmt: skip
                table = batch.table.select(list(self.keep))
                for name, values in columns.items():
                    table = table.append_column(name, pa.array(values))
                sink.add(table)
                tally.add(batch.tally)
                by_input = self.model.outside_by_input(batch.X)
                outside = outside.joined(OutsideRows.of(by_input, self.schema.groups))
        return tally, outside


def _piece_by_piece(stream: RowStream, work: PredictPiece) -> Iterator[tuple[Tally, OutsideRows]]:
    """Predict pieces by a model that every worker holds; yield what is to be remarked on their rows."""
    return iter(stream.tasks.map(work, [piece for piece in stream.pieces if piece.n_rows]))


def _shard_by_shard(stream: RowStream, work: PredictPiece) -> Iterator[tuple[Tally, OutsideRows]]:
    """Predict by a model whose training rows are in files: its shards predict the rows of many pieces at once."""
    posterior = work.model.leaf_posterior
    firsts, n_outputs = posterior.leaf_gps.store.firsts, work.model.outputs.n_outputs
    at_once = max(ROWS_AT_ONCE, posterior.n_rows)
    light = _with_posterior(work.model, StoredLeafPosterior(posterior))
    for pieces, low, high in _together([piece for piece in stream.pieces if piece.n_rows], at_once):
        with (
            span(low / stream.n_rows, high / stream.n_rows, "predicting rows"),
            TemporaryDirectory(dir=work.parts.folder) as folder,
        ):
            writer = RowWriter.into(Path(folder), firsts, work.model.inputs.n_coordinates, 0)
            with span(0.0, 0.1, "routing rows"):
                routed = stream.tasks.map(RouteTestRows(stream.reader, light, writer), pieces)
                predictions = LeafPredictions(writer.store(routed), n_outputs)
            with span(0.1, 0.8, "predicting rows"):
                predictions.compute(posterior)
            combine = CombineLeaves(replace(work, model=light), predictions)
            with span(0.8, 1.0, "combining predictions"):
                for k, found in enumerate(stream.tasks.map(combine, pieces)):
                    tick((k + 1) / len(pieces))
                    yield found


def _together(pieces: Sequence[Piece], most: int) -> Iterator[tuple[list[Piece], int, int]]:
    """Yield pieces of at most so many rows together, the number of their first row, and the first row after them."""
    held: list[Piece] = []
    for piece in pieces:
        if held and piece.first + piece.n_rows - held[0].first > most:
            yield held, held[0].first, piece.first
            held = []
        held.append(piece)
    if held:
        yield held, held[0].first, held[-1].first + held[-1].n_rows


@dataclass(frozen=True)
class RouteTestRows:
    """Reads a piece, routes its rows to the leaves that predict them and writes them; computed by workers."""

    reader: RowReader
    model: Model
    writer: RowWriter

    def __call__(self, piece: Piece) -> WrittenPiece:
        return self.writer.write(piece.number, self._routed(piece))

    def _routed(self, piece: Piece) -> Iterator[RoutedBatch]:
        model = self.model
        for batch in self.reader.batches(piece):
            for X in tables_at(batch.rows):
                U = model.inputs.to_coordinates(X)
                yield (
                    *model.component_weights.relevant_routes(U).pairs,
                    0,
                    model.scaled(U),
                    np.empty((len(X), 0)),
                )


@dataclass(frozen=True)
class CombineLeaves:
    """Combines the leaves' predictions of a piece, and writes it; computed by workers."""

    work: PredictPiece
    predictions: LeafPredictions

    def __call__(self, piece: Piece) -> tuple[Tally, OutsideRows]:
        light = self.work.model
        stored = StoredLeafPosterior(light.leaf_posterior, self.predictions, piece.number)
        return replace(self.work, model=_with_posterior(light, stored))(piece)


def _with_posterior(model: Model, posterior: Any) -> Model:
    """Return a model without a tree, which routes and combines leaf predictions; what it needs of the tree is computed before."""
    weights = model.component_weights
    _ = model.router.max_reached
    no_tree: Any = None
    light = replace(
        model,
        tree=no_tree,
        router=model.router.without_tree(),
        leaf_posterior=posterior,
        thetas=None,
    )
    vars(light)["component_weights"] = replace(
        weights, router=light.router, leaf_posterior=posterior
    )
    return light
