"""Prior means by name, and means that users pass in, as GPyTorch modules."""

from __future__ import annotations

import copy
from typing import Any

import torch
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean

__all__ = ["MEANS", "build_mean", "linear_mean"]


def linear_mean(input_size: int, **options: Any) -> LinearMean:
    """Return GPyTorch's linear mean, starting at zero: its own start is random, and would advance the user's seed."""
    with torch.device("meta"):  # where no numbers are drawn
        built = LinearMean(input_size, **options)
    built = built.to_empty(device="cpu").double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.zero_()
    return built


MEANS: dict[str, Any] = {
    "zero": lambda n_dims: ZeroMean(),
    "constant": lambda n_dims: ConstantMean(),
    "linear": linear_mean,
}


def build_mean(mean: str | Mean, n_dims: int) -> Mean:
    """Return a mean of one output for inputs of ``n_dims`` columns; a module that is passed in is copied."""
    if isinstance(mean, str):
        if mean not in MEANS:
            raise ValueError(
                f"unknown mean {mean!r}: expected one of {', '.join(map(repr, MEANS))}, "
                "or a gpytorch mean"
            )
        return MEANS[mean](n_dims).double()
    if not isinstance(mean, Mean):
        raise ValueError(
            f"expected mean to be one of {', '.join(map(repr, MEANS))} or a gpytorch mean, got {mean!r}"
        )
    copied = copy.deepcopy(mean).double()
    try:
        with torch.no_grad():
            shape = copied(torch.zeros(2, n_dims, dtype=torch.float64)).shape
    except Exception as error:
        raise ValueError(
            f"the mean cannot be evaluated on inputs with {n_dims} columns: {error}"
        ) from error
    if shape != (2,):
        raise ValueError(
            f"expected a mean with one value per row, got shape {tuple(shape)} for 2 rows"
        )
    return copied
