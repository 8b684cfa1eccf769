"""Candidates of a trial of coordinates: which leaves they share."""

from dataclasses import replace

import numpy as np

from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.coordinate_trial import start
from dsmgp.fitting.selection.trial_candidates import judge, learn
from dsmgp.gp.transforms.coordinates import Coordinates


def test_kernels_and_folds_share_the_leaves_that_were_set_up(rng, monkeypatch):
    X = rng.normal(size=(200, 2))
    config = FitConfig(max_iter=2, leaf_sizes=(30,))
    data = ScaledRows.of(X, np.sin(X[:, :1]), config)
    set_up, n_leaves = InMemoryLeafGPs.__init__, []

    def counted(self, leaves, *arguments, **options):
        n_leaves.append(len(leaves))
        set_up(self, leaves, *arguments, **options)

    monkeypatch.setattr(InMemoryLeafGPs, "__init__", counted)
    best = start(data, FitContext(config, rng), None, ())
    trial = best.candidate.trial
    assert len(trial.rows.folds) == 2
    # Both halves of the small leaves, which learn and judge in turn under three kernels, and the large ones of each.
    assert sorted(n_leaves[:2]) == sorted(len(half) for half in trial.rows.folds)
    assert len(n_leaves) == 4
    # Other coordinates have leaves of their own, and equal ones give the same scores.
    plain = replace(best.candidate, folds=trial.folds(Coordinates.identity(2), ()), families=())
    again = judge(learn(plain))
    assert len(n_leaves) == 8
    np.testing.assert_array_equal(again.small.loss, best.scores.small.loss)
