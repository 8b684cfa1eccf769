"""Statistics of weighted rows are those of repeated rows."""

import numpy as np
import pytest

from dsmgp._util.weighted import weighted_median, weighted_values


@pytest.mark.parametrize("total", [7, 8])
def test_the_median_and_the_counts_are_those_of_repeated_values(rng, total):
    values = rng.integers(0, 4, size=(5, 2, 3)).astype(float)
    weights = rng.multinomial(total, np.full(5, 0.2))
    repeated = np.repeat(values, weights, axis=0)
    np.testing.assert_array_equal(
        weighted_median(values, weights.astype(float)), np.median(repeated, axis=0)
    )
    np.testing.assert_array_equal(weighted_median(repeated, None), np.median(repeated, axis=0))
    present = weights > 0
    found = weighted_values(values[present, 0, 0], weights[present].astype(float))
    np.testing.assert_array_equal(found, np.unique(repeated[:, 0, 0], return_counts=True))
    np.testing.assert_array_equal(weighted_values(repeated[:, 0, 0], None), found)
