"""Predictions of datasets on other file systems are those of this machine, complete or not there."""

import tempfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from dsmgp import DSMGPRegressor, ModelFileError
from dsmgp.data.table_error import TableError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def rows():
    x = np.random.default_rng(0).uniform(size=90)
    return pd.DataFrame({"x": x, "y": np.sin(6 * x)})


@pytest.fixture(scope="module")
def model(rows):
    return DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(rows[["x"]], rows["y"])


@pytest.fixture
def data(rows, tmp_path):
    """Three files, each a piece."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for k in range(3):
        rows[30 * k : 30 * (k + 1)].to_parquet(folder / f"{k}.parquet")
    return folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(params=["file", "memory"])
def root(request, tmp_path):
    if request.param == "file":
        (tmp_path / "out").mkdir()
        return f"file://{tmp_path}/out"
    return f"memory://out-{tmp_path.name}"


def read(url):
    with fsspec.open(url, "rb") as file:
        return parquet.read_table(file)


def names(url):
    filesystem, path = fsspec.core.url_to_fs(url)
    return sorted(name.rpartition("/")[2] for name in filesystem.ls(path, detail=False))


@pytest.mark.parametrize("in_files", [True, False])
def test_predictions_are_written_to_urls(model, data, tmp_path, temporary, root, in_files):
    if in_files:
        model = DSMGPRegressor("rbf", max_iter=3, random_state=0, memory_limit="20MB")
        model.fit_dataset(data, target="y", store=tmp_path / "model")
    model.predict_dataset(data, tmp_path / "near.parquet", keep=["y"])
    near = parquet.read_table(tmp_path / "near.parquet")
    for _ in range(2):  # a file is replaced
        assert model.predict_dataset(data, f"{root}/far.parquet", keep=["y"]) == 90
        assert read(f"{root}/far.parquet").equals(near)
    model.predict_dataset(data, f"{root}/parts/", keep=["y"])
    parts = [f"part-{k:05d}.parquet" for k in range(3)]
    assert names(f"{root}/parts") == parts
    assert pa.concat_tables([read(f"{root}/parts/{part}") for part in parts]).equals(near)
    with pytest.raises(TableError, match="parts is a folder with files in it"):
        model.predict_dataset(data, f"{root}/parts")
    assert not any(temporary.iterdir())


@pytest.mark.parametrize("name", ["far.parquet", "parts/"])
def test_an_upload_that_fails_leaves_the_predictions_here(
    model, data, tmp_path, temporary, monkeypatch, name
):
    url, copy = f"memory://bad-{tmp_path.name}", fs.copy_files
    others = f"{url}/{name}others.txt" if name.endswith("/") else f"{url}/others.txt"

    def failing(source, target, **systems):
        copy(source, target, **systems)
        fsspec.filesystem("memory").pipe(others, b"theirs")
        raise OSError("the bucket is full")

    monkeypatch.setattr(fs, "copy_files", failing)
    with pytest.raises(TableError, match="the bucket is full; the complete output is in") as error:
        model.predict_dataset(data, f"{url}/{name}")
    complete = str(error.value).rpartition(" is in ")[2]
    assert parquet.read_table(complete).num_rows == 90
    # What others wrote meanwhile stays.
    (left,) = fsspec.filesystem("memory").find(url)
    assert left.endswith("/others.txt")


def test_what_cannot_be_written_is_refused_before_anything_is_computed(
    model, data, rows, tmp_path, temporary
):
    bad = tmp_path / "bad.parquet"
    rows.assign(x=np.inf).to_parquet(bad)
    url = f"memory://rest-{tmp_path.name}"
    with pytest.raises(TableError, match="cannot be reached"):
        model.predict_dataset(data, "nowhere://out/far.parquet")
    with pytest.raises(TableError, match="column 'x' has inf"):
        model.predict_dataset(bad, f"{url}/far.parquet")
    assert not any(temporary.iterdir())
    assert not fsspec.filesystem("memory").find(url)
    with pytest.raises(
        ModelFileError, match=r"needs a folder on a disk, .* got the address memory:"
    ):
        DSMGPRegressor("rbf").fit_dataset(data, target="y", store="memory://store")
