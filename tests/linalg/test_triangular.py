"""Inverses by blocks equal inverses."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dsmgp.linalg import triangular  # noqa: E402


@pytest.mark.parametrize("shape", [(40, 40), (3, 130, 130), (2, 257, 257), (600, 600)])
def test_inverses_by_blocks_are_inverses(shape, monkeypatch):
    monkeypatch.setattr(triangular, "DIRECT_ROWS", 64)
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(*shape, dtype=torch.float64, generator=generator)
    L = torch.linalg.cholesky(A @ A.mT + shape[-1] * torch.eye(shape[-1], dtype=torch.float64))
    J = torch.zeros_like(L)
    triangular._invert_into(L, J)
    expected = torch.from_numpy(np.linalg.inv(L.numpy()))
    torch.testing.assert_close(J, expected, rtol=0, atol=1e-11)
    out = torch.full_like(L, torch.nan)
    triangular._square_into(J, out)
    torch.testing.assert_close(out, expected.mT @ expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(triangular.invert(L), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(
        triangular.inverse_from_factor(L), expected.mT @ expected, rtol=0, atol=1e-11
    )
