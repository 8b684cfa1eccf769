"""Benchmark data, read from the folder that ``DSMGP_DATA`` names. Needs ``dsmgp[data]``.

The data are not part of the package: several of them may be used for research only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["DATASETS", "Dataset", "load"]

Array = NDArray[np.float64]
TRAIN_SHARE = 0.7

#: Outputs of each data set, and columns that are neither inputs nor outputs.
DATASETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "motorcycle": (("accel",), ()),
    "lidar": (("logratio",), ()),
    "well_log": (("nmr",), ()),
    "airfoil": (("scaled_sound_pressure_db",), ()),
    # Subject, age, sex and time identify the patient: with them the outputs are looked up.
    "parkinsons": (("motor_UPDRS", "total_UPDRS"), ("subject", "age", "sex", "test_time")),
    "kin40k": (("y",), ()),
    "house": (("price",), ()),
    "protein": (("RMSD",), ()),
    "flight_nyc13": (("arr_delay", "dep_delay"), ()),
    "flight_mixed": (("arr_delay", "dep_delay"), ("source",)),
    "year_first1176": (("year",), ()),
}


@dataclass(frozen=True)
class Dataset:
    """Rows of a data set in their own units, and which are for training if that is laid down.

    Examples
    --------
    >>> X = np.arange(10.0)[:, None]
    >>> data = Dataset("line", X, 2 * X, ("x",), ("y",), is_train=None)
    >>> [len(part) for part in data.split(seed=0)]
    [7, 7, 3, 3]
    """

    name: str
    X: Array
    Y: Array
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_train: NDArray[np.bool_] | None

    def split(self, seed: int) -> tuple[Array, Array, Array, Array]:
        """X_train, Y_train, X_test, Y_test: the split laid down, or 70% drawn at random."""
        train = self.is_train
        if train is None:
            order = np.random.default_rng(seed).permutation(len(self.X))
            train = np.zeros(len(self.X), dtype=bool)
            train[order[: int(TRAIN_SHARE * len(order))]] = True
        return self.X[train], self.Y[train], self.X[~train], self.Y[~train]


def load(name: str, folder: str | Path | None = None) -> Dataset:
    """A benchmark data set by name, one of ``DATASETS``, from ``folder`` or the one that ``DSMGP_DATA`` names.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from pyarrow import parquet
    >>> folder = getfixture("tmp_path")
    >>> rows = pa.table({"times": [2.4, 2.6, 3.2], "accel": [0.0, -1.3, -2.7]})
    >>> parquet.write_table(rows, folder / "motorcycle.parquet")
    >>> "motorcycle" in DATASETS, load("motorcycle", folder).outputs
    (True, ('accel',))
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}: expected one of {', '.join(DATASETS)}")
    where = folder or os.environ.get("DSMGP_DATA")
    if where is None:
        raise FileNotFoundError("set DSMGP_DATA to the folder that holds the benchmark data")
    path = Path(where) / f"{name}.parquet"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; DSMGP_DATA should name the folder of the data"
        )
    from pyarrow import parquet

    table = parquet.read_table(path)
    outputs, unused = DATASETS[name]
    inputs = tuple(
        column for column in table.column_names if column not in {*outputs, *unused, "is_train"}
    )

    def columns(names: tuple[str, ...]) -> Array:
        return np.column_stack([table[c].to_numpy().astype(np.float64) for c in names])

    is_train = None
    if "is_train" in table.column_names:
        is_train = table["is_train"].to_numpy().astype(bool)
    return Dataset(name, columns(inputs), columns(outputs), inputs, outputs, is_train)
