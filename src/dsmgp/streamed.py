"""Estimators that are fitted to datasets on disk, and predict them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dsmgp.archive import ModelFileError
from dsmgp.checkpoint import checkpointed
from dsmgp.fit import fit_by
from dsmgp.guard import progress_shown, unchanged_on_error
from dsmgp.kept import Kept
from dsmgp.parameters import checked
from dsmgp.predicted import check_kept, predicted
from dsmgp.progress import tick
from dsmgp.settings import Settings
from dsmgp.store import check_empty
from dsmgp.timeline import since_origins
from dsmgp.updates import Changing, Rows
from dsmgp.validation import random_generator

if TYPE_CHECKING:
    from dsmgp.stream import Batch, RowStream

__all__ = ["Streamed"]

Array = NDArray[np.float64]
logger = logging.getLogger("dsmgp")
Data = str | Path | Sequence[str | Path]
# Rows that are predicted at once: shards that do not fit in memory are made again for each lot of them.
PREDICTED_ROWS = 2**21


class Streamed(Kept):
    """The methods for data that may be larger than memory."""

    def fit_dataset(
        self,
        data: Data,
        target: str | Sequence[str],
        *,
        features: Sequence[str] = (),
        drop: Sequence[str] = (),
        categories: str = "onehot",
        missing: str = "refuse",
        store: str | Path | None = None,
    ) -> Self:
        """Fit to Parquet files, which may hold far more rows than memory does.

        Units, hyperparameters and tree come from a sample of rows; then one pass sends every row to its leaves, in files, and leaves are
        conditioned shard by shard within ``memory_limit``. Where the sample holds all rows, the model is that of :meth:`fit`.

        Parameters
        ----------
        data : path, glob, or sequence of them
            Parquet files, or folders of them. All have the same columns.
        target : str or sequence of str
            The columns to predict.
        features, drop : sequence of str
            Columns to predict from (all others if left out), and columns to leave out.
        categories : {"onehot", "refuse"}
            What to do with columns of text.
        missing : {"refuse", "impute"}
            What to do with missing values of inputs.
        store : path, optional
            A folder for the model and its rows, which :func:`dsmgp.load` reads. A temporary one if left out.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np, pyarrow as pa
        >>> from pyarrow import parquet
        >>> from dsmgp import DSMGPRegressor
        >>> x = np.linspace(0, 1, 400)
        >>> folder = getfixture("tmp_path")
        >>> parquet.write_table(pa.table({"x": x, "y": np.sin(6 * x)}), folder / "rows.parquet")
        >>> model = DSMGPRegressor(leaf_size=100, random_state=0).fit_dataset(folder, target="y")
        >>> model.predict_dataset(folder / "rows.parquet", folder / "predicted.parquet")
        400
        >>> parquet.read_table(folder / "predicted.parquet").column_names
        ['y_mean', 'y_std']
        """
        from dsmgp.stream import RowStream
        from dsmgp.stream_fit import StreamTrainer, sample_rows

        folder = None if store is None else Path(store)
        if folder is not None:
            check_empty(folder)
        targets = [target] if isinstance(target, str) else list(target)
        with unchanged_on_error(self), progress_shown(self.verbose):
            settings = checked(self)
            _refuse_other_trees(settings)
            stream = RowStream.learn(data, targets, features, drop, categories, missing)
            if folder is not None and any(
                folder.resolve() in f.resolve().parents for f in stream.files
            ):
                raise ModelFileError(f"{folder} holds the data; give another folder for the model")
            rng, seeded = random_generator(self.random_state), self.random_state is not None
            names = stream.recipe.input_names
            n_sample = sample_rows(stream.n_rows, len(names) + len(targets), settings.memory)
            traits = _traits(stream, n_sample)
            with checkpointed(self.checkpoint, traits, settings, rng, seeded) as remember:
                sample = stream.sample(n_sample, rng)
                remarks = [*stream.recipe.remarks, *stream.filled_in]
                for remark in remarks:
                    logger.info("%s", remark)
                trainer = StreamTrainer(stream, settings, rng, sample, folder, remember)
                fitted = fit_by(trainer)
            rows = Rows.first(*sample, None)
            self._tell(fitted)
            scores = (fitted.loo_score, fitted.loo_score_new_inputs)
            self._change_to(Changing.first(fitted.model, rows, settings.local_scale, scores))
            self._squeeze, self._target_names = len(targets) == 1, targets
            self.feature_names_in_ = np.array(names, dtype=object)
            self.n_features_in_ = len(names)
            self._dates, self.adapted_ = {}, []
            self._table, self._remarks = stream.recipe.as_dict(), remarks
            if folder is not None:
                self.save(folder)
        return self

    def predict_dataset(
        self,
        data: Data,
        out: str | Path,
        *,
        interval: float | Sequence[float] = (),
        quantiles: Sequence[float] = (),
        keep: Sequence[str] = (),
        include_noise: bool = True,
    ) -> int:
        """Predict the rows of Parquet files, lot by lot, into another.

        Parameters
        ----------
        data : path, glob, or sequence of them
            With the columns that the model was fitted to.
        out : path
            The Parquet file to write; it is there whole or not at all. For each target it has its mean and standard deviation.
        interval : float or sequence of float
            Probabilities of central intervals, whose ends are written too. They take longer than the rest.
        quantiles : sequence of float
            Levels of quantiles to write.
        keep : sequence of str
            Columns of the data to write beside.
        include_noise : bool
            Whether spread is that of a new observation y, or of the function f.

        Returns
        -------
        int
            How many rows there were.
        """
        check_is_fitted(self)
        intervals = [interval] if isinstance(interval, (int, float)) else list(interval)
        for level in [*intervals, *quantiles]:
            if not 0 < level < 1:
                raise ValueError(f"expected levels between 0 and 1, such as 0.9, got {level!r}")
        n_rows, remarks = self._predict_files(data, out, intervals, quantiles, keep, include_noise)
        for remark in remarks:
            logger.info("%s", remark)
        return n_rows

    def _predict_files(
        self,
        data: Data,
        out: str | Path,
        intervals: Sequence[float],
        quantiles: Sequence[float],
        keep: Sequence[str],
        include_noise: bool,
    ) -> tuple[int, list[str]]:
        """How many rows there were, and what was filled in."""
        from dsmgp.recipe import Recipe
        from dsmgp.stream import ParquetSink, RowStream

        if not hasattr(self, "feature_names_in_"):
            raise ValueError(
                "the model was fitted to an array and does not know its columns by name; use predict, or fit it to a frame"
            )
        recipe, keep = Recipe.of(self), list(dict.fromkeys(keep))
        check_kept(keep, recipe.targets, intervals, quantiles)
        stream = RowStream(data, recipe, with_targets=False)
        n_rows = 0
        with ParquetSink(out) as sink, progress_shown(self.verbose):
            for X, tables in _lots(stream.batches(keep)):
                X = since_origins(X, self._dates)
                said = predicted(self, X, recipe.targets, intervals, quantiles, include_noise)
                sink.add(tables, keep, said)
                n_rows += len(X)
                tick(n_rows / stream.n_rows)
        return n_rows, stream.filled_in


def _lots(batches: Iterator[Batch]) -> Iterator[tuple[Array, list[Any]]]:
    """Batches joined until there are enough rows."""
    X: list[Array] = []
    tables: list[Any] = []
    for batch in batches:
        X.append(batch.X)
        tables.append(batch.table)
        if sum(map(len, X)) >= PREDICTED_ROWS:
            yield np.concatenate(X), tables
            X, tables = [], []
    if X:
        yield np.concatenate(X), tables


def _refuse_other_trees(settings: Settings) -> None:
    if settings.structure != "balanced" or settings.objective != "surrogate":
        raise ValueError(
            "fit_dataset needs structure='balanced' and objective='surrogate'; with others fit a part of the rows in memory"
        )


def _traits(stream: RowStream, n_sample: int) -> list[NDArray[Any]]:
    """What tells a dataset, and how it is read, from another without going through it."""
    told = [file.stat() for file in stream.files]
    numbers = [(one.st_size, one.st_mtime_ns) for one in told]
    text = json.dumps([*map(str, stream.files), stream.recipe.as_dict(), n_sample])
    return [np.array(numbers, dtype=np.int64), np.frombuffer(text.encode(), dtype=np.uint8)]
