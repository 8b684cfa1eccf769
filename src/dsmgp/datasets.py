"""Benchmark data, read from the folder that ``DSMGP_DATA`` names. Needs ``dsmgp[data]``.

The data are not part of the package: several of them may be used for research only. :func:`load` reads the data sets
that were prepared as Parquet files. :func:`load_original` reads the paper's two largest, Year and Flight, which may not
be redistributed, from the files of their publishers:

* Year: ``YearPredictionMSD.txt`` (or ``.txt.zip``) of the UCI repository, 515,345 songs: the year, then 90 numbers.
* Flight: ``2008.csv`` (or ``.csv.bz2``) and ``plane-data.csv`` of the ASA's Data Expo 2009. Flights of January to April
  that were not cancelled, of aircraft whose year is known; 700,000 of them drawn at random, as in Hensman et al. (2013).

Nothing is downloaded. Files are checked by their size or number of rows, and by their checksum where it is known.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError

__all__ = [
    "DATASETS",
    "ORIGINALS",
    "Dataset",
    "Original",
    "load",
    "load_original",
    "read_flights",
    "read_year",
]

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

YEAR_ROWS, YEAR_COLUMNS = 515_345, 91
FLIGHT_ROWS, FLIGHT_TRAIN, FLIGHT_YEAR, LAST_MONTH = 700_000, 500_000, 2008, 4
FLIGHT_INPUTS = (
    "month", "day", "day_of_week", "plane_age", "air_time", "distance", "arr_time_min", "dep_time_min",
)  # fmt: skip
FLIGHT_OUTPUTS = ("arr_delay", "dep_delay")


@dataclass(frozen=True)
class Dataset:
    """Rows of a data set in their own units, and its split into training and test rows if one is prescribed.

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
        """Return X_train, Y_train, X_test, Y_test: by the prescribed split, or 70% at random for training."""
        train = self.is_train
        if train is None:
            order = np.random.default_rng(seed).permutation(len(self.X))
            train = np.zeros(len(self.X), dtype=bool)
            train[order[: int(TRAIN_SHARE * len(order))]] = True
        return self.X[train], self.Y[train], self.X[~train], self.Y[~train]


def load(name: str, folder: str | Path | None = None) -> Dataset:
    """Load a benchmark data set by name, one of ``DATASETS``, from ``folder`` or the one that ``DSMGP_DATA`` names.

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
        raise InputError(f"unknown data set {name!r}: expected one of {', '.join(DATASETS)}")
    path = _data_folder(folder) / f"{name}.parquet"
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


def _data_folder(folder: str | Path | None) -> Path:
    """Return the given folder, or the one that ``DSMGP_DATA`` names."""
    where = folder or os.environ.get("DSMGP_DATA")
    if where is None:
        raise FileNotFoundError("set DSMGP_DATA to the folder that holds the benchmark data")
    return Path(where)


@dataclass(frozen=True)
class Original:
    """The file of a data set as its publisher offers it, and how it is read.

    Attributes
    ----------
    names : tuple of str
        File names, such as a plain and a compressed one; any of them will do.
    read : callable
        Reads the file.
    source : str
        Where to get it.
    sizes, checksums : dict of str to int, dict of str to str
        By file name, where they are known: bytes and SHA-256.

    Examples
    --------
    >>> flight = ORIGINALS["flight"]
    >>> isinstance(flight, Original), flight.names, flight.read is read_flights
    (True, ('2008.csv', '2008.csv.bz2'), True)
    """

    names: tuple[str, ...]
    read: Callable[[Path], Dataset]
    source: str
    sizes: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)

    def find(self, folder: Path) -> Path | None:
        """Return the file in a folder, or None."""
        return next((folder / name for name in self.names if (folder / name).exists()), None)

    def check(self, path: Path) -> None:
        """Raise an error if a file is not the publisher's."""
        expected = self.sizes.get(path.name)
        if expected is not None and path.stat().st_size != expected:
            raise InputError(
                f"expected {path} to have {expected} bytes, got {path.stat().st_size}: the download is "
                f"incomplete, or it is another file; get it again from {self.source}"
            )
        checksum = self.checksums.get(path.name)
        if checksum is not None and _sha256(path) != checksum:
            raise InputError(
                f"expected {path} to have the SHA-256 {checksum}, got {_sha256(path)}: another file, or a damaged one; "
                f"get it again from {self.source}"
            )


def load_original(name: str, folder: str | Path | None = None) -> Dataset:
    """Load Year or Flight from the publisher's files in ``folder``, or the one that ``DSMGP_DATA`` names.

    Examples
    --------
    >>> load_original("year", getfixture("tmp_path"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: ... holds none of YearPredictionMSD.txt, ...
    """
    if name not in ORIGINALS:
        raise InputError(f"unknown original {name!r}: expected one of {', '.join(ORIGINALS)}")
    original = ORIGINALS[name]
    where = _data_folder(folder)
    path = original.find(where)
    if path is None:
        raise FileNotFoundError(
            f"{where} holds none of {', '.join(original.names)}: get it from {original.source} and put it there"
        )
    original.check(path)
    return original.read(path)


