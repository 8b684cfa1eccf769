"""The file format: safetensors, with a checksum, and without a second copy of the arrays in memory."""

import io
import json
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy

from dsmgp._util import archive
from dsmgp._util.archive import (
    ModelFileError,
    dump_archive,
    load_archive,
    read_archive,
    write_archive,
)

ARRAYS = {
    "z": np.arange(3.0),
    "a": np.arange(4, dtype=np.int64),
    "b": np.arange(3, dtype=np.int32),
    "none": np.zeros((0, 3)),
    "f": np.ones((2, 2), np.float32),
    "u": np.arange(3, dtype=np.uint8),
    "scalar": np.array(1.5),
    'odd "é\\': np.ones(1),
    "transposed": np.arange(6.0).reshape(2, 3).T,
}
HEADER = {"name": 'é"\n', "number": 0.1, "missing": None}


def content(header=HEADER, arrays=ARRAYS):
    file = io.BytesIO()
    dump_archive(file, header, arrays)
    return file.getvalue()


def test_files_are_those_of_safetensors_to_the_last_byte():
    ours = content()
    start = ours.index(archive.MARK) + len(archive.MARK)
    blank = ours[:start] + b"0" * archive.DIGITS + ours[start + archive.DIGITS :]
    text = json.dumps(
        {"checksum": "0" * archive.DIGITS, "format": archive.FORMAT, **HEADER},
        separators=(",", ":"),
    )
    tight = {name: np.asarray(array, order="C") for name, array in ARRAYS.items()}
    assert blank == safetensors.numpy.save(tight, {"dsmgp": text})


def test_safetensors_reads_our_files(tmp_path):
    write_archive(tmp_path / "file", HEADER, ARRAYS)
    found = safetensors.numpy.load_file(tmp_path / "file")
    assert found.keys() == ARRAYS.keys()
    assert all(np.array_equal(found[name], array) for name, array in ARRAYS.items())


def test_what_is_written_comes_back(tmp_path):
    write_archive(tmp_path / "file", HEADER, ARRAYS)
    found = read_archive(tmp_path / "file")
    assert found.header.items() >= HEADER.items()
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].flags.writeable
        np.testing.assert_array_equal(found.arrays[name], array)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {"dtype": "F64", "shape": [3]},
        {"dtype": "F64", "shape": [3], "data_offsets": [8, 32]},
        {"dtype": "F64", "shape": [2], "data_offsets": [0, 24]},
        {"dtype": "F64", "shape": [-1, -3], "data_offsets": [0, 24]},
        {"dtype": "F64", "shape": [3.0], "data_offsets": [0, 24]},
        {"dtype": "F64", "shape": [10**30], "data_offsets": [0, 8 * 10**30]},
        {"dtype": "O", "shape": [3], "data_offsets": [0, 24]},
        {"dtype": "F64", "shape": [3], "data_offsets": [0, 24, 48]},
    ],
)
def test_a_layout_that_does_not_fit_the_file_is_refused(entry):
    """Before any memory is reserved for it."""
    whole = content({}, {"x": np.zeros(3)})
    head, data = whole[8:-24], whole[-24:]
    head = json.dumps({**json.loads(head), "x": entry}).encode()
    whole = len(head).to_bytes(8, "little") + head + data
    with pytest.raises(ModelFileError, match="damaged"):
        load_archive(io.BytesIO(whole), len(whole), "file")


def peak(call):
    """Bytes allocated at once during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_holds_no_second_copy_of_the_arrays(tmp_path):
    path, array = tmp_path / "file", np.ones((1000, 2000))
    write_archive(path, {}, {})  # what is imported and cached
    assert peak(lambda: write_archive(path, {}, {"x": array, "y": array})) < 0.05 * array.nbytes
    assert peak(lambda: read_archive(path)) < 2.05 * array.nbytes
