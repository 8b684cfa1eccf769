"""The ladder of jitters."""

import math

import numpy as np
import pytest

from dsmgp.linalg.jitter import JITTER_RANGE, jitter_ladder


@pytest.mark.parametrize("dtype", JITTER_RANGE)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 7e5])
def test_the_ladder_goes_from_the_least_to_the_largest_by_tens(dtype, scale):
    lowest, highest = JITTER_RANGE[dtype]
    found = list(jitter_ladder(scale, dtype))
    np.testing.assert_allclose(found[0], lowest * scale)
    np.testing.assert_allclose(found[-1], highest * scale)
    np.testing.assert_allclose(np.diff(np.log10(found)), 1.0)
    assert np.dtype(dtype)  # the names are NumPy's


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_there_is_no_jitter_for_what_is_no_covariance(scale):
    assert list(jitter_ladder(scale)) == []
