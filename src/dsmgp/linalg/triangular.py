"""Inverses of triangular matrices in torch, by products of blocks.

A GPU multiplies matrices many times faster than it solves triangular systems, but a product of whole triangular matrices
wastes most of its work on zeros. Halving the matrix until blocks are small avoids both.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["inverse_from_factor", "invert"]

# Matrices of up to so many rows are inverted directly.
DIRECT_ROWS = 512


def invert(L: Tensor) -> Tensor:
    """Return ``L^-1`` of lower triangular matrices, (..., n, n)."""
    if L.shape[-1] <= DIRECT_ROWS or L.device.type == "cpu":
        return _direct(L)
    J = torch.zeros_like(L)
    _invert_into(L, J)
    return J


def inverse_from_factor(L: Tensor) -> Tensor:
    """Return ``(L L')^-1`` of lower triangular matrices, (..., n, n)."""
    if L.device.type == "cpu":
        return torch.cholesky_inverse(L)
    J = invert(L)
    if L.shape[-1] <= DIRECT_ROWS:
        return J.mT @ J
    out = torch.empty_like(J)
    _square_into(J, out)
    return out


def _direct(L: Tensor) -> Tensor:
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return torch.linalg.solve_triangular(L, identity.expand_as(L), upper=False)


def _invert_into(L: Tensor, J: Tensor) -> None:
    """Set J to L^-1, by ``[[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]``."""
    n = L.shape[-1]
    if n <= DIRECT_ROWS:
        J.copy_(_direct(L))
        return
    h = _half(n)
    _invert_into(L[..., :h, :h], J[..., :h, :h])
    _invert_into(L[..., h:, h:], J[..., h:, h:])
    J[..., h:, :h] = J[..., h:, h:] @ (L[..., h:, :h] @ J[..., :h, :h])
    J[..., h:, :h].neg_()


def _square_into(J: Tensor, out: Tensor) -> None:
    """Set out to ``J' J`` for lower triangular J: ``[[A'A + B'B, B'C], [C'B, C'C]]``."""
    n = J.shape[-1]
    if n <= DIRECT_ROWS:
        out.copy_(J.mT @ J)
        return
    h = _half(n)
    below = J[..., h:, :h]
    _square_into(J[..., :h, :h], out[..., :h, :h])
    _square_into(J[..., h:, h:], out[..., h:, h:])
    out[..., :h, :h] += below.mT @ below
    out[..., h:, :h] = J[..., h:, h:].mT @ below
    out[..., :h, h:] = out[..., h:, :h].mT


def _half(n: int) -> int:
    """Return half the rows, rounded to whole tiles of a GPU's matrix products."""
    return max(64, (n // 2 + 63) // 64 * 64)
