"""Arrays as tensors, and back."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dsmgp.linalg.tensors import as_numpy, as_tensor  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_arrays_come_back(rng, dtype):
    values = rng.normal(size=(5, 3))
    values.flags.writeable = False
    for like in (torch.empty(0, dtype=dtype), (torch.device("cpu"), dtype)):
        tensor = as_tensor(values, like)
        assert tensor.dtype == dtype
        np.testing.assert_allclose(as_numpy(tensor), values, rtol=1e-6)
    assert as_numpy(tensor).dtype == np.float64
