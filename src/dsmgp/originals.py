"""The public originals of the paper's two largest data sets, which nobody may hand on: Year and Flight.

Neither is fetched. Put the files where ``DSMGP_DATA`` points to, as they come from their publishers:

* Year: ``YearPredictionMSD.txt`` (or ``.txt.zip``) of the UCI repository, 515,345 songs: the year, then 90 numbers.
* Flight: ``2008.csv`` (or ``.csv.bz2``) and ``plane-data.csv`` of the ASA's Data Expo 2009. Flights of January to April
  that flew, with a plane whose year is known; 700,000 of them drawn at random, as in Hensman et al. (2013).

Files are checked by their size or number of rows, and by their checksum once that is known. Needs ``dsmgp[data]``.
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

from dsmgp.datasets import Dataset

__all__ = ["ORIGINALS", "Original", "load_original", "read_flights", "read_year"]

Array = NDArray[np.float64]
YEAR_ROWS, YEAR_COLUMNS = 515_345, 91
FLIGHT_ROWS, FLIGHT_TRAIN, FLIGHT_YEAR, LAST_MONTH = 700_000, 500_000, 2008, 4
FLIGHT_INPUTS = (
    "month", "day", "day_of_week", "plane_age", "air_time", "distance", "arr_time_min", "dep_time_min",
)  # fmt: skip
FLIGHT_OUTPUTS = ("arr_delay", "dep_delay")


@dataclass(frozen=True)
class Original:
    """Files of a data set, any one of ``names``, and how they are read.

    ``sizes`` and ``checksums`` (SHA-256), by file name, are those of the publisher's files, where they are known.
    """

    names: tuple[str, ...]
    read: Callable[[Path], Dataset]
    source: str
    sizes: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)

    def find(self, folder: Path) -> Path | None:
        return next((folder / name for name in self.names if (folder / name).exists()), None)

    def check(self, path: Path) -> None:
        """Refuse a file that is not the publisher's."""
        expected = self.sizes.get(path.name)
        if expected is not None and path.stat().st_size != expected:
            raise ValueError(
                f"expected {path} to have {expected} bytes, got {path.stat().st_size}: the download is not "
                f"complete, or another file; get it again from {self.source}"
            )
        checksum = self.checksums.get(path.name)
        if checksum is not None and _sha256(path) != checksum:
            raise ValueError(
                f"expected {path} to have the SHA-256 {checksum}, got {_sha256(path)}: another file, or spoilt; "
                f"get it again from {self.source}"
            )


def load_original(name: str, folder: str | Path | None = None) -> Dataset:
    """Year or Flight from the publisher's files in ``folder``, or the one that ``DSMGP_DATA`` names."""
    if name not in ORIGINALS:
        raise ValueError(f"unknown original {name!r}: expected one of {', '.join(ORIGINALS)}")
    original = ORIGINALS[name]
    where = folder or os.environ.get("DSMGP_DATA")
    if where is None:
        raise FileNotFoundError("set DSMGP_DATA to the folder that holds the benchmark data")
    path = original.find(Path(where))
    if path is None:
        raise FileNotFoundError(
            f"{where} holds none of {', '.join(original.names)}: get it from {original.source} and put it there"
        )
    original.check(path)
    return original.read(path)


def read_year(path: Path, n_rows: int | None = YEAR_ROWS) -> Dataset:
    """Songs in the layout of the UCI repository: the year, then 90 numbers; ``n_rows`` of them, if that is known."""
    from pyarrow import csv

    names = ["year", *(f"timbre_{k}" for k in range(1, YEAR_COLUMNS))]
    with _opened(path) as file:
        try:
            table = csv.read_csv(file, csv.ReadOptions(autogenerate_column_names=True))
        except ValueError as error:
            raise ValueError(
                f"{path} is no table of numbers: {error}; {_YEAR_SOURCE} has it"
            ) from None
    if table.num_columns != YEAR_COLUMNS or (n_rows is not None and table.num_rows != n_rows):
        raise ValueError(
            f"expected {path} to hold {n_rows or 'some'} rows of {YEAR_COLUMNS} numbers, got {table.num_rows} of "
            f"{table.num_columns}; get it again from {_YEAR_SOURCE}"
        )
    values = np.column_stack([column.to_numpy().astype(np.float64) for column in table.columns])
    return Dataset("year", values[:, 1:], values[:, :1], tuple(names[1:]), ("year",), None)


def read_flights(path: Path, n_rows: int | None = FLIGHT_ROWS, seed: int = 0) -> Dataset:
    """Flights in the layout of the Data Expo, with ``plane-data.csv`` beside them; ``n_rows`` drawn, all if None."""
    from pyarrow import csv

    planes = path.parent / "plane-data.csv"
    if not planes.exists():
        raise FileNotFoundError(
            f"{planes} does not exist: planes' ages come from it; {_FLIGHT_SOURCE} has it"
        )
    numbers = ["Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "ArrDelay",
               "DepDelay", "Distance"]  # fmt: skip
    missing = csv.ConvertOptions(
        include_columns=[*numbers, "TailNum"], null_values=["NA", ""], strings_can_be_null=True
    )
    made = csv.ConvertOptions(
        include_columns=["tailnum", "year"],
        column_types={"year": "string"},
        null_values=["None", "", "0000"],
        strings_can_be_null=True,
    )
    try:
        table = csv.read_csv(path, convert_options=missing)
        plane = csv.read_csv(planes, convert_options=made)
    except KeyError as error:
        raise ValueError(
            f"{path} or {planes} lacks a column: {error}; get them again from {_FLIGHT_SOURCE}"
        ) from None
    built = {
        tail: float(year)
        for tail, year in zip(plane["tailnum"].to_pylist(), plane["year"].to_pylist(), strict=True)
        if year is not None
    }
    column: dict[str, Array] = {name: table[name].to_numpy().astype(np.float64) for name in numbers}
    tails = table["TailNum"].to_pylist()
    age = np.array([FLIGHT_YEAR - built.get(tail, np.nan) for tail in tails], dtype=np.float64)
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
        kept &= age >= 0  # some planes are said to have been built after they flew
    chosen = np.flatnonzero(kept)
    if n_rows is not None:
        if len(chosen) < n_rows:
            raise ValueError(
                f"expected {path} to hold at least {n_rows} complete flights of January to April, got "
                f"{len(chosen)}; get it again from {_FLIGHT_SOURCE}"
            )
        chosen = np.random.default_rng(seed).choice(chosen, n_rows, replace=False)
    is_train = None
    if n_rows == FLIGHT_ROWS:
        is_train = np.arange(n_rows) < FLIGHT_TRAIN  # rows are in random order
    return Dataset("flight", X[chosen], Y[chosen], FLIGHT_INPUTS, FLIGHT_OUTPUTS, is_train)


def _minutes(clock: Array) -> Array:
    """Minutes since midnight of times such as 1305."""
    return np.floor(clock / 100.0) * 60.0 + np.mod(clock, 100.0)


def _opened(path: Path) -> Any:
    """A file, or the only one inside an archive."""
    if path.suffix != ".zip":
        return path.open("rb")
    archive = zipfile.ZipFile(path)
    inside = archive.namelist()
    if len(inside) != 1:
        raise ValueError(f"expected one file inside {path}, got {len(inside)}")
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
