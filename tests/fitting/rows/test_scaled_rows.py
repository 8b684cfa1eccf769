"""Rows are scaled once, the scaled rows never change, and leaves are set up once per use."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.leaf_setup import (
    LeafFamilies,
    build_family,
    check_leaf_memory,
    set_up_leaves,
)
from dsmgp.fitting.rows.row_source import InMemoryRows
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.process import parameters_by_leaf
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree import Leaf, Product, Region, Sum


@pytest.fixture
def data(rng):
    X = rng.normal(size=(40, 2)) * [1.0, 100.0] + 5.0
    return ScaledRows.of(X, X @ [[1.0, 2.0], [0.5, 0.0]], FitConfig(), np.full((40, 2), 0.3))


def test_leaf_gps_see_scaled_rows_and_known_noise(data):
    assert np.abs(data.scaled_X.mean(axis=0)).max() < 1e-12
    np.testing.assert_allclose(data.scaled_Y.std(axis=0), 1.0)
    np.testing.assert_allclose(data.known_noise * data.Y.var(axis=0), 0.3)
    np.testing.assert_allclose(data.input_spread, 1.0)


def test_another_output_scaling_gives_other_data_and_leaves_the_first_as_it_is(data):
    before = data.scaled_Y.copy()
    outputs = OutputScaling.rotated(data.Y, True)
    rotated = data.with_outputs(outputs)
    assert rotated.X is data.X
    assert rotated.labels is data.labels
    np.testing.assert_allclose(outputs.mean_to_latent(rotated.scaled_Y), data.Y)
    np.testing.assert_array_equal(data.scaled_Y, before)
    assert data.with_outputs(data.outputs) is data
    with pytest.raises(FrozenInstanceError):
        data.outputs = outputs


def test_inputs_out_of_range_are_refused_in_the_users_terms(rng):
    config = FitConfig(standardize=False, dtype="float32")
    data = ScaledRows.of(np.array([[0.0], [1e30]]), np.zeros((2, 1)), config)
    with pytest.raises(ValueError, match=r"row 1 of X.*single precision"):
        data.scaled_X  # noqa: B018


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_largest_leaf_that_fits_is_allowed_and_one_row_more_is_refused(dtype):
    config = FitConfig(memory_limit=10**6, dtype=dtype)
    check_leaf_memory(config.max_leaf_rows, config)
    with pytest.raises(
        ValueError, match=r"largest leaf has \d+ rows.*1 MB allowed; lower leaf_size"
    ):
        check_leaf_memory(config.max_leaf_rows + 1, config)
    assert 4 * config.max_leaf_rows**2 * np.dtype(dtype).itemsize <= 10**6


def test_leaves_of_several_families_have_their_own_kernels_and_parameters(data):
    config = FitConfig()
    parts = Region.whole(2).split(0, [5.0])
    left = data.X[:, 0] < 5.0
    rows = [np.flatnonzero(left), np.flatnonzero(~left)]
    split = Product([Leaf(p, r) for p, r in zip(parts, rows, strict=True)], 0, [5.0])
    tree = Sum([Leaf(Region.whole(2), np.arange(40)), split])
    families = [build_family(kernel, data, config) for kernel in ("rbf", "matern12")]
    first, second = families[1].processes
    families[1] = families[1].with_processes([first.rescaled(3.0), second])
    mixed = LeafFamilies(tree, families, np.array([0, 1, 1]))
    gps = InMemoryRows(data, config).set_up(mixed, data.outputs)
    together = gps.log_evidence(parameters_by_leaf(families, mixed.family))
    for number, (leaf, family) in enumerate(
        zip([tree.children[0], *split.children], [families[0], *[families[1]] * 2], strict=True)
    ):
        alone = set_up_leaves([leaf], family.leaf_kernels, data, config)
        expected = alone.log_evidence(family.kernel_parameters)[0]
        np.testing.assert_allclose(together[number], expected, rtol=1e-12)


def test_a_fit_of_one_hypothesis_sets_up_its_leaves_twice(rng, monkeypatch):
    """Once to choose a kernel and learn, once for the model; trials share what was set up for the rows."""
    set_up, n = InMemoryLeafGPs.__init__, [0]

    def counted(self, *arguments, **options):
        n[0] += 1
        set_up(self, *arguments, **options)

    monkeypatch.setattr(InMemoryLeafGPs, "__init__", counted)
    X = rng.uniform(size=(120, 2))
    DSMGPRegressor(hypotheses=None, random_state=0).fit(X, np.sin(5 * X[:, 0]))
    assert n[0] == 2
