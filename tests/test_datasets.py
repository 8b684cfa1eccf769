"""Reading benchmark data: prepared tables, and the publishers' files of Year and Flight, on files made here."""

from __future__ import annotations

import bz2
import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dsmgp.datasets import ORIGINALS, load, load_original, read_flights, read_year

DATA = os.environ.get("DSMGP_DATA")
HEADER = "Year,Month,DayofMonth,DayOfWeek,DepTime,CRSDepTime,ArrTime,TailNum,AirTime,ArrDelay,DepDelay,Distance"
FLIGHTS = [
    "2008,1,3,4,2003,1955,2211,N712SW,116,-14,8,810",
    "2008,2,4,1,754,735,1002,N772SW,113,2,19,810",
    "2008,1,3,4,628,620,NA,N428WN,NA,NA,8,515",  # did not arrive
    "2008,3,5,3,5,2359,130,N000AA,80,60,6,500",  # a plane of unknown year
    "2008,5,5,1,900,900,1000,N712SW,50,1,0,300",  # after April
    "2008,4,6,7,900,900,1000,N999ZZ,50,1,0,300",  # built after it flew
]
PLANES = "tailnum,type,year\nN712SW,Corporation,1998\nN772SW,Corporation,2000\nN428WN,,2005\nN000AA,,None\nN999ZZ,,2011\n"


@pytest.fixture
def folder(tmp_path, rng, monkeypatch):
    pd.DataFrame({"x": range(10), "y": range(10), "is_train": [True] * 6 + [False] * 4}).to_parquet(
        tmp_path / "kin40k.parquet"
    )
    pd.DataFrame({"times": rng.normal(size=10), "accel": range(10)}).to_parquet(
        tmp_path / "motorcycle.parquet"
    )
    monkeypatch.setenv("DSMGP_DATA", str(tmp_path))
    return tmp_path


def test_the_split_laid_down_is_used(folder):
    data = load("kin40k")
    assert data.inputs == ("x",)
    X, Y, X_test, Y_test = data.split(seed=0)
    assert X.shape == Y.shape == (6, 1)
    assert X_test.shape == Y_test.shape == (4, 1)


def test_other_splits_are_the_first_70_percent_of_a_seeded_permutation(folder):
    data = load("motorcycle", folder)
    _, Y, _, Y_test = data.split(seed=3)
    chosen = np.random.default_rng(3).permutation(10)[:7]
    assert set(Y[:, 0]) == set(chosen.tolist())
    assert len(Y_test) == 3


def test_unknown_and_missing_data_sets_are_named(folder, monkeypatch):
    with pytest.raises(ValueError, match="unknown data set 'iris': expected one of motorcycle"):
        load("iris")
    with pytest.raises(FileNotFoundError, match=r"house.parquet does not exist"):
        load("house")
    monkeypatch.delenv("DSMGP_DATA")
    with pytest.raises(FileNotFoundError, match="set DSMGP_DATA"):
        load("house")


@pytest.fixture
def songs(rng):
    return np.column_stack([rng.integers(1950, 2011, size=20), rng.normal(size=(20, 90)).round(5)])


def write_songs(path, songs):
    lines = [",".join([str(int(row[0])), *map(repr, row[1:].tolist())]) for row in songs]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def flights(tmp_path):
    (tmp_path / "plane-data.csv").write_text(PLANES)
    path = tmp_path / "2008.csv"
    path.write_text("\n".join([HEADER, *FLIGHTS]) + "\n")
    return path


def test_year_is_read_as_published(tmp_path, songs):
    path = tmp_path / "YearPredictionMSD.txt"
    write_songs(path, songs)
    data = read_year(path, n_rows=20)
    np.testing.assert_array_equal(data.Y[:, 0], songs[:, 0])
    np.testing.assert_array_equal(data.X, songs[:, 1:])
    X, _, X_test, _ = data.split(0)
    assert len(X) == 14
    assert len(X_test) == 6
    archive = tmp_path / "YearPredictionMSD.txt.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(path, path.name)
    np.testing.assert_array_equal(read_year(archive, n_rows=20).X, data.X)


@pytest.mark.skipif(
    DATA is None or not (Path(DATA) / "year_first1176.parquet").exists(),
    reason="the fragment of Year is not in DSMGP_DATA",
)
def test_year_is_read_as_in_its_prepared_fragment(tmp_path):
    fragment = load("year_first1176")
    path = tmp_path / "YearPredictionMSD.txt"
    write_songs(path, np.column_stack([fragment.Y, fragment.X]))
    data = read_year(path, n_rows=1176)
    np.testing.assert_array_equal(data.X, fragment.X)
    np.testing.assert_array_equal(data.Y, fragment.Y)
    with pytest.raises(ValueError, match=r"515345 rows of 91 numbers, got 1176 of 91"):
        load_original("year", tmp_path)


def test_files_that_are_not_year_are_refused(tmp_path, songs):
    path = tmp_path / "YearPredictionMSD.txt"
    write_songs(path, songs[:, :50])
    with pytest.raises(ValueError, match="of 50"):
        read_year(path, n_rows=20)


def test_flights_are_read_as_published(flights):
    data = read_flights(flights, n_rows=None)
    np.testing.assert_array_equal(
        data.X,
        [[1, 3, 4, 10, 116, 810, 22 * 60 + 11, 20 * 60 + 3], [2, 4, 1, 8, 113, 810, 602, 474]],
    )
    np.testing.assert_array_equal(data.Y, [[-14, 8], [2, 19]])
    packed = flights.with_name("2008.csv.bz2")
    packed.write_bytes(bz2.compress(flights.read_bytes()))
    np.testing.assert_array_equal(read_flights(packed, n_rows=None).X, data.X)
    assert len(read_flights(flights, n_rows=1).X) == 1
    with pytest.raises(ValueError, match="at least 3 complete flights"):
        read_flights(flights, n_rows=3)


def test_flights_need_the_planes(flights):
    (flights.parent / "plane-data.csv").unlink()
    with pytest.raises(FileNotFoundError, match="planes' ages"):
        read_flights(flights)


def test_a_file_of_the_wrong_size_or_checksum_is_refused(flights):
    with pytest.raises(ValueError, match="689413344 bytes"):
        load_original("flight", flights.parent)
    size, known = flights.stat().st_size, hashlib.sha256(flights.read_bytes()).hexdigest()
    right = replace(ORIGINALS["flight"], sizes={"2008.csv": size}, checksums={"2008.csv": known})
    right.check(flights)
    flights.write_bytes(flights.read_bytes()[:-2] + b"9\n")
    with pytest.raises(ValueError, match="SHA-256"):
        right.check(flights)


def test_missing_files_are_named_with_their_source(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"YearPredictionMSD\.txt.*UCI"):
        load_original("year", tmp_path)
    monkeypatch.delenv("DSMGP_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="DSMGP_DATA"):
        load_original("flight")
    with pytest.raises(ValueError, match="unknown original"):
        load_original("month", tmp_path)
