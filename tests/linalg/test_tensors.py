"""Arrays as tensors, and back."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dsmgp.linalg.tensors import as_numpy, as_tensor, put, take  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_arrays_come_back(rng, dtype):
    values = rng.normal(size=(5, 3))
    values.flags.writeable = False
    for like in (torch.empty(0, dtype=dtype), (torch.device("cpu"), dtype)):
        tensor = as_tensor(values, like)
        assert tensor.dtype == dtype
        np.testing.assert_allclose(as_numpy(tensor), values, rtol=1e-6)
    assert as_numpy(tensor).dtype == np.float64


def test_rows_are_taken_and_put(rng):
    values, rows = rng.normal(size=(5, 3)), np.array([3, 1])
    table = as_tensor(values, torch.empty(0, dtype=torch.float64))
    np.testing.assert_array_equal(as_numpy(take(table, rows)), values[rows])
    put(table, rows, torch.zeros(2, 3, dtype=torch.float64))
    np.testing.assert_array_equal(as_numpy(table)[rows], 0.0)
    np.testing.assert_array_equal(as_numpy(table)[[0, 2, 4]], values[[0, 2, 4]])
