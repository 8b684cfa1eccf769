"""Data shared by the tests, all generated."""

from __future__ import annotations

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # or scikit-learn skips one of its estimator checks

import numpy as np
import pytest
from hypothesis import settings

# A script for a process of its own, which needs a browser.
collect_ignore = ["support/chromium.py"]

# Time is never asserted, and the first example may load or compile something.
settings.register_profile("dsmgp", deadline=None)
settings.load_profile("dsmgp")


@pytest.fixture
def undrawn(monkeypatch):
    """Reports have no pictures, which take most of their time, but still their titles and captions."""
    from dsmgp.report import figures

    def without_picture(plot, title, caption, alt, height=0.0):
        return figures.Figure(title, caption, alt, "", 1, 1)

    monkeypatch.setattr(figures, "draw", without_picture)


@pytest.fixture
def rng():
    return np.random.default_rng(20260711)


@pytest.fixture
def wavy(rng):
    """120 rows, two inputs, a smooth function with noise."""
    X = rng.uniform(-2, 2, size=(120, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=120)
    return X, y
