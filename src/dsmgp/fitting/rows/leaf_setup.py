"""From scaled rows to leaf GPs: build the kernels of a family, and set up the GPs of leaves within the memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_variance
from dsmgp.experts.interface import LeafGPs
from dsmgp.experts.leaf_gps import rows_of_leaves
from dsmgp.experts.points import LeafPoints
from dsmgp.fitting.config import LEAF_MATRICES, FitConfig
from dsmgp.fitting.rows.rounded_outputs import least_noise
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.leaf_kernels import LeafKernel
from dsmgp.gp.periods import dominant_periods
from dsmgp.gp.process import NOISE_FLOOR, SINGLE_NOISE_FLOOR, Family, build_process
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree.nodes import Leaf, Node

__all__ = ["LeafFamilies", "build_family", "check_leaf_memory", "set_up_leaves"]


def build_family(kernel: Any, data: ScaledRows, config: FitConfig) -> Family:
    """Build the processes of a kernel, one per output, at the values from which learning starts."""
    single = config.dtype == "float32"
    variance = 1.0
    if not config.standardize:  # mean variance of the outputs as the leaf GPs see them
        scale = OutputScaling.of(data.Y, True, data.outputs.warps, data.row_weights).loading
        variance = check_variance(float(np.square(scale).sum() / data.n_outputs), single)
    periods = None
    if isinstance(kernel, str) and "periodic" in kernel:
        Z, y = data.inputs.scaled(data.U), data.outputs.to_experts(data.Y)[:, 0]
        periods = dominant_periods(Z, y, data.row_weights)
    process = build_process(
        kernel,
        config.mean,
        config.noise_variance,
        data.n_dims,
        noise_floor=max(
            SINGLE_NOISE_FLOOR if single else NOISE_FLOOR, least_noise(data) / variance
        ),
        spread=data.input_spread,
        variance=variance,
        periods=periods,
        ties=data.ties,
        priors=config.priors is not None,
    )
    return Family(str(kernel), (process,) * data.n_outputs)


@dataclass(frozen=True, eq=False)
class LeafFamilies:
    """A tree, and the family (kernel, mean and noise) of each of its leaves.

    Attributes
    ----------
    tree : Node
    families : list of Family
    family : ndarray of shape (n_leaves,)
        Which of the families each leaf belongs to.
    """

    tree: Node
    families: list[Family]
    family: Index


def set_up_leaves(
    leaves: Sequence[Leaf],
    kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
    data: ScaledRows,
    config: FitConfig,
) -> LeafGPs:
    """Set up the GPs of leaves, whose rows are those of ``data``; ``kernels`` by output, for all leaves or leaf by leaf.

    Parameters
    ----------
    leaves : sequence of Leaf
    kernels : sequence
        For each output a kernel for all leaves, or one for each leaf.
    data : ScaledRows
    config : FitConfig
        Says where leaves are computed, and in how much memory.

    Raises
    ------
    InputError
        If the matrices of a leaf do not fit in memory.
    """
    largest = max(leaf.n_rows for leaf in leaves)
    if largest > config.max_leaf_rows:  # rows with equal inputs are computed as one
        points = LeafPoints.of(rows_of_leaves(leaves), data.labels)
        largest = int(points.first.sizes.max())
    check_leaf_memory(largest, config)
    return config.executor.leaf_gps(
        leaves,
        data.leaf_data,
        kernels,
        0.25 * config.memory,
        config.device,
        config.dtype,
    )


def check_leaf_memory(largest: int, config: FitConfig) -> None:
    """Refuse a leaf of ``largest`` rows if its matrices do not fit in memory, before anything is allocated."""
    if largest > config.max_leaf_rows:
        need, limit = (
            LEAF_MATRICES * largest**2 * np.dtype(config.dtype).itemsize,
            config.leaf_memory,
        )
        raise InputError(
            f"the largest leaf has {largest} rows with distinct inputs and needs {need / 1e6:.3g} MB, more than the "
            f"{limit / 1e6:.3g} MB allowed; lower leaf_size, raise memory_limit, or use "
            "structure='balanced' if it is not"
        )