def read_year(path: Path, n_rows: int | None = YEAR_ROWS) -> Dataset:
    """Read songs in the layout of the UCI repository: the year, then 90 numbers. Expect ``n_rows``, unless None.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "YearPredictionMSD.txt"
    >>> _ = path.write_text("\\n".join(["2001," + ",".join(["0.5"] * 90)] * 2))
    >>> read_year(path, n_rows=2).X.shape
    (2, 90)
    """
    from pyarrow import csv

    names = ["year", *(f"timbre_{k}" for k in range(1, YEAR_COLUMNS))]
    with _opened(path) as file:
        try:
            table = csv.read_csv(file, csv.ReadOptions(autogenerate_column_names=True))
        except ValueError as error:
            raise InputError(
                f"{path} is not a table of numbers: {error}; get it again from {_YEAR_SOURCE}"
            ) from None
    if table.num_columns != YEAR_COLUMNS or (n_rows is not None and table.num_rows != n_rows):
        raise InputError(
            f"expected {path} to hold {n_rows or 'some'} rows of {YEAR_COLUMNS} numbers, got {table.num_rows} of "
            f"{table.num_columns}; get it again from {_YEAR_SOURCE}"
        )
    values = np.column_stack([column.to_numpy().astype(np.float64) for column in table.columns])
    return Dataset("year", values[:, 1:], values[:, :1], tuple(names[1:]), ("year",), None)


def read_flights(path: Path, n_rows: int | None = FLIGHT_ROWS, seed: int = 0) -> Dataset:
    """Read flights in the layout of the Data Expo, with ``plane-data.csv`` in the same folder; draw ``n_rows``, unless None."""
    column, age = _flight_columns(path)
    X = np.column_stack(
        [
            *(column[name] for name in ("Month", "DayofMonth", "DayOfWeek")),
            age,
            column["AirTime"],
            column["Distance"],
            _minutes(column["ArrTime"]),
            _minutes(column["DepTime"]),
        ]
    )
    Y = np.column_stack([column["ArrDelay"], column["DepDelay"]])
    with np.errstate(invalid="ignore"):
        kept = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1) & (X[:, 0] <= LAST_MONTH)
        kept &= age >= 0  # some years of construction are later than the flight
    chosen = np.flatnonzero(kept)
    if n_rows is not None:
        if len(chosen) < n_rows:
            raise InputError(
                f"expected {path} to hold at least {n_rows} complete flights of January to April, got "
                f"{len(chosen)}; get it again from {_FLIGHT_SOURCE}"
            )
        chosen = np.random.default_rng(seed).choice(chosen, n_rows, replace=False)
    is_train = None
    if n_rows == FLIGHT_ROWS:
        is_train = np.arange(n_rows) < FLIGHT_TRAIN  # rows are in random order
    return Dataset("flight", X[chosen], Y[chosen], FLIGHT_INPUTS, FLIGHT_OUTPUTS, is_train)


def _flight_columns(path: Path) -> tuple[dict[str, Array], Array]:
    """Return the columns of all flights by name, and the ages of the planes; NaN where they are missing."""
    from pyarrow import csv

    planes = path.parent / "plane-data.csv"
    if not planes.exists():
        raise FileNotFoundError(
            f"{planes} does not exist: planes' ages come from it; get it from {_FLIGHT_SOURCE}"
        )
    numbers = ["Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "ArrDelay",
               "DepDelay", "Distance"]  # fmt: skip
    of_flights = csv.ConvertOptions(
        include_columns=[*numbers, "TailNum"], null_values=["NA", ""], strings_can_be_null=True
    )
    of_planes = csv.ConvertOptions(
        include_columns=["tailnum", "year"],
        column_types={"year": "string"},
        null_values=["None", "", "0000"],
        strings_can_be_null=True,
    )
    try:
        table = csv.read_csv(path, convert_options=of_flights)
        plane = csv.read_csv(planes, convert_options=of_planes)
    except KeyError as error:
        raise InputError(
            f"{path} or {planes} lacks a column: {error}; get them again from {_FLIGHT_SOURCE}"
        ) from None
    built = {
        tail: float(year)
        for tail, year in zip(plane["tailnum"].to_pylist(), plane["year"].to_pylist(), strict=True)
        if year is not None
    }
    tails = table["TailNum"].to_pylist()
    age = np.array([FLIGHT_YEAR - built.get(tail, np.nan) for tail in tails], dtype=np.float64)
    return {name: table[name].to_numpy().astype(np.float64) for name in numbers}, age


def _minutes(clock: Array) -> Array:
    """Convert clock times such as 1305 to minutes since midnight."""
    return np.floor(clock / 100.0) * 60.0 + np.mod(clock, 100.0)


def _opened(path: Path) -> Any:
    """Open a file, or the only file of a zip archive."""
    if path.suffix != ".zip":
        return path.open("rb")
    archive = zipfile.ZipFile(path)
    inside = archive.namelist()
    if len(inside) != 1:
        raise InputError(f"expected one file inside {path}, got {len(inside)}")
    return archive.open(inside[0])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_YEAR_SOURCE = "the UCI repository (archive.ics.uci.edu/dataset/203)"
_FLIGHT_SOURCE = "the ASA's Data Expo 2009 (doi.org/10.7910/DVN/HG7NV7)"
#: By the paper's name.
ORIGINALS = {
    "year": Original(
        ("YearPredictionMSD.txt", "YearPredictionMSD.txt.zip"), read_year, _YEAR_SOURCE
    ),
    "flight": Original(
        ("2008.csv", "2008.csv.bz2"),
        read_flights,
        _FLIGHT_SOURCE,
        sizes={"2008.csv": 689_413_344, "2008.csv.bz2": 113_753_229},
    ),
}
