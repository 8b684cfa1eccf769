"""Sums over all segmentations: compiled and NumPy code agree, and probabilities stay probabilities."""

import numpy as np
import pytest

from dsmgp.changepoints.boundaries import Boundaries
from dsmgp.changepoints.segmentation import hazard_log_probabilities, posterior_any_changes


def test_compiled_sums_over_segmentations_are_those_of_numpy(rng, monkeypatch):
    x = np.sort(rng.integers(0, 40, size=60)).astype(float)
    boundaries = Boundaries(x)
    for longest in (9, 25, 60):
        evidences = rng.normal(size=(60, longest)) * 3
        beyond = np.arange(60)[:, None] + np.arange(longest) >= 60
        evidences[beyond] = -np.inf
        log_hazard, log_survival, _ = hazard_log_probabilities(boundaries, "length", 0.3)
        one = posterior_any_changes(evidences, log_hazard, log_survival)
        with monkeypatch.context() as without_numba:
            without_numba.setattr("dsmgp.changepoints.segmentation.has_numba", lambda: False)
            other = posterior_any_changes(evidences, log_hazard, log_survival)
        assert one.log_evidence == pytest.approx(other.log_evidence)
        np.testing.assert_allclose(
            one.change_probability, other.change_probability, rtol=1e-9, atol=1e-15
        )
        np.testing.assert_allclose(
            one.prior_change_probability, other.prior_change_probability, rtol=1e-9, atol=1e-15
        )
        inside = (one.start <= 30) & (one.end > 30)
        assert one.probability[inside].sum() == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("compiled", [True, False])
def test_probabilities_are_at_most_one_where_the_evidence_is_huge(rng, monkeypatch, compiled):
    """Cancellation then leaves errors larger than one."""
    boundaries = Boundaries(np.sort(rng.uniform(size=60)))
    evidences = -1e30 * np.arange(1, 21) ** 2 * rng.uniform(0.5, 1.0, size=(60, 20))
    evidences[np.arange(60)[:, None] + np.arange(20) >= 60] = -np.inf
    log_hazard, log_survival, _ = hazard_log_probabilities(boundaries, "length", 0.3)
    monkeypatch.setattr("dsmgp.changepoints.segmentation.has_numba", lambda: compiled)
    posterior = posterior_any_changes(evidences, log_hazard, log_survival)
    for probability in (posterior.change_probability, posterior.probability):
        assert ((probability >= 0) & (probability <= 1)).all()
