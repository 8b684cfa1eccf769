"""Log densities of blocks of rows at the edges of the data, left out together: what hypotheses are worth beyond the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.hypotheses.held_out import scaled_data
from dsmgp.fitting.outside.edge_blocks import EdgeBlock
from dsmgp.fitting.selection.mean import LeafInverses, edge_blocks_of, mean_features
from dsmgp.fitting.state import FittedState
from dsmgp.gp.named_process import NamedProcess
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.region import Region

__all__ = ["blocks_of", "log_densities_at_edges"]


def blocks_of(state: FittedState, config: FitConfig) -> list[EdgeBlock]:
    """Return blocks of rows at the ends of the inputs that matter most to a fit; none if it has no closed form."""
    if not all(isinstance(process, NamedProcess) for process in state.mixture.processes):
        return []
    data = scaled_data(state, state.model.outputs, config)
    return edge_blocks_of(data, state.mixture.families[0], np.arange(len(data.X)))


def log_densities_at_edges(
    state: FittedState, mean: str, blocks: Sequence[EdgeBlock], config: FitConfig
) -> Array | None:
    """Leave out each block together, in one leaf of all rows, at the hyperparameters of the kernel that a fit has learned.

    The coefficients of a linear mean are estimated without the block.

    Parameters
    ----------
    state : FittedState
        A fit of one output.
    mean : str
        The mean that it was made with.
    blocks : sequence of EdgeBlock
    config : FitConfig

    Returns
    -------
    ndarray of shape (n,), or None
        In the user's units, one block after the other. None if the covariance of all rows cannot be factorised.
    """
    if not blocks:
        return np.empty(0)
    data = scaled_data(state, state.model.outputs, config)
    rows = np.arange(len(data.X))
    leaf = Leaf(Region.whole(data.n_dims), rows)
    family = state.mixture.families[0]
    inverses = LeafInverses.of([leaf], data, family, np.random.default_rng(0), most_rows=len(rows))
    if inverses is None:
        return None
    H = mean_features(mean, data.scaled_X)
    outputs = data.outputs
    to_user = outputs.log_slopes(data.Y)[:, 0] - outputs.log_det
    parts = [inverses.left_out(H, block.rows)[0] + to_user[block.rows] for block in blocks]
    return np.concatenate(parts)
